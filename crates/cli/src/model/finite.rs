//! Turns results that are not finite into an error that says where in the model they first appear.

use super::session::Session;
use anyhow::bail;
use candle_core::{DType, Tensor};
use gpt2_model::Gpt2LMHeadModel;
use gpt2_model::finite::{NotFinite, all_finite};
use gpt2_model::hooks::Hooks;

/// Whether to show numbers that are not finite.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct FiniteArgs {
    /// Show and export NaN and infinity instead of stopping at them, to look at broken models
    #[arg(long)]
    pub(crate) allow_nonfinite: bool,
}

impl FiniteArgs {
    /// For commands whose results must be finite.
    pub(crate) const STRICT: Self = Self { allow_nonfinite: false };

    /// Refuses `results` of a run over `ids` (B, T) if any number is not finite, unless the user allows it.
    pub(crate) fn check<'a>(
        &self,
        session: &Session,
        ids: &Tensor,
        hooks: Option<&dyn Hooks>,
        results: impl IntoIterator<Item = &'a Tensor>,
    ) -> anyhow::Result<()> {
        if self.allow_nonfinite {
            return Ok(());
        }
        for result in results {
            if !all_finite(result)? {
                bail!("{}; --allow-nonfinite shows the result anyway", explain(&session.model, ids, hooks))
            }
        }
        Ok(())
    }
}

/// Says where a number that is not finite first appears in a run over `ids` (B, T), and what to do about it.
pub(crate) fn explain(model: &Gpt2LMHeadModel, ids: &Tensor, hooks: Option<&dyn Hooks>) -> String {
    match model.first_not_finite(ids, hooks) {
        Ok(Some(found)) => describe(&found, model, ids, hooks),
        Ok(None) => "the result is not finite, though every value inside the model is: it exceeds f32, the \
                     dtype of results"
            .into(),
        Err(error) => format!("the result is not finite, and looking for the cause failed: {error}"),
    }
}

/// Describes what was `found` in a run over `ids` (B, T), and what to do about it.
pub(crate) fn describe(
    found: &NotFinite,
    model: &Gpt2LMHeadModel,
    ids: &Tensor,
    hooks: Option<&dyn Hooks>,
) -> String {
    let remedy = match found {
        NotFinite { parameter: Some(_), .. } => "the weights are damaged: fetch them again",
        // Without the hooks every value is finite, so they are the cause.
        _ if hooks.is_some() && matches!(model.first_not_finite(ids, None), Ok(None)) => {
            "the model alone stays finite: weaken or remove the interventions"
        }
        _ if matches!(model.clone().without_adapters().first_not_finite(ids, None), Ok(None)) => {
            "the model alone stays finite: lower the weight of --adapter, or leave it out"
        }
        NotFinite { dtype: DType::F16 | DType::BF16, .. } => "use --dtype f32, which holds larger numbers",
        _ => "the weights are far larger than a GPT-2's: were they damaged, or converted wrongly?",
    };
    format!("the result is not finite: {found}; {remedy}")
}
