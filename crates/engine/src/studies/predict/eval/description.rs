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
    delimiter: Option<String>,
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
    let place = path.display();
    let parts = match (context, answer, choices, delimiter) {
        (Some(context), Some(answer), choices, delimiter) => {
            check_context(&context).with_context(|| place.to_string())?;
            Some(ExampleParts { context, choices, answer, delimiter: delimiter.unwrap_or_default() })
        }
        (None, None, None, None) => None,
        (None, None, choices, _) => {
            let left = if choices.is_some() { "choices" } else { "a delimiter" };
            bail!(
                "{place}: has {left}, but neither a context nor an answer; give both, or \"data\" alone for whole texts"
            )
        }
        (Some(_), None, ..) => bail!("{place}: has a context but no answer; give both"),
        (None, Some(_), ..) => {
            bail!("{place}: has an answer but no context; give both, the context may be \"\"")
        }
    };
    Ok(TaskDescription { task: task.unwrap_or_else(|| stem.to_owned()), data, parts })
}

/// Refuses `{{` that nothing closes, and braces without the name of a field.
fn check_context(context: &str) -> anyhow::Result<()> {
    let mut rest = context;
    while let Some((_, after)) = rest.split_once("{{") {
        let Some((name, following)) = after.split_once("}}") else {
            bail!(
                "\"context\" has {{{{ without }}}} behind it; expected the name of a field between both, such as {{{{question}}}}"
            );
        };
        if name.trim().is_empty() || name.contains('{') {
            bail!("\"context\" has {{{{{name}}}}}; expected the name of a field, such as {{{{question}}}}");
        }
        rest = following;
    }
    Ok(())
}
