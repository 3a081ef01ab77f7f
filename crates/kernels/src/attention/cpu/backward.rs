//! The backward pass of attention: FlashAttention-2 (Dao 2023, algorithm 2), memory linear in S.
//!
//! P are the weights, recomputed from q, k and the log-sums of the forward pass; O is the context and dO
//! its gradient:
//!
//! ```text
//! dV = (P ∘ M)ᵀ·dO   dP = (dO·Vᵀ) ∘ M   dS = P ∘ (dP - (rowsum(dO ∘ O) - dL))
//! dQ = scale·dS·K    dK = scale·dSᵀ·Q
//! ```
//!
//! M is dropout's mask divided by `1 - rate`, drawn again exactly as in the forward pass, or 1 without dropout. dL is the
//! gradient of the row's log-sum, or 0. With a soft cap, dS is also multiplied by its slope, `1 - tanh²`. The gradient of a
//! head's sink is `-Σ p·(rowsum(dO ∘ O) - dL)` over its rows, with the sink's weight p.
//!
//! Each task takes one head, so every sum has the same order for any number of threads; the sums of heads that share their
//! keys are then added in order. A padded key may be any number, and so may any hidden value. A key that is hidden otherwise
//! and not finite makes gradients NaN in rows that do not see it, because 0 times infinity is NaN. Plain operations do the same.

use super::added_gradient::{AddedSums, PlaceInLine};
use super::blocks::{
    Blocks, KEYS, MatrixStrides, NARROW_SCORES, NARROW_SUMS, QUERIES, WIDE_SCORES, WIDE_SUMS, add_rows, outer,
};
use super::pack::{panels, rows};
use super::pass_inputs::{LogSum, PassInputs};
use super::views::{HeadAt, Heads};
use crate::attention::scores::{Base, slopes_of_cap};
use crate::cpu::dot_products::dots;
use crate::cpu::vector::exp2;
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// The backward pass of one head.
pub(super) struct HeadBackward<'a> {
    pub(super) problem: &'a PassInputs<'a>,
    /// (B, H, T, Dv)
    pub(super) context: Heads<'a>,
    /// (B, H, T, Dv)
    pub(super) grad: Heads<'a>,
    pub(super) head: HeadAt,
    /// (T)
    pub(super) log_sums: &'a [LogSum],
    /// The sums of the added scores' gradient, dS before the soft cap's slope, if they are wanted. Heads must then start in
    /// order.
    pub(super) added: Option<&'a AddedSums<'a>>,
    /// The gradients of the log-sums in natural logarithms, (T), if there are any.
    pub(super) log_sum_grads: Option<&'a [f32]>,
}

/// The gradients of a head.
pub(super) struct HeadGradients {
    /// dq (T, D), dk (S, D), dv (S, Dv)
    pub(super) qkv: [Vec<f32>; 3],
    /// That of the sink; 0 without one.
    pub(super) sink: f64,
}

impl WithSimd for HeadBackward<'_> {
    type Output = HeadGradients;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        simd.vectorize(Vectorized(self))
    }
}

/// [`HeadBackward`] in a function compiled for the instruction set.
struct Vectorized<'a>(HeadBackward<'a>);

impl WithSimd for Vectorized<'_> {
    type Output = HeadGradients;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        if const { Blocks::are_wide::<S>() } {
            self.0.run::<
                S,
                { WIDE_SCORES.rows },
                { WIDE_SCORES.vectors },
                { WIDE_SUMS.rows },
                { WIDE_SUMS.vectors },
            >(simd)
        } else {
            self.0.run::<
                S,
                { NARROW_SCORES.rows },
                { NARROW_SCORES.vectors },
                { NARROW_SUMS.rows },
                { NARROW_SUMS.vectors },
            >(simd)
        }
    }
}

/// Working memory: rows of `width` floats (q and k) or `value_width` floats (v and the context), and one tile of weights and
/// of their gradients.
struct BackwardScratch {
    width: usize,
    value_width: usize,
    /// Depth-major groups of scaled queries, and of dO.
    query_groups: Vec<f32>,
    grad_groups: Vec<f32>,
    /// Depth-major panels.
    key_panels: Vec<f32>,
    value_panels: Vec<f32>,
    /// Row-major.
    queries: Vec<f32>,
    keys: Vec<f32>,
    grads: Vec<f32>,
    /// `rowsum(dO ∘ O) - dL`, (T)
    deltas: Vec<f32>,
    /// Running sums, padded to whole tiles of rows.
    dq: Vec<f32>,
    dk: Vec<f32>,
    dv: Vec<f32>,
    /// P and dS of a tile, `QUERIES` rows of `KEYS` each.
    weights: Vec<f32>,
    d_scores: Vec<f32>,
    /// Dropout's factors for a row of weights.
    factors: Vec<f32>,
    /// The slopes of the soft cap for a row of scores.
    slopes: Vec<f32>,
}

/// A tile: `rows` queries starting at `first`, against `keys` keys starting at `start`.
#[derive(Clone, Copy)]
struct TileRange {
    first: usize,
    rows: usize,
    start: usize,
    keys: usize,
}

impl HeadBackward<'_> {
    /// A block of scores has `M` rows by `N` vectors; a block of row sums has `CM` by `CN`.
    #[inline(always)]
    fn run<S: Simd, const M: usize, const N: usize, const CM: usize, const CN: usize>(
        &self,
        simd: S,
    ) -> HeadGradients {
        let Self { problem, head, .. } = *self;
        // First: the next head waits for this one, even if it panics.
        // SAFETY: each head lines up once, and which tiles it goes through depends on T, S and the window alone.
        let mut turn = self.added.map(|added| unsafe { added.line_up(head) });
        let PassInputs { q, k, v, rules, .. } = problem;
        let [_, _, t, d] = q.dims;
        let [_, _, s, dv] = v.dims;
        let [width, value_width] = [d, dv].map(|d| d.next_multiple_of(S::F32_LANES));
        let panel = N * S::F32_LANES;
        let of_keys = problem.key_head(head);
        let context = rows(simd, &self.context, head, value_width);
        let grads = rows(simd, &self.grad, head, value_width);
        let mut deltas = Vec::with_capacity(t);
        for (g, o) in grads.chunks_exact(value_width).zip(context.chunks_exact(value_width)) {
            deltas.push(dots(simd, g, [o])[0]);
        }
        for (delta, grad) in deltas.iter_mut().zip(self.log_sum_grads.unwrap_or_default()) {
            *delta -= grad;
        }
        let of_sink = |sink| {
            let of_row = |(row, delta): (&LogSum, &f32)| f64::from(-row.weight(sink) * delta);
            self.log_sums.iter().zip(&deltas).map(of_row).sum()
        };
        let sink = rules.sink(head.h, Base::Two).map_or(0.0, of_sink);
        let mut memory = BackwardScratch {
            width,
            value_width,
            query_groups: panels(simd, q, head, M, problem.query_factor()),
            grad_groups: panels(simd, &self.grad, head, M, 1.0),
            key_panels: panels(simd, k, of_keys, panel, 1.0),
            value_panels: panels(simd, v, of_keys, panel, 1.0),
            queries: rows(simd, q, head, width),
            keys: rows(simd, k, of_keys, width),
            deltas,
            grads,
            dq: vec![0.0; t.next_multiple_of(QUERIES) * width],
            dk: vec![0.0; s.next_multiple_of(KEYS) * width],
            dv: vec![0.0; s.next_multiple_of(KEYS) * value_width],
            weights: vec![0.0; QUERIES * KEYS],
            d_scores: vec![0.0; QUERIES * KEYS],
            factors: vec![1.0; KEYS],
            slopes: vec![1.0; KEYS],
        };
        self.clear_padding(&mut memory, panel);
        for start in (0..s).step_by(KEYS) {
            let keys = KEYS.min(s - start);
            let seeing = rules.queries_of(start..start + keys);
            for first in (seeing.start - seeing.start % QUERIES..seeing.end).step_by(QUERIES) {
                let tile = TileRange { first, rows: QUERIES.min(t - first), start, keys };
                if !rules.mask.ranges_reach(head.b, first..first + tile.rows, start..start + keys) {
                    if let Some(turn) = &mut turn {
                        turn.wait();
                        turn.leave();
                    }
                    continue;
                }
                self.products::<S, M, N>(simd, &mut memory, tile);
                self.weights_and_scores(simd, &mut memory, tile, turn.as_mut());
                self.sums::<S, CM, CN>(simd, &mut memory, tile);
            }
        }
        #[allow(clippy::cast_possible_truncation)] // the scale of f32 scores
        let scale = rules.scale as f32;
        let finished = |sums: &[f32], (width, d): (usize, usize), count: usize, factor: f32| -> Vec<f32> {
            let rows = sums.chunks_exact(width).take(count);
            rows.flat_map(|row| row[..d].iter().map(|x| x * factor)).collect()
        };
        let qkv = [
            finished(&memory.dq, (width, d), t, scale),
            finished(&memory.dk, (width, d), s, scale),
            finished(&memory.dv, (value_width, dv), s, 1.0),
        ];
        HeadGradients { qkv, sink }
    }

    /// Makes the keys of padding zeros: dS is 0 there, and 0 times NaN, in K or in the slope of a soft cap, would be NaN.
    fn clear_padding(&self, memory: &mut BackwardScratch, panel: usize) {
        let rules = self.problem.rules;
        let Some(visible) = rules.mask.visible(self.head.b, rules.keys) else { return };
        let BackwardScratch { width, key_panels, keys, .. } = memory;
        let d = self.problem.k.dims[3];
        for (j, _) in visible.iter().enumerate().filter(|(_, visible)| **visible == 0) {
            keys[j * *width..(j + 1) * *width].fill(0.0);
            let first = j / panel * d * panel + j % panel;
            key_panels.iter_mut().skip(first).step_by(panel).take(d).for_each(|x| *x = 0.0);
        }
    }

    /// The keys of the tile that row `r` sees by its position, counted from the tile's first key.
    #[inline(always)]
    fn seen(&self, tile: TileRange, r: usize) -> Range<usize> {
        self.problem.rules.keys_in(tile.first + r, tile.start, tile.keys)
    }

    /// Writes scores into `weights`, and dO·Vᵀ into `d_scores`.
    #[inline(always)]
    fn products<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        memory: &mut BackwardScratch,
        tile: TileRange,
    ) {
        let panel = N * S::F32_LANES;
        let d = self.problem.q.dims[3];
        let dv = self.problem.v.dims[3];
        let TileRange { first, rows, start, keys } = tile;
        assert!(KEYS.is_multiple_of(panel) && QUERIES.is_multiple_of(M));
        let products = [
            (d, &memory.query_groups, &memory.key_panels, &mut memory.weights),
            (dv, &memory.grad_groups, &memory.value_panels, &mut memory.d_scores),
        ];
        for (d, groups, panels, out) in products {
            assert!(groups.len() >= (first + rows).div_ceil(M) * M * d && out.len() == QUERIES * KEYS);
            assert!(panels.len() >= (start + keys).div_ceil(panel) * panel * d);
            for c in (0..keys).step_by(panel) {
                for r in (0..rows).step_by(M) {
                    let before = self.seen(tile, r).start;
                    let after = self.seen(tile, r + M - 1).end;
                    if after <= c || before >= c + panel {
                        continue;
                    }
                    // SAFETY: `first`, `r`, `start` and `c` are multiples of M or of the panel, so that the lengths above cover
                    // group (first + r) / M and panel (start + c) / panel; r + M <= QUERIES and c + panel <= KEYS, so that the
                    // output holds M rows of `panel` floats from (r, c) on.
                    unsafe {
                        outer::<S, M, N>(
                            simd,
                            d,
                            groups.as_ptr().add((first + r) * d),
                            panels.as_ptr().add((start + c) * d),
                            out.as_mut_ptr().add(r * KEYS + c),
                            KEYS,
                        );
                    }
                }
            }
        }
    }

    /// Turns scores into weights after dropout, and dP into dS; both are 0 for a hidden key.
    #[inline(always)]
    fn weights_and_scores<S: Simd>(
        &self,
        simd: S,
        memory: &mut BackwardScratch,
        tile: TileRange,
        mut turn: Option<&mut PlaceInLine>,
    ) {
        let rules = self.problem.rules;
        if let Some(turn) = &turn {
            turn.wait();
        }
        for r in 0..QUERIES {
            let weights = &mut memory.weights[r * KEYS..(r + 1) * KEYS];
            let d_scores = &mut memory.d_scores[r * KEYS..(r + 1) * KEYS];
            let seen = if r < tile.rows { self.seen(tile, r) } else { 0..0 };
            weights[..seen.start].fill(f32::NEG_INFINITY);
            weights[seen.end..].fill(f32::NEG_INFINITY);
            if seen.is_empty() {
                weights.fill(0.0);
                d_scores.fill(0.0);
                continue;
            }
            let query = self.head.query(tile.first + r);
            let start = tile.start + seen.start;
            rules.cap(simd, Base::Two, &mut weights[seen.clone()]);
            let cap = rules.cap_in(Base::Two);
            if let Some(cap) = cap {
                memory.slopes.fill(1.0);
                slopes_of_cap(simd, cap, &weights[seen.clone()], &mut memory.slopes[seen.clone()]);
            }
            rules.add_and_hide(simd, Base::Two, query, start, &mut weights[seen.clone()]);
            // A hidden key's weight of 0 must not be multiplied by a gradient that is not finite.
            for (w, ds) in weights.iter().zip(d_scores.iter_mut()) {
                if *w == f32::NEG_INFINITY {
                    *ds = 0.0;
                }
            }
            let log_sum = self.log_sums[tile.first + r];
            if log_sum.rest == f32::NEG_INFINITY {
                // The query sees no key, so every weight is 0.
                weights.fill(0.0);
                d_scores.fill(0.0);
                continue;
            }
            if self.problem.dropout.is_some() {
                memory.factors.fill(1.0);
                let factors = &mut memory.factors[seen.clone()];
                self.problem.drop_weights(query, start, factors);
            }
            let max = simd.splat_f32s(log_sum.max);
            let rest = simd.splat_f32s(log_sum.rest);
            let delta = simd.splat_f32s(memory.deltas[tile.first + r]);
            // KEYS is a multiple of every number of lanes.
            let pairs =
                S::as_mut_simd_f32s(weights).0.iter_mut().zip(S::as_mut_simd_f32s(d_scores).0.iter_mut());
            for ((w, ds), factor) in pairs.zip(S::as_simd_f32s(&memory.factors).0) {
                let p = exp2(simd, simd.sub_f32s(simd.sub_f32s(*w, max), rest));
                *ds = simd.mul_f32s(p, simd.sub_f32s(simd.mul_f32s(*ds, *factor), delta));
                *w = simd.mul_f32s(p, *factor);
            }
            if let Some(turn) = &mut turn {
                // SAFETY: the keys from `start` on that the query sees are in the tile, which the head has waited for and not left.
                unsafe { turn.add(query.i, start, &d_scores[seen]) };
            }
            if cap.is_some() {
                let slopes = S::as_simd_f32s(&memory.slopes).0;
                for (ds, slope) in S::as_mut_simd_f32s(d_scores).0.iter_mut().zip(slopes) {
                    *ds = simd.mul_f32s(*ds, *slope);
                }
            }
        }
        if let Some(turn) = turn {
            turn.leave();
        }
    }

    /// dV += Pᵀ·dO, dK += dSᵀ·Q, dQ += dS·K
    #[inline(always)]
    fn sums<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        memory: &mut BackwardScratch,
        tile: TileRange,
    ) {
        let BackwardScratch {
            width, value_width, queries, keys, grads, dq, dk, dv, weights, d_scores, ..
        } = memory;
        let width = *width;
        let value_width = *value_width;
        let TileRange { first, rows, start, keys: count } = tile;
        for c in (0..count).step_by(M) {
            // Other queries of the tile see none of these keys.
            let seeing = self.problem.rules.queries_of(start + c..start + c + M);
            let (before, after) =
                (seeing.start.saturating_sub(first), seeing.end.saturating_sub(first).min(rows));
            if before >= after {
                continue;
            }
            let of_values = (&*weights, &*grads, &mut *dv, value_width);
            for (p, v, out, width) in [of_values, (&*d_scores, &*queries, &mut *dk, width)] {
                let strides = MatrixStrides { p: (1, KEYS), v: width, out: width };
                let p = &p[before * KEYS + c..];
                let v = &v[(first + before) * width..];
                let out = &mut out[(start + c) * width..];
                add_rows::<S, M, N>(simd, after - before, width, p, v, out, strides);
            }
        }
        for r in (0..rows).step_by(M) {
            let before = self.seen(tile, r).start;
            let after = self.seen(tile, r + M - 1).end;
            let strides = MatrixStrides { p: (KEYS, 1), v: width, out: width };
            let p = &d_scores[r * KEYS + before..];
            let v = &keys[(start + before) * width..];
            let out = &mut dq[(first + r) * width..];
            add_rows::<S, M, N>(simd, after.saturating_sub(before), width, p, v, out, strides);
        }
    }
}
