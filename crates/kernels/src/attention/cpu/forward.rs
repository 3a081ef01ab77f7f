//! The forward pass: which thread computes which queries, and in what order.

use super::log_sum::LogSum;
use super::output::Output;
use super::pack::Packed;
use super::problem::Problem;
use super::row_summary::SummaryOfRow;
use super::rows::{Partial, Span};
use super::sizes::{Blocks, FEW_QUERIES, QUERIES};
use super::summary::RowSummary;
use super::tile::Scratch;
use super::tile_task::TileTask;
use crate::element::Element;
use crate::team;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

/// With this many heads per thread, the last heads to finish are a small part of the whole.
const HEADS_PER_THREAD: usize = 4;

/// A forward pass over all queries: [`CpuAttention`](super::operation::CpuAttention)'s work.
pub(super) struct Forward<'a, E, K = E> {
    pub(super) problem: &'a Problem<'a, E, K>,
    /// (B, T, H, Dv); the pass writes every number.
    pub(super) out: &'a mut [MaybeUninit<E>],
    pub(super) log_sums: &'a mut [LogSum],
    /// (B, H, T)
    pub(super) summaries: Option<&'a mut [RowSummary]>,
}

impl<E: Element, K: Element> WithSimd for Forward<'_, E, K> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        let (d, dims) = (self.problem.q.dims[3], self.problem.context_dims());
        let [_, _, t, dv] = dims;
        assert!(
            self.out.len() == dims.iter().product::<usize>() && self.log_sums.len() * dv == self.out.len()
        );
        assert!(self.summaries.as_ref().is_none_or(|all| all.len() == self.log_sums.len()));
        let out = Output {
            context: self.out.as_mut_ptr().cast(),
            log_sums: self.log_sums.as_mut_ptr(),
            summaries: self.summaries.map(<[RowSummary]>::as_mut_ptr),
            dims,
        };
        if t <= FEW_QUERIES {
            let queries = Span::queries(self.problem);
            let spans = Span::count(self.problem);
            let partials: Vec<Vec<Partial>> = team::map(queries.len() * spans, |task| {
                simd.vectorize(Span::new(self.problem, queries[task / spans].clone(), task % spans))
            });
            for ((b, heads, i), spans) in queries.iter().zip(partials.chunks_exact(spans)) {
                for (n, h) in heads.clone().enumerate() {
                    let row = Partial::merge(spans, n);
                    // SAFETY: each query is written once.
                    unsafe { out.write((*b, h, *i), &row.context, 1.0, row.log_sum()) };
                }
            }
            if out.summaries.is_some() {
                let rows = self.problem.heads().into_iter().flat_map(|(b, h)| (0..t).map(move |i| (b, h, i)));
                // SAFETY: each query is written once.
                rows.collect::<Vec<_>>().into_par_iter().for_each(|query| unsafe {
                    out.write_summary(query, || simd.vectorize(SummaryOfRow(self.problem, query)));
                });
            }
            return;
        }
        let heads = self.problem.heads();
        let [batch, key_heads, ..] = self.problem.k.dims;
        let group = self.problem.group();
        assert!(heads.len() == batch * key_heads * group); // `out` is written head by head
        let width = dv.next_multiple_of(S::F32_LANES);
        let (panel, columns) = (Blocks::of::<S>().panel::<S>(), Blocks::of::<S>().columns::<S>());
        let Problem { k, v, .. } = self.problem;
        // Dropout scales up the weights that it keeps.
        #[allow(clippy::cast_possible_truncation)] // a factor on f32 weights
        let largest_weight = self.problem.dropout.map_or(1.0, |dropout| dropout.kept() as f32);
        let threads = rayon::current_num_threads();
        // If there are enough heads of keys to go round, each task is one with all heads that share it, packed into
        // memory that its worker reuses. Otherwise each task is a tile of a head, whose keys were packed beforehand.
        let whole_heads = batch * key_heads >= HEADS_PER_THREAD * threads;
        let of_keys = |n: usize| (n / key_heads, n % key_heads);
        let packed: Vec<Packed> = if whole_heads {
            vec![]
        } else {
            let pack = |n| {
                let mut packed = Packed::default();
                packed.pack(k, v, of_keys(n), (panel, width, columns), largest_weight);
                packed
            };
            (0..batch * key_heads).into_par_iter().map(pack).collect()
        };
        let tiles = t.div_ceil(QUERIES);
        let tasks = if whole_heads { batch * key_heads } else { tiles * heads.len() };
        let next = AtomicUsize::new(0);
        (0..threads.min(tasks)).into_par_iter().with_max_len(1).for_each(|_| {
            let (mut scratch, mut own) = (Scratch::new(d, width), Packed::default());
            let mut run = |packed: &Packed, head, tile| {
                let (problem, first, scratch) = (self.problem, tile * QUERIES, &mut scratch);
                simd.vectorize(TileTask { problem, packed, head, first, width, scratch, out: &out });
            };
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    return;
                }
                if whole_heads {
                    own.pack(k, v, of_keys(task), (panel, width, columns), largest_weight);
                    // All heads take a tile in turn, so that the keys they share are still in the cache.
                    for tile in 0..tiles {
                        heads[task * group..(task + 1) * group]
                            .iter()
                            .for_each(|head| run(&own, *head, tile));
                    }
                } else {
                    // The last tiles of a head see the most keys, so they run first: no thread is left
                    // with one at the end.
                    let head = task % heads.len();
                    run(&packed[head / group], heads[head], tiles - 1 - task / heads.len());
                }
            }
        });
    }
}
