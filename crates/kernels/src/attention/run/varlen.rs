//! Sequences of different lengths, one after another without padding.

use super::attend::Attended;
use crate::attention::inputs::Wanted;
use crate::attention::mask::Mask;
use crate::attention::sdpa::Sdpa;
use candle_core::{Result, Tensor};

/// The numbers of queries and keys of several sequences that lie one after another in one tensor.
///
/// ```
/// use candle_fused::attention::Lengths;
///
/// # fn main() -> candle_core::Result<()> {
/// let lengths = Lengths::of_both(&[5, 2, 9]); // self-attention: as many keys as queries
/// assert_eq!(Lengths::from_starts(&[0, 5, 7, 16], &[0, 5, 7, 16])?, lengths);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lengths {
    queries: Vec<usize>,
    keys: Vec<usize>,
}

impl Lengths {
    /// For each sequence, how many queries it has, and how many keys.
    ///
    /// # Errors
    /// When there are not as many of one as of the other.
    pub fn new(queries: &[usize], keys: &[usize]) -> Result<Self> {
        if queries.len() != keys.len() {
            candle_core::bail!(
                "attention: lengths of {} sequences of queries and of {} sequences of keys",
                queries.len(),
                keys.len()
            )
        }
        Ok(Self { queries: queries.to_vec(), keys: keys.to_vec() })
    }

    /// Sequences with as many keys as queries: self-attention.
    #[must_use]
    pub fn of_both(lengths: &[usize]) -> Self {
        Self { queries: lengths.to_vec(), keys: lengths.to_vec() }
    }

    /// From where each sequence starts, and at last where all end: FlashAttention's `cu_seqlens`.
    ///
    /// # Errors
    /// When the starts do not begin with 0 or fall, or there are not as many of one as of the other.
    pub fn from_starts(queries: &[u32], keys: &[u32]) -> Result<Self> {
        let lengths = |starts: &[u32]| {
            let rises = starts.windows(2).all(|pair| pair[0] <= pair[1]);
            if starts.first() != Some(&0) || !rises {
                candle_core::bail!(
                    "attention: starts of sequences must begin with 0 and never fall, got {starts:?}"
                )
            }
            Ok(starts.windows(2).map(|pair| (pair[1] - pair[0]) as usize).collect::<Vec<_>>())
        };
        Self::new(&lengths(queries)?, &lengths(keys)?)
    }

    /// The lengths in queries, and the lengths in keys.
    pub(crate) fn split(&self) -> (&[usize], &[usize]) {
        (&self.queries, &self.keys)
    }
}

impl Sdpa {
    /// Attention within each of several sequences that lie one after another: none sees another's keys. The sequences run one
    /// after another, each on all threads; a backward pass takes time in proportion to their number times the whole length,
    /// because Candle's gradient of a part is as large as the whole.
    ///
    /// # Shapes
    /// `q` (all queries, H, D), `k` (all keys, key heads, D), `v` (all keys, key heads, Dv) -> (all queries, H, Dv)
    ///
    /// # Errors
    /// When the shapes do not fit each other or the lengths.
    pub fn forward_varlen(&self, q: &Tensor, k: &Tensor, v: &Tensor, lengths: &Lengths) -> Result<Tensor> {
        let sequences = self.attend_varlen(q, k, v, lengths, Wanted::default())?;
        let contexts: Vec<Tensor> =
            sequences.iter().map(|one| one.context.squeeze(0)).collect::<Result<_>>()?;
        if contexts.is_empty() {
            candle_core::bail!("attention: no sequence, q is {:?}", q.dims())
        }
        Tensor::cat(&contexts, 0)
    }

    /// Like [`forward_varlen`](Self::forward_varlen), but returns each sequence's context (1, its queries, H, Dv) on its own,
    /// together with whatever `wanted` asks for; a sequence without queries has only an empty context. Dropout differs from
    /// sequence to sequence.
    ///
    /// # Shapes
    /// `q` (all queries, H, D), `k` (all keys, key heads, D), `v` (all keys, key heads, Dv) -> see [`Attended`]
    ///
    /// # Errors
    /// When the shapes do not fit each other or the lengths.
    pub fn attend_varlen(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        lengths: &Lengths,
        wanted: Wanted,
    ) -> Result<Vec<Attended>> {
        let (all_queries, heads, _) = q.dims3()?;
        let (all_keys, ..) = k.dims3()?;
        let sum = |lengths: &[usize]| lengths.iter().fold(0usize, |sum, n| sum.saturating_add(*n));
        let of_queries = sum(&lengths.queries);
        let of_keys = sum(&lengths.keys);
        if (of_queries, of_keys, of_keys) != (all_queries, all_keys, v.dims3()?.0) {
            candle_core::bail!(
                "attention: sequences of {of_queries} queries and {of_keys} keys in all, but q {:?}, k {:?}, v {:?}",
                q.dims(),
                k.dims(),
                v.dims()
            )
        }
        let mut attended = vec![];
        let (mut first_query, mut first_key) = (0, 0);
        for (&queries, &keys) in lengths.queries.iter().zip(&lengths.keys) {
            let part = |x: &Tensor, first, len| x.narrow(0, first, len)?.transpose(0, 1)?.unsqueeze(0); // (1, heads, len, D)
            let (q, k, v) =
                (part(q, first_query, queries)?, part(k, first_key, keys)?, part(v, first_key, keys)?);
            let rows_before = first_query * self.layer_heads(heads);
            // A sequence without queries has its place in the result as well.
            attended.push(match queries {
                0 => self.without_keys(&q, &v, Wanted::default())?,
                _ => self.attend_after(&q, &k, &v, Mask::default(), wanted, rows_before)?,
            });
            first_query += queries;
            first_key += keys;
        }
        Ok(attended)
    }
}
