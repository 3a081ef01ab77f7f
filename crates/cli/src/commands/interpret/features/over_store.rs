//! `gpt2 features --store`: what features do over the tokens that `gpt2 record` wrote.

use super::args::FeaturesArgs;
use super::print::{print_explanation, print_promoted};
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
use gpt2_view::{Table, feature_pages, neuronpedia_files, visible_text};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(super) fn run(args: &FeaturesArgs, path: &Path) -> anyhow::Result<ExitCode> {
    // What can be refused is refused before a model is fetched and read.
    Store::open(path)?;
    check_folders(args)?;
    let source = args.dictionary()?;
    let mut inputs = ReadFiles::default();
    inputs.file("the store", path.join(INDEX));
    for path in &args.explanations {
        inputs.file("a file of explanations", path);
    }
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
    write_folders(args, &report, shown)?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses to write over pages without leave, and into a folder with other files for Neuronpedia, before anything is computed.
fn check_folders(args: &FeaturesArgs) -> anyhow::Result<()> {
    if let Some(folder) = &args.pages {
        let written = ["index.html", "features"].map(|name| folder.join(name));
        if !args.overwrite
            && let Some(there) = written.iter().find(|path| path.exists())
        {
            bail!(
                "--pages {}: is there already; choose another folder, or replace it with --overwrite",
                there.display()
            );
        }
    }
    if let Some(folder) = &args.neuronpedia
        && folder.read_dir().is_ok_and(|mut entries| entries.next().is_some())
    {
        bail!("--neuronpedia {}: holds files already; name a new or an empty folder", folder.display());
    }
    Ok(())
}

/// Writes the pages and the files for Neuronpedia, where they are asked for, and prints with `print`.
fn write_folders(
    args: &FeaturesArgs,
    report: &StoreReport,
    print: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // The folders outlive the temporary files in them.
    let make = |folder: &Option<PathBuf>, inside: &str, flag: &'static str| -> anyhow::Result<_> {
        folder.as_ref().map(|folder| NewFolder::make(&folder.join(inside)).context(flag)).transpose()
    };
    let _pages = make(&args.pages, "", "--pages")?;
    let _data = make(&args.pages, "features", "--pages")?;
    let _neuronpedia = make(&args.neuronpedia, "", "--neuronpedia")?;
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(folder) = &args.pages {
        for (name, content) in feature_pages(report, &report.features)? {
            outputs.stage_bytes(&folder.join(name), &content)?;
        }
    }
    if let (Some(folder), Some(id)) = (&args.neuronpedia, &args.neuronpedia_id) {
        for (name, content) in neuronpedia_files(id, report, &report.features)? {
            outputs.stage_bytes(&folder.join(name), &content)?;
        }
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
        if report.features.iter().any(|one| !one.explanations.is_empty()) {
            writeln!(out)?;
        }
        for one in &report.features {
            print_explanation(&mut out, one.feature, &one.explanations)?;
        }
        return Ok(());
    }
    for (i, one) in report.features.iter().enumerate() {
        if i > 0 {
            writeln!(out)?;
        }
        let mean = one.mean.map_or_else(String::new, |mean| format!(", {} on average there", short(mean)));
        writeln!(out, "feature {}: fires at {} of the tokens{mean}", one.feature, percent(one.share))?;
        for text in &one.explanations {
            writeln!(out, "  explanation        {}", visible_text(text))?;
        }
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
