//! The gradients of layer normalization: f32 on the CPU, in one pass over the rows.

use crate::columns::{ROWS, add, total};
use crate::isa;
use crate::vector::{sum3, with_slices};
use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;

/// The gradients of x (rows, C), weight (C) and bias (C).
///
/// With x̂ the normalized row, σ its deviation and h = g·weight: `dx = (h - mean(h) - x̂·mean(h·x̂)) / σ`, and the
/// gradients of weight and bias are the sums of `g·x̂` and of `g` over the rows.
///
/// `x` and `grad` (rows, C), `weight` (C), all contiguous and f32
pub(super) fn gradients(x: &Tensor, weight: &Tensor, grad: &Tensor, eps: f64) -> Result<[Tensor; 3]> {
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
                    row(x, weight, grad, eps, dx, &mut d_weight);
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
fn row(x: &[f32], weight: &[f32], grad: &[f32], eps: f64, dx: &mut [f32], d_weight: &mut [f32]) {
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
