//! Files in memory, as a browser hands them over, give what the same files on disk give.

use crate::common::{Result, data};
use crate::folder::{Folder, assert_says};
use crate::logit_bits;
use candle_core::{DType, Device};
use gpt2_loader::{Checkpoint, Files, LoadError, Source, Tokenizer};
use std::collections::BTreeMap;
use std::path::Path;

/// Every file of a folder, by its name.
fn content(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        files.insert(entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?);
    }
    Ok(files)
}

fn bits(files: &Files) -> Result<Vec<u32>> {
    logit_bits(&Checkpoint::open(files)?.load_model(DType::F32, &Device::Cpu)?)
}

#[test]
fn a_model_in_memory_is_the_one_on_disk() -> Result {
    let demo = data("../../models/tiny-shakespeare");
    for folder in [data("odd"), data("pickle"), demo.clone()] {
        let on_disk = Source::directory(&folder).open()?;
        let in_memory = Files::in_memory("dropped", content(&folder)?)?;
        assert_eq!(bits(&in_memory)?, bits(&on_disk)?, "{}", folder.display());
        assert_eq!(in_memory.name, "dropped");
    }
    let files = Files::in_memory("dropped", content(&demo)?)?;
    assert_eq!(Tokenizer::open(&files, 1024)?.encode("O Romeo")?, crate::demo()?.1.encode("O Romeo")?);
    for file in std::fs::read_dir(data("gguf"))?.map(|entry| entry.map(|entry| entry.path())) {
        let file = file?;
        if file.extension().is_some_and(|of| of == "gguf") {
            let on_disk = Source::Gguf(file.clone()).open()?;
            // The extension may be in capitals, and other files may lie beside it.
            let both = [("MODEL.GGUF".to_owned(), std::fs::read(&file)?), ("README.md".to_owned(), vec![])];
            let in_memory = Files::in_memory("dropped", both.into())?;
            assert_eq!(bits(&in_memory)?, bits(&on_disk)?, "{}", file.display());
        }
    }
    Ok(())
}

#[test]
fn what_is_missing_in_memory_is_named() -> Result {
    let all = content(&data("../../models/tiny-shakespeare"))?;
    let with = |names: &[&str]| -> BTreeMap<String, Vec<u8>> {
        names.iter().map(|name| ((*name).to_owned(), all.get(*name).cloned().unwrap_or_default())).collect()
    };
    for (names, says) in [
        (&[][..], &["dropped", "config.json"][..]),
        (&["model.safetensors"], &["dropped", "no config.json"]),
        (&["config.json"], &["dropped", "no weights", "model.safetensors"]),
        (&["config.json", "model.safetensors", "vocab.json"], &["dropped", "merges.txt is missing"]),
        (&["config.json", "model.safetensors.index.json"], &["dropped", "several files", "GGUF"]),
        (&["a.gguf", "b.gguf"], &["dropped", "several files"]),
        (&["a.gguf"], &["a.gguf", "GGUF"]),
    ] {
        let error = Files::in_memory("dropped", with(names)).expect_err("not a model").to_string();
        assert_says(&format!("{names:?}"), &error, says);
    }
    // As on disk, what lies beside the whole file is not read.
    let beside = ["model.safetensors.index.json", "tokenizer.json", "a.gguf", "b.gguf"];
    let all_of_them = with(&[&["config.json", "model.safetensors"], &beside[..]].concat());
    Checkpoint::open(&Files::in_memory("dropped", all_of_them)?)?;
    let mut damaged = with(&["config.json", "model.safetensors"]);
    damaged.entry("model.safetensors".into()).or_default().truncate(1000);
    let error = Checkpoint::open(&Files::in_memory("dropped", damaged)?).expect_err("half a file");
    assert!(matches!(error, LoadError::Damaged { .. }), "{error:?}");
    assert_says("half a file", &error.to_string(), &["dropped", "model.safetensors"]);
    Ok(())
}

#[test]
fn vocab_and_merges_may_be_in_memory() -> Result {
    let folder = Folder::of("gelu")?;
    folder.write("vocab.json", r#"{"h": 0, "e": 1, "he": 2, "<|endoftext|>": 3}"#)?;
    folder.write("merges.txt", "#version: 0.2\nh e\n")?;
    let in_memory = Files::in_memory("dropped", content(folder.path())?)?;
    let on_disk = Source::directory(folder.path()).open()?;
    let [a, b] =
        [in_memory, on_disk].map(|files| Tokenizer::open(&files, 4).and_then(|it| it.encode("hehe")));
    assert_eq!(a?, b?);
    Ok(())
}
