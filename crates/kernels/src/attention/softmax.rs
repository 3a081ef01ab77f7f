//! The softmax of a row of scores on the CPU, and its gradient.

use crate::vector::{contiguous, exp2};
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::ops::Range;

/// Computes the gradient of the scores from that of their softmax, (.., rows, S) each: `w · (g - Σ w·g)`,
/// which is 0 wherever the weight is 0. `seen` holds the keys that each row sees; the gradients of the
/// other keys are never read.
pub(super) struct SoftmaxBackward {
    pub(super) seen: Vec<Range<usize>>,
}

impl CustomOp2 for SoftmaxBackward {
    fn name(&self) -> &'static str {
        "softmax-backward"
    }

    fn cpu_fwd(
        &self,
        weights: &CpuStorage,
        layout: &Layout,
        grad: &CpuStorage,
        grad_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, _, _, s) = layout.shape().dims4()?;
        let (weights, grad) = (contiguous::<f32>(weights, layout)?, contiguous::<f32>(grad, grad_layout)?);
        let mut out = vec![0f32; weights.len()];
        let rows = out.par_chunks_mut(s).zip(weights.par_chunks(s).zip(grad.par_chunks(s)));
        rows.enumerate().with_min_len(16).for_each(|(row, (out, (w, g)))| {
            let seen = &self.seen[row % self.seen.len()];
            let (out, w, g) = (&mut out[seen.clone()], &w[seen.clone()], &g[seen.clone()]);
            let dot: f32 = w.iter().zip(g).map(|(w, g)| w * g).sum();
            for (out, (w, g)) in out.iter_mut().zip(w.iter().zip(g)) {
                *out = w * (g - dot);
            }
        });
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

/// Softmax of a row of scores in place; all zeros if every score is -inf.
pub(super) struct SoftmaxRow<'a>(pub(super) &'a mut [f32]);

impl WithSimd for SoftmaxRow<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let max = self.0.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if max == f32::NEG_INFINITY && !self.0.iter().any(|x| x.is_nan()) {
            self.0.fill(0.0);
            return;
        }
        let (vectors, tail) = S::as_mut_simd_f32s(self.0);
        let (minus, log2_e) = (simd.splat_f32s(-max), simd.splat_f32s(std::f32::consts::LOG2_E));
        let mut sum = simd.splat_f32s(0.0);
        for x in vectors.iter_mut() {
            *x = exp2(simd, simd.mul_f32s(simd.add_f32s(*x, minus), log2_e));
            sum = simd.add_f32s(sum, *x);
        }
        let mut total = simd.reduce_sum_f32s(sum);
        for x in tail.iter_mut() {
            *x = ((*x - max) * std::f32::consts::LOG2_E).exp2();
            total += *x;
        }
        let factor = simd.splat_f32s(1.0 / total);
        for x in vectors {
            *x = simd.mul_f32s(*x, factor);
        }
        for x in tail {
            *x /= total;
        }
    }
}
