//! The backward pass of causal attention: FlashAttention-2 (Dao 2023, algorithm 2), memory linear in S.
//!
//! P are the weights, recomputed from q, k and the log-sums of the forward pass; O is the context and dO
//! its gradient:
//!
//! ```text
//! dV = (P ∘ M)ᵀ·dO   dP = (dO·Vᵀ) ∘ M   dS = P ∘ (dP - rowsum(dO ∘ O))
//! dQ = scale·dS·K    dK = scale·dSᵀ·Q
//! ```
//!
//! M is dropout's mask divided by `1 - rate`, drawn again exactly as in the forward pass, or 1 without dropout.
//!
//! Each task takes one head, so every sum has the same order for any number of threads. A hidden key or value
//! that is not finite makes gradients NaN in rows that do not see it, because 0 times infinity is NaN. Plain
//! operations do the same.

use super::blocks::{Strides, add_rows, outer};
use super::heads::Heads;
use super::pack::{panels, rows};
use super::problem::Problem;
use super::sizes::{Blocks, KEYS, NARROW_SCORES, NARROW_SUMS, QUERIES, WIDE_SCORES, WIDE_SUMS};
use crate::attention::drop_weights::WeightDropout;
use crate::attention::mask::CpuMask;
use crate::element::Element;
use crate::isa;
use crate::streams::dots;
use crate::vector::exp2;
use candle_core::{Device, Result, Storage, Tensor, WithDType};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

/// What the forward pass saved for the backward pass.
pub(super) struct Saved<'a> {
    pub(super) scale: f64,
    pub(super) mask: &'a CpuMask,
    pub(super) dropout: Option<WeightDropout>,
    /// (B, H, T)
    pub(super) log_sums: &'a [f32],
}

impl Saved<'_> {
    /// The gradients of q, k and v: contiguous, with the shapes and dtype of q, k and v.
    ///
    /// q (B, H, T, D), k and v (B, H, S, D); context and its gradient (B, T, H, D)
    pub(super) fn gradients<E: Element + WithDType>(&self, tensors: [&Tensor; 5]) -> Result<[Tensor; 3]> {
        let [q, k, v, context, grad] = tensors;
        let (context, grad) = (context.transpose(1, 2)?, grad.transpose(1, 2)?); // (B, H, T, D)
        let guards = [q, k, v, &context, &grad].map(|x| x.storage_and_layout());
        let views = guards.iter().map(|(storage, layout)| match &**storage {
            Storage::Cpu(storage) => Heads::new(storage.as_slice::<E>()?, layout),
            _ => candle_core::bail!("causal attention: the CPU's backward pass needs tensors on the CPU"),
        });
        let views = views.collect::<Result<Vec<Heads<E>>>>()?;
        let [q_view, k_view, v_view, context_view, grad_view] = views[..] else {
            candle_core::bail!("causal attention: the backward pass takes five tensors")
        };
        let [b, h, t, _] = q_view.dims;
        if context_view.dims != q_view.dims
            || grad_view.dims != q_view.dims
            || self.log_sums.len() != b * h * t
        {
            candle_core::bail!(
                "causal attention: the gradient {:?} does not fit queries {:?}",
                grad.dims(),
                q.dims()
            )
        }
        let &Self { scale, mask, dropout, .. } = self;
        let problem = Problem { q: q_view, k: k_view, v: v_view, scale, mask, dropout };
        let heads: Vec<[Vec<E>; 3]> = problem
            .heads()
            .into_par_iter()
            .enumerate()
            .map(|(i, head)| {
                let log_sums = &self.log_sums[i * t..(i + 1) * t];
                let one = HeadBackward {
                    problem: &problem,
                    context: context_view,
                    grad: grad_view,
                    head,
                    log_sums,
                };
                isa::arch().dispatch(one)
            })
            .collect();
        let gather = |part: usize, like: &Tensor| {
            let all = heads.iter().map(|head| head[part].as_slice()).collect::<Vec<_>>().concat();
            Tensor::from_vec(all, like.shape(), &Device::Cpu)
        };
        Ok([gather(0, q)?, gather(1, k)?, gather(2, v)?])
    }
}

/// The backward pass of one head.
struct HeadBackward<'a, E> {
    problem: &'a Problem<'a, E>,
    context: Heads<'a, E>,
    grad: Heads<'a, E>,
    head: (usize, usize),
    /// (T)
    log_sums: &'a [f32],
}

impl<E: Element> WithSimd for HeadBackward<'_, E> {
    /// dq (T, D), dk (S, D), dv (S, D)
    type Output = [Vec<E>; 3];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        simd.vectorize(Vectorized(self))
    }
}

/// [`HeadBackward`] in a function compiled for the instruction set.
struct Vectorized<'a, E>(HeadBackward<'a, E>);

impl<E: Element> WithSimd for Vectorized<'_, E> {
    type Output = [Vec<E>; 3];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        match Blocks::of::<S>() {
            Blocks::Wide => self.0.run::<
                S,
                { WIDE_SCORES.rows },
                { WIDE_SCORES.vectors },
                { WIDE_SUMS.rows },
                { WIDE_SUMS.vectors },
            >(simd),
            Blocks::Narrow => self.0.run::<
                S,
                { NARROW_SCORES.rows },
                { NARROW_SCORES.vectors },
                { NARROW_SUMS.rows },
                { NARROW_SUMS.vectors },
            >(simd),
        }
    }
}

/// Working memory: rows of `width` floats, and one tile of weights and of their gradients.
struct Memory {
    width: usize,
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
    /// `rowsum(dO ∘ O)`, (T)
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
}

/// A tile: `rows` queries starting at `first`, against `keys` keys starting at `start`.
#[derive(Clone, Copy)]
struct TileRange {
    first: usize,
    rows: usize,
    start: usize,
    keys: usize,
}

impl<E: Element> HeadBackward<'_, E> {
    /// A block of scores has `M` rows by `N` vectors; a block of row sums has `CM` by `CN`.
    #[inline(always)]
    fn run<S: Simd, const M: usize, const N: usize, const CM: usize, const CN: usize>(
        &self,
        simd: S,
    ) -> [Vec<E>; 3] {
        let Problem { q, k, v, .. } = self.problem;
        let [_, _, t, d] = q.dims;
        let s = k.dims[2];
        let width = d.next_multiple_of(S::F32_LANES);
        let (panel, head) = (N * S::F32_LANES, self.head);
        let context = rows(&self.context, head, width);
        let grads = rows(&self.grad, head, width);
        let mut memory = Memory {
            width,
            query_groups: panels(q, head, M, self.problem.base_2_scale()),
            grad_groups: panels(&self.grad, head, M, 1.0),
            key_panels: panels(k, head, panel, 1.0),
            value_panels: panels(v, head, panel, 1.0),
            queries: rows(q, head, width),
            keys: rows(k, head, width),
            deltas: grads
                .chunks_exact(width)
                .zip(context.chunks_exact(width))
                .map(|(g, o)| dots(simd, g, [o])[0])
                .collect(),
            grads,
            dq: vec![0.0; t.next_multiple_of(QUERIES) * width],
            dk: vec![0.0; s.next_multiple_of(KEYS) * width],
            dv: vec![0.0; s.next_multiple_of(KEYS) * width],
            weights: vec![0.0; QUERIES * KEYS],
            d_scores: vec![0.0; QUERIES * KEYS],
            factors: vec![1.0; KEYS],
        };
        let past = s - t;
        for start in (0..s).step_by(KEYS) {
            // The first query that sees the tile's first key.
            let seeing = start.saturating_sub(past);
            for first in (seeing - seeing % QUERIES..t).step_by(QUERIES) {
                let tile =
                    TileRange { first, rows: QUERIES.min(t - first), start, keys: KEYS.min(s - start) };
                self.products::<S, M, N>(simd, &mut memory, tile);
                self.weights_and_scores(simd, &mut memory, tile);
                self.sums::<S, CM, CN>(simd, &mut memory, tile);
            }
        }
        #[allow(clippy::cast_possible_truncation)] // the scale of f32 scores
        let scale = self.problem.scale as f32;
        let finished = |sums: &[f32], count: usize, factor: f32| -> Vec<E> {
            let rows = sums.chunks_exact(width).take(count);
            rows.flat_map(|row| row[..d].iter().map(|x| E::from_f32(x * factor))).collect()
        };
        [finished(&memory.dq, t, scale), finished(&memory.dk, s, scale), finished(&memory.dv, s, 1.0)]
    }

    /// How many of the tile's keys row `r` sees.
    #[inline(always)]
    fn limit(&self, tile: TileRange, r: usize) -> usize {
        let past = self.problem.k.dims[2] - self.problem.q.dims[2];
        (past + tile.first + r + 1).saturating_sub(tile.start).min(tile.keys)
    }

    /// Writes scores into `weights`, and dO·Vᵀ into `d_scores`.
    #[inline(always)]
    fn products<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        memory: &mut Memory,
        tile: TileRange,
    ) {
        let (panel, d) = (N * S::F32_LANES, self.problem.q.dims[3]);
        let TileRange { first, rows, start, keys } = tile;
        assert!(KEYS.is_multiple_of(panel) && QUERIES.is_multiple_of(M));
        let products = [
            (&memory.query_groups, &memory.key_panels, &mut memory.weights),
            (&memory.grad_groups, &memory.value_panels, &mut memory.d_scores),
        ];
        for (groups, panels, out) in products {
            assert!(groups.len() >= (first + rows).div_ceil(M) * M * d && out.len() == QUERIES * KEYS);
            assert!(panels.len() >= (start + keys).div_ceil(panel) * panel * d);
            for c in (0..keys).step_by(panel) {
                for r in (0..rows).step_by(M) {
                    if self.limit(tile, r + M - 1) <= c {
                        continue;
                    }
                    // SAFETY: `first`, `r`, `start` and `c` are multiples of M or of the panel, so that the
                    // lengths above cover group (first + r) / M and panel (start + c) / panel; the output
                    // holds M rows of `panel` floats from (r, c) on, since r + M <= QUERIES and
                    // c + panel <= KEYS.
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
    fn weights_and_scores<S: Simd>(&self, simd: S, memory: &mut Memory, tile: TileRange) {
        let keys = self.problem.k.dims[2];
        for r in 0..QUERIES {
            let weights = &mut memory.weights[r * KEYS..(r + 1) * KEYS];
            let d_scores = &mut memory.d_scores[r * KEYS..(r + 1) * KEYS];
            let limit = if r < tile.rows { self.limit(tile, r) } else { 0 };
            weights[limit..].fill(f32::NEG_INFINITY);
            d_scores[limit..].fill(0.0);
            if limit == 0 {
                weights.fill(0.0);
                continue;
            }
            // A hidden key's weight of 0 must not be multiplied by a gradient that is not finite.
            let query = (self.head.0, self.head.1, tile.first + r);
            self.problem.mask.hide(query, keys, tile.start, &mut weights[..limit]);
            for (w, ds) in weights[..limit].iter().zip(d_scores.iter_mut()) {
                if *w == f32::NEG_INFINITY {
                    *ds = 0.0;
                }
            }
            let log_sum = self.log_sums[tile.first + r];
            if log_sum == f32::NEG_INFINITY {
                // The query sees no key, so every weight is 0.
                weights.fill(0.0);
                d_scores.fill(0.0);
                continue;
            }
            if self.problem.dropout.is_some() {
                memory.factors.fill(1.0);
                let factors = &mut memory.factors[..limit];
                self.problem.drop_weights(self.head, tile.first + r, tile.start, factors);
            }
            let (minus, delta) = (simd.splat_f32s(-log_sum), simd.splat_f32s(memory.deltas[tile.first + r]));
            // KEYS is a multiple of every number of lanes.
            let pairs = S::as_mut_simd_f32s(weights).0.iter_mut().zip(S::as_mut_simd_f32s(d_scores).0);
            for ((w, ds), factor) in pairs.zip(S::as_simd_f32s(&memory.factors).0) {
                let p = exp2(simd, simd.add_f32s(*w, minus));
                *ds = simd.mul_f32s(p, simd.sub_f32s(simd.mul_f32s(*ds, *factor), delta));
                *w = simd.mul_f32s(p, *factor);
            }
        }
    }

    /// dV += Pᵀ·dO, dK += dSᵀ·Q, dQ += dS·K
    #[inline(always)]
    fn sums<S: Simd, const M: usize, const N: usize>(&self, simd: S, memory: &mut Memory, tile: TileRange) {
        let Memory { width, queries, keys, grads, dq, dk, dv, weights, d_scores, .. } = memory;
        let (width, past) = (*width, self.problem.k.dims[2] - self.problem.q.dims[2]);
        let TileRange { first, rows, start, keys: count } = tile;
        for c in (0..count).step_by(M) {
            // Queries before this one see none of the keys from c on.
            let skipped = (start + c).saturating_sub(past + first);
            if skipped >= rows {
                continue;
            }
            let strides = Strides { p: (1, KEYS), v: width, out: width };
            for (p, v, out) in [(&*weights, &*grads, &mut *dv), (&*d_scores, &*queries, &mut *dk)] {
                let p = &p[skipped * KEYS + c..];
                let v = &v[(first + skipped) * width..];
                let out = &mut out[(start + c) * width..];
                add_rows::<S, M, N>(simd, (rows - skipped, width), (p, v, out), strides);
            }
        }
        for r in (0..rows).step_by(M) {
            let depth = self.limit(tile, r + M - 1);
            let strides = Strides { p: (KEYS, 1), v: width, out: width };
            let out = &mut dq[(first + r) * width..];
            add_rows::<S, M, N>(
                simd,
                (depth, width),
                (&d_scores[r * KEYS..], &keys[start * width..], out),
                strides,
            );
        }
    }
}
