//! The loss for logits.

use candle_core::{Result, Tensor};

/// The mean cross-entropy, in nats, of predicting each token from those before it.
///
/// # Shapes
/// `logits` (B, T, V) at positions 0..T, `targets` (B, T): the token that follows each -> scalar
///
/// # Errors
/// When the shapes do not fit.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (b, t, v) = logits.dims3()?;
    if targets.dims() != [b, t] {
        candle_core::bail!(
            "cross-entropy: logits {:?} need targets [{b}, {t}], got {:?}",
            logits.dims(),
            targets.dims()
        )
    }
    let logits = logits.reshape((b * t, v))?.to_dtype(candle_fused::accumulator(logits.dtype()))?;
    candle_fused::cross_entropy(&logits, &targets.reshape(b * t)?)
}
