//! A page's frame with its style and script, and a report without its longest field.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A frame with its style and script, and with their hashes in its policy.
pub(super) fn filled(frame: &str, style: &str, script: &str) -> String {
    frame
        .replace("{{style-hash}}", &hash(style))
        .replace("{{script-hash}}", &hash(script))
        .replace("{{style}}", style)
        .replace("{{script}}", script)
}

/// The hash by which a page's policy names its own style or script.
pub(super) fn hash(text: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)))
}

/// A report without one of its fields.
pub(super) fn without(report: &impl Serialize, field: &str) -> serde_json::Result<Value> {
    let mut about = serde_json::to_value(report)?;
    if let Some(about) = about.as_object_mut() {
        about.remove(field);
    }
    Ok(about)
}
