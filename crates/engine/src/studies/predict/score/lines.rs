//! The file of scores. It grows under another name, section by section, and gets its own at the end; a resumed run
//! continues with the first incomplete section.

use crate::observer::Observer;
use crate::spelling::Spelling;
use crate::texts::CorpusDocument;
use anyhow::{Context, bail};
use gpt2_files::open_regular;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

pub(super) struct ScoreLines<'a> {
    spelling: Spelling,
    observer: &'a dyn Observer,
    out: PathBuf,
    part: PathBuf,
    /// The part; none if the run has finished.
    file: Option<File>,
    /// The lines of the run that stopped, which are still to be compared with the corpus.
    before: Option<BufReader<File>>,
    /// The length of the file in bytes, up to the end of the last whole section.
    length: u64,
    /// Whether there was no file of this name when the run began.
    is_new: bool,
}

/// The numbers that a document's line adds to the totals.
#[derive(Debug, Clone, Copy)]
pub struct DocumentTotals {
    /// Its tokens.
    pub tokens: usize,
    /// The tokens that were predicted.
    pub predicted: usize,
    /// Nats a token; 0 if none was predicted.
    pub loss: f64,
}

/// The name under which `out` grows.
pub(super) fn part_of(out: &Path) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    out.with_file_name(name)
}

/// Whether the file is empty or begins as a file of scores does.
pub(super) fn holds_scores(out: &Path) -> anyhow::Result<bool> {
    const START: &[u8] = b"{\"provenance\":{\"gpt2\":";
    let mut start = vec![];
    open_regular(out)?.take(START.len() as u64).read_to_end(&mut start)?;
    Ok(start.is_empty() || start == START)
}

/// Whether a run left rows in its part: a run that failed before leaves the first line alone.
pub(super) fn has_rows(part: &Path) -> anyhow::Result<bool> {
    if !part.exists() {
        return Ok(false);
    }
    let mut reader = BufReader::new(open_regular(part)?);
    reader.read_until(b'\n', &mut vec![])?;
    Ok(!reader.fill_buf()?.is_empty())
}

/// The way out for lines that do not belong to this run.
fn start_anew(spelling: Spelling) -> String {
    format!("start anew with {}", spelling.switch("overwrite"))
}

impl<'a> ScoreLines<'a> {
    /// Starts the file with `first`, the line that says how the others are made; or, to resume, opens the one that an
    /// earlier run left or finished, which must start with that line.
    pub(super) fn open(
        out: &Path,
        first: &str,
        resume: bool,
        spelling: Spelling,
        observer: &'a dyn Observer,
    ) -> anyhow::Result<Self> {
        // A link stays one: the file that it leads to is replaced.
        let out = out.canonicalize().unwrap_or_else(|_| out.to_path_buf());
        let part = part_of(&out);
        let named = || part.display().to_string();
        let length = first.len() as u64 + 1;
        let is_new = !std::fs::metadata(&out).is_ok_and(|there| there.len() > 0);
        let is_first = resume && !part.exists() && !out.exists();
        if is_first {
            let option = spelling.switch("resume");
            observer.note(&format!("{option}: there is no earlier run; this one starts"));
        }
        if !resume || is_first {
            let options = File::options().write(true).create(true).truncate(false).open(&part);
            let mut file = locked(options.with_context(named)?, &part)?;
            file.set_len(0).and_then(|()| writeln!(file, "{first}")).with_context(named)?;
            // Who may not read the file that it replaces may not read this one either.
            if let Ok(before) = std::fs::metadata(&out) {
                std::fs::set_permissions(&part, before.permissions()).with_context(named)?;
            }
            return Ok(Self {
                spelling,
                observer,
                out,
                part,
                file: Some(file),
                before: None,
                length,
                is_new,
            });
        }
        let finished = !part.exists() && out.exists();
        let found = if finished { &out } else { &part };
        let named = || found.display().to_string();
        let mut before = BufReader::new(open_regular(found).with_context(named)?);
        let mut line = vec![];
        before.read_until(b'\n', &mut line).with_context(named)?;
        if line.trim_ascii_end() != first.as_bytes() {
            bail!(
                "{}: {} was made with another model or other options: {}; give those, or {}",
                spelling.switch("resume"),
                found.display(),
                difference(&line, first),
                start_anew(spelling)
            );
        }
        let open = || locked(File::options().write(true).open(&part).with_context(named)?, &part);
        let file = (!finished).then(open).transpose()?;
        Ok(Self { spelling, observer, out, part, file, before: Some(before), length, is_new })
    }

    /// The numbers of this section's lines, if all are there already. The names and texts of the documents must be those of
    /// the lines: a corpus that has changed is refused. Cuts the file before the first incomplete section.
    pub(super) fn has(&mut self, section: &[CorpusDocument]) -> anyhow::Result<Option<Vec<DocumentTotals>>> {
        let named = self.found().display().to_string();
        let resume = self.spelling.switch("resume");
        let anew = start_anew(self.spelling);
        let Some(before) = &mut self.before else { return Ok(None) };
        let mut found = vec![];
        let mut length = self.length;
        let mut line = vec![];
        for document in section {
            line.clear();
            before.read_until(b'\n', &mut line).with_context(|| named.clone())?;
            let row = line.strip_suffix(b"\n");
            let Some(row) = row.and_then(|row| serde_json::from_slice::<Value>(row).ok()) else {
                let Some(file) = &self.file else {
                    bail!(
                        "{resume}: {named} is of a finished run, and has no line about {}; {anew}",
                        document.file
                    )
                };
                // From here on, lines are new.
                self.before = None;
                file.set_len(self.length).with_context(|| named)?;
                return Ok(None);
            };
            let same_place =
                row["file"] == document.file && row["line"] == document.line.map_or(Value::Null, Value::from);
            if same_place && row["hash"] != document.hash() {
                bail!(
                    "{resume}: {} has another text than the one that {named} is about; {anew}",
                    document.place()
                );
            }
            if !same_place {
                bail!(
                    "{resume}: {named} has a line about {}{}, where the corpus now has {}; {anew}",
                    row["file"].as_str().unwrap_or_default(),
                    row["line"].as_u64().map_or_else(String::new, |n| format!(", line {n}")),
                    document.place()
                );
            }
            let count = |name: &str| row[name].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
            let tokens = count("tokens");
            let predicted = count("predicted");
            found.push(DocumentTotals { tokens, predicted, loss: row["loss"].as_f64().unwrap_or(0.0) });
            length += line.len() as u64;
        }
        self.length = length;
        Ok(Some(found))
    }

    pub(super) fn add(&mut self, lines: &str) -> anyhow::Result<()> {
        use std::io::Seek;
        let named = || self.part.display().to_string();
        let file = self.file.as_mut().with_context(named)?;
        file.seek(std::io::SeekFrom::Start(self.length)).with_context(named)?;
        file.write_all(lines.as_bytes()).with_context(named)?;
        self.length += lines.len() as u64;
        Ok(())
    }

    /// Removes the file, if it has no line of this or an earlier run.
    pub(super) fn discard(self) -> anyhow::Result<()> {
        if self.before.is_some() { Ok(()) } else { Ok(std::fs::remove_file(&self.part)?) }
    }

    /// The file that a resumed run reads.
    fn found(&self) -> &Path {
        if self.file.is_some() { &self.part } else { &self.out }
    }

    /// Gives the file its own name. If the run had finished already, only prints a note.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        let found = self.found().display().to_string();
        let resume = self.spelling.switch("resume");
        let named = || self.out.display().to_string();
        if let Some(before) = &mut self.before
            && !before.fill_buf().with_context(named)?.is_empty()
        {
            bail!(
                "{resume}: {found} has lines about more documents than the corpus now has; {}",
                start_anew(self.spelling)
            );
        }
        let Some(file) = self.file else {
            self.observer.note(&format!("{resume}: this run has finished; {found} holds every document"));
            return Ok(());
        };
        file.sync_all().with_context(named)?;
        if self.is_new && std::fs::metadata(&self.out).is_ok_and(|there| there.len() > 0) {
            bail!(
                "{}: another run has written it meanwhile; what this one found is in {}",
                self.out.display(),
                self.part.display()
            );
        }
        std::fs::rename(&self.part, &self.out).with_context(named)
    }
}

/// Holds the lock of a file that grows, so that no other run of this machine writes it.
fn locked(file: File, part: &Path) -> anyhow::Result<File> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => bail!("{}: another run writes this file", part.display()),
        // Some file systems have no locks.
        _ => Ok(file),
    }
}

/// The first field in which two lines of facts differ.
fn difference(before: &[u8], now: &str) -> String {
    let parse = |line| serde_json::from_slice::<Value>(line).map(|facts| fields(&facts));
    let (Ok(before), Ok(now)) = (parse(before), parse(now.as_bytes())) else {
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
pub(super) fn fields(facts: &Value) -> BTreeMap<String, Value> {
    let inner = facts["provenance"].as_object().into_iter().flatten();
    let outer = facts.as_object().into_iter().flatten().filter(|(key, _)| *key != "provenance");
    inner.chain(outer).map(|(key, value)| (key.clone(), value.clone())).collect()
}
