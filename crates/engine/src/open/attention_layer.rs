//! q, k and v as `c_attn` returns them, and which attention runs for them.

use candle_core::{DType, Device, Result, Tensor};
use candle_fused::attention::{Inputs, Sdpa};
use gpt2_model::{Config, HeadLayout, Implementation};

/// q (B, H, T, D) and k, v (B, key heads, S, D) as views of one packed tensor (B, S, (H + 2·key heads)·D), q cut to the last
/// T.
///
/// # Errors
/// When the tensor is not of this layout.
pub fn views(packed: &Tensor, layout: HeadLayout, t: usize) -> Result<[Tensor; 3]> {
    let (b, s, _) = packed.dims3()?;
    let HeadLayout { heads, key_heads, dim, .. } = layout;
    let by_head = packed.reshape((b, s, heads + 2 * key_heads, dim))?.transpose(1, 2)?; // (B, H + 2·key heads, S, D)
    Ok([
        by_head.narrow(1, 0, heads)?.narrow(2, s - t, t)?,
        by_head.narrow(1, heads, key_heads)?,
        by_head.narrow(1, heads + key_heads, key_heads)?,
    ])
}

/// The attention of a model's first layer, without dropout.
#[must_use]
pub fn attention(config: &Config) -> Sdpa {
    Sdpa {
        scale: Some(config.attention_scale(0)),
        implementation: config.attn_implementation,
        ..Sdpa::default()
    }
}

/// The attention implementation that a model of this config runs for T queries at the end of S keys, some of which may
/// be padding.
///
/// # Errors
/// When the config asks for code that cannot run for them.
pub fn implementation_of(
    config: &Config,
    (t, s, padding): (usize, usize, bool),
    dtype: DType,
    device: &Device,
) -> Result<Implementation> {
    attention(config).code_for(&Inputs { padding, ..Inputs::new(device, dtype, config.heads(), 1, t, s) })
}
