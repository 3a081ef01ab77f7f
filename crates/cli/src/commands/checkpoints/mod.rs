//! The commands for models' files: on the Hub, in the cache and on disk.

pub(super) mod cache;
pub(super) mod import;
pub(super) mod inspect;
pub(super) mod merge;
mod new_model;
pub(super) mod quantize;
