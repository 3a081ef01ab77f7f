//! Cross-entropy of `x·W` with a W (C, V) that does not change: for a model whose adapter learns.
//!
//! As in [`linear_cross_entropy`](super::linear_cross_entropy), a chunk of rows' logits is in memory at a time, and the
//! forward pass computes the gradient of x.

use super::linear::ROWS;
use super::rows::{LogSum, Row, check_targets, losses, to_gradients};
use crate::frozen::{Frozen, Rows, Then};
use crate::isa;
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Storage, Tensor};
use rayon::prelude::*;
use std::sync::Arc;

/// The mean cross-entropy in nats of predicting `targets` with the logits `x·W`; differentiable in `x`.
///
/// # Shapes
/// `x` (.., C) in f32, `targets`: one integer below V for each row of `x` -> scalar
///
/// # Errors
/// When a shape or a dtype does not fit, or a target is not below V.
pub(crate) fn frozen_cross_entropy(x: &Tensor, weight: &Arc<dyn Frozen>, targets: &Tensor) -> Result<Tensor> {
    let (c, v) = weight.shape();
    if x.dims().last() != Some(&c) || x.dtype() != DType::F32 || x.elem_count() == 0 {
        candle_core::bail!("cross-entropy: x {:?} {:?} must be f32 rows of {c}", x.dtype(), x.dims())
    }
    let rows = x.elem_count() / c;
    let targets = check_targets(&targets.flatten_all()?, rows, v)?.to_vec1::<u32>()?;
    let x = x.contiguous()?.reshape((rows, c))?;
    let inputs = x.detach();
    let transposed = x.track_op().then(|| weight.transposed(0..v)); // (V, C)
    let (arch, factor) = (isa::arch(), 1.0 / rows as f32);
    let mut d_x: Vec<f32> = Vec::with_capacity(if transposed.is_some() { rows * c } else { 0 });
    let mut sum = 0.0;
    for (first, targets) in (0..rows).step_by(ROWS).zip(targets.chunks(ROWS)) {
        let count = targets.len();
        let part = inputs.narrow(0, first, count)?;
        let (storage, layout) = part.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            candle_core::bail!("cross-entropy: x is on another device")
        };
        let mut logits = in_f32s(weight.product(Rows { storage, layout }, 0..v, Then::default())?)?; // (count, V)
        let log_sums: Vec<LogSum> = logits.par_chunks(v).map(|row| arch.dispatch(Row(row))).collect();
        sum += losses(&logits, targets, &log_sums).sum::<f64>();
        let Some(transposed) = &transposed else { continue };
        to_gradients(&mut logits, targets, &log_sums, factor);
        let layout = Layout::contiguous((count, v));
        let d_logits = Rows { storage: &CpuStorage::F32(logits), layout: &layout };
        d_x.extend(in_f32s(transposed.product(d_logits, 0..c, Then::default())?)?);
    }
    #[allow(clippy::cast_possible_truncation)] // the loss of f32 logits
    let loss = (sum / rows as f64) as f32;
    if transposed.is_none() {
        return Tensor::new(loss, &Device::Cpu);
    }
    let gradient = Tensor::from_vec(d_x, (rows, c), &Device::Cpu)?;
    x.apply_op1(Known { loss, gradient })
}

fn in_f32s(storage: CpuStorage) -> Result<Vec<f32>> {
    match storage {
        CpuStorage::F32(data) => Ok(data),
        _ => candle_core::bail!("cross-entropy: expected f32"),
    }
}

/// A loss already computed, with the gradient of x.
struct Known {
    loss: f32,
    /// (rows, C)
    gradient: Tensor,
}

impl CustomOp1 for Known {
    fn name(&self) -> &'static str {
        "frozen-cross-entropy"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![self.loss]), Shape::from(())))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let factor = f64::from(grad.to_scalar::<f32>()?);
        // Saves a copy when the loss itself is differentiated.
        if factor.to_bits() == 1f64.to_bits() {
            return Ok(Some(self.gradient.clone()));
        }
        Ok(Some((&self.gradient * factor)?))
    }
}
