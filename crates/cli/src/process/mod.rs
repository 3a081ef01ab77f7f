//! The processes that a command runs as, and the signals that end them.

pub(crate) mod parallel;
pub(crate) mod restart;
pub(crate) mod signals;
