//! `x·W + b + u·Bᵀ` in one operation, with a W that does not change: an adapter's update on top of its layer.
//!
//! As operations of their own, the update and the sum would each leave a tensor of the layer's outputs in the graph until the
//! backward pass, which needs neither.

use super::dense::matmul;
use super::packed::{PackedWeight, gradient_of_rows};
use super::shapes::flatten;
use crate::product::{Finish, Matrix, Panels, multiply};
use crate::quantized::QuantizedWeight;
use crate::vector::contiguous;
use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor};
use std::sync::Arc;

/// What a frozen weight of any kind does in this operation.
trait Frozen: Send + Sync {
    /// `x·W`, and what `finish` adds: (rows, in) -> (rows, out)
    fn product(&self, x: &[f32], finish: Finish<f32>) -> Result<Vec<f32>>;

    /// The panels of Wᵀ, (out, in).
    fn transposed(&self) -> Result<Panels<f32>>;
}

impl Frozen for PackedWeight {
    fn product(&self, x: &[f32], finish: Finish<f32>) -> Result<Vec<f32>> {
        self.product_of(x, finish)
    }

    fn transposed(&self) -> Result<Panels<f32>> {
        self.transposed_panels()
    }
}

impl Frozen for QuantizedWeight {
    fn product(&self, x: &[f32], finish: Finish<f32>) -> Result<Vec<f32>> {
        Ok(self.product_of(x, finish))
    }

    fn transposed(&self) -> Result<Panels<f32>> {
        Ok(self.transposed_panels(0..self.shape().1))
    }
}

impl PackedWeight {
    /// `x·W + bias + u·Bᵀ`, where W is in f32; differentiable in `x`, `u` and `b`.
    ///
    /// # Shapes
    /// `x` (.., in), `bias` (out), `u` (.., r), `b` (out, r) -> (.., out)
    ///
    /// # Errors
    /// When a shape or a dtype does not fit, or a gradient is tracked for the bias.
    pub fn forward_low_rank(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        u: &Tensor,
        b: &Tensor,
    ) -> Result<Tensor> {
        run(Arc::new(self.clone()), self.shape(), (x, bias), (u, b))
    }
}

impl QuantizedWeight {
    /// `x·W + bias + u·Bᵀ`; differentiable in `x`, `u` and `b`.
    ///
    /// # Shapes
    /// `x` (.., in), `bias` (out), `u` (.., r), `b` (out, r) -> (.., out)
    ///
    /// # Errors
    /// When a shape or a dtype does not fit, or a gradient is tracked for the bias.
    pub fn forward_low_rank(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        u: &Tensor,
        b: &Tensor,
    ) -> Result<Tensor> {
        run(Arc::new(self.clone()), self.shape(), (x, bias), (u, b))
    }
}

fn run(
    weight: Arc<dyn Frozen>,
    (n_in, n_out): (usize, usize),
    (x, bias): (&Tensor, Option<&Tensor>),
    (u, b): (&Tensor, &Tensor),
) -> Result<Tensor> {
    let rank = b.dims2()?.1;
    let (x, shape) = flatten(x, n_in, n_out)?;
    let (u, _) = flatten(u, rank, n_out)?;
    let others = [Some(&x), bias, Some(&u), Some(b)];
    let fits = |t: &&Tensor| t.dtype() == DType::F32 && t.device().is_cpu();
    if let Some(other) = others.into_iter().flatten().find(|t| !fits(t)) {
        candle_core::bail!(
            "low rank: expected f32 on the CPU, got {:?} on {:?}",
            other.dtype(),
            other.device()
        )
    }
    if b.dims() != [n_out, rank] || u.dim(0)? != x.dim(0)? {
        candle_core::bail!(
            "low rank: u {:?} and B {:?} do not fit {:?} and {n_out} outputs",
            u.dims(),
            b.dims(),
            x.dims()
        )
    }
    if bias.is_some_and(Tensor::track_op) {
        candle_core::bail!("low rank: the bias would get no gradient")
    }
    let operation = LowRank { weight, bias: bias.cloned() };
    x.contiguous()?.apply_op3(&u.contiguous()?, &b.contiguous()?, operation)?.reshape(shape)
}

struct LowRank {
    weight: Arc<dyn Frozen>,
    bias: Option<Tensor>,
}

impl CustomOp3 for LowRank {
    fn name(&self) -> &'static str {
        "low-rank"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        u: &CpuStorage,
        of_u: &Layout,
        b: &CpuStorage,
        of_b: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, u, b) =
            (contiguous::<f32>(x, of_x)?, contiguous::<f32>(u, of_u)?, contiguous::<f32>(b, of_b)?);
        let (rows, (n_out, rank)) = (of_u.shape().dims2()?.0, of_b.shape().dims2()?);
        let mut added = vec![0f32; rows * n_out];
        multiply(&mut added, false, (rows, rank, n_out), Matrix::rows(u, rank), Matrix::rows(b, rank).t());
        let bias = self.bias.as_ref().map(Tensor::to_vec1::<f32>).transpose()?;
        let finish = Finish { bias: bias.as_deref(), residual: Some(&added), gelu: false, onto: false };
        let y = self.weight.product(x, finish)?;
        Ok((CpuStorage::F32(y), Shape::from((rows, n_out))))
    }

    fn bwd(
        &self,
        x: &Tensor,
        u: &Tensor,
        b: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let grad = grad.detach().contiguous()?;
        let of_x = x.track_op().then(|| gradient_of_rows(&grad, &self.weight.transposed()?)).transpose()?;
        let of_u = matmul(&grad, &b.detach())?;
        let of_b = matmul(&grad.t()?, &u.detach())?;
        Ok((of_x, Some(of_u), Some(of_b)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Epilogue;
    use crate::quantized::BlockFormat;
    use crate::test_numbers::numbers;
    use candle_core::Var;

    /// Value and gradients of the operation and of its parts.
    #[test]
    fn it_is_the_sum_of_its_parts_forward_and_backward() -> Result<()> {
        for (rows, n_in, n_out, rank) in [(1, 32, 5, 1), (9, 64, 70, 3), (40, 32, 130, 8)] {
            let weight = numbers((n_in, n_out), 1)?;
            let bias = numbers((1, n_out), 2)?.squeeze(0)?;
            let packed = PackedWeight::new(&weight)?;
            let quantized = QuantizedWeight::quantize(&weight, BlockFormat::Q8_0)?;
            let vars = [(rows, n_in), (rows, rank), (n_out, rank)];
            let [x, u, b] = vars.map(|shape| Var::from_tensor(&numbers(shape, 3)?));
            let (x, u, b) = (x?, u?, b?);
            let factors = numbers((rows, n_out), 7)?; // so that outputs weigh differently
            for quantizes in [false, true] {
                let added = u.matmul(&b.t()?)?;
                let (got, expected) = if quantizes {
                    let base = quantized.forward(&x, Some(&bias), Epilogue::Residual(&added))?;
                    (quantized.forward_low_rank(&x, Some(&bias), &u, &b)?, base)
                } else {
                    let base = x.matmul(&weight)?.broadcast_add(&bias)?;
                    (packed.forward_low_rank(&x, Some(&bias), &u, &b)?, (base + added)?)
                };
                close(&got, &expected)?;
                let [got, expected] = [got, expected].map(|y| (y * &factors)?.sum_all()?.backward());
                let (got, expected) = (got?, expected?);
                for var in [&x, &u, &b] {
                    close(got.get(var).expect("a gradient"), expected.get(var).expect("a gradient"))?;
                }
            }
        }
        let packed = PackedWeight::new(&numbers((4, 6), 1)?)?;
        let (x, u, b) = (numbers((2, 4), 1)?, numbers((2, 3), 1)?, numbers((5, 3), 1)?);
        assert!(packed.forward_low_rank(&x, None, &u, &b).is_err(), "B has 5 rows for 6 outputs");
        Ok(())
    }

    fn close(got: &Tensor, expected: &Tensor) -> Result<()> {
        assert_eq!(got.dims(), expected.dims());
        let largest = expected.abs()?.max_all()?.to_scalar::<f32>()?;
        let error = (got - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(error <= 1e-5 * largest, "{error} of {largest}");
        Ok(())
    }
}
