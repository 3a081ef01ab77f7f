//! Training errors, in words that name the options of `gpt2 train`.

use gpt2_train::TrainError;

/// The error in this command's words.
pub(super) fn worded(error: TrainError) -> anyhow::Error {
    match error {
        TrainError::Window { window, n_positions } => {
            anyhow::anyhow!("--window is {window}, expected 1 to the model's n_positions = {n_positions}")
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
            "--resume: {name} was {before} and is {now}; a run only resumes with the settings that it had"
        ),
        TrainError::Metrics { path, source } => {
            anyhow::Error::from_boxed(source).context(format!("--metrics {}", path.display()))
        }
        TrainError::Other(source) => anyhow::Error::from_boxed(source),
        other => other.into(),
    }
}
