//! Makes models out of candle-transformers' own source, and tests out of candle_nn's, with the exchanges of `exchanges`, into the
//! folder of the build.
//!
//! An exchange is a block of lines, and blocks are separated by empty lines:
//! ```text
//! # a comment
//! - old line            lines of the source that follow one another, whatever their indentation
//! - ...                 everything up to the next old line
//! + new line            what stands there instead
//!
//! * old text => new text    every occurrence
//! ```
//! A block that does not fit exactly one place of the source stops the build, so that a new version of Candle cannot leave an
//! exchange out.

use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What is built, and where it stands in candle-transformers.
const MODELS: &[(&str, &str)] = &[
    ("bert", "bert.rs"),
    ("gemma3", "gemma3.rs"),
    ("gemma3_mended", "gemma3.rs"),
    ("llama", "llama.rs"),
    ("mistral", "mistral.rs"),
    ("modernbert", "modernbert.rs"),
    ("phi", "phi.rs"),
    ("qwen3", "qwen3.rs"),
    ("whisper", "whisper/model.rs"),
];
/// Files of candle_nn's tests.
const TESTS: &[&str] = &["cpu_flash_attn", "layer_norm", "ops"];

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=exchanges");
    println!("cargo::rerun-if-changed=../Cargo.lock");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::create_dir_all(out.join("tests"))?;
    let packages = packages()?;
    let models = packages("candle-transformers")?.join("src/models");
    for (name, file) in MODELS {
        write(&models.join(file), name, &out)?;
    }
    let tests = packages("candle-nn")?.join("tests");
    for name in TESTS {
        write(&tests.join(format!("{name}.rs")), &format!("tests/{name}"), &out)?;
    }
    Ok(())
}

/// Writes a source after the exchanges of this name.
fn write(source: &Path, name: &str, out: &Path) -> Result<()> {
    println!("cargo::rerun-if-changed={}", source.display());
    let text = fs::read_to_string(source).with_context(|| source.display().to_string())?;
    let path = format!("exchanges/{name}.txt");
    let exchanges = fs::read_to_string(&path).with_context(|| path.clone())?;
    let ours = exchange(&text, &exchanges).with_context(|| path)?;
    Ok(fs::write(out.join(format!("{name}.rs")), ours)?)
}

/// The folder where cargo keeps the source of a dependency, by its name.
fn packages() -> Result<impl Fn(&str) -> Result<PathBuf>> {
    let output = Command::new(env::var("CARGO")?)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &env::var("TARGET")?])
        .arg("--manifest-path")
        .arg(Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("Cargo.toml"))
        .output()
        .context("cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?.clone();
    Ok(move |name: &str| {
        let package = packages.iter().find(|package| package["name"] == name);
        let manifest = package.and_then(|package| package["manifest_path"].as_str());
        let manifest = Path::new(manifest.with_context(|| format!("{name} is no dependency"))?);
        Ok(manifest.parent().context("a manifest in no folder")?.to_path_buf())
    })
}

/// The source after all exchanges. Paths into candle-transformers lead there, and the module's own comments are left out, since
/// the result is included in a module.
fn exchange(source: &str, exchanges: &str) -> Result<String> {
    let mut lines: Vec<String> =
        source.lines().filter(|line| !line.starts_with("//!")).map(str::to_owned).collect();
    for block in exchanges.split("\n\n") {
        let mut old = vec![];
        let mut new = vec![];
        for line in block.lines() {
            match line.split_once(' ').unwrap_or((line, "")) {
                ("-", text) => old.push(text.trim()),
                ("+", text) => new.push(text.to_owned()),
                ("*", text) => {
                    let (from, to) = text.split_once(" => ").with_context(|| format!("{line}: no =>"))?;
                    ensure!(lines.iter().any(|line| line.contains(from)), "{from}: not in the source");
                    lines.iter_mut().for_each(|line| *line = line.replace(from, to));
                }
                ("#" | "", _) => {}
                _ => bail!("{line}: expected #, -, + or *"),
            }
        }
        if old.is_empty() {
            ensure!(new.is_empty(), "{block}: new lines without old ones");
            continue;
        }
        let places: Vec<_> =
            (0..lines.len()).filter_map(|at| Some((at, end_of(&lines, at, &old)?))).collect();
        let [(start, end)] = places[..] else { bail!("{} places in the source fit:\n{block}", places.len()) };
        lines.splice(start..end, new);
    }
    Ok(lines.join("\n").replace("crate::", "candle_transformers::"))
}

/// Where the old lines end that begin at `at`, if they do.
fn end_of(lines: &[String], mut at: usize, old: &[&str]) -> Option<usize> {
    let mut old = old.iter().peekable();
    while let Some(text) = old.next() {
        if *text == "..." {
            let next = old.peek()?;
            at += lines[at..].iter().position(|line| line.trim() == **next)?;
        } else if lines.get(at)?.trim() == *text {
            at += 1;
        } else {
            return None;
        }
    }
    Some(at)
}
