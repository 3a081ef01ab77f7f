//! A page's frame with its style and script, and what is published of a run.

use crate::provenance::without_folders;
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
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

/// The facts of a report that pages and uploads show. Folders are the author's, and stay out of what is published.
pub(super) fn facts(report: &Value) -> Value {
    let mut dictionary = report["dictionary"].clone();
    if let Some(name) = dictionary.get_mut("name") {
        *name = shared_name(name);
    }
    json!({
        "gpt2": report["gpt2"],
        "model": shared_name(&report["model"]),
        "dictionary": dictionary,
        "tokens": report["tokens"],
        "l0": report["l0"],
        "explained_variance": report["explained_variance"],
    })
}

/// A name for others to see.
pub(super) fn shared_name(name: &Value) -> Value {
    name.as_str().map_or_else(|| name.clone(), |name| without_folders(name).into())
}
