//! The rows of a norm on the CPU, forward and backward.

use crate::cpu::column_sums::{ROWS, add, total};
use crate::cpu::cpu_op::{CpuInput, CpuOp};
use crate::cpu::element::Element;
use crate::cpu::isa;
use crate::cpu::vector::{chunked, sum3, with_slices};
use candle_core::{CpuStorage, Device, Error, Result, Shape, Tensor, WithDType};
use half::{bf16, f16};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// x, weight and perhaps bias -> y, a row at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Norm {
    pub(super) eps: f64,
    /// Whether the mean is subtracted first.
    pub(super) centered: bool,
}

impl Norm {
    fn normalize(self, x: CpuInput, weight: CpuInput, bias: Option<CpuInput>) -> Result<(CpuStorage, Shape)> {
        match x.storage {
            CpuStorage::F16(_) => return self.halves::<f16>(x, weight, bias),
            CpuStorage::BF16(_) => return self.halves::<bf16>(x, weight, bias),
            _ => {}
        }
        let shape = x.shape().clone();
        let x = x.slice()?;
        let weight = weight.slice()?;
        let bias = bias.map(CpuInput::slice).transpose()?;
        let width = weight.len();
        let arch = isa::arch();
        let row = |i: usize, out: &mut [MaybeUninit<f32>]| {
            arch.dispatch(NormalizeRow { norm: self, x: &x[i * width..(i + 1) * width], weight, bias, out });
        };
        #[allow(unsafe_code)]
        // SAFETY: `NormalizeRow` writes all of `out`, which is as long as weight, bias and the row of x.
        let out = unsafe { chunked(x.len(), width, row) };
        Ok((CpuStorage::F32(out), shape))
    }

    /// Computed in f32 and rounded once.
    fn halves<E: Element + WithDType>(
        self,
        x: CpuInput,
        weight: CpuInput,
        bias: Option<CpuInput>,
    ) -> Result<(CpuStorage, Shape)> {
        /// The number of rows that a thread takes at a time.
        const ROWS: usize = 8;
        let shape = x.shape().clone();
        let x = x.slice::<E>()?;
        let wide =
            |input: CpuInput| Ok::<Vec<f32>, Error>(input.slice::<E>()?.iter().map(|x| x.to_f32()).collect());
        let weight = wide(weight)?;
        let bias = bias.map(wide).transpose()?;
        let width = weight.len();
        let arch = isa::arch();
        let mut out = vec![E::from_f32(0.0); x.len()];
        out.par_chunks_mut(ROWS * width).zip(x.par_chunks(ROWS * width)).for_each(|(out, x)| {
            arch.dispatch(HalfRows { norm: self, x, weight: &weight, bias: bias.as_deref(), out });
        });
        Ok((E::to_cpu_storage_owned(out), shape))
    }

    /// The gradients of x (.., C), weight (C) and bias (C) from that of y (.., C).
    fn all_gradients(self, x: &Tensor, weight: &Tensor, grad: &Tensor) -> Result<[Tensor; 3]> {
        let width = weight.elem_count();
        let rows = (x.elem_count() / width, width);
        // Detached, so that the gradient keeps no graph for a second derivative.
        let flat = x.detach().reshape(rows)?;
        let grad = grad.detach().contiguous()?.reshape(rows)?;
        let [dx, d_weight, d_bias] = self.gradients(&flat, &weight.detach(), &grad)?;
        Ok([dx.reshape(x.shape())?, d_weight, d_bias])
    }

    /// The gradients of x (rows, C), weight (C) and bias (C), in one pass over the rows.
    ///
    /// With x̂ the normalized row, σ its deviation and h = g·weight: `dx = (h - mean(h) - x̂·mean(h·x̂)) / σ`, and the
    /// gradients of weight and bias are the sums of `g·x̂` and of `g` over the rows. A norm that is not centered has no
    /// `mean(h)`.
    ///
    /// `x` and `grad` (rows, C), `weight` (C), all contiguous and f32
    fn gradients(self, x: &Tensor, weight: &Tensor, grad: &Tensor) -> Result<[Tensor; 3]> {
        let width = weight.elem_count();
        let (dx, d_weight, d_bias) = with_slices([x, weight, grad], |[x, weight, grad]| {
            let mut dx = vec![0f32; x.len()];
            let arch = isa::arch();
            let chunk = ROWS * width;
            let chunks = dx.par_chunks_mut(chunk).zip(x.par_chunks(chunk).zip(grad.par_chunks(chunk)));
            let partial = chunks.map(|(dx, (x, grad))| {
                let mut d_weight = vec![0f32; width];
                let mut d_bias = vec![0f32; width];
                arch.dispatch(|| {
                    let rows =
                        dx.chunks_exact_mut(width).zip(x.chunks_exact(width).zip(grad.chunks_exact(width)));
                    for (dx, (x, grad)) in rows {
                        self.row_gradients(x, weight, grad, dx, &mut d_weight);
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
    fn row_gradients(self, x: &[f32], weight: &[f32], grad: &[f32], dx: &mut [f32], d_weight: &mut [f32]) {
        let count = x.len() as f32;
        let only = |mean: f32| if self.centered { mean } else { 0.0 };
        let mean = only(sum3(x, x, x, |x, _, _| x) / count);
        let variance = sum3(x, x, x, |x, _, _| (x - mean) * (x - mean)) / count;
        let factor = (1.0 / (f64::from(variance) + self.eps).sqrt()) as f32;
        let mean_h = only(sum3(weight, grad, x, |w, g, _| w * g) / count);
        let along = sum3(weight, grad, x, |w, g, x| w * g * ((x - mean) * factor)) / count;
        let inputs = x.iter().zip(weight.iter().zip(grad));
        for ((dx, d_weight), (x, (w, g))) in dx.iter_mut().zip(d_weight).zip(inputs) {
            let unit = (x - mean) * factor;
            *dx = (w * g - mean_h - unit * along) * factor;
            *d_weight += g * unit;
        }
    }

    /// The mean to subtract from a row (0 for RMS norm), and the factor `1 / sqrt(var + eps)` to multiply it by.
    #[allow(clippy::cast_possible_truncation)] // row sums are converted to f32 at the end
    #[inline(always)]
    fn mean_and_factor<S: Simd>(self, simd: S, x: &[f32]) -> (f32, f32) {
        let count = x.len() as f32;
        let (vectors, tail) = S::as_simd_f32s(x);
        let mean =
            if self.centered { (sum(simd, vectors, |x| x) + tail.iter().sum::<f32>()) / count } else { 0.0 };
        let minus = simd.splat_f32s(-mean);
        let squares = sum(simd, vectors, |x| {
            let centered = simd.add_f32s(x, minus);
            simd.mul_f32s(centered, centered)
        });
        let variance = (squares + tail.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>()) / count;
        let factor = (1.0 / (f64::from(variance) + self.eps).sqrt()) as f32;
        (mean, factor)
    }
}

/// Layer norm.
impl CpuOp<3> for Norm {
    const NAME: &'static str = "layer-norm";

    fn forward(&self, [x, weight, bias]: [CpuInput; 3]) -> Result<(CpuStorage, Shape)> {
        self.normalize(x, weight, Some(bias))
    }

    fn backward(
        &self,
        [x, weight, _]: [&Tensor; 3],
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        Ok(self.all_gradients(x, weight, grad)?.map(Some))
    }
}

/// Without a bias.
impl CpuOp<2> for Norm {
    const NAME: &'static str = "norm";

    fn forward(&self, [x, weight]: [CpuInput; 2]) -> Result<(CpuStorage, Shape)> {
        self.normalize(x, weight, None)
    }

    fn backward(&self, [x, weight]: [&Tensor; 2], _: &Tensor, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let [dx, d_weight, _] = self.all_gradients(x, weight, grad)?;
        Ok([Some(dx), Some(d_weight)])
    }
}

struct HalfRows<'a, E> {
    norm: Norm,
    x: &'a [E],
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    out: &'a mut [E],
}

impl<E: Element> WithSimd for HalfRows<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { norm, x, weight, bias, out } = self;
        let width = weight.len();
        let mut wide = vec![0.0; width];
        let mut y = vec![0.0; width];
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            E::widen(x, &mut wide);
            let (mean, factor) = norm.mean_and_factor(simd, &wide);
            for (y, (x, w)) in y.iter_mut().zip(wide.iter().zip(weight)) {
                *y = (x - mean) * factor * w;
            }
            if let Some(bias) = bias {
                add(&mut y, bias);
            }
            E::narrow(&y, out);
        }
    }
}

struct NormalizeRow<'a> {
    norm: Norm,
    x: &'a [f32],
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    out: &'a mut [MaybeUninit<f32>],
}

impl WithSimd for NormalizeRow<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { norm, x, weight, bias, out } = self;
        let (mean, factor) = norm.mean_and_factor(simd, x);
        let rows = out.iter_mut().zip(x.iter().zip(weight));
        match bias {
            Some(bias) => rows.zip(bias).for_each(|((out, (x, w)), b)| {
                out.write((x - mean) * factor * w + b);
            }),
            None => rows.for_each(|(out, (x, w))| {
                out.write((x - mean) * factor * w);
            }),
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
