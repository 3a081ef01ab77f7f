//! Studies: what a user can ask of a model. Each is a file or a folder with `Options`, which have defaults and run, and a `Report`. Both
//! serialize, so that a command, a Python method and a page ask and read the same.

pub mod circuits;
pub mod compare;
pub mod discover;
pub mod features;
pub mod forward;
pub mod generate;
pub mod heads;
pub mod import;
pub mod inspect;
pub mod lens;
mod mean;
pub mod merge;
mod new_model;
mod over_pairs;
pub mod pairs;
pub mod patch;
mod points;
pub mod quantize;
pub mod record;
mod registry;
mod run;
pub mod score;
pub mod train;
pub mod train_features;

pub use mean::Mean;
pub use new_model::NewModel;
pub use points::{PointName, Points};
pub use registry::{Entry, STUDIES, check_interventions};
pub use run::{Outcome, Run, Study};
