//! Several processes that share one cache, and one that is killed.

use super::{At, Duration, Fault, Result, Run, Setup, assert_is_expected, sha256_of, weights};
use std::process::{Child, Stdio};
use std::time::Instant;

const FORWARD: [&str; 5] = ["forward", "--model", "gpt2", "--json", "O Romeo"];

fn start(setup: &Setup) -> Result<Child> {
    Ok(setup.command(&FORWARD).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

/// Waits until some of the weights have arrived.
fn wait_for_bytes(setup: &Setup) {
    let partial = setup.blob(&format!("{}.incomplete", sha256_of(&weights())));
    let start = Instant::now();
    while partial.metadata().map_or(0, |meta| meta.len()) == 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "no download began");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn three_processes_share_one_download() -> Result<()> {
    let setup = Setup::with(At::Storage, Fault::Drip(20, Duration::from_millis(100)), None)?;
    let children = [start(&setup)?, start(&setup)?, start(&setup)?];
    let mut waited = 0;
    for child in children {
        let run = Run::of(child.wait_with_output()?)?.succeeded();
        assert_is_expected(&run.stdout)?;
        waited += usize::from(run.stderr.contains("model.safetensors: another process fetches it"));
    }
    assert_eq!(waited, 2);
    assert_eq!(setup.fetches().len(), 1, "{:?}", setup.fetches());
    setup.works_offline()
}

#[test]
fn a_killed_download_goes_on_where_it_ended() -> Result<()> {
    let setup = Setup::with(At::Storage, Fault::Drip(20, Duration::from_millis(200)), 1)?;
    let mut child = start(&setup)?;
    wait_for_bytes(&setup);
    child.kill()?; // SIGKILL: no chance to clean up
    child.wait()?;
    assert!(!setup.pointer("model.safetensors").exists());
    setup.works()?;
    let ranges: Vec<_> = setup.fetches().into_iter().map(|seen| seen.range).collect();
    assert_eq!(ranges.len(), 2);
    assert!(ranges[1].as_ref().is_some_and(|range| range != "bytes=0-"), "began anew: {ranges:?}");
    setup.works_offline()
}

#[test]
#[cfg(target_os = "linux")]
fn ctrl_c_leaves_a_cache_that_works() -> Result<()> {
    let setup = Setup::with(At::Storage, Fault::Drip(20, Duration::from_millis(200)), 1)?;
    // A shell starts background jobs with Ctrl-C ignored, and their children inherit that.
    let command = setup.command(&FORWARD);
    let mut interruptible = std::process::Command::new("env");
    interruptible.arg("--default-signal=INT").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => interruptible.env(name, value),
            None => interruptible.env_remove(name),
        };
    }
    let child = interruptible.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    wait_for_bytes(&setup);
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
    assert!(kill.success());
    let output = child.wait_with_output()?;
    assert!(!output.status.success());
    setup.works()?;
    setup.works_offline()
}

#[test]
fn a_process_that_is_killed_frees_those_that_wait() -> Result<()> {
    let setup = Setup::with(At::Storage, Fault::StallBody(30), 1)?;
    let mut first = start(&setup)?;
    wait_for_bytes(&setup);
    let second = start(&setup)?;
    std::thread::sleep(Duration::from_millis(500));
    first.kill()?;
    first.wait()?;
    let run = Run::of(second.wait_with_output()?)?.succeeded();
    assert_is_expected(&run.stdout)?;
    Ok(())
}
