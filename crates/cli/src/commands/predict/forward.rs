//! `gpt2 forward`: the next token's probabilities, and how surprising the prompt is.

use crate::interventions::args::{holds_one_run, nothing_to_compare};
use crate::output;
use crate::output::written_files::Outputs;
use crate::results::exports;
use crate::results::exports::PointArgs;
use crate::study::args::StudyArgs;
use crate::study::over_texts::{Job, PromptsArgs, Ran};
use anyhow::bail;
use candle_core::{D, DType, Tensor};
use candle_nn::ops::log_softmax;
use gpt2_engine::RunProvenance;
use gpt2_engine::interventions::Applied;
use gpt2_engine::studies::Points;
use gpt2_engine::texts::Prompt;
use gpt2_engine::{Label, Opened};
use gpt2_model::analysis::highest;
use gpt2_model::hooks::Chain;
use gpt2_view::Align::{Left, Right};
use gpt2_view::Table;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
With --texts, results come one after another, with --json as lines of JSON, and --export holds LINE/NAME for each text.

Examples:
  gpt2 forward \"To be, or not to\"
  gpt2 forward --model gpt2 --json --ids 15496,11,314
  gpt2 forward \"To be, or not to\" --ablate 1.2,1.3 --block 5:2   # ablate two heads, hide token 2 from token 5
  gpt2 forward \"To be, or not to\" --ablate '1.*' --compare   # what layer 1's heads change
  gpt2 forward \"O Romeo\" --export run.safetensors --export-point blocks.1.attn.hook_z,blocks.*.hook_resid_post
  gpt2 forward --texts prompts.jsonl --json   # a line of JSON for each text")]
pub(crate) struct ForwardArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptsArgs,
    /// How many next tokens to show
    #[arg(short = 'k', long, default_value_t = 10, value_name = "K")]
    pub(crate) top_k: usize,
    /// Show the plain run beside the one with interventions
    #[arg(long)]
    pub(crate) compare: bool,
    /// Write the logits and hidden states to a .safetensors file
    #[arg(long, value_name = "FILE")]
    pub(crate) export: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) points: PointArgs,
    /// Let --export replace an existing file
    #[arg(long, requires = "export")]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) study: StudyArgs,
}

#[derive(Serialize)]
struct Report {
    provenance: RunProvenance,
    model: String,
    #[serde(flatten)]
    run: OneRun,
    /// The run without interventions, if the two are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    plain: Option<OneRun>,
    /// The most probable next tokens of both, those of the plain run first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<TokenInBothRuns>,
}

#[derive(Serialize)]
struct OneRun {
    tokens: Vec<ScoredToken>,
    /// exp of the mean negative log-probability of all tokens but the first; `None` for a single token.
    perplexity: Option<f64>,
    next: Vec<LikelyToken>,
    /// The log-probability of each token of the vocabulary after the prompt.
    #[serde(skip)]
    last: Vec<f32>,
}

/// The probabilities of a next token in both runs.
#[derive(Serialize)]
struct TokenInBothRuns {
    id: u32,
    token: Label,
    plain: f32,
    changed: f32,
}

#[derive(Serialize)]
struct ScoredToken {
    id: u32,
    token: Label,
    /// In nats, given the tokens before it; `None` for the first token.
    log_prob: Option<f32>,
}

#[derive(Serialize)]
struct LikelyToken {
    id: u32,
    token: Label,
    probability: f32,
    log_prob: f32,
}

pub(crate) fn run(args: &ForwardArgs) -> anyhow::Result<()> {
    if args.compare && args.export.is_some() {
        return Err(holds_one_run("--export"));
    }
    let text = args.prompt.read()?;
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(path) = &args.export {
        exports::add_to(&mut outputs, path)?;
    }
    let opened = args.study.open_for(args.prompt.inputs(), &outputs)?;
    let points = args.points.of(&opened)?;
    let prompts = &args.prompt;
    let study = &args.study;
    let export = args.export.as_deref();
    let job = Job { prompts, study, opened: &opened, chosen: None, export, outputs };
    job.run(text, |prompt, changes| forward(args, &opened, &points, prompt, changes), print)
}

fn forward(
    args: &ForwardArgs,
    opened: &Opened,
    points: &Points,
    prompt: &Prompt,
    changes: &Applied,
) -> anyhow::Result<Ran<Report>> {
    if args.compare && changes.texts.is_empty() {
        return Err(nothing_to_compare());
    }
    let recorder = points.recorder();
    let forward = gpt2_model::ForwardArgs {
        output_hidden_states: args.export.is_some(),
        hooks: Some(&Chain(&[&changes.list, &recorder])),
        ..Default::default()
    };
    let ids = opened.input_ids(&prompt.ids)?; // (1, T)
    let output = opened.model.forward(&ids, forward)?;
    let logits = output.logits.to_dtype(DType::F32)?; // (1, T, V)
    let check = |x: &Tensor| args.study.finite.check(opened, &ids, Some(&changes.list), [x]);
    check(&logits)?;

    let mut tensors = vec![];
    if args.export.is_some() {
        let hidden_states = Tensor::cat(&output.transformer.hidden_states, 0)?.to_dtype(DType::F32)?; // (L + 1, T, C)
        check(&hidden_states)?;
        tensors = vec![("logits".to_owned(), logits.clone()), ("hidden_states".to_owned(), hidden_states)];
        points.add_to(&mut tensors, &recorder, check)?;
    }
    let made_by = RunProvenance::new(opened, &prompt.ids)?.under(changes);
    let run = one_run(args, opened, prompt, &logits.squeeze(0)?)?;
    let mut plain = None;
    let mut changed = vec![];
    if args.compare {
        let logits = opened.model.forward(&ids, gpt2_model::ForwardArgs::default())?.logits;
        let logits = logits.to_dtype(DType::F32)?;
        args.study.finite.check(opened, &ids, None, [&logits])?;
        let without = one_run(args, opened, prompt, &logits.squeeze(0)?)?;
        changed = differences(&without, &run);
        plain = Some(without);
    }
    let report = Report { provenance: made_by, model: opened.name.clone(), run, plain, changes: changed };
    Ok(Ran::new(report, tensors))
}

/// The next tokens of both runs, each once.
fn differences(plain: &OneRun, changed: &OneRun) -> Vec<TokenInBothRuns> {
    let known = |id: u32| plain.next.iter().any(|token| token.id == id);
    let others = changed.next.iter().filter(|token| !known(token.id));
    let probability = |run: &OneRun, id: u32| run.last[id as usize].exp();
    let both = plain.next.iter().chain(others).map(|token| TokenInBothRuns {
        id: token.id,
        token: token.token.clone(),
        plain: probability(plain, token.id),
        changed: probability(changed, token.id),
    });
    both.collect()
}

/// `logits` (T, V)
fn one_run(args: &ForwardArgs, opened: &Opened, prompt: &Prompt, logits: &Tensor) -> anyhow::Result<OneRun> {
    let t = prompt.ids.len();
    let log_probs = log_softmax(logits, D::Minus1)?; // (T, V)
    let mut given = vec![None];
    if t > 1 {
        let next = Tensor::new(&prompt.ids[1..], logits.device())?.unsqueeze(1)?; // (T - 1, 1)
        let scores = log_probs.narrow(0, 0, t - 1)?.gather(&next, 1)?.flatten_all()?;
        given.extend(scores.to_vec1::<f32>()?.into_iter().map(Some));
    }
    let sum: f64 = given.iter().flatten().map(|&l| f64::from(l)).sum();
    let perplexity = (t > 1).then(|| (-sum / (t - 1) as f64).exp());
    if perplexity.is_some_and(f64::is_infinite) && !args.study.finite.allow_nonfinite {
        bail!(
            "the perplexity is not finite: the prompt's tokens are all but impossible under this model, with a mean \
             log-probability of {:.0} nats; are the weights damaged? --allow-nonfinite shows the result anyway",
            sum / (t - 1) as f64
        )
    }

    let last = log_probs.get(t - 1)?.to_vec1::<f32>()?; // (V)
    let order = highest(&last, args.top_k);
    let candidate = |&id: &u32| {
        let log_prob = last[id as usize];
        LikelyToken { id, token: opened.label(id), probability: log_prob.exp(), log_prob }
    };
    let next = order.iter().map(candidate).collect();
    let scored = |(&id, log_prob)| ScoredToken { id, token: opened.label(id), log_prob };
    let tokens = prompt.ids.iter().zip(given).map(scored).collect();
    Ok(OneRun { tokens, perplexity, next, last })
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}\n", report.provenance.first_line())?;
    if let Some(plain) = &report.plain {
        return print_both(&mut out, plain, report);
    }
    let Report { run, .. } = report;
    let mut prompt = Table::new(&[("position", Right), ("id", Right), ("token", Left), ("log-prob", Right)]);
    for (i, t) in run.tokens.iter().enumerate() {
        let log_prob = t.log_prob.map_or_else(String::new, |l| format!("{l:.3}"));
        prompt.row(vec![i.to_string(), t.id.to_string(), t.token.to_string(), log_prob]);
    }
    writeln!(out, "{}", prompt.render())?;
    if let Some(perplexity) = run.perplexity {
        writeln!(out, "perplexity {perplexity:.3} over {} tokens\n", run.tokens.len() - 1)?;
    }
    let mut next = Table::new(&[("next token", Left), ("id", Right), ("probability", Right)]);
    for c in &run.next {
        next.row(vec![c.token.to_string(), c.id.to_string(), format!("{:.4}", c.probability)]);
    }
    write!(out, "{}", next.render())?;
    Ok(())
}

/// The plain run, the changed one, and the change.
fn print_both(out: &mut impl Write, plain: &OneRun, report: &Report) -> anyhow::Result<()> {
    let runs = [("plain", Right), ("changed", Right), ("change", Right)];
    let three = |a: f32, b: f32, places: usize| {
        [format!("{a:.places$}"), format!("{b:.places$}"), format!("{:+.places$}", b - a)]
    };
    writeln!(out, "log-probability of each token of the prompt:\n")?;
    let mut columns = vec![("position", Right), ("id", Right), ("token", Left)];
    columns.extend(runs);
    let mut prompt = Table::new(&columns);
    for (i, (t, changed)) in plain.tokens.iter().zip(&report.run.tokens).enumerate() {
        let mut row = vec![i.to_string(), t.id.to_string(), t.token.to_string()];
        if let (Some(plain), Some(changed)) = (t.log_prob, changed.log_prob) {
            row.extend(three(plain, changed, 3));
        }
        prompt.row(row);
    }
    writeln!(out, "{}", prompt.render())?;
    if let (Some(before), Some(after)) = (plain.perplexity, report.run.perplexity) {
        let over = plain.tokens.len() - 1;
        writeln!(out, "perplexity {before:.3} plain, {after:.3} changed, over {over} tokens\n")?;
    }
    writeln!(out, "probability of the next token, the most probable ones of both runs:\n")?;
    let mut columns = vec![("next token", Left), ("id", Right)];
    columns.extend(runs);
    let mut next = Table::new(&columns);
    for c in &report.changes {
        let mut row = vec![c.token.to_string(), c.id.to_string()];
        row.extend(three(c.plain, c.changed, 4));
        next.row(row);
    }
    write!(out, "{}", next.render())?;
    Ok(())
}
