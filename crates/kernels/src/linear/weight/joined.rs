//! A [`Weight`] together with the operation that comes next, where a GPU has a kernel for both.

use super::{Weight, WeightKind, WeightLayout};
use crate::cpu::dispatch::Dispatch;
use crate::cpu::explain::{Explained, note, shown};
use crate::gpu;
use crate::gpu::append_at::AppendAt;
use crate::linear::{WITH_PRODUCT, check_join, flatten};
use crate::pointwise::epilogue::Epilogue;
use crate::pointwise::norm::input::InputNorm;
use candle_core::{Result, Tensor};

impl Weight {
    /// `y = residual + x·W + bias`, and the layer norm of `y` by its weight and its bias, in one pass over the product: the bits of
    /// [`forward`](Self::forward) and [`layer_norm`](crate::layer_norm()), with a launch less. `None` where no kernel does that: only on
    /// CUDA, not with [`Implementation::Eager`](crate::Implementation::Eager), without a gradient, for more than a few rows. Of those
    /// [`forward`](Self::forward) is one launch by itself, and [`forward_normed`](Self::forward_normed) takes the norm into the next.
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
        if gpu::few_rows_fit(dispatch, [&flat, weight, bias], &onto)? {
            return Ok(None);
        }
        let made = gpu::linear_norm(dispatch, [&flat, weight, bias, &onto], norm, eps)?;
        made.map(|(y, normed)| {
            note(|| explained(x, weight, ", then a residual and the layer norm of the sum", ON_GPU));
            Ok((y.reshape(&*shape)?, normed.reshape(shape)?))
        })
        .transpose()
    }

    /// `layer_norm(x)·W + bias`, then `epilogue`, in one launch: the bits of [`layer_norm`](crate::layer_norm()) and
    /// [`forward`](Self::forward). `None` where no kernel does that: only on CUDA, not with
    /// [`Implementation::Eager`](crate::Implementation::Eager), without a gradient, for up to 8 rows of `x`.
    ///
    /// # Shapes
    /// `x` (.., in), a norm's weight and bias (in), `bias` (out), a residual (.., out) -> (.., out)
    ///
    /// # Errors
    /// When a shape does not fit, or the norm's `eps` is negative or not finite.
    pub fn forward_normed(
        &self,
        x: &Tensor,
        norm: InputNorm,
        bias: Option<&Tensor>,
        epilogue: Epilogue,
    ) -> Result<Option<Tensor>> {
        let (Some((weight, dispatch)), Some(bias)) = (self.of_gpu(x), bias) else { return Ok(None) };
        let (n_in, n_out) = self.shape();
        norm.check(x)?;
        if bias.dims() != [n_out] {
            return Ok(None);
        }
        let (flat, shape) = flatten(x, n_in, n_out)?;
        check_join(epilogue, &shape)?;
        let y = gpu::few_rows(dispatch, [&flat, weight, bias], Some(norm), epilogue)?;
        y.map(|y| {
            note(|| explained(x, weight, &format!(", after a layer norm{}", epilogue.shown()), WITH_PRODUCT));
            y.reshape(shape)
        })
        .transpose()
    }

    /// Columns of W, one for each id, plus rows of a table of positions, in one pass: what a model with learned positions reads
    /// first. `None` where no kernel does that: only on CUDA, not with [`Implementation::Eager`](crate::Implementation::Eager), without a
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

    /// `x·W + bias`, whose last columns go into `cache` (B, heads, capacity, D) at a place with room for T more: `x` (B,
    /// T, in) -> (B, T, out), of which only the columns before hold anything; `None` where no kernel does both, nor the layer norm of
    /// `x` by `norm`, if there is one.
    pub(crate) fn forward_into(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        norm: Option<InputNorm>,
        cache: &Tensor,
        at: AppendAt,
    ) -> Result<Option<Tensor>> {
        let (Some((weight, dispatch)), Some(bias)) = (self.of_gpu(x), bias) else { return Ok(None) };
        let (n_in, n_out) = self.shape();
        if bias.dims() != [n_out] {
            return Ok(None);
        }
        let (flat, shape) = flatten(x, n_in, n_out)?;
        if let Some(norm) = norm {
            norm.check(x)?;
        }
        let factors = [&flat, weight, bias];
        let then = ", then keys and values into a cache";
        if let Some(y) = gpu::few_rows_append(dispatch, factors, norm, cache, at)? {
            let after = if norm.is_some() { ", after a layer norm" } else { "" };
            note(|| explained(x, weight, &format!("{after}{then}"), WITH_PRODUCT));
            return y.reshape(shape).map(Some);
        }
        if norm.is_some() {
            return Ok(None);
        }
        let y = gpu::linear_append(dispatch, factors, cache, at)?;
        y.map(|y| {
            note(|| explained(x, weight, then, ON_GPU));
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

/// The code of what follows a product on a GPU.
const ON_GPU: &str = "fused, on the GPU";

fn explained(x: &Tensor, weight: &Tensor, around: &str, code: &str) -> Explained {
    Explained {
        operation: "linear",
        inputs: format!("{}, {}{around}", shown("x", x), shown("W", weight)),
        code: code.to_owned(),
        slower_because: None,
    }
}
