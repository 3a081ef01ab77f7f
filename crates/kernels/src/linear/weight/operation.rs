//! The product with a frozen weight as a Candle operation: forward and backward, with bias and epilogue in the same pass.

use super::frozen::{Frozen, FusedEpilogue, WeightDType};
use crate::cpu::cpu_op::{CpuInput, CpuOp, OnCpu};
use crate::cpu::dispatch::Factors;
use crate::cpu::explain::{Explained, note, ours, shown};
use crate::linear::plain::matmul;
use crate::linear::product::rows::Matrix;
use crate::linear::{check_join, flatten};
use crate::pointwise::activation::Activation;
use crate::pointwise::epilogue::{Epilogue, ResidualOrGate};
use candle_core::{CpuStorage, DType, Device, Layout, Result, Shape, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// `activation(x·W[:, columns] + bias)`, then what joins it, each part only if it is there.
///
/// One operation for all that a layer adds to its product: as an operation on `x` alone, on `x` and a residual, or on `x` and
/// the factors u and B of a low-rank update u·Bᵀ. Those inputs get gradients. The bias and what is held here do not, and
/// activations and gates are only for passes without a gradient.
#[derive(Clone)]
pub(super) struct Product {
    pub(super) weight: Arc<dyn Frozen>,
    pub(super) columns: Range<usize>,
    pub(super) bias: Option<Tensor>,
    activation: Option<Activation>,
    join: Option<ResidualOrGate<Tensor>>,
}

impl Product {
    /// `x·W[:, columns] + bias`
    pub(super) fn new(weight: Arc<dyn Frozen>, columns: Range<usize>, bias: Option<&Tensor>) -> Self {
        Self { weight, columns, bias: bias.cloned(), activation: None, join: None }
    }

    /// Runs the product on `x` (.., in), then `epilogue`; differentiable in all tensors: -> (.., `columns.len()`)
    pub(super) fn forward(mut self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        let n_in = self.weight.shape().0;
        let n_out = self.columns.len();
        let (flat, shape) = flatten(x, n_in, n_out)?;
        check_join(epilogue, &shape)?;
        let joined = epilogue.join().map(|join| *join.get());
        self.check(x, joined)?;
        note(|| self.explained(x, epilogue));
        let learns = |tensor: &Tensor| tensor.track_op();
        if learns(x) || self.bias.as_ref().is_some_and(learns) || joined.is_some_and(learns) {
            let bias = self.bias.take_if(|bias| learns(bias));
            // The sum with a residual is part of the product where that is all that follows.
            if let (Epilogue::Residual(residual), None) = (epilogue, &bias) {
                let residual = residual.contiguous()?.reshape((flat.dim(0)?, n_out))?;
                return flat.apply_op2(&residual, OnCpu(self))?.reshape(shape);
            }
            let y = flat.apply_op1(OnCpu(self))?.reshape(shape)?;
            let y = bias.map_or_else(|| Ok(y.clone()), |bias| y.broadcast_add(&bias))?;
            return epilogue.apply(y);
        }
        self.activation = epilogue.activation();
        self.join = epilogue.join().map(|join| join.try_map(Tensor::contiguous)).transpose()?;
        flat.apply_op1_no_bwd(&OnCpu(self))?.reshape(shape)
    }

    /// Adds u·Bᵀ, without a tensor of the outputs in the graph that the backward pass does not need: `x` (.., in), `u` (.., r)
    /// and `b` (out, r), all in f32.
    pub(super) fn forward_low_rank(self, x: &Tensor, u: &Tensor, b: &Tensor) -> Result<Tensor> {
        let ((n_in, n_out), rank) = (self.weight.shape(), b.dims2()?.1);
        let (x, shape) = flatten(x, n_in, n_out)?;
        let (u, _) = flatten(u, rank, n_out)?;
        if b.dims() != [n_out, rank] || u.dim(0)? != x.dim(0)? {
            candle_core::bail!(
                "low rank: u {:?} and B {:?} do not fit {:?} and {n_out} outputs",
                u.dims(),
                b.dims(),
                x.dims()
            )
        }
        self.check(&x, None)?;
        note(|| self.explained(&x, Epilogue::None));
        x.contiguous()?.apply_op3(&u.contiguous()?, &b.contiguous()?, OnCpu(self))?.reshape(shape)
    }

    fn explained(&self, x: &Tensor, epilogue: Epilogue) -> Explained {
        let shape = [self.weight.shape().0, self.columns.len()];
        Explained {
            operation: "linear",
            inputs: format!("{}, W {} {shape:?}{}", shown("x", x), self.weight.dtype(), epilogue.shown()),
            code: ours("packed weight"),
            slower_because: None,
        }
    }

    /// Fails if a tensor is not on the CPU in a dtype that the weight multiplies.
    fn check(&self, x: &Tensor, joined: Option<&Tensor>) -> Result<()> {
        let weight = self.weight.dtype();
        let n_out = self.columns.len();
        if let Some(bias) = self.bias.as_ref().filter(|bias| bias.dims() != [n_out]) {
            candle_core::bail!("linear: {n_out} outputs need a bias of [{n_out}], got {:?}", bias.dims())
        }
        let expected = match weight {
            WeightDType::Plain(dtype) if dtype == x.dtype() => dtype,
            _ => DType::F32,
        };
        let fits = |t: &Tensor| t.dtype() == expected && t.device().is_cpu();
        let tensors = [("x", Some(x)), ("a bias", self.bias.as_ref()), ("a residual or gate", joined)];
        let mut tensors = tensors.into_iter().filter_map(|(name, t)| Some((name, t?)));
        match tensors.find(|(_, t)| !fits(t)) {
            Some((name, other)) => candle_core::bail!(
                "linear: with a weight in {weight}, x and what joins it are {} on the CPU, got {name} in {} on {:?}",
                expected.as_str(),
                other.dtype().as_str(),
                other.device().location()
            ),
            None => Ok(()),
        }
    }

    fn compute(&self, x: CpuInput, join: Option<ResidualOrGate<CpuInput>>) -> Result<(CpuStorage, Shape)> {
        let rows = x.layout.shape().dims2()?.0;
        let bias = self.bias.as_ref().map(|bias| bias.to_dtype(DType::F32)?.to_vec1()).transpose()?;
        let then = FusedEpilogue { bias: bias.as_deref(), activation: self.activation, join };
        let y = self.weight.product(x, self.columns.clone(), then)?;
        Ok((y, Shape::from((rows, self.columns.len()))))
    }

    /// The gradient of `x`, `grad·W[:, columns]ᵀ`: (rows, `columns.len()`) -> (rows, in)
    fn gradient(&self, grad: &Tensor) -> Result<Tensor> {
        let grad = grad.contiguous()?;
        let (storage, layout) = grad.storage_and_layout();
        let rows = grad.dim(0)?;
        let n_in = self.weight.shape().0;
        let transpose = self.weight.transposed(self.columns.clone());
        let y = transpose.product(CpuInput::new(&storage, layout)?, 0..n_in, FusedEpilogue::default())?;
        tensor(y, (rows, n_in))
    }
}

/// A tensor on the CPU.
pub(super) fn tensor(storage: CpuStorage, shape: (usize, usize)) -> Result<Tensor> {
    match storage {
        CpuStorage::F32(data) => Tensor::from_vec(data, shape, &Device::Cpu),
        CpuStorage::F16(data) => Tensor::from_vec(data, shape, &Device::Cpu),
        CpuStorage::BF16(data) => Tensor::from_vec(data, shape, &Device::Cpu),
        _ => candle_core::bail!("linear: expected f32, f16 or bf16"),
    }
}

impl CpuOp<1> for Product {
    const NAME: &'static str = "frozen-linear";

    fn forward(&self, [x]: [CpuInput; 1]) -> Result<(CpuStorage, Shape)> {
        let Some(join) = &self.join else { return self.compute(x, None) };
        let (storage, layout) = join.get().storage_and_layout();
        let input = CpuInput::new(&storage, layout)?;
        self.compute(x, Some(join.clone().map(|_| input)))
    }

    fn backward(&self, [_]: [&Tensor; 1], _: &Tensor, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(self.gradient(grad)?)])
    }
}

/// Plus a residual, (rows, `columns.len()`).
impl CpuOp<2> for Product {
    const NAME: &'static str = "frozen-linear-onto";

    fn forward(&self, [x, residual]: [CpuInput; 2]) -> Result<(CpuStorage, Shape)> {
        self.compute(x, Some(ResidualOrGate::Add(residual)))
    }

    fn backward(
        &self,
        [x, residual]: [&Tensor; 2],
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 2]> {
        let of_x = x.track_op().then(|| self.gradient(grad)).transpose()?;
        Ok([of_x, residual.track_op().then(|| grad.clone())])
    }
}

/// Plus u·Bᵀ with u (rows, r) and B (out, r).
impl CpuOp<3> for Product {
    const NAME: &'static str = "frozen-linear-low-rank";

    fn forward(&self, [x, u, b]: [CpuInput; 3]) -> Result<(CpuStorage, Shape)> {
        let (rows, (n_out, rank)) = (u.shape().dims2()?.0, b.shape().dims2()?);
        let u = u.slice()?;
        let b = b.slice()?;
        let added = Factors::AsStored.product(Matrix::new(u, rows, rank), Matrix::new(b, n_out, rank).t());
        let layout = Layout::contiguous((rows, n_out));
        self.compute(
            x,
            Some(ResidualOrGate::Add(CpuInput { storage: &CpuStorage::F32(added), layout: &layout })),
        )
    }

    fn backward(&self, [x, u, b]: [&Tensor; 3], _: &Tensor, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let grad = grad.detach().contiguous()?;
        let of_x = x.track_op().then(|| self.gradient(&grad)).transpose()?;
        let of_u = u.track_op().then(|| matmul(&grad, &b.detach())).transpose()?;
        let of_b = b.track_op().then(|| matmul(&grad.t()?, &u.detach())).transpose()?;
        Ok([of_x, of_u, of_b])
    }
}
