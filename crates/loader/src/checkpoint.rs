//! [`Checkpoint`]: a config and the tensors that go with it, by name, not yet read.

use crate::pickle::ZipEntry;
use crate::{Audit, Bytes, Files, LoadError, Weights, pickle, safetensors_file};
use bytemuck::Pod;
use candle_core::{DType, Device, Shape, Tensor, WithDType};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use gpt2_model::parameters::{PREFIX, Parameter};
use gpt2_model::{Config, Gpt2LMHeadModel, Implementation};
use half::{bf16, f16};
use safetensors::Dtype;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a file says of one of its tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// The name in the file.
    pub name: String,
    /// The dtype in the file.
    pub dtype: Dtype,
    /// The shape in the file.
    pub shape: Vec<usize>,
    /// The file.
    pub file: PathBuf,
}

impl TensorInfo {
    /// The file's name without its folder.
    #[must_use]
    pub fn file_name(&self) -> String {
        self.file.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
    }
}

/// A tensor in a file: its description and where its data lies.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) info: TensorInfo,
    pub(crate) bytes: Bytes,
    pub(crate) range: Range<usize>,
    /// The entry of a zip archive that the data is part of.
    pub(crate) entry: Option<Arc<ZipEntry>>,
}

impl Stored {
    /// The data, aligned or not, read straight into the tensor's own memory.
    fn load(&self, device: &Device) -> candle_core::Result<Tensor> {
        match self.info.dtype {
            Dtype::F32 => self.load_as::<f32>(device),
            Dtype::F16 => self.load_as::<f16>(device),
            Dtype::BF16 => self.load_as::<bf16>(device),
            Dtype::F64 => self.load_as::<f64>(device),
            _ => {
                let dtype = DType::try_from(self.info.dtype)?;
                Tensor::from_raw_buffer(&self.bytes[self.range.clone()], dtype, &self.info.shape, device)
            }
        }
    }

    fn load_as<T: WithDType + Pod>(&self, device: &Device) -> candle_core::Result<Tensor> {
        let mut values: Vec<T> = bytemuck::zeroed_vec(self.range.len() / size_of::<T>());
        self.bytes.read_at(self.range.start, bytemuck::cast_slice_mut(&mut values))?;
        Tensor::from_vec(values, self.info.shape.as_slice(), device)
    }
}

/// A GPT-2 checkpoint: its config and its tensors' headers. The data is read when a model is built.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    name: String,
    config: Config,
    /// What the config calls for.
    parameters: Vec<Parameter>,
    tensors: Arc<BTreeMap<String, Stored>>,
    duplicates: Vec<TensorInfo>,
}

impl Checkpoint {
    /// Reads config.json and the headers of the weights' files.
    ///
    /// # Errors
    /// When the config does not parse or asks for what is not supported, and when a file is damaged.
    pub fn open(files: &Files) -> Result<Self, LoadError> {
        let (path, json) = &files.config;
        // A list would be taken for the fields in their order.
        if json.trim_ascii_start().starts_with(b"[") {
            let reason = candle_core::Error::msg("a list; expected a GPT-2 config, a JSON object");
            return Err(LoadError::Config { path: path.clone(), reason });
        }
        let config: Config = parse_json(path, json, "GPT-2 config")?;
        let parameters = config
            .parameters_and_ties()
            .map_err(|reason| LoadError::Config { path: path.clone(), reason })?;

        let stored = match &files.weights {
            Weights::Safetensors(path, bytes) => safetensors_file::read(path, bytes)?,
            Weights::Index(path) => safetensors_file::read_index(path)?,
            Weights::Pickle(path) => pickle::read(path)?,
            Weights::Headers(headers) => {
                let tensors = headers.iter().map(safetensors_file::read_header);
                tensors.collect::<Result<Vec<_>, _>>()?.concat()
            }
        };
        let mut tensors = BTreeMap::new();
        let mut duplicates = vec![];
        for tensor in stored {
            let name = tensor.info.name.strip_prefix(PREFIX).unwrap_or(&tensor.info.name).to_string();
            if let Some(twin) = tensors.insert(name, tensor) {
                duplicates.push(twin.info);
            }
        }
        Ok(Self { name: files.name.clone(), config, parameters, tensors: Arc::new(tensors), duplicates })
    }

    /// What messages call the checkpoint: its folder, or its embedded name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// config.json
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Every tensor of the files, by its name without `transformer.`.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        self.tensors.iter().map(|(name, t)| (name.as_str(), &t.info))
    }

    /// Holds names, shapes and dtypes against the config.
    #[must_use]
    pub fn audit(&self) -> Audit {
        let infos = self.tensors.iter().map(|(name, t)| (name.clone(), &t.info)).collect();
        Audit::of(&self.name, (&self.config, &self.parameters), &infos, self.duplicates.clone())
    }

    /// A builder over the audited tensors, under their names without `transformer.`, converted to `dtype`
    /// as they are asked for.
    ///
    /// # Errors
    /// When the audit finds anything, or the checksum of a zip archive's entry does not hold.
    pub fn var_builder(&self, dtype: DType, device: &Device) -> Result<VarBuilder<'static>, LoadError> {
        let audit = self.audit();
        if !audit.is_clean() {
            return Err(LoadError::Audit(Box::new(audit)));
        }
        self.check_archives()?;
        let backend = Backend { tensors: Arc::clone(&self.tensors) };
        Ok(VarBuilder::from_backend(Box::new(backend), dtype, device.clone()))
    }

    /// Reads the entries of zip archives that hold tensors, each once, and holds them against their checksums.
    fn check_archives(&self) -> Result<(), LoadError> {
        let mut checked = BTreeSet::new();
        for tensor in self.tensors.values() {
            let Some(entry) = tensor.entry.as_ref().filter(|entry| checked.insert(&entry.name)) else {
                continue;
            };
            entry.check(&tensor.bytes).map_err(|reason| {
                LoadError::damaged(&tensor.info.file, pickle::FORMAT, &tensor.bytes, reason)
            })?;
        }
        Ok(())
    }

    /// The same checkpoint, whose model is computed by `implementation`, see [`Config::attn_implementation`].
    #[must_use]
    pub fn with_implementation(mut self, implementation: Implementation) -> Self {
        self.config.attn_implementation = implementation;
        self
    }

    /// The language model with these weights.
    ///
    /// # Errors
    /// When the audit finds anything, or the device cannot hold the weights.
    pub fn load_model(&self, dtype: DType, device: &Device) -> Result<Gpt2LMHeadModel, LoadError> {
        Gpt2LMHeadModel::load(self.var_builder(dtype, device)?, &self.config)
            .map_err(|source| LoadError::Tensor { name: self.name.clone(), source })
    }
}

/// Parses JSON; an error names the field.
pub(crate) fn parse_json<T: DeserializeOwned>(
    path: &Path,
    json: &[u8],
    expected: &'static str,
) -> Result<T, LoadError> {
    let failed =
        |field: String, source| LoadError::Json { path: path.to_path_buf(), expected, field, source };
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|e| {
        let field = match e.path().to_string().as_str() {
            "." => String::new(),
            field => format!("{field}: "),
        };
        failed(field, e.into_inner())
    })?;
    deserializer.end().map_err(|source| failed(String::new(), source))?;
    Ok(value)
}

struct Backend {
    tensors: Arc<BTreeMap<String, Stored>>,
}

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
        let Some(stored) = self.tensors.get(name) else {
            candle_core::bail!("{name}: no such tensor in the checkpoint")
        };
        let loaded = stored.load(device).and_then(|tensor| tensor.to_dtype(dtype));
        loaded.map_err(|e| {
            let file = stored.info.file.display();
            e.context(format!("cannot read {name} from {file}; was the file changed? fetch it again"))
        })
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }
}
