//! Visibility by position alone: a [`Window`], and GPT-2's causal one as a buffer, [`CausalBias`].

use candle_core::{Device, Result, Tensor};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Limits the keys that a query sees before and after its own position; `None` is no limit. The terms follow FlashAttention.
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
    /// The number of visible keys before the query's own position.
    pub left: Option<usize>,
    /// The number of visible keys after the query's own position.
    pub right: Option<usize>,
}

impl Default for Window {
    fn default() -> Self {
        Self::CAUSAL
    }
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

    /// The most keys that any query sees, of `s`.
    #[must_use]
    pub fn most_keys(self, s: usize) -> usize {
        match (self.left, self.right) {
            (Some(left), Some(right)) => left.saturating_add(right).saturating_add(1).min(s),
            _ => s,
        }
    }

    /// Whether no query sees a key after its own position.
    #[must_use]
    pub fn is_causal(self) -> bool {
        self.right == Some(0)
    }
}

/// The eager path keeps a triangle up to this side (256 MiB); of a longer one it makes only the rows that it reads.
const KEPT: usize = 1 << 14;
/// The longest side of a triangle: 4 GiB.
const LONGEST: usize = 1 << 16;

/// The u8 lower triangle (1, 1, n, n), 1 = visible.
///
/// # Errors
/// When n is above 65536, or the device cannot hold the triangle.
pub fn causal_bias(n: usize, device: &Device) -> Result<Tensor> {
    if n > LONGEST {
        candle_core::bail!(
            "a causal triangle of {n} positions takes {n}² bytes, expected at most {LONGEST} positions"
        )
    }
    let mut tril = vec![0u8; n * n];
    for (i, row) in tril.chunks_exact_mut(n.max(1)).enumerate() {
        row[..=i].fill(1);
    }
    Tensor::from_vec(tril, (1, 1, n, n), device)
}

/// GPT-2's `bias` buffer: the causal triangle of up to N positions, made when something first reads it.
///
/// Only the eager path reads it, so a model that never takes that path never holds N² bytes. Clones share the buffer.
///
/// ```
/// use candle_core::Device;
/// use candle_fused::attention::CausalBias;
///
/// # fn main() -> candle_core::Result<()> {
/// let bias = CausalBias::new(3, &Device::Cpu);
/// assert_eq!(bias.tensor()?.dims(), [1, 1, 3, 3]);
/// assert_eq!(bias.tensor()?.flatten_all()?.to_vec1::<u8>()?, [1, 0, 0, 1, 1, 0, 1, 1, 1]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CausalBias {
    positions: usize,
    device: Device,
    made: Arc<OnceLock<Tensor>>,
}

impl CausalBias {
    /// The triangle of `positions` positions on `device`.
    #[must_use]
    pub fn new(positions: usize, device: &Device) -> Self {
        Self { positions, device: device.clone(), made: Arc::default() }
    }

    /// N, the positions on each side.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Whether the triangle is small enough to keep when a caller needs only a few of its rows.
    pub(super) fn is_worth_keeping(&self) -> bool {
        self.positions <= KEPT
    }

    /// u8 (1, 1, N, N), 1 = visible.
    ///
    /// # Errors
    /// When N is above 65536, or the device cannot hold the triangle.
    pub fn tensor(&self) -> Result<Tensor> {
        if let Some(tensor) = self.made.get() {
            return Ok(tensor.clone());
        }
        // Two threads may both get here; the first triangle stays.
        let tensor = causal_bias(self.positions, &self.device)?;
        Ok(self.made.get_or_init(|| tensor).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::mask::Mask;
    use crate::attention::sdpa::Sdpa;
    use crate::cpu::dispatch::Implementation;
    use crate::cpu::test_numbers::numbers;

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

    /// Among 9 queries of 9 keys, one sees the most that any can.
    #[test]
    fn the_most_keys_are_those_of_the_query_that_sees_the_most() {
        let window = |left, right| Window { left, right };
        for (window, most) in [
            (Window::CAUSAL, 9),
            (Window::ALL, 9),
            (Window::sliding(3), 3),
            (Window::sliding(1), 1),
            (Window::sliding(0), 1),
            (Window::sliding(20), 9),
            (window(Some(2), Some(3)), 6),
            (window(None, Some(3)), 9),
            (window(Some(3), None), 9),
            (window(Some(usize::MAX), Some(1)), 9),
        ] {
            assert_eq!(window.most_keys(9), most, "{window:?}");
            assert_eq!((0..9).map(|i| window.keys(i, 9, 9).len()).max(), Some(most), "{window:?}");
            assert_eq!(window.is_causal(), (0..9).all(|i| window.keys(i, 9, 9).end == i + 1), "{window:?}");
        }
    }

    /// Of a long triangle the eager path makes the rows that it reads.
    #[test]
    fn a_long_triangle_gives_what_a_short_one_gives_and_is_never_made() -> Result<()> {
        let q = numbers((2, 2, 9, 8), 1)?.narrow(2, 6, 3)?;
        let k = numbers((2, 2, 9, 8), 50)?;
        let run = |n: usize| {
            let bias = CausalBias::new(n, &Device::Cpu);
            let attention =
                Sdpa { bias: Some(bias), implementation: Implementation::Eager, ..Sdpa::default() };
            attention.forward(&q, &k, &k, Mask::default())?.flatten_all()?.to_vec1::<f32>()
        };
        assert_eq!(run(9)?, run(1 << 24)?);
        let message = run(8).expect_err("9 keys").to_string();
        assert!(message.contains("9 keys") && message.contains("at least 9"), "{message}");
        let message = CausalBias::new(1 << 24, &Device::Cpu).tensor().expect_err("2^48 bytes").to_string();
        assert!(message.contains("16777216"), "{message}");
        Ok(())
    }
}
