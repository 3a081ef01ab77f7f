//! [`Sdpa`]: attention's options.

use super::heads::{HeadLayout, WeightDropout};
use super::inputs::Inputs;
use super::mask::Mask;
use super::quantized_rows::extra;
use super::window::{CausalBias, Window};
use crate::cpu::dispatch::Implementation;
use crate::pointwise::dropout::Dropout;
use candle_core::{Layout, Result, Tensor};
use std::sync::Arc;

/// Scaled dot-product attention (SDPA) and its options, the same for every call. The default is GPT-2's and Llama's: causal
/// attention with a scale of `1 / sqrt(D)`, by the fastest code that is known to be right.
///
/// Heads may share keys and values: H queries against fewer key heads, each serving `H / key heads` neighbors (multi-query
/// attention of Shazeer 2019, grouped-query attention of Ainslie et al. 2023). Values may have another width than keys.
///
/// Gemma 2's eight queries over two heads of keys and values:
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::attention::{Mask, Sdpa};
///
/// # fn main() -> candle_core::Result<()> {
/// let (b, h, t, d) = (1, 8, 5, 16);
/// let q = Tensor::randn(0f32, 1., (b, h, t, d), &Device::Cpu)?;
/// let k = Tensor::randn(0f32, 1., (b, 2, t, d), &Device::Cpu)?;
/// let v = Tensor::randn(0f32, 1., (b, 2, t, d), &Device::Cpu)?;
/// let attention = Sdpa { softcap: Some(50.0), ..Sdpa::default() };
/// let context = attention.forward(&q, &k, &v, Mask::default())?;
/// assert_eq!(context.dims(), [b, t, h, d]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Sdpa {
    /// The factor on the scores; `None` is `1 / sqrt(D)`.
    pub scale: Option<f64>,
    /// The keys that a query sees by its position: by default its own key and all before it.
    pub window: Window,
    /// Scores become `cap·tanh(score / cap)`, as in Gemma 2 (Gemma Team 2024, §2).
    pub softcap: Option<f64>,
    /// ALiBi (Press et al. 2022), as in BLOOM: scores fall by `slope·|position - key|`, with a slope for each of the H heads.
    /// They are numbers, not a tensor, and get no gradient.
    pub slopes: Option<Arc<[f32]>>,
    /// A score for each of the H heads that joins the softmax's denominator and has no value, (H) in any float dtype: the sinks
    /// of gpt-oss (Agarwal et al. 2025), or Miller 2023's "softmax off by one" where they are 0. A row of weights then sums to
    /// less than 1. They take no part in scale, soft cap, masks and dropout, and get a gradient.
    pub sinks: Option<Tensor>,
    /// Dropout on the weights, after the softmax: for training. Row `(b·H + h)·T + i` of its mask belongs to query i of head
    /// h of batch row b. Kernels redraw the mask when they need it.
    pub dropout: Option<Dropout>,
    /// The layer's heads that q holds: dropout then drops the same weights as within the whole layer. A call with other
    /// numbers of heads is refused. By default, q holds all heads of the layer.
    pub heads: Option<HeadLayout>,
    /// The causal triangle, which the eager path then reads instead of making one in each call. S can be at most the
    /// triangle's N.
    pub bias: Option<CausalBias>,
    /// The implementation to run.
    pub implementation: Implementation,
}

impl Sdpa {
    /// Whether the sinks need a gradient.
    pub(super) fn learns_sinks(&self) -> bool {
        self.sinks.as_ref().is_some_and(Tensor::track_op)
    }

    /// The factor on the scores of heads of width `d`.
    #[must_use]
    pub fn scale_for(&self, d: usize) -> f64 {
        self.scale.unwrap_or(1. / (d as f64).sqrt())
    }

    /// The dropout on the weights of `t` queries in `h` heads of width `d`, after the rows of its mask that belong to other
    /// sequences; `None` if it drops nothing.
    pub(super) fn weight_dropout(
        &self,
        h: usize,
        t: usize,
        d: usize,
        rows_before: usize,
    ) -> Option<WeightDropout> {
        let dropout = self.dropout.filter(|dropout| dropout.rate() > 0.0)?;
        Some(WeightDropout::new(dropout, self.heads.unwrap_or(HeadLayout::all(h, d)), t, rows_before))
    }

    /// The number of heads of the whole layer, where `here` is the number of heads of q.
    pub(super) fn layer_heads(&self, here: usize) -> usize {
        self.heads.map_or(here, |heads| heads.total)
    }

    /// Fails if the shapes do not fit each other or the options, naming every shape in the message.
    pub(super) fn check(&self, inputs: &Inputs, mask: Mask) -> Result<()> {
        let [of_q, of_k, of_v] = inputs.layouts.each_ref().map(Layout::shape);
        let (b, h, t, d) = of_q.dims4()?;
        let (kb, kh, s, kd) = of_k.dims4()?;
        let (vb, vh, vs, _) = of_v.dims4()?;
        if t == 0 || h == 0 {
            candle_core::bail!("attention: no query, q is {:?}", of_q.dims())
        }
        // False for no key heads: only 0, which h is not, is a multiple of 0.
        let shared = h.is_multiple_of(kh);
        // Quantized rows are wider than their numbers.
        let [_, in_k, in_v] = inputs.dtypes.map(extra);
        if (kb, kd) != (b, d + in_k) || (vb, vh, vs) != (b, kh, s) || !shared {
            candle_core::bail!(
                "attention: q {:?} needs k of shape [{b}, key heads, S, {}] and v of [{b}, key heads, S, Dv{}] with a number of \
                 key heads that divides {h}, got k {:?}, v {:?}",
                of_q.dims(),
                d + in_k,
                if in_v > 0 { format!(" + {in_v}") } else { String::new() },
                of_k.dims(),
                of_v.dims()
            )
        }
        inputs.check_codes()?;
        if let Some(cap) = self.softcap.filter(|cap| !(1e-30..=1e30).contains(cap)) {
            candle_core::bail!(
                "attention: a soft cap of {cap} is not between 1e-30 and 1e30; pass None for no cap"
            )
        }
        #[allow(clippy::cast_possible_truncation)] // as the kernels multiply
        if let Some(scale) = self.scale.filter(|&scale| !(scale as f32).is_finite()) {
            candle_core::bail!(
                "attention: a scale of {scale} is not a finite f32; pass None for 1 / sqrt({d}), the width of a head"
            )
        }
        if let Some(slopes) = self.slopes.as_ref()
            && let Some(head) = slopes.iter().position(|slope| !slope.is_finite())
        {
            candle_core::bail!(
                "attention: the slope of head {head} is {}, expected a finite number",
                slopes[head]
            )
        }
        if let Some(slopes) = self.slopes.as_ref().filter(|slopes| slopes.len() != h) {
            candle_core::bail!("attention: {} slopes for {h} heads, expected one for each head", slopes.len())
        }
        let fits = |sinks: &Tensor| sinks.dims() == [h] && sinks.dtype().is_float();
        if let Some(sinks) = self.sinks.as_ref().filter(|sinks| !fits(sinks)) {
            candle_core::bail!(
                "attention: sinks must be floats [{h}], one for each head, got {:?} {:?}",
                sinks.dtype(),
                sinks.dims()
            )
        }
        let other = |heads: &HeadLayout| (heads.heads, heads.key_heads, heads.dim) != (h, kh, d);
        if let Some(heads) = self.heads.filter(other) {
            candle_core::bail!(
                "attention: q {:?} and k {:?} do not have {} and {} heads of width {}",
                of_q.dims(),
                of_k.dims(),
                heads.heads,
                heads.key_heads,
                heads.dim
            )
        }
        if let Some(bias) = self.bias.as_ref().filter(|bias| bias.positions() < s) {
            candle_core::bail!(
                "attention over {s} keys needs a bias of at least {s} positions, got {}",
                bias.positions()
            )
        }
        mask.check((b, h, t, s))
    }
}
