//! Models by name: the binary against a Hub on the loopback interface, with everything that can go wrong.

mod access;
mod cached;
mod faults;
mod named;
mod repositories;
pub(crate) mod server;

use crate::common::Result;
use crate::{Run, command};
use serde_json::Value;
use server::content::{git_sha1_of, sha256_of};
use server::{At, COMMIT, Fault, MODEL, Seen, Server};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The folder of the model in Python's cache.
const REPO: &str = "models--openai-community--gpt2";
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-shakespeare");
const FORWARD: [&str; 4] = ["forward", "--model", "gpt2", "O Romeo"];
const FORWARD_OFFLINE: [&str; 5] = ["forward", "--model", "gpt2", "--offline", "O Romeo"];

/// The built-in demo model's files, as a repository on the Hub.
pub(crate) fn repository() -> Vec<(String, Vec<u8>)> {
    let read = |name: &str| std::fs::read(Path::new(DEMO).join(name)).expect("the demo model's files");
    ["config.json", "model.safetensors", "tokenizer.json", "README.md"]
        .map(|name| (name.into(), read(name)))
        .into()
}

fn weights() -> Vec<u8> {
    repository().swap_remove(1).1
}

/// The weights with one bit flipped.
fn damaged_weights() -> Vec<u8> {
    let mut weights = weights();
    weights[1_000_000] ^= 1;
    weights
}

/// A Hub with the demo model under GPT-2's name, and an empty cache.
struct Setup {
    server: Server,
    cache: tempfile::TempDir,
}

impl Setup {
    fn new() -> Result<Self> {
        Self::serving(repository())
    }

    /// With other files.
    fn serving(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Result<Self> {
        Ok(Self { server: Server::start(files), cache: tempfile::tempdir()? })
    }

    /// With a fault that happens `times` times, or always.
    fn with(at: At, fault: Fault, times: impl Into<Option<usize>>) -> Result<Self> {
        let setup = Self::new()?;
        setup.server.fault(at, fault, times);
        Ok(setup)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command.env("HF_ENDPOINT", self.server.endpoint()).env("HF_HUB_CACHE", self.cache.path());
        command
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> Result<Run> {
        Run::of(self.command(args))
    }

    /// Runs with more environment variables.
    #[track_caller]
    fn run_with(&self, variables: &[(&str, &str)], args: &[&str]) -> Result<Run> {
        Run::of(self.command(args).envs(variables.iter().copied()))
    }

    /// Runs the model, which comes from the Hub or the cache.
    #[track_caller]
    fn forward(&self) -> Result<Run> {
        self.run(&["forward", "--model", "gpt2", "--timeout", "2", "--json", "O Romeo"])
    }

    /// Fails unless the model runs and gives the same result as the built-in one.
    #[track_caller]
    fn works(&self) -> Result<Run> {
        let run = self.forward()?.succeeded();
        assert_is_expected(&run.stdout)?;
        Ok(run)
    }

    /// Fails unless the model runs without any request.
    #[track_caller]
    fn works_offline(&self) -> Result {
        let before = self.server.state().seen.len();
        let run =
            self.run_with(&[("HF_HUB_OFFLINE", "1")], &[&FORWARD[..], &["--json"]].concat())?.succeeded();
        assert_is_expected(&run.stdout)?;
        assert_eq!(self.server.state().seen.len(), before, "a request");
        Ok(())
    }

    fn repo(&self) -> PathBuf {
        self.cache.path().join(REPO)
    }

    fn pointer(&self, name: &str) -> PathBuf {
        self.repo().join("snapshots").join(COMMIT).join(name)
    }

    fn blob(&self, hash: &str) -> PathBuf {
        self.repo().join("blobs").join(hash)
    }

    /// The path of a file's content: its blob, or the file itself where there are no links.
    fn content(&self, name: &str, hash: &str) -> PathBuf {
        let pointer = self.pointer(name);
        if pointer.is_symlink() { self.blob(hash) } else { pointer }
    }

    /// The requests for the content of large files.
    fn fetches(&self) -> Vec<Seen> {
        self.server.state().seen.iter().filter(|seen| seen.path.starts_with("/storage/")).cloned().collect()
    }
}

/// Fails unless the numbers equal the built-in model's for the same prompt, and the output names the commit.
#[track_caller]
fn assert_is_expected(json: &str) -> Result {
    let mut got: Value = serde_json::from_str(json)?;
    assert_eq!(got["provenance"]["commit"], COMMIT);
    let hashes = got["provenance"]["weights"].as_object().ok_or("the weights' hashes")?;
    assert!(hashes.values().all(|hash| *hash == *sha256_of(&weights())) && hashes.len() == 1, "{hashes:?}");
    let mut demo: Value = serde_json::from_str(&expected()?)?;
    // Each shard of a repository has its own hash.
    for report in [&mut got, &mut demo] {
        report["provenance"] = Value::Null;
    }
    assert_eq!(got, demo, "other weights");
    Ok(())
}

/// The built-in model's output for the same prompt, under the name of the model on the Hub.
fn expected() -> Result<String> {
    let demo = Run::of(command(&["forward", "--json", "O Romeo"]))?.succeeded().stdout;
    Ok(demo.replace("tiny-shakespeare (built in)", &format!("{MODEL}@{}", &COMMIT[..12])))
}
