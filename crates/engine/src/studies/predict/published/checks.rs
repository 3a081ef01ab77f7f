//! The checks: each answer beside what this program finds.

use super::answers::{HeadScore, PrintedAnswer, Question, of_model};
use super::losses::{Steps, losses};
use crate::provenance::RunProvenance;
use crate::spelling::Spelling;
use crate::studies::predict::eval;
use crate::studies::study::Run;
use crate::texts::{Answer, Answers, Content, Task, single_token};
use anyhow::{Context, bail};
use candle_core::Tensor;
use gpt2_loader::LoadError;
use gpt2_model::ForwardArgs;
use gpt2_model::analysis::{Centering, Metric, RepeatedTokens, direct_attribution, head_scores};
use serde::Serialize;
use std::path::PathBuf;

/// The options of the checks.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The model, as the file of answers calls it.
    pub model: String,
    /// A file of answers instead of the program's own.
    pub answers: Option<PathBuf>,
    /// Whether to run standard evaluations, too: they need data sets of the Hub, and take up to hours.
    pub evaluations: bool,
}

/// All checks of a model.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The facts that they depend on.
    pub provenance: RunProvenance,
    /// The model, as the file of answers calls it.
    pub model: String,
    /// Whether every answer that was checked is right.
    pub passed: bool,
    /// The number of answers that were not checked.
    pub unchecked: usize,
    /// Each answer.
    pub answers: Vec<Checked>,
}

/// An answer beside what this program finds.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// The question in words.
    pub question: String,
    /// The printed answer.
    pub expected: String,
    /// The answer of this program, or the reason why it was not checked.
    pub found: String,
    /// Whether they agree.
    pub state: AnswerState,
    /// The place where the answer was printed.
    pub source: String,
    /// Whether it was not checked because nobody asked for that.
    #[serde(skip)]
    pub is_unasked: bool,
}

/// The state of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerState {
    /// It agrees.
    Right,
    /// It does not.
    Wrong,
    /// It was not checked.
    Unchecked,
}

/// The answer of this program, and whether it is right.
struct FoundAnswer {
    found: String,
    is_right: bool,
}

/// The seed of random tokens and prompts.
const SEED: u64 = 0;
/// The texts of repeated tokens, and their tokens and repeats.
const TEXTS: usize = 10;
const REPEATED: (usize, usize) = (25, 4);

impl Options {
    /// Whether there are answers about the model, before it is fetched.
    ///
    /// # Errors
    /// When the file of answers is damaged or has none.
    pub fn check(&self, observer: &dyn crate::observer::Observer) -> anyhow::Result<()> {
        let answers = of_model(&self.model, self.answers.as_deref(), observer)?;
        let is_evaluation = |answer: &PrintedAnswer| matches!(answer.question, Question::Evaluation { .. });
        if !self.evaluations && answers.iter().all(is_evaluation) {
            let option = Spelling::Flags.switch("evaluations");
            bail!("all answers about {} are evaluations, which take hours: give {option}", self.model);
        }
        Ok(())
    }

    /// Checks every answer.
    ///
    /// # Errors
    /// When the file of answers is damaged, a question does not fit the model, or the observer ends it.
    pub fn run(&self, run: &Run) -> anyhow::Result<Report> {
        let answers = of_model(&self.model, self.answers.as_deref(), run.observer)?;
        let all = answers.len() as u64;
        let mut checked = vec![];
        for (number, answer) in answers.iter().enumerate() {
            run.observer.step("answers", number as u64, Some(all))?;
            checked.push(self.checked(run, answer).with_context(|| answer.question.asked())?);
        }
        run.observer.step("answers", all, Some(all))?;
        let count = |state| checked.iter().filter(|one: &&Checked| one.state == state).count();
        Ok(Report {
            provenance: RunProvenance::of_tokens(run.opened, run.opened.model.config().n_positions)?,
            model: self.model.clone(),
            passed: count(AnswerState::Wrong) == 0 && count(AnswerState::Right) > 0,
            unchecked: count(AnswerState::Unchecked),
            answers: checked,
        })
    }

    fn checked(&self, run: &Run, answer: &PrintedAnswer) -> anyhow::Result<Checked> {
        let question = &answer.question;
        let is_unasked = matches!(question, Question::Evaluation { .. }) && !self.evaluations;
        let result = match question {
            _ if is_unasked => {
                let option = run.opened.spelling.switch("evaluations");
                Err(format!("not asked for: {option}"))
            }
            _ => match found(run, question) {
                // The data set is out of reach; the model was not.
                Err(error) if is_out_of_reach(&error) => Err(format!("{error:#}")),
                result => Ok(result?),
            },
        };
        let (found, state) = match result {
            Ok(FoundAnswer { found, is_right: true }) => (found, AnswerState::Right),
            Ok(FoundAnswer { found, is_right: false }) => (found, AnswerState::Wrong),
            Err(why) => (why, AnswerState::Unchecked),
        };
        let source = answer.source.clone();
        let expected = question.expected();
        Ok(Checked { question: question.asked(), expected, found, state, source, is_unasked })
    }
}

/// Whether an error says that the Hub cannot be reached.
#[must_use]
pub fn is_out_of_reach(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<LoadError>().is_some_and(LoadError::is_out_of_reach))
}

impl Question {
    fn asked(&self) -> String {
        match self {
            Self::Continuation { prompt, .. } => format!("greedy continuation of {prompt:?}"),
            Self::Losses { losses, rows, columns, learning_rate, .. } => format!(
                "losses of {} steps on one batch of {rows} rows of {columns}, AdamW {learning_rate:.0e}",
                losses.len()
            ),
            Self::Heads { score, among, .. } => {
                format!("heads among the first {among} by {}", score.name())
            }
            Self::NameMovers { against, among, .. } => {
                let what = if *against { "against" } else { "for" };
                format!("heads among the first {among} that speak {what} the right name (IOI)")
            }
            Self::Evaluation { task, measure, .. } => format!("{measure} of {task}"),
        }
    }

    fn expected(&self) -> String {
        match self {
            Self::Continuation { ids, .. } => format!("{ids:?}"),
            Self::Losses { losses, tolerance, .. } => format!("{} ± {tolerance}", listed(losses)),
            Self::Heads { heads, .. } | Self::NameMovers { heads, .. } => heads.join(", "),
            Self::Evaluation { value, tolerance, .. } => format!("{value} ± {tolerance}"),
        }
    }
}

impl HeadScore {
    fn name(self) -> &'static str {
        match self {
            Self::PreviousToken => "previous-token score",
            Self::DuplicateToken => "duplicate-token score",
            Self::Induction => "induction score",
        }
    }
}

fn listed(losses: &[f64]) -> String {
    losses.iter().map(|loss| format!("{loss:.6}")).collect::<Vec<_>>().join(" ")
}

fn found(run: &Run, question: &Question) -> anyhow::Result<FoundAnswer> {
    match question {
        Question::Continuation { prompt, ids } => {
            let found = continued(run, prompt, ids.len())?;
            Ok(FoundAnswer { is_right: found == *ids, found: format!("{found:?}") })
        }
        Question::Losses { documents, rows, columns, learning_rate, losses: expected, tolerance } => {
            let ids = tokens(run, documents)?;
            let steps = Steps {
                count: expected.len(),
                rows: *rows,
                columns: *columns,
                learning_rate: *learning_rate,
            };
            let all = expected.len() as u64;
            let found = losses(run.opened, &ids, &steps, |step| {
                run.observer.step("training steps", step as u64, Some(all))
            })?;
            let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= *tolerance);
            Ok(FoundAnswer { is_right: near, found: listed(&found) })
        }
        Question::Heads { score, heads, among } => {
            let scores = scores(run, *score)?;
            Ok(ranked(&scores, heads, *among))
        }
        Question::NameMovers { heads, against, among, prompts } => {
            let mut shares = shares(run, *prompts)?;
            if *against {
                for (_, share) in &mut shares {
                    *share = -*share;
                }
            }
            Ok(ranked(&shares, heads, *among))
        }
        Question::Evaluation { task, measure, value, tolerance } => {
            let options =
                eval::Options { tasks: vec![task.clone()], bootstrap: 0, ..eval::Options::default() };
            let report = options.evaluate(run, &gpt2_parallel::Alone)?;
            let found = report.tasks.last().and_then(|result| result.value(measure));
            let found = found.with_context(|| format!("{task} has no measure {measure}"))?;
            Ok(FoundAnswer { is_right: (found - value).abs() <= *tolerance, found: format!("{found:.4}") })
        }
    }
}

/// The tokens of a prompt with the most probable continuation, `length` in all.
fn continued(run: &Run, prompt: &[u32], length: usize) -> anyhow::Result<Vec<u32>> {
    let opened = run.opened;
    let n = opened.model.config().n_positions;
    if prompt.is_empty() || length > n {
        bail!("expected a prompt, and {n} tokens at most with its continuation; they are {length}");
    }
    let mut ids = prompt.to_vec();
    while ids.len() < length {
        let input = opened.input_ids(&ids)?; // (1, T)
        let args = ForwardArgs { last_logits_only: true, ..ForwardArgs::default() };
        let logits = opened.model.forward(&input, args)?.logits.flatten_all()?; // (V)
        run.check_finite(&input, None, [&logits])?;
        ids.push(logits.argmax(0)?.to_scalar::<u32>()?);
    }
    Ok(ids)
}

/// The tokens of documents, each behind the end-of-text token.
fn tokens(run: &Run, documents: &[String]) -> anyhow::Result<Vec<u32>> {
    let tokenizer = run.opened.tokenizer()?;
    let end = tokenizer.end_of_text().context("the vocabulary has no end-of-text token")?;
    let mut ids = vec![];
    for document in documents {
        ids.push(end);
        ids.extend(tokenizer.encode(document)?);
    }
    Ok(ids)
}

/// Each head with its mean score on repeated random tokens.
fn scores(run: &Run, score: HeadScore) -> anyhow::Result<Vec<(String, f64)>> {
    let config = run.opened.model.config();
    let bos = config.bos_token_id.filter(|&id| (id as usize) < config.vocab_size);
    let texts = RepeatedTokens::random(bos, REPEATED, TEXTS, config.vocab_size, SEED);
    let found = head_scores(&run.opened.model.transformer, &texts, None)?;
    let mut all = vec![];
    for (layer, heads) in found.iter().enumerate() {
        for (head, scores) in heads.iter().enumerate() {
            let mean = match score {
                HeadScore::PreviousToken => scores.previous_token.mean,
                HeadScore::DuplicateToken => scores.duplicate_token.mean,
                HeadScore::Induction => scores.induction.mean,
            };
            all.push((format!("{layer}.{head}"), mean));
        }
    }
    Ok(all)
}

/// Each head with what it adds to the right name's logit less the other name's, as a mean over prompts of the IOI task.
fn shares(run: &Run, prompts: usize) -> anyhow::Result<Vec<(String, f64)>> {
    let opened = run.opened;
    let pairs = Task::Ioi.pairs(opened.tokenizer()?, prompts.max(1), SEED)?;
    let token = |answers: &Answers| -> anyhow::Result<u32> {
        match answers.all().first() {
            Some(Answer::Text(text)) => single_token(opened, "a name", text, run.observer),
            Some(Answer::Id(id)) => Ok(*id),
            None => bail!("a pair has no answer"),
        }
    };
    let mut sum: Option<Tensor> = None;
    for pair in &pairs {
        let Content::Text(text) = &pair.clean else { bail!("a pair has no text") };
        let against = pair.incorrect.as_ref().context("a pair has no wrong answer")?;
        let metric = Metric::difference(token(&pair.correct)?, token(against)?);
        let input = opened.input_ids(&opened.tokenizer()?.encode(text)?)?;
        let heads = direct_attribution(&opened.model, &input, &metric, Centering::default(), None)?.heads;
        sum = Some(match sum {
            Some(sum) => (sum + heads)?,
            None => heads,
        });
    }
    let rows = sum.context("there is no prompt")?.to_vec2::<f64>()?;
    let heads = rows.into_iter().enumerate();
    let named = heads.flat_map(|(layer, heads)| {
        heads.into_iter().enumerate().map(move |(head, share)| (format!("{layer}.{head}"), share))
    });
    Ok(named.map(|(name, share)| (name, share / pairs.len() as f64)).collect())
}

/// Whether heads are among the first by a number.
fn ranked(numbers: &[(String, f64)], heads: &[String], among: usize) -> FoundAnswer {
    let mut order: Vec<&(String, f64)> = numbers.iter().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    let first = &order[..among.min(order.len())];
    let is_right = heads.iter().all(|head| first.iter().any(|(name, _)| name == head));
    let found: Vec<String> = first.iter().map(|(name, number)| format!("{name} ({number:.2})")).collect();
    FoundAnswer { found: found.join(", "), is_right }
}
