//! A GGUF file of a model on the Hub.

use super::server::content::sha256_of;
use super::server::{At, COMMIT, Fault, Server};
use super::{Result, Run, Setup};
use crate::common::data;

const NAME: &str = "openai-community/gpt2/tiny.gguf";

fn setup() -> Result<(Setup, Vec<u8>)> {
    let mut bytes = std::fs::read(data("gguf").join("tiny.gguf"))?;
    bytes.resize(120_000, 0); // as large as what lies in the Hub's storage
    let server = Server::start([("tiny.gguf".to_string(), bytes.clone())]);
    Ok((Setup { server, cache: tempfile::tempdir()? }, bytes))
}

fn forward(setup: &Setup, more: &[&str]) -> Result<Run> {
    setup.run(&[&["forward", "--model", NAME, "--json", "--timeout", "2", "O Romeo"], more].concat())
}

#[test]
fn a_file_is_fetched_alone_verified_and_then_cached() -> Result<()> {
    let (setup, bytes) = setup()?;
    let run = forward(&setup, &[])?.succeeded();
    let report: serde_json::Value = serde_json::from_str(&run.stdout)?;
    assert_eq!(report["provenance"]["commit"], COMMIT);
    assert_eq!(report["provenance"]["weights"]["tiny.gguf"], sha256_of(&bytes));
    let before = setup.server.seen().len();
    forward(&setup, &["--offline"])?.succeeded();
    assert_eq!(setup.server.seen().len(), before, "a request");
    Ok(())
}

#[test]
fn wrong_content_and_missing_files_are_refused() -> Result<()> {
    let (setup, _) = setup()?;
    setup.server.fault(At::Storage, Fault::Flip, None);
    forward(&setup, &[])?.refused(1, &["tiny.gguf"]);
    let other = ["forward", "--model", "openai-community/gpt2/none.gguf", "--timeout", "2", "O Romeo"];
    setup.run(&other)?.refused(1, &["none.gguf"]);
    let local = ["forward", "--model", "./none.gguf", "O Romeo"];
    setup.run(&local)?.refused(1, &["./none.gguf"]);
    Ok(())
}
