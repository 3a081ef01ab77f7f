//! `gpt2 attention --effect`: how each head changes the probability of a token.

use super::scene::Scene;
use crate::args::EffectArg;
use crate::output::{self, note};
use crate::prompt::encode;
use crate::provenance::Provenance;
use crate::session::Session;
use anyhow::{Context, bail};
use candle_core::{D, Device, Tensor};
use gpt2_model::ForwardArgs;
use gpt2_model::analysis::{Ablation, ablation_effects, direct_logit_attribution};
use gpt2_view::{Align, Table, visible_token};
use serde::Serialize;
use std::io::Write;

/// How many heads to print; JSON has all.
const SHOWN: usize = 20;

#[derive(Serialize)]
struct Report {
    provenance: Provenance,
    target: String,
    target_id: u32,
    /// The target's log-probability after the prompt, in nats.
    log_prob: f32,
    ablation: &'static str,
    heads: Vec<HeadEffect>,
}

#[derive(Serialize)]
struct HeadEffect {
    layer: usize,
    head: usize,
    /// How much ablating the head adds to the log-probability, in nats.
    change: f32,
    /// The head's direct contribution to the target's logit.
    direct: f32,
}

pub(super) fn show(scene: &Scene, how: EffectArg) -> anyhow::Result<()> {
    let (session, ids) = (scene.session, &scene.ids);
    let target_id = if let Some(text) = &scene.args.target {
        target(session, text)?
    } else {
        let args = ForwardArgs { last_logits_only: true, ..Default::default() };
        let logits = session.model.forward(ids, args)?.logits;
        logits.argmax(D::Minus1)?.flatten_all()?.get(0)?.to_scalar()?
    };
    let (ablation, name) = match how {
        EffectArg::Zero => (Ablation::Zero, "zero"),
        EffectArg::Mean => (Ablation::Mean, "mean"),
    };
    let effects = ablation_effects(&session.model, ids, target_id, ablation)?;
    let direct = direct_logit_attribution(&session.model, ids, target_id)?;
    let log_prob = Tensor::new(effects.log_prob, &Device::Cpu)?;
    scene.check_finite([&log_prob, &effects.change, &direct])?;
    let (changes, direct) = (effects.change.to_vec2::<f32>()?, direct.to_vec2::<f32>()?);
    let of_layer = |(layer, (changes, direct)): (usize, (Vec<f32>, Vec<f32>))| {
        let heads = changes.into_iter().zip(direct).enumerate();
        heads.map(move |(head, (change, direct))| HeadEffect { layer, head, change, direct })
    };
    let mut heads: Vec<_> = changes.into_iter().zip(direct).enumerate().flat_map(of_layer).collect();
    heads.sort_by(|a, b| b.change.abs().total_cmp(&a.change.abs()));
    let target = session.labels(&[target_id]).concat();
    let provenance = scene.made_by.clone();
    let report = Report { provenance, target, target_id, log_prob: effects.log_prob, ablation: name, heads };
    if scene.args.json { output::json(&report) } else { print(&report) }
}

/// The single token that spells `text`.
fn target(session: &Session, text: &str) -> anyhow::Result<u32> {
    let tokenizer = match session.tokenizer() {
        Ok(tokenizer) => tokenizer,
        // Without a tokenizer, prompts are ids, and so are targets.
        Err(e) => match text.parse() {
            Ok(id) => return Ok(id),
            Err(_) => return Err(e).with_context(|| format!("--target {text:?} is not an id")),
        },
    };
    let ids = encode(tokenizer, text, "--target")?;
    match ids[..] {
        [id] => Ok(id),
        _ => bail!(
            "--target {text:?} is {} tokens ({}), expected one; a word inside a text begins with its space",
            ids.len(),
            session.labels(&ids).iter().map(|t| format!("{t:?}")).collect::<Vec<_>>().join(", ")
        ),
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}\n", report.provenance.first_line())?;
    writeln!(
        out,
        "{} (id {}) has log-probability {:.3}; with one head ablated to {}, the largest changes first:\n",
        visible_token(&report.target),
        report.target_id,
        report.log_prob,
        report.ablation
    )?;
    let columns = [("head", Align::Right), ("change", Align::Right), ("direct logit", Align::Right)];
    let mut table = Table::new(&columns);
    for head in report.heads.iter().take(SHOWN) {
        table.row(vec![
            format!("{}.{}", head.layer, head.head),
            format!("{:+.3}", head.change),
            format!("{:+.3}", head.direct),
        ]);
    }
    write!(out, "{}", table.render())?;
    if report.heads.len() > SHOWN {
        note(&format!("{SHOWN} of {} heads; --json has all", report.heads.len()));
    }
    Ok(())
}
