//! The processes that a command runs as.

pub(crate) mod parallel;
pub(crate) mod restart;
