//! `--threads`: how many CPU threads everything below uses.

use crate::args::Command;
use anyhow::Context;

/// The variable that rayon, gemm and Candle's own pool read, each when it first starts.
const VARIABLE: &str = "RAYON_NUM_THREADS";

/// Starts this program again with [`VARIABLE`] set, where `--threads` asks for another value than it has.
///
/// Candle has no call for it, and a process may not change its own environment once a thread runs, so a
/// fresh process takes this one's place. Returns where nothing needs to change.
pub(crate) fn apply(command: &Command) -> anyhow::Result<()> {
    let Some(threads) = command.threads().map(|n| n.to_string()) else { return Ok(()) };
    if std::env::var(VARIABLE).is_ok_and(|set| set == threads) {
        return Ok(());
    }
    let program = std::env::current_exe().context("--threads: cannot find this program to start it again")?;
    let mut again = std::process::Command::new(program);
    again.args(std::env::args_os().skip(1)).env(VARIABLE, threads);
    Err(replace(again)).context("--threads: cannot start this program again")
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
