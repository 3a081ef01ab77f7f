//! Scores heads on repeated random tokens, to find previous-token, duplicate-token and induction heads.
//!
//! In random tokens nothing but the repetition is predictable, so a head that uses it stands out (Elhage et al. 2021,
//! "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022, "In-context Learning and Induction Heads";
//! Wang et al. 2022, "Interpretability in the Wild", for duplicate-token heads).

use crate::hooks::{Point, on};
use crate::{ForwardArgs, Gpt2Model};
use candle_core::{DType, Result, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::RefCell;

/// The mean weight that a head puts where each kind of head looks, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadScores {
    /// On the previous token, averaged over all positions but the first.
    pub previous_token: f32,
    /// On the same token's first occurrence, averaged over the repetition.
    pub duplicate_token: f32,
    /// On the token after the same token's first occurrence, averaged over the repetition: such a head can copy
    /// the continuation.
    pub induction: f32,
}

impl HeadScores {
    /// The scores of uniform attention on rows of `length` tokens, each repeated once: what a head reaches by chance.
    #[must_use]
    pub fn chance(length: usize) -> Self {
        // The query at position i sees i + 1 keys.
        let mean = |first: usize| {
            let queries = first..2 * length;
            let count = queries.len().max(1);
            queries.map(|i| 1.0 / (i + 1) as f32).sum::<f32>() / count as f32
        };
        Self { previous_token: mean(1), duplicate_token: mean(length), induction: mean(length) }
    }
}

/// The scores of each head on `batch` rows of `length` random tokens, with each row repeated once.
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
    if length == 0 || batch == 0 || length > n / 2 {
        candle_core::bail!(
            "head scores: {batch} rows of {length} tokens, repeated, expected at least one row and 1 to {} tokens",
            n / 2
        )
    }
    let (layers, heads) = (model.config().n_layer, model.config().n_head);
    let sums = RefCell::new(vec![vec![[0f32; 3]; heads]; layers]);
    // Holds one layer's weights at a time, for one row.
    let reader = on((0..layers).map(Point::Pattern), |at, weights| {
        if let Point::Pattern(layer) = at.point {
            for (sum, score) in sums.borrow_mut()[layer].iter_mut().zip(layer_scores(weights, length)?) {
                sum.iter_mut().zip(score).for_each(|(sum, score)| *sum += score / batch as f32);
            }
        }
        Ok(None)
    });
    for row in repeated_rows(length, batch, vocab_size, seed) {
        let ids = Tensor::from_vec(row, (1, 2 * length), model.wte.device())?;
        model.forward(&ids, ForwardArgs { hooks: Some(&reader), ..Default::default() })?;
    }
    drop(reader);
    let scores = |[previous_token, duplicate_token, induction]: [f32; 3]| HeadScores {
        previous_token,
        duplicate_token,
        induction,
    };
    Ok(sums.into_inner().into_iter().map(|layer| layer.into_iter().map(scores).collect()).collect())
}

/// The ids that [`head_scores`] uses: `batch` rows of `length` random ids below `vocab_size`, with each row
/// repeated once.
#[must_use]
pub fn repeated_rows(length: usize, batch: usize, vocab_size: usize, seed: u64) -> Vec<Vec<u32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..batch).map(|_| repeated(length, vocab_size, &mut rng)).collect()
}

/// Random ids, followed by the same ids again.
fn repeated(length: usize, vocab_size: usize, rng: &mut ChaCha8Rng) -> Vec<u32> {
    #[allow(clippy::cast_possible_truncation)] // ids are u32
    let row: Vec<u32> = (0..length).map(|_| rng.random_range(0..vocab_size.max(1)) as u32).collect();
    row.repeat(2)
}

/// Previous-token, duplicate-token and induction score of each head, from one layer's weights (1, H, 2·length,
/// 2·length).
fn layer_scores(weights: &Tensor, length: usize) -> Result<Vec<[f32; 3]>> {
    let weights = weights.get(0)?.to_dtype(DType::F32)?.to_vec3::<f32>()?;
    let mean = |head: &[Vec<f32>], first: usize, back: usize| {
        let rows = head.iter().enumerate().skip(first);
        let count = rows.len().max(1);
        rows.map(|(i, row)| row[i - back]).sum::<f32>() / count as f32
    };
    let scores =
        |head: &Vec<Vec<f32>>| [mean(head, 1, 1), mean(head, length, length), mean(head, length, length - 1)];
    Ok(weights.iter().map(scores).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use candle_core::Device;

    /// Weights on a single diagonal; rows that it does not reach look at the first token.
    fn diagonal(t: usize, back: usize) -> Result<Tensor> {
        let one = |i: usize| if i % t == (i / t).saturating_sub(back) { 1f32 } else { 0. };
        Tensor::from_iter((0..t * t).map(one), &Device::Cpu)?.reshape((1, 1, t, t))
    }

    #[test]
    fn each_kind_of_head_has_its_diagonal() -> Result<()> {
        let length = 5;
        let heads =
            Tensor::cat(&[diagonal(10, 1)?, diagonal(10, 5)?, diagonal(10, 4)?, diagonal(10, 2)?], 1)?;
        let found = layer_scores(&heads, length)?;
        // In row 1, a head that looks back beyond the start of the text is on the first token, which is
        // also the previous one.
        let early = 1.0 / 9.0;
        assert_eq!(found, [[1., 0., 0.], [early, 1., 0.], [early, 0., 1.], [early, 0., 0.]]);
        Ok(())
    }

    #[test]
    fn chance_is_the_score_of_uniform_attention() -> Result<()> {
        let length = 5;
        let uniform = |(i, j): (usize, usize)| if j <= i { 1.0 / (i + 1) as f32 } else { 0.0 };
        let weights = (0..10).flat_map(|i| (0..10).map(move |j| uniform((i, j))));
        let found =
            layer_scores(&Tensor::from_iter(weights, &Device::Cpu)?.reshape((1, 1, 10, 10))?, length)?;
        let HeadScores { previous_token, duplicate_token, induction } = HeadScores::chance(length);
        for (found, expected) in found[0].iter().zip([previous_token, duplicate_token, induction]) {
            assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
        }
        Ok(())
    }

    #[test]
    fn scores_are_those_of_the_weights_on_the_same_tokens() -> Result<()> {
        let config =
            Config { n_layer: 2, n_head: 2, n_embd: 8, n_positions: 16, vocab_size: 11, ..Config::gpt2() };
        let model = Gpt2Model::load(crate::init::seeded(3, DType::F32, &Device::Cpu), &config)?;
        let (length, batch) = (6, 3);
        let ids = repeated_rows(length, batch, 11, 9).concat();
        assert!(ids.chunks_exact(12).all(|row| row[..6] == row[6..]));
        assert_ne!(ids[..12], ids[12..24]);
        let ids = Tensor::from_vec(ids, (batch, 12), &Device::Cpu)?;
        let args = ForwardArgs { output_attentions: true, ..Default::default() };
        let attentions = model.forward(&ids, args)?.attentions;
        for (layer, scores) in head_scores(&model, length, batch, 9)?.iter().enumerate() {
            for (head, score) in scores.iter().enumerate() {
                let weight = |b: usize, i: usize, j: usize| -> Result<f32> {
                    attentions[layer].get(b)?.get(head)?.get(i)?.get(j)?.to_scalar()
                };
                let (mut previous, mut duplicate, mut induction) = (0.0, 0.0, 0.0);
                for b in 0..batch {
                    for i in 1..12 {
                        previous += weight(b, i, i - 1)? / 33.0;
                    }
                    for i in 6..12 {
                        duplicate += weight(b, i, i - 6)? / 18.0;
                        induction += weight(b, i, i - 5)? / 18.0;
                    }
                }
                assert!((score.previous_token - previous).abs() < 1e-6, "{layer}.{head}: {score:?}");
                assert!((score.duplicate_token - duplicate).abs() < 1e-6, "{layer}.{head}: {score:?}");
                assert!((score.induction - induction).abs() < 1e-6, "{layer}.{head}: {score:?}");
            }
        }
        assert_ne!(head_scores(&model, length, batch, 9)?, head_scores(&model, length, batch, 10)?);
        Ok(())
    }
}
