//! Questions that a user can ask of GPT-2, as functions of plain structs: open a model by any name, change it while it runs, read texts, and run
//! studies whose reports serialize. The command, the Python package and the page are faces of it.
//!
//! It prints nothing and knows no flag. Notes and progress go to an [`Observer`], which may end the work.

mod hub;
pub mod interventions;
mod names;
mod observer;
pub mod open;
mod provenance;
mod read_files;
mod spelling;
pub mod studies;
pub mod texts;
pub mod words;

pub use gpt2_parallel::{Alone, Group};
pub use hub::{HubOptions, is_of_the_cache, pins};
pub use names::{DEMO_NAME, Named, NamedAdapter, NamedDictionary, model_id};
pub use observer::{Observer, Silent, Stopped, steps};
pub use open::{DeviceChoice, Label, ModelOptions, Opened};
pub use provenance::RunProvenance;
pub use read_files::ReadFiles;
pub use spelling::Spelling;

// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
