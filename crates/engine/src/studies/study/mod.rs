//! The parts of a study: its trait and what it runs on, means, points of a run.

mod mean;
mod points;
mod run;

pub use mean::Mean;
pub use points::{PointName, Points};
pub use run::{Outcome, Run, Study};
