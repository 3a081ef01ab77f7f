//! The data of a training run.

use crate::observer::Observer;
use crate::spelling::Spelling;
use crate::texts::{Example, documents, encode, noted, parse, place};
use anyhow::bail;
use gpt2_loader::Tokenizer;
use gpt2_train::Dataset;
use std::borrow::Cow;
use std::path::Path;

/// A text, or examples.
#[derive(Debug, Clone)]
pub enum TrainingData {
    /// One text.
    Text(String),
    /// Prompts and completions, of which the completions are learned.
    Examples(Vec<Example>),
}

impl TrainingData {
    /// The examples in lines of JSON. `path` names their file in errors.
    ///
    /// # Errors
    /// When a line is no example, a completion is empty, or there are fewer than two.
    pub fn of_json_lines(text: &str, path: &Path, spelling: Spelling) -> anyhow::Result<Self> {
        let option = spelling.option("jsonl");
        let mut examples = vec![];
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let place = format!("{option} {}", place(path, Some(number)));
            let example: Example = parse(line, &place, "{\"prompt\": \"..\", \"completion\": \"..\"}")?;
            if example.completion.is_empty() {
                bail!("{place}: the completion is empty, so there is nothing to learn");
            }
            examples.push(example);
        }
        if examples.len() < 2 {
            bail!(
                "{option} {}: has {} examples, expected at least 2: one to learn and one for validation",
                path.display(),
                examples.len()
            );
        }
        Ok(Self::Examples(examples))
    }

    /// The text that a new tokenizer learns: what is in the examples, not how their file spells it.
    #[must_use]
    pub fn words(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Examples(examples) => examples
                .iter()
                .flat_map(|example| [&example.prompt[..], &example.completion, "\n"])
                .collect::<String>()
                .into(),
        }
    }

    /// The tokens to learn, and the part `val_fraction` of them for validation.
    ///
    /// # Errors
    /// When there are too few, or the tokenizer fails.
    pub fn dataset(
        &self,
        tokenizer: &Tokenizer,
        val_fraction: f64,
        observer: &dyn Observer,
    ) -> anyhow::Result<Dataset> {
        let data = match self {
            Self::Examples(examples) => {
                let documents = documents(examples, tokenizer, &mut |text| observer.note(&text))?;
                Dataset::from_documents(documents, val_fraction)
            }
            Self::Text(text) => {
                Dataset::split(noted(encode(tokenizer, text, "the training text")?, observer), val_fraction)
            }
        };
        Ok(data?)
    }
}
