//! `--jsonl`: prompts and completions, one JSON object a line.

use anyhow::bail;
use gpt2_engine::texts::Example;
use gpt2_engine::texts::{parse, place};
use std::path::Path;

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
