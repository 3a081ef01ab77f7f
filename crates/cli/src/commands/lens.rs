//! `gpt2 lens`: what the model would predict after each block.

use crate::changes::Reads;
use crate::output;
use crate::outputs::Outputs;
use crate::prompt::PromptArgs;
use crate::provenance::Provenance;
use crate::study::StudyArgs;
use crate::values::highest;
use anyhow::bail;
use candle_core::{D, DType};
use candle_nn::ops::log_softmax;
use gpt2_model::analysis::logit_lens;
use gpt2_view::{Align, Table, visible_token};
use serde::Serialize;
use std::io::Write;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gpt2 lens \"To be, or not to\"
  gpt2 lens --model gpt2 --position 3 \"The capital of France is\"")]
pub(crate) struct LensArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// The position whose next token is predicted, counted from 0 [default: the last]
    #[arg(long, value_name = "I")]
    pub(crate) position: Option<usize>,
    /// How many tokens to show for each layer
    #[arg(short = 'k', long, default_value_t = 3, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) top_k: u16,
    #[command(flatten)]
    pub(crate) study: StudyArgs,
}

#[derive(Serialize)]
struct Report {
    provenance: Provenance,
    model: String,
    position: usize,
    token: String,
    /// The predictions before the first block and after each.
    layers: Vec<Vec<Candidate>>,
}

#[derive(Serialize)]
struct Candidate {
    id: u32,
    token: String,
    probability: f32,
}

pub(crate) fn run(args: &LensArgs) -> anyhow::Result<()> {
    let text = args.prompt.read()?;
    let session = args.study.session_for(args.prompt.inputs(), &Outputs::new(false))?;
    let prompt = args.prompt.encode(text, &session)?;
    let t = prompt.ids.len();
    let position = args.position.unwrap_or(t - 1);
    if position >= t {
        bail!("--position {position}: the prompt has positions 0 to {}", t - 1);
    }
    let ids = session.input_ids(&prompt.ids)?; // (1, T)
    let changes = args.study.interventions.build(&session, Reads::Whole(&prompt.ids))?;
    let logits = logit_lens(&session.model, &ids, position, Some(&changes.list))?; // (L + 1, 1, V)
    let logits = logits.squeeze(1)?.to_dtype(DType::F32)?; // (L + 1, V)
    args.study.finite.check(&session, &ids, Some(&changes.list), [&logits])?;
    let log_probs = log_softmax(&logits, D::Minus1)?.to_vec2::<f32>()?;
    let layer = |log_probs: &Vec<f32>| -> Vec<Candidate> {
        let order = highest(log_probs, args.top_k.into());
        let labels = session.labels(&order);
        let candidate = |(id, token): (&u32, String)| Candidate {
            id: *id,
            token,
            probability: log_probs[*id as usize].exp(),
        };
        order.iter().zip(labels).map(candidate).collect()
    };
    let layers = log_probs.iter().map(layer).collect();
    let token = prompt.tokens[position].clone();
    let provenance = Provenance::new(&session, &prompt.ids)?.under(&changes);
    let report = Report { provenance, model: session.name.clone(), position, token, layers };
    output::report(args.study.json, &report, print)
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}", report.provenance.first_line())?;
    writeln!(
        out,
        "what follows {} (position {}), read off the residual stream after each block\n",
        visible_token(&report.token),
        report.position
    )?;
    let shown = report.layers.first().map_or(0, Vec::len);
    let mut columns = vec![("after", Align::Left)];
    for _ in 0..shown {
        columns.extend([("token", Align::Left), ("p", Align::Right)]);
    }
    let mut table = Table::new(&columns);
    for (i, layer) in report.layers.iter().enumerate() {
        let after = if i == 0 { "embeddings".to_owned() } else { format!("block {}", i - 1) };
        let cells = layer.iter().flat_map(|c| [visible_token(&c.token), format!("{:.3}", c.probability)]);
        table.row(std::iter::once(after).chain(cells).collect());
    }
    write!(out, "{}", table.render())?;
    Ok(())
}
