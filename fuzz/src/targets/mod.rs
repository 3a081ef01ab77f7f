//! What is done with each input. A target panics only where the loader breaks a promise: bad input is refused
//! with an error that names the file, and what is accepted works.

mod checkpoint;
mod interventions;
mod tokenizer;

use std::path::PathBuf;
use tempfile::TempDir;

/// Does with an input what a target is about.
pub(crate) type Target = fn(&[u8]);

/// Every target, by the name of its folder in `corpus/`.
pub(crate) const TARGETS: [(&str, Target); 12] = [
    ("config", checkpoint::config),
    ("safetensors", checkpoint::safetensors),
    ("index", checkpoint::index),
    ("gguf", checkpoint::gguf),
    ("gguf_parts", checkpoint::gguf_parts),
    ("alone", checkpoint::alone),
    ("pickle", checkpoint::pickle),
    ("pickle_zip", checkpoint::pickle_zip),
    ("tokenizer_json", tokenizer::json),
    ("vocab_merges", tokenizer::vocab_merges),
    ("prompts", tokenizer::prompts),
    ("interventions", interventions::texts),
];

/// The first parts of an input, each after its length in two bytes, and what follows them. A length beyond the
/// end means all that is there.
fn parts<const N: usize>(mut data: &[u8]) -> ([&[u8]; N], &[u8]) {
    let parts = std::array::from_fn(|_| {
        let (len, rest) =
            data.split_first_chunk().map_or((0, data), |(len, rest)| (u16::from_le_bytes(*len), rest));
        let (part, rest) = rest.split_at(usize::from(len).min(rest.len()));
        data = rest;
        part
    });
    (parts, data)
}

/// An error is said in words, and names `file`.
#[track_caller]
fn assert_names(error: &gpt2_loader::LoadError, file: &str) {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    assert!(text.contains(file), "an error that does not name {file}: {text}");
    assert!(!text.contains("the tokenizer broke off"), "a panic that the checks let through: {text}");
}

thread_local! {
    /// Made once: a fuzzer runs thousands of inputs a second.
    static DIR: TempDir = tempfile::tempdir().expect("a temporary folder");
}

/// A folder for the files of one input, in memory where the system has such a place; they are gone with it.
struct Folder(Vec<PathBuf>);

impl Folder {
    fn new() -> Self {
        Self(vec![])
    }

    fn dir() -> PathBuf {
        DIR.with(|dir| dir.path().to_path_buf())
    }

    fn write(&mut self, name: &str, data: &[u8]) -> PathBuf {
        let path = Self::dir().join(name);
        std::fs::write(&path, data).expect("the temporary folder can be written to");
        self.0.push(path.clone());
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}
