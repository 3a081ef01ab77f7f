//! Rows of logits: their log-sums, losses and gradients.

use crate::isa;
use crate::vector::exp2;
use candle_core::{DType, Result, Tensor};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

/// The targets of `n` rows of `v` logits as contiguous u32. Fails if a target is not one of the columns.
pub(super) fn check_targets(targets: &Tensor, n: usize, v: usize) -> Result<Tensor> {
    if targets.dims() != [n] || n == 0 || targets.dtype().is_float() {
        candle_core::bail!(
            "cross-entropy: {n} rows of logits need [{n}] integers as targets, got {:?} {:?}",
            targets.dtype(),
            targets.dims()
        )
    }
    let wide = targets.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    if let Some(target) = wide.iter().find(|&&target| usize::try_from(target).map_or(true, |t| t >= v)) {
        candle_core::bail!("cross-entropy: target {target} is not one of the {v} columns of the logits")
    }
    targets.to_dtype(DType::U32)?.contiguous()
}

/// The loss of each row in nats.
pub(super) fn losses(logits: &[f32], targets: &[u32], log_sums: &[LogSum]) -> impl Iterator<Item = f64> {
    let rows = logits.chunks_exact(logits.len() / targets.len()).zip(targets);
    let loss = |((row, target), sum): ((&[f32], &u32), &LogSum)| {
        let below = f64::from(sum.max) - f64::from(row[*target as usize]);
        below + f64::from(sum.log2) * std::f64::consts::LN_2
    };
    rows.zip(log_sums).map(loss)
}

/// Turns each row of logits into its gradient, `factor · (softmax(logits) - onehot(target))`.
pub(super) fn to_gradients(logits: &mut [f32], targets: &[u32], log_sums: &[LogSum], factor: f32) {
    let (arch, v) = (isa::arch(), logits.len() / targets.len());
    logits.par_chunks_mut(v).enumerate().for_each(|(i, row)| {
        arch.dispatch(Softmax { row: &mut *row, sum: log_sums[i], factor });
        row[targets[i] as usize] -= factor;
    });
}

const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// `Σ exp(x)` of a row as `exp(max) · 2^log2`: this form stays exact for a large max, where a single
/// logarithm would lose digits.
#[derive(Clone, Copy)]
pub(super) struct LogSum {
    max: f32,
    log2: f32,
}

pub(super) struct Row<'a>(pub(super) &'a [f32]);

impl WithSimd for Row<'_> {
    type Output = LogSum;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> LogSum {
        let (vectors, tail) = S::as_simd_f32s(self.0);
        let mut highest = simd.splat_f32s(f32::NEG_INFINITY);
        for x in vectors {
            highest = simd.max_f32s(highest, *x);
        }
        let max = tail.iter().fold(simd.reduce_max_f32s(highest), |a, x| a.max(*x));
        let (scale, minus) = (simd.splat_f32s(LOG2_E), simd.splat_f32s(-max));
        let mut sum = simd.splat_f32s(0.0);
        for x in vectors {
            sum = simd.add_f32s(sum, exp2(simd, simd.mul_f32s(simd.add_f32s(*x, minus), scale)));
        }
        let rest: f32 = tail.iter().map(|x| ((x - max) * LOG2_E).exp2()).sum();
        LogSum { max, log2: (simd.reduce_sum_f32s(sum) + rest).log2() }
    }
}

/// `x = factor · exp(x) / Σ exp(x)`
struct Softmax<'a> {
    row: &'a mut [f32],
    sum: LogSum,
    factor: f32,
}

impl WithSimd for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let LogSum { max, log2 } = self.sum;
        let (vectors, tail) = S::as_mut_simd_f32s(self.row);
        let (scale, minus) = (simd.splat_f32s(LOG2_E), simd.splat_f32s(-max));
        let (minus_log, factor) = (simd.splat_f32s(-log2), simd.splat_f32s(self.factor));
        for x in vectors {
            let power = simd.mul_add_e_f32s(simd.add_f32s(*x, minus), scale, minus_log);
            *x = simd.mul_f32s(factor, exp2(simd, power));
        }
        for x in tail {
            *x = self.factor * ((*x - max) * LOG2_E - log2).exp2();
        }
    }
}
