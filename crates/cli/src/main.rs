//! `gpt2`: runs GPT-2 and shows its attention.

mod adapters;
mod args;
mod changes;
mod commands;
mod device;
mod finite;
mod hub;
mod inputs;
mod interventions;
mod new_folder;
mod npy;
mod output;
mod outputs;
mod parallel;
mod prompt;
mod provenance;
mod qkv;
mod remedy;
mod restart;
mod session;
mod stop;
mod values;
mod weights;

use args::{Args, Command};
use clap::Parser;
use std::process::ExitCode;

/// Candle allocates memory for every activation; with glibc's allocator, a training step spends a third of its
/// time in page faults.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args = Args::parse();
    if args.quiet {
        output::be_quiet();
    }
    let ran = run(&args.command).and_then(|code| match output::flush() {
        Err(error) if !output::is_closed_pipe(&error) => Err(error),
        _ => Ok(code),
    });
    match ran {
        Ok(code) => code,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&error);
            output::note(&format!("examples and options: gpt2 help {}", args.command.name()));
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> anyhow::Result<ExitCode> {
    restart::apply(command)?;
    candle_fused::Isa::from_environment()?;
    // Run on a thread of the pool that the kernels use. From outside, each of the hundreds of products for a token
    // would wake the pool and sleep until it has finished. The thread's stack is as large as a main thread's usually
    // is, because dropping a graph recurses through its layers.
    rayon::ThreadPoolBuilder::new().stack_size(8 << 20).build_global()?;
    rayon::scope(|_| dispatch(command))
}

fn dispatch(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Attention(args) => commands::attention::run(args),
        Command::Heads(args) => commands::heads::run(args),
        Command::Lens(args) => commands::lens::run(args),
        Command::Patch(args) => commands::patch::run(args),
        Command::Circuits(args) => commands::circuits::run(args),
        Command::Forward(args) => commands::forward::run(args),
        Command::Generate(args) => commands::generate::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Quantize(args) => commands::quantize::run(args),
        Command::Compare(args) => commands::compare::run(args),
        Command::Score(args) => commands::score::run(args),
        Command::Train(args) => commands::train::run(args),
        Command::Merge(args) => commands::merge::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Verify(args) => commands::verify::run(args),
        Command::Download(args) => commands::download::run(args),
        Command::Models(args) => commands::models::run(args),
        Command::VerifyCache(args) => commands::verify_cache::run(args),
        Command::Completions(args) => commands::shell::completions(args),
        Command::Man(args) => commands::shell::man(args),
    }
}
