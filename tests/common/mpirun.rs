//! Starts processes with the launchers of two MPIs.

#![allow(dead_code)] // each package uses a part of it

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A launcher: its program, what its version says, and how to install it.
pub(crate) struct Mpi {
    program: &'static str,
    says: &'static str,
    install: &'static str,
}

pub(crate) const OPEN_MPI: Mpi =
    Mpi { program: "mpirun", says: "Open MPI", install: "apt-get install openmpi-bin" };
/// MPICH stands beside Open MPI in a folder of its own.
pub(crate) const MPICH: Mpi = Mpi {
    program: concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/mpich/bin/mpiexec"),
    says: "HYDRA",
    install: "python3 -m pip install --prefix target/mpich mpich==5.0.2",
};

/// A launcher with these arguments; `None` where it is not installed.
///
/// # Panics
/// Under CI, where it is not installed.
pub(crate) fn launcher(mpi: Mpi, args: &[&str]) -> Option<Command> {
    let version = Command::new(mpi.program).arg("--version").output();
    if !version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(mpi.says)) {
        let reason = format!("no {}; run: {}", mpi.program, mpi.install);
        assert!(std::env::var_os("CI").is_none(), "{reason}");
        let _ = writeln!(std::io::stderr(), "SKIPPED: {reason}");
        return None;
    }
    let mut command = Command::new(mpi.program);
    command.args(args);
    Some(command)
}

/// Open MPI's mpirun with `ranks` ranks of `program`, on a machine with fewer cores than ranks, and by root if need be.
pub(crate) fn mpirun(ranks: usize, program: &str) -> Option<Command> {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"];
    let mut command = launcher(OPEN_MPI, &[&options[..], &["-n", &ranks.to_string(), program]].concat())?;
    // Two that make the same folder at a time fail: each run of a test program gets its own, which stays empty and is used again.
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let name = format!("mpirun-{}-{number}", env!("CARGO_CRATE_NAME"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder for mpirun");
    command.env("OMPI_MCA_orte_tmpdir_base", folder);
    Some(command)
}
