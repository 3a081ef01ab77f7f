//! What a linear layer's operands must fit.

use crate::epilogue::Epilogue;
use candle_core::{D, Result, Tensor};

/// Checks the shapes; returns `x` as a contiguous (rows, in), and the shape of the result.
pub(super) fn check(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<(Tensor, Vec<usize>)> {
    let (n_in, n_out) = weight.dims2()?;
    if bias.dims() != [n_out] {
        candle_core::bail!(
            "linear: weight [{n_in}, {n_out}] needs a bias of [{n_out}], got {:?}",
            bias.dims()
        )
    }
    flatten(x, n_in, n_out)
}

pub(crate) fn check_residual(epilogue: Epilogue, shape: &[usize]) -> Result<()> {
    match epilogue.residual() {
        Some(residual) if residual.dims() != shape => {
            candle_core::bail!("linear: x·W is {shape:?}, which cannot be added to {:?}", residual.dims())
        }
        _ => Ok(()),
    }
}

pub(crate) fn flatten(x: &Tensor, n_in: usize, n_out: usize) -> Result<(Tensor, Vec<usize>)> {
    if x.dim(D::Minus1)? != n_in || n_in == 0 {
        candle_core::bail!("linear: x {:?} does not end in the {n_in} inputs of the weight", x.dims())
    }
    let mut shape = x.dims().to_vec();
    *shape.last_mut().unwrap_or(&mut 0) = n_out;
    Ok((x.contiguous()?.reshape((x.elem_count() / n_in, n_in))?, shape))
}
