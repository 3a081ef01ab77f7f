//! Texts one a line: plain, or in a field of JSON lines.

use super::prompt::Content;
use super::read::{open_text, read_limited};
use crate::observer::Observer;
use crate::spelling::Spelling;
use anyhow::{Context, anyhow, bail};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// The longest line or document in bytes.
pub const LONGEST: u64 = 1 << 28;
/// The name of standard input.
pub const STDIN: &str = "-";
/// The field that holds a text, unless another is named.
pub const FIELD: &str = "text";

/// Whether a file's name says that it holds JSON lines: .jsonl or .ndjson.
#[must_use]
pub fn is_json_lines(path: &Path) -> bool {
    path.extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("jsonl") || end.eq_ignore_ascii_case("ndjson"))
}

/// Opens a file, or standard input for `-`.
///
/// # Errors
/// When the file cannot be opened.
pub fn open<'a>(path: &Path, observer: &'a dyn Observer) -> anyhow::Result<Box<dyn Read + 'a>> {
    if path == Path::new(STDIN) {
        return Ok(Box::new(OfAProgram { output: std::io::stdin(), observer }));
    }
    let named = || format!("cannot read {}", path.display());
    let file = open_text(path, observer).with_context(named)?;
    if file.metadata().with_context(named)?.is_file() {
        return Ok(Box::new(file));
    }
    Ok(Box::new(OfAProgram { output: file, observer }))
}

/// The output of another program, which may never end.
struct OfAProgram<'a, R> {
    output: R,
    observer: &'a dyn Observer,
}

impl<R: Read> Read for OfAProgram<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let mut read = Ok(0);
        self.observer.waiting(&mut || read = self.output.read(bytes));
        read
    }
}

/// The texts of a file, read line by line.
pub struct TextLines<'a> {
    path: PathBuf,
    reader: Box<dyn BufRead + 'a>,
    observer: &'a dyn Observer,
    spelling: Spelling,
    /// The field of JSON lines that holds a text; none for plain lines.
    field: Option<String>,
    /// The number of the last line, from 1.
    number: u64,
    /// The number of bytes read so far.
    pub read: u64,
}

/// A line with its text, or token ids in a field of JSON lines.
pub struct TextLine {
    /// From 1.
    pub number: u64,
    /// Its text or ids.
    pub content: Content,
    /// The other fields of a line of JSON.
    pub input: Map<String, Value>,
}

impl<'a> TextLines<'a> {
    /// Opens a file, or standard input for `-`.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(
        path: &Path,
        field: Option<String>,
        spelling: Spelling,
        observer: &'a dyn Observer,
    ) -> anyhow::Result<Self> {
        let reader = Box::new(BufReader::new(open(path, observer)?));
        Ok(Self { path: path.to_path_buf(), reader, observer, spelling, field, number: 0, read: 0 })
    }

    /// The next line that holds more than white space, and its number; none at the end.
    ///
    /// # Errors
    /// When it is too long, not UTF-8, or cannot be read.
    pub fn next_line(&mut self) -> anyhow::Result<Option<(u64, String)>> {
        loop {
            self.number += 1;
            let (number, place) = (self.number, place(&self.path, Some(self.number)));
            let mut bytes = vec![];
            let read = (&mut self.reader).take(LONGEST).read_until(b'\n', &mut bytes);
            self.read += read.with_context(|| place.clone())? as u64;
            if bytes.is_empty() {
                return Ok(None);
            }
            let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
            let line = read_limited(bytes, LONGEST - 2).with_context(|| place.clone())?;
            if !line.trim().is_empty() {
                return Ok(Some((number, line)));
            }
        }
    }

    /// The next line that holds more than white space, with its content; none at the end.
    ///
    /// # Errors
    /// See [`TextLines::next_line`]; also when a line of JSON has no text where one is expected.
    pub fn next_text(&mut self) -> anyhow::Result<Option<TextLine>> {
        let Some((number, line)) = self.next_line()? else { return Ok(None) };
        let place = place(&self.path, Some(number));
        let (content, input) = if let Some(field) = &self.field {
            content_of(&line, field, &place, self.spelling)?
        } else {
            if number == 1 && holds_fields(&line) {
                let field = self.spelling.given("field", FIELD);
                self.observer.note(&format!(
                    "{place}: is an object of JSON, and read as plain text; {field} reads its field"
                ));
            }
            (Content::Text(line), Map::new())
        };
        Ok(Some(TextLine { number, content, input }))
    }
}

/// Whether a line is an object of JSON.
#[must_use]
pub fn holds_fields(line: &str) -> bool {
    line.starts_with('{') && serde_json::from_str::<Map<String, Value>>(line).is_ok()
}

/// `FILE, line 3`, or `FILE` alone.
#[must_use]
pub fn place(file: &Path, line: Option<u64>) -> String {
    let file = if file == Path::new(STDIN) { "standard input".into() } else { file.display().to_string() };
    match line {
        Some(line) => format!("{file}, line {line}"),
        None => file,
    }
}

/// The value of a line of JSON. `place` and `expected` say in errors where it stands and what it should be.
///
/// # Errors
/// When it is no such value.
pub fn parse<T: DeserializeOwned>(line: &str, place: &str, expected: &str) -> anyhow::Result<T> {
    serde_json::from_str(line).map_err(|error| {
        // The parser sees one line, and calls it line 1.
        let text = error.to_string();
        let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
        let column = match error.column() {
            0 => String::new(),
            column => format!(" at column {column}"),
        };
        anyhow!("{place}: expected {expected}: {reason}{column}")
    })
}

/// The text or the ids in a field of a line of JSON, and the other fields.
fn content_of(
    line: &str,
    field: &str,
    place: &str,
    spelling: Spelling,
) -> anyhow::Result<(Content, Map<String, Value>)> {
    let name = Value::from(field).to_string();
    let expected = format!("{{{name}: \"..\"}}");
    let mut fields: Map<String, Value> = parse(line, place, &expected)?;
    match fields.remove(field) {
        Some(Value::String(text)) => Ok((Content::Text(text), fields)),
        Some(other) => {
            let ids: Option<Vec<u32>> = other.as_array().and_then(|list| list.iter().map(id).collect());
            if let Some(ids) = ids {
                return Ok((Content::Ids(ids), fields));
            }
            let kind = match other {
                Value::Null => "null",
                Value::Bool(_) => "a boolean",
                Value::Number(_) => "a number",
                Value::Array(_) => "a list, but not of token ids",
                Value::Object(_) => "an object",
                Value::String(_) => "a string",
            };
            bail!("{place}: expected {expected}: the field {name} holds {kind}")
        }
        None if fields.is_empty() => bail!("{place}: expected {expected}: the object has no field"),
        None => {
            let names: Vec<_> = fields.keys().map(|name| Value::from(name.as_str()).to_string()).collect();
            bail!(
                "{place}: expected {expected}: the object has only {}; {} names the one that holds the text",
                names.join(", "),
                spelling.option("field")
            )
        }
    }
}

/// A token id of JSON.
fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| id.try_into().ok())
}
