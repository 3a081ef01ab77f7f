//! Cross-entropy of `x·Wᵀ` without the logits: a chunk of rows at a time, forward and backward.
//!
//! The idea comes from Liger Kernel's fused linear cross-entropy (Hsu et al. 2024): while a chunk's logits
//! are in memory, it computes their gradient and from that the gradients of x and W. Nothing of the logits'
//! size outlives its chunk.

use super::chunks::in_chunks;
use super::logits::cross_entropy;
use super::rows::{LogSum, Row, check_targets, losses, to_gradients};
use crate::dispatch::{Dispatch, cpu_f32, cpu_product};
use crate::gpu;
use crate::isa;
use crate::product::{Matrix, multiply};
use crate::vector::with_slices;
use candle_core::{CpuStorage, CustomOp2, Device, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, Storage, backend::BackendStorage};

/// The number of rows whose logits are in memory at a time: enough for the matrix products to run at full speed.
pub(super) const ROWS: usize = 256;

/// `cross_entropy(x·Wᵀ, targets)`: the mean in nats over the rows; differentiable. In f32 on the CPU, and where
/// `dispatch` runs our GPU kernels, the logits (rows, V) are never all in memory at once, except in builds with a
/// vendor's matrix product on the CPU. The forward pass already computes the gradients of every tracked input.
///
/// # Shapes
/// `x` (.., C), `weight` (V, C), `targets`: one integer below V for each row of `x` -> scalar, in f32 or wider
///
/// # Errors
/// When the shapes do not fit each other, or a target is not below V.
pub fn linear_cross_entropy(
    x: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    dispatch: Dispatch,
) -> Result<Tensor> {
    let (v, c) = weight.dims2()?;
    let rows = x.elem_count() / c.max(1);
    let on_cpu = cpu_f32(&[x, weight]) && cpu_product(&[x, weight]);
    if rows == 0 || !(on_cpu || gpu::has_cross_entropy(dispatch, x, weight)?) {
        let logits = crate::linear_transposed(x, weight)?.reshape((rows, v))?;
        return cross_entropy(&logits.to_dtype(crate::accumulator(logits.dtype()))?, &targets.flatten_all()?);
    }
    if x.dims().last() != Some(&c) {
        candle_core::bail!("cross-entropy: x {:?} does not end in the width of {:?}", x.dims(), weight.dims())
    }
    let targets = check_targets(&targets.flatten_all()?, rows, v)?; // (rows)
    let (x, weight) = (x.contiguous()?.reshape((rows, c))?, weight.contiguous()?);
    let wanted = [x.track_op(), weight.track_op()];
    if !on_cpu {
        let of_rows = gpu::losses_to_gradients;
        let (loss, gradients) = in_chunks(&x.detach(), &weight.detach(), &targets, wanted, of_rows)?;
        // Divided only in the backward pass, by the caller's scale as well: less is too small for a half.
        return x.apply_op2(&weight, Computed { loss, gradients, share: 1.0 / rows as f64 });
    }
    let targets = targets.to_vec1::<u32>()?;
    let (loss, gradients) =
        with_slices([&x, &weight], |[x, weight]| loss_and_gradients(x, weight, &targets, wanted))?;
    let tensor = |data: Option<Vec<f32>>, like: &Tensor| {
        data.map(|data| Tensor::from_vec(data, like.shape(), &Device::Cpu)).transpose()
    };
    let [d_x, d_weight] = gradients;
    let gradients = [tensor(d_x, &x)?, tensor(d_weight, &weight)?];
    x.apply_op2(&weight, Computed { loss: Tensor::new(loss, &Device::Cpu)?, gradients, share: 1.0 })
}

/// The loss of `x` (rows, C) under `weight` (V, C), and the gradients of `x` and `weight` that are wanted.
fn loss_and_gradients(
    x: &[f32],
    weight: &[f32],
    targets: &[u32],
    wanted: [bool; 2],
) -> (f32, [Option<Vec<f32>>; 2]) {
    let rows = targets.len();
    let c = x.len() / rows;
    let v = weight.len() / c;
    let (arch, factor) = (isa::arch(), 1.0 / rows as f32);
    let mut d_x = wanted[0].then(|| vec![0f32; x.len()]); // (rows, C)
    let mut d_weight = wanted[1].then(|| vec![0f32; weight.len()]); // (V, C)
    let mut logits = vec![0f32; ROWS.min(rows) * v]; // (ROWS, V)
    let mut sum = 0.0;
    for (i, (x, targets)) in x.chunks(ROWS * c).zip(targets.chunks(ROWS)).enumerate() {
        let count = targets.len();
        let logits = &mut logits[..count * v];
        multiply(logits, false, (count, c, v), Matrix::rows(x, c), Matrix::rows(weight, c).t());
        let log_sums: Vec<LogSum> = logits.par_chunks(v).map(|row| arch.dispatch(Row(row))).collect();
        sum += losses(logits, targets, &log_sums).sum::<f64>();
        if wanted == [false; 2] {
            continue;
        }
        to_gradients(logits, targets, &log_sums, factor);
        let d_logits = Matrix::rows(logits, v);
        if let Some(d_x) = &mut d_x {
            let d_x = &mut d_x[i * ROWS * c..][..count * c];
            multiply(d_x, false, (count, v, c), d_logits, Matrix::rows(weight, c));
        }
        if let Some(d_weight) = &mut d_weight {
            multiply(d_weight, i > 0, (v, count, c), d_logits.t(), Matrix::rows(x, c));
        }
    }
    #[allow(clippy::cast_possible_truncation)] // the loss of f32 logits
    let loss = (sum / rows as f64) as f32;
    (loss, [d_x, d_weight])
}

/// A loss already computed, with the gradients of x and weight that are wanted.
struct Computed {
    /// f32, a scalar where x is.
    loss: Tensor,
    gradients: [Option<Tensor>; 2],
    /// What they have to be multiplied by.
    share: f64,
}

impl CustomOp2 for Computed {
    fn name(&self) -> &'static str {
        "linear-cross-entropy"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![self.loss.to_scalar()?]), Shape::from(())))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (storage, layout) = self.loss.storage_and_layout();
        match &*storage {
            Storage::Cuda(storage) => Ok((storage.try_clone(layout)?, Shape::from(()))),
            _ => candle_core::bail!("cross-entropy: the loss is not on the GPU"),
        }
    }

    fn bwd(
        &self,
        of_x: &Tensor,
        of_weight: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let factor = self.share * f64::from(grad.to_scalar::<f32>()?);
        #[allow(clippy::float_cmp)] // saves a copy when the loss itself is differentiated
        let as_they_are = factor == 1.0;
        let scaled = |t: &Option<Tensor>, of: &Tensor| -> Result<_> {
            match t {
                Some(t) if !as_they_are => Ok(Some((t * factor)?.to_dtype(of.dtype())?)),
                t => Ok(t.clone()),
            }
        };
        let [x, weight] = &self.gradients;
        Ok((scaled(x, of_x)?, scaled(weight, of_weight)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Implementation;
    use crate::test_numbers::numbers;
    use candle_core::{DType, Var};

    fn loss(x: &Tensor, weight: &Tensor, targets: &Tensor) -> Result<Tensor> {
        linear_cross_entropy(x, weight, targets, Dispatch::of(Implementation::Auto, x))
    }

    #[test]
    #[allow(clippy::cast_possible_truncation)] // 256
    fn loss_and_gradients_are_those_of_the_logits() -> Result<()> {
        let targets = |n: u32, v: u32| Tensor::from_iter((0..n).map(|i| i64::from(i * 31 % v)), &Device::Cpu);
        // One row, a few rows, and more rows than a chunk.
        for (rows, v, c) in [(1, 3, 2), (6, 50, 7), (ROWS as u32 + 5, 19, 33)] {
            // No loss is close to 0, where the rounding of the logits would be large beside it.
            let x = numbers((rows as usize, c), 1)?;
            let weight = numbers((v as usize, c), 1_000_000)?;
            let run = |dtype| -> Result<[Tensor; 3]> {
                let (x, w) =
                    (Var::from_tensor(&x.to_dtype(dtype)?)?, Var::from_tensor(&weight.to_dtype(dtype)?)?);
                let found = (loss(&x, &w, &targets(rows, v)?)? * 3.0)?;
                let gradients = found.backward()?;
                let of = |var: &Var| gradients.get(var).expect("a gradient").clone();
                Ok([found.detach(), of(&x), of(&w)])
            };
            for (got, expected) in run(DType::F32)?.iter().zip(&run(DType::F64)?) {
                let scale = expected.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()?;
                let error = (got.to_dtype(DType::F64)? - expected)?.abs()?.flatten_all()?.max(0)?;
                assert!(error.to_scalar::<f64>()? <= 3e-6 * scale, "{rows} {v} {c}: {error} of {scale}");
            }
            // If one of the two is a constant, the other gets the same gradient, and nothing else gets one.
            let (var, constant) = (Var::from_tensor(&x)?, Var::from_tensor(&weight)?);
            let of_x = loss(&var, &weight.t()?.contiguous()?.t()?, &targets(rows, v)?)?.backward()?;
            let of_weight = loss(&x, &constant, &targets(rows, v)?)?;
            let both = loss(&var, &constant, &targets(rows, v)?)?.backward()?;
            let values = |t: Option<&Tensor>| t.expect("a gradient").flatten_all()?.to_vec1::<f32>();
            assert_eq!(values(of_x.get(&var))?, values(both.get(&var))?);
            assert!(of_x.get(&weight).is_none());
            for _ in 0..2 {
                assert_eq!(values(of_weight.backward()?.get(&constant))?, values(both.get(&constant))?);
            }
            // Without anything to differentiate, the loss is computed without gradients and is the same number.
            let plain = loss(&x, &weight, &targets(rows, v)?)?.to_scalar::<f32>()?;
            let var = Var::from_tensor(&x)?;
            let tracked = loss(var.as_tensor(), &weight, &targets(rows, v)?)?;
            assert_eq!(plain.to_bits(), tracked.to_scalar::<f32>()?.to_bits());
        }
        Ok(())
    }

    #[test]
    fn what_does_not_fit_is_refused() -> Result<()> {
        let x = Tensor::zeros((2, 3, 4), DType::F32, &Device::Cpu)?;
        let weight = Tensor::zeros((5, 4), DType::F32, &Device::Cpu)?;
        let says = |x: &Tensor, targets: Tensor, part: &str| {
            let error = loss(x, &weight, &targets).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        let targets = |values: [i64; 6]| Tensor::new(&values, &Device::Cpu);
        says(&x, targets([0, 1, 2, 3, 4, 5])?, "target 5 is not one of the 5");
        says(&x, targets([0, 1, 2, 3, 4, -1])?, "target -1 is not one of the 5");
        says(&x, targets([0; 6])?.narrow(0, 0, 5)?, "6 rows of logits need [6] integers");
        says(&x, targets([0; 6])?.to_dtype(DType::F32)?, "integers as targets, got F32");
        says(&x.transpose(1, 2)?, targets([0; 6])?, "does not end in the width");
        assert!(loss(&x, &weight, &targets([4; 6])?.reshape((2, 3))?).is_ok());
        Ok(())
    }
}
