//! The place of a tensor's heads among the heads of their layer.

use candle_core::Result;

/// Which of a layer's heads a tensor holds, and how many heads of keys and values serve them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeadLayout {
    /// H, the heads of queries that the tensor has.
    pub heads: usize,
    /// The heads of keys and values; each serves `heads / key_heads` neighboring heads of queries.
    pub key_heads: usize,
    /// How many neighboring heads of queries share a head of keys in the layer.
    group: usize,
    /// The index of its first head in the layer: 0, unless the layer's heads are split across tensors.
    pub first: usize,
    /// How many heads the layer has: `heads`, unless they are split.
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

    /// The same layer's heads `first..first + heads` alone.
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
