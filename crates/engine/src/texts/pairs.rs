//! Data sets of pairs: a line of JSON each, as ids and a metric.

use anyhow::{Context, anyhow, bail};
use gpt2_circuits::discovery::Pair;
use gpt2_loader::Tokenizer;
use gpt2_model::Config;
use gpt2_model::analysis::Metric;
use serde_json::{Map, Value};

/// The most tokens that an error spells, and the longest value that it shows, in characters.
const MOST_SPELLED: usize = 100;
const LONGEST_SHOWN: usize = 100;

const EXAMPLE: &str = r#"{"clean": "…", "corrupted": "…", "correct": " Mary", "incorrect": " John"}"#;

/// The answers that a metric reads.
#[derive(Debug, Clone, Copy)]
pub struct AnswerSides {
    /// Right ones: there must be at least one.
    pub right: bool,
    /// Wrong ones: each of many pairs needs one, a pair by itself only if it has several right ones.
    pub wrong: bool,
}

/// Carries right answers until their metric takes its place.
pub(super) fn of_one_side(answers: Vec<u32>) -> Metric {
    if answers.is_empty() { Metric::LogProb(0) } else { Metric::Probability { answers, against: vec![] } }
}

/// A pair of texts from a line of JSON: `clean` and `corrupted` are texts or lists of ids, `correct` and `incorrect` a token's text,
/// its id, or a list of either; answers of other `sides` are not read. `first_token` stands before every text, but not before ids. Other names are left alone. `tokenizer` is asked only where there is text.
///
/// # Errors
/// When it is not such an object, a text or an answer is not of this vocabulary, an answer is not one token, an answer is both right
/// and wrong, or for what [`Pair::check`] refuses.
pub fn pair<'a>(
    line: &str,
    sides: AnswerSides,
    tokenizer: &dyn Fn() -> anyhow::Result<&'a Tokenizer>,
    config: &Config,
    first_token: Option<u32>,
) -> anyhow::Result<Pair> {
    let value: Value = serde_json::from_str(line).map_err(|error| {
        // The parser sees one line, and calls it line 1.
        let text = error.to_string();
        let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
        anyhow!("not JSON: {reason}; expected {EXAMPLE}")
    })?;
    let Value::Object(fields) = value else { bail!("not an object; expected {EXAMPLE}") };
    let n = config.n_positions;
    let answers_of = |name, is_read: bool| {
        if is_read { tokens(&fields, name, tokenizer, n) } else { Ok(vec![]) }
    };
    let answers = answers_of("correct", sides.right)?;
    let against = answers_of("incorrect", sides.wrong)?;
    let text = |name| match field(&fields, name)? {
        Value::String(text) => {
            let room = n - usize::from(first_token.is_some());
            Ok(first_token.into_iter().chain(encoded(tokenizer()?, name, text, room)?).collect())
        }
        Value::Array(ids) => ids.iter().map(|id| self::id(id, name)).collect(),
        _ => bail!("{name:?} is neither a text nor a list of ids"),
    };
    let pair = Pair {
        clean: text("clean")?,
        corrupt: text("corrupted")?,
        metric: if answers.is_empty() || against.is_empty() {
            of_one_side(answers)
        } else {
            Metric::LogitDifference { answers, against }
        },
    };
    if pair.clean.len() != pair.corrupt.len()
        && let Ok(tokenizer) = tokenizer()
    {
        bail!(
            "the clean text has {} tokens and the corrupted one {}, so their positions do not correspond; reword one of them:\n  {}\n  {}",
            pair.clean.len(),
            pair.corrupt.len(),
            spelled(&pair.clean, tokenizer),
            spelled(&pair.corrupt, tokenizer)
        );
    }
    pair.check(config)?;
    Ok(pair)
}

fn field<'a>(fields: &'a Map<String, Value>, name: &str) -> anyhow::Result<&'a Value> {
    fields.get(name).with_context(|| format!("no {name:?}; expected {EXAMPLE}"))
}

/// The ids of one answer, or of several.
fn tokens<'a>(
    fields: &Map<String, Value>,
    name: &str,
    tokenizer: &dyn Fn() -> anyhow::Result<&'a Tokenizer>,
    n: usize,
) -> anyhow::Result<Vec<u32>> {
    let one = |answer: &Value| match answer {
        Value::String(text) => token(tokenizer()?, name, text, n),
        other => id(other, name),
    };
    match field(fields, name)? {
        Value::Array(all) if all.is_empty() => bail!("{name:?} is an empty list: give at least one answer"),
        Value::Array(all) => all.iter().map(one).collect(),
        only => Ok(vec![one(only)?]),
    }
}

fn id(value: &Value, name: &str) -> anyhow::Result<u32> {
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
    id.with_context(|| format!("{name:?} holds {}, expected a text or an id", cut(value)))
}

/// The single token that spells `text`.
fn token(tokenizer: &Tokenizer, name: &str, text: &str, n: usize) -> anyhow::Result<u32> {
    let ids = encoded(tokenizer, name, text, n)?;
    match ids[..] {
        [id] => Ok(id),
        _ => bail!(
            "{name:?} {} is {} tokens ({}), expected one; a word inside a text begins with its space",
            cut(&Value::from(text)),
            ids.len(),
            spelled(&ids, tokenizer)
        ),
    }
}

/// The ids of a text that the vocabulary spells as it is.
fn encoded(tokenizer: &Tokenizer, name: &str, text: &str, n: usize) -> anyhow::Result<Vec<u32>> {
    let found = super::encoded::encode_within(tokenizer, text, name, n)?;
    found.note.map_or(Ok(found.ids), |note| Err(anyhow!("{note}")))
}

/// Tokens as a reader tells them apart.
pub(crate) fn spelled(ids: &[u32], tokenizer: &Tokenizer) -> String {
    let shown = &ids[..ids.len().min(MOST_SPELLED)];
    let mut tokens: Vec<String> = tokenizer.spelled(shown).iter().map(|token| format!("{token:?}")).collect();
    if ids.len() > shown.len() {
        tokens.push(format!("... and {} more", ids.len() - shown.len()));
    }
    tokens.join(" ")
}

/// A value of JSON, of which a long one is cut.
fn cut(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(LONGEST_SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
