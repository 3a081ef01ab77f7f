//! The place of a tensor's heads among the heads of their layer.

/// Which of a layer's heads a tensor holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLayout {
    /// How many heads the tensor has: H.
    pub heads: usize,
    /// The index of its first head in the layer: 0, unless the layer's heads are split across tensors.
    pub first: usize,
    /// How many heads the layer has: `heads`, unless they are split.
    pub of: usize,
    /// D, the width of a head.
    pub dim: usize,
}

impl HeadLayout {
    /// All `heads` of a layer, each `dim` wide.
    #[must_use]
    pub fn all(heads: usize, dim: usize) -> Self {
        Self { heads, first: 0, of: heads, dim }
    }
}
