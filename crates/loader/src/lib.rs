//! Loads pretrained GPT-2 models, and saves them.
//!
//! `source -> files -> audited checkpoint -> model + tokenizer`. This crate reads no environment variables
//! and prints nothing; every failure is a [`LoadError`] that names the file, what was expected, what was
//! found and what to do.
//!
//! ```no_run
//! use candle_core::{DType, Device};
//! use gpt2_loader::{Checkpoint, Source, Tokenizer};
//!
//! # fn main() -> Result<(), gpt2_loader::LoadError> {
//! let files = Source::directory("path/to/gpt2").open()?;
//! let checkpoint = Checkpoint::open(&files)?;
//! let tokenizer = Tokenizer::open(&files, checkpoint.config().vocab_size)?;
//! let model = checkpoint.load_model(DType::F32, &Device::Cpu)?;
//! # Ok(())
//! # }
//! ```

mod adapter;
mod audit;
mod bytes;
mod checkpoint;
mod dictionary;
mod doctor;
mod error;
mod files;
mod gguf;
pub mod hub;
mod names;
mod pickle;
mod safetensors_file;
mod save;
mod save_gguf;
mod source;
mod stored;
mod tokenizer;

pub use adapter::{
    AdapterAudit, AdapterCheckpoint, AdapterConfig, AdapterFiles, Names, OneOrMany, Patterns, save_adapter,
};
pub use audit::{Audit, Mismatch};
pub use bytes::Bytes;
pub use candle_core;
pub use candle_nn;
pub use checkpoint::Checkpoint;
pub use dictionary::{
    Architecture, DictionaryCheckpoint, DictionaryConfig, DictionaryOrigin, NewDictionary, Normalization,
    save_dictionary,
};
pub use doctor::{Advice, Finding};
pub use error::LoadError;
pub use files::{FILE_NAMES, Files, TokenizerFiles, WeightFiles};
pub use gguf::GgufType;
pub use hub::{Hub, HubError, ModelId, Remedy};
pub use safetensors_file::Header;
pub use save::{SaveOptions, check_savable, save};
pub use save_gguf::{save_gguf, to_gguf};
pub use source::{EmbeddedFiles, Source};
pub use stored::{Encoding, TensorInfo};
pub use tokenizer::{TextStream, Tokenizer, Unspellable};

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
