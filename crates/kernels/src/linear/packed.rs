//! A weight that does not change, packed once for the matrix product.

use super::shapes::{check_residual, flatten};
use super::weight::in_f32;
use crate::dispatch::cpu_product;
use crate::epilogue::Epilogue;
use crate::product::panels::{PANEL, STRIP, Stored};
use crate::product::{Finish, Panels, append_product};
use crate::vector::contiguous;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, DType, Device, Layout, Result, Shape, Storage, Tensor, WithDType,
};
use half::{bf16, f16};
use rayon::prelude::*;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The weight (in, out) of a linear layer on the CPU, in f32, f16 or bf16, laid out for our matrix product. It takes the
/// memory of the plain tensor, which you can drop. Halves stay halves in memory, and sums are in
/// f32. Clones share the memory.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::{Epilogue, PackedWeight};
///
/// # fn main() -> candle_core::Result<()> {
/// let weight = Tensor::new(&[[1f32, 0., 3.], [0., 1., 4.]], &Device::Cpu)?; // (in, out)
/// let packed = PackedWeight::new(&weight)?;
/// let bias = Tensor::new(&[0f32, 0., 0.5], &Device::Cpu)?;
/// let x = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let y = packed.forward(&x, Some(&bias), Epilogue::None)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1., 2., 11.5]]);
/// assert_eq!(packed.to_tensor()?.to_vec2::<f32>()?, weight.to_vec2::<f32>()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PackedWeight {
    packed: Arc<Packed>,
    id: u64,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

enum Packed {
    F32(Panels<f32>),
    F16(Panels<f16>),
    BF16(Panels<bf16>),
}

/// Runs `$body` with the panels, of any dtype.
macro_rules! with_panels {
    ($packed:expr, $panels:ident => $body:expr) => {
        match &*$packed.packed {
            Packed::F32($panels) => $body,
            Packed::F16($panels) => $body,
            Packed::BF16($panels) => $body,
        }
    };
}

impl PackedWeight {
    /// Whether a layer with these tensors, its weight first, can use a packed weight: they are f32, f16 or bf16 on the CPU,
    /// take up memory of their own, and no gradient is tracked for them. Builds with a vendor's matrix product, MKL's or
    /// Accelerate's, use that.
    #[must_use]
    pub fn suits(tensors: &[&Tensor]) -> bool {
        let dense =
            |t: &Tensor| t.elem_count() > 0 && (t.is_contiguous() || t.t().is_ok_and(|t| t.is_contiguous()));
        cpu_product(tensors) && tensors.iter().all(|t| !t.track_op() && dense(t))
    }

    /// Packs a copy of `weight` on all threads: later changes of the tensor do not reach it. A transposed view is read in
    /// place.
    ///
    /// # Shapes
    /// `weight` (in, out)
    ///
    /// # Errors
    /// When the weight has another rank, dtype or device, or no elements, or a gradient is tracked for it.
    pub fn new(weight: &Tensor) -> Result<Self> {
        if weight.track_op() {
            candle_core::bail!("packed weight: it would get no gradient; detach it, or keep it plain")
        }
        let (storage, layout) = weight.storage_and_layout();
        let shape = layout.shape().dims2()?;
        let Storage::Cpu(storage) = &*storage else {
            candle_core::bail!(
                "packed weight: expected a tensor on the CPU, got {layout:?} on another device"
            )
        };
        if shape.0 * shape.1 == 0 {
            candle_core::bail!("packed weight: {:?} has no elements", weight.dims())
        }
        let strides = (layout.stride()[0], layout.stride()[1]);
        let start = layout.start_offset();
        let packed = match storage {
            CpuStorage::F32(data) => Packed::F32(Panels::pack(&data[start..], shape, strides)),
            CpuStorage::F16(data) => Packed::F16(Panels::pack(&data[start..], shape, strides)),
            CpuStorage::BF16(data) => Packed::BF16(Panels::pack(&data[start..], shape, strides)),
            _ => candle_core::bail!("packed weight: expected f32, f16 or bf16, got {:?}", weight.dtype()),
        };
        Ok(Self { packed: Arc::new(packed), id: NEXT_ID.fetch_add(1, Ordering::Relaxed) })
    }

    /// (in, out)
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        with_panels!(self, panels => (panels.depth(), panels.width()))
    }

    /// The dtype of the weight, and of what it multiplies.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match &*self.packed {
            Packed::F32(_) => DType::F32,
            Packed::F16(_) => DType::F16,
            Packed::BF16(_) => DType::BF16,
        }
    }

    /// What tells this weight from every other of the process: clones have the same id.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// `x·W + bias`, then `epilogue`; differentiable in `x`, in `bias` and in a residual.
    ///
    /// # Shapes
    /// `x` (.., in), `bias` (out), a residual (.., out) -> (.., out)
    ///
    /// # Errors
    /// When a shape or a dtype does not fit.
    pub fn forward(&self, x: &Tensor, bias: Option<&Tensor>, epilogue: Epilogue) -> Result<Tensor> {
        self.run(x, bias, epilogue, 0..self.shape().1)
    }

    /// Some columns of `x·W + bias`; differentiable, as above.
    ///
    /// # Shapes
    /// `x` (.., in), `bias` (out) -> (.., `columns.len()`)
    ///
    /// # Errors
    /// When a shape or a dtype does not fit, or the columns are not below `out`.
    pub fn forward_columns(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        columns: Range<usize>,
    ) -> Result<Tensor> {
        let n_out = self.shape().1;
        if columns.is_empty() || columns.end > n_out {
            candle_core::bail!("packed weight: columns {columns:?} of {n_out}")
        }
        // The product starts at a whole strip.
        let first = columns.start / (STRIP * PANEL) * (STRIP * PANEL);
        let bias = bias.map(|bias| bias.narrow(0, first, columns.end - first)).transpose()?;
        let y = self.run(x, bias.as_ref(), Epilogue::None, first..columns.end)?;
        if first == columns.start {
            Ok(y)
        } else {
            y.narrow(y.rank() - 1, columns.start - first, columns.len())
        }
    }

    /// Columns of W, one for each id: the rows of the table if W is an embedding's transpose.
    ///
    /// # Shapes
    /// `ids` (n), u32 -> (n, in)
    ///
    /// # Errors
    /// When an id is not below `out`.
    pub fn columns(&self, ids: &Tensor) -> Result<Tensor> {
        let (n_in, n_out) = self.shape();
        let ids = ids.to_vec1::<u32>()?;
        if let Some(id) = ids.iter().find(|id| **id as usize >= n_out) {
            candle_core::bail!("packed weight: column {id} of {n_out}")
        }
        with_panels!(self, panels => table(panels, ids.len(), n_in, |i, out| panels.column(ids[i] as usize, out)))
    }

    /// The plain weight, (in, out): a copy.
    ///
    /// # Errors
    /// When Candle cannot make the tensor.
    pub fn to_tensor(&self) -> Result<Tensor> {
        let (n_in, n_out) = self.shape();
        with_panels!(self, panels => table(panels, n_in, n_out, |i, out| panels.row(i, 0, out)))
    }

    /// The transpose of the plain weight, (out, in): a copy.
    ///
    /// # Errors
    /// When Candle cannot make the tensor.
    pub fn to_transposed(&self) -> Result<Tensor> {
        let (n_in, n_out) = self.shape();
        with_panels!(self, panels => table(panels, n_out, n_in, |i, out| panels.column(i, out)))
    }

    /// The panels of the transpose of W in f32.
    pub(crate) fn transposed_panels(&self) -> Result<Panels<f32>> {
        self.panels().map(|panels| panels.transposed(0..panels.width()))
    }

    /// `x·W` in f32, and what `finish` adds: (rows, in) -> (rows, out)
    pub(super) fn product_of(&self, x: &[f32], finish: Finish<f32>) -> Result<Vec<f32>> {
        let (panels, mut out) = (self.panels()?, vec![]);
        append_product(&mut out, x, panels, 0..panels.width(), finish);
        Ok(out)
    }

    /// The panels of W in f32.
    fn panels(&self) -> Result<&Panels<f32>> {
        match &*self.packed {
            Packed::F32(panels) => Ok(panels),
            _ => candle_core::bail!("packed weight: expected one in f32, got {:?}", self.dtype()),
        }
    }

    fn run(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        epilogue: Epilogue,
        columns: Range<usize>,
    ) -> Result<Tensor> {
        let (n_in, n_out) = (self.shape().0, columns.len());
        if let Some(bias) = bias.filter(|bias| bias.dims() != [n_out]) {
            candle_core::bail!("linear: {n_out} outputs need a bias of [{n_out}], got {:?}", bias.dims())
        }
        let (flat, shape) = flatten(x, n_in, n_out)?;
        check_residual(epilogue, &shape)?;
        let dtype = self.dtype();
        if let Some(other) =
            [Some(x), bias, epilogue.residual()].into_iter().flatten().find(|t| t.dtype() != dtype)
        {
            candle_core::bail!("linear: the weight is {dtype:?}, which does not fit {:?}", other.dtype())
        }
        let tracked = |tensor: Option<&Tensor>| tensor.is_some_and(Tensor::track_op);
        let mut operation =
            Product { weight: self.clone(), columns, bias: None, residual: None, gelu: false };
        if tracked(Some(x)) || tracked(bias) || tracked(epilogue.residual()) {
            let later = bias.filter(|bias| bias.track_op());
            operation.bias = bias.filter(|bias| !bias.track_op()).cloned();
            // The sum with a residual is part of the product where that is all that follows.
            if let (Epilogue::Residual(residual), None) = (epilogue, later) {
                let residual = residual.contiguous()?.reshape((flat.dim(0)?, n_out))?;
                return flat.apply_op2(&residual, ProductOnto(operation))?.reshape(shape);
            }
            let y = flat.apply_op1(operation)?.reshape(shape)?;
            let y = later.map_or_else(|| Ok(y.clone()), |bias| y.broadcast_add(bias))?;
            return epilogue.apply(y);
        }
        operation.bias = bias.cloned();
        match epilogue {
            Epilogue::None => {}
            Epilogue::Gelu => operation.gelu = true,
            Epilogue::Residual(residual) => operation.residual = Some(residual.contiguous()?),
        }
        flat.apply_op1_no_bwd(&operation)?.reshape(shape)
    }
}

impl fmt::Debug for PackedWeight {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (n_in, n_out) = self.shape();
        write!(f, "PackedWeight[{n_in}, {n_out}; {:?}]", self.dtype())
    }
}

/// A tensor (rows, width) whose i-th row `fill` writes, on all threads. The panels only give the dtype.
fn table<E: Stored + WithDType>(
    _: &Panels<E>,
    rows: usize,
    width: usize,
    fill: impl Fn(usize, &mut [E]) + Sync,
) -> Result<Tensor> {
    let mut data = vec![E::from_f32(0.0); rows * width];
    data.par_chunks_mut(width).enumerate().for_each(|(i, out)| fill(i, out));
    Tensor::from_vec(data, (rows, width), &Device::Cpu)
}

/// `x·W + bias`, then what else is wanted. Only the product itself has a backward pass.
struct Product {
    weight: PackedWeight,
    columns: Range<usize>,
    bias: Option<Tensor>,
    residual: Option<Tensor>,
    gelu: bool,
}

impl Product {
    fn compute<E: Stored + WithDType>(
        &self,
        x: &[E],
        panels: &Panels<E>,
        residual: Option<&[E]>,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = (x.len() / panels.depth(), self.columns.len());
        let bias = self.bias.as_ref().map(Tensor::to_vec1::<E>).transpose()?;
        let bias = bias.as_deref().map(in_f32);
        let finish = Finish { bias: bias.as_deref(), residual, gelu: self.gelu, onto: false };
        let mut out = vec![];
        append_product(&mut out, x, panels, self.columns.clone(), finish);
        Ok((E::to_cpu_storage_owned(out), Shape::from((rows, width))))
    }
}

impl Product {
    fn forward(
        &self,
        (x, layout): (&CpuStorage, &Layout),
        residual: Option<(&CpuStorage, &Layout)>,
    ) -> Result<(CpuStorage, Shape)> {
        macro_rules! compute {
            ($panels:ident) => {{
                let residual = residual.map(|(storage, layout)| contiguous(storage, layout)).transpose()?;
                self.compute(contiguous(x, layout)?, $panels, residual)
            }};
        }
        with_panels!(self.weight, panels => compute!(panels))
    }

    /// `grad·Wᵀ`, (rows, in), the gradient of `x`.
    fn gradient(&self, grad: &Tensor) -> Result<Tensor> {
        with_panels!(self.weight, panels => gradient_of_rows(grad, &panels.transposed(self.columns.clone())))
    }
}

impl CustomOp1 for Product {
    fn name(&self) -> &'static str {
        "packed-linear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let residual = self.residual.as_ref().map(Tensor::storage_and_layout);
        match &residual {
            None => self.forward((x, layout), None),
            Some((storage, of_residual)) => match &**storage {
                Storage::Cpu(storage) => self.forward((x, layout), Some((storage, of_residual))),
                _ => candle_core::bail!("linear: the residual is on another device"),
            },
        }
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        self.gradient(grad).map(Some)
    }
}

/// [`Product`] plus a residual, which gets a gradient, too.
struct ProductOnto(Product);

impl CustomOp2 for ProductOnto {
    fn name(&self) -> &'static str {
        "packed-linear-onto"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        residual: &CpuStorage,
        of_residual: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.0.forward((x, of_x), Some((residual, of_residual)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        residual: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let of_x = x.track_op().then(|| self.0.gradient(grad)).transpose()?;
        Ok((of_x, residual.track_op().then(|| grad.clone())))
    }
}

/// `grad·W`, (rows, width), where W (depth, width) is packed, without a graph.
pub(crate) fn gradient_of_rows<E: Stored + WithDType>(grad: &Tensor, panels: &Panels<E>) -> Result<Tensor> {
    let grad = grad.contiguous()?;
    let (rows, depth) = grad.dims2()?;
    let (storage, layout) = grad.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        candle_core::bail!("linear: the gradient is on another device")
    };
    let data = contiguous::<E>(storage, layout)?;
    assert_eq!(depth, panels.depth(), "the gradient has another width than the layer");
    let mut out = vec![];
    let finish = Finish { bias: None, residual: None, gelu: false, onto: false };
    append_product(&mut out, data, panels, 0..panels.width(), finish);
    Tensor::from_vec(out, (rows, panels.width()), &Device::Cpu)
}
