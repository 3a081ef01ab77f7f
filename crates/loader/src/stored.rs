//! [`Stored`]: a tensor in a file that has not been read yet.

use crate::bytes::Bytes;
use crate::tensor_info::{Encoding, TensorInfo};
use crate::zip_entry::ZipEntry;
use bytemuck::Pod;
use candle_core::{DType, Device, Tensor, WithDType};
use gpt2_model::linear::{BlockFormat, Weight, WeightLayout};
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;
use std::ops::Range;
use std::sync::Arc;

/// So many blocks are unpacked at a time.
const PART: usize = 1 << 10;

/// A tensor in a file: its description and the place of its data.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) info: TensorInfo,
    pub(crate) bytes: Bytes,
    pub(crate) range: Range<usize>,
    /// The entry of a zip archive that the data is part of.
    pub(crate) entry: Option<Arc<ZipEntry>>,
    /// Whether the file holds the transpose of a matrix of the shape in `info`.
    pub(crate) transposed: bool,
}

impl Stored {
    /// The error for data that could not be read.
    pub(crate) fn unreadable(&self, name: &str, error: candle_core::Error) -> candle_core::Error {
        let file = self.info.file.display();
        error.context(format!("cannot read {name} from {file}; was the file changed? fetch it again"))
    }

    /// The data, aligned or not, read straight into the tensor's own memory.
    pub(crate) fn load(&self, device: &Device) -> candle_core::Result<Tensor> {
        let dtype = match self.info.dtype {
            Encoding::Plain(dtype) => dtype,
            Encoding::Blocks(format) => return self.dequantized(format, device),
            Encoding::Unknown { .. } => {
                candle_core::bail!("{} is a type that cannot be read", self.info.dtype)
            }
        };
        match dtype {
            Dtype::F32 => self.load_as::<f32>(device),
            Dtype::F16 => self.load_as::<f16>(device),
            Dtype::BF16 => self.load_as::<bf16>(device),
            Dtype::F64 => self.load_as::<f64>(device),
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

    fn load_as<T: WithDType + Pod>(&self, device: &Device) -> candle_core::Result<Tensor> {
        let mut values: Vec<T> = bytemuck::zeroed_vec(self.range.len() / size_of::<T>());
        self.bytes.read_at(self.range.start, bytemuck::cast_slice_mut(&mut values))?;
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

    /// The weight (in, out) of a linear layer or a table in the file's own halves or blocks; `None` if it is in another type, or
    /// of another shape.
    pub(crate) fn frozen(
        &self,
        (n_in, n_out): (usize, usize),
        layout: WeightLayout,
    ) -> candle_core::Result<Option<Weight>> {
        let (first, second) = layout.shape(n_in, n_out);
        match self.info.dtype {
            _ if self.info.shape != [first, second] => Ok(None),
            Encoding::Blocks(format) if self.file_shape() == [n_out, n_in] => {
                let read = |at: usize, out: &mut [u8]| Ok(self.bytes.read_at(self.range.start + at, out)?);
                Weight::read_blocks(format, (n_in, n_out), layout, read).map(Some)
            }
            Encoding::Plain(Dtype::F16 | Dtype::BF16) => {
                Ok(Some(Weight::new(self.load(&Device::Cpu)?, layout)?).filter(Weight::is_frozen))
            }
            _ => Ok(None),
        }
    }
}
