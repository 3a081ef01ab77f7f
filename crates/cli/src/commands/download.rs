//! `gpt2 download`: fetches and verifies a model's files.

use crate::args::DownloadArgs;
use crate::{hub, output};
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

#[derive(Serialize)]
struct Report<'a> {
    model: String,
    commit: &'a str,
    folder: &'a Path,
}

pub(crate) fn run(args: &DownloadArgs) -> anyhow::Result<ExitCode> {
    let id = hub::model_id(&args.model)?;
    let snapshot = hub::settings(&args.hub)?.download(&id, hub::revision(&args.hub))?;
    if args.json {
        let report = Report { model: id.to_string(), commit: &snapshot.commit, folder: &snapshot.dir };
        output::json(&report)?;
    } else {
        writeln!(output::stdout(), "{}\n{}", snapshot.dir.display(), snapshot.commit)?;
    }
    Ok(ExitCode::SUCCESS)
}
