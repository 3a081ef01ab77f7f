//! LoRA adapters in the files of [PEFT](https://github.com/huggingface/peft) 0.21.
//!
//! ```no_run
//! use candle_core::{DType, Device};
//! use gpt2_loader::{AdapterCheckpoint, AdapterFiles, Checkpoint, Source};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Checkpoint::open(&Source::directory("gpt2").open()?)?.load_model(DType::F32, &Device::Cpu)?;
//! let files = AdapterFiles::directory("poems".as_ref())?;
//! let adapter = AdapterCheckpoint::open(&files)?.load(model.config())?;
//! let model = model.with_adapter("poems", &adapter, 1.0)?; // .merged()? to add it to the weights
//! # Ok(())
//! # }
//! ```

pub(crate) mod checkpoint;
pub(crate) mod config;
pub(crate) mod expected;
