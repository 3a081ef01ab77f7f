//! What a pass reads and writes: views of q, k and v, the settings of all their queries, and the output that threads share.

use crate::attention::codes::{self, SCALE_BYTES};
use crate::attention::heads::{Query, WeightDropout};
use crate::attention::scores::{Base, ScoreRules};
use crate::attention::summary::RowSummary;
use crate::cpu_op::Input;
use crate::element::Element;
use candle_core::{Layout, Result, WithDType};
use std::mem::MaybeUninit;

/// A head of a row of the batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadAt {
    pub(super) b: usize,
    pub(super) h: usize,
}

impl HeadAt {
    /// Query `i` of the head.
    #[inline(always)]
    pub(super) fn query(self, i: usize) -> Query {
        Query { b: self.b, h: self.h, i }
    }
}

/// An element of a row in memory: a number, or a byte of a row of codes and their scale.
pub(super) trait RowElement: Copy + Send + Sync + 'static {
    /// How many elements a row has besides its numbers.
    const EXTRA: usize;

    /// The numbers of a row: in place if memory holds them as f32, otherwise in `scratch`.
    fn read<'a>(row: &'a [Self], scratch: &'a mut [f32]) -> &'a [f32];

    /// Fills `out` from the row at the start of `data`, whose elements lie `stride` apart.
    fn gather(data: &[Self], stride: usize, out: &mut [f32]);
}

// Inlined so that widening is compiled for its caller's instruction set.
impl<E: Element> RowElement for E {
    const EXTRA: usize = 0;

    #[inline(always)]
    fn read<'a>(row: &'a [Self], scratch: &'a mut [f32]) -> &'a [f32] {
        if let Some(row) = E::as_f32s(row) {
            return row;
        }
        let out = &mut scratch[..row.len()];
        E::widen(row, out);
        out
    }

    #[inline(always)]
    fn gather(data: &[Self], stride: usize, out: &mut [f32]) {
        for (c, x) in out.iter_mut().enumerate() {
            *x = data[c * stride].to_f32();
        }
    }
}

/// Codes and a scale.
impl RowElement for u8 {
    const EXTRA: usize = SCALE_BYTES;

    #[inline(always)]
    fn read<'a>(row: &'a [Self], scratch: &'a mut [f32]) -> &'a [f32] {
        let out = &mut scratch[..row.len() - SCALE_BYTES];
        codes::widen(row, out);
        out
    }

    #[inline(always)]
    fn gather(data: &[Self], stride: usize, out: &mut [f32]) {
        let scale = std::array::from_fn(|i| data[(out.len() + i) * stride]);
        for (c, x) in out.iter_mut().enumerate() {
            *x = codes::number(data[c * stride], scale);
        }
    }
}

/// A tensor (B, H, T, D) with any strides; (B, H, T, D + 4) in memory if its rows are codes. Or the pages of a sequence: T is then
/// the sequence's length.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a, E> {
    data: &'a [E],
    strides: [usize; 4],
    pub(super) dims: [usize; 4],
    pages: Option<InPages<'a>>,
}

/// Where the rows of a sequence lie.
#[derive(Clone, Copy)]
struct InPages<'a> {
    table: &'a [u32],
    /// Positions in a page.
    size: u32,
    /// From one page to the next, in elements.
    stride: usize,
}

impl<'a, E: RowElement> Heads<'a, E> {
    pub(super) fn of(Input { storage, layout }: Input<'a>) -> Result<Self>
    where
        E: WithDType,
    {
        Self::new(storage.as_slice()?, layout)
    }

    /// # Errors
    /// When the layout is not of rank 4 or reaches beyond `data`.
    pub(super) fn new(data: &'a [E], layout: &Layout) -> Result<Self> {
        let (b, h, t, width) = layout.shape().dims4()?;
        let stored = [b, h, t, width];
        let dims = [b, h, t, width.saturating_sub(E::EXTRA)];
        let mut strides = [0; 4];
        strides.copy_from_slice(layout.stride());
        let data = data.get(layout.start_offset()..).unwrap_or_default();
        let end: usize = stored.iter().zip(&strides).map(|(n, s)| n.saturating_sub(1) * s).sum();
        // A dimension of stride 0 can make the count arbitrarily large.
        let count = stored.iter().try_fold(1usize, |count, n| count.checked_mul(*n));
        if dims.contains(&0) || end >= data.len() || count.is_none() {
            candle_core::bail!(
                "attention: a layout of {stored:?} with strides {strides:?} is outside its data"
            )
        }
        Ok(Self { data, strides, dims, pages: None })
    }

    /// The `len` rows of a sequence in the pages of `table`: from a pool (pages, page size, H, D) to (1, H, len, D).
    pub(super) fn in_pages(pool: Input<'a>, table: &'a [u32], len: usize) -> Result<Self>
    where
        E: WithDType,
    {
        let Self { data, strides: [stride, position, head, number], dims: [pages, size, h, d], .. } =
            Self::of(pool)?;
        let used =
            table.get(..len.div_ceil(size)).filter(|used| used.iter().all(|page| (*page as usize) < pages));
        let (Some(table @ [_, ..]), Ok(_), Ok(size)) = (used, u32::try_from(len), u32::try_from(size)) else {
            candle_core::bail!(
                "attention: {len} positions are not in pages {table:?} of {pages}, {size} positions each"
            )
        };
        Ok(Self {
            data,
            strides: [0, head, position, number],
            dims: [1, h, len, d],
            pages: Some(InPages { table, size, stride }),
        })
    }

    /// Row `i` of a head as f32: borrowed in place if memory holds it that way, otherwise copied into `scratch` (D).
    #[inline(always)]
    pub(super) fn row<'b>(&self, head: HeadAt, i: usize, scratch: &'b mut [f32]) -> &'b [f32]
    where
        'a: 'b,
    {
        let [sb, sh, st, sd] = self.strides;
        let start = match self.pages {
            None => head.b * sb + head.h * sh + i * st,
            #[allow(clippy::cast_possible_truncation)] // `in_pages` has checked the length
            Some(InPages { table, size, stride }) => {
                let (page, position) = (i as u32 / size, i as u32 % size);
                table[page as usize] as usize * stride + head.h * sh + position as usize * st
            }
        };
        let d = self.dims[3];
        if sd == 1 {
            return E::read(&self.data[start..start + d + E::EXTRA], scratch);
        }
        let out = &mut scratch[..d];
        E::gather(&self.data[start..], sd, out);
        out
    }
}

/// q (B, H, T, D) against k (B, key heads, S, D) and v (B, key heads, S, Dv), which may be of another dtype, or codes.
pub(super) struct Problem<'a, E, K = E> {
    pub(super) q: Heads<'a, E>,
    pub(super) k: Heads<'a, K>,
    pub(super) v: Heads<'a, K>,
    pub(super) rules: &'a ScoreRules,
    pub(super) dropout: Option<WeightDropout>,
}

impl<E, K> Problem<'_, E, K> {
    /// All heads of all rows of the batch.
    pub(super) fn heads(&self) -> Vec<HeadAt> {
        let [b, h, ..] = self.q.dims;
        (0..b).flat_map(|b| (0..h).map(move |h| HeadAt { b, h })).collect()
    }

    /// How many heads share a head of keys and values.
    pub(super) fn group(&self) -> usize {
        self.q.dims[1] / self.k.dims[1]
    }

    /// The head of keys and values that a head reads.
    pub(super) fn key_head(&self, HeadAt { b, h }: HeadAt) -> HeadAt {
        HeadAt { b, h: h / self.group() }
    }

    /// The sizes of the context: B, H, T and Dv.
    pub(super) fn context_dims(&self) -> [usize; 4] {
        let [b, h, t, _] = self.q.dims;
        [b, h, t, self.v.dims[3]]
    }

    /// The factor on q with which the rules make scores in base 2.
    pub(super) fn query_factor(&self) -> f32 {
        self.rules.query_factor(Base::Two)
    }

    /// A row's log-sum, and the factor that makes weights of `2^(score - max)`, whose sum is `sum`: 0 if it sees no key. The
    /// head's sink joins both.
    #[inline(always)]
    pub(super) fn finish_row(&self, head: usize, max: f32, sum: f32) -> (LogSum, f32) {
        let Some(sink) = self.rules.sink(head, Base::Two) else {
            return (LogSum { max, rest: sum.log2() }, if sum == 0.0 { 0.0 } else { 1.0 / sum });
        };
        // 2^(sink - max) alone may be infinite.
        let highest = max.max(sink);
        let scale = (max - highest).exp2();
        let total = sum * scale + (sink - highest).exp2();
        (LogSum { max: highest, rest: total.log2() }, scale / total)
    }

    /// Dropout on the weights of a query, from key `first` on.
    #[inline(always)]
    pub(super) fn drop_weights(&self, query: Query, first: usize, weights: &mut [f32]) {
        if let Some(dropout) = &self.dropout {
            dropout.scale_row(query, first, weights);
        }
    }
}

/// The base-2 logarithm of a row's `Σ 2^score`, as a sum of two: of its largest score, and of what the others add to it. One
/// number would lose the second where scores are large.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LogSum {
    pub(super) max: f32,
    /// The logarithm of `Σ 2^(score - max)`: -inf if the row sees no key and has no sink.
    pub(super) rest: f32,
}

impl LogSum {
    /// The weight of a score in base 2.
    #[inline(always)]
    pub(super) fn weight(self, score: f32) -> f32 {
        (score - self.max - self.rest).exp2()
    }

    /// The natural logarithm.
    #[allow(clippy::cast_possible_truncation)] // the result is f32
    #[allow(clippy::float_cmp)] // exactly the lowest number
    pub(super) fn natural(self) -> f32 {
        let in_base = f64::from(self.max) + f64::from(self.rest);
        // The lowest finite number is the same in every base.
        if self.max == f32::MIN { f32::MIN } else { (in_base * std::f64::consts::LN_2) as f32 }
    }
}

/// What a forward pass writes: the context (B, T, H, Dv), the log-sums (B, H, T) and, if wanted, the summaries (B, H, T).
/// Several threads write to it, each its own rows.
pub(super) struct SharedOutput<E> {
    pub(super) context: *mut E,
    pub(super) log_sums: *mut LogSum,
    pub(super) summaries: Option<*mut RowSummary>,
    /// B, H, T and Dv.
    pub(super) dims: [usize; 4],
}

// SAFETY: `write` and `write_summary` are the only accesses, and their callers write each row once.
unsafe impl<E: Send> Sync for SharedOutput<E> {}

impl<E: Element> SharedOutput<E> {
    /// What a pass over `problem` writes to.
    pub(super) fn new<K>(
        problem: &Problem<E, K>,
        context: &mut [MaybeUninit<E>],
        log_sums: &mut [LogSum],
        summaries: Option<&mut [RowSummary]>,
    ) -> Self {
        let dims = problem.context_dims();
        assert!(context.len() == dims.iter().product::<usize>() && log_sums.len() * dims[3] == context.len());
        assert!(summaries.as_ref().is_none_or(|all| all.len() == log_sums.len()));
        Self {
            context: context.as_mut_ptr().cast(),
            log_sums: log_sums.as_mut_ptr(),
            summaries: summaries.map(<[RowSummary]>::as_mut_ptr),
            dims,
        }
    }

    /// Writes `row · factor` and the row's log-sum.
    ///
    /// # Safety
    /// No two calls name the same query.
    pub(super) unsafe fn write(&self, Query { b, h, i }: Query, row: &[f32], factor: f32, log_sum: LogSum) {
        let [batch, heads, t, d] = self.dims;
        assert!(b < batch && h < heads && i < t);
        // SAFETY: (b, h, i) is inside the log-sums, and this row is the caller's own.
        unsafe { self.log_sums.add((b * heads + h) * t + i).write(log_sum) };
        let start = ((b * t + i) * heads + h) * d;
        for (c, x) in row[..d].iter().enumerate() {
            // SAFETY: (b, i, h, c) is inside the output, and this row is the caller's own.
            unsafe { self.context.add(start + c).write(E::from_f32(x * factor)) };
        }
    }

    /// Writes the row's summary, if summaries are wanted.
    ///
    /// # Safety
    /// No two calls name the same query.
    pub(super) unsafe fn write_summary(&self, Query { b, h, i }: Query, find: impl FnOnce() -> RowSummary) {
        let [batch, heads, t, _] = self.dims;
        assert!(b < batch && h < heads && i < t);
        if let Some(summaries) = self.summaries {
            // SAFETY: (b, h, i) is inside the summaries, and this row is the caller's own.
            unsafe { summaries.add((b * heads + h) * t + i).write(find()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each layout with the numbers that it reaches, and with one less.
    #[test]
    fn a_layout_stays_inside_its_data() {
        let data = [0f32; 200];
        for (dims, strides, offset, reach) in [
            ([2, 3, 4, 5], [60, 20, 5, 1], 0, 120),
            ([2, 3, 4, 5], [60, 20, 5, 1], 10, 130),
            ([1, 1, 4, 5], [0, 0, 10, 2], 1, 1 + 3 * 10 + 4 * 2 + 1),
            ([9, 3, 4, 5], [0, 20, 5, 1], 0, 60),
            ([1, 1, 1, 1], [7, 7, 7, 7], 199, 200),
        ] {
            let layout = Layout::new(dims.to_vec().into(), strides.to_vec(), offset);
            assert!(Heads::new(&data[..reach], &layout).is_ok_and(|heads| heads.dims == dims), "{layout:?}");
            assert!(Heads::new(&data[..reach - 1], &layout).is_err(), "{layout:?}");
        }
        for (dims, strides, offset) in [
            ([2, 3, 0, 5], [0; 4], 0),
            ([0, 3, 4, 5], [0; 4], 0),
            ([1, 1, 1, 1], [1; 4], 201),
            ([1 << 32, 1 << 32, 1, 1], [0; 4], 0), // more rows than can be counted
        ] {
            let layout = Layout::new(dims.to_vec().into(), strides.to_vec(), offset);
            assert!(Heads::new(&data[..], &layout).is_err(), "{layout:?}");
        }
        assert!(Heads::new(&data[..], &Layout::contiguous((4, 5))).is_err());
    }

    #[test]
    fn a_row_of_codes_has_room_for_its_scale() {
        let data = [0u8; 10];
        let heads = |width: usize| Heads::new(&data[..], &Layout::contiguous((1, 1, 2, width)));
        assert!(heads(5).is_ok_and(|heads| heads.dims == [1, 1, 2, 1]));
        assert!(heads(4).is_err() && heads(6).is_err());
    }
}
