//! q, k and v as `c_attn` returns them, and which attention runs for them.

use candle_core::{DType, Device, Result, Tensor};
use gpt2_kernels::Dispatch;
use gpt2_kernels::attention::{Mask, Sdpa, packed_part};
use gpt2_model::{Config, Implementation};

/// q (B, H, T, D) and k, v (B, H, S, D) as views of one packed tensor (B, S, 3, H, D), q cut to the last T.
pub(crate) fn views(packed: &Tensor, t: usize) -> Result<[Tensor; 3]> {
    let q = packed_part(packed, 0)?.narrow(2, packed.dim(1)? - t, t)?;
    Ok([q, packed_part(packed, 1)?, packed_part(packed, 2)?])
}

/// Which attention a model of this config runs for T queries at the end of S keys, some of which may be padding.
pub(crate) fn implementation_of(
    config: &Config,
    (t, s, padded): (usize, usize, bool),
    dtype: DType,
    device: &Device,
) -> Result<Implementation> {
    let packed = Tensor::zeros((1, s, 3, config.n_head, config.head_dim()), dtype, device)?;
    let [q, k, v] = views(&packed, t)?;
    let padding = padded.then(|| Tensor::ones((1, s), DType::U8, device)).transpose()?;
    let mask = Mask { padding: padding.as_ref(), ..Default::default() };
    let dispatch = Dispatch::new(config.attn_implementation, device);
    Sdpa::causal(config.attention_scale(0), dispatch).runs(&q, &k, &v, mask)
}
