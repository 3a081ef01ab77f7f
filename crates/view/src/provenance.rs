//! What made a file: a line for people, facts for programs.

use crate::text::visible_text;
use serde_json::Value;

/// What made the numbers of a file. This crate knows no model: it carries what it is given into each file it writes.
///
/// Neither part is trusted: where the caption is shown, it is shown as [`visible_text`], and the facts are always
/// data, never markup.
///
/// ```
/// use gpt2_view::Provenance;
///
/// let provenance = Provenance {
///     caption: "f32 on cpu, fused; ablate 0.1".to_owned(),
///     facts: serde_json::json!({ "model": "gpt2", "dtype": "f32", "device": "cpu", "ablate": ["0.1"] }),
/// };
/// assert_ne!(provenance, Provenance::default());
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Provenance {
    /// One line for people; pictures and pages show it below their title. Empty: there is no such line.
    pub caption: String,
    /// An object for programs: model, dtype, device, prompt, interventions, version. `Value::Null` when unknown.
    pub facts: Value,
}

impl Provenance {
    /// The caption as it is shown.
    pub(crate) fn shown(&self) -> String {
        visible_text(&self.caption)
    }
}
