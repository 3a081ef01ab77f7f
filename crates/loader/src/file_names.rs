//! The names of a model's files, and which of them takes precedence if there are several.

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const SAFETENSORS: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
pub(crate) const PICKLE: &str = "pytorch_model.bin";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const VOCAB: &str = "vocab.json";
pub(crate) const MERGES: &str = "merges.txt";
pub(crate) const ADAPTER_CONFIG: &str = "adapter_config.json";
pub(crate) const ADAPTER_SAFETENSORS: &str = "adapter_model.safetensors";
pub(crate) const ADAPTER_PICKLE: &str = "adapter_model.bin";

/// The files that hold the parameters, or say which files do; the first that exists is used.
pub(crate) const WEIGHTS: [&str; 3] = [SAFETENSORS, INDEX, PICKLE];

/// The names under which [`Source::directory`](crate::Source::directory) looks for a model's files.
pub const FILE_NAMES: [&str; 7] = [CONFIG, SAFETENSORS, INDEX, PICKLE, TOKENIZER, VOCAB, MERGES];
