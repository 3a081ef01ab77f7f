//! Starts processes with Open MPI's mpirun.

#![allow(dead_code)] // each package uses a part of it

use std::io::Write;
use std::process::Command;

/// `mpirun` with `ranks` ranks of `program`, on a machine with fewer cores than ranks, and by root if need be; `None`
/// where Open MPI is not installed.
///
/// # Panics
/// Under CI, where Open MPI is not installed.
pub(crate) fn mpirun(ranks: usize, program: &str) -> Option<Command> {
    let version = Command::new("mpirun").arg("--version").output();
    let is_there = version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Open MPI"));
    if !is_there {
        assert!(std::env::var_os("CI").is_none(), "no Open MPI; run: apt-get install openmpi-bin");
        let _ = writeln!(std::io::stderr(), "SKIPPED: no Open MPI; run: apt-get install openmpi-bin");
        return None;
    }
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
    command.args(["-n", &ranks.to_string(), program]);
    Some(command)
}
