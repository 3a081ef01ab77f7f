//! Runs a command on one process or on many. Rank 0 alone prints; an error or a panic on any rank ends all of them.

use crate::output::{self, note};
use crate::values::one_of;
use anyhow::anyhow;
use gpt2_parallel::{Choice, Error, Group, Joining, Launcher, join};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The help of `--timeout` for commands that also wait for other processes.
pub(crate) const TIMEOUT: &str = "Give up on a request to the Hub that brings no data for this long [default: 30]. Give up on another process that does not \
     answer for this long [default: 600]";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Several processes")]
pub(crate) struct ParallelArgs {
    /// Share the work among the processes that mpirun or srun started. auto joins them if there are several
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = one_of(CHOICES))]
    pub(crate) parallel: Choice,
}

const CHOICES: &[(&str, Choice)] = &[("auto", Choice::Auto), ("none", Choice::None), ("mpi", Choice::Mpi)];

/// The delay before a rank other than 0 prints its error: rank 0 mostly has the same one, and prints it first.
const PAUSE: Duration = Duration::from_millis(500);

/// Joins the other processes, if there are any, and runs `work` with them. It waits for a process at most `timeout`
/// seconds.
pub(crate) fn run(
    args: &ParallelArgs,
    timeout: Option<u64>,
    work: impl FnOnce(&Arc<dyn Group>) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let mut joining = Joining::new(args.parallel);
    joining.on_stuck = report_stuck;
    if let Some(seconds) = timeout {
        joining.timeout = Duration::from_secs(seconds);
    }
    let group = match join(&joining) {
        Ok(group) => group,
        Err(error) => {
            let rank = Launcher::from_environment().map_or(0, |launcher| launcher.rank);
            wait_for_first(rank);
            return Err(anyhow!("rank {rank}: {error}"));
        }
    };
    let Some(described) = group.describe() else { return work(&group) };
    if group.rank() == 0 {
        note(&format!("parallel: {described}"));
    } else {
        output::be_quiet();
    }
    match catch_unwind(AssertUnwindSafe(|| work(&group))) {
        Ok(Ok(code)) => Ok(code),
        Ok(Err(error)) if output::is_closed_pipe(&error) => Err(error),
        Ok(Err(error)) => {
            wait_for_first(group.rank());
            output::error(&error.context(format!("rank {}", group.rank())));
            group.abort(1)
        }
        // The panic has printed its message.
        Err(_) => group.abort(101),
    }
}

fn wait_for_first(rank: usize) {
    if rank > 0 {
        std::thread::sleep(PAUSE);
    }
}

fn report_stuck(error: &Error) {
    let rank = Launcher::from_environment().map_or(0, |launcher| launcher.rank);
    output::error(&anyhow!("rank {rank}: {error}"));
}

/// The machine's cores, in Linux's list of ranges, such as `0-3,8-11`.
fn online_cores() -> Option<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        (last.parse::<usize>().ok()? + 1).checked_sub(first.parse().ok()?)
    };
    list.trim().split(',').map(count).sum()
}

/// The CPU threads of this process, where the processes of one machine share its cores.
pub(crate) fn threads(choice: Choice) -> Option<u16> {
    let launcher = Launcher::from_environment().filter(|_| choice != Choice::None)?;
    let here = launcher.local_size.filter(|here| *here > 1)?;
    // A launcher may have given this process cores of its own; else it sees those of all.
    let own = std::thread::available_parallelism().ok()?.get();
    u16::try_from(own.min((online_cores().unwrap_or(own) / here).max(1))).ok()
}
