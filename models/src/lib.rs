//! The demo model of the command `gpt2` and the text that it has learned from, as files in memory, and a list of known model files on the
//! Hugging Face Hub. This crate only holds their bytes and does not interpret them.
//!
//! ```
//! let config = std::str::from_utf8(gpt2_demo::CONFIG)?;
//! assert!(config.contains("\"n_embd\": 128"));
//! # Ok::<(), std::str::Utf8Error>(())
//! ```

/// The name of the demo model: the folder that its files come from.
pub const NAME: &str = "tiny-shakespeare";

/// Its `config.json`.
pub const CONFIG: &[u8] = include_bytes!("../tiny-shakespeare/config.json");

/// Its `model.safetensors`: 957,184 parameters in f16.
pub const WEIGHTS: &[u8] = include_bytes!("../tiny-shakespeare/model.safetensors");

/// The SHA-256 of [`WEIGHTS`], in hexadecimal.
pub const WEIGHTS_SHA256: &str = "14130f975b28bddd9b3329ce0641c5205bbcc62f3758986274f5168c7d09ed13";

/// Its `tokenizer.json`: a byte-level BPE of 1024 tokens.
pub const TOKENIZER: &[u8] = include_bytes!("../tiny-shakespeare/tokenizer.json");

/// The text that it has learned from, in UTF-8, packed by zlib: parts of Shakespeare's plays, 1,115,394 bytes.
pub const TEXT_PACKED: &[u8] = include_bytes!("../tiny-shakespeare/text.zlib");

/// The `cfg.json` of its dictionary of features.
pub const FEATURES_CONFIG: &[u8] = include_bytes!("../tiny-shakespeare-features/cfg.json");

/// The `sae_weights.safetensors` of that dictionary: 768 features of the stream after block 2, directions in f16.
pub const FEATURES_WEIGHTS: &[u8] = include_bytes!("../tiny-shakespeare-features/sae_weights.safetensors");

/// Models on the Hub, as JSON: a list of objects that each name a file of a model at a commit (`id`,
/// `revision`, `file`), with its `size`, its `sha256` if known, and the model's `license`.
pub const HUB_MODELS: &str = include_str!("../hub.json");
