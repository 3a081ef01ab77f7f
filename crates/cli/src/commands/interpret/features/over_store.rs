//! `gpt2 features --store`: what features do over the tokens that `gpt2 record` wrote.

use super::args::FeaturesArgs;
use super::print::print_promoted;
use crate::output;
use crate::output::read_files::ReadFiles;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::{NewFolder, Outputs};
use crate::process::signals::Stop;
use anyhow::{Context, bail};
use gpt2_engine::interventions::{InterventionOptions, Prepared};
use gpt2_engine::studies::interpret::features::{FeatureDetails, StoreReport, StrongestPlace};
use gpt2_engine::words::{count, short};
use gpt2_files::{INDEX, Store};
use gpt2_view::Align::{Left, Right};
use gpt2_view::{Table, feature_pages, visible_text};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

pub(super) fn run(args: &FeaturesArgs, path: &Path) -> anyhow::Result<ExitCode> {
    // What can be refused is refused before a model is fetched and read.
    Store::open(path)?;
    check_pages(args)?;
    let source = args.dictionary()?;
    let mut inputs = ReadFiles::default();
    inputs.file("the store", path.join(INDEX));
    let opened = args.study.open_for(inputs, &Outputs::new(false))?;
    let none = Prepared::new(InterventionOptions::default(), &opened, &TERMINAL)?;
    let options = args.store_options(path, source);
    let features = options.open(&args.study.run(&none, false))?;
    let stop = Stop::listen();
    let report = match features.count() {
        Ok(report) => report,
        Err(error) => return TERMINAL.end(&stop, error),
    };
    let follows = args.details || !args.feature.is_empty();
    let shown = || output::report(args.study.json, &report, |report| print(report, follows));
    match &args.pages {
        Some(folder) => write_pages(&report, folder, args.overwrite, shown)?,
        None => shown()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses to write over pages without leave, before anything is computed.
fn check_pages(args: &FeaturesArgs) -> anyhow::Result<()> {
    let Some(folder) = &args.pages else { return Ok(()) };
    let written = ["index.html", "features"].map(|name| folder.join(name));
    if !args.overwrite
        && let Some(there) = written.iter().find(|path| path.exists())
    {
        bail!(
            "--pages {}: is there already; choose another folder, or replace it with --overwrite",
            there.display()
        );
    }
    Ok(())
}

/// Writes the pages, and prints with `print`.
fn write_pages(
    report: &StoreReport,
    folder: &Path,
    overwrite: bool,
    print: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let _folder = NewFolder::make(folder).context("--pages")?;
    let _data = NewFolder::make(&folder.join("features")).context("--pages")?;
    let mut outputs = Outputs::new(overwrite);
    for (name, content) in feature_pages(report, &report.features)? {
        outputs.stage_bytes(&folder.join(name), &content)?;
    }
    outputs.commit_after(print)
}

fn print(report: &StoreReport, chosen: bool) -> anyhow::Result<()> {
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
                shown(peak),
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
        one.details.iter().try_for_each(|details| print_details(&mut out, details))?;
        if one.strongest.is_empty() {
            continue;
        }
        let columns = [("document", Right), ("position", Right), ("activation", Right), ("text", Left)];
        let mut table = Table::new(&columns);
        for peak in &one.strongest {
            let StrongestPlace { document, position, activation, .. } = peak;
            let row = [document.to_string(), position.to_string(), short((*activation).into()), shown(peak)];
            table.row(row.into());
        }
        write!(out, "\n{}", table.render())?;
    }
    Ok(())
}

fn print_details(out: &mut impl Write, details: &FeatureDetails) -> std::io::Result<()> {
    if let Some([half, most, nearly_all]) = details.quantiles {
        let [half, most, nearly_all] = [half, most, nearly_all].map(short);
        writeln!(out, "  activations        half below {half}, 90 % below {most}, 99 % below {nearly_all}")?;
    }
    let listed = |all: Vec<String>| all.join(", ");
    let like = details.related.iter().map(|(feature, cosine)| format!("{feature} {cosine:+.2}")).collect();
    writeln!(out, "  like features      {}", listed(like))?;
    let most = |shares: &[f64; 3]| shares.iter().copied().fold(0.0, f64::max);
    let heads: Vec<String> =
        details.read_by.iter().map(|(head, shares)| format!("{head} {:.2}", most(shares))).collect();
    if !heads.is_empty() {
        writeln!(out, "  read by heads      {}", listed(heads))?;
    }
    Ok(())
}

/// The text around the token, which stands in brackets.
fn shown(place: &StrongestPlace) -> String {
    format!("{}[{}]{}", visible_text(&place.before), place.token, visible_text(&place.after))
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}
