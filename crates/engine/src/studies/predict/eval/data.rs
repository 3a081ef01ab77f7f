//! The rows of a data set's file: JSON lines, or Parquet as the Hub's data sets have it.

use crate::observer::Observer;
use crate::spelling::Spelling;
use crate::texts::{TextLines, parse, place};
use anyhow::{Context, bail};
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::{Map, Value};
use std::path::Path;

/// A row: its fields, and its place for errors.
#[derive(Debug, Clone)]
pub(super) struct DataRow {
    /// `FILE, line 3`, or `FILE, row 3`.
    pub(super) place: String,
    fields: Map<String, Value>,
}

/// The rows of a file.
#[derive(Debug)]
pub(super) struct DataRows {
    /// The first rows, as many as were asked for.
    pub(super) first: Vec<DataRow>,
    /// The number of all rows.
    pub(super) all: usize,
}

/// Reads the first `limit` rows of a file, and counts all.
pub(super) fn rows(
    path: &Path,
    limit: Option<usize>,
    spelling: Spelling,
    observer: &dyn Observer,
) -> anyhow::Result<DataRows> {
    let limit = limit.unwrap_or(usize::MAX);
    let is_parquet = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("parquet"));
    let rows = if is_parquet {
        parquet_rows(path, limit).with_context(|| {
            format!(
                "{}: expected a sound file in Parquet; fetch it again, or give JSON lines",
                path.display()
            )
        })?
    } else {
        json_rows(path, limit, spelling, observer)?
    };
    if rows.all == 0 {
        bail!("{}: holds no row; expected an example on each line", path.display());
    }
    Ok(rows)
}

fn json_rows(
    path: &Path,
    limit: usize,
    spelling: Spelling,
    observer: &dyn Observer,
) -> anyhow::Result<DataRows> {
    let mut lines = TextLines::open(path, None, spelling, observer)?;
    let mut rows = DataRows { first: vec![], all: 0 };
    while let Some((number, line)) = lines.next_line()? {
        rows.all += 1;
        if rows.first.len() < limit {
            let place = place(path, Some(number));
            let fields = parse(&line, &place, "an object of JSON with the fields of an example")?;
            rows.first.push(DataRow { place, fields });
        }
    }
    Ok(rows)
}

fn parquet_rows(path: &Path, limit: usize) -> anyhow::Result<DataRows> {
    let reader = SerializedFileReader::new(std::fs::File::open(path)?)?;
    let all = usize::try_from(reader.metadata().file_metadata().num_rows())?;
    let mut first = vec![];
    for (number, row) in reader.get_row_iter(None)?.take(limit).enumerate() {
        let place = format!("{}, row {}", path.display(), number + 1);
        let Value::Object(fields) = row.with_context(|| place.clone())?.to_json_value() else {
            bail!("{place}: expected fields and their values")
        };
        first.push(DataRow { place, fields });
    }
    if first.len() < limit.min(all) {
        bail!("of its {all} rows, {} can be read", first.len());
    }
    Ok(DataRows { first, all })
}

impl DataRow {
    #[cfg(test)]
    pub(super) fn of(value: Value) -> Self {
        let Value::Object(fields) = value else { panic!("an object") };
        Self { place: "x.jsonl, line 1".into(), fields }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.fields.contains_key(name)
    }

    /// The value of a field.
    pub(super) fn field(&self, name: &str) -> anyhow::Result<&Value> {
        self.fields.get(name).with_context(|| {
            let names: Vec<&str> = self.fields.keys().map(String::as_str).collect();
            let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            format!(
                "{}: expected the field {name:?}; its fields are: {has}; is this the file of another task?",
                self.place
            )
        })
    }

    /// A field that holds a text.
    pub(super) fn text(&self, name: &str) -> anyhow::Result<&str> {
        let value = self.field(name)?;
        value.as_str().with_context(|| self.unexpected(name, "a text", value))
    }

    /// A field that holds a list of texts.
    pub(super) fn texts(&self, name: &str) -> anyhow::Result<Vec<&str>> {
        let value = self.field(name)?;
        let list = value.as_array().with_context(|| self.unexpected(name, "a list of texts", value))?;
        list.iter()
            .map(|one| one.as_str().with_context(|| self.unexpected(name, "a list of texts alone", one)))
            .collect()
    }

    /// A field that says which of some choices is right: an index from 0, as a number or as text, or the text of one.
    pub(super) fn choice(&self, name: &str, choices: &[&str]) -> anyhow::Result<usize> {
        let value = self.field(name)?;
        let last = choices.len().saturating_sub(1);
        let expected = format!("an index from 0 to {last}, or one of the choices");
        let index = match value {
            Value::String(text) => {
                choices.iter().position(|choice| choice == text).or_else(|| text.trim().parse().ok())
            }
            other => other.as_u64().and_then(|index| usize::try_from(index).ok()),
        };
        index.filter(|index| *index < choices.len()).with_context(|| self.unexpected(name, &expected, value))
    }

    fn unexpected(&self, name: &str, expected: &str, found: &Value) -> String {
        let mut shown = found.to_string();
        if shown.chars().count() > 60 {
            shown = shown.chars().take(60).collect::<String>() + "..";
        }
        format!("{}: expected {expected} in the field {name:?}, found {shown}", self.place)
    }
}
