//! Attention of a head by pairs of features.

use super::run::{Features, rows};
use crate::circuits::{f64_of, folded};
use candle_core::{Device, Result, Tensor};
use gpt2_model::Gpt2LMHeadModel;
use gpt2_model::dictionary::{ActiveFeature, SparseActivations};
use gpt2_model::hooks::{Head, Hooks, Point};

/// A head's score of a key for a query, by the features that its query and its key are made of. Scores are times `scale`, before
/// softmax.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AttentionPairs {
    /// The attention weight of the query for the key.
    pub weight: f64,
    /// The score, which is the sum of the pairs' scores.
    pub score: f64,
    /// Every part of the query with every part of the key, the largest scores of either sign first.
    pub pairs: Vec<PartPair>,
}

/// A part of a query with a part of a key. A part is a feature, or, for `None`, all else: what the dictionary does not explain, its
/// `b_dec` and the biases.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct PartPair {
    /// The feature at the query's position.
    pub query: Option<ActiveFeature>,
    /// The feature at the key's position.
    pub key: Option<ActiveFeature>,
    /// The pair's share of the score.
    pub score: f64,
}

impl Features {
    /// Splits a head's score of a key for a query by pairs of features. What a feature adds to the stream, divided by the standard
    /// deviation of `ln_1` as it is, goes through `W_Q` or `W_K`, with γ folded in, so that the sum over all pairs is the score itself
    /// (the QK circuit of Elhage et al. 2021 over a dictionary in place of tokens).
    ///
    /// # Shapes
    /// `input_ids` (1, T)
    ///
    /// # Errors
    /// When the dictionary does not rebuild the stream that the head's layer reads, the model lacks the head, the text has no such
    /// position, hooks change what the head reads or computes, or the key comes after the query.
    pub fn attention(
        &self,
        model: &Gpt2LMHeadModel,
        input_ids: &Tensor,
        head: Head,
        (query, key): (usize, usize),
        hooks: Option<&dyn Hooks>,
    ) -> Result<AttentionPairs> {
        self.check_attention(model, input_ids, head, (query, key), hooks)?;
        let Head { layer, head: number } = head;
        let heads = model.config().n_head;
        let points = [
            self.hook,
            Point::Ln1Scale(layer),
            Point::Q(layer),
            Point::K(layer),
            Point::Scores(layer),
            Point::Pattern(layer),
        ];
        let found = model.values_at(input_ids, &points, hooks)?;
        let code = self.dictionary.encode(&rows(&found[0])?)?;
        let block = &model.transformer.h[layer];
        let weights = &block.attn.head_weights()?[number];
        let at = |x: &Tensor, position: usize| f64_of(&x.get(0)?)?.get(position); // of (1, T, ..)
        let pair = |x: &Tensor| f64_of(x)?.get(0)?.get(number)?.get(query)?.get(key)?.to_scalar::<f64>();
        let parts = |position: usize, all: &Tensor, weight: &Tensor| -> Result<(Vec<_>, Tensor)> {
            let all = at(all, position)?; // (H, D)
            // Heads may share keys.
            let all = all.get(number * all.dim(0)? / heads)?.unsqueeze(0)?;
            let scale = at(&found[1], position)?.squeeze(0)?.to_scalar::<f64>()?;
            let fired = code.row(position).to_vec();
            if fired.is_empty() {
                return Ok((fired, all));
            }
            let of_features = (self.added(&code, position)?.matmul(&folded(weight, &block.ln_1)?)? / scale)?;
            let rest = (all - of_features.sum_keepdim(0)?)?;
            Ok((fired, Tensor::cat(&[of_features, rest], 0)?))
        };
        let (queries, of_query) = parts(query, &found[2], &weights.q)?;
        let (keys, of_key) = parts(key, &found[3], &weights.k)?;
        let scores = (of_query.matmul(&of_key.t()?)? * block.attn.scale())?.to_vec2::<f64>()?;
        let mut pairs = vec![];
        for (i, row) in scores.iter().enumerate() {
            for (j, &score) in row.iter().enumerate() {
                pairs.push(PartPair { query: queries.get(i).copied(), key: keys.get(j).copied(), score });
            }
        }
        let score = pair(&found[4])?;
        if !score.is_finite() {
            candle_core::bail!(
                "head {head}: the score of key {key} for query {query} is {score}: attention there is knocked out"
            )
        }
        pairs.sort_by(|a, b| b.score.abs().total_cmp(&a.score.abs()));
        Ok(AttentionPairs { weight: pair(&found[5])?, score, pairs })
    }

    /// Refuses what [`attention`](Self::attention) cannot split.
    fn check_attention(
        &self,
        model: &Gpt2LMHeadModel,
        input_ids: &Tensor,
        head: Head,
        (query, key): (usize, usize),
        hooks: Option<&dyn Hooks>,
    ) -> Result<()> {
        let Head { layer, head: number } = head;
        let layers = model.config().n_layer;
        let heads = model.config().n_head;
        if layer >= layers || number >= heads {
            candle_core::bail!(
                "head {head}: the model has layers 0 to {} of heads 0 to {}",
                layers - 1,
                heads - 1
            )
        }
        let before = Point::ResidPre(layer);
        if self.hook_out != before && layer.checked_sub(1).map(Point::ResidPost) != Some(self.hook_out) {
            candle_core::bail!("head {head} reads {before}, but the dictionary rebuilds {}", self.hook_out)
        }
        let t = input_ids.dim(1)?;
        if query >= t || key > query {
            candle_core::bail!(
                "query {query}, key {key}: the text has positions 0 to {}, and a key is not after its query",
                t.saturating_sub(1)
            )
        }
        let changes = |point: &Point| hooks.is_some_and(|hooks| hooks.wants(*point));
        let of_layer = [
            Point::AttnIn,
            Point::QInput,
            Point::KInput,
            Point::Ln1Scale,
            Point::Ln1Normalized,
            Point::Ln1,
            Point::Q,
            Point::K,
            Point::Scores,
        ];
        if let Some(point) = of_layer.map(|of| of(layer)).iter().find(|point| changes(point)) {
            candle_core::bail!(
                "head {head}: a change at {point} makes its score something else than a product of features; leave it out"
            )
        }
        Ok(())
    }

    /// The contribution to the value of each feature that fires at a position, (fired, d out) in f64.
    fn added(&self, code: &SparseActivations, position: usize) -> Result<Tensor> {
        let fired = code.row(position);
        let ids: Vec<u32> = fired.iter().map(|one| one.feature).collect();
        let directions = f64_of(&self.dictionary.w_dec().index_select(&Tensor::new(ids, &Device::Cpu)?, 0)?)?;
        let factor = |one: &ActiveFeature| {
            f64::from(one.value) * f64::from(self.dictionary.factor(code, position, one.feature))
        };
        let factors: Vec<f64> = fired.iter().map(factor).collect();
        directions.broadcast_mul(&Tensor::new(factors, &Device::Cpu)?.unsqueeze(1)?)
    }
}
