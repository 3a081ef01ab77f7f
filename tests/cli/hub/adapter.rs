//! A LoRA adapter on the Hub.

use super::server::content::git_sha1_of;
use super::server::{At, COMMIT, Fault, Server};
use super::{Result, Run, Setup};
use crate::common::data;

const NAME: &str = "openai-community/gpt2";

/// A Hub with the files of an adapter, and a model that it fits, as an argument.
fn setup() -> Result<(Setup, Vec<u8>, String)> {
    let dir = data("lora/default");
    let read = |name: &str| Ok((name.to_string(), std::fs::read(dir.join(name))?));
    let files = ["adapter_config.json", "adapter_model.safetensors"].map(read);
    let files = files.into_iter().collect::<std::io::Result<Vec<_>>>()?;
    let weights = files[1].1.clone();
    let setup = Setup { server: Server::start(files), cache: tempfile::tempdir()? };
    Ok((setup, weights, data("lora/base").display().to_string()))
}

fn forward(setup: &Setup, base: &str, more: &[&str]) -> Result<Run> {
    let args = ["forward", "--model", base, "--adapter", NAME, "--ids", "1,2,3", "--json", "--timeout", "2"];
    setup.run(&[&args, more].concat())
}

#[test]
fn an_adapter_is_fetched_verified_and_then_cached() -> Result<()> {
    let (setup, weights, base) = setup()?;
    let run = forward(&setup, &base, &[])?.succeeded();
    let report: serde_json::Value = serde_json::from_str(&run.stdout)?;
    let adapter = &report["provenance"]["adapters"][0];
    assert_eq!(adapter["commit"], COMMIT);
    assert_eq!(adapter["weights"]["adapter_model.safetensors"], git_sha1_of(&weights));
    let before = setup.server.seen().len();
    let offline = forward(&setup, &base, &["--offline"])?.succeeded();
    assert_eq!(setup.server.seen().len(), before, "a request");
    let again: serde_json::Value = serde_json::from_str(&offline.stdout)?;
    assert_eq!(again["next"], report["next"]);
    Ok(())
}

#[test]
fn an_adapter_of_other_content_is_refused() -> Result<()> {
    let (setup, _, base) = setup()?;
    setup.server.fault(At::Get("adapter_model.safetensors"), Fault::Flip, None);
    forward(&setup, &base, &[])?.refused(1, &["adapter_model.safetensors", "expected git blob sha1"]);
    let (setup, _, base) = self::setup()?;
    forward(&setup, &base, &["--offline"])?.refused(1, &["there is no folder openai-community/gpt2"]);
    Ok(())
}
