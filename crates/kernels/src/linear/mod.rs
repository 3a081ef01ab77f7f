//! Linear layers: `x·W + b` with W stored (in, out), as GPT-2 has it, and `x·Wᵀ` with W stored (out, in),
//! as an output projection that shares the embedding's table has it.
//!
//! On the CPU in f32 the bias, and the residual stream where there is one, is what the matrix product
//! starts from, so that no second pass adds it. A few rows (decoding) go through [`few_rows`], which reads
//! each weight once, at the speed of memory. Everything else is Candle's own product.

mod few_rows;

use crate::vector::{chunked, contiguous};
use candle_core::{CpuStorage, CustomOp2, CustomOp3, D, DType, Layout, Result, Shape, Tensor};
use few_rows::FEW_ROWS;
use std::mem::MaybeUninit;

/// `x·W + b`, differentiable.
///
/// # Shapes
/// `x` (.., in), `weight` (in, out), `bias` (out) -> (.., out)
///
/// # Errors
/// When the shapes do not fit each other.
pub fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let (flat, shape) = check(x, weight, bias)?;
    if !on_cpu_in_f32(&[x, weight, bias]) || !rows_are_contiguous(weight) {
        return flat.matmul(&weight.contiguous()?)?.broadcast_add(bias)?.reshape(shape);
    }
    flat.apply_op3(weight, &bias.contiguous()?, Linear)?.reshape(shape)
}

/// `residual + x·W + b`, differentiable.
///
/// # Shapes
/// `residual` (.., out), `x` (.., in), `weight` (in, out), `bias` (out) -> (.., out)
///
/// # Errors
/// When the shapes do not fit each other.
pub fn linear_onto(residual: &Tensor, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let (flat, shape) = check(x, weight, bias)?;
    if residual.dims() != shape {
        candle_core::bail!("linear: x·W is {shape:?}, which cannot be added to {:?}", residual.dims())
    }
    let all = [residual, x, weight, bias];
    if !on_cpu_in_f32(&all) || !rows_are_contiguous(weight) || all.iter().any(|t| t.track_op()) {
        return residual + linear(x, weight, bias)?;
    }
    let residual = residual.contiguous()?.reshape((flat.dim(0)?, bias.elem_count()))?;
    flat.apply_op3_no_bwd(weight, &residual, &LinearOnto { bias: bias.to_vec1()? })?.reshape(shape)
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
    if few && on_cpu_in_f32(&[x, weight]) && weight.is_contiguous() {
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

fn on_cpu_in_f32(tensors: &[&Tensor]) -> bool {
    tensors.iter().all(|t| t.device().is_cpu() && t.dtype() == DType::F32)
}

/// Whether each row lies in one piece: the whole matrix, or some of its columns.
fn rows_are_contiguous(weight: &Tensor) -> bool {
    weight.stride()[1] == 1
}

/// Some or all columns of a row-major matrix (K, N).
#[derive(Clone, Copy)]
struct Weight<'a> {
    data: &'a [f32],
    depth: usize,
    width: usize,
    stride: usize,
}

impl<'a> Weight<'a> {
    fn new(storage: &'a CpuStorage, layout: &Layout) -> Result<Self> {
        let (depth, width) = layout.shape().dims2()?;
        let data = storage.as_slice::<f32>()?.get(layout.start_offset()..).unwrap_or_default();
        let stride = layout.stride()[0];
        let end = depth.saturating_sub(1) * stride + width;
        if layout.stride()[1] != 1 || end > data.len() || depth * width == 0 {
            candle_core::bail!("linear: a weight of layout {layout:?} is empty or not made of rows")
        }
        Ok(Self { data, depth, width, stride })
    }

    fn row(&self, k: usize) -> &'a [f32] {
        &self.data[k * self.stride..][..self.width]
    }
}

/// `out += x·W` for the rows of `x` (rows, K) and `out` (rows, N).
fn add_product(x: &[f32], weight: Weight, out: &mut [f32]) {
    let Weight { depth, width, .. } = weight;
    let rows = out.len() / width;
    assert!(x.len() == rows * depth && out.len() == rows * width);
    if rows <= FEW_ROWS {
        return few_rows::add_product(x, weight, out);
    }
    let stride = |n: usize| isize::try_from(n).unwrap_or(isize::MAX);
    #[allow(unsafe_code)]
    // SAFETY: `out` and `x` hold the rows asserted above, `Weight::new` checked that every (k, n) is inside
    // its data, and the strides of slices fit an isize. `out` is borrowed mutably, so it overlaps neither.
    unsafe {
        gemm::gemm(
            rows,
            width,
            depth,
            out.as_mut_ptr(),
            1,
            stride(width),
            true,
            x.as_ptr(),
            1,
            stride(depth),
            weight.data.as_ptr(),
            1,
            stride(weight.stride),
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::Rayon(rayon::current_num_threads()),
        );
    }
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
        let (x, bias) = (contiguous(x, x_layout)?, contiguous(bias, bias_layout)?);
        let weight = Weight::new(weight, weight_layout)?;
        let rows = x.len() / weight.depth;
        if bias.len() != weight.width {
            candle_core::bail!("linear: a bias of {} numbers for {} outputs", bias.len(), weight.width)
        }
        let bias_onto = |_, row: &mut [MaybeUninit<f32>]| {
            for (out, b) in row.iter_mut().zip(bias) {
                out.write(*b);
            }
        };
        #[allow(unsafe_code)]
        // SAFETY: a row is as long as the bias, and each of its numbers is written.
        let mut out = unsafe { chunked(rows * weight.width, weight.width, bias_onto) };
        add_product(x, weight, &mut out);
        Ok((CpuStorage::F32(out), Shape::from((rows, weight.width))))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let grad = grad.contiguous()?; // (rows, out)
        Ok((Some(grad.matmul(&weight.t()?)?), Some(x.t()?.matmul(&grad)?), Some(grad.sum(0)?)))
    }
}

/// As [`Linear`] with a third input, the residual; used where nothing is trained.
struct LinearOnto {
    bias: Vec<f32>,
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
        let (x, residual) = (contiguous(x, x_layout)?, contiguous(residual, residual_layout)?);
        let weight = Weight::new(weight, weight_layout)?;
        let rows = x.len() / weight.depth;
        if self.bias.len() != weight.width || residual.len() != rows * weight.width {
            candle_core::bail!(
                "linear: {:?} cannot be added to {rows} rows of {}",
                residual_layout,
                weight.width
            )
        }
        let sum = |i, row: &mut [MaybeUninit<f32>]| {
            let residual = &residual[i * weight.width..(i + 1) * weight.width];
            for (out, (r, b)) in row.iter_mut().zip(residual.iter().zip(&self.bias)) {
                out.write(r + b);
            }
        };
        #[allow(unsafe_code)]
        // SAFETY: a row is as long as the bias and a row of the residual, and each of its numbers is written.
        let mut out = unsafe { chunked(residual.len(), weight.width, sum) };
        add_product(x, weight, &mut out);
        Ok((CpuStorage::F32(out), Shape::from((rows, weight.width))))
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
        let (x, weight) = (contiguous(x, x_layout)?, contiguous(weight, weight_layout)?);
        let rows = x.len() / depth;
        let mut out = vec![0f32; rows * width];
        few_rows::row_products(x, weight, depth, &mut out);
        Ok((CpuStorage::F32(out), Shape::from((rows, width))))
    }
}

#[cfg(test)]
mod tests;
