//! The backward pass of the CUDA kernels, which is the eager path's.

use crate::attention::eager;
use crate::attention::mask::CausalMask;
use crate::attention::request::Chosen;
use candle_core::{Result, Tensor, Var};

/// The gradients of q, k and v (B, H, positions, D) for `grad` (B, T, H, D), from the eager path, which holds (T, S)
/// weights while it runs.
pub(super) fn gradients(
    [q, k, v]: [&Tensor; 3],
    grad: &Tensor,
    scale: f64,
    padding: Option<&Tensor>,
) -> Result<[Option<Tensor>; 3]> {
    let (q, k, v) = (Var::from_tensor(q)?, Var::from_tensor(k)?, Var::from_tensor(v)?);
    let rows = Chosen::default().resolve(q.dim(1)?, q.dim(2)?)?;
    let mask = CausalMask { padding, ..Default::default() };
    let weights = eager::weights(&q, &k, scale, (mask, None), &rows)?; // (B, H, T, S)
    let context = eager::context(&weights, &v, q.dtype())?;
    let mut gradients = (context * grad)?.sum_all()?.backward()?;
    Ok([gradients.remove(&q), gradients.remove(&k), gradients.remove(&v)])
}
