//! `gpt2 attention --rollout`: how much of each token reaches each position.

use super::scene::Scene;
use crate::output;
use crate::provenance::Provenance;
use anyhow::Context;
use gpt2_model::ForwardArgs;
use gpt2_model::analysis::attention_rollout;
use gpt2_view::heatmap;
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
struct Report<'a> {
    provenance: &'a Provenance,
    tokens: &'a [String],
    /// Row i: how much of each token up to itself position i holds after the last block.
    rollout: Vec<Vec<f32>>,
}

pub(super) fn show(scene: &Scene) -> anyhow::Result<()> {
    let mut means = vec![];
    scene.run(ForwardArgs::default(), &scene.layers, |_, weights| {
        means.push(weights.mean_keepdim(1)?); // (1, 1, T, T)
        Ok(())
    })?;
    let rollout = attention_rollout(&means)?.pop().context("a model without layers")?.squeeze(0)?; // (T, T)
    scene.check_finite([&rollout])?;
    let tokens = &scene.prompt.tokens;
    if scene.args.json {
        let mut rows = rollout.to_vec2::<f32>()?;
        rows.iter_mut().enumerate().for_each(|(i, row)| row.truncate(i + 1));
        return output::json(&Report { provenance: &scene.made_by, tokens, rollout: rows });
    }
    let map = heatmap(&rollout, tokens, tokens, &output::style(scene.args.color))?;
    let mut out = output::stdout();
    writeln!(out, "{}\n", scene.made_by.first_line())?;
    writeln!(out, "attention rollout after {} layers: each row shows what reaches a token", means.len())?;
    write!(out, "{map}")?;
    Ok(())
}
