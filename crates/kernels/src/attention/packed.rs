//! Queries, keys and values that lie side by side, as one projection leaves them.

use candle_core::{Result, Tensor};

/// One of `parts` tensors that lie side by side at each position, heads in front: a view.
///
/// # Shapes
/// `packed` (B, S, parts, H, D) -> (B, H, S, D)
///
/// # Errors
/// When there is no such part.
pub fn packed_part(packed: &Tensor, part: usize) -> Result<Tensor> {
    packed.narrow(2, part, 1)?.squeeze(2)?.transpose(1, 2)
}
