//! `gpt2`: runs GPT-2 and shows its attention.

#![allow(
    clippy::doc_markdown,
    rustdoc::bare_urls,
    rustdoc::broken_intra_doc_links,
    reason = "the comments of options are the help text, which would print backticks"
)]

mod commands;
mod help;
mod input;
mod interventions;
mod model;
mod output;
mod process;
mod results;
mod study;
mod values;

use anyhow::Context;
use candle_fused::KeepLarge;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use commands::{Args, Command};
use help::near::with_near_names;
use help::tips;
use mimalloc::MiMalloc;
use output::remedy;
use output::terminal::TERMINAL;
use process::{restart, signals};
use results::browser::NoBrowser;
use std::process::ExitCode;

/// Candle allocates memory for every activation. An allocator that gives it back to the system between passes spends up to a
/// third of a training step in page faults.
#[global_allocator]
static ALLOCATOR: KeepLarge<MiMalloc> = KeepLarge::new(MiMalloc);

/// The allocator's option `mi_option_purge_delay`, which its crate does not name: milliseconds until it gives free pages back, or
/// -1 for never. It is the same number in versions 2 and 3.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Candle reads here how often a thread of its own pool looks for more work before it sleeps.
const CANDLE_SPINS: &str = "CANDLE_BARRIER_POOL_SPIN_LIMIT";

fn main() -> ExitCode {
    keep_small();
    spin_less();
    let mut gpt2 = command();
    let matches = match gpt2.try_get_matches_from_mut(std::env::args_os()) {
        Ok(matches) => matches,
        Err(error) => return output::usage(&answer(error)),
    };
    let args = match Args::from_arg_matches(&matches) {
        Ok(args) => args,
        Err(error) => return output::usage(&error),
    };
    if args.quiet {
        output::be_quiet();
    }
    let Some((name, options)) = matches.subcommand() else { return ExitCode::FAILURE }; // clap requires one
    let has_model = gpt2
        .find_subcommand(name)
        .is_some_and(|command| command.get_arguments().any(|arg| arg.get_long() == Some("model")));
    remedy::command_is(name, has_model);
    let ran = restart::apply(options).and_then(|()| signals::handle()).and_then(|()| run(&args.command));
    let ran = ran.and_then(|code| match output::flush() {
        Err(error) if !output::is_closed_pipe(&error) => Err(error),
        _ => Ok(code),
    });
    match ran {
        Ok(code) => code,
        Err(error) if output::is_closed_pipe(&error) => {
            TERMINAL.clear();
            ExitCode::SUCCESS
        }
        Err(error) => match error.downcast::<clap::Error>() {
            Ok(usage) => output::usage(&usage.format(&mut command())),
            Err(error) => {
                TERMINAL.clear(); // a bar of the work that failed
                output::error(&error);
                // The options were right.
                if !error.is::<NoBrowser>() {
                    output::note(&format!("examples and options: gpt2 help {name}"));
                }
                ExitCode::FAILURE
            }
        },
    }
}

/// Has the allocator keep the pages of blocks that [`KeepLarge`] leaves to it, unless `MIMALLOC_PURGE_DELAY` says otherwise. If they
/// were given back, the system would clear them for the next pass.
#[allow(unsafe_code)]
fn keep_small() {
    // SAFETY: sets a number, before other threads begin.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, -1) };
}

/// Has Candle's threads sleep sooner, unless the environment says otherwise: after an operation they look 25,000 times by default, and
/// meanwhile take a core from our threads.
#[allow(unsafe_code)]
fn spin_less() {
    if std::env::var_os(CANDLE_SPINS).is_none() {
        // SAFETY: no other thread has begun that could read the environment.
        unsafe { std::env::set_var(CANDLE_SPINS, "1000") };
    }
}

/// The command with its whole help; without colors where an argument holds what a terminal would act upon.
fn command() -> clap::Command {
    let command = help::full(with_near_names(Args::command()));
    if output::is_harmless_usage() { command } else { command.styles(clap::builder::Styles::plain()) }
}

/// The help that the arguments ask for, or what is wrong with them.
fn answer(error: clap::Error) -> clap::Error {
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    // clap takes `help -h` for the help of a command that is named -h.
    let asks = |arg: &String| arg == "-h" || arg == "--help";
    if args.first().is_some_and(|arg| arg == "help") && args.iter().any(asks) {
        let named = args.iter().filter(|arg| !asks(arg)).map(String::as_str);
        let asked = command().try_get_matches_from(["gpt2"].into_iter().chain(named));
        return asked.err().unwrap_or(error);
    }
    if error.kind() == ErrorKind::DisplayHelp && help::is_brief(&args) {
        return help::brief(Args::command()).try_get_matches().err().unwrap_or(error);
    }
    tips::mended(error, command(), &args)
}

fn run(command: &Command) -> anyhow::Result<ExitCode> {
    candle_fused::Isa::from_environment()?;
    // Run on a thread of the pool that the kernels use. From outside, each of the hundreds of products for a token
    // would wake the pool and sleep until it has finished. The thread's stack is as large as a main thread's usually
    // is, because dropping a graph recurses through its layers.
    let pool = rayon::ThreadPoolBuilder::new().stack_size(8 << 20).build_global();
    pool.with_context(restart::threads_failed)?;
    rayon::scope(|_| command.run())
}
