//! The texts besides the prompt that interventions take values from.

use serde::Serialize;
use std::path::PathBuf;

/// Texts besides the prompt that interventions take values from.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Sources {
    /// The other prompt's tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_prompt: Option<Vec<u32>>,
    /// The texts over which means are taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_of: Option<MeanSource>,
}

/// Texts over which means are taken.
#[derive(Debug, Clone, Serialize)]
pub struct MeanSource {
    /// The file that they come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The number of texts.
    pub texts: usize,
    /// Whether each position has a mean of its own; `None` if that differs from text to text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_position: Option<bool>,
}

impl Sources {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.from_prompt.is_none() && self.mean_of.is_none()
    }
}
