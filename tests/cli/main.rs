//! The binary, run as a person would run it.

mod analyses;
mod attention;
mod bench;
#[path = "../common/browser.rs"]
mod browser;
mod circuits;
#[path = "../common/mod.rs"]
mod common;
mod errors;
mod files;
#[path = "../common/folder.rs"]
mod folder;
mod forward;
mod generate;
#[cfg(unix)]
mod hostile;
mod hub;
mod inspect;
mod interventions;
mod lora;
#[path = "../common/models.rs"]
mod models;
#[path = "../common/mpirun.rs"]
mod mpirun;
mod nonfinite;
mod notebook;
mod page;
mod parallel;
#[cfg(unix)]
#[path = "../common/pickles.rs"]
mod pickles;
mod pipes;
mod prompt;
mod provenance;
mod quantize;
mod score;
mod shell;
mod train;
mod tutorial;
mod verify;

use crate::common::{Result, data};
use crate::folder::assert_says;
use candle_core::{Device, Tensor};
use gpt2_loader::{Checkpoint, Source, Tokenizer};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel};
use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// Fails if the process was killed by a signal or panicked.
    #[track_caller]
    pub(crate) fn of(output: Output) -> Result<Self> {
        let (stdout, stderr) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
        let code = output.status.code().ok_or_else(|| format!("{}; stderr: {stderr}", output.status))?;
        assert!(!stderr.contains("panicked"), "{stderr}");
        Ok(Self { code, stdout, stderr })
    }

    /// Fails unless it succeeded.
    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// Fails unless it ended with `code` and a message that contains `parts`, and printed no result.
    #[track_caller]
    pub(crate) fn refused(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.stderr.contains("error: "), "{}", self.stderr);
        assert_says("stderr", &self.stderr, parts);
        assert_eq!(self.stdout, "", "a result beside the error");
    }
}

/// The binary with `args`, nothing on its stdin and none of the variables that change its behavior.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpt2"));
    command.args(args).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_uppercase();
        let other = [
            "RUST_BACKTRACE",
            "RAYON_NUM_THREADS",
            "NO_COLOR",
            "COLORTERM",
            "COLUMNS",
            "TRANSFORMERS_OFFLINE",
        ];
        if text.starts_with("HF_") || text.ends_with("_PROXY") || other.contains(&text.as_str()) {
            command.env_remove(name);
        }
    }
    command
}

/// A launcher that starts the binary with these arguments.
pub(crate) fn launched(mut launcher: Command, args: &[String]) -> Command {
    let own = command(&[]);
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => launcher.env(name, value),
            None => launcher.env_remove(name),
        };
    }
    launcher.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    launcher
}

pub(crate) const GPT2: &str = env!("CARGO_BIN_EXE_gpt2");

#[track_caller]
fn gpt2(args: &[&str]) -> Result<Run> {
    Run::of(command(args).output()?)
}

/// The binary with `args`, reading `text` through a pipe.
#[track_caller]
fn gpt2_with_pipe(args: &[&str], text: &str) -> Result<Run> {
    let mut child =
        command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("a pipe")?.write_all(text.as_bytes())?;
    Run::of(child.wait_with_output()?)
}

/// The JSON result of a run that must succeed.
#[track_caller]
fn json(args: &[&str]) -> Result<Value> {
    let run = gpt2(args)?.succeeded();
    assert!(run.stdout.ends_with('\n'), "the last line is not ended");
    Ok(serde_json::from_str(&run.stdout)?)
}

/// The folder of a case, for `--model`.
fn case(name: &str) -> String {
    data(name).display().to_string()
}

/// The demo model's files, as built into the binary.
fn demo() -> Source {
    Source::directory(data("../../models/tiny-shakespeare"))
}

fn demo_model() -> Result<Gpt2LMHeadModel> {
    Ok(Checkpoint::open(&demo().open()?)?.load_model(candle_core::DType::F32, &Device::Cpu)?)
}

fn demo_tokenizer() -> Result<Tokenizer> {
    Ok(Tokenizer::open(&demo().open()?, 0)?)
}

/// `1,2,3`
fn comma_separated(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// 33 ids below the vocabulary of `odd`.
fn some_ids() -> Vec<u32> {
    (0..33).map(|i| (i * i * 5 + 3 * i + 2) % 101).collect()
}

/// Logits (T, V) in f64, computed by the library.
fn logits(model: &Gpt2LMHeadModel, ids: &[u32]) -> Result<Vec<Vec<f64>>> {
    let ids = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
    let logits = model.forward(&ids, ForwardArgs::default())?.logits.squeeze(0)?;
    Ok(logits.to_dtype(candle_core::DType::F64)?.to_vec2()?)
}

/// `x - ln Σ exp x`
fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let highest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total = logits.iter().map(|l| (l - highest).exp()).sum::<f64>().ln() + highest;
    logits.iter().map(|l| l - total).collect()
}

/// Fails unless the JSON number is within `tolerance` of `expected`.
#[track_caller]
fn assert_near(what: &str, got: &Value, expected: f64, tolerance: f64) {
    let number = got.as_f64().unwrap_or(f64::NAN);
    assert!((number - expected).abs() <= tolerance, "{what}: {got}, expected {expected}");
}

/// The text metadata of a safetensors file.
fn metadata(path: &std::path::Path) -> Result<std::collections::HashMap<String, String>> {
    let bytes = std::fs::read(path)?;
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes)?;
    Ok(header.metadata().clone().unwrap_or_default())
}

#[test]
fn help_and_version_are_results() -> Result {
    for args in [&["--help"][..], &["help"], &["attention", "--help"], &["train", "--help"], &["bench", "-h"]]
    {
        let run = gpt2(args)?.succeeded();
        assert!(run.stdout.contains("Usage: gpt2") && run.stderr.is_empty(), "{args:?}: {run:?}");
    }
    let run = gpt2(&["--version"])?.succeeded();
    assert_eq!(run.stdout, format!("gpt2 {}\n", env!("CARGO_PKG_VERSION")));
    Ok(())
}

#[test]
fn every_subcommand_has_examples_in_its_help() -> Result {
    for name in ["attention", "forward", "generate", "inspect", "train", "bench"] {
        let help = gpt2(&[name, "--help"])?.succeeded().stdout;
        assert_says(name, &help, &["Example", &format!("gpt2 {name}"), "--device", "--threads", "--seed"]);
    }
    Ok(())
}

#[test]
fn the_demo_model_says_that_it_is_one_and_how_to_ask_for_another() -> Result {
    for args in [
        &["attention", "O Romeo"][..],
        &["forward", "O Romeo"],
        &["generate", "-n1", "O Romeo"],
        &["inspect"],
    ] {
        let run = gpt2(args)?.succeeded();
        assert_says("stderr", &run.stderr, &["tiny-shakespeare", "--model gpt2"]);
        assert!(!run.stdout.contains("--model gpt2"), "a note among the results: {}", run.stdout);
    }
    Ok(())
}

#[test]
fn a_named_model_on_a_named_device_leaves_stderr_empty() -> Result {
    let model = case("odd");
    for name in ["attention", "forward"] {
        let run = gpt2(&[name, "--model", &model, "--device", "cpu", "--ids", "1,2,3"])?.succeeded();
        assert_eq!(run.stderr, "", "{name}");
        assert!(!run.stdout.is_empty());
    }
    assert_eq!(gpt2(&["inspect", &model])?.succeeded().stderr, "");
    Ok(())
}

#[test]
fn auto_says_which_device_it_chose() -> Result {
    let run = gpt2(&["forward", "--model", &case("odd"), "--ids", "1"])?.succeeded();
    assert_eq!(run.stderr.lines().filter(|l| l.starts_with("device: ")).count(), 1, "{}", run.stderr);
    Ok(())
}

#[test]
fn any_number_of_threads_gives_the_same_result() -> Result {
    let model = case("odd");
    let run =
        |threads| gpt2(&["generate", "--model", &model, "--ids", "43,97,31,71", "-n9", "--threads", threads]);
    let one = run("1")?.succeeded();
    assert_eq!(one.stdout, run("2")?.succeeded().stdout);
    assert_eq!(one.stdout.split(',').count(), 9, "{}", one.stdout);
    Ok(())
}
