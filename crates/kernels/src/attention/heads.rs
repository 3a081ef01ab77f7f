//! The place of a tensor's heads among the heads of their layer, which decides what dropout drops of their weights.

use crate::pointwise::dropout::Dropout;
#[cfg(any(feature = "cuda", test))]
use crate::pointwise::dropout::DropoutWords;
use candle_core::Result;

/// Describes the heads that a tensor holds: which part of a layer they are, and how many heads of keys and values serve them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeadLayout {
    /// H, the heads of queries that the tensor has.
    pub heads: usize,
    /// The heads of keys and values; each serves `heads / key_heads` neighboring heads of queries.
    pub key_heads: usize,
    /// The number of neighboring heads of queries that share a head of keys in the layer.
    group: usize,
    /// The index of its first head in the layer: 0, unless the layer's heads are split across tensors.
    pub first: usize,
    /// The number of heads of the layer: `heads`, unless they are split.
    pub total: usize,
    /// D, the width of a head.
    pub dim: usize,
}

impl HeadLayout {
    /// All `heads` of a layer, each `dim` wide, with keys and values of their own.
    #[must_use]
    pub fn all(heads: usize, dim: usize) -> Self {
        Self { heads, key_heads: heads, group: 1, first: 0, total: heads, dim }
    }

    /// All `heads` of a layer, which share `key_heads` heads of keys and values: grouped-query attention, or multi-query
    /// attention if there is one. Attention refuses a number of key heads that does not divide `heads`.
    #[must_use]
    pub fn grouped(heads: usize, key_heads: usize, dim: usize) -> Self {
        Self { key_heads, group: heads.checked_div(key_heads).unwrap_or(1).max(1), ..Self::all(heads, dim) }
    }

    /// Narrows the layout to heads `first..first + heads` of the same layer.
    ///
    /// # Errors
    /// When the layer does not have them, or the cut goes through heads that share keys and values.
    pub fn part(self, first: usize, heads: usize) -> Result<Self> {
        if first.checked_add(heads).is_none_or(|end| end > self.total) {
            candle_core::bail!("heads {first} to {first} + {heads} of a layer that has {}", self.total)
        }
        let group = self.group;
        let whole = first.is_multiple_of(group) && heads.is_multiple_of(group);
        // A single head of keys serves whatever heads there are.
        let key_heads = if group == self.total { 1 } else { heads / group };
        if group < self.total && !whole {
            candle_core::bail!(
                "heads {first} to {first} + {heads}: every {group} heads share keys and values and stay together"
            )
        }
        Ok(Self { heads, key_heads, first, ..self })
    }

    /// The width of all queries, `heads * dim`.
    #[must_use]
    pub fn query_width(&self) -> usize {
        self.heads * self.dim
    }

    /// The width of queries, keys and values side by side, as one projection makes them.
    #[must_use]
    pub fn packed_width(&self) -> usize {
        (self.heads + 2 * self.key_heads) * self.dim
    }
}

/// A query of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Query {
    /// The row of the batch.
    pub(super) b: usize,
    /// The head, of H.
    pub(super) h: usize,
    /// The query, of T.
    pub(super) i: usize,
}

/// Dropout on attention weights: row `(b·H + h)·T + i` of the mask belongs to query i of head h of batch row b, with H and h
/// counted over the whole layer. Heads therefore drop the same weights whether they are computed separately or together.
#[derive(Debug, Clone, Copy)]
pub(super) struct WeightDropout {
    dropout: Dropout,
    heads: HeadLayout,
    /// T
    queries: usize,
    /// Rows of the mask before this sequence's.
    before: usize,
}

impl WeightDropout {
    /// For `queries` queries of a head, after `before` rows of the mask that belong to other sequences.
    pub(super) fn new(dropout: Dropout, heads: HeadLayout, queries: usize, before: usize) -> Self {
        Self { dropout, heads, queries, before }
    }

    /// Whether this is the first sequence of the mask.
    pub(super) fn is_first(&self) -> bool {
        self.before == 0
    }

    /// The factor on the weights that are kept.
    pub(super) fn kept(&self) -> f64 {
        1.0 / (1.0 - self.dropout.rate())
    }

    /// The numbers that decide which weights stay, for a kernel on another device.
    #[cfg(any(feature = "cuda", test))]
    pub(super) fn words(&self) -> DropoutWords {
        self.dropout.words()
    }

    /// The heads that are here, among the layer's.
    #[cfg(any(feature = "cuda", test))]
    pub(super) fn heads(&self) -> HeadLayout {
        self.heads
    }

    /// Multiplies the weights of a query, from key `first` on, by their factors.
    #[inline(always)]
    pub(super) fn scale_row(&self, query: Query, first: usize, weights: &mut [f32]) {
        let head = query.b * self.heads.total + self.heads.first + query.h;
        self.dropout.scale_row(self.before + head * self.queries + query.i, first, weights);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::inputs::Chosen;
    use crate::attention::mask::Mask;
    use crate::attention::sdpa::Sdpa;
    use crate::cpu::dispatch::Implementation;
    use crate::cpu::test_numbers::numbers;
    use candle_core::Tensor;

    /// Queries, keys or values: (2, heads, 9, 8).
    fn heads_of(heads: usize, salt: u32) -> Result<Tensor> {
        numbers((2, heads, 9, 8), salt)
    }

    /// Four heads split over two machines, two on each.
    #[test]
    fn heads_that_are_computed_apart_drop_what_they_drop_together() -> Result<()> {
        let q = heads_of(4, 1)?;
        let k = heads_of(4, 1000)?;
        let v = heads_of(4, 2000)?;
        for implementation in [Implementation::Fused, Implementation::Eager] {
            let run = |first: usize, heads: usize| {
                let [q, k, v] = [&q, &k, &v].map(|x| x.narrow(1, first, heads));
                let q = q?;
                let k = k?;
                let v = v?;
                let mask = Mask::default();
                let attention = Sdpa {
                    heads: Some(HeadLayout::all(4, 8).part(first, heads)?),
                    dropout: Some(Dropout::new(0.5, 7, 3)?),
                    implementation,
                    ..Sdpa::default()
                };
                let context = attention.forward(&q, &k, &v, mask)?; // (B, T, heads, D)
                let weights = attention.weights(&q, &k, mask, &Chosen::default())?; // (B, heads, T, S)
                Result::Ok((context.transpose(1, 2)?, weights))
            };
            let (context, weights) = run(0, 4)?;
            for first in [0, 2] {
                let (part, part_weights) = run(first, 2)?;
                for (part, whole) in [(part, &context), (part_weights, &weights)] {
                    let whole = whole.narrow(1, first, 2)?;
                    let difference = (part - whole)?.abs()?.max_all()?.to_scalar::<f32>()?;
                    assert!(difference < 1e-6, "{implementation:?}, heads from {first} on: {difference}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn heads_of_another_layout_are_refused() -> Result<()> {
        let q = heads_of(4, 1)?;
        let attention = Sdpa { heads: Some(HeadLayout::all(3, 8)), ..Sdpa::default() };
        let message = attention.forward(&q, &q, &q, Mask::default()).expect_err("4 are not 3").to_string();
        assert!(
            message.contains("3 and 3 heads of width 8") && message.contains("[2, 4, 9, 8]"),
            "{message}"
        );
        Ok(())
    }

    #[test]
    fn heads_that_a_layer_does_not_have_are_refused() {
        let layer = HeadLayout::all(4, 8);
        assert!(layer.part(2, 2).is_ok());
        for (first, heads) in [(3, 2), (5, 0), (usize::MAX, 1)] {
            assert!(layer.part(first, heads).is_err(), "{first}, {heads}");
        }
    }

    #[test]
    fn heads_that_share_keys_stay_together() -> Result<()> {
        let (grouped, single) = (HeadLayout::grouped(12, 4, 8), HeadLayout::grouped(12, 1, 8));
        assert_eq!((grouped.query_width(), grouped.packed_width()), (96, 160));
        assert_eq!(grouped.part(3, 6)?.key_heads, 2);
        assert!(grouped.part(2, 6).is_err() && grouped.part(3, 4).is_err());
        assert_eq!(single.part(5, 2)?.key_heads, 1);
        let one_group = grouped.part(3, 3)?;
        assert_eq!((one_group.key_heads, one_group.part(0, 6)?.key_heads), (1, 2));
        assert!(one_group.part(4, 2).is_err());
        assert!(HeadLayout::all(0, 8).part(0, 0).is_ok());
        Ok(())
    }
}
