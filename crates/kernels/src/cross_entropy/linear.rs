//! Cross-entropy of `x·Wᵀ` without the logits: a chunk of rows at a time, forward and backward.
//!
//! The idea of Liger Kernel's fused linear cross-entropy (Hsu et al. 2024): while a chunk's logits are there,
//! their gradient is made, and what it gives to x and W. Of the logits' size, nothing outlives its chunk.

use super::{LogSum, Row, check_targets, cross_entropy};
use crate::product::{Matrix, multiply};
use crate::vector::with_slices;
use candle_core::{CpuStorage, CustomOp2, DType, Device, Layout, Result, Shape, Tensor};
use pulp::Arch;
use rayon::prelude::*;

/// Rows whose logits are there at a time: enough for the matrix products to run at their full speed.
const ROWS: usize = 256;

/// `cross_entropy(x·Wᵀ, targets)`: the mean in nats over the rows; differentiable. In f32 on the CPU the logits
/// (rows, V) are never held together.
///
/// # Shapes
/// `x` (.., C), `weight` (V, C), `targets` as many as `x` has rows, integers below V -> scalar, f32 at least
///
/// # Errors
/// When the shapes do not fit each other, or a target is not below V.
pub fn linear_cross_entropy(x: &Tensor, weight: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (v, c) = weight.dims2()?;
    let rows = x.elem_count() / c.max(1);
    let kernel = [x, weight].iter().all(|t| t.device().is_cpu() && t.dtype() == DType::F32);
    let vendor = candle_core::utils::has_mkl() || candle_core::utils::has_accelerate();
    if !kernel || vendor || rows == 0 {
        let logits = crate::linear_transposed(x, weight)?.reshape((rows, v))?;
        return cross_entropy(&logits.to_dtype(crate::accumulator(logits.dtype()))?, &targets.flatten_all()?);
    }
    if x.dims().last() != Some(&c) {
        candle_core::bail!("cross-entropy: x {:?} does not end in the width of {:?}", x.dims(), weight.dims())
    }
    let targets = check_targets(&targets.flatten_all()?, rows, v)?.to_vec1::<u32>()?;
    let (x, weight) = (x.contiguous()?.reshape((rows, c))?, weight.contiguous()?);
    let wanted = x.track_op() || weight.track_op();
    let (detached_x, detached_weight) = (x.detach(), weight.detach());
    let (loss, d_x, d_weight) = with_slices([&detached_x, &detached_weight], |[x, weight]| {
        let problem = Problem { weight, targets: &targets, v, c };
        problem.run(x, wanted)
    })?;
    let done = if wanted {
        Some([
            Tensor::from_vec(d_x, (rows, c), &Device::Cpu)?,
            Tensor::from_vec(d_weight, (v, c), &Device::Cpu)?,
        ])
    } else {
        None
    };
    x.apply_op2(&weight, Loss { loss, gradients: done })
}

struct Problem<'a> {
    /// (V, C)
    weight: &'a [f32],
    targets: &'a [u32],
    v: usize,
    c: usize,
}

impl Problem<'_> {
    /// The loss of `x` (rows, C), and where they are `wanted` the gradients of x and of the weight.
    fn run(&self, x: &[f32], wanted: bool) -> (f32, Vec<f32>, Vec<f32>) {
        let Self { weight, targets, v, c } = *self;
        let (rows, size) = (targets.len(), |n| if wanted { n } else { 0 });
        let factor = 1.0 / rows as f32;
        let (mut d_x, mut d_weight) = (vec![0f32; size(rows * c)], vec![0f32; size(v * c)]);
        let mut logits = vec![0f32; ROWS.min(rows) * v];
        let mut d_logits = vec![0f32; size(logits.len())];
        let mut sum = 0.0;
        for (i, x) in x.chunks(ROWS * c).enumerate() {
            let (first, count) = (i * ROWS, x.len() / c);
            let logits = &mut logits[..count * v];
            multiply(logits, false, (count, c, v), Matrix::rows(x, c), Matrix::rows(weight, c).t());
            let targets = &targets[first..first + count];
            let arch = Arch::new();
            let log_sums: Vec<LogSum> = logits.par_chunks(v).map(|row| arch.dispatch(Row(row))).collect();
            sum += super::losses(logits, targets, &log_sums);
            if !wanted {
                continue;
            }
            let d_logits = &mut d_logits[..count * v];
            super::gradients(logits, targets, &log_sums, factor, d_logits);
            let d_rows = Matrix::rows(d_logits, v);
            let d_x = &mut d_x[first * c..(first + count) * c];
            multiply(d_x, false, (count, v, c), d_rows, Matrix::rows(weight, c));
            multiply(&mut d_weight, i > 0, (v, count, c), d_rows.t(), Matrix::rows(x, c));
        }
        #[allow(clippy::cast_possible_truncation)] // the loss of f32 logits
        let loss = (sum / rows as f64) as f32;
        (loss, d_x, d_weight)
    }
}

/// A loss that has been computed, with its gradients.
struct Loss {
    loss: f32,
    gradients: Option<[Tensor; 2]>,
}

impl CustomOp2 for Loss {
    fn name(&self) -> &'static str {
        "linear-cross-entropy"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![self.loss]), Shape::from(())))
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let Some([x, weight]) = &self.gradients else {
            candle_core::bail!("linear-cross-entropy: a backward pass of inputs that were not tracked")
        };
        let factor = f64::from(grad.to_scalar::<f32>()?);
        let scaled = |t: &Tensor| if factor == 1.0 { Ok(t.clone()) } else { t * factor };
        Ok((Some(scaled(x)?), Some(scaled(weight)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Var;

    #[test]
    fn loss_and_gradients_are_those_of_the_logits() -> Result<()> {
        let targets =
            |n: usize, v: usize| Tensor::from_iter((0..n).map(|i| (i * 31 % v) as i64), &Device::Cpu);
        // One row, a few, and more than a chunk of them.
        for (rows, v, c) in [(1, 3, 2), (6, 50, 7), (ROWS + 5, 19, 33)] {
            let x = Tensor::randn(0f32, 2., (rows, c), &Device::Cpu)?;
            let weight = Tensor::randn(0f32, 1., (v, c), &Device::Cpu)?;
            let run = |dtype| -> Result<[Tensor; 3]> {
                let (x, w) =
                    (Var::from_tensor(&x.to_dtype(dtype)?)?, Var::from_tensor(&weight.to_dtype(dtype)?)?);
                let loss = (linear_cross_entropy(&x, &w, &targets(rows, v)?)? * 3.0)?;
                let gradients = loss.backward()?;
                let found = |var: &Var| gradients.get(var).expect("a gradient").clone();
                Ok([loss.detach(), found(&x), found(&w)])
            };
            for (got, expected) in run(DType::F32)?.iter().zip(&run(DType::F64)?) {
                let scale = expected.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()?;
                let error = (got.to_dtype(DType::F64)? - expected)?.abs()?.flatten_all()?.max(0)?;
                assert!(error.to_scalar::<f64>()? <= 3e-6 * scale, "{rows} {v} {c}: {error} of {scale}");
            }
            // What nobody differentiates is computed without gradients, to the same number.
            let plain = linear_cross_entropy(&x, &weight, &targets(rows, v)?)?.to_scalar::<f32>()?;
            let var = Var::from_tensor(&x)?;
            let tracked = linear_cross_entropy(var.as_tensor(), &weight, &targets(rows, v)?)?;
            assert_eq!(plain, tracked.to_scalar::<f32>()?);
        }
        Ok(())
    }

    #[test]
    fn what_does_not_fit_is_refused() -> Result<()> {
        let x = Tensor::zeros((2, 3, 4), DType::F32, &Device::Cpu)?;
        let weight = Tensor::zeros((5, 4), DType::F32, &Device::Cpu)?;
        let says = |x: &Tensor, targets: Tensor, part: &str| {
            let error = linear_cross_entropy(x, &weight, &targets).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        let targets = |values: [i64; 6]| Tensor::new(&values, &Device::Cpu);
        says(&x, targets([0, 1, 2, 3, 4, 5])?, "target 5 is not one of the 5");
        says(&x, targets([0, 1, 2, 3, 4, -1])?, "target -1 is not one of the 5");
        says(&x, targets([0; 6])?.narrow(0, 0, 5)?, "6 rows of logits need [6] integers");
        says(&x, targets([0; 6])?.to_dtype(DType::F32)?, "integers as targets, got F32");
        says(&x.transpose(1, 2)?, targets([0; 6])?, "does not end in the width");
        assert!(linear_cross_entropy(&x, &weight, &targets([4; 6])?.reshape((2, 3))?).is_ok());
        Ok(())
    }
}
