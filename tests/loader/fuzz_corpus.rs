//! Runs the fuzzer's seeds, and the inputs that it once found, as ordinary tests: see `scripts/fuzz.sh`.

#[path = "../../fuzz/src/targets/mod.rs"]
mod targets;

use crate::common::Result;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// The files in `fuzz/<folder>/<target>`; none if there is no such folder.
fn inputs(folder: &str, target: &str) -> Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(folder).join(target);
    if !folder.exists() {
        return Ok(vec![]);
    }
    let mut files = folder.read_dir()?.map(|file| Ok(file?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

#[test]
fn no_input_of_the_fuzzer_breaks_a_promise() -> Result {
    let mut broken = vec![];
    for (name, target) in targets::TARGETS {
        let seeds = inputs("corpus", name)?;
        assert!(!seeds.is_empty(), "fuzz/corpus/{name} has no seeds; run fuzz/make_corpus.py");
        for file in [seeds, inputs("found", name)?].concat() {
            let data = std::fs::read(&file)?;
            if catch_unwind(|| target(&data)).is_err() {
                broken.push(file);
            }
        }
    }
    assert!(broken.is_empty(), "the panics above came from {broken:#?}");
    Ok(())
}
