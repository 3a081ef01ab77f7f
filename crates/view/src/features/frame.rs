//! A page's frame with its style and script, and what is published of a run.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::Path;

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

/// The facts of a report that pages and uploads show. Folders are the author's, and stay out of what is published.
pub(super) fn facts(report: &Value) -> Value {
    let mut dictionary = report["dictionary"].clone();
    if let Some(name) = dictionary.get_mut("name") {
        *name = without_folders(name);
    }
    json!({
        "gpt2": report["gpt2"],
        "model": without_folders(&report["model"]),
        "dictionary": dictionary,
        "tokens": report["tokens"],
        "l0": report["l0"],
        "explained_variance": report["explained_variance"],
    })
}

/// The last part of an absolute path; a name as it is.
fn without_folders(name: &Value) -> Value {
    let path = name.as_str().map(Path::new).filter(|path| path.is_absolute());
    let last = path.and_then(Path::file_name).map(|last| last.to_string_lossy().into());
    last.unwrap_or_else(|| name.clone())
}
