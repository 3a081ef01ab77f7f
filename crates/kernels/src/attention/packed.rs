//! Queries, keys and values side by side, as a single projection produces them.

use candle_core::{Result, Tensor};

/// A view of one of the `parts` tensors that lie side by side at each position, with the head axis moved to the front.
///
/// # Shapes
/// `packed` (B, S, parts, H, D) -> (B, H, S, D)
///
/// # Errors
/// When `part` is out of range.
pub fn packed_part(packed: &Tensor, part: usize) -> Result<Tensor> {
    packed.narrow(2, part, 1)?.squeeze(2)?.transpose(1, 2)
}
