//! q, k and v as `c_attn` leaves them, and which attention runs for them.

use candle_core::{DType, Device, Result, Tensor};
use gpt2_kernels::attention::{CausalAttention, CausalMask};
use gpt2_model::{Config, Implementation};

/// q (B, H, T, D) and k, v (B, H, S, D) as views of one packed tensor (B, S, 3, H, D), q cut to the last T.
pub(crate) fn views(packed: &Tensor, t: usize) -> Result<[Tensor; 3]> {
    let part = |i| packed.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2);
    let s = packed.dim(1)?;
    Ok([part(0)?.narrow(2, s - t, t)?, part(1)?, part(2)?])
}

/// Which attention a model of this config runs for T queries at the end of S keys, of which some are padding or none.
pub(crate) fn implementation_of(
    config: &Config,
    (t, s, padded): (usize, usize, bool),
    dtype: DType,
    device: &Device,
) -> Result<Implementation> {
    let packed = Tensor::zeros((1, s, 3, config.n_head, config.head_dim()), dtype, device)?;
    let [q, k, v] = views(&packed, t)?;
    let padding = padded.then(|| Tensor::ones((1, s), DType::U8, device)).transpose()?;
    let mask = CausalMask { padding: padding.as_ref(), ..Default::default() };
    let attention = CausalAttention::new(config.attention_scale(0));
    attention.with_implementation(config.attn_implementation).runs(&q, &k, &v, mask)
}
