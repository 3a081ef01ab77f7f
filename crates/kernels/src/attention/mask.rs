//! Masks on top of the window: padding, single keys hidden from single queries, numbers added to the scores, first keys and
//! ranges of keys. ALiBi is no mask here: see [`Sdpa::slopes`](super::sdpa::Sdpa::slopes).

use super::heads::Query;
use super::key_ranges::KeyRanges;
use candle_core::{DType, Layout, Result, Tensor};
use std::ops::Range;

/// Restricts what each query sees, in addition to its [`Window`](super::Window). Every mask has the same polarity: 1
/// is visible, 0 is hidden; [`padding_from_hidden`](super::padding_from_hidden) and its like convert masks of the other one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mask<'a> {
    /// The padding mask, u8 (B, S), or `None` if no key is padding.
    pub padding: Option<&'a Tensor>,
    /// Single keys hidden from single queries, in every row of the batch.
    pub hidden: &'a [Hidden],
    /// Floats (B or 1, H or 1, T or 1, S) that are added to the scores after the scale and the soft cap, -inf to hide a key. Unlike
    /// under padding, the value of a key hidden in this way must be finite, because 0 times infinity is NaN. They get a
    /// gradient if they need one: heads and rows that share numbers add up in place, so that it takes its own memory and a copy of v;
    /// if queries share them, a (T, S) tensor for each head as well.
    pub added: Option<&'a Tensor>,
    /// The first key that each query may see, u32 (B, T): with the first token of its document, documents that share a row do
    /// not attend across each other.
    pub first: Option<&'a Tensor>,
    /// Ranges of keys for each query, beyond which it sees nothing.
    pub ranges: Option<&'a KeyRanges>,
}

/// A key hidden from a query that would otherwise see it: its score becomes -inf. This is the
/// attention knock-out of Geva et al. 2023, "Dissecting Recall of Factual Associations".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hidden {
    /// The head, or all heads.
    pub head: Option<usize>,
    /// The index of the query, below T.
    pub query: usize,
    /// The index of the key, below S.
    pub key: usize,
}

impl Mask<'_> {
    /// The masks as plain numbers on the CPU, for H heads.
    pub(super) fn on_cpu(&self, heads: usize) -> Result<CpuMask> {
        Ok(CpuMask {
            padding: self.padding.map(|p| p.flatten_all()?.to_vec1()).transpose()?,
            hidden: HiddenKeys::new(self.hidden, heads),
            first: self
                .first
                .map(|first| Result::Ok((first.flatten_all()?.to_vec1()?, first.dim(1)?)))
                .transpose()?,
            ranges: self.ranges.cloned(),
        })
    }

    /// Whether the added tensor is not contiguous, apart from rows that share numbers.
    pub(super) fn added_is_strided(&self) -> bool {
        self.added.is_some_and(|added| {
            let dims = added.dims();
            let strides = added.stride();
            let own = dims.iter().zip(strides).map(|(n, stride)| if *stride == 0 { 1 } else { *n });
            !Layout::new(own.collect::<Vec<_>>().into(), strides.to_vec(), 0).is_contiguous()
        })
    }

    /// Whether nothing is hidden from any query but by -inf in the added tensor.
    pub(super) fn hides_nothing(&self) -> bool {
        self.padding.is_none() && self.hidden.is_empty() && self.first.is_none() && self.ranges.is_none()
    }

    /// Fails if the masks do not fit scores (B, H, T, S).
    pub(super) fn check(&self, (b, h, t, s): (usize, usize, usize, usize)) -> Result<()> {
        if let Some(p) = self.padding
            && (p.dims() != [b, s] || p.dtype() != DType::U8)
        {
            candle_core::bail!(
                "attention: padding mask must be u8 [{b}, {s}] (1 = visible), got {:?} {:?}",
                p.dtype(),
                p.dims()
            )
        }
        if let Some(first) = self.first.filter(|first| first.dims() != [b, t] || first.dtype() != DType::U32)
        {
            candle_core::bail!(
                "attention: the first keys must be u32 [{b}, {t}], got {:?} {:?}",
                first.dtype(),
                first.dims()
            )
        }
        if let Some(ranges) = self.ranges {
            ranges.check(b, t, s)?;
        }
        let outside = |x: &&Hidden| x.head.is_some_and(|head| head >= h) || x.query >= t || x.key >= s;
        if let Some(x) = self.hidden.iter().find(outside) {
            candle_core::bail!("attention: {x:?} is outside {h} heads, {t} queries and {s} keys")
        }
        if let Some(added) = self.added {
            let fits = match *added.dims() {
                [of_b, of_h, of_t, of_s] => {
                    [1, b].contains(&of_b) && [1, h].contains(&of_h) && [1, t].contains(&of_t) && of_s == s
                }
                _ => false,
            };
            if !fits || !added.dtype().is_float() {
                candle_core::bail!(
                    "attention: what is added to the scores must be floats [{b} or 1, {h} or 1, {t} or 1, {s}], got {:?} {:?}",
                    added.dtype(),
                    added.dims()
                )
            }
        }
        Ok(())
    }
}

/// The masks in the form that the CPU kernels read.
#[derive(Debug, Clone, Default)]
pub(super) struct CpuMask {
    /// u8 (B, S), 1 = visible.
    pub(super) padding: Option<Vec<u8>>,
    pub(super) hidden: HiddenKeys,
    /// The first key that each query may see, (B·T), and T.
    first: Option<(Vec<u32>, usize)>,
    ranges: Option<KeyRanges>,
}

impl CpuMask {
    /// The first key that query `i` of row `b` may see.
    #[inline(always)]
    pub(super) fn first_of(&self, b: usize, i: usize) -> usize {
        self.first.as_ref().map_or(0, |(first, t)| first[b * t + i] as usize)
    }

    /// The first key that any of some queries of row `b` may see.
    pub(super) fn first_of_any(&self, b: usize, queries: Range<usize>) -> usize {
        queries.map(|i| self.first_of(b, i)).min().unwrap_or(0)
    }

    /// Whether nothing is hidden from any query.
    pub(super) fn hides_nothing(&self) -> bool {
        self.padding.is_none() && self.hidden.is_empty() && self.first.is_none() && self.ranges.is_none()
    }

    /// Whether first keys and ranges let query `i` of row `b` see a key.
    #[inline(always)]
    pub(super) fn lets_see(&self, b: usize, i: usize, key: usize) -> bool {
        key >= self.first_of(b, i) && self.ranges.as_ref().is_none_or(|ranges| ranges.contains(b, i, key))
    }

    /// Whether the ranges let any of some queries of row `b` see any of some keys.
    #[inline(always)]
    pub(super) fn ranges_reach(&self, b: usize, queries: Range<usize>, keys: Range<usize>) -> bool {
        self.ranges.as_ref().is_none_or(|ranges| ranges.any(b, queries, &keys))
    }

    /// The padding mask of row `b` over its `s` keys, not 0 for a visible key; `None` if nothing is padded.
    pub(super) fn visible(&self, b: usize, s: usize) -> Option<&[u8]> {
        self.padding.as_ref().map(|p| &p[b * s..(b + 1) * s])
    }

    /// Sets the scores of keys hidden from a query to -inf. `scores` belong to the keys from `start` on, of S in all.
    #[inline(always)]
    pub(super) fn hide(&self, query: Query, s: usize, start: usize, scores: &mut [f32]) {
        if let Some(visible) = self.visible(query.b, s) {
            for (x, &v) in scores.iter_mut().zip(&visible[start..]) {
                if v == 0 {
                    *x = f32::NEG_INFINITY;
                }
            }
        }
        let before = self.first_of(query.b, query.i).saturating_sub(start).min(scores.len());
        scores[..before].fill(f32::NEG_INFINITY);
        if let Some(ranges) = &self.ranges {
            ranges.hide(query.b, query.i, start, scores);
        }
        for hidden in self.hidden.of(query.h, query.i) {
            if let Some(x) = hidden.key.checked_sub(start).and_then(|j| scores.get_mut(j)) {
                *x = f32::NEG_INFINITY;
            }
        }
    }

    /// The first of `s` keys in row `b` that is not padding; 0 if all are padding.
    pub(super) fn first_key(&self, b: usize, s: usize) -> usize {
        self.visible(b, s).and_then(|visible| visible.iter().position(|&v| v != 0)).unwrap_or(0)
    }
}

/// [`Hidden`] keys, sorted by head and query.
#[derive(Debug, Clone, Default)]
pub(super) struct HiddenKeys(Vec<HiddenKey>);

/// A key hidden from a query of one head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HiddenKey {
    head: usize,
    query: usize,
    pub(super) key: usize,
}

impl HiddenKeys {
    pub(super) fn new(hidden: &[Hidden], heads: usize) -> Self {
        let all = hidden.iter().flat_map(|&Hidden { head, query, key }| {
            let heads = head.map_or(0..heads, |head| head..head + 1);
            heads.map(move |head| HiddenKey { head, query, key })
        });
        let mut keys: Vec<_> = all.collect();
        keys.sort_unstable();
        Self(keys)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys hidden from a query of a head.
    #[inline(always)]
    pub(super) fn of(&self, head: usize, query: usize) -> &[HiddenKey] {
        if self.is_empty() {
            return &[];
        }
        let start = self.0.partition_point(|x| (x.head, x.query) < (head, query));
        let len = self.0[start..].partition_point(|x| (x.head, x.query) == (head, query));
        &self.0[start..start + len]
    }

    /// Whether a key is hidden from a query of a head.
    pub(super) fn hides(&self, head: usize, query: usize, key: usize) -> bool {
        self.of(head, query).iter().any(|x| x.key == key)
    }

    /// The hidden keys in order, and the index of the first one of each (head, query), followed by the number of all: the form
    /// in which the CUDA kernels read them.
    #[cfg(any(feature = "cuda", all(test, target_os = "linux")))]
    #[allow(clippy::cast_possible_truncation)] // heads, T and S are below 2^31 where there is a plan
    pub(super) fn by_row(&self, heads: usize, queries: usize) -> (Vec<u32>, Vec<u32>) {
        let rows = (0..heads).flat_map(|h| (0..queries).map(move |i| (h, i)));
        let start = |row| self.0.partition_point(|x| (x.head, x.query) < row) as u32;
        let starts = rows.map(start).chain([self.0.len() as u32]).collect();
        (starts, self.0.iter().map(|x| x.key as u32).collect())
    }
}
