//! Each fault during a download ends in the right weights or in an error that says what to do, and once the
//! fault is over, the next run works by itself.

use super::{At, Duration, Fault, Result, Server, Setup, repository};
use crate::folder::assert_says;

/// The fault happens once, and the run recovers.
#[track_caller]
fn once(at: At, fault: Fault) -> Result<Setup> {
    let setup = Setup::with(at, fault, 1)?;
    let run = setup.works()?;
    assert!(run.stderr.contains("next try in"), "{}", run.stderr);
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

#[test]
fn without_a_fault_all_is_fetched_once_and_then_cached() -> Result<()> {
    let setup = Setup::new()?;
    let run = setup.works()?;
    assert_says(
        "stderr",
        &run.stderr,
        &["fetching config.json", "fetching model.safetensors", "model: openai"],
    );
    let requests = setup.server.seen().len();
    let run = setup.works()?;
    assert_eq!(setup.server.seen().len(), requests, "a warm start asked again");
    assert!(!run.stderr.contains("fetching") && !run.stderr.contains("verifying"), "{}", run.stderr);
    setup.works_offline()
}

#[test]
fn a_connection_that_is_cut_once_is_taken_up_where_it_ended() -> Result<()> {
    for fault in [Fault::Drop(50), Fault::Reset(50), Fault::StallBody(50)] {
        let setup = once(At::Storage, fault)?;
        let ranges: Vec<_> = setup.fetches().into_iter().map(|seen| seen.range).collect();
        assert_eq!(ranges.len(), 2, "{ranges:?}");
        assert!(ranges[1].as_ref().is_some_and(|range| range != "bytes=0-"), "began anew: {ranges:?}");
    }
    Ok(())
}

#[test]
fn a_connection_that_is_always_cut_gets_through_piece_by_piece_or_says_so() -> Result<()> {
    always(At::Storage, Fault::Drop(0), &["cut", "goes on from where it ended"])?;
    always(At::Storage, Fault::Reset(0), &["cut", "goes on from where it ended"])?;
    always(At::Storage, Fault::StallBody(0), &["no answer for 2 s", "--timeout"])?;

    // Each try brings half of the rest: progress, until too little is left.
    let mut files = repository();
    files[1].1 = (0..40_000_000u32).map(|i| (i >> 8).to_le_bytes()[0]).collect();
    let big = files[1].1.clone();
    let setup = Setup { server: Server::start(files), ..Setup::new()? };
    setup.server.fault(At::Storage, Fault::Drop(50), None);
    setup.run(&["download", "gpt2", "--timeout", "2"])?.refused(1, &["cut"]);
    assert!(setup.fetches().len() > 6, "{:?}", setup.fetches());
    setup.server.heal();
    setup.run(&["download", "gpt2"])?.succeeded();
    assert!(std::fs::read(setup.pointer("model.safetensors"))? == big);
    Ok(())
}

#[test]
fn a_server_that_goes_in_circles_is_given_up() -> Result<()> {
    // The server ignores ranges and cuts the connection, so each try loses what the one before brought.
    let mut files = repository();
    files[1].1 = vec![5; 9_000_000];
    let setup = Setup { server: Server::start(files), ..Setup::new()? };
    for _ in 0..30 {
        setup.server.fault(At::Storage, Fault::CutWithoutRanges(70), 1);
        setup.server.fault(At::Storage, Fault::CutWithoutRanges(30), 1);
    }
    setup.run(&["download", "gpt2", "--timeout", "2"])?.refused(1, &["cut"]);
    assert!(setup.fetches().len() < 8, "{}", setup.fetches().len());
    Ok(())
}

#[test]
fn a_page_without_a_length_leaves_what_has_arrived() -> Result<()> {
    let setup = Setup::with(At::Storage, Fault::Drop(50), 1)?;
    setup.server.fault(At::Storage, Fault::HtmlOfUnknownLength, 1);
    setup.works()?;
    let ranges: Vec<_> = setup.fetches().into_iter().map(|seen| seen.range).collect();
    assert!(ranges.len() == 3 && ranges[1] == ranges[2] && ranges[2].is_some(), "{ranges:?}");
    always(At::Storage, Fault::HtmlOfUnknownLength, &["Log in to the hotel's network"])?;
    Ok(())
}

#[test]
fn a_bare_404_is_not_taken_for_a_missing_file() -> Result<()> {
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        once(At::Head(name), Fault::Status(404, vec![]))?;
    }
    always(At::Head("model.safetensors"), Fault::Status(404, vec![]), &["refused", "404"])?;
    Ok(())
}

#[test]
fn a_redirect_to_a_login_page_is_asked_about() -> Result<()> {
    for at in [At::Head("config.json"), At::Head("model.safetensors")] {
        once(at, Fault::Elsewhere)?;
        always(at, Fault::Elsewhere, &["not an answer of the Hub", "login"])?;
    }
    Ok(())
}

#[test]
fn a_server_that_fails_once_is_asked_again() -> Result<()> {
    for at in [At::Api, At::Head("config.json"), At::Head("model.safetensors"), At::Storage] {
        once(at, Fault::Status(500, vec![]))?;
    }
    once(At::Storage, Fault::Status(403, vec![]))?; // an address that has run out
    Ok(())
}

#[test]
fn a_server_that_asks_to_wait_is_given_the_time() -> Result<()> {
    let setup =
        Setup::with(At::Head("model.safetensors"), Fault::Status(429, vec![("retry-after", "2")]), 1)?;
    let start = std::time::Instant::now();
    setup.works()?;
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    let limit = ("ratelimit", "\"resolve\";r=0;t=2");
    let setup = Setup::with(At::Head("config.json"), Fault::Status(429, vec![limit]), 1)?;
    let start = std::time::Instant::now();
    setup.works()?;
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    // Nobody should have to wait an hour without a message.
    let at = At::Api;
    always(
        at,
        Fault::Status(429, vec![("retry-after", "3600")]),
        &["no more requests", "3600 s", "HF_TOKEN"],
    )?;
    Ok(())
}

#[test]
fn a_server_that_always_fails_is_an_error() -> Result<()> {
    always(At::Api, Fault::Status(500, vec![]), &["the server failed", "500"])?;
    always(At::Storage, Fault::Status(503, vec![]), &["the server failed", "503", "/storage/"])?;
    always(At::Storage, Fault::Status(403, vec![]), &["refused", "403", "proxy"])?;
    Ok(())
}

#[test]
fn a_length_that_is_wrong_is_noticed() -> Result<()> {
    once(At::Storage, Fault::LengthTooLarge)?;
    once(At::Storage, Fault::LengthTooSmall)?;
    once(At::Storage, Fault::ShortBody)?;
    always(At::Storage, Fault::LengthTooLarge, &["expected sha256", "bytes"])?;
    always(At::Storage, Fault::LengthTooSmall, &["expected sha256", "bytes"])?;
    always(At::Storage, Fault::ShortBody, &["it ended after", "bytes"])?;
    Ok(())
}

#[test]
fn no_content_length_is_no_fault() -> Result<()> {
    let setup = Setup::with(At::Storage, Fault::NoLength, None)?;
    setup.server.fault(At::Get("config.json"), Fault::NoLength, None);
    setup.server.fault(At::Head("config.json"), Fault::NoLength, None);
    setup.works()?;
    setup.works_offline()
}

#[test]
fn one_wrong_byte_is_noticed() -> Result<()> {
    once(At::Storage, Fault::Flip)?;
    once(At::Get("config.json"), Fault::Flip)?;
    once(At::Get("tokenizer.json"), Fault::Flip)?;
    always(At::Storage, Fault::Flip, &["model.safetensors", "expected sha256", "found", "it is not used"])?;
    always(At::Get("config.json"), Fault::Flip, &["config.json", "expected git blob sha1"])?;
    Ok(())
}

#[test]
fn a_login_page_shows_itself() -> Result<()> {
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
fn a_stall_ends() -> Result<()> {
    once(At::Api, Fault::StallHeaders)?;
    once(At::Head("config.json"), Fault::StallHeaders)?;
    once(At::Storage, Fault::StallHeaders)?;
    always(At::Api, Fault::StallHeaders, &["no answer for 2 s"])?;
    Ok(())
}

#[test]
fn a_slow_download_is_no_stall() -> Result<()> {
    let setup = Setup::with(At::Storage, Fault::Drip(12, Duration::from_millis(300)), 1)?;
    let run = setup.works()?; // 3.6 s, with a timeout of 2 s
    assert!(!run.stderr.contains("next try"), "{}", run.stderr);
    Ok(())
}

#[test]
fn a_range_that_is_ignored_begins_anew() -> Result<()> {
    let setup = Setup::with(At::Storage, Fault::Drop(50), 1)?;
    setup.server.fault(At::Storage, Fault::NoRanges, None);
    setup.works()?;
    setup.works_offline()
}

#[test]
fn a_server_without_hashes_is_refused() -> Result<()> {
    let head = At::Head("config.json");
    always(head, Fault::NoHash, &["announces no hash", "5f3a-abc", "name their folder"])?;
    Ok(())
}
