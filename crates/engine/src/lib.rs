//! Turns the names that a user gives into what the libraries take: a model, the Hub as this machine is set up for it, a
//! text, heads and places of interventions. The command and the Python package share it; it prints nothing, and returns
//! notes for them to show.

mod address;
mod continuation;
mod hub;
mod interventions;
mod named;
mod pairs;
mod tasks;
mod text;
mod training;

pub use continuation::{Continuation, new_tokens};
pub use hub::{HubOptions, pins};
pub use interventions::{At, OnHeads, check_effective};
pub use named::{DEMO_NAME, Named, NamedAdapter, NamedDictionary, model_id};
pub use pairs::pair;
pub use tasks::{Task, TaskAnswer, TaskPair, Text};
pub use text::{Encoded, encode, encode_within};
pub use training::{Example, NewModel, documents};

// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
