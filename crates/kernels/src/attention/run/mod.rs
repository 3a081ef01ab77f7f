//! Runs attention: chooses the code, and computes the context and whatever else a call asks for.

pub(crate) mod attend;
mod choice;
mod eager;
mod growing;
pub(crate) mod merge;
#[cfg(feature = "metal")]
mod metal;
pub(crate) mod paged;
pub(crate) mod summary;
pub(crate) mod varlen;
