//! `gpt2 features --store`: what features do over the tokens that `gpt2 record` wrote.

use super::args::FeaturesArgs;
use super::dictionary::{open, promoted};
use super::finite::{self, Number};
use super::report::{DictionarySummary, Promoted, print_promoted};
use crate::output::progress::bar;
use crate::output::read_files::ReadFiles;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::output::{self, note};
use crate::process::signals::Stop;
use anyhow::{Context, bail};
use gpt2_circuits::features::{Around, Peak, Tally, Tokens};
use gpt2_engine::words::{count, short, without_folders};
use gpt2_engine::{Label, Opened};
use gpt2_files::{INDEX, Shard, Store};
use gpt2_model::hooks::Point;
use gpt2_view::Align::{Left, Right};
use gpt2_view::{Table, visible_text};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The tokens to show around a place, as many as fit on a line.
const AROUND: Around = Around { before: 12, after: 6 };

#[derive(Serialize)]
struct Report {
    gpt2: &'static str,
    model: String,
    store: PathBuf,
    /// The store's own record of how it was made.
    made_by: serde_json::Value,
    dictionary: DictionarySummary,
    tokens: usize,
    /// The mean number of features that fire at a token.
    l0: f64,
    explained_variance: Option<f64>,
    /// The number of features that never fire.
    silent: usize,
    features: Vec<FeatureInStore>,
}

#[derive(Serialize)]
struct FeatureInStore {
    feature: u32,
    /// The share of tokens at which it fires, and its mean activation there.
    share: f64,
    mean: Option<f64>,
    /// The tokens that a chosen feature promotes, if it writes directly to the residual stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    promoted: Option<Promoted>,
    strongest: Vec<StrongestPlace>,
}

#[derive(Serialize)]
struct StrongestPlace {
    activation: f32,
    document: u32,
    position: u32,
    token: Label,
    before: String,
    after: String,
}

pub(super) fn run(args: &FeaturesArgs, path: &Path) -> anyhow::Result<ExitCode> {
    let store = Store::open(path)?;
    let source = args.dictionary()?;
    let mut inputs = ReadFiles::default();
    inputs.file("the store", path.join(INDEX));
    let opened = args.study.open_for(inputs, &Outputs::new(false))?;
    let (dictionary, features) = open(&opened, source)?;
    let promoted = promoted(args, &opened, &features)?;
    let facts = &store.index().facts;
    if let Some(model) =
        facts["provenance"]["model"].as_str().filter(|model| without_folders(model) != opened.title())
    {
        note(&format!(
            "the store was recorded with {model}, and its tokens are shown as those of {}; name the model with --model",
            opened.name
        ));
    }
    let names = &store.index().values;
    // A point has several names.
    let place = |hook: &str| {
        let is_it = |name: &String| {
            let name = name.parse::<Point>();
            let hook = hook.parse::<Point>();
            name.ok().zip(hook.ok()).is_some_and(|(name, hook)| name == hook)
        };
        names.iter().position(is_it)
    };
    let bos = opened.dictionary(source, &TERMINAL)?.found.checkpoint.config().prepend_bos;
    if facts["bos"].as_bool().is_some_and(|has| has != bos) {
        let (with, without) = if bos { ("with", "without") } else { ("without", "with") };
        note(&format!(
            "the dictionary was trained on texts {with} the first token of record --bos, the store was recorded {without}"
        ));
    }
    let read = place(&dictionary.hook).with_context(|| {
        let hook = &dictionary.hook;
        format!("{}: has no {hook}, which the dictionary reads; it has {}", path.display(), names.join(", "))
    })?;
    let target = match &dictionary.hook_out {
        Some(hook_out) => place(hook_out),
        None => Some(read),
    };

    let mut tally = Tally::new(features.dictionary(), args.top_k.into(), AROUND);
    let stop = Stop::listen();
    let bar = bar(Some(store.tokens() as u64), "{bar:30} {pos} of {len} tokens, {eta} left");
    for number in 0..store.len() {
        let shard = store.shard(number)?;
        add(&mut tally, &shard, read, target, opened.model.config().vocab_size)
            .with_context(|| format!("{}, shard {number}", path.display()))?;
        bar.set_position(tally.tokens() as u64);
        if stop.is_asked() {
            bar.finish_and_clear();
            note(&format!("stopped after {} of {} tokens", tally.tokens(), store.tokens()));
            return Ok(ExitCode::from(stop.code()));
        }
    }
    bar.finish_and_clear();
    let chosen =
        if args.feature.is_empty() { most_frequent(&tally, args.top_k) } else { args.feature.clone() };
    let promoted = promoted.into_iter().chain(std::iter::repeat(None));
    let of = |(feature, promoted)| of_feature(&opened, &tally, feature, promoted);
    let report = Report {
        gpt2: env!("CARGO_PKG_VERSION"),
        model: opened.name.clone(),
        store: path.to_path_buf(),
        made_by: facts.clone(),
        dictionary,
        tokens: tally.tokens(),
        l0: tally.mean_fired(),
        explained_variance: tally.explained_variance()?,
        silent: tally.uses().iter().filter(|one| one.fired == 0).count(),
        features: chosen.into_iter().zip(promoted).map(of).collect(),
    };
    finite::check(args.study.finite.allow_nonfinite, &report.dictionary, numbers(&report))?;
    output::report(args.study.json, &report, |report| print(report, !args.feature.is_empty()))?;
    Ok(ExitCode::SUCCESS)
}

fn add(
    tally: &mut Tally,
    shard: &Shard,
    read: usize,
    target: Option<usize>,
    vocab: usize,
) -> anyhow::Result<()> {
    let ids = shard.ids.to_vec1::<u32>()?;
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
        bail!("has token {id}, but the model has tokens 0 to {}: it is another model's", vocab - 1);
    }
    let documents = shard.documents.to_vec1::<u32>()?;
    let positions = shard.positions.to_vec1::<u32>()?;
    let tokens = Tokens { ids: &ids, documents: &documents, positions: &positions };
    Ok(tally.add(tokens, &shard.values[read], target.map(|at| &shard.values[at]))?)
}

/// The numbers of the report.
fn numbers(report: &Report) -> Vec<Number> {
    let mut all: Vec<Number> = vec![("L0", report.l0)];
    all.extend(report.explained_variance.map(|number| ("the explained variance", number)));
    for one in &report.features {
        all.extend(one.mean.map(|mean| ("a mean activation", mean)));
        all.extend(one.strongest.iter().map(|peak| ("an activation", f64::from(peak.activation))));
        all.extend(finite::promoted(one.promoted.as_ref()));
    }
    all
}

/// The features that fire at most tokens.
fn most_frequent(tally: &Tally, count: u16) -> Vec<u32> {
    let mut all: Vec<(u32, u64)> = (0u32..).zip(tally.uses().iter().map(|one| one.fired)).collect();
    all.sort_by(|(a, more), (b, less)| less.cmp(more).then(a.cmp(b)));
    all.into_iter().filter(|(_, fired)| *fired > 0).take(count.into()).map(|(feature, _)| feature).collect()
}

fn of_feature(opened: &Opened, tally: &Tally, feature: u32, promoted: Option<Promoted>) -> FeatureInStore {
    let found = &tally.uses()[feature as usize];
    let place = |peak: &Peak| StrongestPlace {
        activation: peak.activation,
        document: peak.document,
        position: peak.position,
        token: opened.label(peak.id),
        before: text(opened, &peak.before),
        after: text(opened, &peak.after),
    };
    FeatureInStore {
        feature,
        share: found.fired as f64 / tally.tokens().max(1) as f64,
        mean: (found.fired > 0).then(|| found.sum / found.fired as f64),
        promoted,
        strongest: found.peaks.iter().map(place).collect(),
    }
}

/// The text of tokens, without partial characters at its ends; ids if there is no tokenizer.
fn text(opened: &Opened, ids: &[u32]) -> String {
    match opened.tokenizer() {
        Ok(tokenizer) => tokenizer.decode(ids).trim_matches(char::REPLACEMENT_CHARACTER).to_owned(),
        Err(_) => format!(" {} ", ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")),
    }
}

fn print(report: &Report, chosen: bool) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let store = visible_text(&report.store.display().to_string());
    writeln!(out, "{store}: {}", count(report.tokens, "token"))?;
    writeln!(out, "{}", report.dictionary)?;
    let explained = report
        .explained_variance
        .map_or_else(String::new, |of| format!("; explained variance {}", short(of)));
    writeln!(out, "L0 {:.1}{explained}; {} never fire\n", report.l0, count(report.silent, "feature"))?;
    if !chosen {
        let mut table = Table::new(&[
            ("feature", Right),
            ("fires at", Right),
            ("mean", Right),
            ("largest", Right),
            ("where", Left),
        ]);
        for one in &report.features {
            let Some(peak) = one.strongest.first() else { continue };
            table.row(vec![
                one.feature.to_string(),
                percent(one.share),
                one.mean.map_or_else(String::new, short),
                short(peak.activation.into()),
                peak.shown(),
            ]);
        }
        write!(out, "{}", table.render())?;
        return Ok(());
    }
    for (i, one) in report.features.iter().enumerate() {
        if i > 0 {
            writeln!(out)?;
        }
        let mean = one.mean.map_or_else(String::new, |mean| format!(", {} on average there", short(mean)));
        writeln!(out, "feature {}: fires at {} of the tokens{mean}", one.feature, percent(one.share))?;
        print_promoted(&mut out, one.promoted.as_ref())?;
        if one.strongest.is_empty() {
            continue;
        }
        let columns = [("document", Right), ("position", Right), ("activation", Right), ("text", Left)];
        let mut table = Table::new(&columns);
        for peak in &one.strongest {
            let StrongestPlace { document, position, activation, .. } = peak;
            let row = [document.to_string(), position.to_string(), short((*activation).into()), peak.shown()];
            table.row(row.into());
        }
        write!(out, "\n{}", table.render())?;
    }
    Ok(())
}

impl StrongestPlace {
    /// The text around the token, which stands in brackets.
    fn shown(&self) -> String {
        let text = |part: &str| visible_text(part);
        format!("{}[{}]{}", text(&self.before), self.token, text(&self.after))
    }
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}
