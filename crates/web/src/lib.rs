//! GPT-2 inside a page: the model runs where the reader types, compiled to WebAssembly.
//!
//! | file | content |
//! |---|---|
//! | `kept` | results for hidden states, used again while these stay the same |
//! | `live` | [`Live`]: a model and its tokenizer, which answers a look with the data of a page and the next token |
//! | `look` | [`Look`]: what a page asks; [`Shown`]: what it gets |
//! | `way` | [`Along`]: which token to follow through the model, and what each [`Stage`] computes for it |
//! | `page` | [`LiveFile`]: the page as one file, with the module and the model in it |
//! | `module` | what the page's worker calls, in builds for WebAssembly |

mod kept;
mod live;
mod look;
#[cfg(target_family = "wasm")]
mod module;
mod page;
mod way;

pub use live::{DEMO, Live};
pub use look::{Draw, Effect, Look, Next, Shown};
pub use page::LiveFile;
pub use way::{Along, STAGES, Stage, Way};

// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
