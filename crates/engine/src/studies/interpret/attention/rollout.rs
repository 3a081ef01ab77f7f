//! Attention rollout: how much of each token reaches each position, through all layers and the residual stream.

use super::subject::{ChosenHeads, Subject, all_heads};
use crate::provenance::RunProvenance;
use crate::studies::study::{Outcome, Run, Study};
use crate::texts::Content;
use anyhow::Context;
use candle_core::Tensor;
use gpt2_model::ForwardArgs;
use gpt2_model::analysis::attention_rollout;
use gpt2_model::hooks::Interventions;
use serde::{Deserialize, Serialize};

/// The options of the rollout.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutOptions {
    /// The text, or its ids.
    pub prompt: Content,
}

/// The rollout after the last block.
#[derive(Debug, Serialize)]
pub struct RolloutReport {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The text of each token.
    pub tokens: Vec<String>,
    /// Row i: how much of each token up to itself position i holds after the last block.
    pub rollout: Vec<Vec<f32>>,
}

impl Study for RolloutOptions {
    const NAME: &'static str = "rollout";
    type Report = RolloutReport;

    /// The tensor `rollout` (T, T) is that of the report, with its zeros.
    fn run(&self, run: &Run) -> anyhow::Result<Outcome<RolloutReport>> {
        let prompt = run.prompt(&self.prompt)?;
        let applied = run.on_prompt(&prompt)?;
        let [layers, heads] = all_heads(run.opened.model.config());
        let chosen = ChosenHeads { layers: &layers, heads: &heads };
        let subject = Subject::new(run.opened, &prompt, chosen, &applied, run.allow_nonfinite)?;
        let last = rollout_by_layer(&subject, &applied.list)?.pop().context("a model without layers")?;
        subject.check_finite([&last])?;
        let mut rollout = last.to_vec2::<f32>()?;
        rollout.iter_mut().enumerate().for_each(|(i, row)| row.truncate(i + 1));
        let report = RolloutReport { provenance: subject.made_by, tokens: prompt.tokens.clone(), rollout };
        Ok(Outcome { report, tensors: vec![("rollout".to_owned(), last)] })
    }
}

/// The rollout after each block, L of (T, T).
pub(super) fn rollout_by_layer(subject: &Subject, changes: &Interventions) -> anyhow::Result<Vec<Tensor>> {
    let all: Vec<usize> = (0..subject.opened.model.config().n_layer).collect();
    let mut means = vec![];
    subject.run_under(changes, ForwardArgs::default(), &all, &[], |_, weights, _| {
        means.push(weights.mean_keepdim(1)?); // (1, 1, T, T)
        Ok(())
    })?;
    Ok(attention_rollout(&means)?.into_iter().map(|map| map.squeeze(0)).collect::<Result<_, _>>()?)
}
