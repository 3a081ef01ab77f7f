//! Models, adapters and dictionaries by the names that a user gives.

mod address;
mod named;

pub use named::{DEMO_NAME, Named, NamedAdapter, NamedDictionary, model_id};
