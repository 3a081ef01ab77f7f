//! The exact attention weights of chosen heads and queries, from q and k alone: the context comes from
//! wherever it is computed fastest, and memory is taken for what was chosen.

use super::mask::CausalMask;
use super::{cpu, eager};
use crate::Dropout;
use candle_core::{Result, Tensor};

/// The heads and queries whose weights are wanted.
///
/// ```
/// use gpt2_kernels::attention::Chosen;
///
/// let last_query_of_two_heads = Chosen { heads: Some(vec![0, 5]), queries: Some(vec![41]) };
/// let everything = Chosen::default();
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Heads in the order of the result, or all.
    pub heads: Option<Vec<usize>>,
    /// Queries 0..T in the order of the result, or all.
    pub queries: Option<Vec<usize>>,
}

impl Chosen {
    /// Every index, or an error that names the valid ones.
    pub(super) fn resolve(&self, heads: usize, queries: usize) -> Result<Rows> {
        Ok(Rows {
            heads: indices("head", self.heads.as_deref(), heads)?,
            queries: indices("query", self.queries.as_deref(), queries)?,
            all_queries: queries,
        })
    }
}

fn indices(what: &str, chosen: Option<&[usize]>, count: usize) -> Result<Vec<usize>> {
    let Some(chosen) = chosen else { return Ok((0..count).collect()) };
    if chosen.is_empty() {
        candle_core::bail!("attention weights: no {what} is chosen")
    }
    match chosen.iter().find(|&&i| i >= count) {
        Some(i) => candle_core::bail!("attention weights: {what} {i} is not among 0 to {}", count - 1),
        None => Ok(chosen.to_vec()),
    }
}

/// [`Chosen`] heads and queries of T.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    pub(super) heads: Vec<usize>,
    pub(super) queries: Vec<usize>,
    /// T
    pub(super) all_queries: usize,
}

impl Rows {
    /// How many of S keys each of the chosen queries sees.
    pub(super) fn seen(&self, s: usize) -> impl Iterator<Item = usize> {
        self.queries.iter().map(move |i| s - self.all_queries + i + 1)
    }
}

/// The weights of `rows`, in f32 at least.
///
/// `q` (B, H, T, D), `k` (B, H, S, D) -> (B, heads, queries, S)
pub(super) fn weights(
    (q, k): (&Tensor, &Tensor),
    scale: f64,
    mask: CausalMask,
    rows: Rows,
    kernel: bool,
) -> Result<Tensor> {
    if !kernel {
        return eager::weights(q, k, scale, mask, &rows);
    }
    let mask = mask.on_cpu(q.dim(1)?)?;
    let (q, k) = (select(&select(q, 1, &rows.heads)?, 2, &rows.queries)?, select(k, 1, &rows.heads)?);
    q.apply_op2(&k, cpu::CpuWeights { scale, mask, rows })
}

/// `weights` after dropout, which draws what it draws for all heads and queries.
pub(super) fn dropped(weights: &Tensor, dropout: &Dropout, rows: &Rows, heads: usize) -> Result<Tensor> {
    let (b, _, _, s) = weights.dims4()?;
    let places = (0..b).flat_map(|b| rows.heads.iter().map(move |h| b * heads + h));
    let places = places.flat_map(|head| rows.queries.iter().map(move |i| head * rows.all_queries + i));
    let mut factors = vec![1f32; weights.elem_count()];
    for (place, factors) in places.zip(factors.chunks_exact_mut(s)) {
        dropout.scale_row(place, 0, factors);
    }
    let factors = Tensor::from_vec(factors, weights.shape(), weights.device())?;
    weights * factors.to_dtype(weights.dtype())?
}

/// Some places of a dimension, in their order: a view where they follow each other, else a copy.
pub(super) fn select(x: &Tensor, dim: usize, places: &[usize]) -> Result<Tensor> {
    let mut runs = vec![];
    let mut start = 0;
    for end in 1..=places.len() {
        if end == places.len() || places[end] != places[end - 1] + 1 {
            runs.push(x.narrow(dim, places[start], end - start)?);
            start = end;
        }
    }
    Tensor::cat(&runs, dim)
}
