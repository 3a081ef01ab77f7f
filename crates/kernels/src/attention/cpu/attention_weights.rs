//! The weights of chosen queries on the CPU: the forward pass's micro-kernel computes the scores, a tile of
//! queries at a time, and a softmax then runs on each row in place.

use super::blocks::{Blocks, FEW_QUERIES, NARROW_SCORES, QUERIES, WIDE_SCORES, outer};
use super::pack::{panels, transpose};
use super::pass_inputs::PassInputs;
use super::row_steps::ScoreKeys;
use super::views::{HeadAt, Heads};
use crate::attention::heads::Query;
use crate::attention::inputs::ChosenIndices;
use crate::attention::row_summary::RowSummary;
use crate::attention::scores::{Base, ScoreRules};
use crate::cpu::cpu_op::{CpuInput, CpuOp};
use crate::cpu::isa;
use crate::cpu::vector::{chunked, with_slices};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Device, Result, Shape, Tensor};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// The operation as Candle sees it: q (B, heads, queries, D) and k (B, heads, S, D), both holding only
/// `rows` -> weights (B, heads, queries, S).
pub(in crate::attention) struct CpuWeights {
    pub(in crate::attention) rules: ScoreRules,
    pub(in crate::attention) rows: ChosenIndices,
}

impl CpuOp<2> for CpuWeights {
    const NAME: &'static str = "attention-weights";

    fn forward(&self, [q, k]: [CpuInput; 2]) -> Result<(CpuStorage, Shape)> {
        match [q, k].map(|x| x.storage.dtype()) {
            [DType::F32, DType::F32] | [DType::F16, DType::F16] | [DType::BF16, DType::BF16] => {
                Ok(self.run(Heads::of(q)?, Heads::of(k)?))
            }
            _ => candle_core::bail!("attention weights: q and k must be both f32, both f16 or both bf16"),
        }
    }

    /// `dS = w ∘ (g - rowsum(w ∘ g))`, times the slope of the score; `dQ = dS·K`, `dK = dSᵀ·Q`
    fn backward(&self, [q, k]: [&Tensor; 2], weights: &Tensor, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let d_scores = softmax_backward(weights, &grad.contiguous()?, &self.seen().collect::<Vec<_>>())?;
        let wide = |x: &Tensor| x.detach().to_dtype(DType::F32)?.contiguous();
        let q_wide = wide(q)?;
        let k_wide = self.without_padding(&wide(k)?)?;
        let d_scores = self.rules.products_gradient(&d_scores, &q_wide, &k_wide)?; // (B, heads, queries, S)
        let dq = d_scores.matmul(&k_wide)?.to_dtype(q.dtype())?;
        let dk = d_scores.transpose(2, 3)?.contiguous()?.matmul(&q_wide)?.to_dtype(k.dtype())?;
        Ok([Some(dq), Some(dk)])
    }
}

impl CpuWeights {
    /// k (B, heads, S, D) with zeros for keys that are padding: 0 times what stands there may be NaN.
    fn without_padding(&self, k: &Tensor) -> Result<Tensor> {
        let Some(visible) = &self.rules.mask.padding else { return Ok(k.clone()) };
        let (b, _, s, _) = k.dims4()?;
        let visible = Tensor::from_slice(visible, (b, 1, s, 1), k.device())?.broadcast_as(k.shape())?;
        visible.where_cond(k, &k.zeros_like()?)
    }

    /// The keys that each query sees by its position.
    fn seen(&self) -> impl Iterator<Item = Range<usize>> {
        self.rows.queries.iter().map(|&i| self.rules.keys_of(i))
    }

    fn run(&self, q: Heads, k: Heads) -> (CpuStorage, Shape) {
        let [b, h, t, _] = q.dims;
        let s = k.dims[2];
        let fill = |i: usize, out: &mut [MaybeUninit<f32>]| {
            let place = HeadAt { b: i / h, h: i % h };
            let head = QueriesAndKeys { q, k, of_queries: place, of_keys: place, rules: &self.rules };
            let in_layer = HeadAt { b: i / h, h: self.rows.heads[i % h] };
            let rows = ChosenRows { head: in_layer, queries: &self.rows.queries };
            isa::arch().dispatch(AllRows { head: &head, rows, out });
        };
        // SAFETY: `AllRows` writes every row of a head, and `written` every number of a row.
        let out = unsafe { chunked(b * h * t * s, t * s, fill) };
        (CpuStorage::F32(out), Shape::from((b, h, t, s)))
    }
}

/// One head's queries and keys.
struct QueriesAndKeys<'a> {
    q: Heads<'a>,
    k: Heads<'a>,
    /// The head's place in q.
    of_queries: HeadAt,
    /// Its place in k.
    of_keys: HeadAt,
    rules: &'a ScoreRules,
}

/// Maps the rows of a head to their queries in the whole layer.
#[derive(Clone, Copy)]
struct ChosenRows<'a> {
    head: HeadAt,
    queries: &'a [usize],
}

impl ChosenRows<'_> {
    #[inline(always)]
    fn query(&self, row: usize) -> Query {
        self.head.query(self.queries[row])
    }
}

/// All weights of a head.
struct AllRows<'a> {
    head: &'a QueriesAndKeys<'a>,
    rows: ChosenRows<'a>,
    /// (queries, S)
    out: &'a mut [MaybeUninit<f32>],
}

impl WithSimd for AllRows<'_> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        let Self { head, rows, out } = self;
        let [_, _, s, d] = head.k.dims;
        if rows.queries.len() <= FEW_QUERIES {
            out.par_chunks_mut(s).enumerate().for_each(|(i, out)| {
                let query = rows.query(i);
                let out = written(out, &[], head.rules.keys_of(query.i).end);
                simd.vectorize(OneRow { head, query, i, out });
            });
            return;
        }
        let blocks = Blocks::of::<S>();
        let keys = panels(simd, &head.k, head.of_keys, blocks.panel::<S>(), 1.0);
        let factor = head.rules.query_factor(Base::E);
        out.par_chunks_mut(QUERIES * s).enumerate().for_each(|(i, out)| {
            let first = i * QUERIES;
            let mut queries = vec![0.0; QUERIES * d];
            let mut scratch = vec![];
            let count = out.len() / s;
            for (g, group) in queries.chunks_exact_mut(blocks.rows() * d).enumerate() {
                let here = (g * blocks.rows()).min(count)..((g + 1) * blocks.rows()).min(count);
                let here = first + here.start..first + here.end;
                transpose(simd, &head.q, head.of_queries, here, factor, (group, blocks.rows()), &mut scratch);
            }
            simd.vectorize(TileOfRows { head, rows, first, queries: &queries, keys: &keys, out });
        });
    }
}

/// Fills a row with `scores`, then zeros, and returns its first `seen` numbers.
fn written<'a>(row: &'a mut [MaybeUninit<f32>], scores: &[f32], seen: usize) -> &'a mut [f32] {
    let (start, rest) = row.split_at_mut(scores.len());
    for (x, score) in start.iter_mut().zip(scores) {
        x.write(*score);
    }
    rest.fill(MaybeUninit::new(0.0));
    // SAFETY: every number of the row is written above, and a MaybeUninit<f32> is laid out as its f32.
    unsafe { std::slice::from_raw_parts_mut(row[..seen].as_mut_ptr().cast(), seen) }
}

/// The weights of a query, row `i` of the head, computed from the keys in place.
struct OneRow<'a> {
    head: &'a QueriesAndKeys<'a>,
    query: Query,
    i: usize,
    /// Up to the last key that the query sees.
    out: &'a mut [f32],
}

impl WithSimd for OneRow<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let &QueriesAndKeys { q, k, of_queries, of_keys, rules } = self.head;
        let factor = rules.query_factor(Base::E);
        let mut scratch = vec![0.0; q.dims[3]];
        let mut query = q.row(simd, of_queries, self.i, &mut scratch).to_vec();
        for x in &mut query {
            *x *= factor;
        }
        let seen = rules.keys_of(self.query.i);
        let mut step = ScoreKeys { queries: &query, scores: &mut *self.out, span: 0..seen.end };
        k.take(simd, of_keys, seen, &mut step);
        rules.softmax(simd, self.query, self.out);
    }
}

/// The weights of up to [`QUERIES`] queries, starting at `first`.
struct TileOfRows<'a> {
    head: &'a QueriesAndKeys<'a>,
    rows: ChosenRows<'a>,
    first: usize,
    /// Scaled, depth-major in groups of a block's rows.
    queries: &'a [f32],
    /// Depth-major panels.
    keys: &'a [f32],
    /// (rows, S)
    out: &'a mut [MaybeUninit<f32>],
}

impl WithSimd for TileOfRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if const { Blocks::are_wide::<S>() } {
            self.run::<S, { WIDE_SCORES.rows }, { WIDE_SCORES.vectors }>(simd);
        } else {
            self.run::<S, { NARROW_SCORES.rows }, { NARROW_SCORES.vectors }>(simd);
        }
    }
}

impl TileOfRows<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const N: usize>(self, simd: S) {
        let [_, _, s, d] = self.head.k.dims;
        let rules = self.head.rules;
        let count = self.out.len() / s;
        let panel = N * S::F32_LANES;
        let stride = s.next_multiple_of(panel);
        let mut scores = vec![0f32; M * stride];
        assert!(self.queries.len() == QUERIES * d && self.keys.len() == stride * d && count <= QUERIES);
        for (g, out) in self.out.chunks_mut(M * s).enumerate() {
            let first = self.first + g * M;
            let mut most = 0;
            for row in first..first + out.len() / s {
                most = most.max(rules.keys_of(self.rows.queries[row]).end);
            }
            for c in (0..most).step_by(panel) {
                // SAFETY: group g of M queries is among QUERIES, and c + panel is at most `stride`, which is
                // both the number of packed keys and the length of each of the M rows of scores.
                unsafe {
                    let (queries, keys) =
                        (self.queries.as_ptr().add(g * M * d), self.keys.as_ptr().add(c * d));
                    outer::<S, M, N>(simd, d, queries, keys, scores.as_mut_ptr().add(c), stride);
                }
            }
            for (r, (out, scores)) in out.chunks_exact_mut(s).zip(scores.chunks_exact(stride)).enumerate() {
                let query = self.rows.query(first + r);
                let seen = rules.keys_of(query.i).end;
                rules.softmax(simd, query, written(out, &scores[..seen], seen));
            }
        }
    }
}

/// The summary of a query, computed from its weights: for queries that no tile summarizes as it goes.
pub(super) struct SummaryOfRow<'a> {
    pub(super) problem: &'a PassInputs<'a>,
    pub(super) query: Query,
}

impl WithSimd for SummaryOfRow<'_> {
    type Output = RowSummary;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> RowSummary {
        let Self { problem, query } = self;
        let &PassInputs { q, k, rules, .. } = problem;
        let Query { b, h, i } = query;
        let mut weights = vec![0.0; rules.keys_of(i).end];
        let of_queries = HeadAt { b, h };
        let head = QueriesAndKeys { q, k, of_queries, of_keys: problem.key_head(of_queries), rules };
        OneRow { head: &head, query, i, out: &mut weights }.with_simd(simd);
        RowSummary::new(&weights, rules.position(i), rules.mask.first_key(b, rules.keys))
    }
}

/// The gradient of the scores from that of their softmax, (.., rows, S) each, contiguous: `w · (g - Σ w·g)`, which is 0
/// wherever the weight is 0. `seen` holds the keys that each row sees; the gradients of the other keys are never read.
fn softmax_backward(weights: &Tensor, grad: &Tensor, seen: &[Range<usize>]) -> Result<Tensor> {
    let (_, _, _, s) = weights.dims4()?;
    let d_scores = with_slices([weights, grad], |[weights, grad]| {
        let mut out = vec![0f32; weights.len()];
        let rows = out.par_chunks_mut(s).zip(weights.par_chunks(s).zip(grad.par_chunks(s)));
        rows.enumerate().with_min_len(16).for_each(|(row, (out, (w, g)))| {
            let seen = &seen[row % seen.len()];
            let out = &mut out[seen.clone()];
            let w = &w[seen.clone()];
            let g = &g[seen.clone()];
            let dot: f32 = w.iter().zip(g).map(|(w, g)| w * g).sum();
            for (out, (w, g)) in out.iter_mut().zip(w.iter().zip(g)) {
                *out = w * (g - dot);
            }
        });
        out
    })?;
    Tensor::from_vec(d_scores, weights.shape(), &Device::Cpu)
}
