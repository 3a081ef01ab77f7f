//! Training errors, as data: each program puts them into words for its users.

use candle_core::Tensor;
use std::path::PathBuf;

/// An error of any kind, such as a callback's.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, TrainError>;

/// Why a model cannot be trained, or cannot be trained further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// An option has an invalid value.
    #[error("{option} is {value}, expected {expected}")]
    Option {
        /// The field of [`TrainOptions`](crate::TrainOptions).
        option: &'static str,
        /// Its value.
        value: String,
        /// The values that are allowed.
        expected: &'static str,
    },
    /// A window is empty, or longer than the model's context.
    #[error("the window is {window} tokens, expected 1 to the model's n_positions = {n_positions}")]
    Window {
        /// Tokens per sequence.
        window: usize,
        /// The length of the model's context.
        n_positions: usize,
    },
    /// The data hold a token that is not in the model's vocabulary.
    #[error("the tokenizer gives token {id}, and the model has {vocab_size}: the two do not belong together")]
    Vocabulary {
        /// The first such token.
        id: u32,
        /// The number of tokens that the model has.
        vocab_size: usize,
    },
    /// A part of the data is too short for one window and the token after it.
    #[error(
        "the text is too short: {train} tokens to learn and {validation} for validation, but each part needs more \
         than the window of {window}; take a longer text or a shorter window"
    )]
    TooShort {
        /// Training tokens.
        train: usize,
        /// Tokens held back for validation.
        validation: usize,
        /// Tokens per sequence.
        window: usize,
    },
    /// The training loss became NaN or infinite.
    #[error("the loss became {loss} at step {step}: try a lower learning rate")]
    Loss {
        /// Steps taken before.
        step: u64,
        /// The loss.
        loss: f32,
        /// The batch (B, T) that gave it, for
        /// [`first_not_finite`](gpt2_model::Gpt2LMHeadModel::first_not_finite).
        inputs: Tensor,
    },
    /// The validation loss became NaN or infinite.
    #[error("the validation loss became {loss} after step {step}: try a lower learning rate")]
    ValidationLoss {
        /// Steps taken.
        step: u64,
        /// The loss.
        loss: f64,
    },
    /// The optimizer refused a step.
    #[error("step {step} failed: try a lower learning rate")]
    Step {
        /// Steps taken before.
        step: u64,
        /// Why.
        source: candle_core::Error,
    },
    /// A setting differs from that of the run to resume.
    #[error("{name} was {before} and is {now}; a run resumes with the settings that it had")]
    Setting {
        /// The setting.
        name: String,
        /// Its value when the state was saved.
        before: serde_json::Value,
        /// Its value now.
        now: serde_json::Value,
    },
    /// A file is not the state of a training run.
    #[error("{}: not a training run's state", path.display())]
    NotAState {
        /// The file.
        path: PathBuf,
        /// Why it is not one.
        source: candle_core::Error,
    },
    /// The state of a run lacks a part, or has one that does not match the others.
    #[error("{}: {reason}", path.display())]
    DamagedState {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: BoxError,
    },
    /// A file of metrics cannot be read or written.
    #[error("cannot read or write the metrics in {}", path.display())]
    Metrics {
        /// The file.
        path: PathBuf,
        /// Why.
        source: BoxError,
    },
    /// A file system operation failed.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] gpt2_files::Error),
    /// The ranks of a group cannot work together.
    #[error(transparent)]
    Group(#[from] gpt2_parallel::Error),
    /// Candle returned an error.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// A callback failed: [`TrainError::other`].
    #[error(transparent)]
    Other(BoxError),
}

impl TrainError {
    /// Wraps the caller's own error, to return it from a callback.
    pub fn other(error: impl Into<BoxError>) -> Self {
        Self::Other(error.into())
    }

    /// The error for an option with a value other than those that are `expected`.
    pub(crate) fn option(option: &'static str, value: impl ToString, expected: &'static str) -> Self {
        Self::Option { option, value: value.to_string(), expected }
    }

    /// The error for a state that is damaged in this way.
    pub(crate) fn damaged(path: &std::path::Path, reason: impl Into<BoxError>) -> Self {
        Self::DamagedState { path: path.to_path_buf(), reason: reason.into() }
    }
}
