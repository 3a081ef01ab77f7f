//! Training on several processes, as a person starts them: the same bytes as one process, and what happens when one of
//! them fails.

use crate::common::Result;
use crate::folder::{Folder, assert_says};
use crate::mpirun::{MPICH, launcher, mpirun};
use crate::{DEMO, GPT2, Run, command, gpt2, launched, signal, spawn, wait_for_lines, words};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Long enough for anything that must end within seconds.
#[cfg(target_os = "linux")]
const SECONDS: Duration = Duration::from_secs(20);

/// A folder with a text, and the runs that train on it.
struct Runs {
    folder: Folder,
}

impl Runs {
    fn new() -> Result<Self> {
        let folder = Folder::empty()?;
        let text: String =
            (0..1500).map(|i| ["to be ", "or not ", "that is "][(i * i + i / 7) % 3]).collect();
        folder.write("text.txt", text)?;
        Ok(Self { folder })
    }

    /// The arguments of a run with dropout, clipping and accumulation into the folder `out`.
    fn train(&self, out: &str, steps: u32, more: &[&str]) -> Vec<String> {
        let every = if more.contains(&"--eval-every") { &[][..] } else { &["--eval-every", "20"] };
        let sizes = "--vocab-size 270 --n-layer 2 --n-head 2 --n-embd 16 --n-positions 16 \
                     --batch 2 --accumulate 4 --dropout 0.1 --clip 0.5 --lr 0.01";
        let (text, metrics, out) =
            (self.folder.at("text.txt"), self.folder.at(&format!("{out}.csv")), self.folder.at(out));
        let files = ["train", "--text", &text, "--out", &out, "--metrics", &metrics];
        let steps = steps.to_string();
        let args = [&files[..], &["--steps", &steps], &words(sizes), every, more].concat();
        args.into_iter().map(str::to_owned).collect()
    }

    /// The bytes that a run leaves: the model, the losses.
    fn result(&self, out: &str) -> Result<[Vec<u8>; 2]> {
        let metrics = std::fs::read(self.folder.file(&format!("{out}.csv")))?;
        Ok([std::fs::read(self.folder.file(out).join("model.safetensors"))?, metrics])
    }

    #[cfg(target_os = "linux")]
    fn has_state(&self, out: &str) -> bool {
        self.folder.file(out).join("training-state.safetensors").exists()
    }
}

/// The binary under Open MPI's mpirun.
fn ranks(n: usize, args: &[String]) -> Option<Command> {
    Some(launched(mpirun(n, GPT2)?, args))
}

fn one_process(args: &[String]) -> Result<Run> {
    gpt2(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn any_number_of_processes_writes_the_same_bytes() -> Result {
    same_bytes(&[])
}

#[test]
fn any_number_of_processes_writes_the_same_bytes_with_muon_and_samples() -> Result {
    same_bytes(&["--optimizer", "muon", "--num-samples", "1"])
}

fn same_bytes(options: &[&str]) -> Result {
    let runs = Runs::new()?;
    one_process(&runs.train("one", 44, options))?.succeeded();
    let one = runs.result("one")?;
    // Started by mpirun, a run alone is still one process; --parallel mpi joins it to itself.
    for (n, more) in [(1, &["--parallel", "mpi"][..]), (2, &[]), (3, &["--threads", "2"])] {
        let name = n.to_string();
        let Some(command) = ranks(n, &runs.train(&name, 44, &[options, more].concat())) else {
            return Ok(());
        };
        let run = Run::of(command)?.succeeded();
        let said = format!("parallel: {n} rank{} over Open MPI ", if n == 1 { "" } else { "s" });
        assert_eq!(run.stderr.matches(&said).count(), 1, "{}", run.stderr);
        assert_eq!(run.stderr.matches("step 20: ").count(), 1, "rank 0 alone prints: {}", run.stderr);
        assert!(runs.result(&name)? == one, "{n} ranks");
    }
    Ok(())
}

#[test]
fn another_mpi_writes_the_same_bytes() -> Result {
    let runs = Runs::new()?;
    // Its library with MPI 5's ABI, which is found first, and the one with MPICH's own.
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mpich/lib/libmpi.so.12");
    for (name, library) in [("standard", None), ("own", Some(own))] {
        let args = runs.train(name, 44, &[]);
        let Some(mpiexec) = launcher(MPICH, &["-n", "2", GPT2]) else { return Ok(()) };
        let mut command = launched(mpiexec, &args);
        if let Some(library) = library {
            command.env("GPT2_MPI", library);
        }
        let run = Run::of(command)?.succeeded();
        assert_says("stderr", &run.stderr, &["parallel: 2 ranks over MPICH "]);
    }
    one_process(&runs.train("one", 44, &[]))?.succeeded();
    assert!(runs.result("standard")? == runs.result("one")? && runs.result("own")? == runs.result("one")?);
    Ok(())
}

/// The process ids of a job's ranks, in rank order, once all `n` run.
#[cfg(target_os = "linux")]
fn ids(job: &Child, n: usize) -> Result<Vec<u32>> {
    let started = Instant::now();
    loop {
        let mut found = vec![];
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            let parent = format!("PPid:\t{}\n", job.id());
            let environment = read("environ");
            let rank = environment.split('\0').find_map(|v| v.strip_prefix("OMPI_COMM_WORLD_RANK="));
            if let Some(rank) = rank.filter(|_| read("status").contains(&parent)) {
                found.push((rank.parse::<usize>()?, id));
            }
        }
        found.sort_unstable();
        if found.len() == n {
            return Ok(found.into_iter().map(|(_, id)| id).collect());
        }
        if started.elapsed() > SECONDS {
            return Err(format!("{} of {n} ranks", found.len()).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a signal to a rank of a job, or to its launcher, amid its steps, after which the job must end within seconds.
#[cfg(target_os = "linux")]
fn hit(runs: &Runs, name: &str, n: usize, rank: Option<usize>, args: &[String]) -> Result<Option<Run>> {
    let _ = std::fs::remove_file(runs.folder.file("hit.csv"));
    let Some(command) = ranks(n, &[args, &["--overwrite".into()]].concat()) else { return Ok(None) };
    let job = spawn(command)?;
    // The first state is there after 20 steps.
    wait_for_lines(&runs.folder.file("hit.csv"), 30 + 3 * n)?;
    let id = match rank {
        Some(rank) => ids(&job, n)?[rank],
        None => job.id(),
    };
    signal(name, id)?;
    let hit = Instant::now();
    let output = job.wait_with_output()?;
    assert!(hit.elapsed() < SECONDS, "{name} to {rank:?} of {n}: {:?}", hit.elapsed());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().unwrap_or(-1);
    Ok(Some(Run { code, stdout: text(&output.stdout), stderr: text(&output.stderr) }))
}

#[test]
#[cfg(target_os = "linux")]
fn a_job_that_lost_a_rank_ends_and_goes_on_with_another_number_of_ranks() -> Result {
    let runs = Runs::new()?;
    one_process(&runs.train("whole", 240, &[]))?.succeeded();
    let stuck = ["--timeout", "2"];
    // Rank 0 writes and ends with 130, as it heard of the stop from the others, or 143 if it got the signal itself.
    let ended_well = |code| code == 130 || code == 143;
    for (name, n, rank, more, says) in [
        ("KILL", 2, 0, &[][..], ""),
        ("KILL", 2, 1, &[], ""),
        ("STOP", 3, 1, &stuck, " did not answer for "),
        ("STOP", 2, 0, &stuck, " did not answer for "),
        ("TERM", 2, 1, &[], "stopped after step "),
    ] {
        let case = format!("{name} to rank {rank} of {n}");
        let args = runs.train("hit", 240, more);
        let Some(run) = hit(&runs, name, n, Some(rank), &args)? else { return Ok(()) };
        assert!(run.stderr.contains(says), "{case}: {}", run.stderr);
        assert!(if name == "TERM" { ended_well(run.code) } else { run.code != 0 }, "{case}: {run:?}");
        assert!(runs.has_state("hit"), "{case}: {}", run.stderr);
        let again = runs.train("hit", 240, &["--resume"]);
        let resumed = match n {
            2 => one_process(&again)?,
            _ => Run::of(ranks(2, &again).ok_or("mpirun was there")?)?,
        };
        let resumed = resumed.succeeded();
        assert_says("stderr", &resumed.stderr, &["going on after step "]);
        assert!(runs.result("hit")? == runs.result("whole")?, "{case}");
    }
    Ok(())
}

/// Open MPI's mpirun passes Ctrl-C on as SIGTERM, and ends its ranks by force a second later.
#[test]
#[cfg(target_os = "linux")]
fn ctrl_c_under_mpirun_saves_the_state() -> Result {
    let runs = Runs::new()?;
    let args = runs.train("hit", 20_000, &["--eval-every", "20000"]);
    let Some(run) = hit(&runs, "INT", 2, None, &args)? else { return Ok(()) };
    assert_says("stderr", &run.stderr, &["stopped after step ", "--resume"]);
    assert_eq!(run.stderr.matches("stopped after step ").count(), 1);
    assert!(runs.has_state("hit"));
    Ok(())
}

/// Rank 0 alone writes, so it alone meets a disk that is gone.
#[test]
#[cfg(unix)]
fn a_job_that_lost_its_folder_ends_with_the_reason() -> Result {
    let runs = Runs::new()?;
    let Some(command) = ranks(2, &runs.train("gone", 20_000, &[])) else { return Ok(()) };
    let job = spawn(command)?;
    wait_for_lines(&runs.folder.file("gone.csv"), 5)?;
    std::fs::remove_dir_all(runs.folder.file("gone"))?;
    runs.folder.write("gone", "a file")?;
    let run = Run::end_of(job)?;
    assert_ne!(run.code, 0);
    assert_says("stderr", &run.stderr, &["error: rank 0: ", "gone"]);
    Ok(())
}

#[test]
fn a_rank_that_does_other_work_is_named_before_any() -> Result {
    let runs = Runs::new()?;
    runs.folder.write("other.txt", "to be or not to be ".repeat(400))?;
    let args = runs.train("out", 3, &[]);
    let other: Vec<String> = args.iter().map(|arg| arg.replace("text.txt", "other.txt")).collect();
    let faster: Vec<String> =
        args.iter().map(|arg| if arg == "0.01" { "0.5" } else { arg }.to_owned()).collect();
    for (second, difference) in [
        (other, "rank 1 has another config.vocab_size than rank 0: "),
        (faster, "rank 1 has another lr than rank 0: 0.5, not 0.01; start every rank with the same command"),
    ] {
        let Some(mut command) = ranks(1, &args) else { return Ok(()) };
        command.args([":", "-n", "1", GPT2]).args(&second);
        let run = Run::of(command)?;
        assert_ne!(run.code, 0, "{run:?}");
        assert_says("stderr", &run.stderr, &["error: rank 0: ", difference]);
        assert!(!runs.folder.file("out").exists(), "before any work: {}", run.stderr);
    }
    Ok(())
}

/// One that fails ends the others at once, wherever they are.
#[test]
fn a_rank_that_lacks_a_file_leaves_no_folder() -> Result {
    let runs = Runs::new()?;
    let text = runs.folder.at("text.txt");
    let out = runs.folder.at("new/folder");
    let new = ["train", "--text", &text, "--out", &out, "--steps", "3"].map(str::to_owned).to_vec();
    let tuned = [&new[..], &["--model", DEMO].map(str::to_owned)].concat();
    for (args, from) in [(&new, "text.txt"), (&tuned, "tiny-shakespeare")] {
        let lacking: Vec<String> = args.iter().map(|arg| arg.replace(from, "nowhere")).collect();
        for [first, second] in [[args, &lacking], [&lacking, args]] {
            let Some(mut command) = ranks(1, first) else { return Ok(()) };
            command.args([":", "-n", "1", GPT2]).args(second);
            let run = Run::of(command)?;
            assert_ne!(run.code, 0, "{run:?}");
            assert_says("stderr", &run.stderr, &["error: rank ", "nowhere"]);
            assert!(!runs.folder.file("new").exists(), "{}", run.stderr);
        }
    }
    Ok(())
}

#[test]
fn a_launcher_without_its_library_is_an_error_that_says_what_to_do() -> Result {
    let runs = Runs::new()?;
    let args = runs.train("out", 3, &[]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut launched = command(&args);
    launched.envs([
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("GPT2_MPI", "/nowhere/libmpi.so"),
    ]);
    Run::of(launched)?.refused(1, &["rank 1: /nowhere/libmpi.so: ", "GPT2_MPI"]);
    // MPICH's launcher without MPICH, whose libraries have other names than Open MPI's.
    let mut launched = command(&args);
    launched.envs([("PMI_SIZE", "2"), ("PMI_RANK", "0"), ("PATH", ""), ("LD_LIBRARY_PATH", "")]);
    let run = Run::of(launched)?;
    if !Path::new("/usr/lib/x86_64-linux-gnu/libmpich.so.12").exists() {
        run.refused(1, &["rank 0: found no MPI library (tried libmpi_abi.so.1", "install", "GPT2_MPI"]);
    }
    assert!(!runs.folder.file("out").exists());
    Ok(())
}
