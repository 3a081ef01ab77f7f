//! The interventions of a run, ready to use, and what they come from.

use gpt2_model::hooks::Interventions;
use serde::Serialize;
use std::path::PathBuf;

/// The interventions of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes {
    /// As hooks.
    pub(crate) list: Interventions,
    /// As on the command line, for the output.
    pub(crate) texts: Vec<String>,
    /// What the list comes from besides the command line.
    pub(crate) sources: Sources,
}

/// What interventions come from besides the command line.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Sources {
    /// The other prompt's tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from_prompt: Option<Vec<u32>>,
    /// The texts over which means are taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mean_of: Option<MeanOf>,
}

/// Texts over which means are taken.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct MeanOf {
    pub(crate) file: PathBuf,
    pub(crate) texts: usize,
    /// Whether there is a mean for each position.
    pub(crate) by_position: bool,
}

impl Sources {
    pub(crate) fn is_empty(&self) -> bool {
        self.from_prompt.is_none() && self.mean_of.is_none()
    }
}
