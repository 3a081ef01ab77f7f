//! What a training step asks of a model: dropout, the loss, and gradients by the names of their variables. The loop
//! around it (data, schedule, optimiser) is the crate `gpt2-train`.

mod dropout;
mod gradients;
mod loss;

pub(crate) use dropout::Site;
pub use dropout::Training;
pub use gradients::{GradientCheck, add_gradients, check_gradients, variables_of};
pub use loss::cross_entropy;
