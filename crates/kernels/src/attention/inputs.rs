//! The description of a call of attention, without its numbers, and the results that it asks for besides the context.

use super::heads::HeadLayout;
use super::mask::Mask;
use super::quantized_rows::SCALE_BYTES;
use super::window::Window;
use candle_core::{DType, Device, Layout, Result, Tensor};
use std::ops::Range;

/// Describes a call of attention, without its numbers: the choice of code depends on nothing else.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_fused::Implementation;
/// use candle_fused::attention::{HeadLayout, Inputs, Sdpa};
///
/// # fn main() -> candle_core::Result<()> {
/// let decoding = Inputs::new(&Device::Cpu, DType::F32, HeadLayout::grouped(8, 2, 64), 1, 1, 500);
/// assert_eq!(Sdpa::default().code_for(&decoding)?, Implementation::Fused);
/// let wide = Inputs { dtypes: [DType::F64; 3], ..decoding };
/// assert_eq!(Sdpa::default().code_for(&wide)?, Implementation::Eager);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools)] // each part of a `Mask` is there or not
pub struct Inputs {
    /// The device that holds the tensors.
    pub device: Device,
    /// The dtypes of q, k and v.
    pub dtypes: [DType; 3],
    /// The layouts of q (B, H, T, D), k (B, key heads, S, D) and v (B, key heads, S, Dv); of k and v in u8, which are quantized
    /// rows, (B, key heads, S, D + 4) and (B, key heads, S, Dv + 4).
    pub layouts: [Layout; 3],
    /// Whether q, k or v needs a gradient.
    pub gradient: bool,
    /// Whether there is a padding mask.
    pub padding: bool,
    /// Whether single keys are hidden from single queries.
    pub hidden: bool,
    /// Whether queries have first keys.
    pub first: bool,
    /// Whether queries have ranges of keys.
    pub ranges: bool,
    /// Whether a tensor is added to the scores.
    pub added: bool,
    /// Whether the added tensor needs a gradient.
    pub added_gradient: bool,
}

impl Inputs {
    /// Contiguous q, k and v of one dtype with `t` queries and `s` keys in each of `batch` rows, without masks or gradients.
    #[must_use]
    pub fn new(device: &Device, dtype: DType, heads: HeadLayout, batch: usize, t: usize, s: usize) -> Self {
        let keys = Layout::contiguous((batch, heads.key_heads, s, heads.dim));
        Self {
            device: device.clone(),
            dtypes: [dtype; 3],
            layouts: [Layout::contiguous((batch, heads.heads, t, heads.dim)), keys.clone(), keys],
            gradient: false,
            padding: false,
            hidden: false,
            first: false,
            ranges: false,
            added: false,
            added_gradient: false,
        }
    }

    /// Describes a call with these tensors.
    #[must_use]
    pub fn from_tensors(q: &Tensor, k: &Tensor, v: &Tensor, mask: Mask) -> Self {
        let qkv = [q, k, v];
        Self {
            device: q.device().clone(),
            dtypes: qkv.map(Tensor::dtype),
            layouts: qkv.map(|x| x.layout().clone()),
            gradient: qkv.iter().any(|x| x.track_op()),
            padding: mask.padding.is_some(),
            hidden: !mask.hidden.is_empty(),
            first: mask.first.is_some(),
            ranges: mask.ranges.is_some(),
            added: mask.added.is_some(),
            added_gradient: mask.added.is_some_and(Tensor::track_op),
        }
    }

    /// Whether q, k or v has no numbers.
    pub(super) fn is_empty(&self) -> bool {
        self.layouts.iter().any(|layout| layout.shape().elem_count() == 0)
    }

    /// Whether keys and values are halves or codes under queries in f32, which the CPU kernels read in place if no gradient is
    /// needed.
    pub(super) fn has_narrow_keys(&self) -> bool {
        let [q, k, v] = self.dtypes;
        let gradient = self.gradient || self.added_gradient;
        q == DType::F32 && matches!(k, DType::F16 | DType::BF16 | DType::U8) && k == v && !gradient
    }

    /// Fails for quantized keys or values that no code reads.
    pub(super) fn check_codes(&self) -> Result<()> {
        let [q, k, v] = self.dtypes;
        if k != DType::U8 && v != DType::U8 {
            return Ok(());
        }
        let [_, of_k, of_v] = self.layouts.each_ref().map(Layout::dims);
        let narrow = |dims: &[usize]| dims.last().is_none_or(|&width| width <= SCALE_BYTES);
        let cause = if q != DType::F32 {
            format!("queries in f32, got {}", q.as_str())
        } else if k != v {
            format!("both to be quantized, got k in {} and v in {}", k.as_str(), v.as_str())
        } else if narrow(of_k) || narrow(of_v) {
            format!("rows of D + {SCALE_BYTES} bytes, got k {of_k:?} and v {of_v:?}")
        } else if !self.device.is_cpu() {
            "the CPU; widen them first".to_owned()
        } else if self.gradient {
            "queries without a gradient: detach them, or keep keys and values in f32".to_owned()
        } else {
            return Ok(());
        };
        candle_core::bail!("attention: quantized keys and values (u8) need {cause}")
    }
}

/// The heads and queries whose weights you want.
///
/// ```
/// use candle_fused::attention::Chosen;
///
/// let last_query_of_two_heads = Chosen { heads: Some(vec![0, 5]), queries: Some(vec![41]) };
/// let everything = Chosen::default();
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Heads in the order of the result, or all.
    pub heads: Option<Vec<usize>>,
    /// Queries 0..T in the order of the result, or all.
    pub queries: Option<Vec<usize>>,
}

/// The results to return besides the context. On the CPU, none of them slows down the fused kernel's work on the context.
///
/// ```
/// use candle_fused::attention::Wanted;
///
/// let log_sums_too = Wanted { lse: true, ..Wanted::default() };
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// The exact weights of these heads and queries.
    pub weights: &'a [Chosen],
    /// A few statistics of the weights of every head and query.
    pub summary: bool,
    /// The logarithm of each softmax's denominator. It costs a copy of the context. A GPU runs plain operations for it, in
    /// memory for a (T, S) tensor, whatever [`Sdpa::code_for`](super::Sdpa::code_for) says.
    pub lse: bool,
}

impl Chosen {
    /// Resolves every index, or fails with an error that names the valid ones.
    pub(super) fn resolve(&self, heads: usize, queries: usize) -> Result<ChosenIndices> {
        Ok(ChosenIndices {
            heads: indices("head", self.heads.as_deref(), heads)?,
            queries: indices("query", self.queries.as_deref(), queries)?,
            all_heads: heads,
            all_queries: queries,
        })
    }
}

fn indices(what: &str, chosen: Option<&[usize]>, count: usize) -> Result<Vec<usize>> {
    let Some(chosen) = chosen else { return Ok((0..count).collect()) };
    if chosen.is_empty() {
        candle_core::bail!("attention weights: no {what} is chosen")
    }
    match chosen.iter().find(|&&i| i >= count) {
        Some(i) => candle_core::bail!("attention weights: {what} {i} is not among 0 to {}", count - 1),
        None => Ok(chosen.to_vec()),
    }
}

/// The [`Chosen`] heads and queries, resolved to indices.
#[derive(Debug, Clone)]
pub(super) struct ChosenIndices {
    pub(super) heads: Vec<usize>,
    pub(super) queries: Vec<usize>,
    /// H
    pub(super) all_heads: usize,
    /// T
    pub(super) all_queries: usize,
}

impl ChosenIndices {
    /// The keys that each of the chosen queries sees by its position, of S.
    pub(super) fn seen(&self, window: Window, s: usize) -> impl Iterator<Item = Range<usize>> {
        self.queries.iter().map(move |&i| window.keys(i, self.all_queries, s))
    }

    /// The position of each chosen query among S keys: negative before the first.
    pub(super) fn positions(&self, s: usize) -> impl Iterator<Item = f64> {
        self.queries.iter().map(move |&i| (s + i) as f64 - self.all_queries as f64)
    }

    /// The key head of each chosen head, where `key_heads` serve H heads.
    pub(super) fn key_heads(&self, key_heads: usize) -> Vec<usize> {
        self.heads.iter().map(|head| head * key_heads / self.all_heads).collect()
    }

    /// These heads and queries of `x` (B, H, T, D): (B, heads, queries, D)
    pub(super) fn of_queries(&self, x: &Tensor) -> Result<Tensor> {
        select(&select(x, 1, &self.heads)?, 2, &self.queries)
    }

    /// The keys or values `x` (B, key heads, S, D) that these heads read: (B, heads, S, D)
    pub(super) fn of_keys(&self, x: &Tensor) -> Result<Tensor> {
        select(x, 1, &self.key_heads(x.dim(1)?))
    }
}

/// Selects indices along a dimension, in the given order: a view if they are consecutive, otherwise a copy.
pub(super) fn select(x: &Tensor, dim: usize, places: &[usize]) -> Result<Tensor> {
    let mut runs = vec![];
    let mut start = 0;
    for end in 1..=places.len() {
        if end == places.len() || places[end] != places[end - 1] + 1 {
            runs.push(x.narrow(dim, places[start], end - start)?);
            start = end;
        }
    }
    Tensor::cat(&runs, dim)
}
