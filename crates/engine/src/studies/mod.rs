//! Studies: what a user can ask of a model. Each is a file or a folder with `Options`, which have defaults and run, and a `Report`. Both
//! serialize, so that a command, a Python method and a page ask and read the same.

pub mod build;
pub mod checkpoints;
pub mod interpret;
pub mod learn;
pub mod predict;
mod registry;
mod study;

pub use registry::{Entry, STUDIES, check_interventions, named, takers};
pub use study::{Mean, Outcome, PointName, Points, Run, Study};
