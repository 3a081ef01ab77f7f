//! [`AdapterFiles`]: where an adapter's files are; and [`AdapterCheckpoint`]: its config and the names and places of its
//! tensors.

use super::config::{AdapterConfig, unsupported};
use super::expected::{ExpectedAdapter, path_of, scaling};
use crate::error::LoadError;
use crate::error::adapter_audit::AdapterAudit;
use crate::error::audit::Mismatch;
use crate::files::{ADAPTER_CONFIG, ADAPTERS, CONFIG};
use crate::formats::{json, pickle, safetensors_file};
use crate::stored::bytes::Bytes;
use crate::stored::names;
use crate::stored::{Stored, TensorInfo, not_finite};
use candle_core::{Device, Tensor};
use gpt2_model::Config;
use gpt2_model::lora::{Adapter, Update, tables};
use gpt2_model::parameters::PREFIX;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The files of an adapter. They exist; nothing else about them has been checked.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AdapterFiles {
    /// The adapter's name in messages.
    pub name: String,
    /// `adapter_config.json`
    pub config: PathBuf,
    /// `adapter_model.safetensors` or `adapter_model.bin`
    pub weights: PathBuf,
    /// The commit, for files from the Hub.
    pub commit: Option<String>,
    /// The hash of the weights by the file's name, as in [`Files::verified`](crate::Files::verified).
    pub verified: BTreeMap<String, String>,
}

impl AdapterFiles {
    /// The files of an adapter in a folder, as PEFT's `save_pretrained` writes them.
    ///
    /// # Errors
    /// When the folder or one of the two files is missing.
    pub fn directory(dir: &Path) -> Result<Self, LoadError> {
        let refused =
            |reason: &str| LoadError::Adapter { name: dir.display().to_string(), reason: reason.into() };
        if !dir.is_dir() {
            return Err(refused(
                "no such folder, nor the name of an adapter on the Hub (owner/name); expected one with \
                 adapter_config.json and adapter_model.safetensors",
            ));
        }
        let find = |name: &str| Some(dir.join(name)).filter(|path| path.symlink_metadata().is_ok());
        let Some(config) = find(ADAPTER_CONFIG) else {
            return Err(refused(if find(CONFIG).is_some() {
                "holds a model, not an adapter: there is a config.json and no adapter_config.json"
            } else {
                "no adapter_config.json here; expected a folder as PEFT's save_pretrained writes it"
            }));
        };
        let Some(weights) = ADAPTERS.into_iter().find_map(find) else {
            return Err(refused("neither adapter_model.safetensors nor adapter_model.bin is here"));
        };
        Ok(Self::new(dir.display().to_string(), config, weights))
    }

    pub(crate) fn new(name: String, config: PathBuf, weights: PathBuf) -> Self {
        Self { name, config, weights, commit: None, verified: BTreeMap::new() }
    }

    /// Whether a folder holds an adapter.
    #[must_use]
    pub fn is_in(dir: &Path) -> bool {
        dir.join(ADAPTER_CONFIG).symlink_metadata().is_ok()
    }
}

/// The prefix that PEFT puts before the names of the model's tensors.
pub(crate) const PEFT_PREFIX: &str = "base_model.model.";

/// An adapter: its config and its tensors' headers. The data is read when it is loaded.
#[derive(Debug, Clone)]
pub struct AdapterCheckpoint {
    name: String,
    config: AdapterConfig,
    /// By PEFT's names without [`PEFT_PREFIX`].
    tensors: BTreeMap<String, Stored>,
    /// Tensors without [`PEFT_PREFIX`].
    foreign: Vec<TensorInfo>,
}

/// The field of `adapter_config.json` that says what the others mean.
#[derive(Deserialize)]
struct PeftType {
    peft_type: Option<String>,
}

impl AdapterCheckpoint {
    /// Reads the config and the header of the weights.
    ///
    /// # Errors
    /// When a file is damaged, and when the config asks for something unsupported.
    pub fn open(files: &AdapterFiles) -> Result<Self, LoadError> {
        let bytes = Bytes::open(&files.config)?;
        if bytes.trim_ascii_start().starts_with(b"[") {
            let reason =
                candle_core::Error::msg("a list; expected the config of a LoRA adapter, a JSON object");
            return Err(LoadError::Config { path: files.config.clone(), reason });
        }
        // The fields of other kinds of adapters mean other things.
        if let Ok(PeftType { peft_type: Some(kind) }) = bytes.parse::<PeftType>()
            && let Some(reason) = unsupported(&kind)
        {
            return Err(LoadError::Adapter { name: files.config.display().to_string(), reason });
        }
        let config: AdapterConfig = json::read(&files.config, &bytes, "config of a LoRA adapter")?;
        if let Some(reason) = config.problem() {
            return Err(LoadError::Adapter { name: files.config.display().to_string(), reason });
        }
        let is_pickle = files.weights.extension().is_some_and(|end| end == "bin");
        let read = if is_pickle { pickle::read } else { safetensors_file::read };
        let stored = read(&files.weights, &Bytes::open(&files.weights)?)?;
        let mut tensors = BTreeMap::new();
        let mut foreign = vec![];
        for tensor in stored {
            match tensor.info.name.strip_prefix(PEFT_PREFIX) {
                Some(name) => {
                    tensors.insert(name.to_string(), tensor);
                }
                None => foreign.push(tensor.info),
            }
        }
        Ok(Self { name: files.name.clone(), config, tensors, foreign })
    }

    /// The adapter's name in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `adapter_config.json`
    #[must_use]
    pub fn config(&self) -> &AdapterConfig {
        &self.config
    }

    /// All tensors of the file, by PEFT's names.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.values().map(|tensor| &tensor.info).chain(&self.foreign)
    }

    /// Compares names, shapes and dtypes with the adapter's config and that of the model.
    ///
    /// # Errors
    /// When the config does not fit the model at all.
    pub fn audit(&self, model: &Config) -> Result<AdapterAudit, LoadError> {
        Ok(self.audit_with(&self.expected(model)?))
    }

    /// Reads the adapter, for a model with this config, in the file's dtype on the CPU.
    ///
    /// # Errors
    /// When the audit finds anything, or a number is not finite.
    pub fn load(&self, model: &Config) -> Result<Adapter, LoadError> {
        let expected = self.expected(model)?;
        let mut audit = self.audit_with(&expected);
        if !audit.is_clean() {
            return Err(LoadError::AdapterAudit(Box::new(audit)));
        }
        let failed = |source| LoadError::Tensor { name: self.name.clone(), source };
        let mut read = |name: &str| -> Result<Tensor, LoadError> {
            let (tensor, count) = self.read(name)?;
            if count > 0 {
                audit.not_finite.push((self.tensors[name].info.name.clone(), count));
            }
            Ok(tensor)
        };
        let mut adapter = Adapter::default();
        for (layer, update) in &expected.updates {
            let [a, b] = self.factors(layer).map(|name| read(&name));
            let update = Update::new(a?, b?, update.scaling, self.config.lora_dropout).map_err(failed)?;
            adapter.updates.insert(layer.clone(), update);
        }
        for name in expected.replaced.keys() {
            adapter.replaced.insert(name.clone(), read(&expected.saved(name, self.path(name)))?);
        }
        if audit.is_clean() { Ok(adapter) } else { Err(LoadError::AdapterAudit(Box::new(audit))) }
    }

    /// The updates that the file holds, by the layer's name, whatever the model is.
    ///
    /// # Errors
    /// When a factor cannot be read, or its other half is missing or has another rank.
    pub fn updates(&self) -> Result<BTreeMap<String, Update>, LoadError> {
        let failed = |source| LoadError::Tensor { name: self.name.clone(), source };
        let mut updates = BTreeMap::new();
        for a in self.tensors.keys() {
            let Some((path, [_, b])) = FACTORS.iter().find_map(|pair| Some((a.strip_suffix(pair[0])?, pair)))
            else {
                continue;
            };
            let of_config = scaling(&self.config, path)
                .map_err(|reason| LoadError::Adapter { name: self.name.clone(), reason });
            let b = format!("{path}{b}");
            if !self.tensors.contains_key(&b) {
                return Err(failed(candle_core::Error::msg(format!("{PEFT_PREFIX}{b} is missing"))));
            }
            let a = self.read(a)?.0;
            let b = self.read(&b)?.0;
            let update = Update::new(a, b, of_config?.1, self.config.lora_dropout).map_err(failed)?;
            updates.insert(names::without_prefix(path).to_string(), update);
        }
        Ok(updates)
    }

    /// The tensors with numbers that are not finite: PEFT's name, and how many there are. Reads all data.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn not_finite(&self) -> Result<Vec<(String, usize)>, LoadError> {
        let mut found = vec![];
        for (name, stored) in self.tensors.iter().filter(|(_, stored)| stored.info.dtype.is_float()) {
            let (_, count) = self.read(name)?;
            if count > 0 {
                found.push((stored.info.name.clone(), count));
            }
        }
        Ok(found)
    }

    /// A tensor of the file, and how many of its numbers are not finite.
    fn read(&self, name: &str) -> Result<(Tensor, usize), LoadError> {
        let failed = |source| LoadError::Tensor { name: self.name.clone(), source };
        let stored = &self.tensors[name];
        if let Some(entry) = &stored.entry {
            let damaged =
                |reason| LoadError::damaged(&stored.info.file, pickle::FORMAT, &stored.bytes, reason);
            entry.check(&stored.bytes).map_err(damaged)?;
        }
        let tensor = stored.load(name, &Device::Cpu).map_err(failed)?;
        let count = not_finite(&tensor).map_err(failed)?;
        Ok((tensor, count))
    }

    fn expected(&self, model: &Config) -> Result<ExpectedAdapter, LoadError> {
        let mut expected = ExpectedAdapter::new(&self.config, model, self.prefix())
            .map_err(|reason| LoadError::Adapter { name: self.name.clone(), reason })?;
        for (layer, _) in tables(model) {
            if self.tensors.contains_key(&format!("{}.base_layer.weight", self.path(layer))) {
                expected.add_base(layer);
            }
        }
        Ok(expected)
    }

    fn audit_with(&self, expected: &ExpectedAdapter) -> AdapterAudit {
        let mut wanted: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (layer, update) in &expected.updates {
            let [a, b] = self.factors(layer);
            wanted.insert(a, vec![update.rank, update.shape.0]);
            wanted.insert(b, vec![update.shape.1, update.rank]);
        }
        for (name, shape) in &expected.replaced {
            wanted.insert(expected.saved(name, self.path(name)), shape.clone());
        }
        let mut audit = AdapterAudit {
            name: self.name.clone(),
            base: self.config.base_model_name_or_path.clone(),
            unexpected: self.foreign.clone(),
            ..AdapterAudit::default()
        };
        for (name, shape) in &wanted {
            match self.tensors.get(name).map(|tensor| &tensor.info) {
                None => audit.missing.push((format!("{PEFT_PREFIX}{name}"), shape.clone())),
                Some(found) if !found.dtype.is_float() || found.shape != *shape => {
                    audit.mismatched.push(Mismatch { found: found.clone(), expected: shape.clone() });
                }
                Some(_) => {}
            }
        }
        let left = self.tensors.iter().filter(|(name, _)| !wanted.contains_key(*name));
        audit.unexpected.extend(left.map(|(_, tensor)| tensor.info.clone()));
        audit
    }

    /// The prefix that the names of the model's modules had when PEFT wrapped the model: none for a model without a
    /// head.
    fn prefix(&self) -> &'static str {
        let bare = !self.tensors.is_empty() && !self.tensors.keys().any(|name| name.starts_with(PREFIX));
        if bare { "" } else { PREFIX }
    }

    /// The names of A and B.
    fn factors(&self, layer: &str) -> [String; 2] {
        factors_of(layer).map(|factor| format!("{}{factor}", self.path(layer)))
    }

    /// PEFT's name of a module or a parameter of the model.
    fn path(&self, name: &str) -> String {
        path_of(self.prefix(), name)
    }
}

/// The endings of the names of A and B after a layer's name: of a linear layer, and of embeddings.
const FACTORS: [[&str; 2]; 2] =
    [[".lora_A.weight", ".lora_B.weight"], [".lora_embedding_A", ".lora_embedding_B"]];

/// The endings of the names of a layer's A and B after its own name.
pub(crate) fn factors_of(layer: &str) -> [&'static str; 2] {
    FACTORS[usize::from(matches!(layer, "wte" | "wpe"))]
}
