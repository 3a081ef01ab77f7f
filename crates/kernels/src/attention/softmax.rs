//! The softmax of causal attention over rows of scores, with a backward: for training on the CPU.

use crate::vector::{contiguous, exp2};
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// Softmax over the keys that a query sees; 0 for all others, and for a query that sees none.
///
/// Scores (B, H, T, S), f32 and contiguous -> weights of the same shape. The gradient of the scores is
/// `w · (g - Σ w·g)`, which is 0 where the weight is.
pub(super) struct CausalSoftmax {
    /// u8 (B, S), 1 = visible.
    pub(super) padding: Option<Vec<u8>>,
}

struct CausalSoftmaxBackward;

impl CustomOp1 for CausalSoftmax {
    fn name(&self) -> &'static str {
        "causal-softmax"
    }

    fn cpu_fwd(&self, scores: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, h, t, s) = layout.shape().dims4()?;
        let mut out = contiguous(scores, layout)?.to_vec();
        let arch = Arch::new();
        out.par_chunks_mut(s).enumerate().with_min_len(16).for_each(|(row, weights)| {
            let (b, i) = (row / (h * t), row % t);
            let (seen, hidden) = weights.split_at_mut(s - t + i + 1);
            hidden.fill(0.0);
            if let Some(padding) = &self.padding {
                for (x, visible) in seen.iter_mut().zip(&padding[b * s..]) {
                    if *visible == 0 {
                        *x = f32::NEG_INFINITY;
                    }
                }
            }
            arch.dispatch(SoftmaxRow(seen));
        });
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, weights: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(weights.apply_op2_no_bwd(&grad.contiguous()?, &CausalSoftmaxBackward)?))
    }
}

impl CustomOp2 for CausalSoftmaxBackward {
    fn name(&self) -> &'static str {
        "causal-softmax-backward"
    }

    fn cpu_fwd(
        &self,
        weights: &CpuStorage,
        layout: &Layout,
        grad: &CpuStorage,
        grad_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, _, t, s) = layout.shape().dims4()?;
        let (weights, grad) = (contiguous::<f32>(weights, layout)?, contiguous::<f32>(grad, grad_layout)?);
        let mut out = vec![0f32; weights.len()];
        let rows = out.par_chunks_mut(s).zip(weights.par_chunks(s).zip(grad.par_chunks(s)));
        rows.enumerate().with_min_len(16).for_each(|(row, (out, (w, g)))| {
            let seen = s - t + row % t + 1;
            let dot: f32 = w[..seen].iter().zip(g).map(|(w, g)| w * g).sum();
            for (out, (w, g)) in out.iter_mut().zip(w[..seen].iter().zip(g)) {
                *out = w * (g - dot);
            }
        });
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

struct SoftmaxRow<'a>(&'a mut [f32]);

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
        let power = |x| exp2(simd, simd.mul_f32s(simd.add_f32s(x, minus), log2_e));
        let mut sum = simd.splat_f32s(0.0);
        for x in vectors.iter_mut() {
            *x = power(*x);
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
