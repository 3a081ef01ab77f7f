//! The input and output of a pass: views of q, k and v, the settings of all their queries, and the output that threads share.

use super::views::{HeadAt, Heads};
use crate::attention::heads::{Query, WeightDropout};
use crate::attention::row_summary::RowSummary;
use crate::attention::scores::{Base, ScoreRules};
use crate::cpu::element::Element;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// q (B, H, T, D) against k (B, key heads, S, D) and v (B, key heads, S, Dv), which may be of another dtype, or codes.
pub(super) struct PassInputs<'a> {
    pub(super) q: Heads<'a>,
    pub(super) k: Heads<'a>,
    pub(super) v: Heads<'a>,
    pub(super) rules: &'a ScoreRules,
    pub(super) dropout: Option<WeightDropout>,
}

impl PassInputs<'_> {
    /// All heads of all rows of the batch.
    pub(super) fn heads(&self) -> Vec<HeadAt> {
        let [b, h, ..] = self.q.dims;
        (0..b).flat_map(|b| (0..h).map(move |h| HeadAt { b, h })).collect()
    }

    /// The number of heads of queries that share a head of keys and values.
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

/// The base-2 logarithm of a row's `Σ 2^score`, in two parts: its largest score, and the rest. A single number
/// would lose the rest where scores are large.
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

/// The output of a forward pass: the context (B, T, H, Dv), the log-sums (B, H, T) and, if wanted, the summaries (B, H, T).
/// Several threads of one pass write to it, each its own rows.
pub(super) struct SharedOutput<'a> {
    context: *mut (),
    /// [`write_row`] for the context's dtype.
    write_row: unsafe fn(*mut (), usize, &[f32], f32),
    log_sums: *mut LogSum,
    summaries: Option<*mut RowSummary>,
    /// B, H, T and Dv.
    dims: [usize; 4],
    memory: PhantomData<&'a mut ()>,
}

// SAFETY: `write` and `write_summary` are the only accesses, and their callers write each row once.
unsafe impl Sync for SharedOutput<'_> {}

impl<'a> SharedOutput<'a> {
    /// Wraps the memory that a pass over `problem` writes to.
    pub(super) fn new<E: Element>(
        problem: &PassInputs,
        context: &'a mut [MaybeUninit<E>],
        log_sums: &'a mut [LogSum],
        summaries: Option<&'a mut [RowSummary]>,
    ) -> Self {
        let dims = problem.context_dims();
        assert!(context.len() == dims.iter().product::<usize>() && log_sums.len() * dims[3] == context.len());
        assert!(summaries.as_ref().is_none_or(|all| all.len() == log_sums.len()));
        Self {
            context: context.as_mut_ptr().cast(),
            write_row: write_row::<E>,
            log_sums: log_sums.as_mut_ptr(),
            summaries: summaries.map(<[RowSummary]>::as_mut_ptr),
            dims,
            memory: PhantomData,
        }
    }

    /// Whether summaries are wanted.
    pub(super) fn summarizes(&self) -> bool {
        self.summaries.is_some()
    }

    /// Writes `row · factor` and the row's log-sum.
    ///
    /// # Safety
    /// No two calls name the same query.
    pub(super) unsafe fn write(&self, Query { b, h, i }: Query, row: &[f32], factor: f32, log_sum: LogSum) {
        let [batch, heads, t, d] = self.dims;
        assert!(b < batch && h < heads && i < t);
        // SAFETY: (b, h, i) is inside the log-sums, and (b, i, h, ..) inside the context; both are the caller's own.
        unsafe {
            self.log_sums.add((b * heads + h) * t + i).write(log_sum);
            (self.write_row)(self.context, ((b * t + i) * heads + h) * d, &row[..d], factor);
        }
    }

    /// Writes the row's summary, if summaries are wanted.
    ///
    /// # Safety
    /// The conditions of [`write`](Self::write) hold.
    pub(super) unsafe fn write_summary(&self, Query { b, h, i }: Query, find: impl FnOnce() -> RowSummary) {
        let [batch, heads, t, _] = self.dims;
        assert!(b < batch && h < heads && i < t);
        if let Some(summaries) = self.summaries {
            // SAFETY: (b, h, i) is inside the summaries, and this row is the caller's own.
            unsafe { summaries.add((b * heads + h) * t + i).write(find()) };
        }
    }
}

/// `out[start + c] = row[c]·factor`
///
/// # Safety
/// `out` points to numbers of type `E`, at least `start + row.len()` of them, and no other thread uses the ones that this call writes.
unsafe fn write_row<E: Element>(out: *mut (), start: usize, row: &[f32], factor: f32) {
    for (c, x) in row.iter().enumerate() {
        // SAFETY: the caller guarantees it.
        unsafe { out.cast::<E>().add(start + c).write(E::from_f32(x * factor)) };
    }
}
