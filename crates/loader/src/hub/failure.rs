//! [`Failure`]: why one try failed.

use crate::error::LoadError;
use std::time::Duration;

/// Why one try failed, and whether another may succeed.
pub(super) struct Failure {
    pub(super) error: Box<LoadError>,
    /// The shortest wait before another try; `None` if another would not help.
    pub(super) retry: Option<Duration>,
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        Self { error: Box::new(error), retry: None }
    }
}

impl Failure {
    /// A failure that may pass.
    pub(super) fn passing(error: LoadError) -> Self {
        Self { error: Box::new(error), retry: Some(Duration::ZERO) }
    }
}
