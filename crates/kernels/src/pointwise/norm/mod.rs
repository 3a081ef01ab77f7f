//! Normalization over the last dimension: layer norm (Ba, Kiros, Hinton 2016) and RMS norm (Zhang, Sennrich 2019).
//!
//! Layer norm is `y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, with the biased variance, like PyTorch; RMS norm
//! leaves the mean and the bias out: `y = x / sqrt(mean(x²) + eps) * weight`.

pub(crate) mod input;
mod rows;
#[cfg(test)]
mod tests;

use crate::cpu::cpu_op::OnCpu;
use crate::cpu::dispatch::{Dispatch, cpu_f32, cpu_floats};
use crate::cpu::element::accumulator;
use crate::cpu::explain::{Explained, no_kernel, note, ours, shown};
use crate::gpu;
use candle_core::{D, Result, Tensor};
use input::check;
use rows::Norm;

/// Layer norm of each row of `x`, in f32 or wider; returns the dtype of `x`; differentiable.
///
/// The variance is computed from the centered values: the shorter `E[x²] - E[x]²` loses all its digits
/// on the residual stream of a trained GPT-2, whose mean is large compared with its spread. Candle's
/// own `ops::layer_norm` uses that shorter form and has no backward pass, so we do not use it.
///
/// On a GPU, `dispatch` chooses between Candle's operations and our kernel, which runs only if nothing
/// tracks a gradient.
///
/// # Shapes
/// `x` (.., C), `weight` (C), `bias` (C) -> (.., C)
///
/// # Errors
/// When the last dimension of `x` is not that of `weight` and `bias`, or `eps` is negative or not finite.
pub fn layer_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    eps: f64,
    dispatch: Dispatch,
) -> Result<Tensor> {
    check("layer_norm", x, weight, bias, eps)?;
    let norm = Norm { eps, centered: true };
    if let Some(y) = norm.run(x, weight, bias)? {
        return Ok(y);
    }
    if let Some(bias) = bias
        && let Some(y) = gpu::layer_norm(dispatch, x, weight, bias, eps)?
    {
        note(|| norm.explained(x, "fused, on the GPU".to_owned(), None));
        return Ok(y);
    }
    note(|| norm.not_fused(x, weight, bias));
    let wide = x.to_dtype(accumulator(x.dtype()))?;
    let centered = wide.broadcast_sub(&wide.mean_keepdim(D::Minus1)?)?;
    scaled(&centered, weight, bias, eps)?.to_dtype(x.dtype())
}

/// RMS norm of each row of `x`, in f32 or wider; returns the dtype of `x`; differentiable.
///
/// Gemma's norm multiplies by `1 + weight`: add 1 to the weight where it is loaded, in f32. On a GPU these are plain operations.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::rms_norm;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[[3f32, -3., 3., 3.]], &Device::Cpu)?;
/// let weight = Tensor::new(&[1f32, 1., 2., 0.], &Device::Cpu)?;
/// assert_eq!(rms_norm(&x, &weight, 0.)?.to_vec2::<f32>()?, [[1., -1., 2., 0.]]);
/// # Ok(())
/// # }
/// ```
///
/// # Shapes
/// `x` (.., C), `weight` (C) -> (.., C)
///
/// # Errors
/// When the last dimension of `x` is not that of `weight`, or `eps` is negative or not finite.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    check("rms_norm", x, weight, None, eps)?;
    let norm = Norm { eps, centered: false };
    if let Some(y) = norm.run(x, weight, None)? {
        return Ok(y);
    }
    note(|| norm.not_fused(x, weight, None));
    scaled(&x.to_dtype(accumulator(x.dtype()))?, weight, None, eps)?.to_dtype(x.dtype())
}

impl Norm {
    /// By the kernel, if it reads these tensors.
    fn run(self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Option<Tensor>> {
        if x.elem_count() == 0 {
            note(|| self.not_fused(x, weight, bias));
            return Ok(Some(x.clone()));
        }
        let all = [x, weight, bias.unwrap_or(weight)];
        let learns = all.iter().any(|t| t.track_op());
        // The backward pass is for f32.
        let has_kernel = cpu_f32(&all) || cpu_floats(&all) && !learns;
        if !has_kernel {
            return Ok(None);
        }
        note(|| self.explained(x, ours("one pass"), None));
        let x = x.contiguous()?;
        let weight = weight.contiguous()?;
        Ok(Some(match bias {
            Some(bias) => x.apply_op3(&weight, &bias.contiguous()?, OnCpu(self))?,
            None => x.apply_op2(&weight, OnCpu(self))?,
        }))
    }

    /// Explains why plain operations compute this.
    fn not_fused(self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Explained {
        let why = no_kernel(&[x, weight, bias.unwrap_or(weight)]);
        let why = why.unwrap_or_else(|| match x.elem_count() {
            0 => "there is nothing to compute".to_owned(),
            _ => format!("there is no gradient for {}", x.dtype().as_str()),
        });
        self.explained(x, "plain operations".to_owned(), Some(why))
    }

    fn explained(self, x: &Tensor, code: String, slower_because: Option<String>) -> Explained {
        let operation = if self.centered { "layer_norm" } else { "rms_norm" };
        Explained { operation, inputs: shown("x", x), code, slower_because }
    }
}

/// `x / sqrt(mean(x²) + eps) * weight + bias` of wide numbers, by plain operations.
fn scaled(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    let deviation = (x.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?; // (.., 1)
    let y = x.broadcast_div(&deviation)?.broadcast_mul(&weight.to_dtype(x.dtype())?)?;
    match bias {
        Some(bias) => y.broadcast_add(&bias.to_dtype(x.dtype())?),
        None => Ok(y),
    }
}
