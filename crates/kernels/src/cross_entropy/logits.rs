//! Cross-entropy of logits that are already in memory.

use super::rows::{LogSum, Row, check_targets, losses, to_gradients};
use crate::dispatch::cpu_f32;
use crate::isa;
use crate::vector::{contiguous, with_slices};
use candle_core::{CpuStorage, CustomOp2, D, DType, Device, Layout, Result, Shape, Tensor};
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
        return logits.contiguous()?.apply_op2(&targets, CrossEntropy { log_sums: OnceLock::new() });
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
        let (targets, arch) = (targets.to_vec1::<u32>()?, isa::arch());
        return with_slices([&logits.contiguous()?], |[logits]| {
            let log_sums: Vec<LogSum> = logits.par_chunks(v).map(|row| arch.dispatch(Row(row))).collect();
            losses(logits, &targets, &log_sums).collect()
        });
    }
    let log_probs = candle_nn::ops::log_softmax(logits, D::Minus1)?;
    let rows = log_probs.gather(&targets.unsqueeze(1)?, 1)?.neg()?.flatten_all()?;
    rows.to_dtype(DType::F64)?.to_device(&Device::Cpu)?.to_vec1()
}

struct CrossEntropy {
    /// The log-sum of each row, which the forward pass saves for the backward pass.
    log_sums: OnceLock<Vec<LogSum>>,
}

impl CustomOp2 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        layout: &Layout,
        targets: &CpuStorage,
        targets_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (logits, v) = (contiguous::<f32>(logits, layout)?, layout.dims()[1]);
        let targets = contiguous::<u32>(targets, targets_layout)?;
        let arch = isa::arch();
        let log_sums: Vec<LogSum> = logits.par_chunks(v).map(|row| arch.dispatch(Row(row))).collect();
        let sum: f64 = losses(logits, targets, &log_sums).sum();
        #[allow(clippy::cast_possible_truncation)] // the loss of f32 logits
        let mean = (sum / log_sums.len() as f64) as f32;
        let _ = self.log_sums.set(log_sums);
        Ok((CpuStorage::F32(vec![mean]), Shape::from(())))
    }

    fn bwd(
        &self,
        logits: &Tensor,
        targets: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let Some(log_sums) = self.log_sums.get() else {
            candle_core::bail!("cross-entropy: the backward pass ran without a forward pass before it")
        };
        let factor = grad.to_scalar::<f32>()? / log_sums.len() as f32;
        let gradient = Gradient { log_sums, factor };
        Ok((Some(logits.detach().apply_op2_no_bwd(targets, &gradient)?), None))
    }
}

struct Gradient<'a> {
    log_sums: &'a [LogSum],
    factor: f32,
}

impl CustomOp2 for Gradient<'_> {
    fn name(&self) -> &'static str {
        "cross-entropy-backward"
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        layout: &Layout,
        targets: &CpuStorage,
        targets_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let logits = contiguous::<f32>(logits, layout)?;
        let targets = contiguous::<u32>(targets, targets_layout)?;
        let mut out = logits.to_vec();
        to_gradients(&mut out, targets, self.log_sums, self.factor);
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device, Var};

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
