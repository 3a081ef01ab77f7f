//! [`CacheDType`]: what keys and values are held in.

use crate::attention::quantized_rows::{SCALE_BYTES, quantize_rows};
use crate::cpu::memory::{Zero, try_zeros};
use candle_core::{DType, Device, Result, Tensor, WithDType};
use half::{bf16, f16};

/// The number format of the keys and values in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheDType {
    /// Numbers: f64, f32, f16 or bf16.
    Plain(DType),
    /// 8 bits a number, and one scale in f32 for each head and position ([`quantize_rows`]), under
    /// queries in f32 on the CPU. llama.cpp's type of this name has a scale in f16 for each 32 numbers.
    Q8_0,
}

impl From<DType> for CacheDType {
    fn from(dtype: DType) -> Self {
        Self::Plain(dtype)
    }
}

impl CacheDType {
    /// The name in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plain(dtype) => dtype.as_str(),
            Self::Q8_0 => "q8_0",
        }
    }

    /// The bytes of a key or a value of D numbers.
    #[must_use]
    pub fn bytes_of(self, d: usize) -> usize {
        match self {
            Self::Plain(dtype) => d.saturating_mul(dtype.size_in_bytes()),
            Self::Q8_0 => d.saturating_add(SCALE_BYTES),
        }
    }

    /// The dtype of the tensor that holds rows of D numbers, and its width.
    ///
    /// # Errors
    /// When there is no cache of this dtype on the device.
    fn tensor_of(self, d: usize, device: &Device) -> Result<(DType, usize)> {
        match self {
            Self::Plain(dtype @ (DType::F64 | DType::F32 | DType::F16 | DType::BF16)) => Ok((dtype, d)),
            Self::Q8_0 if device.is_cpu() => Ok((DType::U8, self.bytes_of(d))),
            Self::Q8_0 => candle_core::bail!("cache: q8_0 is for the CPU; on a GPU, use f16 or bf16"),
            Self::Plain(dtype) => {
                candle_core::bail!("cache: expected f32, f16, bf16, f64 or q8_0, got {}", dtype.as_str())
            }
        }
    }

    /// An empty tensor for rows of D numbers: (.., .., .., D), or (.., .., .., D + 4) of quantized rows.
    ///
    /// # Errors
    /// When there is no cache of this dtype on the device, or it cannot allocate as much.
    pub(super) fn zeros(self, [a, b, c, d]: [usize; 4], device: &Device) -> Result<Tensor> {
        let (dtype, width) = self.tensor_of(d, device)?;
        let bytes = [a, b, c, self.bytes_of(d)].iter().try_fold(1usize, |all, n| all.checked_mul(*n));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            candle_core::bail!("cache: {:?} in {} is more than any memory", [a, b, c, d], self.as_str())
        }
        let shape = [a, b, c, width];
        if !device.is_cpu() {
            return Tensor::zeros(&shape, dtype, device)
                .map_err(|error| error.context(self.no_memory(shape, dtype.size_in_bytes())));
        }
        match dtype {
            DType::F16 => self.on_cpu::<f16>(shape),
            DType::BF16 => self.on_cpu::<bf16>(shape),
            DType::F64 => self.on_cpu::<f64>(shape),
            DType::U8 => self.on_cpu::<u8>(shape),
            _ => self.on_cpu::<f32>(shape),
        }
    }

    /// Zeros from memory that nobody has touched; `Tensor::zeros` writes each half, and ends the process if there is too little.
    fn on_cpu<T: Zero + WithDType>(self, shape: [usize; 4]) -> Result<Tensor> {
        let count = shape.iter().product::<usize>();
        match try_zeros::<T>(count) {
            Some(zeros) => Tensor::from_vec(zeros, &shape, &Device::Cpu),
            None => candle_core::bail!("{}", self.no_memory(shape, size_of::<T>())),
        }
    }

    /// Says that there is no memory for numbers of this size.
    fn no_memory(self, shape: [usize; 4], size: usize) -> String {
        let gigabytes = shape.iter().map(|n| *n as f64).product::<f64>() * size as f64 / 1e9;
        format!(
            "cache: {shape:?} in {} takes {gigabytes:.1} GB, which the system does not give; choose a smaller capacity",
            self.as_str()
        )
    }

    /// `x` (.., D) as a cache holds it: contiguous, without a gradient.
    ///
    /// # Errors
    /// When a number to quantize is not finite or not f32.
    pub fn rows(self, x: &Tensor) -> Result<Tensor> {
        let x = x.detach();
        match self {
            Self::Plain(dtype) => x.to_dtype(dtype)?.contiguous(),
            Self::Q8_0 if x.dtype() == DType::F32 => {
                quantize_rows(&x).map_err(|e| e.context("cache in q8_0"))
            }
            Self::Q8_0 => {
                candle_core::bail!("cache: q8_0 takes keys and values in f32, got {}", x.dtype().as_str())
            }
        }
    }
}
