//! The record of how a file was made: a line for people, facts for programs.

use crate::text::visible_text;
use serde_json::Value;
use std::path::Path;

/// This program, in the metadata of pictures.
pub(crate) const SOFTWARE: &str = concat!("gpt2 ", env!("CARGO_PKG_VERSION"));

/// The record of how the numbers in a file were made. This crate knows no model: it only copies what the caller gives it
/// into each file.
///
/// It trusts neither part: the caption is always shown as [`visible_text`], and the facts are always
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
    /// One line for people; pictures and pages show it below their title. If it is empty, they have no such line.
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

/// A name for others to see: of a path on this machine, the last part.
#[must_use]
pub fn without_folders(name: &str) -> String {
    let path = Path::new(name);
    // A name of the Hub, at a commit, is no path.
    let is_here = path.is_absolute() || path.exists();
    let last = || std::path::absolute(path).ok()?.file_name().map(|last| last.to_string_lossy().into_owned());
    if is_here { last().unwrap_or_else(|| "model".to_owned()) } else { name.to_owned() }
}
