//! The file that describes a task of one's own, whose data set has other fields.

use super::examples::ExampleParts;
use super::sources::DataFile;
use crate::observer::Silent;
use crate::texts::read_file;
use anyhow::{Context, bail};
use serde::Deserialize;
use std::path::Path;

/// The longest description to read, in bytes.
const LONGEST: u64 = 1 << 20;

/// The content of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    task: Option<String>,
    data: String,
    context: Option<String>,
    choices: Option<String>,
    answer: Option<String>,
    #[serde(default)]
    delimiter: String,
}

/// A task as its file describes it.
pub(super) struct TaskDescription {
    pub(super) task: String,
    pub(super) data: DataFile,
    /// None for texts whose perplexity is measured.
    pub(super) parts: Option<ExampleParts>,
}

/// Reads a description. A path in it starts from its folder.
pub(super) fn read(path: &Path, stem: &str) -> anyhow::Result<TaskDescription> {
    let text = read_file("the description of a task", path, LONGEST, &Silent)?;
    let described: Described = serde_json::from_str(&text).with_context(|| {
        format!(
            "{}: expected {{\"data\": FILE, \"context\": \"{{{{FIELD}}}}..\", \"choices\": FIELD, \"answer\": FIELD}}, with choices left out \
             where the answer itself is to be predicted, or {{\"data\": FILE}} for texts",
            path.display()
        )
    })?;
    let Described { task, data, context, choices, answer, delimiter } = described;
    let folder = path.parent().unwrap_or(Path::new(""));
    let data = if data.contains("://") { data } else { folder.join(data).to_string_lossy().into_owned() };
    let data = DataFile::named(&data).with_context(|| path.display().to_string())?;
    let parts = match (context, answer) {
        (Some(context), Some(answer)) => Some(ExampleParts { context, choices, answer, delimiter }),
        (None, None) if choices.is_none() => None,
        _ => {
            bail!("{}: names a context without an answer, or the other way round; give both", path.display())
        }
    };
    Ok(TaskDescription { task: task.unwrap_or_else(|| stem.to_owned()), data, parts })
}
