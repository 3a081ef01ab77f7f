//! Cross-entropy: the mean over rows of `log Σ exp(logits) - logits[target]`, in one pass over the logits.
//!
//! Its gradient is `(softmax(logits) - onehot(target)) / rows`, recomputed from the logits. A language
//! model's logits are large, and nothing else of their size is kept.

use crate::cpu::cpu_op::{CpuInput, CpuOp, OnCpu};
use crate::cpu::dispatch::cpu_f32;
use crate::cpu::isa;
use crate::cpu::vector::{exp2, with_slices};
use candle_core::{CpuStorage, D, DType, Device, Result, Shape, Tensor};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::sync::OnceLock;

/// The mean cross-entropy in nats; differentiable.
///
/// # Shapes
/// `logits` (N, V), f32 or f64; `targets` (N), integers below V -> scalar
///
/// # Errors
/// When the shapes do not fit each other, or a target is not below V.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (n, v) = logits.dims2()?;
    let targets = check_targets(targets, n, v)?;
    if cpu_f32(&[logits]) {
        return logits.contiguous()?.apply_op2(&targets, OnCpu(CrossEntropy { log_sums: OnceLock::new() }));
    }
    let log_probs = candle_nn::ops::log_softmax(logits, D::Minus1)?;
    log_probs.gather(&targets.unsqueeze(1)?, 1)?.mean_all()?.neg()
}

/// The cross-entropy of each row in nats, without a gradient.
///
/// # Shapes
/// `logits` (N, V), f32 or f64; `targets` (N), integers below V -> N numbers
///
/// # Errors
/// When the shapes do not fit each other, or a target is not below V.
pub fn cross_entropies(logits: &Tensor, targets: &Tensor) -> Result<Vec<f64>> {
    let (n, v) = logits.dims2()?;
    let targets = check_targets(targets, n, v)?;
    if cpu_f32(&[logits]) {
        let targets = targets.to_vec1::<u32>()?;
        return with_slices([&logits.contiguous()?], |[logits]| {
            losses(logits, &targets, &log_sums(logits, v)).collect()
        });
    }
    let log_probs = candle_nn::ops::log_softmax(logits, D::Minus1)?;
    let rows = log_probs.gather(&targets.unsqueeze(1)?, 1)?.neg()?.flatten_all()?;
    rows.to_dtype(DType::F64)?.to_device(&Device::Cpu)?.to_vec1()
}

struct CrossEntropy {
    /// The log-sum of each row, which the forward pass saves for the backward pass.
    log_sums: OnceLock<Vec<LogSumExp>>,
}

impl CpuOp<2> for CrossEntropy {
    const NAME: &'static str = "cross-entropy";

    fn forward(&self, [logits, targets]: [CpuInput; 2]) -> Result<(CpuStorage, Shape)> {
        let v = logits.layout.dims()[1];
        let logits = logits.slice::<f32>()?;
        let targets = targets.slice()?;
        let log_sums = log_sums(logits, v);
        let sum: f64 = losses(logits, targets, &log_sums).sum();
        #[allow(clippy::cast_possible_truncation)] // the loss of f32 logits
        let mean = (sum / log_sums.len() as f64) as f32;
        let _ = self.log_sums.set(log_sums);
        Ok((CpuStorage::F32(vec![mean]), Shape::from(())))
    }

    fn backward(
        &self,
        [logits, targets]: [&Tensor; 2],
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 2]> {
        let Some(log_sums) = self.log_sums.get() else {
            candle_core::bail!("cross-entropy: the backward pass ran without a forward pass before it")
        };
        let factor = grad.to_scalar::<f32>()? / log_sums.len() as f32;
        let targets = targets.to_vec1()?;
        let gradient = with_slices([logits], |[logits]| {
            let mut out = logits.to_vec();
            to_gradients(&mut out, &targets, log_sums, factor);
            out
        })?;
        Ok([Some(Tensor::from_vec(gradient, logits.shape(), &Device::Cpu)?), None])
    }
}

/// The targets of `n` rows of `v` logits as contiguous u32. Fails if a target is not one of the columns.
pub(crate) fn check_targets(targets: &Tensor, n: usize, v: usize) -> Result<Tensor> {
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

/// The log-sum of each row of `v` logits.
pub(crate) fn log_sums(logits: &[f32], v: usize) -> Vec<LogSumExp> {
    let arch = isa::arch();
    logits.par_chunks(v).map(|row| arch.dispatch(RowLogSumExp(row))).collect()
}

/// The loss of each row in nats.
pub(crate) fn losses(logits: &[f32], targets: &[u32], log_sums: &[LogSumExp]) -> impl Iterator<Item = f64> {
    let rows = logits.chunks_exact(logits.len() / targets.len()).zip(targets);
    let loss = |((row, target), sum): ((&[f32], &u32), &LogSumExp)| {
        let below = f64::from(sum.max) - f64::from(row[*target as usize]);
        below + f64::from(sum.log2) * std::f64::consts::LN_2
    };
    rows.zip(log_sums).map(loss)
}

/// Turns each row of logits into its gradient, `factor · (softmax(logits) - onehot(target))`.
pub(crate) fn to_gradients(logits: &mut [f32], targets: &[u32], log_sums: &[LogSumExp], factor: f32) {
    let arch = isa::arch();
    let v = logits.len() / targets.len();
    logits.par_chunks_mut(v).enumerate().for_each(|(i, row)| {
        arch.dispatch(Softmax { row: &mut *row, sum: log_sums[i], factor });
        row[targets[i] as usize] -= factor;
    });
}

const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// `Σ exp(x)` of a row as `exp(max) · 2^log2`: this form stays exact for a large max, where a single
/// logarithm would lose digits.
#[derive(Clone, Copy)]
pub(crate) struct LogSumExp {
    max: f32,
    log2: f32,
}

struct RowLogSumExp<'a>(&'a [f32]);

impl WithSimd for RowLogSumExp<'_> {
    type Output = LogSumExp;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> LogSumExp {
        let (vectors, tail) = S::as_simd_f32s(self.0);
        let mut highest = simd.splat_f32s(f32::NEG_INFINITY);
        for x in vectors {
            highest = simd.max_f32s(highest, *x);
        }
        let max = tail.iter().fold(simd.reduce_max_f32s(highest), |a, x| a.max(*x));
        let scale = simd.splat_f32s(LOG2_E);
        let minus = simd.splat_f32s(-max);
        let mut sum = simd.splat_f32s(0.0);
        for x in vectors {
            sum = simd.add_f32s(sum, exp2(simd, simd.mul_f32s(simd.add_f32s(*x, minus), scale)));
        }
        let rest: f32 = tail.iter().map(|x| ((x - max) * LOG2_E).exp2()).sum();
        LogSumExp { max, log2: (simd.reduce_sum_f32s(sum) + rest).log2() }
    }
}

/// `x = factor · exp(x) / Σ exp(x)`
struct Softmax<'a> {
    row: &'a mut [f32],
    sum: LogSumExp,
    factor: f32,
}

impl WithSimd for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let LogSumExp { max, log2 } = self.sum;
        let (vectors, tail) = S::as_mut_simd_f32s(self.row);
        let scale = simd.splat_f32s(LOG2_E);
        let minus = simd.splat_f32s(-max);
        let minus_log = simd.splat_f32s(-log2);
        let factor = simd.splat_f32s(self.factor);
        for x in vectors {
            let power = simd.mul_add_e_f32s(simd.add_f32s(*x, minus), scale, minus_log);
            *x = simd.mul_f32s(factor, exp2(simd, power));
        }
        for x in tail {
            *x = self.factor * ((*x - max) * LOG2_E - log2).exp2();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Var;

    #[test]
    fn loss_and_gradient_are_the_definitions() -> Result<()> {
        for (n, v) in [(1u32, 1u32), (3, 7), (5, 50), (2, 1003)] {
            let numbers: Vec<f32> = (0..n * v).map(|i| ((i * 7919) % 1000) as f32 / 40. - 12.).collect();
            let targets: Vec<u32> = (0..n).map(|i| i * 31 % v).collect();
            let targets = Tensor::new(targets, &Device::Cpu)?;
            let run = |dtype| -> Result<(f64, Vec<f64>)> {
                let logits =
                    Tensor::from_slice(&numbers, (n as usize, v as usize), &Device::Cpu)?.to_dtype(dtype)?;
                let logits = Var::from_tensor(&logits)?;
                let loss = (cross_entropy(&logits, &targets)? * 3.0)?;
                let gradient = loss.backward()?.get(&logits).unwrap().to_dtype(DType::F64)?;
                Ok((loss.to_dtype(DType::F64)?.to_scalar()?, gradient.flatten_all()?.to_vec1()?))
            };
            let ((loss, gradient), (expected, slopes)) = (run(DType::F32)?, run(DType::F64)?);
            assert!((loss - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{loss} {expected}");
            for (a, b) in gradient.iter().zip(&slopes) {
                assert!((a - b).abs() <= 2e-6, "{a} {b}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_target_that_is_no_column_is_refused() -> Result<()> {
        let logits = Tensor::zeros((2, 5), DType::F32, &Device::Cpu)?;
        let error = cross_entropy(&logits, &Tensor::new(&[1u32, 5], &Device::Cpu)?).unwrap_err().to_string();
        assert!(error.contains("target 5 is not one of the 5"), "{error}");
        assert!(cross_entropy(&logits, &Tensor::new(&[1u32], &Device::Cpu)?).is_err());
        Ok(())
    }
}
