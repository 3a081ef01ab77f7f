//! A checkpoint's folder that a test may change, and the tensors in its files.

#![allow(dead_code)] // each package uses a part of it

use crate::common::{Result, data};
use candle_core::{DType, Device};
use gpt2_loader::{Audit, Checkpoint, LoadError, Source};
use gpt2_model::Gpt2LMHeadModel;
use safetensors::{Dtype, SafeTensors, View};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A tensor as stored in a file, of any dtype.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Raw {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<u8>,
}

impl View for &Raw {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.data)
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}

/// The tensors of a file by their names in it.
pub(crate) type Tensors = BTreeMap<String, Raw>;

/// Every tensor of a safetensors file.
pub(crate) fn read(path: &Path) -> Result<Tensors> {
    let bytes = std::fs::read(path)?;
    let raw = |(name, view): (String, safetensors::tensor::TensorView)| {
        (name, Raw { dtype: view.dtype(), shape: view.shape().to_vec(), data: view.data().to_vec() })
    };
    Ok(SafeTensors::deserialize(&bytes)?.tensors().into_iter().map(raw).collect())
}

/// The bytes of a safetensors file with these tensors.
pub(crate) fn serialized<'a>(tensors: impl IntoIterator<Item = (&'a String, &'a Raw)>) -> Result<Vec<u8>> {
    let metadata = [("format".to_string(), "pt".to_string())].into();
    Ok(safetensors::serialize(tensors, Some(metadata))?)
}

/// A tensor of zeros.
pub(crate) fn zeros(dtype: Dtype, shape: &[usize]) -> Raw {
    let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
    Raw { dtype, shape: shape.to_vec(), data: vec![0; bytes] }
}

/// A checkpoint's folder that a test may damage; removed at the test's end.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    /// An empty folder.
    pub(crate) fn empty() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    /// A copy of a case's config and weights.
    pub(crate) fn of(case: &str) -> Result<Self> {
        let folder = Self::empty()?;
        for name in ["config.json", "model.safetensors", "pytorch_model.bin"] {
            let from = data(case).join(name);
            if from.exists() {
                std::fs::copy(from, folder.file(name))?;
            }
        }
        Ok(folder)
    }

    /// A copy of a case with other tensors.
    pub(crate) fn with_tensors(case: &str, tensors: &Tensors) -> Result<Self> {
        let folder = Self::of(case)?;
        folder.write("model.safetensors", serialized(tensors)?)?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The folder as an argument.
    pub(crate) fn dir(&self) -> String {
        self.path().display().to_string()
    }

    /// A file in it as an argument.
    pub(crate) fn at(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result {
        Ok(std::fs::write(self.file(name), content)?)
    }

    /// The names in the folder, in order.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        names_in(self.path())
    }

    /// Sets a field of config.json.
    pub(crate) fn set_config(&self, field: &str, value: Value) -> Result {
        let mut config: Value = serde_json::from_slice(&std::fs::read(self.file("config.json"))?)?;
        config[field] = value;
        self.write("config.json", config.to_string())
    }

    pub(crate) fn open(&self) -> std::result::Result<Checkpoint, LoadError> {
        Checkpoint::open(&Source::directory(self.path()).open()?)
    }

    pub(crate) fn load(&self) -> std::result::Result<Gpt2LMHeadModel, LoadError> {
        self.open()?.load_model(DType::F32, &Device::Cpu)
    }

    pub(crate) fn audit(&self) -> Result<Audit> {
        Ok(self.open()?.audit())
    }

    /// The message of a load that must fail.
    #[track_caller]
    pub(crate) fn refusal(&self, what: &str) -> String {
        match self.load() {
            Ok(_) => panic!("{what}: was loaded"),
            Err(e) => e.to_string(),
        }
    }
}

/// The names in a folder, in order.
pub(crate) fn names_in(folder: &Path) -> Result<Vec<String>> {
    let mut names = vec![];
    for entry in std::fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Fails unless `message` contains all of `parts`.
#[track_caller]
pub(crate) fn assert_says(what: &str, message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{what}: {part:?} is not in: {message}");
    }
}
