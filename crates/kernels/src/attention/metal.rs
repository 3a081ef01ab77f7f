//! Causal attention on Metal through Candle's own `sdpa`.

use super::gpu::Kernel;
use candle_core::{DType, Result, Tensor};

/// The widths of heads that `sdpa` has; the last one not in f32.
const WIDTHS: [usize; 8] = [32, 64, 72, 80, 96, 128, 256, 512];

/// `sdpa` for q (B, H, T, D) and k, v (B, H, S, D), or `None` where it does not compute them: it knows no padding, and a
/// gradient that is asked for would be lost in it.
pub(super) fn kernel(
    qkv: [&Tensor; 3],
    scale: f64,
    padding: Option<&Tensor>,
) -> Result<Option<Box<dyn Kernel>>> {
    let (dtype, d) = (qkv[0].dtype(), qkv[0].dim(3)?);
    let halves = matches!(dtype, DType::F16 | DType::BF16);
    let width = WIDTHS.contains(&d) && (halves || (dtype == DType::F32 && d < 512));
    let fits = qkv.iter().all(|x| x.dtype() == dtype && !x.track_op());
    if !width || !fits || padding.is_some() {
        return Ok(None);
    }
    #[allow(clippy::cast_possible_truncation)] // the scale of f32 scores
    Ok(Some(Box::new(Sdpa { scale: scale as f32 })))
}

struct Sdpa {
    scale: f32,
}

impl Kernel for Sdpa {
    fn forward(self: Box<Self>, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
        let (_, _, t, d) = q.dims4()?;
        // A single query takes a kernel that steps from head to head by one stride, and from key to key by D.
        let dense = |x: &Tensor| match *x.stride() {
            [batch, head, position, 1] if t > 1 || (position == d && batch == head * x.dims()[1]) => {
                Ok(x.clone())
            }
            _ => x.contiguous(),
        };
        let (q, k, v) = (dense(q)?, dense(k)?, dense(v)?);
        let context = candle_nn::ops::sdpa(&q, &k, &v, None, t > 1, self.scale, 1.0)?; // (B, H, T, D)
        context.transpose(1, 2)?.contiguous() // (B, T, H, D)
    }
}
