//! Which heads of a layer a tensor holds.

use candle_core::Result;

/// The heads of a tensor, among all heads of the layer that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeadLayout {
    /// H, the heads that the tensor has.
    pub heads: usize,
    /// The layer's number of its first head: 0, unless a layer's heads are shared out.
    pub first: usize,
    /// The heads that the layer has: `heads`, unless they are shared out.
    pub total: usize,
    /// D, the width of a head.
    pub dim: usize,
}

impl HeadLayout {
    /// All `heads` of a layer, each `dim` wide.
    #[must_use]
    pub fn all(heads: usize, dim: usize) -> Self {
        Self { heads, first: 0, total: heads, dim }
    }

    /// The same layer's heads `first..first + heads` alone.
    ///
    /// # Errors
    /// When the layer does not have them.
    pub fn part(self, first: usize, heads: usize) -> Result<Self> {
        if first.checked_add(heads).is_none_or(|end| end > self.total) {
            candle_core::bail!("heads {first} to {first} + {heads} of a layer that has {}", self.total)
        }
        Ok(Self { heads, first, ..self })
    }
}
