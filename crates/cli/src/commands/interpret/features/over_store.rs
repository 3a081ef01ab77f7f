//! `gpt2 features --store`: what features do over the tokens that `gpt2 record` wrote.

use super::args::FeaturesArgs;
use super::print::{print_explanation, print_promoted};
use crate::output::terminal::TERMINAL;
use crate::output::written_files::{Outputs, print_and_write};
use crate::output::{self, note};
use crate::process::signals::Stop;
use gpt2_engine::interventions::{InterventionOptions, Prepared};
use gpt2_engine::studies::interpret::features::{
    FeatureDetails, FeatureInStore, StoreReport, StrongestPlace,
};
use gpt2_engine::words::{count, short};
use gpt2_engine::{ReadFiles, Spelling};
use gpt2_files::Store;
use gpt2_view::Align::{Left, Right};
use gpt2_view::{Table, visible_text};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

pub(super) fn run(args: &FeaturesArgs, path: &Path) -> anyhow::Result<ExitCode> {
    // What can be refused is refused before a model is fetched and read.
    Store::open(path)?;
    let source = args.dictionary()?;
    let options = args.store_options(path, source);
    let cache = args.study.model.hub.options().cache_dir().ok();
    let mut inputs = ReadFiles { cache, ..ReadFiles::default() };
    options.add_inputs(&mut inputs, None)?;
    args.study.model.model.iter().for_each(|model| inputs.named(model));
    let mut folders = options.make_folders(&inputs, Spelling::Flags)?;
    let opened = args.study.open_for(inputs, &Outputs::new(false))?;
    folders.check(&opened.read)?;
    let none = Prepared::new(InterventionOptions::default(), &opened, &TERMINAL)?;
    let features = options.open(&args.study.run(&none, false))?;
    let stop = Stop::listen();
    let report = match features.count() {
        Ok(report) => report,
        Err(error) => return TERMINAL.end(&stop, error),
    };
    folders.stage(&report, &report.features)?;
    let write = || {
        folders.commit()?.iter().for_each(|path| note(&format!("wrote {}", path.display())));
        Ok(())
    };
    print_and_write(|| output::report(args.study.json, &report, |report| print(report, args)), write)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the chosen features, or the most frequent of all.
fn print(report: &StoreReport, args: &FeaturesArgs) -> anyhow::Result<()> {
    let mut features: Vec<&FeatureInStore> = report.features.iter().collect();
    if args.feature.is_empty() {
        features.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.feature.cmp(&b.feature)));
        features.truncate(args.top_k.into());
    }
    print_features(report, &features, args.details || !args.feature.is_empty())?;
    let more = report.features.len() - features.len();
    if more > 0 {
        writeln!(output::stdout(), "\n{more} more: --json")?;
    }
    Ok(())
}

fn print_features(report: &StoreReport, features: &[&FeatureInStore], chosen: bool) -> anyhow::Result<()> {
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
        for one in features {
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
        if features.iter().any(|one| !one.explanations.is_empty()) {
            writeln!(out)?;
        }
        for one in features {
            print_explanation(&mut out, one.feature, &one.explanations)?;
        }
        return Ok(());
    }
    for (i, one) in features.iter().enumerate() {
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
    if !details.related.is_empty() {
        writeln!(out, "  like features      {}", listed(like))?;
    }
    let most = |shares: &[f64; 3]| {
        let named = ["q", "k", "v"].into_iter().zip(*shares);
        let (name, share) = named.fold(("q", 0.0), |most, one| if one.1 > most.1 { one } else { most });
        format!("{name} {share:.2}")
    };
    let heads: Vec<String> =
        details.read_by.iter().map(|(head, shares)| format!("{head} {}", most(shares))).collect();
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
