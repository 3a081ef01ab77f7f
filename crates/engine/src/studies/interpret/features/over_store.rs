//! Features over the tokens of a store: how often they fire, and where most.

use super::dictionary::{DictionarySummary, PlacedDictionary, Promoted};
use super::explanations::ByFeature;
use super::finite::{self, NamedNumber};
use super::store_options::StoreOptions;
use crate::interventions::ALL_BUT_DICTIONARY;
use crate::observer::Stopped;
use crate::open::{Label, Opened};
use crate::studies::study::{Outcome, Run, Study};
use anyhow::{Context, bail};
use gpt2_circuits::features::{Around, Peak, ReadingHead, RelatedFeature, Tally, Tokens};
use gpt2_files::{Shard, Store};
use gpt2_model::hooks::Point;
use gpt2_view::without_folders;
use serde::Serialize;
use std::path::PathBuf;

/// The tokens to show around a place, as many as fit on a line.
const AROUND: Around = Around { before: 12, after: 6 };
/// The features to compare with all others before the run asks whether to stop.
const COMPARED: usize = 1024;

/// The features over a store.
#[derive(Debug, Serialize)]
pub struct StoreReport {
    /// This program's version.
    pub gpt2: &'static str,
    /// The model's name.
    pub model: String,
    /// The folder with the values.
    pub store: PathBuf,
    /// The store's own record of how it was made.
    pub made_by: serde_json::Value,
    /// The dictionary.
    pub dictionary: DictionarySummary,
    /// The number of tokens.
    pub tokens: usize,
    /// The mean number of features that fire at a token.
    pub l0: f64,
    /// The share of the value's variance that is rebuilt.
    pub explained_variance: Option<f64>,
    /// The number of features that never fire.
    pub silent: usize,
    /// The chosen features, or those that fire most often.
    pub features: Vec<FeatureInStore>,
}

/// A feature over a store.
#[derive(Debug, Serialize)]
pub struct FeatureInStore {
    /// The feature.
    pub feature: u32,
    /// The share of tokens at which it fires.
    pub share: f64,
    /// Its mean activation there.
    pub mean: Option<f64>,
    /// The tokens that a chosen feature promotes, if it writes directly to the residual stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promoted: Option<Promoted>,
    /// Its published explanations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub explanations: Vec<String>,
    /// More about it, if that is asked for.
    #[serde(flatten)]
    pub details: Option<FeatureDetails>,
    /// The places where it fires most.
    pub strongest: Vec<StrongestPlace>,
}

/// The sizes of a feature's activations, and what is related to it.
#[derive(Debug, Clone, Serialize)]
pub struct FeatureDetails {
    /// The sizes below which these shares of its activations lie, to 2 %: 0.5, 0.9, 0.99.
    pub quantiles: Option<[f64; 3]>,
    /// The lower end of each bar of a histogram of its activations, its upper end, and the number of activations between them.
    pub histogram: Vec<(f64, f64, u64)>,
    /// The features whose directions are most like its own, with the cosine.
    pub related: Vec<(u32, f64)>,
    /// The heads that read most of its direction, with the share of it in queries, keys and values.
    pub read_by: Vec<(String, [f64; 3])>,
}

/// A place where a feature fires, with the text around it.
#[derive(Debug, Serialize)]
pub struct StrongestPlace {
    /// Its activation there.
    pub activation: f32,
    /// The document, counted from 0.
    pub document: u32,
    /// The position in the document.
    pub position: u32,
    /// The token.
    pub token: Label,
    /// The text before it.
    pub before: String,
    /// The text after it.
    pub after: String,
    /// For Neuronpedia: the tokens of this text one by one, with the feature's activation at each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub around: Vec<(Label, f32)>,
}

impl Study for StoreOptions {
    const NAME: &'static str = "features-in-store";
    // The values are there already: nothing runs.
    const REFUSES: &'static [&'static str] = ALL_BUT_DICTIONARY;
    type Report = StoreReport;

    /// Counts, and writes the folders of the options.
    fn run(&self, run: &Run) -> anyhow::Result<Outcome<StoreReport>> {
        if self.pages.is_none() && self.neuronpedia.is_none() {
            return Ok(Outcome::new(self.open(run)?.count()?));
        }
        let mut inputs = run.opened.read.clone();
        self.add_inputs(&mut inputs, run.interventions.options().dictionary.as_ref())?;
        let mut folders = self.make_folders(&inputs, run.opened.spelling)?;
        let report = self.open(run)?.count()?;
        folders.stage(&report, &report.features)?;
        folders.commit()?;
        Ok(Outcome::new(report))
    }
}

impl StoreOptions {
    /// Opens the store and the dictionary.
    ///
    /// # Errors
    /// When one is missing or damaged, or does not fit the other or the model.
    pub fn open<'a>(&'a self, run: &Run<'a>) -> anyhow::Result<StoreFeatures<'a>> {
        let opened = run.opened;
        let store = Store::open(&self.store)?;
        let dictionary = PlacedDictionary::open(self.dictionary.as_deref(), run)?;
        let all = (0..u32::try_from(dictionary.features.dictionary().features())?).collect();
        let wants_all = (self.wants_details() || self.neuronpedia.is_some()) && self.feature.is_empty();
        let followed = if wants_all { all } else { self.feature.clone() };
        let explanations = dictionary.explanations(&self.explanations, run)?;
        let promoted = dictionary.promoted(&followed, self.top_k, opened)?;
        let facts = &store.index().facts;
        let recorded_with = facts["provenance"]["model"].as_str();
        if let Some(model) = recorded_with.filter(|model| without_folders(model) != opened.title()) {
            run.observer.note(&format!(
                "the store was recorded with {model}, and its tokens are shown as those of {}; name the model with {}",
                opened.name,
                opened.spelling.option("model")
            ));
        }
        let bos = dictionary.prepends_bos();
        if facts["bos"].as_bool().is_some_and(|has| has != bos) {
            let with = if bos { "with" } else { "without" };
            let without = if bos { "without" } else { "with" };
            run.observer.note(&format!(
                "the dictionary was trained on texts {with} the first token of record {}, the store was recorded {without}",
                opened.spelling.option("bos")
            ));
        }
        let read = place(&store, &dictionary.about.hook).with_context(|| {
            let hook = &dictionary.about.hook;
            let names = store.index().values.join(", ");
            format!("{}: has no {hook}, which the dictionary reads; it has {names}", self.store.display())
        })?;
        let target = match &dictionary.about.hook_out {
            Some(hook_out) => place(&store, hook_out),
            None => Some(read),
        };
        let run = *run;
        Ok(StoreFeatures {
            options: self,
            run,
            store,
            dictionary,
            followed,
            promoted,
            explanations,
            read,
            target,
        })
    }
}

/// The place of a value in a store; a point has several names.
fn place(store: &Store, hook: &str) -> Option<usize> {
    let hook: Point = hook.parse().ok()?;
    store.index().values.iter().position(|name| name.parse::<Point>().is_ok_and(|name| name == hook))
}

/// A store and a dictionary that fit one another.
pub struct StoreFeatures<'a> {
    options: &'a StoreOptions,
    run: Run<'a>,
    store: Store,
    dictionary: PlacedDictionary,
    /// The features to follow.
    followed: Vec<u32>,
    /// The tokens of each of them.
    promoted: Vec<Option<Promoted>>,
    explanations: ByFeature,
    /// The place of the value that the dictionary reads, and of the one that it rebuilds, in the store.
    read: usize,
    target: Option<usize>,
}

impl StoreFeatures<'_> {
    /// Goes through the store.
    ///
    /// # Errors
    /// When a shard is damaged or of another model, a number is not finite, or the observer ends the work: with
    /// [`Stopped`] if it asks for that.
    pub fn count(self) -> anyhow::Result<StoreReport> {
        let Self { options, run, store, dictionary, followed, promoted, .. } = &self;
        let opened = run.opened;
        let all = store.tokens();
        let mut tally = Tally::new(dictionary.features.dictionary(), options.top_k, AROUND);
        for number in 0..store.len() {
            let shard = store.shard(number)?;
            self.add(&mut tally, &shard)
                .with_context(|| format!("{}, shard {number}", options.store.display()))?;
            if run.observer.is_asked_to_stop() {
                let done = tally.tokens();
                return Err(Stopped(format!("stopped after {done} of {all} tokens")).into());
            }
        }
        let chosen = match &followed[..] {
            [] => most_frequent(&tally, options.top_k),
            chosen => chosen.to_vec(),
        };
        let promoted = promoted.iter().cloned().chain(std::iter::repeat(None));
        let details = options.wants_details().then(|| self.details(&tally)).transpose()?;
        let details = details.into_iter().flatten().map(Some).chain(std::iter::repeat(None));
        let of = |((feature, promoted), details)| self.of_feature(&tally, feature, promoted, details);
        let report = StoreReport {
            gpt2: env!("CARGO_PKG_VERSION"),
            model: opened.name.clone(),
            store: options.store.clone(),
            made_by: store.index().facts.clone(),
            dictionary: dictionary.about.clone(),
            tokens: tally.tokens(),
            l0: tally.mean_fired(),
            explained_variance: tally.explained_variance()?,
            silent: tally.uses().iter().filter(|one| one.fired == 0).count(),
            features: chosen.into_iter().zip(promoted).zip(details).map(of).collect(),
        };
        finite::check(run, &report.dictionary, numbers(&report))?;
        Ok(report)
    }

    /// More about each of the features to follow.
    fn details(&self, tally: &Tally) -> anyhow::Result<Vec<FeatureDetails>> {
        let Self { options, run, dictionary, followed, .. } = self;
        let mut related = Vec::with_capacity(followed.len());
        let mut read_by = Vec::with_capacity(followed.len());
        for part in followed.chunks(COMPARED) {
            if run.observer.is_asked_to_stop() {
                return Err(Stopped("stopped while comparing features".to_owned()).into());
            }
            related.extend(dictionary.features.related(part, options.top_k)?);
            read_by.extend(dictionary.features.readers(&run.opened.model, part, options.top_k)?);
        }
        let of = |((&feature, related), heads): ((&u32, Vec<RelatedFeature>), Vec<ReadingHead>)| {
            let sizes = &tally.uses()[feature as usize].sizes;
            let quantiles = match [0.5, 0.9, 0.99].map(|share| sizes.quantile(share)) {
                [Some(half), Some(most), Some(nearly_all)] => Some([half, most, nearly_all]),
                _ => None,
            };
            let related = related.into_iter().map(|one| (one.feature, one.cosine));
            let head = |one: ReadingHead| (format!("{}.{}", one.layer, one.head), one.reads);
            FeatureDetails {
                quantiles,
                histogram: sizes.bars().iter().map(|bar| (bar.from, bar.to, bar.count)).collect(),
                related: related.collect(),
                read_by: heads.into_iter().map(head).collect(),
            }
        };
        Ok(followed.iter().zip(related).zip(read_by).map(of).collect())
    }

    fn of_feature(
        &self,
        tally: &Tally,
        feature: u32,
        promoted: Option<Promoted>,
        details: Option<FeatureDetails>,
    ) -> FeatureInStore {
        let opened = self.run.opened;
        let found = &tally.uses()[feature as usize];
        let around = |peak: &Peak| {
            let ids = peak.before.iter().chain([&peak.id]).chain(&peak.after);
            ids.map(|&id| opened.label(id)).zip(peak.activations.iter().copied()).collect()
        };
        let place = |peak: &Peak| StrongestPlace {
            activation: peak.activation,
            document: peak.document,
            position: peak.position,
            token: opened.label(peak.id),
            before: text(opened, &peak.before),
            after: text(opened, &peak.after),
            around: if self.options.neuronpedia.is_some() { around(peak) } else { vec![] },
        };
        FeatureInStore {
            feature,
            share: found.fired as f64 / tally.tokens().max(1) as f64,
            mean: (found.fired > 0).then(|| found.sum / found.fired as f64),
            promoted,
            explanations: self.explanations.get(&feature).cloned().unwrap_or_default(),
            details,
            strongest: found.peaks.iter().map(place).collect(),
        }
    }

    fn add(&self, tally: &mut Tally, shard: &Shard) -> anyhow::Result<()> {
        let vocab = self.run.opened.model.config().vocab_size;
        let ids = shard.ids.to_vec1::<u32>()?;
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
            bail!("has token {id}, but the model has tokens 0 to {}: it is another model's", vocab - 1);
        }
        let documents = shard.documents.to_vec1::<u32>()?;
        let positions = shard.positions.to_vec1::<u32>()?;
        let tokens = Tokens { ids: &ids, documents: &documents, positions: &positions };
        let before = tally.tokens() as u64;
        let all = Some(self.store.tokens() as u64);
        let mut progress = |done: usize| self.run.observer.step("tokens", before + done as u64, all);
        let target = self.target.map(|at| &shard.values[at]);
        Ok(tally.add_by_parts(tokens, &shard.values[self.read], target, &mut progress)?)
    }
}

/// The numbers of the report.
fn numbers(report: &StoreReport) -> Vec<NamedNumber> {
    let mut all: Vec<NamedNumber> = vec![("L0", report.l0)];
    all.extend(report.explained_variance.map(|number| ("the explained variance", number)));
    for one in &report.features {
        all.extend(one.mean.map(|mean| ("a mean activation", mean)));
        all.extend(one.strongest.iter().map(|peak| ("an activation", f64::from(peak.activation))));
        all.extend(finite::promoted(one.promoted.as_ref()));
    }
    all
}

/// The features that fire at most tokens.
fn most_frequent(tally: &Tally, count: usize) -> Vec<u32> {
    let mut all: Vec<(u32, u64)> = (0u32..).zip(tally.uses().iter().map(|one| one.fired)).collect();
    all.sort_by(|(a, more), (b, less)| less.cmp(more).then(a.cmp(b)));
    all.into_iter().filter(|(_, fired)| *fired > 0).take(count).map(|(feature, _)| feature).collect()
}

/// The text of tokens, without partial characters at its ends; ids if there is no tokenizer.
fn text(opened: &Opened, ids: &[u32]) -> String {
    match opened.tokenizer() {
        Ok(tokenizer) => tokenizer.decode(ids).trim_matches(char::REPLACEMENT_CHARACTER).to_owned(),
        Err(_) => format!(" {} ", ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")),
    }
}
