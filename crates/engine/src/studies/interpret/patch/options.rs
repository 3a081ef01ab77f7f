//! The options of patching.

use super::paths::{FreezeName, PathsText};
use crate::studies::interpret::measure::MetricName;
use crate::texts::PairsInput;
use gpt2_circuits::discovery::Freeze;
use serde::{Deserialize, Serialize};

/// The options of patching.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The pairs of texts.
    pub pairs: PairsInput,
    /// The metric; by default that of the answers.
    pub metric: Option<MetricName>,
    /// The positions over which the metric of the answers is averaged, instead of the last.
    pub positions: Vec<usize>,
    /// Whether to patch each head at each position, too; for a single pair.
    pub by_position: bool,
    /// Senders and readers to patch, too.
    pub path: Vec<PathsText>,
    /// The parts between them that stay as in the clean run.
    #[serde(with = "FreezeName")]
    pub freeze: Freeze,
    /// Whether to leave out attention and MLPs at each position, which take a run each, and the warning about estimates, which
    /// the caller shows. It is for faces that show a summary, and no option.
    #[serde(skip)]
    pub summary: bool,
}
