//! Errors of training in words that name the command's options.

use gpt2_loader::LoadError;
use gpt2_train::TrainError;
use serde_json::Value;

/// An error of saving the model, in this command's words. `advice` is for numbers that are not finite.
pub(super) fn unsaved(error: LoadError, advice: &str) -> anyhow::Error {
    match error {
        LoadError::NotSavable { parameter, value, .. } if !value.is_finite() => {
            anyhow::anyhow!("{parameter} holds {value}: {advice}")
        }
        LoadError::NotSavable { .. } => anyhow::Error::new(error).context("--save-dtype"),
        other => other.into(),
    }
}

/// The error in this command's words.
pub(super) fn worded(error: TrainError) -> anyhow::Error {
    match error {
        TrainError::Window { window, n_positions } => {
            anyhow::anyhow!("--window is {window}, expected 1 to the model's n_positions = {n_positions}")
        }
        TrainError::Vocabulary { id, vocab_size } => anyhow::anyhow!(
            "the data have token {id}, and the model has {vocab_size}: they do not belong together; a new model of --ids \
             has --vocab-size tokens"
        ),
        TrainError::Option { option: option @ ("muon_lr" | "optimizer"), value, expected } => {
            anyhow::anyhow!("--{}: is {value}, expected {expected}", option.replace('_', "-"))
        }
        TrainError::TooShort { train, validation, window } => anyhow::anyhow!(
            "the text is too short: {train} tokens to learn and {validation} for validation, but each part needs \
             more than --n-positions {window}, or --window"
        ),
        TrainError::Loss { step, loss, .. } => {
            anyhow::anyhow!("the loss became {loss} at step {step}: try a lower --lr")
        }
        TrainError::ValidationLoss { step, loss } => {
            anyhow::anyhow!("the validation loss became {loss} after step {step}: try a lower --lr")
        }
        TrainError::Step { step, source } => {
            anyhow::Error::new(source).context(format!("step {step} failed: try a lower --lr"))
        }
        TrainError::NotAState { path, source } => anyhow::Error::new(source)
            .context(format!("{}: not a training run's state; train without --resume", path.display())),
        TrainError::Setting { name, before, now } => anyhow::anyhow!(
            "--resume: {name} was {before} and is {now}; {}, or start anew with --overwrite",
            as_before(&name, &before)
        ),
        TrainError::Metrics { path, source } => {
            anyhow::Error::from_boxed(source).context(format!("--metrics {}", path.display()))
        }
        TrainError::Other(source) => anyhow::Error::from_boxed(source),
        other => other.into(),
    }
}

/// Advice that gives a setting its earlier value.
fn as_before(name: &str, before: &Value) -> String {
    let option = name.replace('_', "-");
    match (name, before) {
        ("config", _) => "give the model's sizes that the run began with".into(),
        ("data", _) => "give the text and the --val-fraction that the run began with".into(),
        ("lora" | "frozen_model_fingerprint", _) => {
            "give the --model and the LoRA options that the run began with".into()
        }
        (_, Value::Null | Value::Bool(false)) => format!("leave --{option} out"),
        (_, Value::Bool(true)) => format!("give --{option}"),
        (_, Value::String(text)) => format!("give --{option} {text}"),
        (_, before) => format!("give --{option} {before}"),
    }
}
