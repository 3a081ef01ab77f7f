//! [`Weight`], a linear layer's weight: dense, half or quantized.

pub(crate) mod frozen;
mod joined;
pub(crate) mod linear_cross_entropy;
mod operation;
#[cfg(test)]
mod tests;

use self::frozen::{Frozen, WeightDType};
use self::linear_cross_entropy::{frozen_cross_entropy, linear_cross_entropy};
use crate::cpu::dispatch::{Dispatch, Factors, Implementation, cpu_f32, cpu_product};
use crate::cpu::element::accumulator;
use crate::cpu::isa::Isa;
use crate::linear::quantized::format::BlockFormat;
use crate::linear::{linear, linear_transposed};
use crate::pointwise::cross_entropy::cross_entropy;
use crate::pointwise::epilogue::Epilogue;
use candle_core::{D, DType, Device, Result, Tensor};
use operation::Product;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The order of the axes of a stored weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightLayout {
    /// (in, out): GPT-2's `Conv1D`.
    InOut,
    /// (out, in): PyTorch's `Linear`, and a table of embeddings as an output projection.
    OutIn,
}

impl WeightLayout {
    /// The stored shape of a weight with `n_in` inputs and `n_out` outputs, or the other way round.
    #[must_use]
    pub fn shape(self, n_in: usize, n_out: usize) -> (usize, usize) {
        match self {
            Self::InOut => (n_in, n_out),
            Self::OutIn => (n_out, n_in),
        }
    }

    /// A stored weight as (in, out), or the other way round: a view.
    ///
    /// # Errors
    /// When the weight does not have rank 2.
    pub fn in_out(self, weight: &Tensor) -> Result<Tensor> {
        match self {
            Self::InOut => Ok(weight.clone()),
            Self::OutIn => weight.t(),
        }
    }
}

/// The weight (in, out) of a linear layer: a plain tensor, which may change, or frozen.
///
/// A frozen weight is on the CPU, laid out for our matrix product, in f32, f16, bf16 or quantized blocks. It multiplies f32,
/// with sums in f32, and halves in its own dtype; halves that multiply f32 give the same bits as the weight widened to f32, in
/// half the memory. Quantized blocks round their inputs to 8 bits, in blocks of 32 numbers that share a scale; their
/// products have the same bits on every instruction set. No product depends on the number of threads, or on the other rows.
///
/// Clones share the memory.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::{Epilogue, Weight, WeightLayout};
///
/// # fn main() -> candle_core::Result<()> {
/// let weight = Tensor::new(&[[1f32, 0., 3.], [0., 1., 4.]], &Device::Cpu)?; // (in, out)
/// let weight = Weight::new(weight, WeightLayout::InOut)?; // frozen, because it is no variable
/// let bias = Tensor::new(&[0f32, 0., 0.5], &Device::Cpu)?;
/// let x = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let y = weight.forward(&x, Some(&bias), Epilogue::None)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1., 2., 11.5]]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Weight {
    kind: WeightKind,
    layout: WeightLayout,
}

#[derive(Clone)]
enum WeightKind {
    /// The stored tensor, and the code that multiplies by it on a GPU.
    Plain {
        tensor: Tensor,
        implementation: Implementation,
        factors: Factors,
    },
    Frozen(Arc<dyn Frozen>),
}

impl Weight {
    /// Freezes a copy of a stored weight where that is faster: if it is in f32, f16 or bf16 on the CPU, takes up memory of its own,
    /// and tracks no gradient. Other weights stay plain; so do all in builds with the matrix product of MKL or Accelerate.
    ///
    /// # Shapes
    /// `weight` as `layout` says
    ///
    /// # Errors
    /// When the weight has another rank.
    pub fn new(weight: Tensor, layout: WeightLayout) -> Result<Self> {
        let own_memory =
            |t: &Tensor| t.elem_count() > 0 && (t.is_contiguous() || t.t().is_ok_and(|t| t.is_contiguous()));
        if weight.rank() == 2 && cpu_product(&[&weight]) && !weight.track_op() && own_memory(&weight) {
            return Self::pack(&weight, layout);
        }
        Self::plain(weight, layout)
    }

    /// The tensor as it is. A gradient reaches it.
    ///
    /// # Shapes
    /// `weight` as `layout` says
    ///
    /// # Errors
    /// When the weight has another rank.
    pub fn plain(weight: Tensor, layout: WeightLayout) -> Result<Self> {
        weight.dims2()?;
        let kind = WeightKind::Plain {
            tensor: weight,
            implementation: Implementation::Auto,
            factors: Factors::default(),
        };
        Ok(Self { kind, layout })
    }

    /// Freezes a copy of a stored weight in its own dtype, on all threads. A transposed view is read in place.
    ///
    /// # Shapes
    /// `weight` as `layout` says
    ///
    /// # Errors
    /// When the weight has another rank, dtype or device, or no elements, or tracks a gradient.
    pub fn pack(weight: &Tensor, layout: WeightLayout) -> Result<Self> {
        Ok(Self { kind: WeightKind::Frozen(frozen::pack(&layout.in_out(weight)?)?), layout })
    }

    /// Quantizes a stored weight in f32, f16 or bf16, on all threads.
    ///
    /// # Shapes
    /// `weight` as `layout` says, with any strides
    ///
    /// # Errors
    /// When the format's blocks do not divide the inputs, or a number is not finite or beyond f16's largest; when the weight has
    /// another rank or device, or no elements, or tracks a gradient.
    pub fn quantize(weight: &Tensor, layout: WeightLayout, format: BlockFormat) -> Result<Self> {
        Ok(Self { kind: WeightKind::Frozen(frozen::quantize(&layout.in_out(weight)?, format)?), layout })
    }

    /// A weight in blocks of `format` with `n_in` inputs and `n_out` outputs: the blocks of all inputs to the first output, then
    /// those to the next. `read(at, out)` fills `out` with the bytes from byte `at` on; it is called on all threads.
    ///
    /// `layout` says how a checkpoint of plain numbers would store the weight.
    ///
    /// # Errors
    /// When the blocks do not divide the inputs, there are no outputs, or `read` fails.
    pub fn read_blocks(
        format: BlockFormat,
        (n_in, n_out): (usize, usize),
        layout: WeightLayout,
        read: impl Fn(usize, &mut [u8]) -> Result<()> + Sync,
    ) -> Result<Self> {
        Ok(Self { kind: WeightKind::Frozen(frozen::read_blocks(format, n_in, n_out, read)?), layout })
    }

    /// Sets the code that multiplies by a plain weight on a GPU; any other weight stays as it is.
    #[must_use]
    pub fn with_implementation(mut self, implementation: Implementation) -> Self {
        if let WeightKind::Plain { implementation: held, .. } = &mut self.kind {
            *held = implementation;
        }
        self
    }

    /// Rounds the factors of the products with a plain weight to bf16, forward and backward, for training in less time: sums,
    /// results and gradients stay in f32, and so does the weight. A weight stored as (out, in) rounds them in
    /// [`cross_entropy`](Self::cross_entropy) only.
    ///
    /// # Errors
    /// When the weight is frozen, not in f32 or not on the CPU; when the instruction set has no fast products of bf16 matrices
    /// ([`Isa::has_bf16_products`]); and in builds with the matrix product of MKL or Accelerate.
    pub fn with_bf16_products(mut self) -> Result<Self> {
        let isa = Isa::current();
        if !isa.has_bf16_products() {
            candle_core::bail!(
                "products in bf16 need AMX, AVX512-BF16 of an AMD processor, or Arm's bf16; this process runs on {}",
                isa.as_str()
            )
        }
        match &mut self.kind {
            WeightKind::Plain { tensor, factors, .. } if cpu_f32(&[tensor]) && cpu_product(&[tensor]) => {
                *factors = Factors::Bf16;
                Ok(self)
            }
            _ => candle_core::bail!("products in bf16 are for plain weights in f32 on the CPU, got {self:?}"),
        }
    }

    /// (in, out)
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        match &self.kind {
            WeightKind::Frozen(weight) => weight.shape(),
            WeightKind::Plain { tensor: weight, .. } => self.layout.shape(weight.dims()[0], weight.dims()[1]),
        }
    }

    /// The layout in which a checkpoint stores the weight.
    #[must_use]
    pub fn layout(&self) -> WeightLayout {
        self.layout
    }

    /// The number format of the weight.
    #[must_use]
    pub fn dtype(&self) -> WeightDType {
        match &self.kind {
            WeightKind::Frozen(weight) => weight.dtype(),
            WeightKind::Plain { tensor: weight, .. } => WeightDType::Plain(weight.dtype()),
        }
    }

    /// The device that holds the weight.
    #[must_use]
    pub fn device(&self) -> &Device {
        match &self.kind {
            WeightKind::Frozen(_) => &Device::Cpu,
            WeightKind::Plain { tensor: weight, .. } => weight.device(),
        }
    }

    /// Whether an optimizer can change it.
    #[must_use]
    pub fn is_variable(&self) -> bool {
        matches!(&self.kind, WeightKind::Plain { tensor: weight, .. } if weight.is_variable())
    }

    /// Whether it is laid out for our products and cannot change.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        matches!(self.kind, WeightKind::Frozen(_))
    }

    /// Whether it holds blocks of a few bits a number.
    #[must_use]
    pub fn is_quantized(&self) -> bool {
        matches!(self.dtype(), WeightDType::Blocks(_))
    }

    /// Whether it is this plain tensor.
    #[must_use]
    pub fn is_tensor(&self, tensor: &Tensor) -> bool {
        matches!(&self.kind, WeightKind::Plain { tensor: weight, .. } if weight.id() == tensor.id())
    }

    /// Whether the two are one weight.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        match (&self.kind, &other.kind) {
            (WeightKind::Frozen(a), WeightKind::Frozen(b)) => Arc::ptr_eq(a, b),
            (WeightKind::Plain { tensor: a, .. }, WeightKind::Plain { tensor: b, .. }) => a.id() == b.id(),
            _ => false,
        }
    }

    /// `x·W + bias`, then `epilogue`; differentiable in all tensors, with a quantized weight as if `x` were not rounded.
    ///
    /// # Shapes
    /// `x` (.., in), `bias` (out), a residual or gate (.., out) -> (.., out), all in the dtype of `x`
    ///
    /// # Errors
    /// When a shape, a dtype or a device does not fit.
    pub fn forward(&self, x: &Tensor, bias: Option<&Tensor>, epilogue: Epilogue) -> Result<Tensor> {
        match &self.kind {
            WeightKind::Frozen(weight) => {
                Product::new(weight.clone(), 0..self.shape().1, bias).forward(x, epilogue)
            }
            WeightKind::Plain { tensor: weight, implementation, factors } => self.layout.product(
                x,
                weight,
                bias,
                epilogue,
                Dispatch::of(*implementation, x).with_factors(*factors),
            ),
        }
    }

    /// Some columns of `x·W + bias`; differentiable, as above.
    ///
    /// # Shapes
    /// `x` (.., in), `bias` (out) -> (.., `columns.len()`)
    ///
    /// # Errors
    /// When a shape, a dtype or a device does not fit, or the columns are not below `out`.
    pub fn forward_columns(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        columns: Range<usize>,
    ) -> Result<Tensor> {
        let n_out = self.shape().1;
        if columns.is_empty() || columns.end > n_out {
            candle_core::bail!("weight: columns {columns:?} of {n_out}")
        }
        let bias_from = |first| bias.map(|bias| bias.narrow(0, first, columns.end - first)).transpose();
        match &self.kind {
            WeightKind::Frozen(weight) => {
                let first = columns.start / weight.alignment() * weight.alignment();
                let product = Product::new(weight.clone(), first..columns.end, bias_from(first)?.as_ref());
                let y = product.forward(x, Epilogue::None)?;
                y.narrow(D::Minus1, columns.start - first, columns.len())
            }
            WeightKind::Plain { tensor: weight, implementation, factors } => {
                let axis = usize::from(self.layout == WeightLayout::InOut);
                let weight = weight.narrow(axis, columns.start, columns.len())?;
                let bias = bias_from(columns.start)?;
                let dispatch = Dispatch::of(*implementation, x).with_factors(*factors);
                self.layout.product(x, &weight, bias.as_ref(), Epilogue::None, dispatch)
            }
        }
    }

    /// `x·W + bias + u·Bᵀ`: the layer and a low-rank update of it; differentiable in all tensors. With a frozen weight, the
    /// update leaves no tensor of the outputs in the graph.
    ///
    /// # Shapes
    /// `x` (.., in), `bias` (out), `u` (.., r), `b` (out, r) -> (.., out)
    ///
    /// # Errors
    /// When a shape, a dtype or a device does not fit.
    pub fn forward_low_rank(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        u: &Tensor,
        b: &Tensor,
    ) -> Result<Tensor> {
        let learns = [x, u, b].iter().any(|t| t.track_op()) && !bias.is_some_and(Tensor::track_op);
        match &self.kind {
            WeightKind::Frozen(weight) if learns && x.dtype() == DType::F32 => {
                Product::new(weight.clone(), 0..self.shape().1, bias).forward_low_rank(x, u, b)
            }
            _ => self.forward(x, bias, Epilogue::Residual(&linear_transposed(u, b)?)),
        }
    }

    /// The mean cross-entropy in nats of predicting `targets` with the logits `x·W`; differentiable. In f32 on the CPU
    /// (except in builds with `mkl` or `accelerate`), and where our GPU kernels run, only the logits of some rows are in memory at
    /// a time.
    ///
    /// # Shapes
    /// `x` (.., in), `targets`: one integer below `out` for each row of `x` -> scalar
    ///
    /// # Errors
    /// When a shape or a dtype does not fit, or a target is not below `out`.
    pub fn cross_entropy(&self, x: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let plain = |table: &Tensor, dispatch: Dispatch| linear_cross_entropy(x, table, targets, dispatch);
        match &self.kind {
            WeightKind::Plain { tensor: weight, implementation, factors } => {
                let dispatch = Dispatch::of(*implementation, x).with_factors(*factors);
                match self.layout {
                    WeightLayout::OutIn => plain(weight, dispatch),
                    WeightLayout::InOut => plain(&weight.t()?, dispatch),
                }
            }
            // The logits of the parts would all stay in the graph.
            WeightKind::Frozen(weight) if x.track_op() && x.dtype() == DType::F32 => {
                frozen_cross_entropy(x, weight, targets)
            }
            WeightKind::Frozen(weight) if x.track_op() => {
                plain(&out_in(&**weight)?.to_dtype(x.dtype())?, Dispatch::of(Implementation::Auto, x))
            }
            WeightKind::Frozen(_) => self.cross_entropy_in_parts(x, targets),
        }
    }

    /// The mean cross-entropy, from the logits of a few rows at a time.
    fn cross_entropy_in_parts(&self, x: &Tensor, targets: &Tensor) -> Result<Tensor> {
        const ROWS: usize = 256;
        let (x, targets) = (x.reshape(((), x.dim(D::Minus1)?))?, targets.flatten_all()?); // (rows, in), (rows)
        let rows = x.dim(0)?;
        if targets.elem_count() != rows {
            candle_core::bail!(
                "cross-entropy: {rows} rows need as many targets, got {}",
                targets.elem_count()
            )
        }
        let mut sum: Option<Tensor> = None;
        for first in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - first);
            let logits = self.forward(&x.narrow(0, first, count)?, None, Epilogue::None)?; // (count, out)
            let logits = logits.to_dtype(accumulator(logits.dtype()))?;
            let part = cross_entropy(&logits, &targets.narrow(0, first, count)?)?;
            let part = (part * (count as f64 / rows as f64))?;
            sum = Some(sum.map_or_else(|| Ok(part.clone()), |sum| sum + &part)?);
        }
        sum.ok_or_else(|| candle_core::Error::msg("cross-entropy: there are no rows"))
    }

    /// Columns of W, one for each id: the vectors of a table of embeddings.
    ///
    /// # Shapes
    /// `ids` (n), integers -> (n, in), in the weight's own dtype, or f32 if it is quantized
    ///
    /// # Errors
    /// When an id is not below `out`.
    pub fn columns(&self, ids: &Tensor) -> Result<Tensor> {
        let (n_in, n_out) = self.shape();
        match (&self.kind, self.layout) {
            (WeightKind::Plain { tensor: weight, .. }, WeightLayout::OutIn) => {
                weight.contiguous()?.index_select(ids, 0)
            }
            (WeightKind::Plain { tensor: weight, .. }, WeightLayout::InOut) => {
                weight.contiguous()?.index_select(ids, 1)?.t()
            }
            (WeightKind::Frozen(weight), _) => {
                if ids.dtype().is_float() {
                    candle_core::bail!("weight: expected integers as columns, got {:?}", ids.dtype())
                }
                let below = |id: i64| u32::try_from(id).ok().filter(|id| (*id as usize) < n_out);
                let ids = ids.to_dtype(DType::I64)?.to_vec1::<i64>()?.into_iter();
                let ids = ids.map(|id| {
                    let message = || format!("weight: there is no column {id}, only {n_out}");
                    below(id).ok_or_else(|| candle_core::Error::msg(message()))
                });
                let ids = ids.collect::<Result<Vec<u32>>>()?;
                operation::tensor(weight.outputs(&ids), (ids.len(), n_in))
            }
        }
    }

    /// The weight as its checkpoint stores it; a copy if it is frozen, in f32 if it is quantized.
    ///
    /// # Errors
    /// When Candle cannot make the tensor.
    pub fn tensor(&self) -> Result<Tensor> {
        match (&self.kind, self.layout) {
            (WeightKind::Plain { tensor: weight, .. }, _) => Ok(weight.clone()),
            (WeightKind::Frozen(weight), WeightLayout::OutIn) => out_in(&**weight),
            (WeightKind::Frozen(weight), WeightLayout::InOut) => out_in(&**weight)?.t()?.contiguous(),
        }
    }

    /// The weight as (in, out): a view of [`tensor`](Self::tensor).
    ///
    /// # Errors
    /// When Candle cannot make the tensor.
    pub fn in_out(&self) -> Result<Tensor> {
        self.layout.in_out(&self.tensor()?)
    }
}

/// All of a frozen weight, (out, in).
fn out_in(weight: &dyn Frozen) -> Result<Tensor> {
    let (n_in, n_out) = weight.shape();
    let all: Vec<u32> = (0..).take(n_out).collect();
    operation::tensor(weight.outputs(&all), (n_out, n_in))
}

impl WeightLayout {
    /// `x·W + bias`, then `epilogue`, with a plain weight.
    fn product(
        self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        epilogue: Epilogue,
        dispatch: Dispatch,
    ) -> Result<Tensor> {
        match self {
            Self::InOut => linear(x, weight, bias, epilogue, dispatch),
            Self::OutIn => {
                let y = linear_transposed(x, weight)?;
                epilogue.apply(bias.map_or_else(|| Ok(y.clone()), |bias| y.broadcast_add(bias))?)
            }
        }
    }
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (n_in, n_out) = self.shape();
        write!(f, "Weight[{n_in}, {n_out}; {}]", self.dtype())
    }
}
