//! The documents of a corpus, section by section, so that a corpus of any size fits.

use crate::prompt::read_limited;
use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ByArg {
    Line,
    Document,
}

/// A section has at most `DOCUMENTS` documents, and ends after the one with which it reaches `BYTES` bytes. Where sections
/// end depends on the corpus alone, and with it which documents share a batch.
const DOCUMENTS: usize = 256;
const BYTES: usize = 1 << 17;
/// The longest document in bytes.
const LONGEST: u64 = 1 << 28;
/// The name of standard input.
pub(super) const STDIN: &str = "-";

/// A text with its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Document {
    pub(super) file: String,
    /// The line, from 1; none for a whole file.
    pub(super) line: Option<u64>,
    pub(super) text: String,
}

pub(super) struct Corpus {
    /// Those that are not begun.
    pub(super) files: VecDeque<PathBuf>,
    by: ByArg,
    /// The file whose lines are being read, and the number of the last one.
    lines: Option<(PathBuf, Box<dyn BufRead>, u64)>,
    /// The size of all files, where it is known.
    pub(super) bytes: Option<u64>,
}

impl Corpus {
    /// Finds the files; reads none yet.
    pub(super) fn open(path: &Path, by: ByArg) -> anyhow::Result<Self> {
        let corpus = |files: Vec<PathBuf>, bytes| Self { files: files.into(), by, lines: None, bytes };
        if path == Path::new(STDIN) {
            return Ok(corpus(vec![path.to_path_buf()], None));
        }
        let failed = || format!("cannot read {}", path.display());
        if !std::fs::metadata(path).with_context(failed)?.is_dir() {
            let bytes = std::fs::metadata(path).with_context(failed)?.len();
            return Ok(corpus(vec![path.to_path_buf()], Some(bytes)));
        }
        let mut files = vec![];
        let mut bytes = 0;
        texts_in(path, &mut files, &mut bytes)?;
        if files.is_empty() {
            bail!("{}: has no file whose name ends in .txt", path.display());
        }
        files.sort();
        Ok(corpus(files, Some(bytes)))
    }

    /// The next documents; none at the end.
    pub(super) fn section(&mut self) -> anyhow::Result<Vec<Document>> {
        let (mut section, mut bytes) = (vec![], 0);
        while section.len() < DOCUMENTS && bytes < BYTES {
            let Some(document) = self.next()? else { break };
            bytes += document.text.len();
            section.push(document);
        }
        Ok(section)
    }

    fn next(&mut self) -> anyhow::Result<Option<Document>> {
        loop {
            if let Some((path, lines, number)) = &mut self.lines {
                *number += 1;
                let failed = || format!("{}, line {number}", path.display());
                let Some(text) = line(lines).with_context(failed)? else {
                    self.lines = None;
                    continue;
                };
                if text.trim().is_empty() {
                    continue;
                }
                return Ok(Some(Document { file: path.display().to_string(), line: Some(*number), text }));
            }
            let Some(path) = self.files.pop_front() else { return Ok(None) };
            let failed = || format!("cannot read {}", path.display());
            let reader: Box<dyn Read> = if path == Path::new(STDIN) {
                Box::new(std::io::stdin())
            } else {
                Box::new(File::open(&path).with_context(failed)?)
            };
            if self.by == ByArg::Line {
                self.lines = Some((path, Box::new(BufReader::new(reader)), 0));
                continue;
            }
            let text = read_limited(reader, LONGEST).with_context(failed)?;
            return Ok(Some(Document { file: path.display().to_string(), line: None, text }));
        }
    }
}

/// The next line without its end.
fn line(reader: &mut dyn BufRead) -> std::io::Result<Option<String>> {
    let mut bytes = vec![];
    if reader.take(LONGEST).read_until(b'\n', &mut bytes)? == 0 {
        return Ok(None);
    }
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    read_limited(bytes.strip_suffix(b"\r").unwrap_or(bytes), LONGEST - 2).map(Some)
}

/// Adds the .txt files of a folder and of its subfolders. Links to folders are not followed, and hidden ones are left out.
fn texts_in(folder: &Path, files: &mut Vec<PathBuf>, bytes: &mut u64) -> anyhow::Result<()> {
    let failed = || format!("cannot read the folder {}", folder.display());
    for entry in std::fs::read_dir(folder).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if entry.file_type().with_context(failed)?.is_dir() {
            texts_in(&path, files, bytes)?;
        } else if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("txt")) && path.is_file() {
            *bytes += std::fs::metadata(&path).with_context(failed)?.len();
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_gives_its_texts_in_the_order_of_their_paths() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
        std::fs::create_dir(folder.path().join("b"))?;
        write("c.txt", "one\n\n  \ntwo\r\nthree")?;
        write("b/a.TXT", "inner\n")?;
        write("notes.md", "no text")?;
        write(".hidden.txt", "hidden")?;
        let documents = |by| -> anyhow::Result<Vec<(Option<u64>, String)>> {
            let section = Corpus::open(folder.path(), by)?.section()?;
            Ok(section.into_iter().map(|document| (document.line, document.text)).collect())
        };
        let of = |line, text: &str| (line, text.to_owned());
        assert_eq!(documents(ByArg::Document)?, [of(None, "inner\n"), of(None, "one\n\n  \ntwo\r\nthree")]);
        let lines = [of(Some(1), "inner"), of(Some(1), "one"), of(Some(4), "two"), of(Some(5), "three")];
        assert_eq!(documents(ByArg::Line)?, lines);
        Ok(())
    }
}
