//! `gpt2 verify-cache`: hashes every cached file of a model again.

use crate::args::VerifyCacheArgs;
use crate::{hub, output, remedy};
use gpt2_loader::hub::{FileCheck, FileState};
use gpt2_view::{Align, Table};
use indicatif::HumanBytes;
use serde::Serialize;
use std::process::ExitCode;

#[derive(Serialize)]
struct Row<'a> {
    file: &'a str,
    state: &'a FileState,
    size: u64,
    error: Option<String>,
}

impl<'a> Row<'a> {
    fn of(check: &'a FileCheck) -> Self {
        let error = check.error.as_deref().map(remedy::of_the_loader);
        Self { file: &check.file, state: &check.state, size: check.size, error }
    }
}

pub(crate) fn run(args: &VerifyCacheArgs) -> anyhow::Result<ExitCode> {
    let id = hub::model_id(&args.model)?;
    let checks = hub::settings(&args.hub)?.verify(&id, hub::revision(&args.hub), args.repair)?;
    let rows: Vec<_> = checks.iter().map(Row::of).collect();
    if args.json {
        output::json(&rows)?;
    } else {
        let mut table = Table::new(&[("file", Align::Left), ("size", Align::Right), ("", Align::Left)]);
        for Row { file, state, size, error } in &rows {
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
