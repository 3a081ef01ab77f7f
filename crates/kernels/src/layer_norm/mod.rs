//! Layer normalisation over the last dimension (Ba, Kiros, Hinton 2016).
//!
//! `y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, with the biased variance, like PyTorch.

mod backward;

use crate::dispatch::{Dispatch, cpu_f32};
use crate::gpu;
use crate::isa;
use crate::vector::{chunked, contiguous};
use candle_core::{CpuStorage, CustomOp3, D, Layout, Result, Shape, Tensor};
use pulp::{Simd, WithSimd};
use std::mem::MaybeUninit;

/// Normalises each row of `x` in f32 or wider, and returns the dtype of `x`; differentiable.
///
/// The variance is computed from the centred values: the shorter `E[x²] - E[x]²` loses all its digits
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
/// When the last dimension of `x` is not that of `weight` and `bias`.
pub fn layer_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
    dispatch: Dispatch,
) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    if weight.dims() != [width] || bias.dims() != [width] {
        candle_core::bail!(
            "layer_norm: x {:?} needs weight and bias of shape [{width}], got {:?} and {:?}",
            x.dims(),
            weight.dims(),
            bias.dims()
        )
    }
    if x.elem_count() > 0 && cpu_f32(&[x, weight, bias]) {
        return x.contiguous()?.apply_op3(&weight.contiguous()?, &bias.contiguous()?, LayerNorm { eps });
    }
    if let Some(y) = gpu::layer_norm(dispatch, x, weight, bias, eps)? {
        return Ok(y);
    }
    let wide = crate::accumulator(x.dtype());
    let (centred, deviation) = centre(&x.to_dtype(wide)?, eps)?;
    centred
        .broadcast_div(&deviation)?
        .broadcast_mul(&weight.to_dtype(wide)?)?
        .broadcast_add(&bias.to_dtype(wide)?)?
        .to_dtype(x.dtype())
}

/// `x - mean(x)` (.., C) and `sqrt(var(x) + eps)` (.., 1)
fn centre(x: &Tensor, eps: f64) -> Result<(Tensor, Tensor)> {
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
    Ok((centred, (variance + eps)?.sqrt()?))
}

/// x, weight, bias -> y: f32 on the CPU, a row at a time.
struct LayerNorm {
    eps: f64,
}

impl CustomOp3 for LayerNorm {
    fn name(&self) -> &'static str {
        "layer-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let x = contiguous(x, x_layout)?;
        let (weight, bias) = (contiguous(weight, weight_layout)?, contiguous(bias, bias_layout)?);
        let (width, arch) = (weight.len(), isa::arch());
        let eps = self.eps;
        let row = |i: usize, out: &mut [MaybeUninit<f32>]| {
            arch.dispatch(Row { x: &x[i * width..(i + 1) * width], weight, bias, eps, out });
        };
        #[allow(unsafe_code)]
        // SAFETY: `Row` writes all of `out`, which is as long as weight, bias and the row of x.
        let out = unsafe { chunked(x.len(), width, row) };
        Ok((CpuStorage::F32(out), x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let width = weight.elem_count();
        let rows = (x.elem_count() / width, width);
        // Detached, so that the gradient keeps no graph for a second derivative.
        let (flat, grad) = (x.detach().reshape(rows)?, grad.detach().contiguous()?.reshape(rows)?);
        let [dx, d_weight, d_bias] = backward::gradients(&flat, &weight.detach(), &grad, self.eps)?;
        Ok((Some(dx.reshape(x.shape())?), Some(d_weight), Some(d_bias)))
    }
}

struct Row<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f64,
    out: &'a mut [MaybeUninit<f32>],
}

impl WithSimd for Row<'_> {
    type Output = ();

    #[allow(clippy::cast_possible_truncation)] // row sums are converted to f32 at the end
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, weight, bias, eps, out } = self;
        let count = x.len() as f32;
        let (vectors, tail) = S::as_simd_f32s(x);
        let total = sum(simd, vectors, |x| x) + tail.iter().sum::<f32>();
        let mean = total / count;
        let minus = simd.splat_f32s(-mean);
        let squares = sum(simd, vectors, |x| {
            let centred = simd.add_f32s(x, minus);
            simd.mul_f32s(centred, centred)
        });
        let variance = (squares + tail.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>()) / count;
        let factor = (1.0 / (f64::from(variance) + eps).sqrt()) as f32;
        for (out, (x, (w, b))) in out.iter_mut().zip(x.iter().zip(weight.iter().zip(bias))) {
            out.write((x - mean) * factor * w + b);
        }
    }
}

/// `Σ f(x)` over all lanes of all vectors.
#[inline(always)]
fn sum<S: Simd>(simd: S, vectors: &[S::f32s], f: impl Fn(S::f32s) -> S::f32s) -> f32 {
    let mut sums = [simd.splat_f32s(0.0); 4];
    let (groups, rest) = vectors.as_chunks::<4>();
    for group in groups {
        for (sum, x) in sums.iter_mut().zip(group) {
            *sum = simd.add_f32s(*sum, f(*x));
        }
    }
    for x in rest {
        sums[0] = simd.add_f32s(sums[0], f(*x));
    }
    let [a, b, c, d] = sums;
    simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Implementation;
    use candle_core::{DType, Device, Var};

    #[test]
    fn keeps_its_digits_when_the_mean_is_large() -> Result<()> {
        // A spread of 1 around a mean of 4096: in f32 the one-pass variance is off by whole units.
        let x = Tensor::new(&[[4095f32, 4097., 4095., 4097.]], &Device::Cpu)?;
        let one = Tensor::new(&[1f32, 1., 1., 1.], &Device::Cpu)?;
        let y = layer_norm(&x, &one, &one.zeros_like()?, 0., Dispatch::of(Implementation::Auto, &x))?
            .to_vec2::<f32>()?;
        assert_eq!(y, [[-1., 1., -1., 1.]]);
        Ok(())
    }

    /// Compares with f64, which runs in plain operations with their own gradients.
    #[test]
    fn values_and_gradients_are_those_of_f64() -> Result<()> {
        // An epsilon of 0.5 is as large as the variance, so that a wrong epsilon shows.
        let all = [1, 5, 16, 33, 100, 768].map(|width| (width, 1e-5));
        for (width, eps) in all.into_iter().chain([(1, 0.5), (33, 0.5)]) {
            let numbers = |n: usize, salt: u32| -> Vec<f64> {
                let hash = |i: u32| i.wrapping_mul(2_654_435_761) >> 8; // 24 bits
                (salt..).take(n).map(|i| f64::from(hash(i)) / 8_388_608. - 0.7).collect()
            };
            let run = |dtype| -> Result<Vec<Vec<f64>>> {
                let var = |n, salt, shape: Vec<usize>| {
                    Var::from_tensor(
                        &Tensor::from_vec(numbers(n, salt), shape, &Device::Cpu)?.to_dtype(dtype)?,
                    )
                };
                let x = var(6 * width, 1, vec![2, 3, width])?;
                let (w, b) = (var(width, 2, vec![width])?, var(width, 3, vec![width])?);
                let y = layer_norm(&x, &w, &b, eps, Dispatch::of(Implementation::Auto, &x))?;
                let weighted = (&y
                    * Tensor::arange(0f64, 6. * width as f64, &Device::Cpu)?
                        .sin()?
                        .to_dtype(dtype)?
                        .reshape(y.shape())?)?;
                let grads = weighted.sum_all()?.backward()?;
                let mut all = vec![y];
                for v in [&x, &w, &b] {
                    all.push(grads.get(v).expect("a gradient").clone());
                }
                all.iter().map(|t| t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()).collect()
            };
            // A row of one number has no spread: its gradient is 0 up to rounding errors, times 1 / sqrt(eps).
            let floor = if width == 1 { 1.0 } else { 1e-30 };
            for (i, (got, expected)) in run(DType::F32)?.iter().zip(&run(DType::F64)?).enumerate() {
                let largest = expected.iter().fold(floor, |a: f64, x| a.max(x.abs()));
                for (a, b) in got.iter().zip(expected) {
                    assert!(
                        (a - b).abs() <= 3e-6 * largest,
                        "width {width}, eps {eps}, part {i}: {a}, not {b}"
                    );
                }
            }
        }
        Ok(())
    }

    #[test]
    fn nan_stays_in_its_row() -> Result<()> {
        let x = Tensor::new(&[[f32::NAN, 1., 2.], [1., 2., 3.]], &Device::Cpu)?;
        let one = Tensor::ones(3, DType::F32, &Device::Cpu)?;
        let y = layer_norm(&x, &one, &one, 1e-5, Dispatch::of(Implementation::Auto, &x))?.to_vec2::<f32>()?;
        assert!(y[0].iter().all(|x| x.is_nan()) && y[1].iter().all(|x| x.is_finite()), "{y:?}");
        Ok(())
    }

    #[test]
    fn refuses_a_weight_of_another_width() -> Result<()> {
        let x = Tensor::zeros((2, 4), DType::F32, &Device::Cpu)?;
        let w = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
        let err = layer_norm(&x, &w, &w, 1e-5, Dispatch::of(Implementation::Auto, &x))
            .expect_err("3 is not 4")
            .to_string();
        assert!(err.contains("[2, 4]") && err.contains("[3]"), "{err}");
        Ok(())
    }
}
