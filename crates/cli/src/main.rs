//! `gpt2`: runs GPT-2 and shows its attention.

#![allow(
    clippy::doc_markdown,
    rustdoc::bare_urls,
    rustdoc::broken_intra_doc_links,
    reason = "the comments of options are the help text, which would print backticks"
)]

mod adapters;
mod changes;
mod commands;
mod device;
mod finite;
mod hub;
mod inputs;
mod interventions;
mod output;
mod outputs;
mod parallel;
mod progress;
mod prompt;
mod provenance;
mod qkv;
mod remedy;
mod restart;
mod session;
mod study;
mod values;
mod weights;

use clap::{CommandFactory, FromArgMatches};
use commands::{Args, Command};
use std::process::ExitCode;

/// Candle allocates memory for every activation; with glibc's allocator, a training step spends a third of its
/// time in page faults.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let matches = Args::command().get_matches();
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if args.quiet {
        output::be_quiet();
    }
    let Some((name, options)) = matches.subcommand() else { return ExitCode::FAILURE }; // clap requires one
    let ran = restart::apply(name, options).and_then(|()| run(&args.command));
    let ran = ran.and_then(|code| match output::flush() {
        Err(error) if !output::is_closed_pipe(&error) => Err(error),
        _ => Ok(code),
    });
    match ran {
        Ok(code) => code,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => match error.downcast::<clap::Error>() {
            Ok(usage) => usage.format(&mut Args::command()).exit(),
            Err(error) => {
                output::error(&error);
                output::note(&format!("examples and options: gpt2 help {name}"));
                ExitCode::FAILURE
            }
        },
    }
}

fn run(command: &Command) -> anyhow::Result<ExitCode> {
    candle_fused::Isa::from_environment()?;
    // Run on a thread of the pool that the kernels use. From outside, each of the hundreds of products for a token
    // would wake the pool and sleep until it has finished. The thread's stack is as large as a main thread's usually
    // is, because dropping a graph recurses through its layers.
    rayon::ThreadPoolBuilder::new().stack_size(8 << 20).build_global()?;
    rayon::scope(|_| command.run())
}
