//! [`Audit`]: compares a checkpoint with its config before a model is built.

use crate::stored::TensorInfo;
use crate::stored::names::is_mask_buffer;
use gpt2_model::Config;
use gpt2_model::parameters::{LM_HEAD, PREFIX, Parameter, WTE};
use std::collections::BTreeMap;
use std::fmt;

/// The differences between a checkpoint and what its config calls for.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Audit {
    /// The checkpoint: its folder, or its embedded name.
    pub name: String,
    /// Parameters that no file holds.
    pub missing: Vec<Parameter>,
    /// Tensors that are neither parameters nor buffers of this model.
    pub unexpected: Vec<TensorInfo>,
    /// Parameters of another shape, or of a dtype that is not a float.
    pub mismatched: Vec<Mismatch>,
    /// Names that are saved twice, with and without the prefix `transformer.`.
    pub duplicates: Vec<TensorInfo>,
    /// Parameters with numbers that are not finite: the name in the file, and how many there are. Empty unless
    /// [`Checkpoint::not_finite`](crate::Checkpoint::not_finite) has filled it, since finding them reads all data.
    pub not_finite: Vec<(String, usize)>,
    /// The `attn.bias` and `attn.masked_bias` buffers: recognized, never loaded or counted.
    pub buffers: Vec<TensorInfo>,
    /// The number of elements of the parameters in the files. The table of a tied model counts once, even if the file
    /// holds it under both names.
    pub parameter_count: u64,
}

/// A parameter of the wrong shape or dtype.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Mismatch {
    /// The tensor in the file.
    pub found: TensorInfo,
    /// The shape that the config calls for.
    pub expected: Vec<usize>,
}

impl Audit {
    /// Whether nothing was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.fits() && self.not_finite.is_empty()
    }

    /// Whether the model can be built, whatever its numbers are.
    fn fits(&self) -> bool {
        self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.mismatched.is_empty()
            && self.duplicates.is_empty()
    }

    /// Compares `tensors`, by their names without prefix, with the `parameters` that `config` calls for.
    pub(crate) fn new(
        name: &str,
        config: &Config,
        parameters: &[Parameter],
        tensors: &BTreeMap<String, &TensorInfo>,
        duplicates: Vec<TensorInfo>,
    ) -> Self {
        let mut audit = Self {
            name: name.to_string(),
            missing: vec![],
            unexpected: vec![],
            mismatched: vec![],
            duplicates,
            not_finite: vec![],
            buffers: vec![],
            parameter_count: 0,
        };
        // A tied model's file may hold the one table under either name, or under both.
        let has_wte = tensors.contains_key(WTE);
        let has_head = tensors.contains_key(LM_HEAD);
        let is_expected = |parameter: &&Parameter| match parameter.name.as_str() {
            WTE => has_wte || !has_head || !config.tie_word_embeddings,
            _ => has_head || parameter.tied_to.is_none(),
        };

        let mut rest = tensors.clone();
        for parameter in parameters.iter().filter(is_expected) {
            let Some(found) = rest.remove(&parameter.name) else {
                audit.missing.push(parameter.clone());
                continue;
            };
            if !found.dtype.is_float() || found.shape != parameter.shape {
                audit.mismatched.push(Mismatch { found: found.clone(), expected: parameter.shape.clone() });
                continue;
            }
            let unused_head = parameter.tied_to.is_some() && has_wte;
            if !unused_head {
                audit.parameter_count += found.shape.iter().map(|&n| n as u64).product::<u64>();
            }
        }
        for (name, info) in rest {
            if is_mask_buffer(&name, &info.shape, config.n_layer) {
                audit.buffers.push(info.clone());
            } else {
                audit.unexpected.push(info.clone());
            }
        }
        audit
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return write!(
                f,
                "{}: every tensor that config.json calls for is there, and no other",
                self.name
            );
        }
        let found =
            if self.fits() { "the weights are damaged" } else { "the weights do not fit config.json" };
        write!(f, "{}: {found}", self.name)?;
        for p in &self.missing {
            write!(f, "\n  missing     {} {:?}", p.name, p.shape)?;
        }
        for t in &self.unexpected {
            write!(f, "\n  unexpected  {} {} {:?} in {}", t.name, t.dtype, t.shape, t.file_name())?;
        }
        for m in &self.mismatched {
            let t = &m.found;
            write!(f, "\n  mis-shaped  {} {} {:?} in {}", t.name, t.dtype, t.shape, t.file_name())?;
            write!(f, ", expected a float dtype and {:?}", m.expected)?;
        }
        for t in &self.duplicates {
            write!(f, "\n  twice       {} in {}, with and without `{PREFIX}`", t.name, t.file_name())?;
        }
        for (name, count) in &self.not_finite {
            write!(f, "\n  not finite  {name}: {count} of its numbers are NaN or infinite")?;
        }
        if !self.not_finite.is_empty() {
            f.write_str("\nnumbers that are not finite are damage: fetch the weights again")?;
        }
        if self.fits() {
            return Ok(());
        }
        write!(
            f,
            "\ncheck that config.json and the weights belong together and that this is a GPT-2 or a gpt_bigcode"
        )
    }
}
