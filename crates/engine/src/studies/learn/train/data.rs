//! The data of a training run.

use crate::observer::Observer;
use crate::spelling::Spelling;
use crate::texts::{Content, Example, documents, encode, noted, parse, place};
use anyhow::{Context, bail};
use gpt2_loader::Tokenizer;
use gpt2_train::Dataset;
use std::borrow::Cow;
use std::path::Path;

/// The number of words of a prompt like the data.
const WORDS: usize = 3;
/// The characters of such a prompt, at most: a text may be one long word.
const LETTERS: usize = 60;

/// A text, examples, or ids.
#[derive(Debug, Clone)]
pub enum TrainingData {
    /// One text.
    Text(String),
    /// Prompts and completions, of which the completions are learned.
    Examples(Vec<Example>),
    /// One text as token ids.
    Ids(Vec<u32>),
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

    /// Whether it needs a tokenizer.
    #[must_use]
    pub fn is_text(&self) -> bool {
        !matches!(self, Self::Ids(_))
    }

    /// The text that a new tokenizer learns: what is in the examples, not how their file spells it.
    #[must_use]
    pub fn words(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Ids(_) => Cow::Borrowed(""),
            Self::Examples(examples) => examples
                .iter()
                .flat_map(|example| [&example.prompt[..], &example.completion, "\n"])
                .collect::<String>()
                .into(),
        }
    }

    /// A short prompt like the data: their first words, or their first ids.
    #[must_use]
    pub fn beginning(&self) -> Content {
        let text = match self {
            Self::Ids(ids) => return Content::Ids(ids.iter().take(WORDS).copied().collect()),
            Self::Text(text) => text,
            Self::Examples(examples) => {
                let of = |example: &Example| {
                    if example.prompt.is_empty() {
                        example.completion.clone()
                    } else {
                        example.prompt.clone()
                    }
                };
                &examples.first().map(of).unwrap_or_default()
            }
        };
        let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("the");
        let words = line.split_whitespace().take(WORDS).collect::<Vec<_>>().join(" ");
        Content::Text(words.chars().take(LETTERS).collect())
    }

    /// The tokens to learn, and those for validation: `validation`, or else the part `val_fraction` of the former.
    ///
    /// # Errors
    /// When there are too few, there is no tokenizer for a text, or it fails.
    pub fn dataset(
        &self,
        validation: Option<&Self>,
        tokenizer: Option<&Tokenizer>,
        val_fraction: f64,
        observer: &dyn Observer,
    ) -> anyhow::Result<Dataset> {
        if let Self::Examples(examples) = self {
            let documents = documents(examples, needed(tokenizer)?, &mut |text| observer.note(&text))?;
            return Ok(Dataset::from_documents(documents, val_fraction)?);
        }
        let ids = self.ids(tokenizer, "the training text", observer)?;
        match validation {
            Some(other) => Ok(Dataset::new(ids, other.ids(tokenizer, "the validation text", observer)?)),
            None => Ok(Dataset::split(ids, val_fraction)?),
        }
    }

    /// The ids of one text, which notes and errors call `what`.
    fn ids(
        &self,
        tokenizer: Option<&Tokenizer>,
        what: &str,
        observer: &dyn Observer,
    ) -> anyhow::Result<Vec<u32>> {
        match self {
            Self::Text(text) => Ok(noted(encode(needed(tokenizer)?, text, what)?, observer)),
            Self::Ids(ids) => Ok(ids.clone()),
            Self::Examples(_) => bail!("{what}: is examples, expected one text"),
        }
    }
}

fn needed(tokenizer: Option<&Tokenizer>) -> anyhow::Result<&Tokenizer> {
    tokenizer.context("there is no tokenizer for the text")
}
