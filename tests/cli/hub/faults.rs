//! Each fault during a download ends in the right weights or in an error that says what to do, and once the
//! fault is over, the next run works by itself; processes that share one cache, and processes that are killed.

use super::{
    At, Duration, FORWARD, Fault, Result, Run, Setup, assert_is_expected, repository, sha256_of, weights,
};
use crate::folder::assert_says;
use crate::{share_environment, signal, spawn};
use std::process::{Child, Command};
use std::time::Instant;

/// The fault happens once, and the run recovers.
#[track_caller]
fn once(at: At, fault: Fault) -> Result<Setup> {
    let setup = Setup::with(at, fault, 1)?;
    let run = setup.works()?;
    assert!(run.stderr.contains("trying again in"), "{}", run.stderr);
    setup.works_offline()?;
    Ok(setup)
}

/// The fault stays: the run fails with `parts`, leaves no trusted file behind, and works once the fault is gone.
#[track_caller]
fn always(at: At, fault: Fault, parts: &[&str]) -> Result<Setup> {
    let setup = Setup::with(at, fault, None)?;
    setup.forward()?.refused(1, parts);
    let faulty = match at {
        At::Head(name) | At::Get(name) => name,
        At::Api | At::Storage => "model.safetensors",
    };
    assert!(!setup.pointer(faulty).exists(), "{faulty} was not verified");
    setup.server.heal();
    setup.works()?;
    setup.works_offline()?;
    Ok(setup)
}

/// The ranges that the fetches of large files asked for.
fn ranges(setup: &Setup) -> Vec<Option<String>> {
    setup.fetches().into_iter().map(|seen| seen.range).collect()
}

/// Fails unless a second fetch went on where the first ended.
#[track_caller]
fn assert_resumed(setup: &Setup) {
    let ranges = ranges(setup);
    assert_eq!(ranges.len(), 2, "{ranges:?}");
    assert_eq!(ranges[0], None, "the whole file needs no range");
    assert!(ranges[1].as_ref().is_some_and(|range| range != "bytes=0-"), "began anew: {ranges:?}");
}

#[test]
fn without_a_fault_all_is_fetched_once_and_then_cached() -> Result {
    let setup = Setup::new()?;
    let run = setup.works()?;
    assert_says("stderr", &run.stderr, &["fetching config.json", "fetching model.safetensors"]);
    let requests = setup.server.state().seen.len();
    let run = setup.works()?;
    assert_eq!(setup.server.state().seen.len(), requests, "a warm start asked again");
    assert!(!run.stderr.contains("fetching") && !run.stderr.contains("verifying"), "{}", run.stderr);
    setup.works_offline()
}

#[test]
fn a_hub_that_stays_away_is_named_once_and_what_to_do_at_the_end() -> Result {
    let setup = Setup::new()?;
    // Nothing listens on this port.
    let run = setup.run_with(&[("HF_ENDPOINT", "http://127.0.0.1:1")], &FORWARD)?;
    run.refused(1, &["HF_ENDPOINT to a mirror"]);
    let notes = run.stderr.split("error: ").next().unwrap_or_default();
    let count = |of: &str| notes.matches(of).count();
    assert_eq!((count("127.0.0.1:1"), count("a mirror")), (1, 0), "{}", run.stderr);
    assert!(count("trying again in ") > 1, "{}", run.stderr);
    assert_eq!(run.stderr.matches("a mirror").count(), 1, "{}", run.stderr);
    Ok(())
}

#[test]
fn a_connection_that_is_cut_once_is_taken_up_where_it_ended() -> Result {
    for fault in [Fault::Drop(50), Fault::Reset(50), Fault::StallBody(50)] {
        let setup = once(At::Storage, fault)?;
        assert_resumed(&setup);
    }
    Ok(())
}

#[test]
fn a_connection_that_is_always_cut_gets_through_piece_by_piece_or_says_so() -> Result {
    always(At::Storage, Fault::Drop(0), &["cut", "goes on from where it ended"])?;
    always(At::Storage, Fault::Reset(0), &["cut", "goes on from where it ended"])?;
    always(At::Storage, Fault::StallBody(0), &["no answer for 2 s", "--timeout"])?;

    // Each try brings half of the rest: progress, until too little is left.
    let mut files = repository();
    files[1].1 = (0..40_000_000u32).map(|i| (i >> 8).to_le_bytes()[0]).collect();
    let big = files[1].1.clone();
    let setup = Setup::serving(files)?;
    setup.server.fault(At::Storage, Fault::Drop(50), None);
    setup.run(&["download", "gpt2", "--timeout", "2"])?.refused(1, &["cut"]);
    assert!(setup.fetches().len() > 6, "{:?}", setup.fetches());
    setup.server.heal();
    setup.run(&["download", "gpt2"])?.succeeded();
    assert!(std::fs::read(setup.pointer("model.safetensors"))? == big);
    Ok(())
}

#[test]
fn a_server_that_goes_in_circles_is_given_up() -> Result {
    // The server ignores ranges and cuts the connection, so each try loses what the one before brought.
    let mut files = repository();
    files[1].1 = vec![5; 9_000_000];
    let setup = Setup::serving(files)?;
    for _ in 0..30 {
        setup.server.fault(At::Storage, Fault::CutWithoutRanges(70), 1);
        setup.server.fault(At::Storage, Fault::CutWithoutRanges(30), 1);
    }
    setup.run(&["download", "gpt2", "--timeout", "2"])?.refused(1, &["cut"]);
    assert!(setup.fetches().len() < 8, "{}", setup.fetches().len());
    Ok(())
}

#[test]
fn a_page_without_a_length_leaves_what_has_arrived() -> Result {
    let setup = Setup::with(At::Storage, Fault::Drop(50), 1)?;
    setup.server.fault(At::Storage, Fault::HtmlOfUnknownLength, 1);
    setup.works()?;
    let ranges = ranges(&setup);
    assert!(ranges.len() == 3 && ranges[1] == ranges[2] && ranges[2].is_some(), "{ranges:?}");
    always(At::Storage, Fault::HtmlOfUnknownLength, &["Log in to the hotel's network"])?;
    Ok(())
}

#[test]
fn a_bare_404_is_not_taken_for_a_missing_file() -> Result {
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        once(At::Head(name), Fault::Status(404, vec![]))?;
    }
    once(At::Get("config.json"), Fault::Status(404, vec![]))?;
    always(At::Head("model.safetensors"), Fault::Status(404, vec![]), &["refused", "404"])?;
    Ok(())
}

#[test]
fn a_redirect_to_a_login_page_is_asked_about() -> Result {
    for at in [At::Head("config.json"), At::Head("model.safetensors")] {
        once(at, Fault::Elsewhere)?;
        always(at, Fault::Elsewhere, &["not an answer of the Hub", "login"])?;
    }
    Ok(())
}

/// Like Python's client, which follows twenty.
#[test]
fn many_redirects_on_one_server_are_followed() -> Result {
    for at in [At::Api, At::Head("config.json"), At::Head("model.safetensors"), At::Get("model.safetensors")]
    {
        Setup::with(at, Fault::Again, 12)?.works()?;
    }
    always(At::Head("model.safetensors"), Fault::Again, &["more than 20 redirects"])?;
    Ok(())
}

#[test]
fn a_server_that_fails_once_is_asked_again() -> Result {
    for at in [At::Api, At::Head("config.json"), At::Head("model.safetensors"), At::Storage] {
        once(at, Fault::Status(500, vec![]))?;
    }
    once(At::Storage, Fault::Status(403, vec![]))?; // an expired address
    Ok(())
}

#[test]
fn a_server_that_asks_to_wait_is_given_the_time() -> Result {
    for (file, header) in
        [("model.safetensors", ("retry-after", "2")), ("config.json", ("ratelimit", "\"resolve\";r=0;t=2"))]
    {
        let setup = Setup::with(At::Head(file), Fault::Status(429, vec![header]), 1)?;
        let start = Instant::now();
        setup.works()?;
        assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    }
    // Nobody should have to wait an hour without a message.
    let hour = Fault::Status(429, vec![("retry-after", "3600")]);
    always(At::Api, hour, &["no more requests", "3600 s", "HF_TOKEN"])?;
    Ok(())
}

#[test]
fn a_server_that_always_fails_is_an_error() -> Result {
    always(At::Api, Fault::Status(500, vec![]), &["the server failed", "500"])?;
    always(At::Storage, Fault::Status(503, vec![]), &["the server failed", "503", "/storage/"])?;
    always(At::Storage, Fault::Status(403, vec![]), &["refused", "403", "proxy"])?;
    let run = Setup::with(At::Head("config.json"), Fault::Status(500, vec![]), None)?.forward()?;
    run.refused(1, &["the server failed", "500", "try again later"]);
    assert!(!run.stderr.contains("HF_TOKEN"), "a token does not help: {}", run.stderr);
    Ok(())
}

#[test]
fn a_length_that_is_wrong_is_noticed() -> Result {
    for (fault, says) in [
        (Fault::LengthTooLarge, "expected sha256"),
        (Fault::LengthTooSmall, "expected sha256"),
        (Fault::ShortBody, "it ended after"),
    ] {
        once(At::Storage, fault.clone())?;
        always(At::Storage, fault, &[says, "bytes"])?;
    }
    Ok(())
}

#[test]
fn no_content_length_is_no_fault() -> Result {
    let setup = Setup::with(At::Storage, Fault::NoLength, None)?;
    setup.server.fault(At::Get("config.json"), Fault::NoLength, None);
    setup.server.fault(At::Head("config.json"), Fault::NoLength, None);
    setup.works()?;
    setup.works_offline()
}

#[test]
fn one_wrong_byte_is_noticed() -> Result {
    for at in [At::Storage, At::Get("config.json"), At::Get("tokenizer.json")] {
        once(at, Fault::Flip)?;
    }
    let parts = ["model.safetensors", "expected sha256", "found", "it is not used"];
    let setup = always(At::Storage, Fault::Flip, &parts)?;
    assert_eq!(setup.fetches().len(), 3 + 1, "three tries, and the one that worked");
    always(At::Get("config.json"), Fault::Flip, &["config.json", "expected git blob sha1"])?;
    Ok(())
}

#[test]
fn a_login_page_shows_itself() -> Result {
    for at in [At::Storage, At::Get("config.json")] {
        once(at, Fault::Html)?;
        always(at, Fault::Html, &["Log in to the hotel's network"])?;
    }
    once(At::Api, Fault::Html)?;
    always(At::Api, Fault::Html, &["not an answer of the Hub", "login"])?;
    always(At::Head("config.json"), Fault::Html, &["describes no file", "login"])?;
    Ok(())
}

#[test]
fn a_stall_ends() -> Result {
    for at in [At::Api, At::Head("config.json"), At::Storage] {
        once(at, Fault::StallHeaders)?;
    }
    always(At::Api, Fault::StallHeaders, &["no answer for 2 s"])?;
    Ok(())
}

#[test]
fn a_slow_download_is_no_stall() -> Result {
    let setup = Setup::with(At::Storage, Fault::Drip(12, Duration::from_millis(300)), 1)?;
    let run = setup.works()?; // 3.6 s, with a timeout of 2 s
    assert!(!run.stderr.contains("trying again"), "{}", run.stderr);
    Ok(())
}

#[test]
fn a_range_that_is_ignored_begins_anew() -> Result {
    let setup = Setup::with(At::Storage, Fault::Drop(50), 1)?;
    setup.server.fault(At::Storage, Fault::NoRanges, None);
    setup.works()?;
    setup.works_offline()
}

#[test]
fn a_server_without_hashes_is_refused() -> Result {
    let head = At::Head("config.json");
    always(head, Fault::NoHash, &["announces no hash", "5f3a-abc", "name their folder"])?;
    Ok(())
}

fn start(setup: &Setup) -> Result<Child> {
    spawn(setup.command(&FORWARD).arg("--json"))
}

/// Waits until some of the weights have arrived.
fn wait_for_bytes(setup: &Setup) {
    let arrived = || -> u64 {
        let Ok(blobs) = std::fs::read_dir(setup.repo().join("blobs")) else { return 0 };
        let name = sha256_of(&weights());
        let parts = blobs.flatten().filter(|blob| {
            let found = blob.file_name().to_string_lossy().into_owned();
            found.starts_with(&name) && found.ends_with(".incomplete")
        });
        parts.filter_map(|part| Some(part.metadata().ok()?.len())).sum()
    };
    let start = Instant::now();
    while arrived() == 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "no download began");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn three_processes_share_one_download() -> Result {
    let setup = Setup::with(At::Storage, Fault::Drip(20, Duration::from_millis(100)), None)?;
    let children = [start(&setup)?, start(&setup)?, start(&setup)?];
    let mut waited = 0;
    for child in children {
        let run = Run::end_of(child)?.succeeded();
        assert_is_expected(&run.stdout)?;
        waited += usize::from(run.stderr.contains("model.safetensors: another process fetches it"));
    }
    assert_eq!(waited, 2);
    assert_eq!(setup.fetches().len(), 1, "{:?}", setup.fetches());
    setup.works_offline()
}

#[test]
fn a_killed_download_goes_on_where_it_ended() -> Result {
    let setup = Setup::with(At::Storage, Fault::Drip(20, Duration::from_millis(200)), 1)?;
    let mut child = start(&setup)?;
    wait_for_bytes(&setup);
    child.kill()?; // SIGKILL: no chance to clean up
    child.wait()?;
    assert!(!setup.pointer("model.safetensors").exists());
    setup.works()?;
    assert_resumed(&setup);
    setup.works_offline()
}

#[test]
#[cfg(target_os = "linux")]
fn ctrl_c_leaves_a_cache_that_works() -> Result {
    let setup = Setup::with(At::Storage, Fault::Drip(20, Duration::from_millis(200)), 1)?;
    // A shell starts background jobs with Ctrl-C ignored, and their children inherit that.
    let command = setup.command(&FORWARD);
    let mut interruptible = Command::new("env");
    interruptible.arg("--default-signal=INT").arg(command.get_program()).args(command.get_args());
    share_environment(&command, &mut interruptible);
    let child = spawn(&mut interruptible)?;
    wait_for_bytes(&setup);
    signal("INT", child.id())?;
    assert!(!child.wait_with_output()?.status.success());
    setup.works()?;
    setup.works_offline()
}

#[test]
fn a_process_that_is_killed_frees_those_that_wait() -> Result {
    let setup = Setup::with(At::Storage, Fault::StallBody(30), 1)?;
    let mut first = start(&setup)?;
    wait_for_bytes(&setup);
    let second = start(&setup)?;
    std::thread::sleep(Duration::from_millis(500));
    first.kill()?;
    first.wait()?;
    assert_is_expected(&Run::end_of(second)?.succeeded().stdout)
}
