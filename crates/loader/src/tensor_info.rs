//! [`TensorInfo`]: a file's description of one of its tensors.

use safetensors::Dtype;
use std::fmt;
use std::path::PathBuf;

/// A file's description of one of its tensors.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The name in the file.
    pub name: String,
    /// How the file writes its numbers.
    pub dtype: Encoding,
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

/// How a file writes the numbers of a tensor. Displays as safetensors names it: `F32`, `BF16`, `U8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding(pub(crate) Dtype);

impl Encoding {
    /// Whether the numbers are floats that a model can use: `F16`, `BF16`, `F32` or `F64`.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self.0, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64)
    }

    /// The bits of one number.
    #[must_use]
    pub fn bits(self) -> usize {
        self.0.bitsize()
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
