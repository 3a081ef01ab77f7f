//! The statistics of one query's weights.

/// The numbers of one query.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RowSummary {
    pub(super) entropy: f32,
    pub(super) mean_distance: f32,
    pub(super) on_self: f32,
    pub(super) on_previous: f32,
    pub(super) on_first: f32,
    pub(super) max: f32,
    pub(super) max_position: u32,
}

impl RowSummary {
    /// Computes the numbers from the weights on the first keys, for a query at `position`.
    pub(super) fn new(weights: &[f32], position: isize, first_key: usize) -> Self {
        let mut found = Self::default();
        let (mut entropy, mut distance) = (0f64, 0f64);
        // The last key first: in a causal window it is the query's own.
        for (key, &w) in weights.iter().enumerate().rev() {
            let wide = f64::from(w);
            if w != 0.0 {
                entropy -= wide * wide.ln(); // 0·ln 0 is 0, its limit
            }
            distance += wide * position.abs_diff(key.cast_signed()) as f64;
        }
        for (key, &w) in weights.iter().enumerate() {
            if w > found.max || (w.is_nan() && !found.max.is_nan()) {
                (found.max, found.max_position) = (w, key_position(key));
            }
        }
        #[allow(clippy::cast_possible_truncation)] // the result is f32
        {
            (found.entropy, found.mean_distance) = (entropy as f32, distance as f32);
        }
        let at = |key: Option<usize>| key.and_then(|key| weights.get(key)).copied().unwrap_or(0.0);
        found.on_self = at(usize::try_from(position).ok());
        found.on_previous = at(usize::try_from(position - 1).ok());
        found.on_first = at(Some(first_key));
        found
    }
}

/// There are fewer than 2^32 keys: a tensor with more would leave no room for another dimension.
#[allow(clippy::cast_possible_truncation)]
pub(super) fn key_position(key: usize) -> u32 {
    key as u32
}
