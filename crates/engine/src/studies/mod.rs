//! Studies: what a user can ask of a model. Each is a file or a folder with `Options`, which have defaults and run, and a `Report`. Both
//! serialize, so that a command, a Python method and a page ask and read the same.

pub mod checkpoints;
pub mod interpret;
pub mod learn;
mod mean;
mod points;
pub mod predict;
mod registry;
mod run;

pub use mean::Mean;
pub use points::{PointName, Points};
pub use registry::{Entry, STUDIES, check_interventions};
pub use run::{Outcome, Run, Study};
