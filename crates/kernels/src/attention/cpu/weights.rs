//! The weights of chosen queries on the CPU: the forward pass's micro-kernel computes the scores, a tile of
//! queries at a time, and a softmax then runs on each row in place.

use super::blocks::outer;
use super::heads::Heads;
use super::pack::{panels, transpose};
use super::sizes::{Blocks, FEW_QUERIES, NARROW_SCORES, QUERIES, WIDE_SCORES};
use crate::attention::request::Rows;
use crate::attention::scores::{Base, ScoreRules};
use crate::attention::softmax::{SoftmaxBackward, SoftmaxRow};
use crate::element::Element;
use crate::isa;
use crate::streams::dots;
use crate::vector::chunked;
use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// The operation as Candle sees it: q (B, heads, queries, D) and k (B, heads, S, D), both holding only
/// `rows` -> weights (B, heads, queries, S).
pub(in crate::attention) struct CpuWeights {
    pub(in crate::attention) rules: ScoreRules,
    pub(in crate::attention) rows: Rows,
}

impl CustomOp2 for CpuWeights {
    fn name(&self) -> &'static str {
        "attention-weights"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        use CpuStorage as C;
        match (q, k) {
            (C::F32(q), C::F32(k)) => Ok(self.run(Heads::new(q, q_layout)?, Heads::new(k, k_layout)?)),
            (C::F16(q), C::F16(k)) => Ok(self.run(Heads::new(q, q_layout)?, Heads::new(k, k_layout)?)),
            (C::BF16(q), C::BF16(k)) => Ok(self.run(Heads::new(q, q_layout)?, Heads::new(k, k_layout)?)),
            _ => candle_core::bail!("attention weights: q and k must be both f32, both f16 or both bf16"),
        }
    }

    /// `dS = w ∘ (g - rowsum(w ∘ g))`, times the slope of the soft cap; `dQ = scale·dS·K`, `dK = scale·dSᵀ·Q`
    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        weights: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let seen = self.seen().collect();
        let d_scores = weights.apply_op2_no_bwd(&grad.contiguous()?, &SoftmaxBackward { seen })?;
        let mut d_scores = (d_scores * self.rules.scale())?; // (B, heads, queries, S)
        let wide = |x: &Tensor| x.detach().to_dtype(DType::F32)?.contiguous();
        let (q_wide, k_wide) = (wide(q)?, wide(k)?);
        if let Some(cap) = self.rules.softcap() {
            let scores = (q_wide.matmul(&k_wide.t()?)? * (self.rules.scale() / cap))?;
            d_scores = (d_scores * (1.0 - scores.tanh()?.sqr()?)?)?;
        }
        let dq = d_scores.matmul(&k_wide)?.to_dtype(q.dtype())?;
        let dk = d_scores.transpose(2, 3)?.contiguous()?.matmul(&q_wide)?.to_dtype(k.dtype())?;
        Ok((Some(dq), Some(dk)))
    }
}

impl CpuWeights {
    /// The keys that each query sees by its position.
    fn seen(&self) -> impl Iterator<Item = Range<usize>> {
        self.rows.queries.iter().map(|&i| self.rules.keys_of(i))
    }

    fn run<E: Element>(&self, q: Heads<E>, k: Heads<E>) -> (CpuStorage, Shape) {
        let [b, h, t, _] = q.dims;
        let s = k.dims[2];
        let fill = |i: usize, out: &mut [MaybeUninit<f32>]| {
            let place = (i / h, i % h);
            let head = HeadInputs { q, k, places: (place, place), rules: &self.rules };
            let rows = ChosenRows { b: i / h, h: self.rows.heads[i % h], queries: &self.rows.queries };
            isa::arch().dispatch(AllRows { head: &head, rows, out });
        };
        // SAFETY: `AllRows` writes every row of a head, and `written` every number of a row.
        let out = unsafe { chunked(b * h * t * s, t * s, fill) };
        (CpuStorage::F32(out), Shape::from((b, h, t, s)))
    }
}

/// One head's queries and keys.
pub(super) struct HeadInputs<'a, E, K = E> {
    pub(super) q: Heads<'a, E>,
    pub(super) k: Heads<'a, K>,
    /// The places (b, h) of the head in q and in k.
    pub(super) places: ((usize, usize), (usize, usize)),
    pub(super) rules: &'a ScoreRules,
}

/// Which queries of the whole layer the rows of a head are.
#[derive(Clone, Copy)]
struct ChosenRows<'a> {
    b: usize,
    h: usize,
    queries: &'a [usize],
}

impl ChosenRows<'_> {
    #[inline(always)]
    fn query(&self, row: usize) -> (usize, usize, usize) {
        (self.b, self.h, self.queries[row])
    }
}

/// All weights of a head.
struct AllRows<'a, E> {
    head: &'a HeadInputs<'a, E>,
    rows: ChosenRows<'a>,
    /// (queries, S)
    out: &'a mut [MaybeUninit<f32>],
}

impl<E: Element> WithSimd for AllRows<'_, E> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        let Self { head, rows, out } = self;
        let [_, _, s, d] = head.k.dims;
        let ((b, h), of_keys) = head.places;
        if rows.queries.len() <= FEW_QUERIES {
            out.par_chunks_mut(s).enumerate().for_each(|(i, out)| {
                let query = rows.query(i);
                let out = written(out, &[], head.rules.keys_of(query.2).end);
                simd.vectorize(OneRow { head, query, i, out });
            });
            return;
        }
        let blocks = Blocks::of::<S>();
        let keys = panels(&head.k, of_keys, blocks.panel::<S>(), 1.0);
        let factor = head.rules.query_factor(Base::E);
        out.par_chunks_mut(QUERIES * s).enumerate().for_each(|(i, out)| {
            let first = i * QUERIES;
            let (mut queries, mut scratch) = (vec![0.0; QUERIES * d], vec![]);
            let count = out.len() / s;
            for (g, group) in queries.chunks_exact_mut(blocks.rows() * d).enumerate() {
                let here = (g * blocks.rows()).min(count)..((g + 1) * blocks.rows()).min(count);
                let here = first + here.start..first + here.end;
                transpose(&head.q, (b, h), here, factor, (group, blocks.rows()), &mut scratch);
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

/// The softmax of a row of products. Hidden keys get exactly 0, even if another score is NaN.
#[inline(always)]
fn softmax<S: Simd>(simd: S, rules: &ScoreRules, query: (usize, usize, usize), scores: &mut [f32]) {
    let first = rules.keys_of(query.2).start;
    scores[..first].fill(f32::NEG_INFINITY);
    rules.finish(simd, Base::E, query, first, &mut scores[first..]);
    SoftmaxRow(scores).with_simd(simd);
    if scores.first().is_some_and(|x| x.is_nan()) {
        let mut visible = vec![0.0; scores.len()];
        visible[..first].fill(f32::NEG_INFINITY);
        rules.mask.hide(query, rules.keys, 0, &mut visible);
        for (weight, visible) in scores.iter_mut().zip(visible) {
            if visible < 0.0 {
                *weight = 0.0;
            }
        }
    }
}

/// The weights of query (b, h, i) of the whole layer, row `i` of the head, computed from the keys in place.
pub(super) struct OneRow<'a, E, K> {
    pub(super) head: &'a HeadInputs<'a, E, K>,
    pub(super) query: (usize, usize, usize),
    pub(super) i: usize,
    /// Up to the last key that the query sees.
    pub(super) out: &'a mut [f32],
}

impl<E: Element, K: Element> WithSimd for OneRow<'_, E, K> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let &HeadInputs { q, k, places: ((b, h), (of_row, of_keys)), rules } = self.head;
        let factor = rules.query_factor(Base::E);
        let (mut first, mut second) = (vec![0.0; q.dims[3]], vec![0.0; q.dims[3]]);
        let mut query = q.row(b, h, self.i, &mut first).to_vec();
        for x in &mut query {
            *x *= factor;
        }
        let (pairs, rest) = self.out.as_chunks_mut::<2>();
        let last = 2 * pairs.len();
        for (j, pair) in pairs.iter_mut().enumerate() {
            let keys =
                [k.row(of_row, of_keys, 2 * j, &mut first), k.row(of_row, of_keys, 2 * j + 1, &mut second)];
            *pair = dots(simd, &query, keys);
        }
        for x in rest {
            [*x] = dots(simd, &query, [k.row(of_row, of_keys, last, &mut first)]);
        }
        softmax(simd, rules, self.query, self.out);
    }
}

/// The weights of up to [`QUERIES`] queries, starting at `first`.
struct TileOfRows<'a, E> {
    head: &'a HeadInputs<'a, E>,
    rows: ChosenRows<'a>,
    first: usize,
    /// Scaled, depth-major in groups of a block's rows.
    queries: &'a [f32],
    /// Depth-major panels.
    keys: &'a [f32],
    /// (rows, S)
    out: &'a mut [MaybeUninit<f32>],
}

impl<E: Element> WithSimd for TileOfRows<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match Blocks::of::<S>() {
            Blocks::Wide => self.run::<S, { WIDE_SCORES.rows }, { WIDE_SCORES.vectors }>(simd),
            Blocks::Narrow => self.run::<S, { NARROW_SCORES.rows }, { NARROW_SCORES.vectors }>(simd),
        }
    }
}

impl<E: Element> TileOfRows<'_, E> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const N: usize>(self, simd: S) {
        let ([_, _, s, d], rules) = (self.head.k.dims, self.head.rules);
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
                let seen = rules.keys_of(query.2).end;
                softmax(simd, rules, query, written(out, &scores[..seen], seen));
            }
        }
    }
}
