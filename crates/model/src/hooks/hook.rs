//! [`Hooks`] read and change values while a model runs: the trait, hooks from a closure, and how a pass calls them.

use super::point::Point;
use candle_core::{Error, Result, Tensor};
use candle_fused::attention::Hidden;
use std::fmt;
use std::io;

/// The place in the model, and the position in the text, at which a hook is called.
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

/// An error of any kind, as one that a hook may return. It ends the forward pass, whose caller gets it with its message and its
/// sources as they are.
///
/// ```
/// use candle_core::Result;
/// use gpt2_model::hooks::{self, Point, on};
///
/// fn save(_: &candle_core::Tensor) -> std::result::Result<(), std::fmt::Error> {
///     Err(std::fmt::Error)
/// }
/// let saves = on([Point::LnFinal], |_, x| {
///     save(x).map_err(hooks::error)?;
///     Ok(None)
/// });
/// ```
pub fn error(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    // The one variant that shows nothing of its own and passes its sources on.
    Error::Io(io::Error::other(cause))
}

/// Hooks that call `hook` at each of `points`.
pub fn on<F>(points: impl IntoIterator<Item = Point>, hook: F) -> impl Hooks
where
    F: Fn(At, &Tensor) -> Result<Option<Tensor>>,
{
    On { points: points.into_iter().collect(), hook }
}

struct On<F> {
    points: Vec<Point>,
    hook: F,
}

impl<F: Fn(At, &Tensor) -> Result<Option<Tensor>>> Hooks for On<F> {
    fn wants(&self, point: Point) -> bool {
        self.points.contains(&point)
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        (self.hook)(at, value)
    }
}

/// Several hooks in sequence: each gets the value after the previous ones have changed it.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(pub &'a [&'a dyn Hooks]);

impl Hooks for Chain<'_> {
    fn wants(&self, point: Point) -> bool {
        self.0.iter().any(|hooks| hooks.wants(point))
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        let mut replaced = None;
        for hooks in self.0.iter().filter(|hooks| hooks.wants(at.point)) {
            let current = replaced.as_ref().unwrap_or(value);
            replaced = hooks.at(at, current)?.or(replaced);
        }
        Ok(replaced)
    }

    fn knocked_out(&self, layer: usize) -> Vec<KnockOut> {
        self.0.iter().flat_map(|hooks| hooks.knocked_out(layer)).collect()
    }
}

/// The hooks of a pass, and what they learn about it. Without hooks, nothing here has any effect.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PassHooks<'a> {
    pub(crate) hooks: Option<&'a dyn Hooks>,
    pub(crate) past: usize,
    pub(crate) cached: bool,
    pub(crate) padding: Option<&'a Tensor>,
}

impl PassHooks<'_> {
    /// Whether the hooks touch a layer's values or its attention.
    pub(crate) fn touches(&self, layer: usize) -> bool {
        let touches = |hooks: &dyn Hooks| {
            Point::of_layer(layer).any(|point| hooks.wants(point)) || !hooks.knocked_out(layer).is_empty()
        };
        self.hooks.is_some_and(touches)
    }

    /// Whether a hook wants one of these points.
    pub(crate) fn wants_any(&self, points: &[Point]) -> bool {
        self.hooks.is_some_and(|hooks| points.iter().any(|&point| hooks.wants(point)))
    }

    /// Passes `value` to a hook that wants it and returns the replacement, if any.
    pub(crate) fn read(
        &self,
        point: Point,
        value: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Option<Tensor>> {
        let Some(hooks) = self.hooks.filter(|hooks| hooks.wants(point)) else { return Ok(None) };
        let value = value()?;
        let at = At { point, past: self.past, cached: self.cached, padding: self.padding };
        let replaced = hooks.at(at, &value)?;
        if let Some(new) = &replaced
            && (new.dims() != value.dims() || new.dtype() != value.dtype())
        {
            candle_core::bail!(
                "hook at {point}: the value is {:?} {:?}, but its replacement is {:?} {:?}",
                value.dtype(),
                value.dims(),
                new.dtype(),
                new.dims()
            )
        }
        Ok(replaced)
    }

    /// `value`, or its replacement.
    pub(crate) fn pass(&self, point: Point, value: Tensor) -> Result<Tensor> {
        Ok(self.read(point, || Ok(value.clone()))?.unwrap_or(value))
    }

    /// A layer's knock-outs whose query is among the `t` new positions.
    pub(crate) fn hidden(&self, layer: usize, t: usize) -> Result<Vec<Hidden>> {
        let Some(hooks) = self.hooks else { return Ok(vec![]) };
        let mut hidden = vec![];
        for x in hooks.knocked_out(layer) {
            if x.query >= self.past + t && !self.cached {
                candle_core::bail!(
                    "block {}:{}: there is no position {0}: the text has positions 0 to {}",
                    x.query,
                    x.key,
                    t - 1
                )
            }
            if (self.past..self.past + t).contains(&x.query) {
                hidden.push(Hidden { head: x.head, query: x.query - self.past, key: x.key });
            }
        }
        Ok(hidden)
    }
}
