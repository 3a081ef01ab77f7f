//! How a forward pass calls its hooks.

use super::hook::{At, Hooks};
use super::point::Point;
use candle_core::{Result, Tensor};
use candle_fused::attention::Hidden;

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
                    "knock-out from position {} to {}: the text has positions 0 to {}",
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
