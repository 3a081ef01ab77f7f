//! Linear layers: `x·W + b` with W stored (in, out), as GPT-2 has it, and `x·Wᵀ` with W stored (out, in),
//! as an output projection that shares the embedding's table has it.
//!
//! On the CPU the bias, and the residual stream where there is one, is what the matrix product
//! starts from, so that no second pass adds it. A few rows (decoding) go through [`few_rows`], which reads
//! each weight once, at the speed of memory. f16 and bf16 are widened on the way and summed in f32, and the
//! result is rounded once. Everything else is Candle's own product.

mod few_rows;

use crate::attention::Implementation;
use crate::columns::column_sums;
use crate::element::{Element, Widen};
use crate::gelu::gelu_in_place;
use crate::gpu::{self, Tail};
use crate::product::{Matrix, multiply};
use crate::vector::{CHUNK, chunked, contiguous};
use candle_core::{CpuStorage, CustomOp2, CustomOp3, D, DType, Layout, Result, Shape, Tensor, WithDType};
use few_rows::FEW_ROWS;
use half::{bf16, f16};
use pulp::Arch;
use rayon::prelude::*;
use std::borrow::Cow;
use std::mem::MaybeUninit;

/// `x·W + b`, differentiable. On a GPU, `on_gpu` says whether our kernels follow Candle's product where nothing is trained;
/// on the CPU it changes nothing.
///
/// # Shapes
/// `x` (.., in), `weight` (in, out), `bias` (out) -> (.., out)
///
/// # Errors
/// When the shapes do not fit each other.
pub fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor, on_gpu: Implementation) -> Result<Tensor> {
    let (flat, shape) = check(x, weight, bias)?;
    if let Some(y) = gpu::linear(on_gpu, &flat, weight, bias, Tail::default())? {
        return y.reshape(shape);
    }
    if !has_kernel(&[x, weight, bias]) || !rows_are_contiguous(weight) {
        return flat.matmul(&weight.contiguous()?)?.broadcast_add(bias)?.reshape(shape);
    }
    flat.apply_op3(weight, &bias.contiguous()?, Linear)?.reshape(shape)
}

/// GELU (tanh form) of `x·W + b`, differentiable; `on_gpu` as for [`linear`].
///
/// # Shapes
/// `x` (.., in), `weight` (in, out), `bias` (out) -> (.., out)
///
/// # Errors
/// When the shapes do not fit each other.
pub fn linear_gelu(x: &Tensor, weight: &Tensor, bias: &Tensor, on_gpu: Implementation) -> Result<Tensor> {
    let (flat, shape) = check(x, weight, bias)?;
    match gpu::linear(on_gpu, &flat, weight, bias, Tail { gelu: true, ..Tail::default() })? {
        Some(y) => y.reshape(shape),
        None => gelu_in_place(linear(x, weight, bias, Implementation::Auto)?),
    }
}

/// `residual + x·W + b`, differentiable; `on_gpu` as for [`linear`].
///
/// # Shapes
/// `residual` (.., out), `x` (.., in), `weight` (in, out), `bias` (out) -> (.., out)
///
/// # Errors
/// When the shapes do not fit each other.
pub fn linear_onto(
    residual: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    on_gpu: Implementation,
) -> Result<Tensor> {
    let (flat, shape) = check(x, weight, bias)?;
    if residual.dims() != shape {
        candle_core::bail!("linear: x·W is {shape:?}, which cannot be added to {:?}", residual.dims())
    }
    if let Some(y) =
        gpu::linear(on_gpu, &flat, weight, bias, Tail { residual: Some(residual), ..Tail::default() })?
    {
        return y.reshape(shape);
    }
    let all = [residual, x, weight, bias];
    if !has_kernel(&all) || !rows_are_contiguous(weight) || all.iter().any(|t| t.track_op()) {
        return residual + linear(x, weight, bias, Implementation::Auto)?;
    }
    let residual = residual.contiguous()?.reshape((flat.dim(0)?, bias.elem_count()))?;
    flat.apply_op3_no_bwd(weight, &residual, &LinearOnto { bias: bias.clone() })?.reshape(shape)
}

/// `x·Wᵀ`, differentiable.
///
/// # Shapes
/// `x` (.., in), `weight` (out, in) -> (.., out)
///
/// # Errors
/// When the shapes do not fit each other.
pub fn linear_transposed(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (n_out, n_in) = weight.dims2()?;
    let (flat, shape) = flatten(x, n_in, n_out)?;
    let few = flat.dim(0)? <= FEW_ROWS && !x.track_op() && !weight.track_op();
    if few && has_kernel(&[x, weight]) && weight.is_contiguous() {
        return flat.apply_op2_no_bwd(weight, &RowProducts)?.reshape(shape);
    }
    flat.matmul(&weight.t()?)?.reshape(shape)
}

/// Refuses what does not fit; returns `x` as (rows, in), contiguous, and the shape of the result.
fn check(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<(Tensor, Vec<usize>)> {
    let (n_in, n_out) = weight.dims2()?;
    if bias.dims() != [n_out] {
        candle_core::bail!(
            "linear: weight [{n_in}, {n_out}] needs a bias of [{n_out}], got {:?}",
            bias.dims()
        )
    }
    flatten(x, n_in, n_out)
}

fn flatten(x: &Tensor, n_in: usize, n_out: usize) -> Result<(Tensor, Vec<usize>)> {
    if x.dim(D::Minus1)? != n_in || n_in == 0 {
        candle_core::bail!("linear: x {:?} does not end in the {n_in} inputs of the weight", x.dims())
    }
    let mut shape = x.dims().to_vec();
    *shape.last_mut().unwrap_or(&mut 0) = n_out;
    Ok((x.contiguous()?.reshape((x.elem_count() / n_in, n_in))?, shape))
}

/// Whether all are on the CPU and of one dtype that the kernels read. A build with a vendor's library asked for
/// that one.
fn has_kernel(tensors: &[&Tensor]) -> bool {
    let dtype = tensors[0].dtype();
    let vendor = candle_core::utils::has_mkl() || candle_core::utils::has_accelerate();
    !vendor
        && matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
        && tensors.iter().all(|t| t.device().is_cpu() && t.dtype() == dtype)
}

/// Whether each row lies in one piece: the whole matrix, or some of its columns.
fn rows_are_contiguous(weight: &Tensor) -> bool {
    weight.stride()[1] == 1
}

/// Some or all columns of a row-major matrix (K, N).
#[derive(Clone, Copy)]
struct Weight<'a, E> {
    data: &'a [E],
    depth: usize,
    width: usize,
    stride: usize,
}

impl<'a, E: Element + WithDType> Weight<'a, E> {
    fn new(storage: &'a CpuStorage, layout: &Layout) -> Result<Self> {
        let (depth, width) = layout.shape().dims2()?;
        let data = storage.as_slice::<E>()?.get(layout.start_offset()..).unwrap_or_default();
        let stride = layout.stride()[0];
        let end = depth.saturating_sub(1) * stride + width;
        if layout.stride()[1] != 1 || end > data.len() || depth * width == 0 {
            candle_core::bail!("linear: a weight of layout {layout:?} is empty or not made of rows")
        }
        Ok(Self { data, depth, width, stride })
    }
}

impl<'a, E: Element> Weight<'a, E> {
    fn row(&self, k: usize) -> &'a [E] {
        &self.data[k * self.stride..][..self.width]
    }

    /// The matrix in f32, row-major, and the stride of its rows: where it lies, or widened.
    fn in_f32(&self) -> (Cow<'a, [f32]>, usize) {
        if let Some(data) = E::as_f32s(self.data) {
            return (Cow::Borrowed(data), self.stride);
        }
        let mut wide = vec![0.0; self.depth * self.width];
        let arch = Arch::new();
        let rows = wide.par_chunks_mut(self.width).enumerate();
        rows.for_each(|(k, row)| arch.dispatch(Widen { from: self.row(k), to: row }));
        (Cow::Owned(wide), self.width)
    }
}

/// Numbers in f32: where they lie, or widened.
fn in_f32<E: Element>(x: &[E]) -> Cow<'_, [f32]> {
    if let Some(x) = E::as_f32s(x) {
        return Cow::Borrowed(x);
    }
    let mut wide = vec![0.0; x.len()];
    let (arch, pairs) = (Arch::new(), wide.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)));
    pairs.for_each(|(to, from)| arch.dispatch(Widen { from, to }));
    Cow::Owned(wide)
}

/// `residual + x·W + bias`: `x` (rows, K), `bias` (N), `residual` (rows, N) where there is one -> (rows, N)
fn product<E: Element + WithDType>(
    x: &[E],
    weight: Weight<E>,
    bias: &[E],
    residual: Option<&[E]>,
) -> Result<(CpuStorage, Shape)> {
    let Weight { depth, width, .. } = weight;
    let rows = x.len() / depth;
    if bias.len() != width || residual.is_some_and(|r| r.len() != rows * width) || x.len() != rows * depth {
        candle_core::bail!("linear: bias and residual do not fit {rows} rows of {width} outputs")
    }
    let bias = in_f32(bias);
    let start = |i: usize, row: &mut [MaybeUninit<f32>]| match residual {
        None => row.iter_mut().zip(&*bias).for_each(|(out, b)| {
            out.write(*b);
        }),
        Some(residual) => {
            let residual = &residual[i * width..(i + 1) * width];
            row.iter_mut().zip(residual.iter().zip(&*bias)).for_each(|(out, (r, b))| {
                out.write(r.to_f32() + b);
            });
        }
    };
    #[allow(unsafe_code)]
    // SAFETY: a row is as long as the bias and as its part of the residual, and each number is written.
    let mut out = unsafe { chunked(rows * width, width, start) };
    add_product(&in_f32(x), weight, &mut out);
    Ok((narrowed::<E>(out), Shape::from((rows, width))))
}

/// The storage of numbers computed in f32.
fn narrowed<E: Element + WithDType>(wide: Vec<f32>) -> CpuStorage {
    if E::DTYPE == DType::F32 {
        return CpuStorage::F32(wide);
    }
    let mut out = vec![E::from_f32(0.0); wide.len()];
    let pairs = out.par_chunks_mut(CHUNK).zip(wide.par_chunks(CHUNK));
    pairs.for_each(|(out, wide)| E::narrow(wide, out));
    E::to_cpu_storage_owned(out)
}

/// `out += x·W` for the rows of `x` (rows, K) and `out` (rows, N).
fn add_product<E: Element>(x: &[f32], weight: Weight<E>, out: &mut [f32]) {
    let Weight { depth, width, .. } = weight;
    let rows = out.len() / width;
    assert!(x.len() == rows * depth && out.len() == rows * width);
    if rows <= FEW_ROWS {
        return few_rows::add_product(x, weight, out);
    }
    let (data, row) = weight.in_f32();
    let weight = Matrix { data: &data, row, column: 1 };
    multiply(out, true, (rows, depth, width), Matrix::rows(x, depth), weight);
}

/// Runs `$body` with `$E` as the type of a storage's numbers.
macro_rules! for_dtype {
    ($storage:expr, $E:ident => $body:expr) => {
        match $storage {
            CpuStorage::F16(_) => {
                type $E = f16;
                $body
            }
            CpuStorage::BF16(_) => {
                type $E = bf16;
                $body
            }
            _ => {
                type $E = f32;
                $body
            }
        }
    };
}

struct Linear;

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        for_dtype!(x, E => {
            let weight = Weight::<E>::new(weight, weight_layout)?;
            product(contiguous(x, x_layout)?, weight, contiguous(bias, bias_layout)?, None)
        })
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        // Detached: what a gradient is made of is not kept for a gradient of its own.
        let (x, weight, grad) = (x.detach(), weight.detach().contiguous()?, grad.detach().contiguous()?);
        Ok((Some(grad.matmul(&weight.t()?)?), Some(x.t()?.matmul(&grad)?), Some(column_sums(&grad)?)))
    }
}

/// As [`Linear`] with a fourth input, the bias; used where nothing is trained.
struct LinearOnto {
    bias: Tensor,
}

impl CustomOp3 for LinearOnto {
    fn name(&self) -> &'static str {
        "linear-onto"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        residual: &CpuStorage,
        residual_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        for_dtype!(x, E => {
            let weight = Weight::<E>::new(weight, weight_layout)?;
            let residual = contiguous(residual, residual_layout)?;
            product(contiguous(x, x_layout)?, weight, &self.bias.to_vec1::<E>()?, Some(residual))
        })
    }
}

/// `x·Wᵀ` for a few rows; used where nothing is trained.
struct RowProducts;

impl CustomOp2 for RowProducts {
    fn name(&self) -> &'static str {
        "linear-transposed"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (width, depth) = weight_layout.shape().dims2()?;
        for_dtype!(x, E => {
            let x = in_f32::<E>(contiguous(x, x_layout)?);
            let mut out = vec![0f32; x.len() / depth * width];
            few_rows::row_products::<E>(&x, contiguous(weight, weight_layout)?, depth, &mut out);
            let shape = Shape::from((x.len() / depth, width));
            Ok((narrowed::<E>(out), shape))
        })
    }
}

#[cfg(test)]
mod tests;
