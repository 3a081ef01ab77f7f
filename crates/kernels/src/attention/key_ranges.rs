//! [`KeyRanges`]: the keys that each query sees, as ranges instead of a (T, S) tensor.

use candle_core::{Device, Result, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// Ranges of keys that each query sees, of those that its [`Window`](super::Window) and the other masks let it see: for a
/// prefix that is seen as a whole, global keys beside a sliding window, the branches of a tree of drafts, or any other
/// block-sparse pattern. On the CPU, memory is that of the ranges, and the kernels skip blocks of keys that no query of a block
/// sees; plain operations, on a GPU as well, make a (T, S) mask of them. Clones share the ranges.
///
/// Three drafts after a text of 5 tokens, of which the last two are alternatives to each other:
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::attention::{KeyRanges, Mask, Sdpa, Window};
///
/// # fn main() -> candle_core::Result<()> {
/// let text_and = |own: &[usize]| [0..5].into_iter().chain(own.iter().map(|&key| key..key + 1)).collect();
/// let tree = KeyRanges::new(&[vec![text_and(&[5]), text_and(&[5, 6]), text_and(&[5, 7])]])?;
/// let q = Tensor::randn(0f32, 1., (1, 2, 3, 16), &Device::Cpu)?;
/// let k = Tensor::randn(0f32, 1., (1, 2, 8, 16), &Device::Cpu)?;
/// let mask = Mask { ranges: Some(&tree), ..Mask::default() };
/// let context = Sdpa { window: Window::ALL, ..Sdpa::default() }.forward(&q, &k, &k, mask)?;
/// assert_eq!(context.dims(), [1, 3, 2, 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRanges(Arc<Lists>);

/// The lists one after another.
#[derive(Debug, PartialEq, Eq)]
struct Lists {
    /// B or 1
    rows: usize,
    /// T
    queries: usize,
    /// The index of each query's first range, then the number of all ranges: (rows·T + 1)
    starts: Vec<usize>,
    /// The ranges of one query after another: in order, not empty, and with hidden keys between any two of a query.
    ranges: Vec<Range<usize>>,
    /// The end of the last range of all.
    end: usize,
}

impl KeyRanges {
    /// For each row of the batch, or for one that stands for all, the ranges of each of T queries, in any order.
    ///
    /// # Errors
    /// When there is no row, or the rows do not have the same number of queries.
    pub fn new(rows: &[Vec<Vec<Range<usize>>>]) -> Result<Self> {
        let queries = rows.first().map_or(0, Vec::len);
        if rows.is_empty() || rows.iter().any(|row| row.len() != queries) {
            let lengths: Vec<_> = rows.iter().map(Vec::len).collect();
            candle_core::bail!("attention: ranges of keys need rows of as many queries each, got {lengths:?}")
        }
        let mut starts = vec![0];
        let mut all = Vec::<Range<usize>>::new();
        for query in rows.iter().flatten() {
            let first = all.len();
            let mut sorted: Vec<_> = query.iter().filter(|range| !range.is_empty()).cloned().collect();
            sorted.sort_unstable_by_key(|range| range.start);
            for range in sorted {
                match all[first..].last_mut() {
                    Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                    _ => all.push(range),
                }
            }
            starts.push(all.len());
        }
        let end = all.iter().map(|range| range.end).max().unwrap_or(0);
        Ok(Self(Arc::new(Lists { rows: rows.len(), queries, starts, ranges: all, end })))
    }

    /// Fails if the ranges are not those of T queries in B rows, or reach beyond S keys.
    pub(super) fn check(&self, b: usize, t: usize, s: usize) -> Result<()> {
        let Lists { rows, queries, end, .. } = &*self.0;
        if ![1, b].contains(rows) || *queries != t || *end > s {
            candle_core::bail!(
                "attention: ranges of keys must be those of {t} queries in {b} rows or 1, up to key {s}, got {queries} queries \
                 in {rows} rows, up to {end}"
            )
        }
        Ok(())
    }

    /// The ranges of query `i` of row `b`.
    #[inline(always)]
    fn of(&self, b: usize, i: usize) -> &[Range<usize>] {
        let lists = &*self.0;
        let row = if lists.rows == 1 { i } else { b * lists.queries + i };
        &lists.ranges[lists.starts[row]..lists.starts[row + 1]]
    }

    /// The ranges of a query that end after key `start`.
    #[inline(always)]
    fn ending_after(&self, b: usize, i: usize, start: usize) -> &[Range<usize>] {
        let ranges = self.of(b, i);
        &ranges[ranges.partition_point(|range| range.end <= start)..]
    }

    /// Whether a query sees a key.
    pub(super) fn contains(&self, b: usize, i: usize, key: usize) -> bool {
        self.ending_after(b, i, key).first().is_some_and(|range| range.start <= key)
    }

    /// Whether any of some queries of row `b` sees any of some keys.
    pub(super) fn any(&self, b: usize, mut queries: Range<usize>, keys: &Range<usize>) -> bool {
        queries
            .any(|i| self.ending_after(b, i, keys.start).first().is_some_and(|range| range.start < keys.end))
    }

    /// Sets the scores of keys that a query does not see to -inf. `scores` belong to the keys from `start` on.
    #[inline(always)]
    pub(super) fn hide(&self, b: usize, i: usize, start: usize, scores: &mut [f32]) {
        let mut hidden = 0;
        for range in self.ending_after(b, i, start) {
            let at = |key: usize| key.saturating_sub(start).min(scores.len());
            let first = at(range.start);
            let end = at(range.end);
            scores[hidden..first].fill(f32::NEG_INFINITY);
            hidden = end;
            if end == scores.len() {
                return;
            }
        }
        scores[hidden..].fill(f32::NEG_INFINITY);
    }

    /// Of some queries, u8 (B or 1, 1, queries, S): 1 if a query sees a key.
    pub(super) fn tensor(&self, queries: &[usize], s: usize, device: &Device) -> Result<Tensor> {
        let batch = self.0.rows;
        let mut visible = vec![0u8; batch * queries.len() * s];
        let places = (0..batch).flat_map(|b| queries.iter().map(move |&i| (b, i)));
        for ((b, i), row) in places.zip(visible.chunks_exact_mut(s.max(1))) {
            self.of(b, i).iter().for_each(|range| row[range.clone()].fill(1));
        }
        Tensor::from_vec(visible, (batch, 1, queries.len(), s), device)
    }
}
