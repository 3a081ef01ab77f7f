//! [`Stored`]: a tensor in a file that has not been read yet.

use crate::bytes::Bytes;
use crate::tensor_info::TensorInfo;
use crate::zip_entry::ZipEntry;
use bytemuck::Pod;
use candle_core::{DType, Device, Tensor, WithDType};
use half::{bf16, f16};
use safetensors::Dtype;
use std::ops::Range;
use std::sync::Arc;

/// A tensor in a file: its description and the place of its data.
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
    pub(crate) fn load(&self, device: &Device) -> candle_core::Result<Tensor> {
        match self.info.dtype.0 {
            Dtype::F32 => self.load_as::<f32>(device),
            Dtype::F16 => self.load_as::<f16>(device),
            Dtype::BF16 => self.load_as::<bf16>(device),
            Dtype::F64 => self.load_as::<f64>(device),
            other => {
                let dtype = DType::try_from(other)?;
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
