//! Pairs of texts as a user gives them: one, several, or a file.

use super::pairs::{AnswerSides, of_one_side, pair};
use super::prompt::{Content, Prompt, single_token};
use super::read::refuse_device;
use super::text_lines::{TextLines, place};
use crate::observer::Observer;
use crate::open::Opened;
use anyhow::{Context, bail};
use gpt2_circuits::discovery::Pair;
use gpt2_model::analysis::Metric;
use gpt2_view::visible_token;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

/// An answer: a token's text or its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Answer {
    /// The token's text, with its space if it has one.
    Text(String),
    /// The token's id.
    Id(u32),
}

/// One answer or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Answers {
    /// The only one.
    One(Answer),
    /// Several: a logit difference takes their mean logit, a probability that of any.
    Several(Vec<Answer>),
}

impl Default for Answers {
    fn default() -> Self {
        Self::Several(vec![])
    }
}

/// A clean and a corrupted text, and the answers to the clean one. As JSON, it is a line that [`pair`] reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairInput {
    /// The text that the model should get right.
    pub clean: Content,
    /// A text with the same number of tokens that differs in what matters.
    pub corrupted: Content,
    /// The right answers to the clean text; there may be none where a metric asks for none.
    #[serde(default)]
    pub correct: Answers,
    /// The wrong ones. Without them, a single pair is measured by the log-probability of its right answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incorrect: Option<Answers>,
}

/// The pairs of a study.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PairsInput {
    /// The only pair.
    One(Box<PairInput>),
    /// A file with a pair on each line; `-` is standard input.
    File(PathBuf),
    /// Any number of pairs.
    These(Vec<PairInput>),
}

impl Default for PairsInput {
    fn default() -> Self {
        Self::These(vec![])
    }
}

impl Answer {
    /// The answer for a reader: its text with visible spaces, or its id.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Text(text) => visible_token(text),
            Self::Id(id) => id.to_string(),
        }
    }
}

impl Answers {
    /// All answers.
    #[must_use]
    pub fn all(&self) -> &[Answer] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => several,
        }
    }

    /// The answers for a reader: see [`Answer::shown`].
    #[must_use]
    pub fn shown(&self) -> String {
        self.all().iter().map(Answer::shown).collect::<Vec<_>>().join(", ")
    }

    /// The ids of the answers, which the option `name` gives.
    fn ids(&self, name: &str, opened: &Opened, observer: &dyn Observer) -> anyhow::Result<Vec<u32>> {
        let option = opened.spelling.option(name);
        let id = |answer: &Answer| match answer {
            Answer::Text(text) => single_token(opened, &option, text, observer),
            Answer::Id(id) => Ok(*id),
        };
        self.all().iter().map(id).collect()
    }
}

impl PairInput {
    /// The pair of a study that has no other; options name its answers in errors.
    fn read(&self, opened: &Opened, sides: AnswerSides, observer: &dyn Observer) -> anyhow::Result<Pair> {
        let clean = Prompt::new(opened, &self.clean, "the clean prompt", observer)?.ids;
        let corrupt = Prompt::new(opened, &self.corrupted, "the corrupted prompt", observer)?.ids;
        if clean.len() != corrupt.len() {
            let spelled = |ids: &[u32]| {
                opened.shown(ids).iter().map(|token| visible_token(token)).collect::<Vec<_>>().join(" ")
            };
            bail!(
                "the clean prompt has {} tokens and the corrupted one {}, so their positions do not correspond; reword one of \
                 them:\n  {}\n  {}",
                clean.len(),
                corrupt.len(),
                spelled(&clean),
                spelled(&corrupt)
            );
        }
        let answers = self.correct.ids("answer", opened, observer)?;
        let against = self.incorrect.as_ref();
        let against = against.map(|wrong| wrong.ids("against", opened, observer)).transpose()?;
        let option = |name| opened.spelling.option(name);
        let metric = match (&answers[..], against) {
            ([right], Some(wrong)) if wrong == [*right] => bail!(
                "{} and {} are the same token: their difference is always 0",
                option("answer"),
                option("against")
            ),
            ([_, ..], Some(against)) => Metric::LogitDifference { answers, against },
            ([right], None) => Metric::LogProb(*right),
            ([], _) if sides.right => bail!("{}: give the right answer", option("answer")),
            (_, None) if sides.wrong => {
                bail!("{}: several right answers need wrong ones, too", option("against"))
            }
            _ => of_one_side(answers),
        };
        let pair = Pair { clean, corrupt, metric };
        pair.check(opened.model.config())?;
        Ok(pair)
    }
}

impl PairsInput {
    /// The pair, if it is one by itself.
    #[must_use]
    pub fn one(&self) -> Option<&PairInput> {
        match self {
            Self::One(pair) => Some(pair),
            _ => None,
        }
    }

    /// The pairs as tokens, at least one, with the answers that they have. They need those of the `sides` that their metric reads.
    ///
    /// # Errors
    /// When there is none, a text or an answer is not of this vocabulary, an answer is not one token, or a file cannot be read.
    pub fn read(
        &self,
        opened: &Opened,
        sides: AnswerSides,
        observer: &dyn Observer,
    ) -> anyhow::Result<Vec<Pair>> {
        let of_line = |line: &str| {
            pair(line, sides, &|| Ok(opened.tokenizer()?), opened.model.config(), opened.first_token)
        };
        match self {
            Self::One(pair) => Ok(vec![pair.read(opened, sides, observer)?]),
            Self::These(these) => {
                if these.is_empty() {
                    bail!("{}: there is no pair", opened.spelling.option("pairs"));
                }
                let of = |(i, pair): (usize, &PairInput)| {
                    of_line(&serde_json::to_string(pair)?).with_context(|| format!("pair {i}"))
                };
                these.iter().enumerate().map(of).collect()
            }
            Self::File(path) => {
                refuse_device(path).with_context(|| place(path, None))?;
                let mut lines = TextLines::open(path, None, opened.spelling, observer)?;
                let mut pairs = vec![];
                while let Some((number, line)) = lines.next_line()? {
                    pairs.push(of_line(&line).with_context(|| place(path, Some(number)))?);
                }
                if pairs.is_empty() {
                    bail!("{}: holds no pair; `gpt2 pairs` writes some", place(path, None));
                }
                Ok(pairs)
            }
        }
    }

    /// The source of the pairs that were read, and their fingerprint, for the outputs of a run.
    #[must_use]
    pub fn facts(&self, pairs: &[Pair]) -> Value {
        let fingerprint = fingerprint(pairs);
        match self {
            Self::One(pair) => {
                json!({ "pairs": 1, "answer": pair.correct, "against": pair.incorrect, "fingerprint": fingerprint })
            }
            Self::File(path) => {
                json!({ "pairs": pairs.len(), "pairs_of": path, "fingerprint": fingerprint })
            }
            Self::These(_) => json!({ "pairs": pairs.len(), "fingerprint": fingerprint }),
        }
    }
}

fn fingerprint(pairs: &[Pair]) -> String {
    let mut hash = DefaultHasher::new();
    for Pair { clean, corrupt, metric } in pairs {
        (clean, corrupt).hash(&mut hash);
        match metric {
            Metric::LogitDifference { answers, against } | Metric::Probability { answers, against } => {
                (answers, against).hash(&mut hash);
            }
            Metric::LogProb(token) | Metric::Logit(token) => token.hash(&mut hash),
            _ => {}
        }
    }
    format!("{:016x}", hash.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pair_several_and_a_file_are_told_apart() -> serde_json::Result<()> {
        let one = json!({ "clean": "a b", "corrupted": [1, 2], "correct": " c", "incorrect": [3, " d"] });
        let parsed: PairsInput = serde_json::from_value(one.clone())?;
        let pair = parsed.one().expect("one pair");
        assert_eq!((&pair.clean, &pair.corrupted), (&Content::from("a b"), &Content::Ids(vec![1, 2])));
        assert_eq!(pair.correct.shown(), "·c");
        assert_eq!(pair.incorrect.as_ref().map(Answers::shown).as_deref(), Some("3, ·d"));
        assert_eq!(serde_json::to_value(&parsed)?, one);
        let several: PairsInput = serde_json::from_value(json!([one, one]))?;
        assert!(matches!(&several, PairsInput::These(pairs) if pairs.len() == 2), "{several:?}");
        let file: PairsInput = serde_json::from_value(json!("pairs.jsonl"))?;
        assert_eq!(file, PairsInput::File("pairs.jsonl".into()));
        assert_eq!(serde_json::from_value::<PairsInput>(json!([]))?, PairsInput::default());
        Ok(())
    }
}
