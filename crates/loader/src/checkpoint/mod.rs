//! [`Checkpoint`]: a config and the names and places of its tensors, whose data is not yet read.

pub(crate) mod findings;
pub(crate) mod generation_config;
mod naming;
pub(crate) mod numbers;
mod read;
mod transposed_linear;

use crate::error::LoadError;
use crate::error::audit::Audit;
use crate::files::Files;
use crate::formats::pickle;
use crate::stored::Stored;
use crate::stored::{Encoding, TensorInfo, is_zero, not_finite};
use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use gpt2_model::linear::{BlockFormat, Weight, WeightLayout};
use gpt2_model::parameters::{LM_HEAD, Parameter, Role, WTE};
use gpt2_model::{Config, Gpt2LMHeadModel, Implementation, WeightSource};
use numbers::Numbers;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A GPT-2 checkpoint: its config and its tensors' headers. The data is read when a model is built.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    name: String,
    config: Config,
    /// The parameters that the config calls for.
    parameters: Vec<Parameter>,
    tensors: Arc<BTreeMap<String, Stored>>,
    duplicates: Vec<TensorInfo>,
    /// The name of the config in messages.
    config_name: &'static str,
    /// Everything that was read otherwise than it is stored.
    notes: Vec<String>,
}

impl Checkpoint {
    /// Reads config.json and the headers of the weight files.
    ///
    /// # Errors
    /// When the config does not parse or asks for something unsupported, and when a file is damaged.
    pub fn open(files: &Files) -> Result<Self, LoadError> {
        let (path, bytes) = &files.config;
        let config = generation_config::with_ends(read::config(path, bytes)?, files)?;
        let parameters = config
            .parameters_and_ties()
            .map_err(|reason| LoadError::Config { path: path.clone(), reason })?;
        let (named, notes) = read::tensors(files, &config, &parameters)?;
        Ok(Self {
            name: files.name.clone(),
            config_name: files.config_name(),
            config,
            parameters,
            tensors: Arc::new(named.tensors),
            duplicates: named.duplicates,
            notes: files.notes.iter().cloned().chain(notes).collect(),
        })
    }

    /// Everything that was read otherwise than it is stored, or is not used: a line each, for the reader of a command's output.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let audit = self.audit();
        // Of files that do not fit, the audit's own message lists what is not used.
        let unused = audit.unused_note().filter(|_| audit.is_clean());
        self.notes.iter().cloned().chain(unused).collect()
    }

    /// The checkpoint's name in messages: its folder, or its embedded name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// config.json, with the end tokens of `generation_config.json` if there is one.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All tensors in the files, by the model's names: without `transformer.`, or a wrapper's prefix.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        self.tensors.iter().map(|(name, t)| (name.as_str(), &t.info))
    }

    /// Compares names, shapes and dtypes with the config.
    #[must_use]
    pub fn audit(&self) -> Audit {
        let infos = self.tensors.iter().map(|(name, t)| (name.clone(), &t.info)).collect();
        let mut audit =
            Audit::new(&self.name, &self.config, &self.parameters, &infos, self.duplicates.clone());
        audit.config = self.config_name;
        audit
    }

    /// Unusual facts about the parameters' numbers. Reads all data; `None` if only headers are there
    /// ([`Hub::headers`](crate::hub::Hub::headers)). Calls `progress` with the number of parameters done, and of all.
    ///
    /// # Errors
    /// When a file cannot be read, or `progress` ends the work.
    pub fn numbers(
        &self,
        progress: &mut dyn FnMut(usize, usize) -> candle_core::Result<()>,
    ) -> Result<Option<Numbers>, LoadError> {
        let failed = |source| LoadError::Tensor { name: self.name.clone(), source };
        let floats = |p: &Parameter| {
            let tensor = self.tensors.get(&p.name).filter(|tensor| tensor.info.dtype.is_float())?;
            Some((p.role, tensor))
        };
        let all: Vec<(Role, &Stored)> = self.parameters.iter().filter_map(floats).collect();
        if !all.iter().all(|(_, tensor)| tensor.has_data()) {
            return Ok(None);
        }
        let mut found = Numbers::default();
        for (i, (role, tensor)) in all.iter().enumerate() {
            progress(i, all.len()).map_err(LoadError::Interrupted)?;
            let numbers = tensor.load(&tensor.info.name, &Device::Cpu).map_err(failed)?;
            let count = not_finite(&numbers).map_err(failed)?;
            if count > 0 {
                found.not_finite.push((tensor.info.name.clone(), count));
            }
            let is_bias = matches!(role, Role::LinearBias | Role::NormBias);
            if !is_bias && is_zero(&numbers).map_err(failed)? {
                found.zeros.push(tensor.info.name.clone());
            }
        }
        Ok(Some(found))
    }

    /// A builder over the audited tensors, under their names without `transformer.`, converted to `dtype`
    /// as they are asked for.
    ///
    /// # Errors
    /// When the audit finds anything, or the checksum of a zip archive's entry does not match.
    pub fn var_builder(&self, dtype: DType, device: &Device) -> Result<VarBuilder<'static>, LoadError> {
        self.check()?;
        let backend = Backend(Arc::clone(&self.tensors));
        Ok(VarBuilder::from_backend(Box::new(backend), dtype, device.clone()))
    }

    /// Refuses files that do not fit their config, and archives whose checksums do not match.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let audit = self.audit();
        if !audit.is_clean() {
            return Err(LoadError::Audit(Box::new(audit)));
        }
        self.check_archives()
    }

    /// Reads each entry of a zip archive that holds tensors once, and compares its checksum.
    fn check_archives(&self) -> Result<(), LoadError> {
        let mut checked = BTreeSet::new();
        for tensor in self.tensors.values() {
            let Some(entry) = tensor.entry.as_ref().filter(|entry| checked.insert(&entry.name)) else {
                continue;
            };
            // Its directory was read: it is no other kind of file, whatever its first bytes look like.
            entry.check(&tensor.bytes).map_err(|reason| LoadError::Damaged {
                path: tensor.info.file.clone(),
                format: pickle::FORMAT,
                reason,
                remedy: "fetch the file again",
            })?;
        }
        Ok(())
    }

    /// A tensor of files that passed [`check`](Self::check), by its name in the model.
    pub(crate) fn tensor(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor, LoadError> {
        let found = if name == WTE && !self.tensors.contains_key(WTE) { LM_HEAD } else { name };
        read(&self.tensors, found, dtype, device)
            .map_err(|source| LoadError::Tensor { name: self.name.clone(), source })
    }

    /// A tensor of the files, by its name in the model.
    pub(crate) fn stored(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    /// Whether the model's output projection is its embedding. Reads both if the files hold both.
    pub(crate) fn is_tied(&self) -> Result<bool, LoadError> {
        if !self.config.tie_word_embeddings || self.stored(WTE).is_none() || self.stored(LM_HEAD).is_none() {
            return Ok(self.config.tie_word_embeddings);
        }
        let numbers = |name| {
            self.tensor(name, DType::F32, &Device::Cpu)?
                .flatten_all()
                .and_then(|t| t.to_vec1::<f32>())
                .map_err(|source| LoadError::Tensor { name: self.name.clone(), source })
        };
        Ok(numbers(WTE)? == numbers(LM_HEAD)?)
    }

    /// The formats of quantized weights in the files, most frequent first; none in files of plain numbers.
    #[must_use]
    pub fn formats(&self) -> Vec<BlockFormat> {
        let mut counts: Vec<(BlockFormat, usize)> = vec![];
        for tensor in self.tensors.values() {
            if let Encoding::Blocks(format) = tensor.info.dtype {
                match counts.iter_mut().find(|(found, _)| *found == format) {
                    Some((_, count)) => *count += 1,
                    None => counts.push((format, 1)),
                }
            }
        }
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts.into_iter().map(|(format, _)| format).collect()
    }

    /// Sets the implementation of attention in the model that this checkpoint builds, see
    /// [`Config::attn_implementation`].
    #[must_use]
    pub fn with_implementation(mut self, implementation: Implementation) -> Self {
        self.config.attn_implementation = implementation;
        self
    }

    /// Builds the language model with activations in `dtype`. Weights stay as the files store them where activations in f32 on the
    /// CPU can multiply them: in f16, bf16 or quantized blocks. Otherwise they become `dtype`.
    ///
    /// # Errors
    /// When the audit finds anything, or the device cannot hold the weights.
    pub fn load_model(&self, dtype: DType, device: &Device) -> Result<Gpt2LMHeadModel, LoadError> {
        let layout = self.config.weight_layout();
        let stay = dtype == DType::F32 && device.is_cpu();
        let weight = |name: &str, shape| match self.tensors.get(name).filter(|_| stay) {
            Some(stored) => {
                let layout = if matches!(name, WTE | LM_HEAD) { WeightLayout::OutIn } else { layout };
                stored.load_frozen(name, shape, layout)
            }
            None => Ok(None),
        };
        self.build(self.var_builder(dtype, device)?, &weight)
    }

    /// Builds the language model on the CPU, in f32, with its linear layers and tables of tokens quantized as they are read.
    ///
    /// # Errors
    /// When the audit finds anything, or the format's blocks do not divide a layer's inputs.
    pub fn load_quantized(&self, format: BlockFormat) -> Result<Gpt2LMHeadModel, LoadError> {
        let vb = self.var_builder(DType::F32, &Device::Cpu)?;
        let weight = |name: &str, (n_in, n_out): (usize, usize)| {
            let table = matches!(name, WTE | LM_HEAD);
            let layout = if table { WeightLayout::OutIn } else { self.config.weight_layout() };
            format.check_inputs(n_in).map_err(|e| e.context(name.to_string()))?;
            let weight = vb.get(layout.shape(n_in, n_out), name)?;
            Weight::quantize(&weight, layout, format).map(Some).map_err(|e| e.context(name.to_string()))
        };
        self.build(vb.clone(), &weight)
    }

    fn build(&self, vb: VarBuilder, weights: &WeightSource) -> Result<Gpt2LMHeadModel, LoadError> {
        Gpt2LMHeadModel::load_with(vb, &self.config, weights)
            .map_err(|source| LoadError::Tensor { name: self.name.clone(), source })
    }
}

/// A tensor by its name in the model, converted to `dtype`.
fn read(
    tensors: &BTreeMap<String, Stored>,
    name: &str,
    dtype: DType,
    device: &Device,
) -> candle_core::Result<Tensor> {
    let Some(stored) = tensors.get(name) else {
        candle_core::bail!("{name}: no such tensor in the checkpoint")
    };
    stored.load(name, device)?.to_dtype(dtype)
}

/// The tensors of a checkpoint, for a [`VarBuilder`].
struct Backend(Arc<BTreeMap<String, Stored>>);

impl SimpleBackend for Backend {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        if tensor.shape() != &shape {
            candle_core::bail!("{name}: expected shape {:?}, found {:?}", shape, tensor.shape())
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
        read(&self.0, name, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}
