//! [`Hooks`] read and change values while a model runs.

use super::point::Point;
use candle_core::{Result, Tensor};
use std::fmt;

/// Where in the model and the text a hook is called.
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    /// The place in the model.
    pub point: Point,
    /// The position of the value's first row: how many tokens the cache held before this pass.
    pub past: usize,
    /// Whether the pass has a cache, so that it may be one of several passes over the same text.
    pub cached: bool,
    /// u8 (B, S), 1 = visible, if some positions are padding; always `None` at [`Point::Logits`].
    pub padding: Option<&'a Tensor>,
}

/// Stops a query position from attending to a key position: the score is set to -inf before the softmax.
/// This is the attention knock-out of Geva et al. 2023, "Dissecting Recall of Factual Associations".
///
/// Positions are columns of the whole text, including what the cache already holds, in every row of the batch.
/// A pass that does not contain the query position is unaffected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnockOut {
    /// The head, or all heads.
    pub head: Option<usize>,
    /// The position that attends.
    pub query: usize,
    /// The position that it must not see.
    pub key: usize,
}

/// Reads and changes values while a model runs. [`on`](crate::hooks::on) makes hooks from a closure.
pub trait Hooks {
    /// Whether to call [`at`](Self::at) at a point. Points that no hook wants cost nothing.
    fn wants(&self, point: Point) -> bool;

    /// Gets the value at a wanted point. Returns a replacement of the same shape and dtype, or `None` to keep
    /// the value.
    ///
    /// # Errors
    /// Any error ends the forward pass.
    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>>;

    /// The pairs of positions between which to knock out a layer's attention. The kernel skips these keys, so
    /// nothing is computed twice.
    fn knocked_out(&self, _layer: usize) -> Vec<KnockOut> {
        vec![]
    }
}

impl fmt::Debug for dyn Hooks + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks")
    }
}
