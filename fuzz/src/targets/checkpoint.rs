//! Checkpoints: config.json, safetensors, an index of shards, and pickles.

use super::{Folder, assert_names, parts};
use candle_core::{DType, Device, Tensor};
use gpt2_loader::{
    Bytes, Checkpoint, Files, Header, LoadError, Source, Tokenizer, TokenizerFiles, WeightFiles,
};
use gpt2_model::{Config, ForwardArgs};
use std::io::{Cursor, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Storages `0` to `19`, each large enough for any tensor of the tiny model.
const STORAGES: usize = 20;
const STORAGE: [u8; 256] = [0; 256];

/// The config of the corpus's models, 300 numbers each, with and without a table of `lm_head`'s own.
fn tiny(tie_word_embeddings: bool) -> Vec<u8> {
    let config = Config {
        vocab_size: 5,
        n_positions: 4,
        n_embd: 4,
        n_layer: 1,
        n_head: 2,
        bos_token_id: None,
        eos_token_id: None,
        tie_word_embeddings,
        ..Config::gpt2()
    };
    serde_json::to_vec(&config).expect("a config is JSON")
}

/// config.json, without weights.
pub(super) fn config(data: &[u8]) {
    let mut folder = Folder::new();
    let open = |path: std::path::PathBuf| {
        Checkpoint::open(&Files::new(
            "fuzz".into(),
            (path.clone(), Bytes::open(&path)?),
            WeightFiles::Headers(vec![]),
            TokenizerFiles::Absent,
        ))
    };
    let checkpoint = match open(folder.write("config.json", data)) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return assert_names(&error, "config.json"),
    };
    let config = checkpoint.config();
    config.validate().expect("an accepted config is valid");
    let audit = checkpoint.audit();
    assert!(!audit.is_clean() && audit.to_string().contains("missing"), "no file holds the weights");
    assert!(!checkpoint.findings().is_empty());

    let saved = serde_json::to_vec(config).expect("a config is JSON");
    let again = open(folder.write("saved.json", &saved)).expect("a saved config is accepted");
    // Floats may differ in their last digit.
    let sizes = |c: &Config| (c.vocab_size, c.n_positions, c.n_embd, c.n_layer, c.n_head, c.inner_dim());
    assert_eq!(sizes(again.config()), sizes(config));
    assert_eq!(again.config().eos_token_id, config.eos_token_id);
}

/// model.safetensors beside the tiny config, whole and as a header.
pub(super) fn safetensors(data: &[u8]) {
    let mut folder = Folder::new();
    folder.write("model.safetensors", data);
    for tied in [true, false] {
        folder.write("config.json", &tiny(tied));
        let whole = open_here("safetensors");
        let header = Header {
            path: "model.safetensors".into(),
            bytes: data.to_vec(),
            file_len: Some(data.len() as u64),
        };
        let config = Folder::dir().join("config.json");
        let json = (config.clone(), Bytes::open(&config).expect("it was written above"));
        let headers = WeightFiles::Headers(vec![header]);
        let of_header = Checkpoint::open(&Files::new("fuzz".into(), json, headers, TokenizerFiles::Absent));
        if let Some(whole) = whole {
            let of_header = of_header.expect("the header of a file that opens opens alone");
            let tensors = |c: &Checkpoint| -> Vec<_> {
                c.tensors().map(|(name, info)| (name.to_string(), info.dtype, info.shape.clone())).collect()
            };
            assert_eq!(tensors(&of_header), tensors(&whole));
        }
    }
}

/// model.safetensors.index.json, and two shards.
pub(super) fn index(data: &[u8]) {
    let ([index, first], second) = parts(data);
    let mut folder = Folder::new();
    folder.write("config.json", &tiny(true));
    folder.write("model.safetensors.index.json", index);
    folder.write("model-00001-of-00002.safetensors", first);
    folder.write("model-00002-of-00002.safetensors", second);
    open_here("safetensors");
}

/// A pickle inside a valid `pytorch_model.bin`.
pub(super) fn pickle(data: &[u8]) {
    pickle_zip(&archive_around(data));
}

/// A `pytorch_model.bin` around a pickle: a valid zip, so that the fuzzer reaches what is inside.
fn archive_around(pickle: &[u8]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(vec![]));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    let mut add = |name: String, data: &[u8]| {
        zip.start_file(name, options).expect("a new entry");
        zip.write_all(data).expect("memory can be written to");
    };
    add("archive/data.pkl".into(), pickle);
    (0..STORAGES).for_each(|i| add(format!("archive/data/{i}"), &STORAGE));
    zip.finish().expect("a zip").into_inner()
}

/// A whole `pytorch_model.bin`.
pub(super) fn pickle_zip(data: &[u8]) {
    let mut folder = Folder::new();
    folder.write("config.json", &tiny(true));
    folder.write("pytorch_model.bin", data);
    open_here("pytorch_model.bin");
}

/// One file of weights by its content, with a config beside it that it may not need.
pub(super) fn alone(data: &[u8]) {
    let mut folder = Folder::new();
    folder.write("config.json", &tiny(true));
    let path = folder.write("pytorch_model.bin", data);
    match Source::File(path).open().and_then(|files| Checkpoint::open(&files)) {
        Ok(checkpoint) => look(&checkpoint),
        Err(error) => assert_names(&error, "pytorch_model.bin"),
    }
}

/// A GGUF file in two parts, from either of them.
pub(super) fn gguf_parts(data: &[u8]) {
    let ([first], second) = parts(data);
    let mut folder = Folder::new();
    let paths = [("a-00001-of-00002.gguf", first), ("a-00002-of-00002.gguf", second)]
        .map(|(name, data)| folder.write(name, data));
    for path in paths {
        match Source::Gguf(path).open().and_then(|files| Checkpoint::open(&files)) {
            Ok(checkpoint) => {
                let _ = checkpoint.load_model(DType::F32, &Device::Cpu);
            }
            Err(error) => assert_names(&error, ".gguf"),
        }
    }
}

/// Opens the folder and does with the checkpoint what the command does; an error names `file`.
fn open_here(file: &str) -> Option<Checkpoint> {
    match Source::directory(Folder::dir()).open().and_then(|files| Checkpoint::open(&files)) {
        Ok(checkpoint) => {
            look(&checkpoint);
            for (name, info) in checkpoint.tensors() {
                let is_own = info.name.ends_with(name) || name.starts_with("beside ");
                assert!(is_own, "{name} of {}", info.name);
            }
            Some(checkpoint)
        }
        Err(error) => {
            assert_names(&error, file);
            None
        }
    }
}

fn look(checkpoint: &Checkpoint) {
    let audit = checkpoint.audit();
    assert!(!audit.to_string().is_empty());
    assert!(!checkpoint.findings().is_empty());
    assert!(checkpoint.tensors().all(|(name, info)| !name.is_empty() && !info.file_name().is_empty()));
    match checkpoint.load_model(DType::F32, &Device::Cpu) {
        Ok(model) => {
            assert!(audit.is_clean(), "a model was built in spite of {audit}");
            let ids = Tensor::new(&[[0u32, 4, 2]], &Device::Cpu).expect("ids");
            // Weights that are not finite may be refused here.
            let _ = model.forward(&ids, ForwardArgs::default());
        }
        Err(LoadError::Audit(_)) => assert!(!audit.is_clean(), "refused, and nothing is wrong: {audit}"),
        // A storage whose checksum does not hold.
        Err(error @ LoadError::Damaged { .. }) => assert_names(&error, "pytorch_model.bin"),
        Err(error) => panic!("what the audit passed cannot be loaded: {error}"),
    }
}

/// A GGUF file.
pub(super) fn gguf(data: &[u8]) {
    let mut folder = Folder::new();
    let path = folder.write("model.gguf", data);
    let files = match Source::Gguf(path).open() {
        Ok(files) => files,
        Err(error) => return assert_names(&error, "model.gguf"),
    };
    let checkpoint = match Checkpoint::open(&files) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return assert_names(&error, "model.gguf"),
    };
    if let Err(error) = Tokenizer::open(&files, checkpoint.config().vocab_size) {
        assert_names(&error, "model.gguf");
    }
    assert!(!checkpoint.findings().is_empty());
    for dtype in [DType::F32, DType::F16] {
        if let Err(error) = checkpoint.load_model(dtype, &Device::Cpu) {
            assert_names(&error, "model.gguf");
        }
    }
}
