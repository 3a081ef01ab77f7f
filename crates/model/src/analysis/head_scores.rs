//! What heads do on repeated random tokens: previous-token, duplicate-token and induction heads.
//!
//! Random tokens leave nothing to predict but the repetition, so that a head which finds it shows (Elhage et al. 2021,
//! "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022, "In-context Learning and Induction Heads";
//! Wang et al. 2022, "Interpretability in the Wild", for duplicate-token heads).

use crate::{ForwardArgs, Gpt2Model};
use candle_core::{DType, Result, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The mean weight that a head puts where each kind of head looks, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadScores {
    /// On the token before, over all positions but the first.
    pub previous_token: f32,
    /// On the same token's first occurrence, over the repetition.
    pub duplicate_token: f32,
    /// On the token after the same token's first occurrence, over the repetition: what copies the continuation.
    pub induction: f32,
}

/// The scores of each head on `batch` rows of `length` random tokens, each row repeated once.
///
/// # Shapes
/// -> L layers of H scores
///
/// # Errors
/// When `2·length` is above the model's `n_positions`, or `length` or `batch` is 0.
pub fn head_scores(
    model: &Gpt2Model,
    length: usize,
    batch: usize,
    seed: u64,
) -> Result<Vec<Vec<HeadScores>>> {
    let (n, vocab_size) = (model.config().n_positions, model.config().vocab_size);
    if length == 0 || batch == 0 || 2 * length > n {
        candle_core::bail!(
            "head scores: {batch} rows of {length} tokens, repeated, expected at least one row and 1 to {} tokens",
            n / 2
        )
    }
    let ids = repeated(length, batch, vocab_size, seed);
    let ids = Tensor::from_vec(ids, (batch, 2 * length), model.wte.device())?;
    let output = model.forward(&ids, ForwardArgs { output_attentions: true, ..Default::default() })?;
    output.attentions.iter().map(|weights| layer_scores(weights, length)).collect()
}

/// Rows of random ids, each repeated once.
fn repeated(length: usize, batch: usize, vocab_size: usize, seed: u64) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut ids = Vec::with_capacity(2 * length * batch);
    for _ in 0..batch {
        #[allow(clippy::cast_possible_truncation)] // ids are u32
        let row: Vec<u32> = (0..length).map(|_| rng.random_range(0..vocab_size) as u32).collect();
        ids.extend(row.repeat(2));
    }
    ids
}

/// The scores of one layer's weights (B, H, 2·length, 2·length).
fn layer_scores(weights: &Tensor, length: usize) -> Result<Vec<HeadScores>> {
    let weights = weights.to_dtype(DType::F32)?.mean(0)?.to_vec3::<f32>()?;
    let mean = |head: &[Vec<f32>], first: usize, back: usize| {
        let rows = head.iter().enumerate().skip(first);
        let count = rows.len().max(1);
        rows.map(|(i, row)| row[i - back]).sum::<f32>() / count as f32
    };
    let scores = |head: &Vec<Vec<f32>>| HeadScores {
        previous_token: mean(head, 1, 1),
        duplicate_token: mean(head, length, length),
        induction: mean(head, length, length - 1),
    };
    Ok(weights.iter().map(scores).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    /// Weights that lie on one diagonal, as far as there is one.
    fn diagonal(t: usize, back: usize) -> Result<Tensor> {
        let one = |i: usize| if i % t == (i / t).saturating_sub(back) { 1f32 } else { 0. };
        Tensor::from_iter((0..t * t).map(one), &Device::Cpu)?.reshape((1, 1, t, t))
    }

    #[test]
    fn each_kind_of_head_has_its_diagonal() -> Result<()> {
        let length = 5;
        let heads =
            Tensor::cat(&[diagonal(10, 1)?, diagonal(10, 5)?, diagonal(10, 4)?, diagonal(10, 2)?], 1)?;
        let scores = layer_scores(&heads, length)?;
        let found: Vec<_> =
            scores.iter().map(|s| [s.previous_token, s.duplicate_token, s.induction]).collect();
        // The second row of those that look further back than the text goes is on the first token, 1 back.
        let early = 1.0 / 9.0;
        assert_eq!(found, [[1., 0., 0.], [early, 1., 0.], [early, 0., 1.], [early, 0., 0.]]);
        Ok(())
    }

    #[test]
    fn the_tokens_repeat_and_follow_the_seed() {
        let ids = repeated(7, 3, 100, 1);
        for row in ids.chunks_exact(14) {
            assert_eq!(row[..7], row[7..]);
        }
        assert_eq!(ids.len(), 42);
        assert_ne!(ids[..7], ids[14..21]);
        assert_eq!(ids, repeated(7, 3, 100, 1));
        assert_ne!(ids, repeated(7, 3, 100, 2));
    }
}
