//! [`Stored`]: a tensor in a file that has not been read yet, what the file says of it, and how its numbers are read.

pub(crate) mod bytes;
pub(crate) mod names;
pub(crate) mod recognize;
pub(crate) mod unpack_to_f32;

use bytemuck::Pod;
use bytes::Bytes;
use candle_core::{DType, Device, Tensor, WithDType};
use gpt2_model::finite::all_finite;
use gpt2_model::linear::{BlockFormat, Weight, WeightLayout};
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use unpack_to_f32::Packed;

/// The blocks that one thread unpacks at a time.
const PART: usize = 1 << 10;
/// Bytes of an entry to hold in memory at a time while checking it.
const CHUNK: usize = 1 << 20;

/// A file's description of one of its tensors.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The name in the file.
    pub name: String,
    /// The encoding of its numbers in the file.
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

/// The encoding of a tensor's numbers in a file. Displays under the format's own name: `F32`, `BF16`, `U8`, `Q8_0`,
/// `Q4_K`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// Each number by itself.
    Plain(Dtype),
    /// Quantized, in blocks that share a scale.
    Blocks(BlockFormat),
    /// Quantized in blocks for which there are no products: they become f32 when they are read.
    Packed(Packed),
    /// A kind of tensor that this crate does not read, such as "sparse".
    Other(&'static str),
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
            Self::Blocks(_) | Self::Packed(_) => true,
            Self::Other(_) | Self::Unknown { .. } => false,
        }
    }

    /// The bits of one number, scales included; 0 if unknown.
    #[must_use]
    pub fn bits(self) -> f64 {
        match self {
            Self::Plain(dtype) => dtype.bitsize() as f64,
            Self::Blocks(format) => 8.0 * format.block_bytes() as f64 / format.block_len() as f64,
            Self::Packed(packed) => 8.0 * packed.block_bytes() as f64 / packed.block_len() as f64,
            Self::Other(_) | Self::Unknown { .. } => 0.0,
        }
    }

    /// The bytes of this many numbers, if they are whole bytes or blocks.
    pub(crate) fn bytes_of(self, numbers: usize) -> Option<usize> {
        match self {
            Self::Plain(dtype) => numbers.checked_mul(dtype.bitsize() / 8),
            Self::Blocks(format) => format.bytes_of(numbers),
            Self::Packed(packed) => packed.bytes_of(numbers),
            Self::Other(_) | Self::Unknown { .. } => None,
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(dtype) => dtype.fmt(f),
            Self::Blocks(format) => f.write_str(&format.as_str().to_uppercase()),
            Self::Packed(packed) => packed.fmt(f),
            Self::Other(name) | Self::Unknown { name: Some(name), .. } => f.write_str(name),
            Self::Unknown { number, .. } => write!(f, "type {number}"),
        }
    }
}

/// A tensor in a file: its description and the place of its data.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) info: TensorInfo,
    pub(crate) bytes: Bytes,
    pub(crate) range: Range<usize>,
    /// The entry of a zip archive that the data is part of.
    pub(crate) entry: Option<Arc<ZipEntry>>,
    /// The distance, in numbers, of neighbors along each dimension of the file's shape; `None` if they lie in one piece.
    pub(crate) strides: Option<Vec<usize>>,
    /// Whether the file holds the transpose of a matrix of the shape in `info`.
    pub(crate) transposed: bool,
}

impl Stored {
    /// Whether the data is there, not only its header.
    pub(crate) fn has_data(&self) -> bool {
        self.range.end <= self.bytes.len()
    }

    /// This tensor as a matrix whose rows are the columns of this one.
    pub(crate) fn transpose(&mut self) {
        self.info.shape.reverse();
        self.transposed = !self.transposed;
    }

    /// Whether both are the same bytes of the same file.
    pub(crate) fn is_the_same_place(&self, other: &Self) -> bool {
        self.info.file == other.info.file && self.range == other.range && self.strides == other.strides
    }

    /// The tensor, read straight into its own memory, in the file's dtype; blocks become f32.
    ///
    /// # Errors
    /// When the data cannot be read; the error names the file and the tensor.
    pub(crate) fn load(&self, name: &str, device: &Device) -> candle_core::Result<Tensor> {
        self.read(device).map_err(|e| self.unreadable(name, e))
    }

    /// The weight of a linear layer or a table in the file's own halves or blocks; `None` if it is in another type, or of another
    /// shape.
    ///
    /// # Errors
    /// Returns the errors of [`load`](Self::load).
    pub(crate) fn load_frozen(
        &self,
        name: &str,
        (n_in, n_out): (usize, usize),
        layout: WeightLayout,
    ) -> candle_core::Result<Option<Weight>> {
        let (first, second) = layout.shape(n_in, n_out);
        let weight = match self.info.dtype {
            _ if self.info.shape != [first, second] => return Ok(None),
            Encoding::Blocks(format) if self.file_shape() == [n_out, n_in] => {
                let read = |at: usize, out: &mut [u8]| Ok(self.bytes.read_at(self.range.start + at, out)?);
                Weight::read_blocks(format, (n_in, n_out), layout, read)
            }
            Encoding::Plain(Dtype::F16 | Dtype::BF16) => {
                self.read(&Device::Cpu).and_then(|tensor| Weight::new(tensor, layout))
            }
            _ => return Ok(None),
        };
        Ok(Some(weight.map_err(|e| self.unreadable(name, e))?).filter(Weight::is_frozen))
    }

    fn unreadable(&self, name: &str, error: candle_core::Error) -> candle_core::Error {
        let file = self.info.file.display();
        error.context(format!("cannot read {name} from {file}; was the file changed? fetch it again"))
    }

    fn read(&self, device: &Device) -> candle_core::Result<Tensor> {
        let dtype = match self.info.dtype {
            Encoding::Plain(dtype) => dtype,
            Encoding::Blocks(format) => return self.dequantized(format, device),
            Encoding::Packed(packed) => {
                let values = packed.unpack(&self.bytes, self.range.clone())?;
                return self.turned(Tensor::from_vec(values, self.file_shape(), device)?);
            }
            Encoding::Other(_) | Encoding::Unknown { .. } => {
                candle_core::bail!("{} is a type that cannot be read", self.info.dtype)
            }
        };
        match dtype {
            Dtype::F32 => self.read_as::<f32>(device),
            Dtype::F16 => self.read_as::<f16>(device),
            Dtype::BF16 => self.read_as::<bf16>(device),
            Dtype::F64 => self.read_as::<f64>(device),
            other if self.strides.is_some() => {
                candle_core::bail!("its {other:?} do not lie in one piece; only floats are gathered")
            }
            other => {
                let dtype = DType::try_from(other)?;
                self.turned(Tensor::from_raw_buffer(
                    &self.bytes[self.range.clone()],
                    dtype,
                    &self.file_shape(),
                    device,
                )?)
            }
        }
    }

    fn read_as<T: WithDType + Pod>(&self, device: &Device) -> candle_core::Result<Tensor> {
        let mut values: Vec<T> = bytemuck::zeroed_vec(self.range.len() / size_of::<T>());
        self.bytes.read_at(self.range.start, bytemuck::cast_slice_mut(&mut values))?;
        if let Some(strides) = &self.strides {
            values = gathered(&values, &self.file_shape(), strides);
        }
        self.turned(Tensor::from_vec(values, self.file_shape(), device)?)
    }

    /// The shape in the file.
    fn file_shape(&self) -> Vec<usize> {
        let mut shape = self.info.shape.clone();
        if self.transposed {
            shape.reverse();
        }
        shape
    }

    /// The tensor as the model has it, from one of the file's shape.
    fn turned(&self, tensor: Tensor) -> candle_core::Result<Tensor> {
        if self.transposed { tensor.t() } else { Ok(tensor) }
    }

    fn dequantized(&self, format: BlockFormat, device: &Device) -> candle_core::Result<Tensor> {
        let mut blocks = vec![0; self.range.len()];
        self.bytes.read_at(self.range.start, &mut blocks)?;
        let mut values = vec![0f32; blocks.len() / format.block_bytes() * format.block_len()];
        let parts = values.par_chunks_mut(PART * format.block_len());
        parts
            .zip(blocks.par_chunks(PART * format.block_bytes()))
            .for_each(|(values, blocks)| format.dequantize(blocks, values));
        self.turned(Tensor::from_vec(values, self.file_shape(), device)?)
    }
}

/// The numbers of a tensor in the order of its shape, from where they lie.
fn gathered<T: Copy>(values: &[T], shape: &[usize], strides: &[usize]) -> Vec<T> {
    let mut places = vec![0];
    if shape.contains(&0) {
        return vec![];
    }
    for (&len, &stride) in shape.iter().zip(strides) {
        places = places.into_iter().flat_map(|at| (0..len).map(move |i| at + i * stride)).collect();
    }
    places.into_iter().map(|at| values[at]).collect()
}

/// Counts the numbers that are NaN or infinite.
pub(crate) fn not_finite(tensor: &Tensor) -> candle_core::Result<usize> {
    if all_finite(tensor)? {
        return Ok(0);
    }
    let numbers = tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    Ok(numbers.iter().filter(|x| !x.is_finite()).count())
}

/// Whether all numbers are zeros, of which there is at least one.
pub(crate) fn is_zero(tensor: &Tensor) -> candle_core::Result<bool> {
    if tensor.elem_count() == 0 {
        return Ok(false);
    }
    let largest = tensor.flatten_all()?.abs()?.max(0)?.to_dtype(DType::F64)?.to_scalar::<f64>()?;
    Ok(largest == 0.0)
}

/// The place of an entry's bytes in the archive, and the CRC-32 that the archive gives for them.
#[derive(Debug)]
pub(crate) struct ZipEntry {
    pub(crate) name: String,
    pub(crate) range: Range<usize>,
    pub(crate) crc32: u32,
}

impl ZipEntry {
    /// Reads the entry and compares its checksum.
    pub(crate) fn check(&self, archive: &Bytes) -> Result<(), String> {
        let mut hasher = crc32fast::Hasher::new();
        let mut buffer = vec![0; CHUNK.min(self.range.len())];
        let mut at = self.range.start;
        while at < self.range.end {
            let part = &mut buffer[..CHUNK.min(self.range.end - at)];
            archive.read_at(at, part).map_err(|e| format!("storage {}: {e}", self.name))?;
            hasher.update(part);
            at += part.len();
        }
        let found = hasher.finalize();
        if found != self.crc32 {
            return Err(format!(
                "storage {}: its CRC-32 is {found:08x}, and the archive says {:08x}",
                self.name, self.crc32
            ));
        }
        Ok(())
    }
}
