//! `gpt2 features`: which features of a sparse autoencoder or transcoder fire in a text, and what they do.

mod args;
mod dictionary;
mod finite;
mod over_store;
mod report;

use crate::output::note;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::results::exports;
use crate::study::over_texts::{Job, Ran};
use anyhow::{Context, bail};
pub(crate) use args::FeaturesArgs;
use args::HeadPair;
use candle_core::Tensor;
use dictionary::promoted;
use gpt2_circuits::features::{FeatureRun, Features, PartPair};
use gpt2_engine::RunProvenance;
use gpt2_engine::interventions::Applied;
use gpt2_engine::texts::{Prompt, single_token};
use gpt2_engine::{Label, Opened};
use gpt2_model::analysis::Metric;
use gpt2_model::dictionary::Fired;
use gpt2_model::finite::all_finite;
use gpt2_model::hooks::Hooks;
use report::{
    Active, Attention, Attributed, Detail, DictionarySummary, FeatureEffect, FeaturePair, Promoted, Quality,
    Report, TokenAtPosition, TokenFeatures, print,
};
use std::process::ExitCode;

/// The arguments, model and dictionary, which all texts of a run share.
struct FeaturesRun<'a> {
    args: &'a FeaturesArgs,
    opened: &'a Opened,
    about: DictionarySummary,
    features: Features,
    /// The metric to attribute to features, and the tokens of `--target` and `--against`.
    metric: Option<(Metric, Label, Option<Label>)>,
    /// The tokens of each of `--feature`.
    promoted: Vec<Option<Promoted>>,
}

pub(crate) fn run(args: &FeaturesArgs) -> anyhow::Result<ExitCode> {
    args.study.interventions.no_circuit("features")?;
    if let Some(store) = &args.store {
        return over_store::run(args, store);
    }
    let text = args.prompt.read()?;
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(path) = &args.export {
        exports::add_to(&mut outputs, path)?;
    }
    let source = args.dictionary()?;
    let opened = args.study.open_for(args.prompt.inputs(), &outputs)?;
    let (about, features) = dictionary::open(&opened, source)?;
    if opened.dictionary(source, &TERMINAL)?.found.checkpoint.config().prepend_bos {
        note(
            "the dictionary was trained on texts that begin with the end-of-text token, and may explain the first tokens badly",
        );
    }
    let run = FeaturesRun {
        args,
        opened: &opened,
        about,
        metric: metric(args, &opened)?,
        promoted: promoted(args, &opened, &features)?,
        features,
    };
    let prompts = &args.prompt;
    let study = &args.study;
    let export = args.export.as_deref();
    let job = Job { prompts, study, opened: &opened, chosen: None, export, outputs };
    job.run(text, |prompt, changes| run.on(prompt, changes), print)?;
    Ok(ExitCode::SUCCESS)
}

/// The metric of `--target` and `--against`, and their tokens; `None` without `--target`.
fn metric(args: &FeaturesArgs, opened: &Opened) -> anyhow::Result<Option<(Metric, Label, Option<Label>)>> {
    let Some(target) = &args.target else { return Ok(None) };
    let target = single_token(opened, "--target", target, &TERMINAL)?;
    let against =
        args.against.as_deref().map(|text| single_token(opened, "--against", text, &TERMINAL)).transpose()?;
    if against == Some(target) {
        bail!("--target and --against are the same token: their difference is always 0");
    }
    let metric = against.map_or(Metric::Logit(target), |against| Metric::difference(target, against));
    Ok(Some((metric, opened.label(target), against.map(|against| opened.label(against)))))
}

impl FeaturesRun<'_> {
    fn on(&self, prompt: &Prompt, changes: &Applied) -> anyhow::Result<Ran<Report>> {
        let ids = self.opened.input_ids(&prompt.ids)?; // (1, T)
        let found = self.features.run(&self.opened.model, &ids, Some(&changes.list))?;
        self.args.study.finite.check(self.opened, &ids, Some(&changes.list), [&found.target])?;
        // From a sound value, only the dictionary makes one that is not.
        let rebuilt = if all_finite(&found.rebuilt)? { 0.0 } else { f64::NAN };
        let allow = self.args.study.finite.allow_nonfinite;
        finite::check(allow, &self.about, [("a rebuilt value", rebuilt)])?;
        let labels: Vec<Label> = prompt.ids.iter().map(|&id| self.opened.label(id)).collect();
        let tokens =
            labels.iter().enumerate().map(|(position, token)| self.place(&found, position, token)).collect();
        let report = Report {
            provenance: RunProvenance::new(self.opened, &prompt.ids)?.under(changes),
            model: self.opened.name.clone(),
            dictionary: self.about.clone(),
            quality: self.quality(&found, &prompt.ids, changes)?,
            details: self.details(&found, &labels),
            effects: self.effects(&ids, &labels, changes)?,
            attention: self.attention(&ids, &labels, changes)?,
            tokens,
        };
        finite::check(allow, &self.about, finite::of_text(&report))?;
        let tensors = if self.args.export.is_some() {
            let FeatureRun { code, target, rebuilt, .. } = &found;
            let named =
                [("features", code.dense()?), ("target", target.clone()), ("rebuilt", rebuilt.clone())];
            named.map(|(name, tensor)| (name.to_owned(), tensor)).into()
        } else {
            vec![]
        };
        Ok(Ran::new(report, tensors))
    }

    /// The strongest features at a position.
    fn place(&self, found: &FeatureRun, position: usize, token: &Label) -> TokenFeatures {
        let strongest = found.code.strongest(position, self.args.top_k.into());
        let active = |one: Fired| Active { feature: one.feature, activation: one.value };
        TokenFeatures {
            position,
            token: token.clone(),
            fired: found.code.row(position).len(),
            strongest: strongest.into_iter().map(active).collect(),
        }
    }

    fn quality(&self, found: &FeatureRun, ids: &[u32], changes: &Applied) -> anyhow::Result<Quality> {
        let several = ids.len() > 1;
        let losses = several.then(|| self.features.losses(&self.opened.model, ids, Some(&changes.list)));
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

    /// The positions at which each of `--feature` fires.
    fn details(&self, found: &FeatureRun, labels: &[Label]) -> Vec<Detail> {
        let of = |(&feature, promoted): (&u32, &Option<Promoted>)| {
            let at = |(position, token): (usize, &Label)| {
                let activation = found.code.value(position, feature);
                (activation != 0.0).then(|| report::Fires { position, token: token.clone(), activation })
            };
            Detail {
                feature,
                promoted: promoted.clone(),
                fires: labels.iter().enumerate().filter_map(at).collect(),
            }
        };
        self.args.feature.iter().zip(&self.promoted).map(of).collect()
    }

    fn attention(
        &self,
        ids: &Tensor,
        labels: &[Label],
        changes: &Applied,
    ) -> anyhow::Result<Option<Attention>> {
        let Some(HeadPair { head, query, key }) = self.args.attention else { return Ok(None) };
        let model = &self.opened.model;
        let hooks = Some(&changes.list as &dyn Hooks);
        let found = self.features.attention(model, ids, head, (query, key), hooks).context("--attention")?;
        let active = |one: Fired| Active { feature: one.feature, activation: one.value };
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
            pairs: found.pairs.iter().take(self.args.top_k.into()).map(pair).collect(),
        }))
    }

    fn effects(
        &self,
        ids: &Tensor,
        labels: &[Label],
        changes: &Applied,
    ) -> anyhow::Result<Option<Attributed>> {
        let Some((metric, target, against)) = &self.metric else { return Ok(None) };
        let all = self.features.attribution(&self.opened.model, ids, metric, Some(&changes.list))?;
        let total: f64 = all.iter().map(|one| one.effect).sum();
        if !total.is_finite() {
            bail!("the effects of features are not finite: the gradient of the logit overflows");
        }
        let effect = |one: &gpt2_circuits::features::FeatureAttribution| FeatureEffect {
            position: one.position,
            token: labels[one.position].clone(),
            feature: one.fired.feature,
            activation: one.fired.value,
            effect: one.effect,
        };
        let largest = all.iter().take(self.args.top_k.into()).map(effect).collect();
        Ok(Some(Attributed { target: target.clone(), against: against.clone(), total, largest }))
    }
}
