//! The report of features in a text.

use super::dictionary::{DictionarySummary, Promoted};
use super::explanations::ByFeature;
use crate::open::Label;
use crate::provenance::RunProvenance;
use serde::Serialize;
use std::collections::BTreeSet;

/// The features in a text.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The model's name.
    pub model: String,
    /// The dictionary.
    pub dictionary: DictionarySummary,
    /// The quality of its reconstruction.
    pub quality: Quality,
    /// Each token with its strongest features.
    pub tokens: Vec<TokenFeatures>,
    /// The chosen features.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<Detail>,
    /// The effects on the target's logit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effects: Option<Attributed>,
    /// The score of a pair of positions, by features.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<Attention>,
    /// The published explanations of features in this report, by feature.
    #[serde(skip_serializing_if = "ByFeature::is_empty")]
    pub explanations: ByFeature,
}

impl Report {
    /// The features that the report names.
    pub(super) fn features(&self) -> BTreeSet<u32> {
        let strongest = self.tokens.iter().flat_map(|token| &token.strongest).map(|one| one.feature);
        let effects = self.effects.iter().flat_map(|effects| &effects.largest).map(|one| one.feature);
        let pairs = self.attention.iter().flat_map(|attention| &attention.pairs);
        let pairs = pairs.flat_map(|pair| [&pair.query, &pair.key]).flatten().map(|one| one.feature);
        let details = self.details.iter().map(|detail| detail.feature);
        strongest.chain(details).chain(effects).chain(pairs).collect()
    }
}

/// The quality of the reconstruction. Losses are means in nats; a single token has none.
#[derive(Debug, Serialize)]
pub struct Quality {
    /// The mean number of features that fire at a position.
    pub l0: f64,
    /// The share of the value's variance that is rebuilt.
    pub explained_variance: Option<f64>,
    /// The model's own loss.
    pub loss: Option<f64>,
    /// The loss with the rebuilt value.
    pub loss_rebuilt: Option<f64>,
    /// The loss with zeros.
    pub loss_zeroed: Option<f64>,
    /// The share of the loss that zeros would cost and that the rebuilt value keeps.
    pub loss_recovered: Option<f64>,
}

/// A token's strongest features.
#[derive(Debug, Serialize)]
pub struct TokenFeatures {
    /// Its position.
    pub position: usize,
    /// The token.
    pub token: Label,
    /// The number of features that fire.
    pub fired: usize,
    /// The strongest, the largest activation first.
    pub strongest: Vec<Active>,
}

/// A feature that fires.
#[derive(Debug, Serialize)]
pub struct Active {
    /// The feature.
    pub feature: u32,
    /// Its activation.
    pub activation: f32,
}

/// A chosen feature.
#[derive(Debug, Serialize)]
pub struct Detail {
    /// The feature.
    pub feature: u32,
    /// The tokens at which it fires.
    pub fires: Vec<Fires>,
    /// The tokens that it promotes; `None` if it does not write directly to the residual stream.
    pub promoted: Option<Promoted>,
}

/// A token at which a feature fires.
#[derive(Debug, Serialize)]
pub struct Fires {
    /// Its position.
    pub position: usize,
    /// The token.
    pub token: Label,
    /// The feature's activation there.
    pub activation: f32,
}

/// The contributions of features to a logit, or to a difference of logits, at the last position.
#[derive(Debug, Serialize)]
pub struct Attributed {
    /// The token whose logit is measured.
    pub target: Label,
    /// The token whose logit is subtracted.
    pub against: Option<Label>,
    /// The effects of all features at all positions together.
    pub total: f64,
    /// The largest effects of either sign.
    pub largest: Vec<FeatureEffect>,
}

/// The effect of a feature at a position, to first order.
#[derive(Debug, Serialize)]
pub struct FeatureEffect {
    /// The position.
    pub position: usize,
    /// The token there.
    pub token: Label,
    /// The feature.
    pub feature: u32,
    /// Its activation there.
    pub activation: f32,
    /// The features that would go with it.
    pub effect: f64,
}

/// A head's score of a key for a query, before softmax, by pairs of features.
#[derive(Debug, Serialize)]
pub struct Attention {
    /// The head, as `layer.head`.
    pub head: String,
    /// The position that attends.
    pub query: TokenAtPosition,
    /// The position that is attended to.
    pub key: TokenAtPosition,
    /// The attention weight.
    pub weight: f64,
    /// The score.
    pub score: f64,
    /// The largest pairs.
    pub pairs: Vec<FeaturePair>,
}

/// A token and its position.
#[derive(Debug, Serialize)]
pub struct TokenAtPosition {
    /// The position.
    pub position: usize,
    /// The token.
    pub token: Label,
}

/// A pair of features; `None` is the rest of the value, which is no feature.
#[derive(Debug, Serialize)]
pub struct FeaturePair {
    /// The query's feature.
    pub query: Option<Active>,
    /// The key's feature.
    pub key: Option<Active>,
    /// The pair's part of the score.
    pub score: f64,
}
