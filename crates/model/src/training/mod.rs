//! What a training step needs from a model: dropout, the loss, and gradients by variable name. The training loop
//! (data, schedule, optimizer) is in the crate `gpt2-train`.

mod batch;
mod dropout;
mod gradients;
mod loss;

pub use batch::{Documents, TrainingBatch};
pub use dropout::Training;
pub(crate) use dropout::{Site, dropout, place};
pub use gradients::{GradientCheck, add_gradients, check_gradients, variables_of};
pub use loss::cross_entropy;
