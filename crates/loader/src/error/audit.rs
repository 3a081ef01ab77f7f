//! [`Audit`]: compares a checkpoint with its config before a model is built.

use crate::stored::TensorInfo;
use crate::stored::names::{h_of, is_mask_buffer};
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
    /// Tensors inside the blocks and tables that are neither parameters nor buffers of this model: with them, another model was
    /// saved than the config describes.
    pub unexpected: Vec<TensorInfo>,
    /// Other tensors, such as the head of a classifier, positions or scalars: not used.
    pub unused: Vec<TensorInfo>,
    /// Parameters of another shape, or of a dtype that is not a float.
    pub mismatched: Vec<Mismatch>,
    /// Names that are saved twice, with and without the prefix `transformer.`.
    pub duplicates: Vec<TensorInfo>,
    /// Parameters with numbers that are not finite: the name in the file, and how many there are. Empty unless
    /// they come from [`Checkpoint::numbers`](crate::Checkpoint::numbers), which reads all data.
    pub not_finite: Vec<(String, usize)>,
    /// The `attn.bias` and `attn.masked_bias` buffers: recognized, never loaded or counted.
    pub buffers: Vec<TensorInfo>,
    /// The number of elements of the parameters in the files. The table of a tied model counts once, even if the file
    /// holds it under both names.
    pub parameter_count: u64,
    /// The number of parameters the files hold by name, but for `lm_head`, which other models have, too.
    pub(crate) named: usize,
    /// The name of the config in messages.
    pub(crate) config: &'static str,
}

/// The most tensors that a message lists of each kind.
const LISTED: usize = 8;
/// The most names in a note.
const NOTED: usize = 4;

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
            unused: vec![],
            mismatched: vec![],
            duplicates,
            not_finite: vec![],
            buffers: vec![],
            parameter_count: 0,
            named: 0,
            config: "config.json",
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
            audit.named += usize::from(parameter.name != LM_HEAD);
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
            } else if is_of_the_model(&name, info, config) {
                audit.unexpected.push(info.clone());
            } else {
                audit.unused.push(info.clone());
            }
        }
        audit
    }
}

/// Whether a tensor that is no parameter belongs to a part of GPT-2, and so computes something: one of a block or a table that has
/// more than one number.
fn is_of_the_model(name: &str, info: &TensorInfo, config: &Config) -> bool {
    let computes = info.dtype.is_float() && info.shape.iter().product::<usize>() > 1;
    match h_of(name) {
        Some((layer, _)) => computes || layer >= config.n_layer,
        None => {
            computes && ["wte.", "wpe.", "ln_f.", "lm_head."].iter().any(|module| name.starts_with(module))
        }
    }
}

impl Audit {
    /// A line that names the tensors that are not used, if there are any.
    #[must_use]
    pub fn unused_note(&self) -> Option<String> {
        let names: Vec<&str> = self.unused.iter().take(NOTED).map(|tensor| tensor.name.as_str()).collect();
        let more = if self.unused.len() > NOTED { ", .." } else { "" };
        match self.unused.len() {
            0 => None,
            1 => Some(format!("not used, since GPT-2 has no such tensor: {}", names.join(", "))),
            count => Some(format!(
                "not used, since GPT-2 has no such tensors: {count}, {}{more}",
                names.join(", ")
            )),
        }
    }

    /// The name of a tensor that PEFT puts in the place of a layer's.
    fn adapted(&self) -> Option<&str> {
        let mut names = self.unexpected.iter().chain(&self.unused).map(|tensor| tensor.name.as_str());
        let is_adapters =
            |name: &&str| [".base_layer.", ".lora_A.", ".lora_B."].iter().any(|part| name.contains(part));
        names.find(is_adapters)
    }

    /// One line for files of which no name is the model's.
    fn no_name_fits(&self) -> Option<String> {
        let names: Vec<&str> = self.unexpected.iter().chain(&self.unused).map(|t| t.name.as_str()).collect();
        if self.missing.is_empty() || self.named > 0 {
            return None;
        }
        let first = names.first()?;
        let all_begin = |end: usize| names.iter().all(|name| name.starts_with(&first[..end]));
        let dots = first.match_indices('.').map(|(at, _)| at + 1);
        let begin = match dots.rev().find(|end| all_begin(*end)) {
            Some(end) if names.len() > 1 => format!("all begin with `{}`", &first[..end]),
            _ => format!("the first is `{first}`"),
        };
        Some(format!(
            "none of its {} tensors has a name of GPT-2's ({begin}; expected names such as `{}`)",
            names.len(),
            self.missing.first().map_or(WTE, |parameter| parameter.name.as_str())
        ))
    }
}

/// A line for each of the first, and one that counts the rest.
fn list<T>(f: &mut fmt::Formatter<'_>, kind: &str, all: &[T], line: impl Fn(&T) -> String) -> fmt::Result {
    for one in all.iter().take(LISTED) {
        write!(f, "\n  {kind:<11} {}", line(one))?;
    }
    match all.len().saturating_sub(LISTED) {
        0 => Ok(()),
        more => write!(f, "\n  {kind:<11} .. and {more} more"),
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            let others = if self.unused.is_empty() {
                "and no other".into()
            } else {
                format!("{} others are not used", self.unused.len())
            };
            return write!(
                f,
                "{}: every tensor that {} calls for is there, {others}",
                self.name, self.config
            );
        }
        let found = if self.fits() {
            "the weights are damaged".into()
        } else {
            format!("the weights do not fit {}", self.config)
        };
        write!(f, "{}: {found}", self.name)?;
        if let Some(line) = self.no_name_fits() {
            return write!(f, ": {line}; check that this is a GPT-2 or a gpt_bigcode");
        }
        let tensor = |t: &TensorInfo| format!("{} {} {:?} in {}", t.name, t.dtype, t.shape, t.file_name());
        list(f, "missing", &self.missing, |p| format!("{} {:?}", p.name, p.shape))?;
        list(f, "unexpected", &self.unexpected, tensor)?;
        if !self.missing.is_empty() {
            list(f, "not used", &self.unused, tensor)?; // perhaps the missing under other names
        }
        list(f, "mis-shaped", &self.mismatched, |m| {
            format!("{}, expected a float dtype and {:?}", tensor(&m.found), m.expected)
        })?;
        list(f, "twice", &self.duplicates, |t| {
            format!("{} in {}, with and without `{PREFIX}`", t.name, t.file_name())
        })?;
        list(f, "not finite", &self.not_finite, |(name, count)| {
            format!("{name}: {count} of its numbers are NaN or infinite")
        })?;
        if !self.not_finite.is_empty() {
            f.write_str("\nnumbers that are not finite are damage, or of a training that went astray: fetch the weights again, or take an earlier checkpoint")?;
        }
        if self.fits() {
            return Ok(());
        }
        if let Some(name) = self.adapted() {
            return write!(
                f,
                "\n{name} is of an adapter's layer inside the model: save what PEFT's merge_and_unload() returns, or the adapter by itself with \
                 save_pretrained"
            );
        }
        write!(
            f,
            "\ncheck that {} and the weights belong together and that this is a GPT-2 or a gpt_bigcode",
            self.config
        )
    }
}
