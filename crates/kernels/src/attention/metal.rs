//! Causal attention on Metal through Candle's own `sdpa`.

use candle_core::{DType, Device, Result, Tensor};

/// The widths of heads that `sdpa` has.
const WIDTHS: [usize; 8] = [32, 64, 72, 80, 96, 128, 256, 512];

/// The context (B, T, H, D) of q (B, H, T, D) and k, v (B, H, S, D), or `None` where `sdpa` does not compute it: it knows no
/// padding, and a gradient that is asked for would be lost in it.
pub(super) fn forward(
    [q, k, v]: [&Tensor; 3],
    scale: f64,
    padding: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let (.., t, d) = q.dims4()?;
    let float = matches!(q.dtype(), DType::F32 | DType::F16 | DType::BF16);
    let same = k.dtype() == q.dtype() && v.dtype() == q.dtype();
    let differentiated = [q, k, v].iter().any(|x| x.track_op());
    let fits = WIDTHS.contains(&d) && float && same && !(d == 512 && q.dtype() == DType::F32);
    if !matches!(q.device(), Device::Metal(_)) || padding.is_some() || differentiated || !fits {
        return Ok(None);
    }
    // A single query takes a kernel that steps from head to head by one stride, and from key to key by D.
    let dense = |x: &Tensor| match x.stride() {
        &[batch, head, position, 1] if t > 1 || (position == d && batch == head * x.dims()[1]) => {
            Ok(x.clone())
        }
        _ => x.contiguous(),
    };
    #[allow(clippy::cast_possible_truncation)] // the scale of f32 scores
    let context = candle_nn::ops::sdpa(&dense(q)?, &dense(k)?, &dense(v)?, None, t > 1, scale as f32, 1.0)?; // (B, H, T, D)
    context.transpose(1, 2)?.contiguous().map(Some) // (B, T, H, D)
}
