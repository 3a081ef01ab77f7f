//! Linear layers: `x·W + b` with W stored as (in, out), as in GPT-2, and `x·Wᵀ` with W stored as (out,
//! in), as in an output projection that shares the embedding table.
//!
//! A weight that does not change can be packed once, see [`PackedWeight`]. With one that changes, on the CPU, a few rows
//! (decoding) go through [`few_rows`], which reads each weight once, at the speed of memory; more rows go through
//! [`dense`]. Both widen f16 and bf16, sum in f32 and round the result once. Everything else is Candle's own product.

mod dense;
mod few_rows;
mod low_rank;
mod operations;
mod packed;
#[cfg(test)]
mod packed_tests;
mod shapes;
#[cfg(test)]
mod tests;
mod weight;

use crate::dispatch::{Dispatch, cpu_product};
use crate::epilogue::{Epilogue, gelu_in_place};
use crate::gpu;
use candle_core::{Result, Tensor};
use few_rows::FEW_ROWS;
use operations::{Linear, LinearOnto, RowProducts};
pub use packed::PackedWeight;
pub(crate) use packed::gradient_of_rows;
use shapes::check;
pub(crate) use shapes::{check_residual, flatten};

/// `x·W + b`, then `epilogue`; differentiable.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::{Dispatch, Epilogue, Implementation, linear};
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let weight = Tensor::new(&[[1f32, 0., 3.], [0., 1., 4.]], &Device::Cpu)?; // (in, out)
/// let bias = Tensor::new(&[0f32, 0., 0.5], &Device::Cpu)?;
/// let dispatch = Dispatch::of(Implementation::Auto, &x);
/// let y = linear(&x, &weight, &bias, Epilogue::None, dispatch)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1., 2., 11.5]]);
/// # Ok(())
/// # }
/// ```
///
/// # Shapes
/// `x` (.., in), `weight` (in, out), `bias` (out), a residual (.., out) -> (.., out)
///
/// # Errors
/// When the shapes do not fit each other.
pub fn linear(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    epilogue: Epilogue,
    dispatch: Dispatch,
) -> Result<Tensor> {
    let (flat, shape) = check(x, weight, bias)?;
    check_residual(epilogue, &shape)?;
    if let Some(y) = gpu::linear(dispatch, &flat, weight, bias, epilogue)? {
        return y.reshape(shape);
    }
    let has_kernel = cpu_product(&[x, weight, bias]) && rows_are_contiguous(weight);
    if let Epilogue::Residual(residual) = epilogue
        && has_kernel
        && cpu_product(&[residual, x])
        && [residual, x, weight, bias].iter().all(|t| !t.track_op())
    {
        let residual = residual.contiguous()?.reshape((flat.dim(0)?, bias.elem_count()))?;
        return flat.apply_op3_no_bwd(weight, &residual, &LinearOnto { bias: bias.clone() })?.reshape(shape);
    }
    let y = if has_kernel {
        flat.apply_op3(weight, &bias.contiguous()?, Linear)?.reshape(shape)?
    } else {
        flat.matmul(&weight.contiguous()?)?.broadcast_add(bias)?.reshape(shape)?
    };
    match epilogue {
        Epilogue::Gelu => gelu_in_place(y), // no other tensor shares its memory
        Epilogue::None | Epilogue::Residual(_) => epilogue.apply(y),
    }
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
    if few && cpu_product(&[x, weight]) && weight.is_contiguous() {
        return flat.apply_op2_no_bwd(weight, &RowProducts)?.reshape(shape);
    }
    flat.matmul(&weight.t()?)?.reshape(shape)
}

/// Whether each row is contiguous: true of a whole matrix, or of some of its columns.
fn rows_are_contiguous(weight: &Tensor) -> bool {
    weight.stride()[1] == 1
}
