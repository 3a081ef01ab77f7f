//! `gpt2 attention --rollout`: how much of each token reaches each position.

use super::scene::{CELL, Scene};
use crate::output;
use crate::provenance::Provenance;
use anyhow::Context;
use candle_core::Tensor;
use gpt2_model::ForwardArgs;
use gpt2_model::analysis::attention_rollout;
use gpt2_model::hooks::Interventions;
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

/// The rollout after each block, L of (T, T).
pub(super) fn by_layer(scene: &Scene, changes: &Interventions) -> anyhow::Result<Vec<Tensor>> {
    let all: Vec<usize> = (0..scene.session.model.config().n_layer).collect();
    let mut means = vec![];
    scene.run_under(changes, ForwardArgs::default(), &all, &[], |_, weights, _| {
        means.push(weights.mean_keepdim(1)?); // (1, 1, T, T)
        Ok(())
    })?;
    Ok(attention_rollout(&means)?.into_iter().map(|map| map.squeeze(0)).collect::<Result<_, _>>()?)
}

pub(super) fn show(scene: &Scene) -> anyhow::Result<()> {
    let mut maps = by_layer(scene, &scene.changes.list)?;
    let layers = maps.len();
    let rollout = maps.pop().context("a model without layers")?; // (T, T)
    scene.subject().check_finite([&rollout])?;
    let tokens = &scene.prompt.tokens;
    if scene.args.json {
        let mut rows = rollout.to_vec2::<f32>()?;
        rows.iter_mut().enumerate().for_each(|(i, row)| row.truncate(i + 1));
        return output::json(&Report { provenance: &scene.made_by, tokens, rollout: rows });
    }
    let map = heatmap(&rollout, tokens, tokens, &output::style(scene.args.color).with_max_cell(CELL))?;
    let mut out = output::stdout();
    writeln!(out, "{}\n", scene.made_by.first_line())?;
    writeln!(out, "attention rollout after {layers} layers: each row shows what reaches a token")?;
    write!(out, "{map}")?;
    Ok(())
}
