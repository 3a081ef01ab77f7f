//! Sets the environment variables that must be there before the first thread runs: the number of CPU threads, and
//! whether a training run keeps memory that it will use again.

use crate::parallel;
use anyhow::Context;
use clap::ArgMatches;
use gpt2_parallel::Choice;

/// The variable that rayon, gemm and Candle's own pool read when they first start.
const THREADS: &str = "RAYON_NUM_THREADS";
/// How many milliseconds the allocator keeps free pages; -1 is forever. With its default of 10, the kernel spends a
/// third of a training step clearing the same pages again.
const PURGE_DELAY: &str = "MIMALLOC_PURGE_DELAY";

/// Starts this program again with those variables set, unless they already are. `options` are those of the command `name`.
///
/// Candle and the allocator have no function to set them, and a process must not change its own environment once a
/// second thread runs, so a new process replaces this one. Returns if nothing needs to change.
pub(crate) fn apply(name: &str, options: &ArgMatches) -> anyhow::Result<()> {
    let times_training = || options.get_raw("what").is_some_and(|mut what| what.any(|what| what == "train"));
    let trains = name == "train" || (name == "bench" && times_training());
    let asked = options.try_get_one::<u16>("threads").ok().flatten().copied();
    let shared = || {
        let choice = options.try_get_one::<Choice>("parallel").ok().flatten()?;
        parallel::threads(*choice).filter(|_| std::env::var_os(THREADS).is_none())
    };
    let threads = asked.or_else(shared).map(|n| n.to_string());
    let threads = threads.filter(|n| std::env::var(THREADS).ok().as_ref() != Some(n));
    let keep = trains && std::env::var_os(PURGE_DELAY).is_none();
    if threads.is_none() && !keep {
        return Ok(());
    }
    let program = std::env::current_exe().context("cannot find this program to start it again")?;
    let mut again = std::process::Command::new(program);
    again.args(std::env::args_os().skip(1));
    if let Some(threads) = threads {
        again.env(THREADS, threads);
    }
    if keep {
        again.env(PURGE_DELAY, "-1");
    }
    Err(replace(again)).context("cannot start this program again")
}

/// Returns only where it fails.
#[cfg(unix)]
fn replace(mut command: std::process::Command) -> std::io::Error {
    use std::os::unix::process::CommandExt;
    command.exec()
}

/// Returns only where it fails.
#[cfg(not(unix))]
fn replace(mut command: std::process::Command) -> std::io::Error {
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}
