//! Compares the Hub's announcements with the pinned files.

use super::client::Announced;
use super::{ModelId, Pin};
use crate::error::LoadError;

/// Refuses a commit's file that is pinned to different content.
pub(super) fn check(
    pins: &[Pin],
    model: &ModelId,
    commit: &str,
    name: &str,
    announced: &Announced,
) -> Result<(), LoadError> {
    let model = model.to_string();
    let is_it = |pin: &&Pin| pin.id == model && pin.revision == commit && pin.file == name;
    let Some(pin) = pins.iter().find(is_it) else { return Ok(()) };
    let sha256 = pin.sha256.as_deref().unwrap_or(announced.digest.as_str());
    if sha256 == announced.digest.as_str() && announced.size.is_none_or(|size| size == pin.size) {
        return Ok(());
    }
    let size = announced.size.map_or_else(String::new, |size| format!(", {size} bytes"));
    Err(LoadError::Pin {
        file: format!("{model}/{name}"),
        expected: format!("sha256 {sha256}, {} bytes", pin.size),
        found: format!("{}{size}", announced.digest),
    })
}
