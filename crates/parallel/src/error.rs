//! The errors between processes.

use std::path::PathBuf;
use std::time::Duration;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a group of processes cannot form, or cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A launcher started several processes, but there is no MPI library to join them.
    #[error(
        "found no MPI library (tried {tried}); install Open MPI or MPICH (on Debian: apt-get install openmpi-bin), or set \
         GPT2_MPI to the library's path"
    )]
    NoLibrary {
        /// The names and paths that were tried.
        tried: String,
    },
    /// A library cannot be opened, or is not one of MPI.
    #[error("{}: {reason}; set GPT2_MPI to the path of an MPI library", path.display())]
    NotALibrary {
        /// The path.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The library does not see the processes that the launcher started: they belong to different MPIs.
    #[error(
        "{launcher} started {started} processes, but {library} sees {seen}: the launcher and the library belong to \
         different MPIs; use the mpirun of {library}, set GPT2_MPI to the library of the launcher, or keep each process \
         alone with --parallel none"
    )]
    WrongLauncher {
        /// The launcher's name.
        launcher: &'static str,
        /// The number of processes that it started.
        started: usize,
        /// The library's name and version.
        library: String,
        /// The number of processes that the library sees.
        seen: usize,
    },
    /// The library is of another MPI than the launcher.
    #[error(
        "{launcher} started this process, but the MPI library is {library}; set GPT2_MPI to the library of the launcher, \
         or use the mpiexec of {library}"
    )]
    WrongLibrary {
        /// The launcher's name.
        launcher: &'static str,
        /// The library's name and version.
        library: String,
    },
    /// The library cannot be called from a program with threads.
    #[error(
        "{library} does not support programs with threads (MPI_THREAD_FUNNELED); use another build of it"
    )]
    NoThreads {
        /// The library's name and version.
        library: String,
    },
    /// This process has started MPI already.
    #[error("this process has joined a group before; join once, and share the group")]
    Twice,
    /// A call of the library failed. Most libraries end the process themselves instead, with a message of their own.
    #[error("{function} failed with MPI error {code}")]
    Call {
        /// The function.
        function: &'static str,
        /// The library's error code.
        code: i32,
    },
    /// A thread other than the one that joined the group called it.
    #[error("only the thread that joined the group may call it; this is another thread")]
    OtherThread,
    /// Some ranks do not answer.
    #[error("{} did not answer for {} s ({doing}): stopped, stuck, or busy for longer than the timeout", ranks(missing), after.as_secs())]
    Stuck {
        /// The ranks that are missing; empty if unknown.
        missing: Vec<usize>,
        /// The time that this rank waited.
        after: Duration,
        /// The exchange that they should take part in.
        doing: &'static str,
    },
    /// A rank wants something else than rank 0: the ranks run different programs.
    #[error(
        "rank {rank} does not take part in the {doing} that rank 0 waits for: the ranks run different programs"
    )]
    Apart {
        /// The rank.
        rank: usize,
        /// The exchange that rank 0 waits for.
        doing: &'static str,
    },
    /// A rank differs from rank 0 in something that must be the same everywhere.
    #[error("rank {rank} has another {what} than rank 0: {theirs}, not {expected}; {remedy}")]
    Differs {
        /// The first rank that differs.
        rank: usize,
        /// The name of the fact that differs.
        what: String,
        /// The value on rank 0.
        expected: String,
        /// The value on that rank.
        theirs: String,
        /// The advice.
        remedy: String,
    },
    /// The caller gave another length than the ranks agreed on, or a rank that there is not.
    #[error("{function}: got {found}, expected {expected}")]
    Size {
        /// The function.
        function: &'static str,
        /// The number that the caller gave: of bytes or lengths, or a rank.
        found: usize,
        /// The number that it should have given.
        expected: usize,
    },
}

/// "rank 3", "ranks 1, 2", or "another rank" where nobody knows which.
fn ranks(missing: &[usize]) -> String {
    match missing {
        [] => "another rank".into(),
        [rank] => format!("rank {rank}"),
        many => {
            let many: Vec<String> = many.iter().map(usize::to_string).collect();
            format!("ranks {}", many.join(", "))
        }
    }
}
