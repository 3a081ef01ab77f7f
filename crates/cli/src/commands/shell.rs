//! `gpt2 completions` and `gpt2 man`: what a shell and its manual know of this command.

use crate::args::{Args, CompletionsArgs, ManArgs};
use crate::output;
use anyhow::anyhow;
use clap::CommandFactory;
use std::io::Write;
use std::process::ExitCode;

const NAME: &str = "gpt2";

pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    // The generator panics where it cannot write, so it writes to memory.
    let mut script = vec![];
    clap_complete::generate(args.shell, &mut Args::command(), NAME, &mut script);
    output::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let mut all = Args::command();
    // Gives every command the options that are global.
    all.build();
    let page = match &args.command {
        None => all,
        Some(name) => {
            let found = all.find_subcommand(name).ok_or_else(|| {
                let names: Vec<_> = all.get_subcommands().map(clap::Command::get_name).collect();
                anyhow!("gpt2 has no command {name:?}: it has {}", names.join(", "))
            })?;
            found.clone()
        }
    };
    clap_mangen::Man::new(page).render(&mut output::stdout())?;
    Ok(ExitCode::SUCCESS)
}
