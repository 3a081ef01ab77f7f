//! Checkpoints: a saved one loads again, every existing kind loads, and each kind of damage has a message.

mod adapter;
mod audit;
#[path = "../common/mod.rs"]
mod common;
mod config;
mod dictionary;
#[path = "../common/folder.rs"]
mod folder;
mod foreign_checkpoints;
mod fuzz_corpus;
mod generation_config;
mod gguf;
mod gguf_damage;
mod gguf_parts;
mod gguf_written;
mod halves;
mod in_memory;
mod kinds;
#[path = "../common/models.rs"]
mod models;
#[path = "../common/other_layer.rs"]
mod other_layer;
mod pickle;
#[path = "../common/pickles.rs"]
mod pickles;
mod round_trip;
mod tokenizer;
mod tokenizer_limits;
mod tokenizer_settings;
mod tokenizer_shape;
mod tokenizer_text;
mod weights;

use crate::common::{Result, data};
use crate::folder::{Folder, Tensors, assert_says, read};
use candle_core::{DType, Device, Tensor};
use gpt2_loader::{Checkpoint, LoadError, SaveOptions, Source, Tokenizer, save};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel};
use serde_json::Value;

/// Each f32 as its bits.
fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(tensor.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
}

/// Every parameter by name, as bits in f32.
fn parameter_bits(model: &Gpt2LMHeadModel) -> Result<Vec<(String, Vec<u32>)>> {
    model
        .named_parameters()
        .into_iter()
        .map(|(name, t)| Ok((name, bits(&t.tensor()?.to_dtype(DType::F32)?)?)))
        .collect()
}

/// The logits' bits over a whole context of different ids.
fn logit_bits(model: &Gpt2LMHeadModel) -> Result<Vec<u32>> {
    let n = model.config().n_positions;
    let v = model.config().vocab_size;
    let ids: Vec<u32> =
        (0..n).map(|i| u32::try_from((i * 7 + 3) % v)).collect::<std::result::Result<_, _>>()?;
    let ids = Tensor::from_vec(ids, (1, n), &Device::Cpu)?;
    bits(&model.forward(&ids, ForwardArgs::default())?.logits)
}

/// The tensors of the case `odd`.
fn odd() -> Result<Tensors> {
    read(&data("odd").join("model.safetensors"))
}

/// A folder in which `model` was saved.
fn saved(model: &Gpt2LMHeadModel, options: SaveOptions) -> Result<Folder> {
    let folder = Folder::empty()?;
    save(folder.path(), model, None, options)?;
    Ok(folder)
}

/// The demo model and its tokenizer.
fn demo() -> Result<(Checkpoint, Tokenizer)> {
    let files = Source::directory(data("../../models/tiny-shakespeare")).open()?;
    Ok((Checkpoint::open(&files)?, Tokenizer::open(&files, 1024)?))
}

/// A folder with this tokenizer.json, of which everything counts.
fn with_tokenizer(file: &Value) -> Result<Folder> {
    let folder = Folder::of("gelu")?;
    folder.write("tokenizer_config.json", r#"{"tokenizer_class": "PreTrainedTokenizerFast"}"#)?;
    folder.write("tokenizer.json", file.to_string())?;
    Ok(folder)
}

/// The tokenizer of a folder, for a model of `vocab_size` tokens.
fn open_tokenizer(folder: &Folder, vocab_size: usize) -> std::result::Result<Tokenizer, LoadError> {
    Tokenizer::open(&Source::directory(folder.path()).open()?, vocab_size)
}

/// Fails unless loading the folder says that `file` is damaged, or is another kind of file than its name says if it looks like
/// one, what to do, and all of `parts`.
#[track_caller]
fn assert_damaged(what: &str, folder: &Folder, file: &str, parts: &[&str]) {
    let error = folder.load().expect_err(what);
    let is_other = matches!(error, LoadError::OtherFile { .. });
    assert!(is_other || matches!(error, LoadError::Damaged { .. }), "{what}: {error:?}");
    let path = folder.at(file);
    let message = error.to_string();
    let format = match file {
        pickles::BIN => "PyTorch file",
        _ => "safetensors",
    };
    let format = format!("{} a {format}", if is_other { "; expected" } else { "damaged or not" });
    assert_says(what, &message, &[&[path.as_str(), format.as_str()], parts].concat());
    let remedies = ["fetch", "git lfs pull", "unpack it"];
    assert!(remedies.iter().any(|remedy| message.contains(remedy)), "{what}: {message}");
}
