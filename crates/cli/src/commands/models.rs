//! `gpt2 models`: the models that have a short name, and the models in the cache.

use crate::args::ModelsArgs;
use crate::{hub, output};
use gpt2_loader::ModelId;
use gpt2_loader::hub::{CachedModel, Pin};
use gpt2_view::{Align, Table, visible_text};
use indicatif::HumanBytes;
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

#[derive(Serialize)]
struct Report<'a> {
    names: Vec<Name>,
    pins: Vec<Pin>,
    cache: &'a Path,
    cached: Vec<CachedModel>,
}

#[derive(Serialize)]
struct Name {
    name: &'static str,
    id: String,
}

pub(crate) fn run(args: &ModelsArgs) -> anyhow::Result<ExitCode> {
    let hub = hub::settings(&args.hub)?;
    let report = Report {
        names: ModelId::aliases().map(|(name, id)| Name { name, id: id.to_string() }).collect(),
        pins: hub::pins()?,
        cache: &hub.cache_dir,
        cached: hub.cached()?,
    };
    output::report(args.json, &report, print)?;
    Ok(ExitCode::SUCCESS)
}

fn print(report: &Report<'_>) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let columns = ["name", "model of the Hub", "pinned commit", "weights", "license"];
    let mut names = Table::new(&columns.map(|column| (column, Align::Left)));
    for Name { name, id } in &report.names {
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
