//! `--parallel`
// These comments are the help text, which would print backticks.
#![allow(clippy::doc_markdown)]

use gpt2_parallel::Choice;

/// The help of `--timeout` for commands that also wait for other processes.
pub(crate) const TIMEOUT: &str = "Give up on a request to the Hub that brings no data for this long [default: 30], and on another process that does \
     not answer for this long [default: 600]";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Several processes")]
pub(crate) struct ParallelArgs {
    /// Share the work out over the processes that mpirun or srun started; auto joins them if there are several
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) parallel: ParallelArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ParallelArg {
    Auto,
    None,
    Mpi,
}

impl From<ParallelArg> for Choice {
    fn from(arg: ParallelArg) -> Self {
        match arg {
            ParallelArg::Auto => Self::Auto,
            ParallelArg::None => Self::None,
            ParallelArg::Mpi => Self::Mpi,
        }
    }
}
