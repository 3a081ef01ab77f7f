//! Loads pretrained GPT-2 models, and saves them.
//!
//! `source -> files -> audited checkpoint -> model + tokenizer`. This crate reads no environment variables
//! and prints nothing; every failure is a [`LoadError`] that names the file, what was expected, what was
//! found and what to do.
//!
//! ```no_run
//! use candle_core::{DType, Device};
//! use gpt2_loader::{Checkpoint, Source, Tokenizer};
//! use gpt2_model::ForwardArgs;
//!
//! # fn main() -> Result<(), gpt2_loader::LoadError> {
//! let files = Source::directory("path/to/gpt2").open()?;
//! let checkpoint = Checkpoint::open(&files)?;
//! let tokenizer = Tokenizer::open(&files, checkpoint.config().vocab_size)?;
//! let model = checkpoint.load_model(DType::F32, &Device::Cpu)?;
//! let input_ids = model.ids(&tokenizer.encode("O Romeo")?)?; // (1, T)
//! let logits = model.forward(&input_ids, ForwardArgs::default())?.logits; // (1, T, V)
//! # Ok(())
//! # }
//! ```

mod adapter;
mod checkpoint;
mod dictionary;
mod error;
mod files;
mod formats;
pub mod hub;
mod save;
mod source;
mod stored;
mod tokenizer;

pub use adapter::checkpoint::{AdapterCheckpoint, AdapterFiles};
pub use adapter::config::{AdapterConfig, ModulePatterns, OneOrMany, Patterns};
pub use candle_core;
pub use candle_nn;
pub use checkpoint::Checkpoint;
pub use checkpoint::findings::{Advice, Finding};
pub use checkpoint::generation_config::GenerationConfig;
pub use checkpoint::numbers::Numbers;
pub use dictionary::config::{Architecture, DictionaryConfig, Normalization};
pub use dictionary::{DictionaryCheckpoint, DictionaryOrigin};
pub use error::LoadError;
pub use error::adapter_audit::AdapterAudit;
pub use error::audit::{Audit, Mismatch};
pub use error::unspellable::Unspellable;
pub use files::{FILE_NAMES, Files, SettingsFiles, TokenizerFiles, WeightFiles};
pub use formats::gguf_types::GgufType;
pub use formats::safetensors_file::Header;
pub use hub::{Hub, HubError, ModelId, Remedy};
pub use save::adapter::save_adapter;
pub use save::dictionary::{NewDictionary, save_dictionary};
pub use save::gguf::{save_gguf, to_gguf};
pub use save::import::{Imported, import};
pub use save::model::{SaveOptions, check_savable, save, stale_settings};
pub use source::{EmbeddedFiles, Source};
pub use stored::bytes::Bytes;
pub use stored::recognize::FileKind;
pub use stored::unpack_to_f32::Packed;
pub use stored::{Encoding, TensorInfo};
pub use tokenizer::Tokenizer;
pub use tokenizer::stream::TextStream;

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
