//! The models by one interface, in candle-transformers' version and in ours.

use anyhow::Result;
use candle_core::Tensor;

/// A model of either kind, with its inputs made from a batch and a number of positions.
pub trait Model {
    /// All of a prompt, or of what an encoder reads: ids (B, T) -> logits of the last token, or states (B, T, C). Forgets what it
    /// read before.
    ///
    /// # Errors
    /// When the model fails.
    fn read(&mut self, ids: &Tensor) -> Result<Tensor>;

    /// The next token, (B, 1), after `past` others -> logits; `None` for an encoder.
    ///
    /// # Errors
    /// When the model fails.
    fn step(&mut self, ids: &Tensor, past: usize) -> Result<Option<Tensor>>;
}

/// Models from candle-transformers' source with the exchanges of the folder `exchanges`.
#[allow(warnings, clippy::all, clippy::pedantic)]
mod exchanged {
    macro_rules! models {
        ($($name:ident),+) => {
            $(pub mod $name {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));
            })+
        };
    }
    models!(bert, gemma3, gemma3_mended, llama, mistral, modernbert, phi, qwen3);

    pub mod whisper {
        pub use candle_transformers::models::whisper::Config;
        pub mod model {
            include!(concat!(env!("OUT_DIR"), "/whisper.rs"));
        }
    }
}

/// Our versions.
pub mod ours {
    use super::exchanged as models;
    include!("adapters.rs");
}

/// candle-transformers' own.
pub mod theirs {
    mod models {
        pub(super) use super::super::exchanged::gemma3_mended as gemma3;
        pub(super) use candle_transformers::models::{bert, llama, mistral, modernbert, phi, qwen3, whisper};
    }
    include!("adapters.rs");
}
