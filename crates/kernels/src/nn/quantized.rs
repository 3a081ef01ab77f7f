//! [`QMatMul`]: the weights of GGUF files.

use crate::epilogue::Epilogue;
use crate::nn::Linear;
use crate::quantized::BlockFormat;
use crate::weight::{Weight, WeightLayout};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Module, Result, Tensor};
use std::sync::Arc;

/// The product with a weight in quantized blocks, `x·Wᵀ` with W (out, in): that of `candle_core::quantized`.
///
/// `x`, in f32, f16 or bf16, is rounded to 8 bits in blocks of 32, and the product has the same bits on every instruction set and
/// for any number of threads; an activation after it can differ in the last bits.
#[derive(Debug, Clone)]
pub struct QMatMul(Linear);

impl QMatMul {
    /// Lays the blocks of a tensor out for our products; a tensor in f32, f16 or bf16 is packed in that dtype.
    ///
    /// # Errors
    /// When the tensor is not (out, in) on the CPU, or its format has no product here; the error names those that have one.
    pub fn from_qtensor(tensor: QTensor) -> Result<Self> {
        Ok(Self(Linear::from_qtensor(&tensor, None)?))
    }

    /// The same for a tensor that others hold as well.
    ///
    /// # Errors
    /// As for [`from_qtensor`](Self::from_qtensor).
    pub fn from_arc(tensor: Arc<QTensor>) -> Result<Self> {
        Ok(Self(Linear::from_qtensor(&tensor, None)?))
    }

    /// `x·Wᵀ`, then `epilogue` in the same pass: (.., in) -> (.., out)
    ///
    /// # Errors
    /// When a shape or a device does not fit.
    pub fn forward_with(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        self.0.forward_with(x, epilogue)
    }
}

impl Module for QMatMul {
    /// `x·Wᵀ`: (.., in) -> (.., out)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x)
    }
}

impl TryFrom<candle_core::quantized::QMatMul> for QMatMul {
    type Error = candle_core::Error;

    fn try_from(product: candle_core::quantized::QMatMul) -> Result<Self> {
        use candle_core::quantized::QMatMul as Theirs;
        match product {
            Theirs::QTensor(tensor) => Self::from_arc(tensor),
            Theirs::Tensor(tensor) | Theirs::TensorF16(tensor) => Ok(Self(Linear::new(tensor, None)?)),
        }
    }
}

impl Linear {
    /// The layer of a tensor (out, in) of a GGUF file, see [`QMatMul::from_qtensor`].
    ///
    /// # Shapes
    /// `weight` (out, in), `bias` (out)
    ///
    /// # Errors
    /// When a shape or the device does not fit, or the weight's format has no product here.
    pub fn from_qtensor(weight: &QTensor, bias: Option<Tensor>) -> Result<Self> {
        let (n_out, n_in) = weight.shape().dims2()?;
        let device = weight.device();
        let format = match weight.dtype() {
            GgmlDType::Q4_0 => BlockFormat::Q4_0,
            GgmlDType::Q5_0 => BlockFormat::Q5_0,
            GgmlDType::Q8_0 => BlockFormat::Q8_0,
            GgmlDType::Q4K => BlockFormat::Q4K,
            GgmlDType::Q5K => BlockFormat::Q5K,
            GgmlDType::Q6K => BlockFormat::Q6K,
            GgmlDType::F32 => return Self::new(weight.dequantize(&device)?, bias),
            GgmlDType::F16 => return Self::new(weight.dequantize_f16(&device)?, bias),
            GgmlDType::BF16 => {
                return Self::new(weight.dequantize(&device)?.to_dtype(candle_core::DType::BF16)?, bias);
            }
            other => {
                let ours: Vec<&str> = BlockFormat::ALL.iter().map(|format| format.as_str()).collect();
                candle_core::bail!(
                    "linear: {other:?} has no product here, only {} do; keep Candle's QMatMul for this weight",
                    ours.join(", ")
                )
            }
        };
        if !device.is_cpu() {
            candle_core::bail!(
                "linear: quantized blocks are multiplied on the CPU, got a weight on {:?}; keep Candle's QMatMul there",
                device.location()
            )
        }
        let blocks = weight.data()?;
        let weight = Weight::read_blocks(format, (n_in, n_out), WeightLayout::OutIn, |at, out| {
            out.copy_from_slice(&blocks[at..at + out.len()]);
            Ok(())
        })?;
        Self::from_weight(weight, bias)
    }
}
