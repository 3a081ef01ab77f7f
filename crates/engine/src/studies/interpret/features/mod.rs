//! The features of a sparse autoencoder or transcoder: which of them fire in a text or over a store, and what they do.

mod dictionary;
mod explanations;
mod finite;
mod folders;
mod head_pair;
mod over_store;
mod report;
mod store_options;

pub use dictionary::{DictionarySummary, Promoted};
pub use explanations::ByFeature;
pub use folders::FeatureFolders;
pub use head_pair::HeadPair;
pub use over_store::{FeatureDetails, FeatureInStore, StoreFeatures, StoreReport, StrongestPlace};
pub use report::{
    Active, Attention, Attributed, Detail, FeatureEffect, FeaturePair, Fires, Quality, Report,
    TokenAtPosition, TokenFeatures,
};
pub use store_options::{StoreOptions, Upload};

use crate::interventions::Applied;
use crate::open::Label;
use crate::provenance::RunProvenance;
use crate::studies::study::{Outcome, Run, Study};
use crate::texts::{Content, Prompt};
use anyhow::{Context, bail};
use candle_core::Tensor;
pub(super) use dictionary::promoted_by;
use dictionary::{PlacedDictionary, token};
pub(super) use explanations::Explanations;
use gpt2_circuits::features::{FeatureAttribution, FeatureRun, PartPair};
use gpt2_model::analysis::Metric;
use gpt2_model::dictionary::Fired;
use gpt2_model::finite::all_finite;
use gpt2_model::hooks::Hooks;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The options of features in a text.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The text, or its ids.
    pub prompt: Content,
    /// The dictionary: a folder, or `owner/name/FOLDER` on the Hub; by default that of the interventions.
    pub dictionary: Option<String>,
    /// The number of features to list for each token, or how many effects or pairs.
    pub top_k: usize,
    /// The features to follow: where they fire, and which tokens they make likelier.
    pub feature: Vec<u32>,
    /// The token whose logit at the end features have effects on, as text or as its id alone.
    pub target: Option<Content>,
    /// The token whose logit is subtracted from that of `target`.
    pub against: Option<Content>,
    /// The head and positions whose score to split by pairs of features.
    pub attention: Option<HeadPair>,
    /// Files with published explanations of the dictionary's features.
    pub explanations: Vec<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prompt: Content::default(),
            dictionary: None,
            top_k: 5,
            feature: vec![],
            target: None,
            against: None,
            attention: None,
            explanations: vec![],
        }
    }
}

impl Study for Options {
    const NAME: &'static str = "features";
    // Within a circuit, no part reads the residual stream as a whole.
    const REFUSES: &'static [&'static str] = &["circuit"];
    type Report = Report;

    /// The tensors are `features` (T, features), the value that is read as `target` and its reconstruction as `rebuilt`.
    fn run(&self, run: &Run) -> anyhow::Result<Outcome<Report>> {
        let features = self.open(run)?;
        let prompt = run.prompt(&self.prompt)?;
        features.of(&prompt, &run.on_prompt(&prompt)?)
    }
}

impl Options {
    /// Opens the dictionary, and does what is the same for all texts.
    ///
    /// # Errors
    /// When the dictionary does not fit the model, or an option does not fit the dictionary.
    pub fn open<'a>(&'a self, run: &Run<'a>) -> anyhow::Result<TextFeatures<'a>> {
        let dictionary = PlacedDictionary::open(self.dictionary.as_deref(), run)?;
        if dictionary.prepends_bos() {
            run.observer.note(
                "the dictionary was trained on texts that begin with the end-of-text token, and may explain the first tokens badly",
            );
        }
        let metric = self.metric(run)?;
        let promoted = dictionary.promoted(&self.feature, self.top_k, run.opened)?;
        let explanations = dictionary.explanations(&self.explanations, run)?;
        Ok(TextFeatures { options: self, run: *run, dictionary, metric, promoted, explanations })
    }

    /// The metric of `target` and `against`, and their tokens; `None` without `target`.
    fn metric(&self, run: &Run) -> anyhow::Result<Option<MetricOfTokens>> {
        let spelling = run.opened.spelling;
        let target_option = spelling.option("target");
        let against_option = spelling.option("against");
        let Some(target) = &self.target else {
            if self.against.is_some() {
                bail!("{against_option}: is measured against {target_option}; give that too");
            }
            return Ok(None);
        };
        let target = token(run, "target", target)?;
        let against = self.against.as_ref().map(|text| token(run, "against", text)).transpose()?;
        if against == Some(target) {
            bail!("{target_option} and {against_option} are the same token: their difference is always 0");
        }
        let metric = against.map_or(Metric::Logit(target), |against| Metric::difference(target, against));
        let label = |id| run.opened.label(id);
        Ok(Some(MetricOfTokens { metric, target: label(target), against: against.map(label) }))
    }
}

/// The metric to attribute to features, and its tokens.
#[derive(Debug)]
struct MetricOfTokens {
    metric: Metric,
    target: Label,
    against: Option<Label>,
}

/// The dictionary and what else all texts of a run share.
pub struct TextFeatures<'a> {
    options: &'a Options,
    run: Run<'a>,
    dictionary: PlacedDictionary,
    metric: Option<MetricOfTokens>,
    /// The tokens of each chosen feature.
    promoted: Vec<Option<Promoted>>,
    explanations: ByFeature,
}

impl TextFeatures<'_> {
    /// The features of a text under some interventions.
    ///
    /// # Errors
    /// When a number is not finite, or `attention` does not fit the text.
    pub fn of(&self, prompt: &Prompt, applied: &Applied) -> anyhow::Result<Outcome<Report>> {
        let Self { options, run, dictionary, .. } = self;
        let opened = run.opened;
        let ids = opened.input_ids(&prompt.ids)?; // (1, T)
        let found = dictionary.features.run(&opened.model, &ids, Some(&applied.list))?;
        run.check_finite(&ids, Some(&applied.list), [&found.target])?;
        // From a sound value, only the dictionary makes one that is not.
        let rebuilt = if all_finite(&found.rebuilt)? { 0.0 } else { f64::NAN };
        finite::check(run, &dictionary.about, [("a rebuilt value", rebuilt)])?;
        let labels: Vec<Label> = prompt.ids.iter().map(|&id| opened.label(id)).collect();
        let place = |(position, token): (usize, &Label)| TokenFeatures {
            position,
            token: token.clone(),
            fired: found.code.row(position).len(),
            strongest: found.code.strongest(position, options.top_k).into_iter().map(active).collect(),
        };
        let mut report = Report {
            provenance: RunProvenance::new(opened, &prompt.ids)?.under(applied),
            model: opened.name.clone(),
            dictionary: dictionary.about.clone(),
            quality: self.quality(&found, &prompt.ids, applied)?,
            tokens: labels.iter().enumerate().map(place).collect(),
            details: self.details(&found, &labels),
            effects: self.effects(&ids, &labels, applied)?,
            attention: self.attention(&ids, &labels, applied)?,
            explanations: ByFeature::new(),
        };
        if !self.explanations.is_empty() {
            let explained = report.features().into_iter();
            let explanation = |feature| Some((feature, self.explanations.get(&feature)?.clone()));
            report.explanations = explained.filter_map(explanation).collect();
        }
        finite::check(run, &dictionary.about, finite::of_text(&report))?;
        let mut tensors = vec![];
        if run.wants_tensors {
            let FeatureRun { code, target, rebuilt, .. } = found;
            let named = [("features", code.dense()?), ("target", target), ("rebuilt", rebuilt)];
            tensors.extend(named.map(|(name, tensor)| (name.to_owned(), tensor)));
        }
        Ok(Outcome { report, tensors })
    }

    fn quality(&self, found: &FeatureRun, ids: &[u32], applied: &Applied) -> anyhow::Result<Quality> {
        let several = ids.len() > 1;
        let features = &self.dictionary.features;
        let losses = several.then(|| features.losses(&self.run.opened.model, ids, Some(&applied.list)));
        let losses = losses.transpose()?;
        Ok(Quality {
            l0: found.code.mean_fired(),
            explained_variance: if several { found.explained_variance()? } else { None },
            loss: losses.map(|losses| losses.clean),
            loss_rebuilt: losses.map(|losses| losses.rebuilt),
            loss_zeroed: losses.map(|losses| losses.zeroed),
            loss_recovered: losses.and_then(|losses| losses.recovered()),
        })
    }

    /// The positions at which each of the chosen features fires.
    fn details(&self, found: &FeatureRun, labels: &[Label]) -> Vec<Detail> {
        let of = |(&feature, promoted): (&u32, &Option<Promoted>)| {
            let at = |(position, token): (usize, &Label)| {
                let activation = found.code.value(position, feature);
                (activation != 0.0).then(|| Fires { position, token: token.clone(), activation })
            };
            let fires = labels.iter().enumerate().filter_map(at).collect();
            Detail { feature, promoted: promoted.clone(), fires }
        };
        self.options.feature.iter().zip(&self.promoted).map(of).collect()
    }

    fn attention(
        &self,
        ids: &Tensor,
        labels: &[Label],
        applied: &Applied,
    ) -> anyhow::Result<Option<Attention>> {
        let Some(HeadPair { head, query, key }) = self.options.attention else { return Ok(None) };
        let opened = self.run.opened;
        let hooks = Some(&applied.list as &dyn Hooks);
        let found = self.dictionary.features.attention(&opened.model, ids, head, (query, key), hooks);
        let found = found.with_context(|| opened.spelling.option("attention"))?;
        let pair = |one: &PartPair| FeaturePair {
            query: one.query.map(active),
            key: one.key.map(active),
            score: one.score,
        };
        let side = |position: usize| TokenAtPosition { position, token: labels[position].clone() };
        Ok(Some(Attention {
            head: head.to_string(),
            query: side(query),
            key: side(key),
            weight: found.weight,
            score: found.score,
            pairs: found.pairs.iter().take(self.options.top_k).map(pair).collect(),
        }))
    }

    fn effects(
        &self,
        ids: &Tensor,
        labels: &[Label],
        applied: &Applied,
    ) -> anyhow::Result<Option<Attributed>> {
        let Some(MetricOfTokens { metric, target, against }) = &self.metric else { return Ok(None) };
        let features = &self.dictionary.features;
        let all = features.attribution(&self.run.opened.model, ids, metric, Some(&applied.list))?;
        let total: f64 = all.iter().map(|one| one.effect).sum();
        if !total.is_finite() {
            bail!("the effects of features are not finite: the gradient of the logit overflows");
        }
        let effect = |one: &FeatureAttribution| FeatureEffect {
            position: one.position,
            token: labels[one.position].clone(),
            feature: one.fired.feature,
            activation: one.fired.value,
            effect: one.effect,
        };
        let largest = all.iter().take(self.options.top_k).map(effect).collect();
        Ok(Some(Attributed { target: target.clone(), against: against.clone(), total, largest }))
    }
}

fn active(one: Fired) -> Active {
    Active { feature: one.feature, activation: one.value }
}
