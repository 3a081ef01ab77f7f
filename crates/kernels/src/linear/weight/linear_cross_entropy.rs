//! Cross-entropy of `x·Wᵀ` without the logits: a chunk of rows at a time, forward and backward.
//!
//! The idea comes from Liger Kernel's fused linear cross-entropy (Hsu et al. 2024): while a chunk's logits are in memory, it
//! computes their gradient and from that the gradients of x and W. Nothing of the logits' size outlives its chunk. On the CPU
//! there is one loop for a plain W and one for a frozen W, which gets no gradient; on GPUs one of Candle's operations.

use super::frozen::{Frozen, FusedEpilogue};
use crate::cpu::cpu_op::{CpuInput, CpuOp, OnCpu};
use crate::cpu::dispatch::{Dispatch, Factors, cpu_f32, cpu_product};
use crate::cpu::element::accumulator;
use crate::cpu::vector::with_slices;
use crate::gpu;
use crate::linear::product::rows::Matrix;
use crate::pointwise::cross_entropy::{check_targets, cross_entropy, log_sums, losses, to_gradients};
use candle_core::{CpuStorage, CustomOp2, DType, Device, Layout, Result, Shape, Storage, Tensor};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, backend::BackendStorage};
use std::sync::Arc;

/// The number of rows whose logits are in memory at a time: enough for the matrix products to run at full speed.
pub(super) const ROWS: usize = 512;

/// `cross_entropy(x·Wᵀ, targets)`: the mean in nats over the rows; differentiable. In f32 on the CPU, the logits
/// of at most 512 rows are in memory at a time, and of at most 4096 where `dispatch` runs our GPU kernels; builds with a
/// vendor's matrix product on the CPU hold all of them. The forward pass already computes the gradients of every tracked input.
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
        let logits = crate::linear::linear_transposed(x, weight)?.reshape((rows, v))?;
        return cross_entropy(&logits.to_dtype(accumulator(logits.dtype()))?, &targets.flatten_all()?);
    }
    if x.dims().last() != Some(&c) {
        candle_core::bail!("cross-entropy: x {:?} does not end in the width of {:?}", x.dims(), weight.dims())
    }
    let targets = check_targets(&targets.flatten_all()?, rows, v)?; // (rows)
    let x = x.contiguous()?.reshape((rows, c))?;
    let weight = weight.contiguous()?;
    let wanted = [x.track_op(), weight.track_op()];
    if !on_cpu {
        let of_rows = gpu::losses_to_gradients;
        let (loss, gradients) = in_chunks(&x.detach(), &weight.detach(), &targets, wanted, of_rows)?;
        // Divided only in the backward pass, by the caller's scale as well: less is too small for a half.
        return x.apply_op2(&weight, ComputedLoss { loss, gradients, share: 1.0 / rows as f64 });
    }
    let targets = targets.to_vec1::<u32>()?;
    let (loss, gradients) = with_slices([&x, &weight], |[x, weight]| {
        loss_and_gradients(dispatch.factors(), x, weight, &targets, wanted)
    })?;
    let tensor = |data: Option<Vec<f32>>, like: &Tensor| {
        data.map(|data| Tensor::from_vec(data, like.shape(), &Device::Cpu)).transpose()
    };
    let [d_x, d_weight] = gradients;
    let gradients = [tensor(d_x, &x)?, tensor(d_weight, &weight)?];
    x.apply_op2(&weight, ComputedLoss { loss: Tensor::new(loss, &Device::Cpu)?, gradients, share: 1.0 })
}

/// The loss of `x` (rows, C) under `weight` (V, C), and the gradients of `x` and `weight` that are wanted.
fn loss_and_gradients(
    factors: Factors,
    x: &[f32],
    weight: &[f32],
    targets: &[u32],
    wanted: [bool; 2],
) -> (f32, [Option<Vec<f32>>; 2]) {
    let rows = targets.len();
    let c = x.len() / rows;
    let v = weight.len() / c;
    let factor = 1.0 / rows as f32;
    let weight = Matrix::new(weight, v, c);
    let mut d_x = wanted[0].then(|| Vec::with_capacity(x.len())); // (rows, C)
    let mut d_weight = None::<Vec<f32>>; // (V, C)
    let mut sum = 0.0;
    for (x, targets) in x.chunks(ROWS * c).zip(targets.chunks(ROWS)) {
        let count = targets.len();
        let x = Matrix::new(x, count, c);
        let mut logits = factors.product(x, weight.t()); // (count, V)
        let log_sums = log_sums(&logits, v);
        sum += losses(&logits, targets, &log_sums).sum::<f64>();
        if wanted == [false; 2] {
            continue;
        }
        to_gradients(&mut logits, targets, &log_sums, factor);
        let d_logits = Matrix::new(&logits, count, v);
        if let Some(d_x) = &mut d_x {
            d_x.extend(factors.product(d_logits, weight));
        }
        if wanted[1] {
            match &mut d_weight {
                Some(d_weight) => factors.add_product(d_weight, d_logits.t(), x),
                None => d_weight = Some(factors.product(d_logits.t(), x)),
            }
        }
    }
    #[allow(clippy::cast_possible_truncation)] // the loss of f32 logits
    let loss = (sum / rows as f64) as f32;
    (loss, [d_x, d_weight])
}

/// A loss already computed, with the gradients of x and weight that are wanted.
struct ComputedLoss {
    /// f32, a scalar where x is.
    loss: Tensor,
    gradients: [Option<Tensor>; 2],
    /// The factor that `gradients` still lack.
    share: f64,
}

impl CustomOp2 for ComputedLoss {
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
                Some(t) if as_they_are => Ok(Some(t.to_dtype(of.dtype())?)),
                Some(t) => Ok(Some((t * factor)?.to_dtype(of.dtype())?)),
                None => Ok(None),
            }
        };
        let [x, weight] = &self.gradients;
        Ok((scaled(x, of_x)?, scaled(weight, of_weight)?))
    }
}

/// The bytes of a chunk's logits: enough for products at full speed, and small beside a GPU's memory.
const GPU_BYTES: usize = 256 << 20;

/// The most rows of a chunk, so that its sums stay far below the largest f16.
const MOST_GPU_ROWS: usize = 4096;

/// The mean loss of `x` (rows, C) under `weight` (V, C), a scalar in f32, and those gradients of the *sum* of the losses,
/// of `x` and of `weight`, that are `wanted`. `of_rows` returns the losses (rows) of logits (rows, V) in f32 and, if told to, turns the logits into the
/// gradients of their sum, in place.
fn in_chunks(
    x: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    wanted: [bool; 2],
    of_rows: impl Fn(&Tensor, &Tensor, bool) -> Result<Tensor>,
) -> Result<(Tensor, [Option<Tensor>; 2])> {
    let rows = x.dim(0)?;
    let v = weight.dim(0)?;
    let together = (GPU_BYTES / (v * x.dtype().size_in_bytes()).max(1)).clamp(1, rows.min(MOST_GPU_ROWS));
    in_chunks_of(together, [x, weight, targets], wanted, of_rows)
}

fn in_chunks_of(
    together: usize,
    [x, weight, targets]: [&Tensor; 3],
    wanted: [bool; 2],
    of_rows: impl Fn(&Tensor, &Tensor, bool) -> Result<Tensor>,
) -> Result<(Tensor, [Option<Tensor>; 2])> {
    let rows = x.dim(0)?;
    let mut losses = vec![];
    let mut d_x = vec![];
    let mut d_weight = None::<Tensor>;
    for first in (0..rows).step_by(together) {
        let count = together.min(rows - first);
        let x = x.narrow(0, first, count)?; // (count, C)
        let logits = x.matmul(&weight.t()?)?; // (count, V)
        losses.push(of_rows(&logits, &targets.narrow(0, first, count)?, wanted != [false; 2])?);
        if wanted[0] {
            d_x.push(logits.matmul(weight)?);
        }
        if wanted[1] {
            // Chunks add up in f32: their sum in a half would lose digits with each of them. Within a chunk, f16 has
            // room for sums of 4096 numbers up to 250.
            let (x, scale) = if x.dtype() == DType::F16 { ((x / 16.0)?, 16.0) } else { (x, 1.0) };
            let part = (logits.t()?.matmul(&x)?.to_dtype(DType::F32)? * scale)?;
            d_weight = Some(d_weight.map_or_else(|| Ok(part.clone()), |sum| sum + &part)?);
        }
    }
    let d_x = wanted[0].then(|| Tensor::cat(&d_x, 0)).transpose()?;
    Ok((Tensor::cat(&losses, 0)?.mean_all()?, [d_x, d_weight]))
}

/// The mean cross-entropy in nats of predicting `targets` with the logits `x·W`, and its gradient in `x`, which tracks one.
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
    let transposed = weight.transposed(0..v); // (V, C)
    let factor = 1.0 / rows as f32;
    let mut d_x: Vec<f32> = Vec::with_capacity(rows * c);
    let mut sum = 0.0;
    for (first, targets) in (0..rows).step_by(ROWS).zip(targets.chunks(ROWS)) {
        let count = targets.len();
        let part = inputs.narrow(0, first, count)?;
        let (storage, layout) = part.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            candle_core::bail!("cross-entropy: x is on another device")
        };
        let mut logits =
            in_f32s(weight.product(CpuInput { storage, layout }, 0..v, FusedEpilogue::default())?)?; // (count, V)
        let log_sums = log_sums(&logits, v);
        sum += losses(&logits, targets, &log_sums).sum::<f64>();
        to_gradients(&mut logits, targets, &log_sums, factor);
        let layout = Layout::contiguous((count, v));
        let d_logits = CpuInput { storage: &CpuStorage::F32(logits), layout: &layout };
        d_x.extend(in_f32s(transposed.product(d_logits, 0..c, FusedEpilogue::default())?)?);
    }
    #[allow(clippy::cast_possible_truncation)] // the loss of f32 logits
    let loss = (sum / rows as f64) as f32;
    let gradient = Tensor::from_vec(d_x, (rows, c), &Device::Cpu)?;
    x.apply_op1(OnCpu(Known { loss, gradient }))
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

impl CpuOp<1> for Known {
    const NAME: &'static str = "frozen-cross-entropy";

    fn forward(&self, [_]: [CpuInput; 1]) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![self.loss]), Shape::from(())))
    }

    fn backward(&self, [_]: [&Tensor; 1], _: &Tensor, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let factor = f64::from(grad.to_scalar::<f32>()?);
        // Saves a copy when the loss itself is differentiated.
        if factor.to_bits() == 1f64.to_bits() {
            return Ok([Some(self.gradient.clone())]);
        }
        Ok([Some((&self.gradient * factor)?)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::dispatch::Implementation;
    use crate::cpu::test_numbers::{error, numbers};
    use candle_core::{D, Var};

    fn loss(x: &Tensor, weight: &Tensor, targets: &Tensor) -> Result<Tensor> {
        linear_cross_entropy(x, weight, targets, Dispatch::of(Implementation::Auto, x))
    }

    #[test]
    #[allow(clippy::cast_possible_truncation)] // 517
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
                let error = error(got, expected)?;
                assert!(error <= 3e-6, "{rows} {v} {c}: {error}");
            }
            // If one of the two is a constant, the other gets the same gradient, and nothing else gets one.
            let var = Var::from_tensor(&x)?;
            let constant = Var::from_tensor(&weight)?;
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

    /// In plain operations, with the logits replaced in place as a kernel would.
    fn of_rows(logits: &Tensor, targets: &Tensor, gradients: bool) -> Result<Tensor> {
        let log_weights = candle_nn::ops::log_softmax(logits, D::Minus1)?;
        let losses = log_weights.gather(&targets.unsqueeze(1)?, 1)?.neg()?.flatten_all()?;
        if gradients {
            let ones = Tensor::ones((targets.dim(0)?, 1), logits.dtype(), logits.device())?;
            let onehot = logits.zeros_like()?.scatter_add(&targets.unsqueeze(1)?, &ones, 1)?;
            logits.slice_set(&(log_weights.exp()? - onehot)?, 0, 0)?;
        }
        Ok(losses)
    }

    /// The gradient of the weight is a sum of products that an f16 does not hold.
    #[test]
    fn sums_beyond_the_largest_f16_are_kept_in_f32() -> Result<()> {
        let ones = |logits: &Tensor, _: &Tensor, _: bool| {
            logits.slice_set(&logits.ones_like()?, 0, 0)?;
            Tensor::zeros(logits.dim(0)?, DType::F32, &Device::Cpu)
        };
        for (dtype, number) in [(DType::F16, 6000f32), (DType::F32, 6000.)] {
            let x = Tensor::full(number, (32, 1), &Device::Cpu)?.to_dtype(dtype)?;
            let weight = Tensor::zeros((1, 1), dtype, &Device::Cpu)?;
            let targets = Tensor::zeros(32, DType::U32, &Device::Cpu)?;
            let (_, [d_x, d_weight]) = in_chunks_of(16, [&x, &weight, &targets], [false, true], ones)?;
            assert!(d_x.is_none());
            let sum = d_weight.expect("it was asked for").flatten_all()?.to_vec1::<f32>()?;
            // Without instructions for f16, `gemm` rounds each of 16 sums to it.
            let error = (sum[0] / (32. * number) - 1.).abs();
            assert!(error <= if dtype == DType::F16 { 16. / 2048. } else { 0. }, "{dtype:?}: {sum:?}");
        }
        Ok(())
    }

    #[test]
    fn chunks_add_up_to_the_whole() -> Result<()> {
        let (x, weight) =
            (Var::from_tensor(&numbers((11, 6), 1)?)?, Var::from_tensor(&numbers((9, 6), 500)?)?);
        let targets = Tensor::from_iter((0..11u32).map(|i| i * 4 % 9), &Device::Cpu)?;
        let whole = linear_cross_entropy(&x, &weight, &targets, Dispatch::of(Implementation::Auto, &x))?;
        let gradients = whole.backward()?;
        let close = |a: &Tensor, b: &Tensor| -> Result<()> {
            let error = (a - b)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
            assert!(error < 1e-6, "{error}");
            Ok(())
        };
        let plain_x = x.as_detached_tensor();
        let plain_weight = weight.as_detached_tensor();
        let inputs = [&plain_x, &plain_weight, &targets];
        for together in [1, 4, 11] {
            for wanted in [[true, true], [true, false], [false, true], [false, false]] {
                let (loss, [d_x, d_weight]) = in_chunks_of(together, inputs, wanted, of_rows)?;
                close(&loss, &whole)?;
                assert_eq!([d_x.is_some(), d_weight.is_some()], wanted);
                for (found, var) in [(d_x, &x), (d_weight, &weight)] {
                    if let Some(found) = found {
                        close(&(found / 11.0)?, gradients.get(var).expect("a gradient"))?;
                    }
                }
            }
        }
        Ok(())
    }
}
