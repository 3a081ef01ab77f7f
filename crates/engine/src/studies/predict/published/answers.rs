//! The file of answers: for each model, what was printed, by whom, and how near to it a right program comes.

use crate::observer::Observer;
use crate::texts::read_file;
use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The answers that the program has.
const KNOWN: &str = include_str!("answers.json");
/// The longest file of answers to read, in bytes.
const LONGEST: u64 = 1 << 24;

/// A printed answer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PrintedAnswer {
    /// The place where it was printed.
    pub(super) source: String,
    pub(super) question: Question,
}

/// The question that it answers.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Question {
    /// The tokens of the prompt and of its greedy continuation.
    Continuation { prompt: Vec<u32>, ids: Vec<u32> },
    /// The losses of training steps on one batch, with AdamW.
    Losses {
        /// The text as documents, each behind the end-of-text token.
        documents: Vec<String>,
        rows: usize,
        columns: usize,
        learning_rate: f64,
        losses: Vec<f64>,
        tolerance: f64,
    },
    /// Heads that are among the first `among` by a score on repeated random tokens.
    Heads { score: HeadScore, heads: Vec<String>, among: usize },
    /// Heads that are among the `among` that add most to the difference between the two names, or least, over `prompts` prompts.
    NameMovers { heads: Vec<String>, against: bool, among: usize, prompts: usize },
    /// A measure of a standard evaluation.
    Evaluation { task: String, measure: String, value: f64, tolerance: f64 },
}

/// A score of heads on repeated tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HeadScore {
    PreviousToken,
    DuplicateToken,
    Induction,
}

/// The answers about a model, from a file or the program's own.
pub(super) fn of_model(
    model: &str,
    file: Option<&Path>,
    observer: &dyn Observer,
) -> anyhow::Result<Vec<PrintedAnswer>> {
    let (text, place) = match file {
        Some(path) => (read_file("the answers", path, LONGEST, observer)?, path.display().to_string()),
        None => (KNOWN.to_owned(), "the program's answers".to_owned()),
    };
    let mut all: BTreeMap<String, Vec<PrintedAnswer>> = serde_json::from_str(&text).with_context(|| {
        format!("{place}: expected {{\"MODEL\": [{{\"source\": \"..\", \"question\": {{..}}}}, ..]}}; docs/evaluation.md lists the questions")
    })?;
    let Some(answers) = all.remove(model) else {
        let known: Vec<&str> = all.keys().map(String::as_str).collect();
        bail!("{place}: has no answer about {model}; it is about {}", known.join(", "));
    };
    if answers.is_empty() {
        bail!("{place}: lists no answer about {model}; expected one at least");
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Silent;

    #[test]
    fn the_answers_can_be_read_and_each_has_a_source() -> anyhow::Result<()> {
        for model in ["gpt2", "gpt2-xl"] {
            let answers = of_model(model, None, &Silent)?;
            assert!(!answers.is_empty() && answers.iter().all(|answer| answer.source.len() > 10), "{model}");
        }
        let error = of_model("gpt3", None, &Silent).expect_err("unknown").to_string();
        assert!(error.contains("it is about gpt2, gpt2-xl"), "{error}");
        Ok(())
    }
}
