//! The parts of attention, for those who change what lies between them.

use super::eager;
use super::mask::Mask;
use super::request::Chosen;
use super::sdpa::Sdpa;
use candle_core::{Result, Tensor};

impl Sdpa {
    /// The scores before the softmax, by plain operations: scaled, capped and with what is added, and -inf where a query does
    /// not see a key.
    ///
    /// # Shapes
    /// `q` (B, H, T, D), `k` (B, key heads, S, D) -> (B, H, T, S) in f32, or in f64 for f64 inputs
    ///
    /// # Errors
    /// When the shapes do not fit each other or the mask.
    pub fn scores(&self, q: &Tensor, k: &Tensor, mask: Mask) -> Result<Tensor> {
        let (h, t) = self.check(q, k, k, mask)?;
        let rows = Chosen::default().resolve(h, t)?;
        eager::masked_scores(q, &k.to_dtype(q.dtype())?, &self.scoring, (mask, self.bias.as_ref()), &rows)
    }

    /// The weights of `scores`: their softmax over the last dimension, and zeros where all scores of a row are -inf.
    ///
    /// # Shapes
    /// `scores` (.., S) -> (.., S)
    ///
    /// # Errors
    /// When the device fails.
    pub fn softmax(scores: &Tensor) -> Result<Tensor> {
        eager::softmax(scores, &scores.ne(f64::NEG_INFINITY)?)
    }

    /// The context for weights that you supply, in the layout of [`forward`](Self::forward).
    ///
    /// # Shapes
    /// `weights` (B, H, T, S), `v` (B, key heads, S, Dv) -> (B, T, H, Dv) in the dtype of `v`
    ///
    /// # Errors
    /// When the shapes do not fit each other.
    pub fn context(weights: &Tensor, v: &Tensor) -> Result<Tensor> {
        eager::context(weights, v, v.dtype())
    }
}
