//! [`Hooks`]: what reads and changes values while a model runs.

use super::point::Point;
use candle_core::{Result, Tensor};
use std::fmt;

/// Where a hook is called.
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    /// The place in the model.
    pub point: Point,
    /// The position of the value's first row: how many tokens the cache held before this pass.
    pub past: usize,
    /// Whether the pass has a cache, and so may be one of several over one text.
    pub cached: bool,
    /// u8 (B, S), 1 = visible, where some positions are padding; not told at [`Point::Logits`].
    pub padding: Option<&'a Tensor>,
}

/// A key position that a query position may not attend to: its score is -inf before the softmax. Attention
/// knock-out of Geva et al. 2023, "Dissecting Recall of Factual Associations".
///
/// Positions are columns of the text, whatever the cache held already, in every row of the batch. A query that
/// is not among a pass's positions leaves that pass alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnockOut {
    /// The head, or all heads.
    pub head: Option<usize>,
    /// The position that attends.
    pub query: usize,
    /// The position that it may not see.
    pub key: usize,
}

/// What reads and changes values while a model runs. [`on`] makes one of a closure.
pub trait Hooks {
    /// Whether [`at`](Self::at) is to be called at a point. What is not wanted costs nothing.
    fn wants(&self, point: Point) -> bool;

    /// Handed the value at a point that is wanted; returns what takes its place, of the same shape and dtype, or
    /// `None` to leave it.
    ///
    /// # Errors
    /// Any error ends the forward pass.
    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>>;

    /// The pairs of positions between which a layer's attention is knocked out; the kernel leaves these keys out
    /// and nothing is computed twice.
    fn knocked_out(&self, _layer: usize) -> Vec<KnockOut> {
        vec![]
    }
}

impl fmt::Debug for dyn Hooks + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks")
    }
}
