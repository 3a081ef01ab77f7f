//! The place of a tensor's heads among the heads of their layer.

use candle_core::Result;

/// Which of a layer's heads a tensor holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeadLayout {
    /// H, the heads that the tensor has.
    pub heads: usize,
    /// The index of its first head in the layer: 0, unless the layer's heads are split across tensors.
    pub first: usize,
    /// How many heads the layer has: `heads`, unless they are split.
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
