//! Holds a model to numbers that others have printed of it, each with its source: `answers.json` has those of GPT-2's own sizes.

mod answers;
mod checks;
mod finding;
mod losses;
mod watched;

pub use checks::{AnswerState, Checked, Options, Report, is_out_of_reach};
pub use losses::{Steps, losses};
