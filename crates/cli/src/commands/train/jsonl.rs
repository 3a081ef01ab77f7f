//! `--jsonl`: prompts and completions, one JSON object a line.

use crate::output::note;
use crate::text_lines::{parse, place};
use anyhow::bail;
use gpt2_loader::Tokenizer;
use gpt2_train::Document;
use serde::Deserialize;
use std::path::Path;

/// A line of the file. Other fields are ignored.
#[derive(Deserialize)]
pub(super) struct Example {
    pub(super) prompt: String,
    pub(super) completion: String,
}

pub(super) fn examples(text: &str, path: &Path) -> anyhow::Result<Vec<Example>> {
    let mut examples = vec![];
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let place = format!("--jsonl {}", place(path, Some(number)));
        let example: Example = parse(line, &place, "{\"prompt\": \"..\", \"completion\": \"..\"}")?;
        if example.completion.is_empty() {
            bail!("{place}: the completion is empty, so there is nothing to learn");
        }
        examples.push(example);
    }
    if examples.len() < 2 {
        bail!(
            "--jsonl {}: has {} examples, expected at least 2: one to learn and one for validation",
            path.display(),
            examples.len()
        );
    }
    Ok(examples)
}

pub(super) fn joined(examples: &[Example]) -> String {
    examples.iter().flat_map(|example| [&example.prompt, &example.completion, "\n"]).collect()
}

/// The examples as documents, of which the completion and, if the tokenizer has one, the end of text is learned.
pub(super) fn documents(examples: &[Example], tokenizer: &Tokenizer) -> anyhow::Result<Vec<Document>> {
    let end = tokenizer.end_of_text();
    if end.is_none() {
        note("the tokenizer has no end of text, so the model does not learn where a completion ends");
    }
    let ids_of = |text: &str| if text.is_empty() { Ok(vec![]) } else { tokenizer.encode(text) };
    let document = |(number, example): (usize, &Example)| -> anyhow::Result<Option<Document>> {
        let (mut ids, completion) = (ids_of(&example.prompt)?, ids_of(&example.completion)?);
        // Something must precede the first id that is learned.
        if ids.is_empty() {
            ids.extend(end);
        }
        let learn_from = ids.len().max(1);
        ids.extend(completion);
        ids.extend(end);
        if learn_from >= ids.len() {
            note(&format!("example {number} is left out: it has one token, and nothing before it"));
            return Ok(None);
        }
        Ok(Some(Document::new(ids, learn_from)?))
    };
    let documents = (1..).zip(examples).map(document);
    Ok(documents.collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect())
}
