//! Heads' attention patterns: their scores on repeated tokens, and attention rollout through the layers.

use super::metric::wide;
use crate::gpt2::args_and_outputs::ForwardArgs;
use crate::gpt2::attention::causal_self_attention::CausalSelfAttention;
use crate::gpt2::model::Gpt2Model;
use crate::hooks::{Chain, Hooks, Point, on};
use candle_core::{D, DType, Device, Result, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::RefCell;

/// Texts of random tokens, repeated several times in the same order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepeatedTokens {
    /// The ids of each text, all of the same length: perhaps a token that begins every text, then the repetitions.
    pub rows: Vec<Vec<u32>>,
    /// The number of tokens that are repeated.
    pub length: usize,
    /// Whether a text begins with a token that is not repeated.
    pub begins: bool,
}

impl RepeatedTokens {
    /// `rows` texts of `length` random ids below `vocab_size`, `repeats` times, after `bos` if there is one. Olsson et al. take
    /// 25 tokens four times after the token that begins a text, and 10 rows.
    #[must_use]
    pub fn random(
        bos: Option<u32>,
        (length, repeats): (usize, usize),
        rows: usize,
        vocab_size: usize,
        seed: u64,
    ) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut row = || {
            #[allow(clippy::cast_possible_truncation)] // ids are u32
            let once: Vec<u32> = (0..length).map(|_| rng.random_range(0..vocab_size.max(1)) as u32).collect();
            bos.into_iter().chain(once.repeat(repeats)).collect()
        };
        Self { rows: (0..rows).map(|_| row()).collect(), length, begins: bos.is_some() }
    }

    /// T, how many tokens a text has.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.rows.first().map_or(0, Vec::len)
    }

    /// The position of the first repeated token.
    fn first(&self) -> usize {
        usize::from(self.begins)
    }

    /// The queries whose tokens have come before.
    fn queries(&self) -> std::ops::Range<usize> {
        self.first() + self.length..self.tokens()
    }

    /// The positions of the earlier copies of the token at `query`.
    fn copies(&self, query: usize) -> impl Iterator<Item = usize> {
        let first = self.first();
        (1..).map_while(move |k| query.checked_sub(k * self.length)).take_while(move |&copy| copy >= first)
    }

    /// The mean number of earlier copies of a token: Olsson et al.'s prefix matching score is the mean over all of these
    /// entries, so it is [`HeadScores::induction`] divided by this number.
    #[must_use]
    pub fn copies_per_query(&self) -> f64 {
        let copies: usize = self.queries().map(|query| self.copies(query).count()).sum();
        copies as f64 / self.queries().len().max(1) as f64
    }
}

/// A mean over texts, and how far it is likely to lie from that over all texts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// The mean.
    pub mean: f64,
    /// The standard error of the mean: the standard deviation between the texts divided by the root of their number. NaN for a
    /// single text.
    pub standard_error: f64,
}

impl Score {
    fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        Self { mean, standard_error: (variance / n).sqrt() }
    }
}

/// A head's attention weight on the tokens that previous-token, duplicate-token and induction heads attend to, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadScores {
    /// The weight on the previous token, averaged over all positions but the first.
    pub previous_token: Score,
    /// The weight on all earlier copies of the same token, averaged over the repetitions.
    pub duplicate_token: Score,
    /// The weight on the tokens after all earlier copies of the same token, averaged over the repetitions: a head that
    /// attends there can copy the continuation.
    pub induction: Score,
}

/// The previous-token, duplicate-token and induction scores of uniform attention: what a head reaches by chance.
#[must_use]
pub fn chance_scores(texts: &RepeatedTokens) -> [f64; 3] {
    // The query at position i sees i + 1 keys.
    let uniform = |i: usize, _: usize| 1.0 / (i + 1) as f64;
    kinds(texts, uniform)
}

/// The scores of each head on repeated tokens: they find previous-token, duplicate-token and induction heads.
///
/// In random tokens nothing but the repetition is predictable, so a head that uses it stands out (Elhage et al. 2021,
/// "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022, "In-context Learning and Induction Heads";
/// Wang et al. 2022, "Interpretability in the Wild", for duplicate-token heads).
///
/// `hooks` act in every run; they must not change the shape of the weights.
///
/// # Shapes
/// -> L layers of H scores
///
/// # Errors
/// When there is no text or nothing repeats, a text is longer than the model's `n_positions`, an id is not below V, or a hook
/// fails.
pub fn head_scores(
    model: &Gpt2Model,
    texts: &RepeatedTokens,
    hooks: Option<&dyn Hooks>,
) -> Result<Vec<Vec<HeadScores>>> {
    let n = model.config().n_positions;
    if texts.queries().is_empty() || texts.tokens() > n {
        candle_core::bail!(
            "head scores: {} rows of {} tokens, {} of them repeated, expected at least one row in which they repeat, and at most \
             {n} tokens (n_positions)",
            texts.rows.len(),
            texts.tokens(),
            texts.length
        )
    }
    let layers = model.config().n_layer;
    let heads = model.config().n_head;
    let found: RefCell<Vec<Vec<[Vec<f64>; 3]>>> = RefCell::new(vec![vec![Default::default(); heads]; layers]);
    // Holds one layer's weights at a time, for one row.
    let reader = on((0..layers).map(Point::Pattern), |at, weights| {
        if let Point::Pattern(layer) = at.point {
            let weights = wide(&weights.get(0)?)?.to_vec3::<f64>()?;
            for (found, weights) in found.borrow_mut()[layer].iter_mut().zip(&weights) {
                let scores = kinds(texts, |i, j| weights[i][j]);
                found.iter_mut().zip(scores).for_each(|(found, score)| found.push(score));
            }
        }
        Ok(None)
    });
    let all: Vec<&dyn Hooks> = hooks.into_iter().chain([&reader as &dyn Hooks]).collect();
    for row in &texts.rows {
        let ids = Tensor::new(row.as_slice(), model.device())?.unsqueeze(0)?;
        model.forward(&ids, ForwardArgs { hooks: Some(&Chain(&all)), ..Default::default() })?;
    }
    drop(reader);
    let scores = |[previous, duplicate, induction]: [Vec<f64>; 3]| HeadScores {
        previous_token: Score::of(&previous),
        duplicate_token: Score::of(&duplicate),
        induction: Score::of(&induction),
    };
    Ok(found.into_inner().into_iter().map(|layer| layer.into_iter().map(scores).collect()).collect())
}

/// Previous-token, duplicate-token and induction score of a head whose weight of a query and a key is `weight`.
fn kinds(texts: &RepeatedTokens, weight: impl Fn(usize, usize) -> f64) -> [f64; 3] {
    let mean = |queries: std::ops::Range<usize>, of: &dyn Fn(usize) -> f64| {
        let count = queries.len().max(1);
        queries.map(of).sum::<f64>() / count as f64
    };
    let copies = |back: usize| {
        let weight = &weight;
        move |query: usize| texts.copies(query).map(|copy| weight(query, copy + back)).sum()
    };
    [
        mean(1..texts.tokens(), &|i| weight(i, i - 1)),
        mean(texts.queries(), &copies(0)),
        mean(texts.queries(), &copies(1)),
    ]
}

/// Attention rollout (Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", §3).
///
/// The l-th result is the product of the first l layers' matrices `(A + I) / 2`, where A is the mean over the heads and
/// I represents the residual stream. It estimates the share of each input token in each position after block l, as if
/// attention alone moved information.
///
/// # Shapes
/// each of `attentions` (B, H, T, T), as [`ForwardArgs::output_attentions`] gives them -> L tensors (B, T, T): row i of
/// the l-th describes position i after block l and sums to 1
///
/// [`ForwardArgs::output_attentions`]: crate::ForwardArgs::output_attentions
///
/// # Errors
/// When a layer's weights are not square, or differ in shape from the first layer's.
pub fn attention_rollout(attentions: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut rollout: Vec<Tensor> = vec![];
    for weights in attentions {
        let (_, _, t, s) = weights.dims4()?;
        if t != s {
            candle_core::bail!(
                "attention rollout: weights {:?} come from a cache, expected T x T",
                weights.dims()
            )
        }
        let mean = weights.to_dtype(DType::F32)?.mean(1)?; // (B, T, T)
        let mixed = ((mean.broadcast_add(&Tensor::eye(t, DType::F32, weights.device())?))? * 0.5)?;
        // Padding rows attend to nothing, so they sum to one half.
        let mixed = mixed.broadcast_div(&mixed.sum_keepdim(D::Minus1)?)?;
        let next = match rollout.last() {
            Some(before) => mixed.matmul(before)?,
            None => mixed,
        };
        rollout.push(next);
    }
    Ok(rollout)
}

/// The norm of what each key adds to the residual stream at weight 1, `‖v_j·W_O‖` (Kobayashi et al. 2020, "Attention is Not Only
/// a Weight"), of some heads: (heads, S) in f32 on the CPU. That of a NaN is 0.
///
/// # Shapes
/// `v` (1, S, key heads, D), as [`Point::V`] has it
///
/// # Errors
/// When a shape differs, `heads` is empty, or the layer has no such head.
pub fn value_norms(attn: &CausalSelfAttention, heads: &[usize], v: &Tensor) -> Result<Tensor> {
    let v = v.squeeze(0)?.to_device(&Device::Cpu)?.to_dtype(DType::F32)?; // (S, key heads, D)
    let d = attn.heads().dim;
    let output = attn.c_proj.weight()?.to_device(&Device::Cpu)?.to_dtype(DType::F32)?; // (H·D, C)
    let norms = heads.iter().map(|&head| {
        let o = output.narrow(0, head * d, d)?; // (D, C)
        let gram = o.matmul(&o.t()?)?; // (D, D)
        let v = of_head(&v, head, attn.n_head())?; // (S, D)
        // Rounding may take a square of 0 a little below it.
        (v.matmul(&gram)? * &v)?.sum(1)?.relu()?.sqrt()
    });
    Tensor::stack(&norms.collect::<Result<Vec<_>>>()?, 0)
}

/// The queries or keys of some of a layer's `n_head` heads, which may share keys: (heads, T, D) in f32 on the CPU.
///
/// # Shapes
/// `x` (1, T, heads or key heads, D), as [`Point::Q`] and [`Point::K`] have it
///
/// # Errors
/// When the shape differs, `heads` is empty, or the layer has no such head.
pub fn head_vectors(x: &Tensor, heads: &[usize], n_head: usize) -> Result<Tensor> {
    let x = x.squeeze(0)?.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    Tensor::stack(&heads.iter().map(|&head| of_head(&x, head, n_head)).collect::<Result<Vec<_>>>()?, 0)
}

/// One head of `n_head`: (S, key heads, D) -> (S, D)
fn of_head(x: &Tensor, head: usize, n_head: usize) -> Result<Tensor> {
    x.narrow(1, head * x.dim(1)? / n_head, 1)?.squeeze(1)?.contiguous()
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn each_kind_of_head_has_its_diagonals() {
        // A token that begins the text, then five tokens three times.
        let texts = RepeatedTokens::random(Some(7), (5, 3), 2, 100, 1);
        assert_eq!((texts.tokens(), texts.rows[0][0]), (16, 7));
        assert_eq!(texts.rows[0][1..6], texts.rows[0][6..11]);
        assert_eq!(texts.copies(13).collect::<Vec<_>>(), [8, 3]);
        assert_eq!(texts.copies(6).collect::<Vec<_>>(), [1]);
        assert!((texts.copies_per_query() - 1.5).abs() < 1e-12);
        // A single query: it sees itself and the one before, which are the same token.
        let two = RepeatedTokens::random(None, (1, 2), 1, 100, 1);
        assert!((two.copies_per_query() - 1.0).abs() < 1e-12);
        assert!(chance_scores(&two).iter().all(|score| (score - 0.5).abs() < 1e-12));
        for (back, expected) in [
            (1, [1.0, 0.0, 0.0]),
            (5, [0.0, 1.0, 0.0]),
            (4, [0.0, 0.0, 1.0]),
            (9, [0.0, 0.0, 0.5]), // the copy before last, from the last repetition
        ] {
            let found = kinds(&texts, |i, j| f64::from(i == j + back));
            let near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-12);
            assert!(near, "{back} back: {found:?}");
        }
    }

    #[test]
    fn a_standard_error_is_the_deviation_over_the_root_of_the_number() {
        let score = Score::of(&[1.0, 2.0, 3.0, 6.0]);
        assert!((score.mean - 3.0).abs() < 1e-12);
        // The squares of the deviations are 4, 1, 0 and 9: the variance is 14 / 3.
        assert!((score.standard_error - (14.0f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12);
        assert!(Score::of(&[1.0]).standard_error.is_nan());
    }

    #[test]
    fn it_is_the_product_of_the_layers() -> Result<()> {
        let layer = |w: f32| {
            Tensor::new(&[[1f32, 0., 0.], [w, 1. - w, 0.], [0.2, 0.3, 0.5]], &Device::Cpu)?
                .reshape((1, 1, 3, 3))
        };
        let other = Tensor::new(&[[1f32, 0., 0.], [1., 0., 0.], [0., 1., 0.]], &Device::Cpu)?
            .reshape((1, 1, 3, 3))?;
        let two_heads = Tensor::cat(&[layer(0.5)?, other], 1)?; // (1, 2, 3, 3)
        let rollout = attention_rollout(&[two_heads, layer(0.25)?])?;
        // Computed by hand: the first layer's mean, with the residual added to its rows.
        let first = [[1.0f32, 0.0, 0.0], [0.375, 0.625, 0.0], [0.05, 0.325, 0.625]];
        let mixed = [[1.0f32, 0.0, 0.0], [0.125, 0.875, 0.0], [0.1, 0.15, 0.75]];
        let mut product = [[0.0f32; 3]; 3];
        for i in 0..3 {
            for j in 0..3 {
                product[i][j] = (0..3).map(|k| mixed[i][k] * first[k][j]).sum();
            }
        }
        for (got, expected) in [(&rollout[0], first), (&rollout[1], product)] {
            let got = got.squeeze(0)?.to_vec2::<f32>()?;
            for (got, expected) in got.iter().flatten().zip(expected.iter().flatten()) {
                assert!((got - expected).abs() < 1e-6, "{got}, not {expected}");
            }
        }
        assert!(attention_rollout(&[Tensor::zeros((1, 1, 1, 3), DType::F32, &Device::Cpu)?]).is_err());
        Ok(())
    }

    #[test]
    fn a_row_of_padding_holds_its_own_token_and_every_row_sums_to_1() -> Result<()> {
        // The first token is padding: it attends to nothing, and nothing attends to it.
        let layer = Tensor::new(&[[0f32, 0., 0.], [0., 1., 0.], [0., 0.5, 0.5]], &Device::Cpu)?;
        let layer = layer.reshape((1, 1, 3, 3))?;
        let rollout = attention_rollout(&[layer.clone(), layer])?;
        let first = [[1f32, 0., 0.], [0., 1., 0.], [0., 0.25, 0.75]];
        let second = [[1f32, 0., 0.], [0., 1., 0.], [0., 0.4375, 0.5625]];
        for (got, expected) in rollout.iter().zip([first, second]) {
            assert_eq!(got.squeeze(0)?.to_vec2::<f32>()?, expected);
        }
        Ok(())
    }
}
