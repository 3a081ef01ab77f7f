//! A [`Weight`] together with the operation that comes next, where a GPU has a kernel for both.

use super::{Weight, WeightKind, WeightLayout};
use crate::cpu::dispatch::Dispatch;
use crate::cpu::explain::{Explained, note, shown};
use crate::gpu;
use crate::linear::{check_join, flatten};
use crate::pointwise::epilogue::Epilogue;
use candle_core::{Result, Tensor};

impl Weight {
    /// `y = residual + x·W + bias`, and the layer norm of `y` by its weight and its bias, in one pass over the product: the bits of
    /// [`forward`](Self::forward) and [`layer_norm`](crate::layer_norm()), with a launch less. `None` where no kernel does that: only on
    /// CUDA, with [`Implementation::Fused`](crate::Implementation::Fused), without a gradient.
    ///
    /// # Shapes
    /// `x` (.., in), `bias` (out), `residual` (.., out), a norm's weight and bias (out) -> two tensors (.., out)
    ///
    /// # Errors
    /// When a shape does not fit.
    pub fn forward_and_norm(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        residual: &Tensor,
        norm: [&Tensor; 2],
        eps: f64,
    ) -> Result<Option<(Tensor, Tensor)>> {
        let (Some((weight, dispatch)), Some(bias)) = (self.of_gpu(x), bias) else { return Ok(None) };
        let (n_in, n_out) = self.shape();
        if [bias, norm[0], norm[1]].iter().any(|of| of.dims() != [n_out]) {
            return Ok(None);
        }
        let (flat, shape) = flatten(x, n_in, n_out)?;
        check_join(Epilogue::Residual(residual), &shape)?;
        let onto = residual.reshape((flat.dim(0)?, n_out))?;
        let made = gpu::linear_norm(dispatch, [&flat, weight, bias, &onto], norm, eps)?;
        made.map(|(y, normed)| {
            note(|| explained(x, weight, "a residual and the layer norm of the sum"));
            Ok((y.reshape(&*shape)?, normed.reshape(shape)?))
        })
        .transpose()
    }

    /// Columns of W, one for each id, plus rows of a table of positions, in one pass: what a model with learned positions reads
    /// first. `None` where no kernel does that: only on CUDA, with [`Implementation::Fused`](crate::Implementation::Fused), without a
    /// gradient. An id or a position that a table does not have gives NaN.
    ///
    /// # Shapes
    /// `ids` u32 (B, T), `positions` (N, in), `list` u32 (1, T) or (B, T) -> (B, T, in). Position t of a text has row `first + t` of
    /// `positions`, or the one in the list.
    ///
    /// # Errors
    /// When `ids` or `positions` have another rank.
    pub fn columns_and_positions(
        &self,
        ids: &Tensor,
        positions: &Tensor,
        first: usize,
        list: Option<&Tensor>,
    ) -> Result<Option<Tensor>> {
        match (&self.kind, self.layout) {
            (WeightKind::Plain { tensor: weight, implementation, .. }, WeightLayout::OutIn) => {
                gpu::embed(Dispatch::of(*implementation, weight), ids, [weight, positions], first, list)
            }
            _ => Ok(None),
        }
    }

    /// `x·W + bias`, whose last columns go into `cache` (B, heads, capacity, D) behind `past` positions, with room for T more: `x` (B,
    /// T, in) -> (B, T, out), of which only the columns before hold anything; `None` where no kernel does both.
    pub(crate) fn forward_into(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        cache: &Tensor,
        past: usize,
    ) -> Result<Option<Tensor>> {
        let (Some((weight, dispatch)), Some(bias)) = (self.of_gpu(x), bias) else { return Ok(None) };
        let (n_in, n_out) = self.shape();
        if bias.dims() != [n_out] {
            return Ok(None);
        }
        let (flat, shape) = flatten(x, n_in, n_out)?;
        let y = gpu::linear_append(dispatch, [&flat, weight, bias], cache, past)?;
        y.map(|y| {
            note(|| explained(x, weight, "keys and values into a cache"));
            y.reshape(shape)
        })
        .transpose()
    }

    /// A plain weight (in, out) that multiplies `x` on a GPU.
    fn of_gpu(&self, x: &Tensor) -> Option<(&Tensor, Dispatch)> {
        let fits = !x.device().is_cpu() && x.dims().last() == Some(&self.shape().0);
        match (&self.kind, self.layout) {
            (WeightKind::Plain { tensor, implementation, .. }, WeightLayout::InOut) if fits => {
                Some((tensor, Dispatch::of(*implementation, x)))
            }
            _ => None,
        }
    }
}

fn explained(x: &Tensor, weight: &Tensor, then: &str) -> Explained {
    Explained {
        operation: "linear",
        inputs: format!("{}, {}, then {then}", shown("x", x), shown("W", weight)),
        code: "fused, on the GPU".to_owned(),
        slower_because: None,
    }
}
