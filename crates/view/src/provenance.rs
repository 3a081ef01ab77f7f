//! The record of how a file was made: a line for people, facts for programs.

use crate::text::visible_text;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

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
    match path_here(name) {
        Some(path) => last_parts(&path, 1),
        None => name.to_owned(),
    }
}

/// Names for others to see: of paths on this machine, the fewest last parts that tell them apart.
#[must_use]
pub(crate) fn all_without_folders(names: &[&str]) -> Vec<String> {
    let paths: Vec<Option<PathBuf>> = names.iter().map(|name| path_here(name)).collect();
    let distinct = |names: &[String]| names.iter().collect::<BTreeSet<_>>().len();
    let most = paths.iter().flatten().map(|path| path.components().count()).max().unwrap_or(1);
    let all = names.iter().collect::<BTreeSet<_>>().len();
    let with = |parts: usize| {
        let shorten = |(path, name): (&Option<PathBuf>, &&str)| {
            path.as_ref().map_or_else(|| (*name).to_owned(), |path| last_parts(path, parts))
        };
        paths.iter().zip(names).map(shorten).collect::<Vec<String>>()
    };
    // One place under two names has no parts that tell it apart.
    (1..=most).map(with).find(|short| distinct(short) == all).unwrap_or_else(|| with(1))
}

/// The absolute path, if the name is one on this machine. A name of the Hub, at a commit, is none.
fn path_here(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    if !path.is_absolute() && !path.exists() {
        return None;
    }
    // `..` goes up from where a link leads to.
    let goes_up = path.components().any(|part| part == Component::ParentDir);
    let plain = || std::path::absolute(path).ok();
    if goes_up { path.canonicalize().ok().or_else(plain) } else { plain() }
}

fn last_parts(path: &Path, count: usize) -> String {
    let all: Vec<_> = path
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .map(Component::as_os_str)
        .collect();
    let parts: PathBuf = all[all.len().saturating_sub(count)..].iter().collect();
    if all.is_empty() { "model".to_owned() } else { parts.to_string_lossy().into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_for_others_have_as_few_parts_as_tell_them_apart() {
        assert_eq!(without_folders("/home/me/m"), "m");
        assert_eq!(without_folders("/"), "model");
        assert_eq!(without_folders("owner/name"), "owner/name");
        // Tests run in the package's folder.
        assert_eq!(without_folders(".."), "crates");
        assert_eq!(without_folders("src/.."), "view");
        for (names, short) in [
            (["/a/layer0/tc", "/a/layer1/tc", "owner/name"], ["layer0/tc", "layer1/tc", "owner/name"]),
            (["/a/t0", "/b/t1", "demo"], ["t0", "t1", "demo"]),
            (["/a/x/t", "/b/x/t", "/a/x/t"], ["a/x/t", "b/x/t", "a/x/t"]),
        ] {
            assert_eq!(all_without_folders(&names), short);
        }
    }
}
