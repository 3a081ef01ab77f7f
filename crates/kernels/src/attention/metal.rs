//! Causal attention on Metal through Candle's own `sdpa`.

use super::gpu_kernel::GpuKernel;
use candle_core::{DType, Result, Tensor};

/// The head widths that the one-query kernel supports.
const WIDTHS_ONE: [usize; 5] = [32, 64, 96, 128, 256];
/// The head widths that the many-query kernel supports, limited to those for which it takes 32 keys at once.
const WIDTHS_MANY: [usize; 5] = [32, 64, 72, 80, 96];

/// `sdpa` for q (B, H, T, D) and k, v (B, H, S, D), or `None` if it cannot compute them. It supports neither padding
/// nor gradients. With a cache before several queries, its causal mask leaves out a block of keys for some S, so we use
/// it only for T = 1 and T = S.
pub(super) fn kernel(
    qkv: [&Tensor; 3],
    scale: f64,
    padding: Option<&Tensor>,
) -> Result<Option<Box<dyn GpuKernel>>> {
    let [q, k, _] = qkv;
    let (_, _, t, d) = q.dims4()?;
    let width = if t == 1 { WIDTHS_ONE.contains(&d) } else { WIDTHS_MANY.contains(&d) && k.dim(2)? == t };
    let dtype = matches!(q.dtype(), DType::F32 | DType::F16 | DType::BF16);
    let fits = qkv.iter().all(|x| x.dtype() == q.dtype() && !x.track_op());
    if !width || !dtype || !fits || padding.is_some() {
        return Ok(None);
    }
    #[allow(clippy::cast_possible_truncation)] // the scale of f32 scores
    Ok(Some(Box::new(Sdpa { scale: scale as f32 })))
}

struct Sdpa {
    scale: f32,
}

impl GpuKernel for Sdpa {
    fn forward(self: Box<Self>, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
        let t = q.dim(2)?;
        // The one-query kernel expects a contiguous q, and steps through k and v by one stride from head to head and
        // by D from key to key.
        let dense = |x: &Tensor| match (x.dims(), x.stride()) {
            (&[b, h, _, d], &[batch, head, position, 1])
                if position == d && (b == 1 || batch == head * h) =>
            {
                Ok(x.clone())
            }
            _ => x.force_contiguous(), // always copies, whatever the strides
        };
        let (q, k, v) = match t {
            1 => (q.contiguous()?, dense(k)?, dense(v)?),
            _ => (rows(q)?, rows(k)?, rows(v)?),
        };
        let context = candle_nn::ops::sdpa(&q, &k, &v, None, t > 1, self.scale, 1.0)?; // (B, H, T, D)
        context.transpose(1, 2)?.contiguous() // (B, T, H, D)
    }
}

/// Makes D contiguous within each position.
fn rows(x: &Tensor) -> Result<Tensor> {
    if x.stride()[3] == 1 { Ok(x.clone()) } else { x.contiguous() }
}
