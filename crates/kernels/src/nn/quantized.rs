//! [`QMatMul`]: the weights of GGUF files.

use super::embedding::Embedding;
use super::linear::Linear;
use crate::cpu::explain::{Explained, note, shown};
use crate::linear::linear_transposed;
use crate::linear::quantized::format::BlockFormat;
use crate::linear::weight::{Weight, WeightLayout};
use crate::pointwise::epilogue::Epilogue;
use candle_core::quantized::{GgmlDType, QMatMul as Theirs, QTensor};
use candle_core::{DType, Module, Result, Tensor};
use std::sync::Arc;

/// The product with a weight in quantized blocks, `x·Wᵀ` with W (out, in), in place of the one in `candle_core::quantized`.
///
/// Ours round `x`, in f32, f16 or bf16, to 8 bits in blocks of 32, and have the same bits on every instruction set and for any number
/// of threads; an activation after them can differ in the last bits. Candle's take blocks of 256 for the K formats, so that results
/// differ by the rounding of either.
#[derive(Debug, Clone)]
pub struct QMatMul(QuantizedKind);

#[derive(Debug, Clone)]
enum QuantizedKind {
    Ours(Linear),
    Candle(Theirs),
}

impl QMatMul {
    /// Lays the blocks of a tensor out for our products; a tensor in f32, f16 or bf16 is packed in that dtype. Blocks that
    /// have no product here ([`BlockFormat::try_from`] tells), and tensors on a GPU, are left to Candle's own.
    ///
    /// # Errors
    /// When the tensor is not (out, in).
    pub fn from_qtensor(tensor: QTensor) -> Result<Self> {
        Self::from_arc(Arc::new(tensor))
    }

    /// Wraps a tensor that has other owners as well, like [`from_qtensor`](Self::from_qtensor).
    ///
    /// # Errors
    /// When the tensor is not (out, in).
    pub fn from_arc(tensor: Arc<QTensor>) -> Result<Self> {
        let is_plain = matches!(tensor.dtype(), GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16);
        let is_ours = tensor.device().is_cpu() && (is_plain || BlockFormat::try_from(tensor.dtype()).is_ok());
        tensor.shape().dims2()?;
        Ok(Self(if is_ours {
            QuantizedKind::Ours(Linear::from_qtensor(&tensor, None)?)
        } else {
            QuantizedKind::Candle(Theirs::from_arc(tensor)?)
        }))
    }

    /// `x·Wᵀ`, then `epilogue`, in the same pass where the product is ours; differentiable in `x` and what `epilogue` holds:
    /// (.., in) -> (.., out)
    ///
    /// # Errors
    /// When a shape or a device does not fit.
    pub fn forward_with(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        let theirs = match &self.0 {
            QuantizedKind::Ours(linear) => return linear.forward_with(x, epilogue),
            QuantizedKind::Candle(theirs) => theirs,
        };
        note(|| {
            let (format, shape) = match theirs {
                Theirs::QTensor(weight) => (format!("{:?}", weight.dtype()), weight.shape().dims()),
                Theirs::Tensor(weight) | Theirs::TensorF16(weight) => {
                    (weight.dtype().as_str().to_owned(), weight.dims())
                }
            };
            Explained {
                operation: "linear",
                inputs: format!("{}, Wᵀ {format} {shape:?}{}", shown("x", x), epilogue.shown()),
                code: "Candle's QMatMul".to_owned(),
                slower_because: Some(format!(
                    "there is no product of ours for {format} on {:?}",
                    x.device().location()
                )),
            }
        });
        let wide = epilogue.join().map(|join| join.try_map(|t| t.to_dtype(DType::F32))).transpose()?;
        let epilogue = wide.as_ref().map_or(epilogue, Epilogue::of_join);
        let in_f32 = x.to_dtype(DType::F32)?.contiguous()?;
        let y = match theirs {
            // Candle's passes no gradient on.
            Theirs::QTensor(weight) if x.track_op() => {
                linear_transposed(&in_f32, &weight.dequantize(x.device())?)?
            }
            theirs => theirs.forward(&in_f32)?,
        };
        epilogue.apply(y)?.to_dtype(x.dtype())
    }
}

impl Module for QMatMul {
    /// `x·Wᵀ`: (.., in) -> (.., out)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, Epilogue::None)
    }
}

impl TryFrom<candle_core::quantized::QMatMul> for QMatMul {
    type Error = candle_core::Error;

    fn try_from(product: candle_core::quantized::QMatMul) -> Result<Self> {
        match product {
            Theirs::QTensor(tensor) => Self::from_arc(tensor),
            Theirs::Tensor(tensor) | Theirs::TensorF16(tensor) => {
                Ok(Self(QuantizedKind::Ours(Linear::new(tensor, None)?)))
            }
        }
    }
}

impl TryFrom<GgmlDType> for BlockFormat {
    type Error = candle_core::Error;

    /// # Errors
    /// When blocks of this format have no product here; the error names those that have one.
    fn try_from(dtype: GgmlDType) -> Result<Self> {
        Ok(match dtype {
            GgmlDType::Q4_0 => Self::Q4_0,
            GgmlDType::Q5_0 => Self::Q5_0,
            GgmlDType::Q8_0 => Self::Q8_0,
            GgmlDType::Q4K => Self::Q4K,
            GgmlDType::Q5K => Self::Q5K,
            GgmlDType::Q6K => Self::Q6K,
            other => {
                let ours: Vec<&str> = Self::ALL.iter().map(|format| format.as_str()).collect();
                candle_core::bail!(
                    "{other:?} is not a format of blocks with a product here, only {} are; candle_fused::nn::QMatMul takes every format",
                    ours.join(", ")
                )
            }
        })
    }
}

impl Embedding {
    /// The table of a GGUF file, (V, C), held as it is stored; its vectors come out in f32. Formats that have no product here, and
    /// tables on a GPU, are widened to f32.
    ///
    /// # Errors
    /// When the table has another shape.
    pub fn from_qtensor(embeddings: &QTensor) -> Result<Self> {
        let is_half = matches!(embeddings.dtype(), GgmlDType::F16 | GgmlDType::BF16);
        let is_ours =
            embeddings.device().is_cpu() && (is_half || BlockFormat::try_from(embeddings.dtype()).is_ok());
        if is_ours {
            return Ok(Self::of(Linear::from_qtensor(embeddings, None)?.weight().clone(), DType::F32));
        }
        let table = embeddings.dequantize(&embeddings.device())?;
        let width = table.dims2()?.1;
        Self::new(table, width)
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
            GgmlDType::F32 => return Self::new(weight.dequantize(&device)?, bias),
            GgmlDType::F16 => return Self::new(weight.dequantize_f16(&device)?, bias),
            GgmlDType::BF16 => {
                return Self::new(weight.dequantize(&device)?.to_dtype(DType::BF16)?, bias);
            }
            blocks => BlockFormat::try_from(blocks)?,
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
