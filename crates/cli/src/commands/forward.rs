//! `gpt2 forward`: the next token's probabilities, and how surprising the prompt is.

use crate::changes::Reads;
use crate::output;
use crate::outputs::Outputs;
use crate::prompt::{Prompt, PromptArgs};
use crate::provenance::Provenance;
use crate::session::Session;
use crate::study::StudyArgs;
use crate::values::highest;
use candle_core::{D, DType, Tensor};
use candle_nn::ops::log_softmax;
use gpt2_view::Align::{Left, Right};
use gpt2_view::{Table, visible_token, write_safetensors};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gpt2 forward \"To be, or not to\"
  gpt2 forward --model gpt2 --json --ids 15496,11,314
  gpt2 forward --ablate 1.2,1.3 --block 5:2 \"To be, or not to\"   ablate two heads; hide token 2 from token 5")]
pub(crate) struct ForwardArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// How many next tokens to show
    #[arg(short = 'k', long, default_value_t = 10, value_name = "K")]
    pub(crate) top_k: usize,
    /// Write logits and hidden states to a safetensors file
    #[arg(long, value_name = "FILE")]
    pub(crate) export: Option<PathBuf>,
    /// Let --export replace an existing file
    #[arg(long, requires = "export")]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) study: StudyArgs,
}

#[derive(Serialize)]
struct Report {
    provenance: Provenance,
    model: String,
    tokens: Vec<Scored>,
    /// exp of the mean negative log-probability of all tokens but the first; `None` for a single token.
    perplexity: Option<f64>,
    next: Vec<Candidate>,
}

#[derive(Serialize)]
struct Scored {
    id: u32,
    token: String,
    /// In nats, given the tokens before it; `None` for the first token.
    log_prob: Option<f32>,
}

#[derive(Serialize)]
struct Candidate {
    id: u32,
    token: String,
    probability: f32,
    log_prob: f32,
}

pub(crate) fn run(args: &ForwardArgs) -> anyhow::Result<()> {
    let text = args.prompt.read()?;
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(path) = &args.export {
        outputs.add("--export", path);
    }
    let session = args.study.session_for(args.prompt.inputs(), &outputs)?;
    let prompt = args.prompt.encode(text, &session)?;
    let changes = args.study.interventions.build(&session, Reads::Whole(&prompt.ids))?;
    let made_by = Provenance::new(&session, &prompt.ids)?.under(&changes);
    let forward = gpt2_model::ForwardArgs {
        output_hidden_states: args.export.is_some(),
        hooks: Some(&changes.list),
        ..Default::default()
    };
    let ids = session.input_ids(&prompt.ids)?; // (1, T)
    let output = session.model.forward(&ids, forward)?;
    let logits = output.logits.to_dtype(DType::F32)?; // (1, T, V)
    args.study.finite.check(&session, &ids, Some(&changes.list), [&logits])?;

    if let Some(path) = &args.export {
        let hidden_states = Tensor::cat(&output.transformer.hidden_states, 0)?.to_dtype(DType::F32)?; // (L + 1, T, C)
        args.study.finite.check(&session, &ids, Some(&changes.list), [&hidden_states])?;
        let mut metadata = made_by.metadata()?;
        metadata.extend([
            ("model", session.name.clone()),
            ("ids", serde_json::to_string(&prompt.ids)?),
            ("tokens", serde_json::to_string(&prompt.tokens)?),
        ]);
        let tensors = [("logits", &logits), ("hidden_states", &hidden_states)];
        outputs.stage(path, |temporary| write_safetensors(temporary, &tensors, &metadata))?;
    }
    let report = report(args, &session, made_by, prompt, &logits.squeeze(0)?)?;
    outputs.commit_after(|| output::report(args.study.json, &report, print))
}

/// `logits` (T, V)
fn report(
    args: &ForwardArgs,
    session: &Session,
    provenance: Provenance,
    prompt: Prompt,
    logits: &Tensor,
) -> anyhow::Result<Report> {
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
        anyhow::bail!(
            "the perplexity is not finite: the prompt's tokens are all but impossible under this model, with a mean \
             log-probability of {:.0} nats; are the weights damaged? --allow-nonfinite shows the result anyway",
            sum / (t - 1) as f64
        )
    }

    let last = log_probs.get(t - 1)?.to_vec1::<f32>()?; // (V)
    let order = highest(&last, args.top_k);
    let candidate = |(id, token): (&u32, String)| {
        let log_prob = last[*id as usize];
        Candidate { id: *id, token, probability: log_prob.exp(), log_prob }
    };
    let next = order.iter().zip(session.labels(&order)).map(candidate).collect();
    let tokens = prompt
        .ids
        .into_iter()
        .zip(prompt.tokens)
        .zip(given)
        .map(|((id, token), log_prob)| Scored { id, token, log_prob })
        .collect();
    Ok(Report { provenance, model: session.name.clone(), tokens, perplexity, next })
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}\n", report.provenance.first_line())?;
    let mut prompt = Table::new(&[("position", Right), ("id", Right), ("token", Left), ("log-prob", Right)]);
    for (i, t) in report.tokens.iter().enumerate() {
        let log_prob = t.log_prob.map_or_else(String::new, |l| format!("{l:.3}"));
        prompt.row(vec![i.to_string(), t.id.to_string(), visible_token(&t.token), log_prob]);
    }
    writeln!(out, "{}", prompt.render())?;
    if let Some(perplexity) = report.perplexity {
        writeln!(out, "perplexity {perplexity:.3} over {} tokens\n", report.tokens.len() - 1)?;
    }
    let mut next = Table::new(&[("next token", Left), ("id", Right), ("probability", Right)]);
    for c in &report.next {
        next.row(vec![visible_token(&c.token), c.id.to_string(), format!("{:.4}", c.probability)]);
    }
    write!(out, "{}", next.render())?;
    Ok(())
}
