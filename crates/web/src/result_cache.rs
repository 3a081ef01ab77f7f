//! Results for hidden states, kept for the next request: when a text goes on, few of its hidden states change, and each costs a product
//! with the whole vocabulary.

use gpt2_view::NextToken;
use std::collections::HashMap;

/// The rows of the last request, by run.
#[derive(Debug, Default)]
pub(crate) struct ResultCache {
    /// By run: the predictions after each token, which also depend on the token that follows.
    pub(crate) predictions: HashMap<usize, Predictions>,
    /// By run and layer: the most probable token and its probability.
    pub(crate) lens: HashMap<(usize, usize), Lens>,
}

type Predictions = CachedRows<(Vec<f32>, Option<u32>), NextToken>;
type Lens = CachedRows<Vec<f32>, (u32, f32)>;

/// One row for each position.
type CachedRows<O, F> = Vec<CachedRow<O, F>>;

/// A result at a position, and the input that it was computed from.
#[derive(Debug)]
pub(crate) struct CachedRow<O, F> {
    pub(crate) of: O,
    pub(crate) found: F,
}

/// The positions whose inputs differ from `now`. Forgets positions beyond the last.
pub(crate) fn stale<O: PartialEq, F>(kept: &mut CachedRows<O, F>, now: &[O]) -> Vec<usize> {
    kept.truncate(now.len());
    (0..now.len()).filter(|&i| kept.get(i).is_none_or(|row| row.of != now[i])).collect()
}

/// Replaces the row at a position, or adds the next one.
pub(crate) fn put<O, F>(kept: &mut CachedRows<O, F>, position: usize, row: CachedRow<O, F>) {
    match kept.get_mut(position) {
        Some(place) => *place = row,
        None => kept.push(row),
    }
}
