//! What attention can return besides the context: the weights of chosen heads and queries, and summaries.

use super::window::Window;
use candle_core::{Result, Tensor};
use std::ops::Range;

/// The heads and queries whose weights you want.
///
/// ```
/// use candle_fused::attention::Chosen;
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

/// What to return besides the context. Neither part slows down the fused kernel's work on the context.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// The exact weights of these heads and queries.
    pub weights: &'a [Chosen],
    /// A few statistics of the weights of every head and query.
    pub summary: bool,
}

impl Chosen {
    /// Resolves every index, or fails with an error that names the valid ones.
    pub(super) fn resolve(&self, heads: usize, queries: usize) -> Result<Rows> {
        Ok(Rows {
            heads: indices("head", self.heads.as_deref(), heads)?,
            queries: indices("query", self.queries.as_deref(), queries)?,
            all_heads: heads,
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

/// The [`Chosen`] heads and queries, resolved to indices.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    pub(super) heads: Vec<usize>,
    pub(super) queries: Vec<usize>,
    /// H
    pub(super) all_heads: usize,
    /// T
    pub(super) all_queries: usize,
}

impl Rows {
    /// The keys that each of the chosen queries sees by its position, of S.
    pub(super) fn seen(&self, window: Window, s: usize) -> impl Iterator<Item = Range<usize>> {
        self.queries.iter().map(move |&i| window.keys(i, self.all_queries, s))
    }

    /// The position of each chosen query among S keys: negative before the first.
    pub(super) fn positions(&self, s: usize) -> impl Iterator<Item = f64> {
        self.queries.iter().map(move |&i| (s + i) as f64 - self.all_queries as f64)
    }

    /// The key head of each chosen head, where `key_heads` serve H heads.
    pub(super) fn key_heads(&self, key_heads: usize) -> Vec<usize> {
        self.heads.iter().map(|head| head * key_heads / self.all_heads).collect()
    }

    /// These heads and queries of `x` (B, H, T, D): (B, heads, queries, D)
    pub(super) fn of_queries(&self, x: &Tensor) -> Result<Tensor> {
        select(&select(x, 1, &self.heads)?, 2, &self.queries)
    }

    /// What these heads use of `x` (B, key heads, S, D): (B, heads, S, D)
    pub(super) fn of_keys(&self, x: &Tensor) -> Result<Tensor> {
        select(x, 1, &self.key_heads(x.dim(1)?))
    }
}

/// Selects indices along a dimension, in the given order: a view if they are consecutive, otherwise a copy.
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
