//! Where the heads at hand stand among those of their layer.

/// The heads of a tensor, among all heads of the layer that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLayout {
    /// How many heads the tensor has: H.
    pub heads: usize,
    /// The layer's number of its first head: 0, unless a layer's heads are shared out.
    pub first: usize,
    /// How many heads the layer has; `heads`, unless they are shared out.
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
