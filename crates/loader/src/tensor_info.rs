//! [`TensorInfo`]: a file's description of one of its tensors.

use gpt2_model::linear::BlockFormat;
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
    /// The shape in the model: a GGUF file holds the weights of linear layers transposed.
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

/// How a file writes the numbers of a tensor. Displays as the format names it: `F32`, `BF16`, `U8`, `Q8_0`, `Q4_K`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// Each number by itself.
    Plain(Dtype),
    /// Quantized, in blocks that share a scale.
    Blocks(BlockFormat),
    /// A type of GGUF files that this crate does not read.
    Unknown {
        /// ggml's number for it.
        number: u32,
        /// Its name, if known.
        name: Option<&'static str>,
    },
}

impl Encoding {
    /// Whether a model can use the numbers: `F16`, `BF16`, `F32`, `F64` or quantized.
    #[must_use]
    pub fn is_float(self) -> bool {
        match self {
            Self::Plain(dtype) => matches!(dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64),
            Self::Blocks(_) => true,
            Self::Unknown { .. } => false,
        }
    }

    /// The bits of one number, scales included; 0 if unknown.
    #[must_use]
    pub fn bits(self) -> f64 {
        match self {
            Self::Plain(dtype) => dtype.bitsize() as f64,
            Self::Blocks(format) => 8.0 * format.block_bytes() as f64 / format.block_len() as f64,
            Self::Unknown { .. } => 0.0,
        }
    }

    /// The bytes of so many numbers, if they are whole bytes or blocks.
    pub(crate) fn bytes_of(self, numbers: usize) -> Option<usize> {
        match self {
            Self::Plain(dtype) => numbers.checked_mul(dtype.bitsize() / 8),
            Self::Blocks(format) => format.bytes_of(numbers),
            Self::Unknown { .. } => None,
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(dtype) => dtype.fmt(f),
            Self::Blocks(format) => f.write_str(&format.as_str().to_uppercase()),
            Self::Unknown { name: Some(name), .. } => f.write_str(name),
            Self::Unknown { number, .. } => write!(f, "type {number}"),
        }
    }
}
