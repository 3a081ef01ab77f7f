//! Which keys a query sees by its position alone.

use std::ops::Range;

/// How far a query sees to both sides of its own position, in keys; `None` is no limit. The terms are those of
/// FlashAttention.
///
/// With S keys and T queries, query `i` sits at position `p = S - T + i`, aligned at the bottom right, and sees the keys
/// from `p - left` to `p + right`. The same rule covers a whole prompt, a chunk of a prompt and a single decoded token. A
/// query before the first key (T above S) may see no key.
///
/// ```
/// use candle_fused::attention::Window;
///
/// assert_eq!(Window::CAUSAL.keys(2, 4, 6), 0..5);
/// assert_eq!(Window::sliding(3).keys(2, 4, 6), 2..5);
/// assert_eq!(Window::ALL.keys(2, 4, 6), 0..6);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// How many keys before its own position.
    pub left: Option<usize>,
    /// How many keys after it.
    pub right: Option<usize>,
}

impl Window {
    /// Every key up to the query's own position.
    pub const CAUSAL: Self = Self { left: None, right: Some(0) };
    /// Every key: for encoders and cross-attention.
    pub const ALL: Self = Self { left: None, right: None };

    /// The last `size` keys up to the query's own position, itself always among them, as in Mistral.
    #[must_use]
    pub fn sliding(size: usize) -> Self {
        Self { left: Some(size.saturating_sub(1)), right: Some(0) }
    }

    /// The keys that query `i` of `t` sees, of `s`. Neither end falls as `i` rises.
    #[must_use]
    #[inline(always)]
    pub fn keys(self, i: usize, t: usize, s: usize) -> Range<usize> {
        // `s + i` is the query's position plus t, which is never negative.
        let end = self.right.map_or(s, |right| {
            s.saturating_add(i).saturating_add(1).saturating_add(right).saturating_sub(t).min(s)
        });
        let start = self.left.map_or(0, |left| s.saturating_add(i).saturating_sub(t).saturating_sub(left));
        start.min(end)..end
    }

    /// The queries of `t` that see some of these keys, of `s`: the reverse of [`keys`](Self::keys).
    #[must_use]
    #[inline(always)]
    pub fn queries(self, keys: Range<usize>, t: usize, s: usize) -> Range<usize> {
        // Query i sits at s - t + i, and sees up to `right` beyond and `left` before.
        let first = self
            .right
            .map_or(0, |right| keys.start.saturating_add(t).saturating_sub(s.saturating_add(right)));
        let end = self
            .left
            .map_or(t, |left| keys.end.saturating_add(t).saturating_add(left).saturating_sub(s).min(t));
        first.min(end)..end
    }

    /// Whether no query sees a key after its own position.
    #[must_use]
    pub fn is_causal(self) -> bool {
        self.right == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::Window;

    /// The definition, key by key.
    #[test]
    fn the_keys_are_those_within_reach_of_the_position() {
        let reaches = [None, Some(0), Some(1), Some(3), Some(usize::MAX)];
        for (left, right) in reaches.iter().flat_map(|l| reaches.iter().map(move |r| (*l, *r))) {
            let window = Window { left, right };
            for (t, s) in [(1usize, 1usize), (1, 9), (4, 4), (3, 7), (7, 3), (5, 0)] {
                for i in 0..t {
                    let position = s.cast_signed() - t.cast_signed() + i.cast_signed();
                    let near = |reach: Option<usize>, far: isize| {
                        reach.is_none_or(|reach| far <= isize::try_from(reach).unwrap_or(isize::MAX))
                    };
                    let sees = |&j: &usize| {
                        near(left, position - j.cast_signed()) && near(right, j.cast_signed() - position)
                    };
                    let expected: Vec<usize> = (0..s).filter(sees).collect();
                    for keys in [0..1, 2..4, 3..9] {
                        let keys = keys.start.min(s)..keys.end.min(s);
                        let some = expected.iter().any(|j| keys.contains(j));
                        let found = !keys.is_empty() && window.queries(keys, t, s).contains(&i);
                        assert_eq!(found, some, "{window:?}, {i} of {t}, {s}");
                    }
                    assert_eq!(
                        window.keys(i, t, s).collect::<Vec<_>>(),
                        expected,
                        "{window:?}, {i} of {t}, {s}"
                    );
                }
            }
        }
    }
}
