//! Layer normalization over the last dimension (Ba, Kiros, Hinton 2016).
//!
//! `y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, with the biased variance, like PyTorch.

use crate::columns::{ROWS, add, total};
use crate::cpu_op::{CpuOp, Input, OnCpu};
use crate::dispatch::{Dispatch, cpu_f32, cpu_floats};
use crate::element::{Element, accumulator};
use crate::gpu;
use crate::isa;
use crate::vector::{chunked, sum3, with_slices};
use candle_core::{CpuStorage, D, Device, Error, Result, Shape, Tensor, WithDType};
use half::{bf16, f16};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// Normalizes each row of `x` in f32 or wider, and returns the dtype of `x`; differentiable.
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
        return x.contiguous()?.apply_op3(
            &weight.contiguous()?,
            &bias.contiguous()?,
            OnCpu(LayerNorm { eps }),
        );
    }
    let tensors = [x, weight, bias];
    if x.elem_count() > 0 && cpu_floats(&tensors) && tensors.iter().all(|t| !t.track_op()) {
        let (x, weight, bias) = (x.contiguous()?, weight.contiguous()?, bias.contiguous()?);
        return x.apply_op3_no_bwd(&weight, &bias, &OnCpu(LayerNorm { eps }));
    }
    if let Some(y) = gpu::layer_norm(dispatch, x, weight, bias, eps)? {
        return Ok(y);
    }
    let wide = accumulator(x.dtype());
    let (centered, deviation) = center(&x.to_dtype(wide)?, eps)?;
    centered
        .broadcast_div(&deviation)?
        .broadcast_mul(&weight.to_dtype(wide)?)?
        .broadcast_add(&bias.to_dtype(wide)?)?
        .to_dtype(x.dtype())
}

/// `x - mean(x)` (.., C) and `sqrt(var(x) + eps)` (.., 1)
fn center(x: &Tensor, eps: f64) -> Result<(Tensor, Tensor)> {
    let centered = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
    Ok((centered, (variance + eps)?.sqrt()?))
}

/// x, weight, bias -> y: on the CPU, a row at a time. The backward pass is for f32.
struct LayerNorm {
    eps: f64,
}

impl CpuOp<3> for LayerNorm {
    const NAME: &'static str = "layer-norm";

    fn forward(&self, inputs: [Input; 3]) -> Result<(CpuStorage, Shape)> {
        let [x, weight, bias] = inputs;
        match x.storage {
            CpuStorage::F16(_) => return halves::<f16>(inputs, self.eps),
            CpuStorage::BF16(_) => return halves::<bf16>(inputs, self.eps),
            _ => {}
        }
        let shape = x.shape().clone();
        let (x, weight, bias) = (x.slice()?, weight.slice()?, bias.slice()?);
        let (width, arch) = (weight.len(), isa::arch());
        let eps = self.eps;
        let row = |i: usize, out: &mut [MaybeUninit<f32>]| {
            arch.dispatch(Row { x: &x[i * width..(i + 1) * width], weight, bias, eps, out });
        };
        #[allow(unsafe_code)]
        // SAFETY: `Row` writes all of `out`, which is as long as weight, bias and the row of x.
        let out = unsafe { chunked(x.len(), width, row) };
        Ok((CpuStorage::F32(out), shape))
    }

    fn backward(
        &self,
        [x, weight, _]: [&Tensor; 3],
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let width = weight.elem_count();
        let rows = (x.elem_count() / width, width);
        // Detached, so that the gradient keeps no graph for a second derivative.
        let (flat, grad) = (x.detach().reshape(rows)?, grad.detach().contiguous()?.reshape(rows)?);
        let [dx, d_weight, d_bias] = gradients(&flat, &weight.detach(), &grad, self.eps)?;
        Ok([Some(dx.reshape(x.shape())?), Some(d_weight), Some(d_bias)])
    }
}

/// x, weight, bias -> y: computed in f32 and rounded once.
fn halves<E: Element + WithDType>([x, weight, bias]: [Input; 3], eps: f64) -> Result<(CpuStorage, Shape)> {
    /// How many rows a thread takes at a time.
    const ROWS: usize = 8;
    let shape = x.shape().clone();
    let x = x.slice::<E>()?;
    let wide = |input: Input| Ok::<Vec<f32>, Error>(input.slice::<E>()?.iter().map(|x| x.to_f32()).collect());
    let (weight, bias) = (wide(weight)?, wide(bias)?);
    let (width, arch) = (weight.len(), isa::arch());
    let mut out = vec![E::from_f32(0.0); x.len()];
    out.par_chunks_mut(ROWS * width).zip(x.par_chunks(ROWS * width)).for_each(|(out, x)| {
        arch.dispatch(HalfRows { x, weight: &weight, bias: &bias, eps, out });
    });
    Ok((E::to_cpu_storage_owned(out), shape))
}

struct HalfRows<'a, E> {
    x: &'a [E],
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f64,
    out: &'a mut [E],
}

impl<E: Element> WithSimd for HalfRows<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, weight, bias, eps, out } = self;
        let width = weight.len();
        let (mut wide, mut y) = (vec![0.0; width], vec![0.0; width]);
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            E::widen(x, &mut wide);
            let (mean, factor) = mean_and_factor(simd, &wide, eps);
            for (y, (x, (w, b))) in y.iter_mut().zip(wide.iter().zip(weight.iter().zip(bias))) {
                *y = (x - mean) * factor * w + b;
            }
            E::narrow(&y, out);
        }
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

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, weight, bias, eps, out } = self;
        let (mean, factor) = mean_and_factor(simd, x, eps);
        for (out, (x, (w, b))) in out.iter_mut().zip(x.iter().zip(weight.iter().zip(bias))) {
            out.write((x - mean) * factor * w + b);
        }
    }
}

/// The mean of a row, and `1 / sqrt(var + eps)`.
#[allow(clippy::cast_possible_truncation)] // row sums are converted to f32 at the end
#[inline(always)]
fn mean_and_factor<S: Simd>(simd: S, x: &[f32], eps: f64) -> (f32, f32) {
    let count = x.len() as f32;
    let (vectors, tail) = S::as_simd_f32s(x);
    let total = sum(simd, vectors, |x| x) + tail.iter().sum::<f32>();
    let mean = total / count;
    let minus = simd.splat_f32s(-mean);
    let squares = sum(simd, vectors, |x| {
        let centered = simd.add_f32s(x, minus);
        simd.mul_f32s(centered, centered)
    });
    let variance = (squares + tail.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>()) / count;
    let factor = (1.0 / (f64::from(variance) + eps).sqrt()) as f32;
    (mean, factor)
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

/// The gradients of x (rows, C), weight (C) and bias (C), in one pass over the rows.
///
/// With x̂ the normalized row, σ its deviation and h = g·weight: `dx = (h - mean(h) - x̂·mean(h·x̂)) / σ`, and the
/// gradients of weight and bias are the sums of `g·x̂` and of `g` over the rows.
///
/// `x` and `grad` (rows, C), `weight` (C), all contiguous and f32
fn gradients(x: &Tensor, weight: &Tensor, grad: &Tensor, eps: f64) -> Result<[Tensor; 3]> {
    let width = weight.elem_count();
    let (dx, d_weight, d_bias) = with_slices([x, weight, grad], |[x, weight, grad]| {
        let mut dx = vec![0f32; x.len()];
        let arch = isa::arch();
        let chunk = ROWS * width;
        let chunks = dx.par_chunks_mut(chunk).zip(x.par_chunks(chunk).zip(grad.par_chunks(chunk)));
        let partial = chunks.map(|(dx, (x, grad))| {
            let (mut d_weight, mut d_bias) = (vec![0f32; width], vec![0f32; width]);
            arch.dispatch(|| {
                let rows =
                    dx.chunks_exact_mut(width).zip(x.chunks_exact(width).zip(grad.chunks_exact(width)));
                for (dx, (x, grad)) in rows {
                    row_gradients(x, weight, grad, eps, dx, &mut d_weight);
                    add(&mut d_bias, grad);
                }
            });
            (d_weight, d_bias)
        });
        let (d_weight, d_bias) = partial.unzip();
        (dx, total(d_weight, width), total(d_bias, width))
    })?;
    let tensor = |data, like: &Tensor| Tensor::from_vec(data, like.shape(), &Device::Cpu);
    Ok([tensor(dx, x)?, tensor(d_weight, weight)?, tensor(d_bias, weight)?])
}

/// Processes one row: writes `dx` and adds to `d_weight`.
#[allow(clippy::cast_possible_truncation)] // row sums are converted to f32 at the end
#[inline(always)]
fn row_gradients(x: &[f32], weight: &[f32], grad: &[f32], eps: f64, dx: &mut [f32], d_weight: &mut [f32]) {
    let count = x.len() as f32;
    let mean = sum3(x, x, x, |x, _, _| x) / count;
    let variance = sum3(x, x, x, |x, _, _| (x - mean) * (x - mean)) / count;
    let factor = (1.0 / (f64::from(variance) + eps).sqrt()) as f32;
    let mean_h = sum3(weight, grad, x, |w, g, _| w * g) / count;
    let along = sum3(weight, grad, x, |w, g, x| w * g * ((x - mean) * factor)) / count;
    let inputs = x.iter().zip(weight.iter().zip(grad));
    for ((dx, d_weight), (x, (w, g))) in dx.iter_mut().zip(d_weight).zip(inputs) {
        let unit = (x - mean) * factor;
        *dx = (w * g - mean_h - unit * along) * factor;
        *d_weight += g * unit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Implementation;
    use crate::test_numbers::{error, numbers, wide};
    use candle_core::{DType, Var};

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
    fn halves_are_computed_in_f32_and_rounded_once() -> Result<()> {
        for (dtype, rounding) in [(DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))] {
            for (rows, width) in [(1, 7), (3, 33), (20, 768)] {
                let half = |shape: &[usize], salt| numbers(shape, salt)?.to_dtype(dtype);
                let (x, w, b) = (half(&[rows, width], 1)?, half(&[width], 2)?, half(&[width], 3)?);
                let run = |x: &Tensor, w: &Tensor, b: &Tensor| {
                    layer_norm(x, w, b, 1e-5, Dispatch::of(Implementation::Auto, x))
                };
                let expected = run(&wide(&x)?, &wide(&w)?, &wide(&b)?)?;
                let got = run(&x, &w, &b)?;
                assert_eq!(got.dtype(), dtype);
                let error = error(&got, &expected)?;
                assert!(error <= 1.01 * rounding, "{dtype:?}, {rows} x {width}: {error:e}");
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
