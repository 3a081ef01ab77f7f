//! Turns results that are not finite into an error that says where in the model they first appear.

use super::opened::Opened;
use crate::spelling::Spelling;
use candle_core::{DType, Tensor};
use gpt2_model::Gpt2LMHeadModel;
use gpt2_model::finite::{NotFinite, all_finite};
use gpt2_model::hooks::Hooks;

/// An error: a result is NaN or infinite.
#[derive(Debug)]
pub struct NotFiniteResult(pub String);

impl std::fmt::Display for NotFiniteResult {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotFiniteResult {}

impl NotFiniteResult {
    /// Whether an error comes from such a result.
    #[must_use]
    pub fn caused(error: &anyhow::Error) -> bool {
        error.chain().any(<dyn std::error::Error>::is::<Self>)
    }
}

/// Refuses `results` of a run over `ids` (B, T) if any number is not finite.
///
/// # Errors
/// When there is such a number: it says where in the model the first one appears, and what to do.
pub fn check_finite<'a>(
    opened: &Opened,
    ids: &Tensor,
    hooks: Option<&dyn Hooks>,
    results: impl IntoIterator<Item = &'a Tensor>,
) -> anyhow::Result<()> {
    for result in results {
        if !all_finite(result)? {
            let anyway = opened.spelling.switch("allow-nonfinite");
            let why = explain_not_finite(&opened.model, ids, hooks, opened.spelling);
            return Err(NotFiniteResult(format!("{why}; {anyway} shows the result anyway")).into());
        }
    }
    Ok(())
}

/// Says where a number that is not finite first appears in a run over `ids` (B, T), and what to do about it.
#[must_use]
pub fn explain_not_finite(
    model: &Gpt2LMHeadModel,
    ids: &Tensor,
    hooks: Option<&dyn Hooks>,
    spelling: Spelling,
) -> String {
    match model.first_not_finite(ids, hooks) {
        Ok(Some(found)) => describe_not_finite(&found, model, ids, hooks, spelling),
        Ok(None) => "the result is not finite, though every value inside the model is: it exceeds f32, the \
                     dtype of results"
            .into(),
        Err(error) => format!("the result is not finite, and looking for the cause failed: {error}"),
    }
}

/// Describes what was `found` in a run over `ids` (B, T), and what to do about it.
#[must_use]
pub fn describe_not_finite(
    found: &NotFinite,
    model: &Gpt2LMHeadModel,
    ids: &Tensor,
    hooks: Option<&dyn Hooks>,
    spelling: Spelling,
) -> String {
    let remedy = match found {
        NotFinite { parameter: Some(_), .. } => "the weights are damaged: fetch them again".to_owned(),
        // Without the hooks every value is finite, so they are the cause.
        _ if hooks.is_some() && matches!(model.first_not_finite(ids, None), Ok(None)) => {
            "the model alone stays finite: weaken or remove the interventions".to_owned()
        }
        _ if matches!(model.clone().without_adapters().first_not_finite(ids, None), Ok(None)) => {
            let adapter = spelling.option("adapter");
            format!("the model alone stays finite: lower the weight of {adapter}, or leave it out")
        }
        NotFinite { dtype: DType::F16 | DType::BF16, .. } => {
            format!("use {}, which holds larger numbers", spelling.given("dtype", "f32"))
        }
        _ => "the weights are far larger than a GPT-2's: were they damaged, or converted wrongly?".to_owned(),
    };
    format!("the result is not finite: {found}; {remedy}")
}
