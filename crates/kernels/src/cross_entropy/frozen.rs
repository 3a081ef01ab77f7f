//! Cross-entropy of `x·W` with a W (C, V) that does not change, packed or quantized: for a model whose adapter learns.
//!
//! As in [`linear_cross_entropy`](super::linear_cross_entropy), a chunk of rows' logits is in memory at a time, and the
//! forward pass computes the gradient of x.

use super::linear::ROWS;
use super::rows::{LogSum, Row, check_targets, losses, to_gradients};
use crate::epilogue::Epilogue;
use crate::isa;
use crate::linear::PackedWeight;
use crate::product::{Finish, Panels, append_product};
use crate::quantized::QuantizedWeight;
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

impl PackedWeight {
    /// The mean cross-entropy in nats of predicting `targets` with the logits `x·W`, where W is in f32; differentiable in
    /// `x`.
    ///
    /// # Shapes
    /// `x` (.., C), `targets`: one integer below V for each row of `x` -> scalar
    ///
    /// # Errors
    /// When a shape or a dtype does not fit, or a target is not below V.
    pub fn cross_entropy(&self, x: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let logits = |x: &Tensor| self.forward(x, None, Epilogue::None);
        cross_entropy(x, targets, self.shape(), logits, || self.transposed_panels())
    }
}

impl QuantizedWeight {
    /// The mean cross-entropy in nats of predicting `targets` with the logits `x·W`; differentiable in `x`.
    ///
    /// # Shapes
    /// `x` (.., C), `targets`: one integer below V for each row of `x` -> scalar
    ///
    /// # Errors
    /// When a shape or a dtype does not fit, or a target is not below V.
    pub fn cross_entropy(&self, x: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let logits = |x: &Tensor| self.forward(x, None, Epilogue::None);
        cross_entropy(x, targets, self.shape(), logits, || Ok(self.transposed_panels(0..self.shape().1)))
    }
}

/// `transpose` gives the panels of Wᵀ, (V, C).
fn cross_entropy(
    x: &Tensor,
    targets: &Tensor,
    (c, v): (usize, usize),
    logits: impl Fn(&Tensor) -> Result<Tensor>,
    transpose: impl FnOnce() -> Result<Panels<f32>>,
) -> Result<Tensor> {
    if x.dims().last() != Some(&c) || x.dtype() != DType::F32 || x.elem_count() == 0 {
        candle_core::bail!("cross-entropy: x {:?} {:?} must be f32 rows of {c}", x.dtype(), x.dims())
    }
    let rows = x.elem_count() / c;
    let targets = check_targets(&targets.flatten_all()?, rows, v)?.to_vec1::<u32>()?;
    let x = x.contiguous()?.reshape((rows, c))?;
    let inputs = x.detach();
    let panels = if x.track_op() { Some(transpose()?) } else { None };
    let (arch, factor) = (isa::arch(), 1.0 / rows as f32);
    let mut d_x: Vec<f32> = Vec::with_capacity(if panels.is_some() { rows * c } else { 0 });
    let mut sum = 0.0;
    for (first, targets) in (0..rows).step_by(ROWS).zip(targets.chunks(ROWS)) {
        let count = targets.len();
        let mut logits = logits(&inputs.narrow(0, first, count)?)?.flatten_all()?.to_vec1::<f32>()?;
        let log_sums: Vec<LogSum> = logits.par_chunks(v).map(|row| arch.dispatch(Row(row))).collect();
        sum += losses(&logits, targets, &log_sums).sum::<f64>();
        let Some(panels) = &panels else { continue };
        to_gradients(&mut logits, targets, &log_sums, factor);
        let finish = Finish { bias: None, residual: None, gelu: false, onto: false };
        append_product(&mut d_x, &logits, panels, 0..c, finish);
    }
    #[allow(clippy::cast_possible_truncation)] // the loss of f32 logits
    let loss = (sum / rows as f64) as f32;
    if panels.is_none() {
        return Tensor::new(loss, &Device::Cpu);
    }
    let gradient = Tensor::from_vec(d_x, (rows, c), &Device::Cpu)?;
    x.apply_op1(Known { loss, gradient })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Implementation;
    use crate::dispatch::Dispatch;
    use crate::quantized::BlockFormat;
    use crate::test_numbers::numbers;
    use candle_core::Var;

    /// Against the plain table's loss and gradients, over more rows than a chunk has.
    #[test]
    fn the_loss_and_the_gradient_are_those_of_the_plain_table() -> Result<()> {
        for rows in [1, 7, ROWS, ROWS + 9] {
            let table = numbers((70, 32), 1)?; // (V, C)
            let x = Var::from_tensor(&numbers((rows, 32), 2)?)?;
            #[allow(clippy::cast_possible_truncation)] // 265
            let ids = (0..rows as u32).map(|i| i * 7 % 70);
            let targets = Tensor::from_iter(ids, &Device::Cpu)?;
            let of = |table: &Tensor| -> Result<(f32, Vec<f32>)> {
                let dispatch = Dispatch::of(Implementation::Auto, table);
                let loss = super::super::linear_cross_entropy(&x, table, &targets, dispatch)?;
                result(&(loss * 3.0)?, &x)
            };
            let packed = PackedWeight::new(&table.t()?)?;
            close("packed", &result(&(packed.cross_entropy(&x, &targets)? * 3.0)?, &x)?, &of(&table)?, 1e-5);
            let quantized = QuantizedWeight::quantize(&table.t()?, BlockFormat::Q8_0)?;
            let got = result(&(quantized.cross_entropy(&x, &targets)? * 3.0)?, &x)?;
            // 8 bits for a row of x change the loss by 6e-4 and the gradient by 2.2e-3 of their sizes, measured.
            close("quantized", &got, &of(&quantized.to_transposed()?)?, 4e-3);
            let constant = packed.cross_entropy(&x.as_detached_tensor(), &targets)?;
            assert!(
                !constant.track_op() && (constant.to_scalar::<f32>()? * 3.0 - of(&table)?.0).abs() < 1e-4
            );
        }
        let packed = PackedWeight::new(&numbers((4, 3), 1)?)?;
        let x = numbers((2, 4), 2)?;
        let beyond = Tensor::new(&[0u32, 3], &Device::Cpu)?;
        let error = packed.cross_entropy(&x, &beyond).expect_err("3 of 3").to_string();
        assert!(error.contains('3'), "{error}");
        assert!(packed.cross_entropy(&numbers((2, 5), 2)?, &beyond).is_err());
        Ok(())
    }

    fn result(loss: &Tensor, x: &Var) -> Result<(f32, Vec<f32>)> {
        let gradients = loss.backward()?;
        let gradient = gradients.get(x).expect("a gradient");
        Ok((loss.to_scalar()?, gradient.flatten_all()?.to_vec1()?))
    }

    fn close(what: &str, got: &(f32, Vec<f32>), expected: &(f32, Vec<f32>), tolerance: f32) {
        assert!((got.0 - expected.0).abs() <= tolerance * expected.0, "{what}: {} {}", got.0, expected.0);
        let largest = expected.1.iter().fold(0f32, |most, x| most.max(x.abs()));
        for (got, expected) in got.1.iter().zip(&expected.1) {
            assert!((got - expected).abs() <= tolerance * largest, "{what}: {got} {expected}");
        }
    }
}
