//! The answers of this program to the questions.

use super::answers::{HeadScore, Question};
use super::losses::{Steps, losses};
use crate::studies::predict::eval::{self, TaskResult};
use crate::studies::study::Run;
use crate::texts::{Answer, Answers, Content, Task, single_token};
use anyhow::{Context, anyhow, bail};
use candle_core::Tensor;
use gpt2_model::ForwardArgs;
use gpt2_model::analysis::{Centering, Metric, RepeatedTokens, direct_attribution, head_scores};
use std::collections::BTreeMap;

/// The seed of random tokens and prompts.
const SEED: u64 = 0;
/// The texts of repeated tokens, and their tokens and repeats.
const TEXTS: usize = 10;
const REPEATED: (usize, usize) = (25, 4);

/// The answer of this program, and whether it is right.
pub(super) struct FoundAnswer {
    pub(super) found: String,
    pub(super) is_right: bool,
}

/// The results of the tasks that have run, or why one could not: several answers are about measures of one task.
pub(super) type Evaluations = BTreeMap<String, Result<TaskResult, String>>;

/// Losses with six decimals.
pub(super) fn listed(losses: &[f64]) -> String {
    losses.iter().map(|loss| format!("{loss:.6}")).collect::<Vec<_>>().join(" ")
}

/// This program's answer to a question.
///
/// # Errors
/// When the question does not fit the model, a data set cannot be read, a number is not finite, or the observer ends it.
pub(super) fn found(
    run: &Run,
    question: &Question,
    evaluations: &mut Evaluations,
) -> anyhow::Result<FoundAnswer> {
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
            ranked(&scores, heads, *among)
        }
        Question::NameMovers { heads, against, among, prompts } => {
            let mut shares = shares(run, *prompts)?;
            if *against {
                for (_, share) in &mut shares {
                    *share = -*share;
                }
            }
            ranked(&shares, heads, *among)
        }
        Question::Evaluation { task, measure, value, tolerance } => {
            let evaluated = evaluations.entry(task.clone());
            let evaluated =
                evaluated.or_insert_with(|| evaluated_task(run, task).map_err(|error| format!("{error:#}")));
            let result = evaluated.as_ref().map_err(|why| anyhow!("{why}"))?;
            let found = result.value(measure).with_context(|| {
                let names: Vec<&str> = result.measures.iter().map(|one| one.name).collect();
                format!("{task} has no measure {measure}; it has {}", names.join(", "))
            })?;
            Ok(FoundAnswer { is_right: (found - value).abs() <= *tolerance, found: format!("{found:.4}") })
        }
    }
}

/// The result of a task, or of the group that it names.
fn evaluated_task(run: &Run, task: &str) -> anyhow::Result<TaskResult> {
    let options = eval::Options { tasks: vec![task.to_owned()], bootstrap: 0, ..eval::Options::default() };
    let mut report = options.evaluate(run, &gpt2_parallel::Alone)?;
    report.tasks.pop().context("no task has run")
}

/// The tokens of a prompt with the most probable continuation, `length` in all.
fn continued(run: &Run, prompt: &[u32], length: usize) -> anyhow::Result<Vec<u32>> {
    let opened = run.opened;
    let n = opened.model.config().n_positions;
    if length > n {
        bail!("the prompt and its continuation have {length} tokens, and the model reads {n} at most");
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
    let pairs = Task::Ioi.pairs(opened.tokenizer()?, prompts, SEED)?;
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
fn ranked(numbers: &[(String, f64)], heads: &[String], among: usize) -> anyhow::Result<FoundAnswer> {
    if among >= numbers.len() {
        bail!(
            "the model has {} heads, which are all among the first {among}; lower \"among\"",
            numbers.len()
        );
    }
    if let Some(head) = heads.iter().find(|head| numbers.iter().all(|(name, _)| name != *head)) {
        bail!("the model has no head {head}");
    }
    if let Some((head, number)) = numbers.iter().find(|(_, number)| !number.is_finite()) {
        bail!("the number of head {head} is {number}; expected a finite one");
    }
    let mut order: Vec<&(String, f64)> = numbers.iter().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    let first = &order[..among];
    let is_right = heads.iter().all(|head| first.iter().any(|(name, _)| name == head));
    let found: Vec<String> = first.iter().map(|(name, number)| format!("{name} ({number:.2})")).collect();
    Ok(FoundAnswer { found: found.join(", "), is_right })
}
