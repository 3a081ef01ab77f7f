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
    for (number, answer) in answers.iter().enumerate() {
        answer.check().with_context(|| format!("{place}: answer {} about {model}", number + 1))?;
    }
    Ok(answers)
}

impl PrintedAnswer {
    /// Refuses an answer without a source, and one that every program would find right, or none.
    fn check(&self) -> anyhow::Result<()> {
        if self.source.trim().is_empty() {
            bail!("\"source\" is empty; say where the answer was printed");
        }
        self.question.check()
    }
}

impl Question {
    fn check(&self) -> anyhow::Result<()> {
        match self {
            Self::Continuation { prompt, ids } => {
                if prompt.is_empty() || !ids.starts_with(prompt) {
                    bail!("\"ids\" must begin with \"prompt\", which must hold one token at least");
                }
                if ids.len() == prompt.len() {
                    bail!("\"ids\" hold the prompt alone; expected its continuation behind it");
                }
            }
            Self::Losses { documents, rows, columns, learning_rate, losses, tolerance } => {
                if documents.is_empty() || losses.is_empty() {
                    bail!("\"documents\" and \"losses\" must hold one text and one number at least");
                }
                if rows.checked_mul(*columns).is_none_or(|tokens| tokens == 0) {
                    bail!("\"rows\" {rows} and \"columns\" {columns}: expected one or more of each");
                }
                is_above_0("learning_rate", *learning_rate)?;
                is_above_0("tolerance", *tolerance)?;
            }
            Self::Heads { heads, among, .. } => check_heads(heads, *among)?,
            Self::NameMovers { heads, among, prompts, .. } => {
                check_heads(heads, *among)?;
                if *prompts == 0 {
                    bail!("\"prompts\" is 0; expected one at least");
                }
            }
            Self::Evaluation { tolerance, .. } => is_above_0("tolerance", *tolerance)?,
        }
        Ok(())
    }
}

fn is_above_0(name: &str, number: f64) -> anyhow::Result<()> {
    if number > 0.0 { Ok(()) } else { bail!("{name:?} is {number}; expected a number above 0") }
}

/// Refuses a list of heads that all or none of a model's heads would satisfy.
fn check_heads(heads: &[String], among: usize) -> anyhow::Result<()> {
    if heads.is_empty() {
        bail!("\"heads\" lists none; expected one at least, such as \"5.1\"");
    }
    if let Some(head) =
        heads.iter().enumerate().find_map(|(i, head)| heads[..i].contains(head).then_some(head))
    {
        bail!("\"heads\" lists {head} twice");
    }
    if heads.len() > among {
        bail!(
            "\"heads\" lists {}, which cannot all be among the first {among}; raise \"among\"",
            heads.len()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Silent;
    use serde_json::{Value, json};

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

    #[test]
    fn an_answer_that_cannot_fail_or_cannot_be_right_is_refused() -> anyhow::Result<()> {
        let losses = |change: Value| {
            let mut all = json!({"documents": ["O"], "rows": 1, "columns": 1, "learning_rate": 1e-4, "losses": [1], "tolerance": 1e-2});
            for (name, value) in change.as_object().into_iter().flatten() {
                all[name] = value.clone();
            }
            json!({"losses": all})
        };
        let heads = |heads: Value, among: usize| json!({"heads": {"score": "induction", "heads": heads, "among": among}});
        let movers = |prompts: usize| json!({"name-movers": {"heads": ["1.0"], "against": false, "among": 2, "prompts": prompts}});
        let evaluation = json!({"task": "hellaswag", "measure": "acc", "value": 0.3, "tolerance": 0});
        for (question, part) in [
            (json!({"continuation": {"prompt": [], "ids": [1]}}), "must begin with \"prompt\""),
            (json!({"continuation": {"prompt": [1], "ids": [2, 3]}}), "must begin with \"prompt\""),
            (json!({"continuation": {"prompt": [1, 2], "ids": [1, 2]}}), "hold the prompt alone"),
            (losses(json!({"losses": []})), "one text and one number at least"),
            (losses(json!({"documents": []})), "one text and one number at least"),
            (losses(json!({"rows": 0})), "\"rows\" 0"),
            (losses(json!({"tolerance": -1})), "\"tolerance\" is -1"),
            (losses(json!({"learning_rate": 0})), "\"learning_rate\" is 0"),
            (heads(json!([]), 2), "lists none"),
            (heads(json!(["1.0", "1.0"]), 2), "lists 1.0 twice"),
            (heads(json!(["1.0", "1.1"]), 1), "raise \"among\""),
            (movers(0), "\"prompts\" is 0"),
            (json!({"evaluation": evaluation}), "\"tolerance\" is 0"),
        ] {
            let answer: PrintedAnswer =
                serde_json::from_value(json!({"source": "a paper", "question": question}))?;
            let error = answer.check().expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
        let question = json!({"continuation": {"prompt": [1], "ids": [1, 2]}});
        let answer: PrintedAnswer = serde_json::from_value(json!({"source": " ", "question": question}))?;
        assert!(answer.check().expect_err("no source").to_string().contains("\"source\" is empty"));
        Ok(())
    }
}
