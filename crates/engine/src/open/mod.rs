//! A model by any name, ready to run: files found, weights loaded, adapters put on.

mod adapters;
pub mod attention_layer;
mod device;
mod dictionaries;
mod finite;
mod opened;
mod options;
mod taken;
mod with_adapters;

pub use adapters::{AdapterChoice, FoundAdapter, UsedAdapter, base_of_adapter};
pub use device::{DeviceChoice, device_name, rounds_to_tf32};
pub use dictionaries::{DictionaryFiles, OpenedDictionary};
pub use finite::{NotFiniteResult, check_finite, describe_not_finite, explain_not_finite};
pub use opened::{Label, Opened};
pub use options::{
    CACHES, DTYPES, FORMATS, FoundModel, IMPLEMENTATIONS, ModelOptions, checkpoint, kept_formats,
    open_tokenizer, quantized,
};
pub use taken::{HubThing, TakenForHub};
