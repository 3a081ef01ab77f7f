//! Computes the exact attention weights of chosen heads and queries from q and k alone. The context
//! comes from whichever code is fastest, and only the chosen weights take memory.

use super::bias::CausalBias;
use super::cpu::CpuWeights;
use super::drop_weights::WeightDropout;
use super::eager;
use super::mask::Mask;
use super::request::Rows;
use super::scores::{ScoreRules, Scoring};
use candle_core::{Result, Tensor};

/// Which code computes weights.
pub(super) enum Code<'a> {
    CpuKernel,
    /// The eager path, with the layer's causal triangle if it has one.
    Eager(Option<&'a CausalBias>),
}

/// The weights of `rows`, in f32 or wider.
///
/// `q` (B, H, T, D), `k` (B, key heads, S, D) -> (B, heads, queries, S)
pub(super) fn weights(
    (q, k): (&Tensor, &Tensor),
    scoring: &Scoring,
    mask: Mask,
    rows: Rows,
    code: Code,
) -> Result<Tensor> {
    match code {
        Code::Eager(bias) => eager::weights(q, k, scoring, (mask, bias), &rows),
        Code::CpuKernel => {
            let rules = ScoreRules::new(scoring, mask, q, k.dim(2)?)?;
            rows.of_queries(q)?.apply_op2(&rows.of_keys(k)?, CpuWeights { rules, rows })
        }
    }
}

/// `weights` after dropout, with the same mask as when all heads and queries are computed.
pub(super) fn dropped(weights: &Tensor, dropout: &WeightDropout, rows: &Rows) -> Result<Tensor> {
    let (b, _, _, s) = weights.dims4()?;
    let places = (0..b).flat_map(|b| rows.heads.iter().map(move |&h| (b, h)));
    let places = places.flat_map(|(b, h)| rows.queries.iter().map(move |&i| (b, h, i)));
    let mut factors = vec![1f32; weights.elem_count()];
    for (place, factors) in places.zip(factors.chunks_exact_mut(s)) {
        dropout.scale_row(place, 0, factors);
    }
    let factors = Tensor::from_vec(factors, weights.shape(), weights.device())?;
    weights * factors.to_dtype(weights.dtype())?
}
