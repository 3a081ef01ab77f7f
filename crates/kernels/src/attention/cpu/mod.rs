//! Fused causal attention on the CPU: no (T, S) tensor, memory linear in S, forward and [`backward`].
//!
//! Keys are packed once a head; then each task takes a tile of queries through the keys that it sees
//! (see [`tile`]). Few queries in front of many keys (decoding) skip the packing and read k and v where
//! they lie (see [`rows`]). The instruction set is chosen at run time by `pulp`. A result depends on
//! neither the number of threads nor their order: a row is computed by one task, or by tasks of a fixed size
//! whose results are merged in order.

#![allow(unsafe_code)] // register blocks and the shared output; each block says why it is sound

mod backward;
mod blocks;
mod heads;
mod output;
mod pack;
mod rows;
mod summary;
mod tile;
mod weights;

pub(super) use summary::{RowSummary, position};
pub(super) use weights::CpuWeights;

use super::mask::CpuMask;
use crate::Dropout;
use crate::element::Element;
use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor, WithDType};
use half::{bf16, f16};
use heads::Heads;
use output::Output;
use pack::{Packed, transpose};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use rows::{Found, Span};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tile::{Blocks, QUERIES, Scratch, Tile};

/// Up to this many queries are read row by row: packing the keys would cost more than it saves.
const FEW_QUERIES: usize = 4;

/// With so many heads for each thread, the last ones to finish are a small part of the whole.
const HEADS_PER_THREAD: usize = 4;

/// The operation as Candle sees it.
pub(super) struct CpuAttention {
    scale: f64,
    mask: CpuMask,
    dropout: Option<Dropout>,
    /// (B, H, T): the base-2 logarithm of each row's `Σ 2^score`, which the forward pass leaves for the
    /// backward pass.
    log_sums: OnceLock<Vec<f32>>,
    summarise: bool,
    /// (B, H, T), which the forward pass leaves where it is to `summarise`.
    summaries: Arc<OnceLock<Vec<RowSummary>>>,
}

impl CpuAttention {
    pub(super) fn new(scale: f64, mask: CpuMask, dropout: Option<Dropout>, summarise: bool) -> Self {
        Self { scale, mask, dropout, log_sums: OnceLock::new(), summarise, summaries: Arc::default() }
    }

    /// Where the forward pass leaves the summary of each row (B, H, T).
    pub(super) fn summaries(&self) -> Arc<OnceLock<Vec<RowSummary>>> {
        self.summaries.clone()
    }

    fn run<E: Element + WithDType>(
        &self,
        (q, q_layout): (&[E], &Layout),
        (k, k_layout): (&[E], &Layout),
        (v, v_layout): (&[E], &Layout),
    ) -> Result<(CpuStorage, Shape)> {
        let (q, k, v) = (Heads::new(q, q_layout)?, Heads::new(k, k_layout)?, Heads::new(v, v_layout)?);
        let [b, h, t, d] = q.dims;
        let mut out = Vec::with_capacity(b * t * h * d);
        let mut log_sums = vec![0.0; b * h * t];
        let mut summaries = vec![RowSummary::default(); if self.summarise { b * h * t } else { 0 }];
        let problem = Problem { q, k, v, scale: self.scale, mask: &self.mask, dropout: self.dropout };
        let uninit = &mut out.spare_capacity_mut()[..b * t * h * d];
        let (log, found) = (&mut log_sums, self.summarise.then_some(summaries.as_mut_slice()));
        Arch::new().dispatch(Run { problem: &problem, out: uninit, log_sums: log, summaries: found });
        // SAFETY: `Run` has written every row.
        unsafe { out.set_len(b * t * h * d) };
        // A second forward pass of the same operation would find the same.
        let _ = self.log_sums.set(log_sums);
        if self.summarise {
            let _ = self.summaries.set(summaries);
        }
        Ok((E::to_cpu_storage_owned(out), Shape::from((b, t, h, d))))
    }
}

impl CustomOp3 for CpuAttention {
    fn name(&self) -> &'static str {
        "causal-attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        use CpuStorage as C;
        match (q, k, v) {
            (C::F32(q), C::F32(k), C::F32(v)) => self.run((q, q_layout), (k, k_layout), (v, v_layout)),
            (C::F16(q), C::F16(k), C::F16(v)) => self.run((q, q_layout), (k, k_layout), (v, v_layout)),
            (C::BF16(q), C::BF16(k), C::BF16(v)) => self.run((q, q_layout), (k, k_layout), (v, v_layout)),
            _ => candle_core::bail!("causal attention: q, k and v must be all f32, all f16 or all bf16"),
        }
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        context: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let Some(log_sums) = self.log_sums.get() else {
            candle_core::bail!("causal attention: a backward pass without a forward pass before it")
        };
        let given = backward::Given { scale: self.scale, mask: &self.mask, dropout: self.dropout, log_sums };
        let [dq, dk, dv] = match q.dtype() {
            DType::F16 => given.gradients::<f16>([q, k, v, context, grad])?,
            DType::BF16 => given.gradients::<bf16>([q, k, v, context, grad])?,
            _ => given.gradients::<f32>([q, k, v, context, grad])?,
        };
        Ok((Some(dq), Some(dk), Some(dv)))
    }
}

/// q (B, H, T, D) against k and v (B, H, S, D).
struct Problem<'a, E> {
    q: Heads<'a, E>,
    k: Heads<'a, E>,
    v: Heads<'a, E>,
    scale: f64,
    mask: &'a CpuMask,
    dropout: Option<Dropout>,
}

impl<E> Problem<'_, E> {
    /// All (b, h).
    fn heads(&self) -> Vec<(usize, usize)> {
        let [b, h, ..] = self.q.dims;
        (0..b).flat_map(|b| (0..h).map(move |h| (b, h))).collect()
    }

    /// The factor that turns q·k into the exponent of a power of 2.
    #[allow(clippy::cast_possible_truncation)] // the scale of f32 scores
    fn base_2_scale(&self) -> f32 {
        (self.scale * std::f64::consts::LOG2_E) as f32
    }

    /// Dropout on the weights of query `i` of a head, from key `first` on.
    #[inline(always)]
    fn drop_weights(&self, (b, h): (usize, usize), i: usize, first: usize, weights: &mut [f32]) {
        if let Some(dropout) = &self.dropout {
            let [_, heads, t, _] = self.q.dims;
            dropout.scale_row((b * heads + h) * t + i, first, weights);
        }
    }
}

impl<E: Element> Problem<'_, E> {
    /// The summary of a query (b, h, i) whose weights are held for it.
    #[inline(always)]
    fn summary_of_row<S: Simd>(&self, simd: S, query: (usize, usize, usize)) -> RowSummary {
        let (s, (b, h, i)) = (self.k.dims[2], query);
        let mut weights = vec![0.0; s - self.q.dims[2] + i + 1];
        let head = weights::Head { q: self.q, k: self.k, place: (b, h), scale: self.scale, seen: &[] };
        let hide = |_, scores: &mut [f32]| self.mask.hide(query, s, 0, scores);
        weights::OneRow { head: &head, i, hide: &hide, out: &mut weights }.with_simd(simd);
        RowSummary::of(&weights, self.mask.first_key(b, s))
    }
}

struct Run<'a, E> {
    problem: &'a Problem<'a, E>,
    /// (B, T, H, D); every number is written.
    out: &'a mut [MaybeUninit<E>],
    log_sums: &'a mut [f32],
    /// (B, H, T)
    summaries: Option<&'a mut [RowSummary]>,
}

impl<E: Element> WithSimd for Run<'_, E> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        let dims @ [.., t, d] = self.problem.q.dims;
        assert!(
            self.out.len() == dims.iter().product::<usize>() && self.log_sums.len() * d == self.out.len()
        );
        assert!(self.summaries.as_ref().is_none_or(|all| all.len() == self.log_sums.len()));
        let out = Output {
            context: self.out.as_mut_ptr().cast(),
            log_sums: self.log_sums.as_mut_ptr(),
            summaries: self.summaries.map(<[RowSummary]>::as_mut_ptr),
            dims,
        };
        let heads = self.problem.heads();
        if t <= FEW_QUERIES {
            let queries: Vec<_> = heads.iter().flat_map(|&(b, h)| (0..t).map(move |i| (b, h, i))).collect();
            let spans = Span::count(self.problem);
            let found: Vec<Found> = (0..queries.len() * spans)
                .into_par_iter()
                .map(|task| simd.vectorize(Span::new(self.problem, queries[task / spans], task % spans)))
                .collect();
            for (&query, spans) in queries.iter().zip(found.chunks_exact(spans)) {
                let row = Found::merge(spans);
                // SAFETY: each query once.
                unsafe { out.write(query, &row.context, 1.0, row.log_sum()) };
            }
            if out.summaries.is_some() {
                // SAFETY: each query once.
                queries.into_par_iter().for_each(|query| unsafe {
                    out.write_summary(query, || simd.vectorize(SummaryOfRow(self.problem, query)));
                });
            }
            return;
        }
        let width = d.next_multiple_of(S::F32_LANES);
        let panel = Blocks::of::<S>().panel::<S>();
        let Problem { k, v, .. } = self.problem;
        // Dropout makes what it leaves larger.
        #[allow(clippy::cast_possible_truncation)] // a factor on f32 weights
        let largest_weight = self.problem.dropout.map_or(1.0, |d| (1.0 / (1.0 - d.rate())) as f32);
        let threads = rayon::current_num_threads();
        // Where there are heads enough to share out, a task is a head, packed into memory that its worker
        // keeps. Else it is a tile of a head that was packed before.
        let whole_heads = heads.len() >= HEADS_PER_THREAD * threads;
        let packed: Vec<Packed> = if whole_heads {
            vec![]
        } else {
            let pack = |&head| {
                let mut packed = Packed::default();
                packed.pack(k, v, head, (panel, width), largest_weight);
                packed
            };
            heads.par_iter().map(pack).collect()
        };
        let tiles = t.div_ceil(QUERIES);
        let tasks = if whole_heads { heads.len() } else { tiles * heads.len() };
        let next = AtomicUsize::new(0);
        (0..threads.min(tasks)).into_par_iter().with_max_len(1).for_each(|_| {
            let (mut scratch, mut own) = (Scratch::new(d, width), Packed::default());
            let mut run = |packed: &Packed, head, tile| {
                let (problem, first, scratch) = (self.problem, tile * QUERIES, &mut scratch);
                simd.vectorize(TileJob { problem, packed, head, first, width, scratch, out: &out });
            };
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    return;
                }
                let index = task % heads.len();
                if whole_heads {
                    own.pack(k, v, heads[index], (panel, width), largest_weight);
                    (0..tiles).for_each(|tile| run(&own, heads[index], tile));
                } else {
                    // The last tiles of a head see the most keys: they come first, so that no thread is
                    // left with one at the end.
                    run(&packed[index], heads[index], tiles - 1 - task / heads.len());
                }
            }
        });
    }
}

/// [`Problem::summary_of_row`] inside the instruction set's own function.
struct SummaryOfRow<'a, E>(&'a Problem<'a, E>, (usize, usize, usize));

impl<E: Element> WithSimd for SummaryOfRow<'_, E> {
    type Output = RowSummary;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> RowSummary {
        self.0.summary_of_row(simd, self.1)
    }
}

/// One tile of one head, from q to the output.
struct TileJob<'a, E> {
    problem: &'a Problem<'a, E>,
    packed: &'a Packed,
    head: (usize, usize),
    first: usize,
    width: usize,
    scratch: &'a mut Scratch,
    out: &'a Output<E>,
}

impl<E: Element> WithSimd for TileJob<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let [_, _, t, d] = self.problem.q.dims;
        let (b, h) = self.head;
        let rows = QUERIES.min(t - self.first);
        if !self.packed.summable {
            for i in self.first..self.first + rows {
                let span = |n| Span::new(self.problem, (b, h, i), n).with_simd(simd);
                let spans: Vec<Found> = (0..Span::count(self.problem)).map(span).collect();
                let row = Found::merge(&spans);
                // SAFETY: each (head, i) once: tiles do not overlap.
                unsafe {
                    self.out.write((b, h, i), &row.context, 1.0, row.log_sum());
                    self.out.write_summary((b, h, i), || self.problem.summary_of_row(simd, (b, h, i)));
                }
            }
            return;
        }
        self.load_queries(Blocks::of::<S>().rows(), rows);
        let problem = self.problem;
        let tile = Tile {
            packed: self.packed,
            drop: |i, start, weights: &mut [f32]| problem.drop_weights((b, h), i, start, weights),
            mask: self.problem.mask,
            head: self.head,
            d,
            width: self.width,
            first_key: self.problem.mask.first_key(b, self.problem.k.dims[2]),
            keys: self.problem.k.dims[2],
            past: self.problem.k.dims[2] - t,
            first: self.first,
            rows,
        };
        if self.out.summaries.is_some() {
            tile.run::<S, true>(simd, self.scratch);
        } else {
            tile.run::<S, false>(simd, self.scratch);
        }
        for r in 0..rows {
            let sum = self.scratch.sum[r];
            let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            let log_sum = self.scratch.max[r] + sum.log2();
            let row = &self.scratch.context[r * self.width..(r + 1) * self.width];
            // SAFETY: each (head, i) once: tiles do not overlap.
            unsafe {
                let query = (b, h, self.first + r);
                self.out.write(query, row, factor, log_sum);
                self.out.write_summary(query, || self.scratch.gathered[r].finish(sum, log_sum));
            }
        }
    }
}

impl<E: Element> TileJob<'_, E> {
    /// Queries times `scale·log2(e)`, depth-major in groups of `group` rows.
    #[inline(always)]
    fn load_queries(&mut self, group: usize, rows: usize) {
        let q = &self.problem.q;
        let d = q.dims[3];
        for (i, out) in self.scratch.queries.chunks_exact_mut(group * d).enumerate() {
            let rows = (i * group).min(rows)..((i + 1) * group).min(rows);
            let rows = self.first + rows.start..self.first + rows.end;
            transpose(q, self.head, rows, self.problem.base_2_scale(), out, group);
        }
    }
}

#[cfg(test)]
mod tests;
