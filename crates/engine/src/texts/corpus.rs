//! The documents of a corpus, section by section, so that a corpus of any size fits.

use super::prompt::Content;
use super::read::read_limited;
use super::text_lines::{
    FIELD, LONGEST, STDIN, TextLine, TextLines, holds_fields, is_json_lines, open, place,
};
use crate::observer::Observer;
use crate::open::Opened;
use crate::spelling::Spelling;
use anyhow::{Context, bail};
use gpt2_parallel::Group;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// The way in which a corpus is cut into documents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DocumentOptions {
    /// The unit that counts as a document; by default JSON lines in a .jsonl file, else a whole file.
    pub by: Option<DocumentUnit>,
    /// The field of JSON lines that holds the text; by default `text`.
    pub field: Option<String>,
}

/// The unit that counts as a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DocumentUnit {
    /// Each line that is not blank.
    Line,
    /// A whole file.
    Document,
    /// A field of each line of JSON.
    Json,
}

/// The unit of a corpus that counts as a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "by")]
pub enum By {
    /// A whole file.
    Document,
    /// A line that is not blank.
    Line,
    /// A field of each JSON line.
    Json {
        /// Its name.
        field: String,
    },
}

impl By {
    /// Takes the unit from the options, or else from the corpus's file name.
    ///
    /// # Errors
    /// When a field is named for documents that have none.
    pub fn new(
        DocumentOptions { by, field }: &DocumentOptions,
        corpus: &Path,
        spelling: Spelling,
    ) -> anyhow::Result<Self> {
        let is_json = field.is_some() || is_json_lines(corpus);
        let default = if is_json { DocumentUnit::Json } else { DocumentUnit::Document };
        match by.unwrap_or(default) {
            DocumentUnit::Json => Ok(Self::Json { field: field.as_deref().unwrap_or(FIELD).to_owned() }),
            _ if field.is_some() => bail!(
                "{}: names a field of JSON lines; leave {} out, or give {}",
                spelling.option("field"),
                spelling.option("by"),
                spelling.given("by", "json")
            ),
            DocumentUnit::Line => Ok(Self::Line),
            DocumentUnit::Document => Ok(Self::Document),
        }
    }

    /// The extension of the files to look for in a folder.
    fn extension(&self) -> &'static str {
        if matches!(self, Self::Json { .. }) { "jsonl" } else { "txt" }
    }
}

/// A section has at most `DOCUMENTS` documents, and ends after the one with which it reaches `BYTES` bytes. Where sections
/// end depends on the corpus alone, and with it which documents share a batch.
const DOCUMENTS: usize = 256;
const BYTES: usize = 1 << 17;

/// A text with its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorpusDocument {
    /// The file, or `-`.
    pub file: String,
    /// The line, from 1; none for a whole file.
    pub line: Option<u64>,
    /// The other fields of a line of JSON.
    pub input: Map<String, Value>,
    /// The text.
    pub text: String,
}

impl CorpusDocument {
    /// The document's name in errors.
    #[must_use]
    pub fn place(&self) -> String {
        place(Path::new(&self.file), self.line)
    }

    /// The tokens of the text.
    ///
    /// # Errors
    /// When there is no tokenizer, or it gives ids that the model does not have.
    pub fn ids(&self, opened: &Opened) -> anyhow::Result<Vec<u32>> {
        let ids = opened.tokenizer()?.encode(&self.text).with_context(|| self.place())?;
        let v = opened.model.config().vocab_size;
        if let Some(id) = ids.iter().find(|id| **id as usize >= v) {
            bail!("{}: the tokenizer gives id {id}, the model has {v} tokens", self.place());
        }
        Ok(ids)
    }

    /// A hash of the text.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut hash = DefaultHasher::new();
        self.text.hash(&mut hash);
        format!("{:016x}", hash.finish())
    }
}

/// Gives every rank the documents of rank 0.
///
/// # Errors
/// When a process of the group is lost.
pub fn shared(group: &dyn Group, section: Vec<CorpusDocument>) -> anyhow::Result<Vec<CorpusDocument>> {
    if group.size() == 1 {
        return Ok(section);
    }
    Ok(serde_json::from_slice(&group.broadcast_bytes(serde_json::to_vec(&section)?)?)?)
}

/// The documents of a file, a folder or standard input.
pub struct Corpus<'a> {
    /// The files that are not open yet.
    pub files: VecDeque<PathBuf>,
    by: By,
    /// The file whose lines are being read.
    lines: Option<(PathBuf, TextLines<'a>)>,
    observer: &'a dyn Observer,
    spelling: Spelling,
    /// The size of all files, where it is known.
    pub bytes: Option<u64>,
    /// The number of files in the folder whose names end otherwise than those of documents.
    pub other_files: usize,
    /// The bytes read so far, without those of the file whose lines are being read.
    read: u64,
}

impl<'a> Corpus<'a> {
    /// Finds the files; reads none yet.
    ///
    /// # Errors
    /// When there is no such file or folder, or the folder has no text.
    pub fn open(path: &Path, by: By, spelling: Spelling, observer: &'a dyn Observer) -> anyhow::Result<Self> {
        let files = [path.to_path_buf()].into();
        let mut corpus =
            Self { files, by, lines: None, observer, spelling, bytes: None, other_files: 0, read: 0 };
        if path == Path::new(STDIN) {
            return Ok(corpus);
        }
        let found = std::fs::metadata(path);
        if found.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            bail!(
                "{}: no such file or folder; name a file or a folder of texts, or - for a text from a pipe",
                path.display()
            );
        }
        let found = found.with_context(|| format!("cannot read {}", path.display()))?;
        if !found.is_dir() {
            return Ok(Self { bytes: Some(found.len()), ..corpus });
        }
        let extension = corpus.extension();
        let mut found = Texts::default();
        found.add_folder(path, extension)?;
        let Texts { mut files, bytes, others } = found;
        if files.is_empty() {
            let other = match extension {
                "txt" => format!("; for .jsonl files, give {}", spelling.given("by", "json")),
                _ => String::new(),
            };
            bail!("{}: has no file whose name ends in .{extension}{other}", path.display());
        }
        files.sort();
        (corpus.files, corpus.bytes, corpus.other_files) = (files.into(), Some(bytes), others);
        Ok(corpus)
    }

    /// The extension of the documents in a folder.
    #[must_use]
    pub fn extension(&self) -> &'static str {
        self.by.extension()
    }

    /// The number of bytes read so far.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.read + self.lines.as_ref().map_or(0, |(_, lines)| lines.read)
    }

    /// The next documents; none at the end.
    ///
    /// # Errors
    /// When a file cannot be read, or a line holds no text.
    pub fn section(&mut self) -> anyhow::Result<Vec<CorpusDocument>> {
        let mut section = vec![];
        let mut bytes = 0;
        while section.len() < DOCUMENTS && bytes < BYTES {
            let Some(document) = self.next()? else { break };
            bytes += document.text.len();
            section.push(document);
        }
        Ok(section)
    }

    fn next(&mut self) -> anyhow::Result<Option<CorpusDocument>> {
        loop {
            if let Some((path, lines)) = &mut self.lines {
                let Some(TextLine { number, content, input }) = lines.next_text()? else {
                    self.read += lines.read;
                    self.lines = None;
                    continue;
                };
                let Content::Text(text) = content else {
                    bail!("{}: holds token ids, expected a text", place(path, Some(number)));
                };
                let file = path.display().to_string();
                return Ok(Some(CorpusDocument { file, line: Some(number), input, text }));
            }
            let Some(path) = self.files.pop_front() else { return Ok(None) };
            let field = match &self.by {
                By::Document => {
                    let text = read_limited(open(&path, self.observer)?, LONGEST)
                        .with_context(|| format!("cannot read {}", path.display()))?;
                    self.read += text.len() as u64;
                    if text.lines().next().is_some_and(holds_fields) {
                        let place = place(&path, None);
                        let by = self.spelling.given("by", "json");
                        self.observer.note(&format!(
                            "{place}: begins with an object of JSON, and is read as one plain text; {by} reads lines"
                        ));
                    }
                    let file = path.display().to_string();
                    let input = Map::new();
                    return Ok(Some(CorpusDocument { file, line: None, input, text }));
                }
                By::Line => None,
                By::Json { field } => Some(field.clone()),
            };
            let lines = TextLines::open(&path, field, self.spelling, self.observer)?;
            self.lines = Some((path, lines));
        }
    }
}

/// The texts of a folder, one after another; `limit` is the most bytes.
///
/// # Errors
/// When there is none, one cannot be read, or they are longer.
pub fn folder_text(
    folder: &Path,
    limit: u64,
    spelling: Spelling,
    observer: &dyn Observer,
) -> anyhow::Result<String> {
    let mut corpus = Corpus::open(folder, By::Document, spelling, observer)?;
    if corpus.bytes.is_some_and(|bytes| bytes > limit) {
        bail!("{}: its texts are longer than {limit} bytes; leave some out", folder.display());
    }
    let mut all = String::new();
    while let Some(document) = corpus.next()? {
        all += &document.text;
    }
    Ok(all)
}

/// The files of a folder and of its subfolders.
#[derive(Default)]
struct Texts {
    files: Vec<PathBuf>,
    /// The size of `files`.
    bytes: u64,
    /// The number of other files.
    others: usize,
}

impl Texts {
    /// Adds the files whose names end in `extension`, and counts the others. Links to folders are not followed, and hidden
    /// files are left out.
    fn add_folder(&mut self, folder: &Path, extension: &str) -> anyhow::Result<()> {
        let failed = || format!("cannot read the folder {}", folder.display());
        for entry in std::fs::read_dir(folder).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            if entry.file_type().with_context(failed)?.is_dir() {
                self.add_folder(&path, extension)?;
                continue;
            }
            let is_text = path.extension().is_some_and(|end| end.eq_ignore_ascii_case(extension));
            // What a link leads to.
            match std::fs::metadata(&path) {
                Ok(found) if found.is_file() && is_text => {
                    self.bytes += found.len();
                    self.files.push(path);
                }
                Ok(found) if found.is_file() => self.others += 1,
                Ok(found) if is_text && !found.is_dir() => {
                    bail!("{}: is a pipe or the like, expected a file; move it away", path.display())
                }
                Err(error) if is_text => {
                    return Err(error).with_context(|| format!("cannot read {}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }
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
        let documents = |by: By| -> anyhow::Result<Vec<(Option<u64>, String)>> {
            let section =
                Corpus::open(folder.path(), by, Spelling::Flags, &crate::observer::Silent)?.section()?;
            Ok(section.into_iter().map(|document| (document.line, document.text)).collect())
        };
        let of = |line, text: &str| (line, text.to_owned());
        assert_eq!(documents(By::Document)?, [of(None, "inner\n"), of(None, "one\n\n  \ntwo\r\nthree")]);
        let lines = [of(Some(1), "inner"), of(Some(1), "one"), of(Some(4), "two"), of(Some(5), "three")];
        assert_eq!(documents(By::Line)?, lines);
        Ok(())
    }
}
