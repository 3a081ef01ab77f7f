//! The file of scores. It grows under another name, section by section, and gets its own at the end; a run that stopped
//! goes on with the section that is not whole.

use super::corpus::Document;
use anyhow::{Context, bail};
use gpt2_files::open_regular;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// The file that grows.
pub(super) struct Lines {
    out: PathBuf,
    part: PathBuf,
    file: File,
    /// The lines of the run that stopped, which are still to be compared with the corpus.
    before: Option<BufReader<File>>,
    /// How long the file is up to the end of the last whole section.
    length: u64,
}

/// What the lines of a section that is there already add to the totals.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Found {
    pub(super) tokens: usize,
    pub(super) predicted: usize,
    pub(super) surprise: f64,
}

/// The name under which `out` grows.
pub(super) fn part_of(out: &Path) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    out.with_file_name(name)
}

impl Lines {
    /// Starts the file with `first`, the line that says how the others are made; or, to resume, opens the one that an
    /// earlier run left, which must start with that line.
    pub(super) fn open(out: &Path, first: &str, resume: bool) -> anyhow::Result<Self> {
        let part = part_of(out);
        let named = || part.display().to_string();
        let length = first.len() as u64 + 1;
        if !resume {
            let mut file = File::create(&part).with_context(named)?;
            writeln!(file, "{first}").with_context(named)?;
            return Ok(Self { out: out.to_path_buf(), part, file, before: None, length });
        }
        let mut before = BufReader::new(open_regular(&part).with_context(|| {
            format!("--resume: cannot read {}; has the run finished, or never started?", part.display())
        })?);
        let mut line = String::new();
        before.read_line(&mut line).with_context(named)?;
        if line.trim_end() != first {
            bail!(
                "--resume: {} was made with another model or other options: {}; give those, or start anew with \
                 --overwrite",
                part.display(),
                difference(&line, first)
            );
        }
        let file = File::options().write(true).open(&part).with_context(named)?;
        Ok(Self { out: out.to_path_buf(), part, file, before: Some(before), length })
    }

    /// Whether all lines of this section are there already; if they are of other documents, the corpus has changed. After
    /// the first section that is not whole, cuts the file there.
    pub(super) fn has(&mut self, section: &[Document]) -> anyhow::Result<Option<Found>> {
        let Some(before) = &mut self.before else { return Ok(None) };
        let (mut found, mut length, mut line) = (Found::default(), self.length, String::new());
        for document in section {
            line.clear();
            before.read_line(&mut line).with_context(|| self.part.display().to_string())?;
            let Some(row) = line.strip_suffix('\n').and_then(|row| serde_json::from_str::<Value>(row).ok())
            else {
                return self.go_on();
            };
            let same = row["file"] == document.file
                && row["line"] == document.line.map_or(Value::Null, Value::from)
                && row["bytes"] == document.text.len();
            if !same {
                bail!(
                    "--resume: {} has a line about {}{}, where the corpus now has {}; start anew with --overwrite",
                    self.part.display(),
                    row["file"],
                    row["line"].as_u64().map_or_else(String::new, |n| format!(", line {n}")),
                    document.file
                );
            }
            let count = |name: &str| row[name].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
            found.tokens += count("tokens");
            found.predicted += count("predicted");
            found.surprise += row["loss"].as_f64().unwrap_or(0.0) * count("predicted") as f64;
            length += line.len() as u64;
        }
        self.length = length;
        Ok(Some(found))
    }

    /// From here on, lines are new.
    fn go_on<T>(&mut self) -> anyhow::Result<Option<T>> {
        self.before = None;
        self.file.set_len(self.length).with_context(|| self.part.display().to_string())?;
        Ok(None)
    }

    /// Adds the lines of a section.
    pub(super) fn add(&mut self, lines: &str) -> anyhow::Result<()> {
        use std::io::Seek;
        let named = || self.part.display().to_string();
        self.file.seek(std::io::SeekFrom::Start(self.length)).with_context(named)?;
        self.file.write_all(lines.as_bytes()).with_context(named)?;
        self.length += lines.len() as u64;
        Ok(())
    }

    /// Gives the file its own name.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        // Lines behind the end of the corpus are of one that was longer.
        self.go_on::<()>()?;
        let named = || self.out.display().to_string();
        self.file.sync_all().with_context(named)?;
        std::fs::rename(&self.part, &self.out).with_context(named)
    }
}

/// The first field in which two lines of facts differ.
fn difference(before: &str, now: &str) -> String {
    let parse = |line| serde_json::from_str::<Value>(line).map(|facts| fields(&facts));
    let (Ok(before), Ok(now)) = (parse(before), parse(now)) else {
        return "its first line is damaged".into();
    };
    let shown = |value: Option<&Value>| value.map_or_else(|| "nothing".to_owned(), Value::to_string);
    let differs = before.keys().chain(now.keys()).find(|key| before.get(*key) != now.get(*key));
    differs.map_or_else(
        || "its first line differs".into(),
        |key| format!("{key} was {} and is {}", shown(before.get(key)), shown(now.get(key))),
    )
}

/// The fields of an object, those of the provenance among them.
fn fields(facts: &Value) -> BTreeMap<String, Value> {
    let inner = facts["provenance"].as_object().into_iter().flatten();
    let outer = facts.as_object().into_iter().flatten().filter(|(key, _)| *key != "provenance");
    inner.chain(outer).map(|(key, value)| (key.clone(), value.clone())).collect()
}
