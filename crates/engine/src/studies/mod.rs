//! Studies: what a user can ask of a model. Each is a file or a folder with `Options`, which have defaults and run, and a `Report`. Both
//! serialize, so that a command, a Python method and a page ask and read the same.

pub mod forward;
pub mod lens;
mod points;
mod run;

pub use points::{PointName, Points};
pub use run::{Entry, Outcome, Run, Study};

/// All studies, in the order of the command's help.
pub const STUDIES: &[Entry] = &[
    Entry::of::<forward::Options>(),
    Entry::of::<lens::Options>(),
];
