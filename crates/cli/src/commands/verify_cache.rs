//! `gpt2 verify-cache`: every cached file of a model, hashed again.

use crate::args::VerifyCacheArgs;
use crate::{hub, output};
use gpt2_loader::hub::FileState;
use gpt2_view::{Align, Table};
use indicatif::HumanBytes;
use std::process::ExitCode;

pub(crate) fn run(args: &VerifyCacheArgs) -> anyhow::Result<ExitCode> {
    let id = hub::model_id(&args.model)?;
    let checks = hub::settings(&args.hub)?.verify(&id, hub::revision(&args.hub), args.repair)?;
    if args.json {
        output::json(&checks)?;
    } else {
        let mut table = Table::new(&[("file", Align::Left), ("size", Align::Right), ("", Align::Left)]);
        for check in &checks {
            let state = match &check.state {
                FileState::Bad if check.error.is_some() => check.error.as_deref().unwrap_or_default(),
                FileState::Good => "good",
                FileState::Repaired => "was bad, repaired",
                FileState::Bad => "BAD: its hash does not hold; --repair fetches it anew",
                FileState::Unknown => "unknown: the cache does not say its hash",
            };
            table.row(vec![check.file.clone(), HumanBytes(check.size).to_string(), state.into()]);
        }
        std::io::Write::write_fmt(&mut output::stdout(), format_args!("{}", table.render()))?;
    }
    let bad = checks.iter().any(|check| check.state == FileState::Bad);
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
