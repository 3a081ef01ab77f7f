//! The commands for models of the Hub and the cache that holds them: `download`, `models` and `verify-cache`.

use crate::model::hub::{self, HubArgs};
use crate::output::{self, remedy};
use clap::Args;
use gpt2_loader::ModelId;
use gpt2_loader::hub::{CachedModel, FileCheck, FileState, Pin};
use gpt2_view::{Align, Table, visible_text};
use indicatif::HumanBytes;
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

#[derive(Debug, Args)]
#[command(after_help = "\
A cached model is used without a request, at the commit at which it was fetched. This command asks the Hub for a newer one.
An interrupted download resumes where it stopped. Each file is checked against the hash that the Hub announces. A token for
private and gated models comes from HF_TOKEN, or from where `hf auth login` left it.

Examples:
  gpt2 download gpt2
  gpt2 download distilgpt2 --revision 2290a62682d06624634c1f46a6ad5be0f47f38aa")]
pub(crate) struct DownloadArgs {
    /// A name (gpt2, gpt2-medium, gpt2-large, gpt2-xl, distilgpt2) or owner/name
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

#[derive(Serialize)]
struct Downloaded<'a> {
    model: String,
    commit: &'a str,
    folder: &'a Path,
}

pub(crate) fn download(args: &DownloadArgs) -> anyhow::Result<()> {
    let (id, revision) = gpt2_engine::model_id(&args.model, "--revision", args.hub.revision.as_deref())?;
    let snapshot = hub::settings(&args.hub)?.download(&id, &revision)?;
    if args.json {
        let report = Downloaded { model: id.to_string(), commit: &snapshot.commit, folder: &snapshot.dir };
        output::json(&report)?;
    } else {
        let folder = visible_text(&snapshot.dir.display().to_string());
        writeln!(output::stdout(), "{folder}\n{}", snapshot.commit)?;
    }
    Ok(())
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  gpt2 models --json")]
pub(crate) struct ModelsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

#[derive(Serialize)]
struct Models<'a> {
    names: Vec<ShortName>,
    pins: Vec<Pin>,
    cache: &'a Path,
    cached: Vec<CachedModel>,
}

#[derive(Serialize)]
struct ShortName {
    name: &'static str,
    id: String,
}

pub(crate) fn models(args: &ModelsArgs) -> anyhow::Result<()> {
    let hub = hub::settings(&args.hub)?;
    let report = Models {
        names: ModelId::aliases().map(|(name, id)| ShortName { name, id: id.to_string() }).collect(),
        pins: gpt2_engine::pins()?,
        cache: &hub.cache_dir,
        cached: hub.cached()?,
    };
    output::report(args.json, &report, print_models)
}

fn print_models(report: &Models<'_>) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let columns = ["name", "model of the Hub", "pinned commit", "weights", "license"];
    let mut names = Table::new(&columns.map(|column| (column, Align::Left)));
    for ShortName { name, id } in &report.names {
        let pin = report.pins.iter().find(|pin| pin.id == *id);
        let or_empty = |text: Option<String>| text.unwrap_or_default();
        names.row(vec![
            (*name).to_string(),
            id.clone(),
            or_empty(pin.map(|pin| pin.revision.clone())),
            or_empty(pin.map(|pin| HumanBytes(pin.size).to_string())),
            or_empty(pin.map(|pin| pin.license.clone())),
        ]);
    }
    writeln!(out, "{}", names.render())?;

    let cache = visible_text(&report.cache.display().to_string());
    if report.cached.is_empty() {
        writeln!(out, "no models in {cache}; `gpt2 download gpt2` fetches one")?;
        return Ok(());
    }
    writeln!(out, "in {cache}:")?;
    let columns =
        [("model", Align::Left), ("commit", Align::Left), ("is", Align::Left), ("size", Align::Right)];
    let mut cached = Table::new(&columns);
    for model in &report.cached {
        let size = HumanBytes(model.size).to_string();
        cached.row(vec![model.id.clone(), model.commit.clone(), model.refs.join(", "), size]);
    }
    write!(out, "{}", cached.render())?;
    Ok(())
}

#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 1 if a file is bad and was not repaired.

Examples:
  gpt2 verify-cache gpt2
  gpt2 verify-cache gpt2 --repair")]
pub(crate) struct VerifyCacheArgs {
    /// A name (gpt2, gpt2-medium, gpt2-large, gpt2-xl, distilgpt2) or owner/name
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Fetch bad files again
    #[arg(long)]
    pub(crate) repair: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

#[derive(Serialize)]
struct Verified<'a> {
    file: &'a str,
    state: &'a FileState,
    size: u64,
    error: Option<String>,
}

impl<'a> Verified<'a> {
    fn of(check: &'a FileCheck) -> Self {
        let error = check.error.as_deref().map(remedy::of_the_loader);
        Self { file: &check.file, state: &check.state, size: check.size, error }
    }
}

pub(crate) fn verify(args: &VerifyCacheArgs) -> anyhow::Result<ExitCode> {
    let (id, revision) = gpt2_engine::model_id(&args.model, "--revision", args.hub.revision.as_deref())?;
    let checks = hub::settings(&args.hub)?.verify(&id, &revision, args.repair)?;
    let rows: Vec<_> = checks.iter().map(Verified::of).collect();
    if args.json {
        output::json(&rows)?;
    } else {
        let mut table = Table::new(&[("file", Align::Left), ("size", Align::Right), ("", Align::Left)]);
        for Verified { file, state, size, error } in &rows {
            let state = match (state, error) {
                (FileState::Bad, Some(error)) => error,
                (FileState::Good, _) => "good",
                (FileState::Repaired, _) => "was bad, repaired",
                (FileState::Bad, None) => "BAD: its hash does not match; --repair fetches it again",
                (FileState::Unknown, _) => "unknown: the cache does not say its hash",
            };
            table.row(vec![(*file).into(), HumanBytes(*size).to_string(), state.into()]);
        }
        std::io::Write::write_fmt(&mut output::stdout(), format_args!("{}", table.render()))?;
    }
    let bad = checks.iter().any(|check| check.state == FileState::Bad);
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
