//! A text to begin with is fetched from a site that has it, and used only if it is the one that the program knows.

use super::{At, Duration, Fault, MODEL, Result, Run, Server, sha256_of};
use crate::command;
use crate::folder::Folder;
use gpt2_loader::Hub;
use gpt2_loader::hub::Pin;

/// The server's name for a file that is none of a model's.
const ANY: At = At::Get("another");

/// A text, small or of the kind that the site keeps elsewhere, and a site that has it.
fn site(length: usize) -> (Server, Pin, Vec<u8>) {
    let text: Vec<u8> = "To be, or not to be. ".bytes().cycle().take(length).collect();
    let server = Server::start([("README.md".to_owned(), text.clone())]);
    let pin = Pin {
        id: MODEL.into(),
        revision: "0123456789abcdef0123456789abcdef01234567".into(),
        file: "README.md".into(),
        size: length as u64,
        sha256: Some(sha256_of(&text)),
        license: "public domain".into(),
    };
    (server, pin, text)
}

fn hub() -> Hub {
    let mut hub = Hub::new("nowhere");
    hub.timeout = Duration::from_secs(2);
    hub.token = Some("hf_secret".into());
    hub
}

#[test]
fn a_pinned_text_arrives_whole_and_the_site_sees_no_token() -> Result {
    for length in [0, 1000, 300_000] {
        let (server, pin, text) = site(length);
        assert!(hub().fetch(&(server.endpoint() + "/"), &pin)? == text, "{length} bytes");
        assert!(server.state().seen.iter().all(|seen| seen.token.is_none()));
    }
    Ok(())
}

#[test]
fn a_fault_that_passes_is_tried_again_and_one_that_stays_is_named() -> Result {
    let faults = [
        (Fault::Html, "README.md: expected "),
        (Fault::Flip, "README.md: expected "),
        (Fault::ShortBody, "README.md: expected "),
        (Fault::Drop(50), "the connection was cut"),
        (Fault::StallBody(50), "no answer for 2 s"),
        (Fault::Status(503, vec![]), "the server failed: 503"),
    ];
    for (fault, part) in faults {
        let (server, pin, text) = site(1000);
        server.fault(ANY, fault.clone(), 1);
        assert!(hub().fetch(&server.endpoint(), &pin)? == text, "{fault:?}");
        if !matches!(fault, Fault::StallBody(_)) {
            server.fault(ANY, fault.clone(), None);
            let error = hub().fetch(&server.endpoint(), &pin).map_err(|e| e.to_string());
            assert!(error.as_ref().is_err_and(|e| e.contains(part)), "{fault:?}: {error:?}");
        }
    }
    Ok(())
}

#[test]
fn another_text_and_an_address_that_is_none_are_refused() {
    let (server, pin, _) = site(1000);
    for other in [Pin { size: 999, ..pin.clone() }, Pin { sha256: Some("00".repeat(32)), ..pin.clone() }] {
        assert!(hub().fetch(&server.endpoint(), &other).is_err());
    }
    for (site, part) in [("ftp://example.org", "https://"), ("nowhere", "not a Hub's address")] {
        let error = hub().fetch(site, &pin).map_err(|e| e.to_string());
        assert!(error.as_ref().is_err_and(|e| e.contains(part)), "{site}: {error:?}");
    }
    let mut offline = hub();
    offline.offline = true;
    let before = server.state().seen.len();
    let error = offline.fetch(&server.endpoint(), &pin).map_err(|e| e.to_string());
    assert!(error.as_ref().is_err_and(|e| e.contains("no request is made offline")), "{error:?}");
    assert_eq!(server.state().seen.len(), before);
}

/// The text itself is not in this repository, so that the command meets other content here.
#[test]
fn the_command_writes_no_file_but_the_text_that_it_knows() -> Result {
    let folder = Folder::empty()?;
    let (server, ..) = site(1000);
    let site = server.endpoint();
    let out = folder.at("shakespeare.txt");
    let data = |more: &[&str]| Run::of(command(&[&["data", "shakespeare", "--out", &out], more].concat()));
    let advice = "take https://raw.githubusercontent.com/karpathy/char-rnn/";
    data(&["--from", &site])?.refused(1, &["karpathy/char-rnn", advice]);
    assert!(server.state().seen.iter().all(|seen| seen.path.starts_with("/karpathy/char-rnn/")));
    server.fault(ANY, Fault::Html, None);
    data(&["--from", &site])?.refused(1, &["input.txt: expected 86c4e6aa", "Log in to the hotel", advice]);
    data(&["--offline"])?.refused(1, &["no request is made offline", advice]);
    Run::of(command(&["data", "shakespeare", "--out", &out]).env("HF_HUB_OFFLINE", "1"))?
        .refused(1, &["no request is made offline"]);
    assert!(!folder.file("shakespeare.txt").exists());
    folder.write("shakespeare.txt", "mine")?;
    let before = server.state().seen.len();
    data(&["--from", &site])?.refused(1, &["--overwrite"]);
    assert_eq!(server.state().seen.len(), before, "it is refused before any request");
    assert_eq!(std::fs::read_to_string(folder.file("shakespeare.txt"))?, "mine");
    data(&["--from", &site, "--overwrite"])?.refused(1, &["karpathy/char-rnn"]);
    assert_eq!(std::fs::read_to_string(folder.file("shakespeare.txt"))?, "mine", "a failure leaves it");
    Run::of(command(&["data", "hamlet", "--out", &out]))?.refused(2, &["shakespeare"]);
    Ok(())
}
