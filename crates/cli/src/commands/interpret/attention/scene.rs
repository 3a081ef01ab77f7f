//! A run of `gpt2 attention` over one text.

use super::args::AttentionArgs;
use gpt2_engine::studies::Points;
use gpt2_engine::studies::interpret::attention::Subject;

/// The most columns that a key takes in a heat map.
pub(super) const CELL: usize = 4;

/// A run of the command: its options, and the model, the prompt and the chosen heads.
pub(super) struct AttentionScene<'a> {
    pub(super) args: &'a AttentionArgs,
    pub(super) subject: Subject<'a>,
    /// The prompt as it was given; `None` for ids.
    pub(super) text: Option<&'a str>,
    /// The points whose values go into the export.
    pub(super) points: &'a Points,
}
