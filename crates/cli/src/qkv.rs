//! q, k and v as `c_attn` returns them, and which attention runs for them.

use candle_core::{DType, Device, Result, Tensor};
use candle_fused::Dispatch;
use candle_fused::attention::{Mask, Sdpa};
use gpt2_model::{Config, HeadLayout, Implementation};

/// q (B, H, T, D) and k, v (B, key heads, S, D) as views of one packed tensor (B, S, (H + 2·key heads)·D), q cut to the last
/// T.
pub(crate) fn views(packed: &Tensor, layout: HeadLayout, t: usize) -> Result<[Tensor; 3]> {
    let (b, s, _) = packed.dims3()?;
    let HeadLayout { heads, key_heads, dim, .. } = layout;
    let by_head = packed.reshape((b, s, heads + 2 * key_heads, dim))?.transpose(1, 2)?; // (B, H + 2·key heads, S, D)
    Ok([
        by_head.narrow(1, 0, heads)?.narrow(2, s - t, t)?,
        by_head.narrow(1, heads, key_heads)?,
        by_head.narrow(1, heads + key_heads, key_heads)?,
    ])
}

/// Which attention a model of this config runs for T queries at the end of S keys, some of which may be padding.
pub(crate) fn implementation_of(
    config: &Config,
    (t, s, padded): (usize, usize, bool),
    dtype: DType,
    device: &Device,
) -> Result<Implementation> {
    let HeadLayout { heads, key_heads, dim, .. } = config.heads();
    let q = Tensor::zeros((1, heads, t, dim), dtype, device)?;
    let k = Tensor::zeros((1, key_heads, s, dim), dtype, device)?;
    let padding = padded.then(|| Tensor::ones((1, s), DType::U8, device)).transpose()?;
    let mask = Mask { padding: padding.as_ref(), ..Default::default() };
    let dispatch = Dispatch::new(config.attn_implementation, device);
    Sdpa::causal(config.attention_scale(0), dispatch).runs(&q, &k, &k, mask)
}
