//! The values at hook points over a corpus, in a folder of shards, by one process or by many.
//!
//! It is no [`Study`](crate::studies::study::Study): it writes a folder of its own, and shares the work with the other processes of a group.

mod documents;
mod options;
mod plan;
mod report;
mod shards;
mod texts;

pub use documents::{Documents, TextsInMemory};
pub use options::{Options, StoredAs};
pub use report::{Report, left};
pub use shards::Recording;
