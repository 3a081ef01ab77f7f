//! The binary, run as a person would run it.

// Some tests are for Unix alone, and so are their imports.
#![cfg_attr(not(unix), allow(unused_imports))]

mod analyses;
mod attention;
mod bench;
#[path = "../common/browser.rs"]
mod browser;
mod circuits;
#[path = "../common/mod.rs"]
mod common;
mod discover;
mod documents;
mod errors;
mod eval;
#[cfg(target_os = "linux")]
mod examples;
mod feature_changes;
mod feature_folders;
mod feature_pages;
mod features;
mod files;
mod first_use_errors;
#[path = "../common/folder.rs"]
mod folder;
mod foreign_checkpoints;
mod forward;
mod generate;
mod graph;
mod help;
#[cfg(unix)]
mod hostile;
mod hub;
mod inspect;
mod interventions;
mod live;
mod lora;
#[path = "../common/models.rs"]
mod models;
#[path = "../common/mpirun.rs"]
mod mpirun;
mod not_finite;
mod page;
mod page_first_view;
mod parallel;
#[cfg(unix)]
#[path = "../common/pickles.rs"]
mod pickles;
mod pictures;
mod points;
mod provenance;
mod published;
mod quantize;
mod record;
mod score;
mod score_resume;
#[cfg(unix)]
mod signals;
mod stdin_stdout;
mod takers;
mod terminal;
mod texts;
mod train;
mod train_features;
mod train_options;

use crate::common::{Result, data};
use crate::folder::assert_says;
use candle_core::{DType, Device};
use gpt2_loader::{Checkpoint, Source, Tokenizer};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel};
use serde_json::Value;
use std::borrow::BorrowMut;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const GPT2: &str = env!("CARGO_BIN_EXE_gpt2");

/// The folder of the case `odd`, for `--model`.
const ODD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/odd");
/// The folder of the demo model that is built into the binary.
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-shakespeare");

/// The result of a run.
#[derive(Debug)]
struct Run {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Run {
    /// Runs a command to its end.
    #[track_caller]
    fn of(mut command: impl BorrowMut<Command>) -> Result<Self> {
        Self::from_output(command.borrow_mut().output()?)
    }

    /// Waits for a process to end.
    #[track_caller]
    fn end_of(process: Child) -> Result<Self> {
        Self::from_output(process.wait_with_output()?)
    }

    /// Fails if the process was killed by a signal or panicked.
    #[track_caller]
    fn from_output(output: Output) -> Result<Self> {
        let stdout = String::from_utf8(output.stdout)?;
        let stderr = String::from_utf8(output.stderr)?;
        let code = output.status.code().ok_or_else(|| format!("{}; stderr: {stderr}", output.status))?;
        assert!(!stderr.contains("panicked"), "{stderr}");
        Ok(Self { code, stdout, stderr })
    }

    /// Fails unless it succeeded.
    #[track_caller]
    fn succeeded(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// Fails unless it ended with `code` and a message that contains `parts`, and printed no result.
    #[track_caller]
    fn refused(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.stderr.contains("error: "), "{}", self.stderr);
        assert_says("stderr", &self.stderr, parts);
        assert_eq!(self.stdout, "", "a result beside the error");
    }
}

/// The binary with `args`, nothing on its stdin and none of the variables that change its behavior. For another processor,
/// `GPT2_TEST_RUNNER` names the emulator that runs it.
fn command(args: &[&str]) -> Command {
    let runner = std::env::var_os("GPT2_TEST_RUNNER");
    let mut command = Command::new(runner.as_deref().unwrap_or(OsStr::new(GPT2)));
    command.args(runner.map(|_| GPT2)).args(args).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_uppercase();
        let others = "RUST_BACKTRACE RUST_LIB_BACKTRACE RAYON_NUM_THREADS NO_COLOR COLORTERM COLUMNS TRANSFORMERS_OFFLINE";
        if text.starts_with("HF_") || text.ends_with("_PROXY") || words(others).contains(&text.as_str()) {
            command.env_remove(name);
        }
    }
    command
}

/// Gives a launcher the environment of the command that it starts.
fn share_environment(command: &Command, launcher: &mut Command) {
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => launcher.env(name, value),
            None => launcher.env_remove(name),
        };
    }
}

/// A launcher that starts the binary with these arguments.
fn launched(mut launcher: Command, args: &[impl AsRef<OsStr>]) -> Command {
    share_environment(&command(&[]), &mut launcher);
    launcher.args(args).stdin(Stdio::null());
    launcher
}

#[track_caller]
fn gpt2(args: &[&str]) -> Result<Run> {
    Run::of(command(args))
}

/// The binary with `args`, reading `text` through a pipe.
#[track_caller]
fn gpt2_with_pipe(args: &[&str], text: &str) -> Result<Run> {
    let mut child = spawn(command(args).stdin(Stdio::piped()))?;
    child.stdin.take().ok_or("a pipe")?.write_all(text.as_bytes())?;
    Run::end_of(child)
}

/// Starts a command whose stdout and stderr are read later.
fn spawn(mut command: impl BorrowMut<Command>) -> Result<Child> {
    Ok(command.borrow_mut().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

/// Sends a signal, such as `INT`, to a process.
#[cfg_attr(not(unix), allow(dead_code))] // signals are Unix's
fn signal(name: &str, id: u32) -> Result {
    let kill = Command::new("kill").args([&format!("-{name}"), &id.to_string()]).status()?;
    if kill.success() { Ok(()) } else { Err(format!("kill -{name} {id}").into()) }
}

/// Waits until a file has `lines` lines.
#[cfg_attr(not(unix), allow(dead_code))] // used before a signal
fn wait_for_lines(path: &Path, lines: usize) -> Result {
    let started = Instant::now();
    while std::fs::read_to_string(path).map_or(0, |text| text.lines().count()) < lines {
        if started.elapsed() > Duration::from_secs(30) {
            return Err(format!("no {lines} lines in {}", path.display()).into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// The arguments in a line.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// The elements of a list in a report.
#[track_caller]
fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("a list, not {value}"))
}

#[track_caller]
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number, not {value}"))
}

/// The standard output of a run that must succeed.
#[track_caller]
fn stdout(args: &[&str]) -> Result<String> {
    Ok(gpt2(args)?.succeeded().stdout)
}

/// The JSON result of a run that must succeed.
#[track_caller]
fn json(args: &[&str]) -> Result<Value> {
    let printed = stdout(args)?;
    assert!(printed.ends_with('\n'), "the last line is not ended");
    Ok(serde_json::from_str(&printed)?)
}

/// The folder of a case, for `--model`.
fn case(name: &str) -> String {
    data(name).display().to_string()
}

/// The demo model's files, as built into the binary.
fn demo() -> Source {
    Source::directory(DEMO)
}

/// Copies the demo model's files into a folder.
fn copy_demo(folder: &Path) -> Result {
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(Path::new(DEMO).join(name), folder.join(name))?;
    }
    Ok(())
}

/// Copies a program to where a test runs it. Another process copies: a file that this one has open for writing is "busy" for
/// as long as a child that another test starts meanwhile still holds it.
#[cfg(unix)]
fn install(program: &Path, to: &Path) -> Result {
    let copied = Command::new("install").args(["-m", "755"]).args([program, to]).output()?;
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    Ok(())
}

/// A shell script that stands in for a program.
#[cfg(unix)]
fn install_script(script: &str, to: &Path) -> Result {
    let text = to.with_extension("sh");
    std::fs::write(&text, format!("#!/bin/sh\n{script}\n"))?;
    install(&text, to)
}

fn demo_model() -> Result<Gpt2LMHeadModel> {
    Ok(Checkpoint::open(&demo().open()?)?.load_model(DType::F32, &Device::Cpu)?)
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
    let ids = model.ids(ids)?;
    let logits = model.forward(&ids, ForwardArgs::default())?.logits.squeeze(0)?;
    Ok(logits.to_dtype(DType::F64)?.to_vec2()?)
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
fn metadata(path: &Path) -> Result<HashMap<String, String>> {
    let bytes = std::fs::read(path)?;
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes)?;
    Ok(header.metadata().clone().unwrap_or_default())
}
