//! Sets the environment variables that must be there before the first thread runs: the number of CPU threads, and that an error
//! is told without a backtrace.

use super::parallel;
use crate::model::args::MOST_THREADS;
use anyhow::{Context, bail};
use clap::ArgMatches;
use gpt2_parallel::Choice;

/// The variable that rayon, gemm and Candle's own pool read when they first start.
const THREADS: &str = "RAYON_NUM_THREADS";
/// Whether errors hold a backtrace; if it is not set, `RUST_BACKTRACE` says that, and whether a panic prints one. Candle
/// makes the backtrace a part of its errors' text, where a user's mistake must not show one.
const BACKTRACE: &str = "RUST_LIB_BACKTRACE";

/// Starts this program again with those variables set, unless they already are. `options` are those of the command.
///
/// Nobody has a function to set them, and a process must not change its own environment once a second thread runs, so a new
/// process replaces this one. Returns if nothing needs to change.
pub(crate) fn apply(options: &ArgMatches) -> anyhow::Result<()> {
    let asked = options.try_get_one::<u16>("threads").ok().flatten().copied();
    let shared = || {
        let choice = options.try_get_one::<Choice>("parallel").ok().flatten()?;
        parallel::threads(*choice).filter(|_| std::env::var_os(THREADS).is_none())
    };
    let threads = asked.or_else(shared).map(|n| n.to_string());
    let threads = threads.filter(|n| std::env::var(THREADS).ok().as_ref() != Some(n));
    if threads.is_none() {
        check_variable()?;
    }
    let unset = |name| std::env::var_os(name).is_none();
    let silence = !unset("RUST_BACKTRACE") && unset(BACKTRACE);
    if threads.is_none() && !silence {
        return Ok(());
    }
    let failed = match std::env::current_exe() {
        Ok(program) => {
            let mut again = std::process::Command::new(program);
            again.args(std::env::args_os().skip(1));
            if let Some(threads) = &threads {
                again.env(THREADS, threads);
            }
            if silence {
                again.env(BACKTRACE, "0");
            }
            replace(again)
        }
        Err(error) => error,
    };
    // Without /proc, say, only errors are longer.
    if threads.is_none() { Ok(()) } else { Err(failed).context("cannot start this program again") }
}

/// Refuses a number of threads that the environment gives and `--threads` would refuse.
fn check_variable() -> anyhow::Result<()> {
    let Some(value) = std::env::var_os(THREADS).filter(|value| !value.is_empty()) else { return Ok(()) };
    let number = value.to_str().and_then(|text| text.parse::<u64>().ok());
    if number.is_none_or(|n| n > u64::from(MOST_THREADS)) {
        bail!(
            "{THREADS}={}: expected a number of CPU threads, 1 to {MOST_THREADS}, or 0 for all cores; correct it, unset it, \
             or give --threads",
            value.display()
        );
    }
    Ok(())
}

/// Adds to a failure to start the pool how many threads were asked for, and what to do.
pub(crate) fn threads_failed() -> String {
    let asked = std::env::var(THREADS).ok().and_then(|text| text.parse().ok()).filter(|&n: &usize| n > 0);
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "cannot start {} CPU threads; give fewer with --threads, or raise the limit of memory or processes",
        asked.unwrap_or_else(all)
    )
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
    // Ctrl-C reaches both: the child decides what it does.
    let _ = ctrlc::set_handler(|| {});
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}
