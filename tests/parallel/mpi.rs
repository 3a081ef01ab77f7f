//! Runs the exchanges of `exchanges` under mpirun, and checks what happens when the ranks do not meet. The tests start this
//! test binary again, once a rank, to run one of the ignored tests.

use crate::exchanges::every_exchange;
use crate::mpirun::mpirun;
use gpt2_parallel::{Choice, Error, Group, Joining, join};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

/// More than one bucket.
const LARGE: usize = 30_000_000;

/// Exit code and output of the test `worker`, run on `ranks` ranks.
fn run(ranks: usize, worker: &str) -> Option<(i32, String)> {
    let program = std::env::current_exe().expect("this binary");
    Some(ended(&mut mpirun(ranks, program.to_str().expect("a path in UTF-8"))?, worker))
}

fn ended(command: &mut Command, worker: &str) -> (i32, String) {
    command.args(["--exact", worker, "--ignored", "--nocapture", "--test-threads=1"]);
    let output = command.output().expect("mpirun");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code().unwrap_or(-1), text)
}

#[test]
fn every_exchange_works_under_mpirun() {
    for ranks in [1, 2, 3] {
        let Some((code, text)) = run(ranks, "mpi::exchanges_on_this_rank") else { return };
        assert_eq!(code, 0, "{text}");
        let name = format!("{ranks} rank{} over Open MPI", if ranks == 1 { "" } else { "s" });
        assert_eq!(text.matches(&name).count(), ranks, "{text}");
    }
}

#[test]
#[ignore = "a rank of the test above"]
fn exchanges_on_this_rank() {
    let group = join(&Joining::new(Choice::Mpi)).expect("mpirun started this");
    say(&group.describe().unwrap_or_default());
    every_exchange(&*group, 1000);
    every_exchange(&*group, LARGE);
    assert!(matches!(join(&Joining::new(Choice::Mpi)), Err(Error::Twice)), "MPI starts once");
    let elsewhere = std::thread::scope(|scope| scope.spawn(|| group.barrier()).join());
    assert!(matches!(elsewhere, Ok(Err(Error::OtherThread))), "{elsewhere:?}");
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let started = Instant::now();
    let Some((code, text)) = run(3, "mpi::rank_1_never_comes") else { return };
    assert_ne!(code, 0, "{text}");
    assert!(text.contains("rank 1 did not answer for 1 s (barrier)"), "{text}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
#[ignore = "a rank of the test above"]
fn rank_1_never_comes() {
    let mut joining = Joining::new(Choice::Auto);
    joining.timeout = Duration::from_secs(1);
    let group = join(&joining).expect("mpirun started this");
    group.barrier().expect("all are here");
    if group.rank() == 1 {
        std::thread::sleep(Duration::from_mins(1));
    }
    end_at_error(&*group, group.barrier());
}

/// Ends the job where an exchange failed.
fn end_at_error(group: &dyn Group, done: gpt2_parallel::Result<()>) {
    if let Err(error) = done {
        say(&format!("error: {error}"));
        group.abort(1);
    }
}

/// Tells the test that started this process.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

#[test]
fn a_rank_that_does_something_else_is_named() {
    let Some((code, text)) = run(3, "mpi::rank_2_does_something_else") else { return };
    assert_ne!(code, 0, "{text}");
    assert!(text.contains("rank 2 does not take part in the barrier that rank 0 waits for"), "{text}");
}

#[test]
#[ignore = "a rank of the test above"]
fn rank_2_does_something_else() {
    let group = join(&Joining::new(Choice::Auto)).expect("mpirun started this");
    let done = if group.rank() == 2 { group.broadcast(0, &mut [0]) } else { group.barrier() };
    end_at_error(&*group, done);
}

/// Runs a process that joins the others by these variables, and by none of a launcher that runs the tests. Returns its exit
/// code and its output.
fn joined_by(variables: &[(&str, &str)]) -> (i32, String) {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    for of_launcher in ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK", "GPT2_MPI"] {
        command.env_remove(of_launcher);
    }
    ended(command.envs(variables.iter().copied()), "mpi::this_rank_joins")
}

#[test]
fn a_library_of_another_mpi_than_the_launchers_is_refused() {
    if mpirun(1, "true").is_none() {
        return;
    }
    let library = ["libmpi.so.40", "libmpi.40.dylib"][usize::from(cfg!(target_os = "macos"))];
    let (code, text) = joined_by(&[("PMI_SIZE", "2"), ("PMI_RANK", "0"), ("GPT2_MPI", library)]);
    assert_ne!(code, 0, "{text}");
    assert!(text.contains("MPICH's mpiexec started 2 processes, but Open MPI"), "{text}");
}

#[test]
fn a_library_that_is_not_there_is_refused() {
    let launched = [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0")];
    let (code, text) = joined_by(&[launched[0], launched[1], ("GPT2_MPI", "/nowhere/libmpi.so")]);
    assert!(code != 0 && text.contains("error: /nowhere/libmpi.so: "), "{text}");
    // A library, but not of MPI.
    let library = "libm.so.6";
    let (code, text) = joined_by(&[launched[0], launched[1], ("GPT2_MPI", library)]);
    assert!(
        code != 0 && text.contains("libm.so.6: has no function MPI_Get_library_version; set GPT2_MPI"),
        "{text}"
    );
}

#[test]
fn a_process_that_a_launcher_started_alone_needs_no_library() {
    let (code, text) = joined_by(&[("PMI_SIZE", "1"), ("PMI_RANK", "0"), ("GPT2_MPI", "/nowhere/libmpi.so")]);
    assert!(code == 0 && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "a rank of the tests above"]
fn this_rank_joins() {
    if let Err(error) = join(&Joining::new(Choice::Auto)) {
        say(&format!("error: {error}"));
        std::process::exit(1);
    }
}
