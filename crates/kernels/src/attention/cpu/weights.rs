//! The weights of chosen queries on the CPU: the forward pass's micro-kernel computes the scores, a tile of
//! queries at a time, and a softmax then runs on each row in place.

use super::blocks::outer;
use super::heads::Heads;
use super::pack::{panels, transpose};
use super::sizes::{Blocks, FEW_QUERIES, NARROW_SCORES, QUERIES, WIDE_SCORES};
use crate::attention::mask::CpuMask;
use crate::attention::request::Rows;
use crate::attention::softmax::{SoftmaxBackward, SoftmaxRow};
use crate::element::Element;
use crate::isa;
use crate::streams::dots;
use crate::vector::chunked;
use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// The operation as Candle sees it: q (B, heads, queries, D) and k (B, heads, S, D), both holding only
/// `rows` -> weights (B, heads, queries, S).
pub(in crate::attention) struct CpuWeights {
    pub(in crate::attention) scale: f64,
    pub(in crate::attention) mask: CpuMask,
    pub(in crate::attention) rows: Rows,
}

impl CustomOp2 for CpuWeights {
    fn name(&self) -> &'static str {
        "causal-attention-weights"
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

    /// `dS = w ∘ (g - rowsum(w ∘ g))`, `dQ = scale·dS·K`, `dK = scale·dSᵀ·Q`
    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        weights: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let seen = self.rows.seen(k.dim(2)?).collect();
        let d_scores = weights.apply_op2_no_bwd(&grad.contiguous()?, &SoftmaxBackward { seen })?;
        let d_scores = (d_scores * self.scale)?; // (B, heads, queries, S)
        let wide = |x: &Tensor| x.detach().to_dtype(DType::F32)?.contiguous();
        let dq = d_scores.matmul(&wide(k)?)?.to_dtype(q.dtype())?;
        let dk = d_scores.transpose(2, 3)?.contiguous()?.matmul(&wide(q)?)?.to_dtype(k.dtype())?;
        Ok((Some(dq), Some(dk)))
    }
}

impl CpuWeights {
    fn run<E: Element>(&self, q: Heads<E>, k: Heads<E>) -> (CpuStorage, Shape) {
        let [b, h, t, _] = q.dims;
        let s = k.dims[2];
        let seen: Vec<usize> = self.rows.seen(s).collect();
        let fill = |i: usize, out: &mut [MaybeUninit<f32>]| {
            let head = HeadInputs { q, k, place: (i / h, i % h), scale: self.scale, seen: &seen };
            let hide = |row: usize, scores: &mut [f32]| {
                let query = (i / h, self.rows.heads[i % h], self.rows.queries[row]);
                self.mask.hide(query, s, 0, scores);
            };
            isa::arch().dispatch(AllRows { head: &head, hide: &hide, out });
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
    /// (b, h)
    pub(super) place: (usize, usize),
    pub(super) scale: f64,
    /// How many keys each query sees.
    pub(super) seen: &'a [usize],
}

impl<E, K> HeadInputs<'_, E, K> {
    #[allow(clippy::cast_possible_truncation)] // the scale of f32 scores
    fn scale(&self) -> f32 {
        self.scale as f32
    }
}

/// All weights of a head; `hide` sets the hidden scores of a row to -inf.
struct AllRows<'a, E, F> {
    head: &'a HeadInputs<'a, E>,
    hide: &'a F,
    /// (queries, S)
    out: &'a mut [MaybeUninit<f32>],
}

impl<E: Element, F: Fn(usize, &mut [f32]) + Sync> WithSimd for AllRows<'_, E, F> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        let Self { head, hide, out } = self;
        let [_, _, s, d] = head.k.dims;
        if head.seen.len() <= FEW_QUERIES {
            out.par_chunks_mut(s).enumerate().for_each(|(i, out)| {
                let out = written(out, &[], head.seen[i]);
                simd.vectorize(OneRow { head, i, hide, out });
            });
            return;
        }
        let blocks = Blocks::of::<S>();
        let keys = panels(&head.k, head.place, blocks.panel::<S>(), 1.0);
        out.par_chunks_mut(QUERIES * s).enumerate().for_each(|(i, out)| {
            let first = i * QUERIES;
            let mut queries = vec![0.0; QUERIES * d];
            let rows = out.len() / s;
            for (g, group) in queries.chunks_exact_mut(blocks.rows() * d).enumerate() {
                let rows = (g * blocks.rows()).min(rows)..((g + 1) * blocks.rows()).min(rows);
                let rows = first + rows.start..first + rows.end;
                transpose(&head.q, head.place, rows, head.scale(), group, blocks.rows());
            }
            simd.vectorize(TileOfRows { head, first, queries: &queries, keys: &keys, hide, out });
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

/// The softmax of a row of scores. Hidden keys get exactly 0, even if another score is NaN.
#[inline(always)]
fn softmax<S: Simd>(simd: S, row: usize, hide: &impl Fn(usize, &mut [f32]), scores: &mut [f32]) {
    hide(row, scores);
    SoftmaxRow(scores).with_simd(simd);
    if scores.first().is_some_and(|x| x.is_nan()) {
        let mut visible = vec![0.0; scores.len()];
        hide(row, &mut visible);
        for (weight, _) in scores.iter_mut().zip(visible).filter(|(_, visible)| *visible < 0.0) {
            *weight = 0.0;
        }
    }
}

/// One query's weights, computed from the keys in place.
pub(super) struct OneRow<'a, E, K, F> {
    pub(super) head: &'a HeadInputs<'a, E, K>,
    pub(super) i: usize,
    pub(super) hide: &'a F,
    /// (seen)
    pub(super) out: &'a mut [f32],
}

impl<E: Element, K: Element, F: Fn(usize, &mut [f32])> WithSimd for OneRow<'_, E, K, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (&HeadInputs { q, k, place: (b, h), .. }, scale) = (self.head, self.head.scale());
        let (mut first, mut second) = (vec![0.0; q.dims[3]], vec![0.0; q.dims[3]]);
        let query: Vec<f32> = q.row(b, h, self.i, &mut first).iter().map(|x| x * scale).collect();
        let (pairs, rest) = self.out.as_chunks_mut::<2>();
        let last = 2 * pairs.len();
        for (j, pair) in pairs.iter_mut().enumerate() {
            let keys = [k.row(b, h, 2 * j, &mut first), k.row(b, h, 2 * j + 1, &mut second)];
            *pair = dots(simd, &query, keys);
        }
        for x in rest {
            [*x] = dots(simd, &query, [k.row(b, h, last, &mut first)]);
        }
        softmax(simd, self.i, self.hide, self.out);
    }
}

/// The weights of up to [`QUERIES`] queries, starting at `first`.
struct TileOfRows<'a, E, F> {
    head: &'a HeadInputs<'a, E>,
    first: usize,
    /// Scaled, depth-major in groups of a block's rows.
    queries: &'a [f32],
    /// Depth-major panels.
    keys: &'a [f32],
    hide: &'a F,
    /// (rows, S)
    out: &'a mut [MaybeUninit<f32>],
}

impl<E: Element, F: Fn(usize, &mut [f32])> WithSimd for TileOfRows<'_, E, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match Blocks::of::<S>() {
            Blocks::Wide => self.run::<S, { WIDE_SCORES.rows }, { WIDE_SCORES.vectors }>(simd),
            Blocks::Narrow => self.run::<S, { NARROW_SCORES.rows }, { NARROW_SCORES.vectors }>(simd),
        }
    }
}

impl<E: Element, F: Fn(usize, &mut [f32])> TileOfRows<'_, E, F> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const N: usize>(self, simd: S) {
        let [_, _, s, d] = self.head.k.dims;
        let seen = &self.head.seen[self.first..self.first + self.out.len() / s];
        let panel = N * S::F32_LANES;
        let stride = s.next_multiple_of(panel);
        let mut scores = vec![0f32; M * stride];
        assert!(self.queries.len() == QUERIES * d && self.keys.len() == stride * d && seen.len() <= QUERIES);
        for (g, (seen, out)) in seen.chunks(M).zip(self.out.chunks_mut(M * s)).enumerate() {
            let most = seen.iter().copied().max().unwrap_or(0);
            for c in (0..most).step_by(panel) {
                // SAFETY: group g of M queries is among QUERIES, and c + panel is at most `stride`, which is
                // both the number of packed keys and the length of each of the M rows of scores.
                unsafe {
                    let (queries, keys) =
                        (self.queries.as_ptr().add(g * M * d), self.keys.as_ptr().add(c * d));
                    outer::<S, M, N>(simd, d, queries, keys, scores.as_mut_ptr().add(c), stride);
                }
            }
            let rows = out.chunks_exact_mut(s).zip(scores.chunks_exact(stride).zip(seen));
            for (r, (out, (scores, &seen))) in rows.enumerate() {
                let out = written(out, &scores[..seen], seen);
                softmax(simd, self.first + g * M + r, self.hide, out);
            }
        }
    }
}
