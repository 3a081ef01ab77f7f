//! GPT-2 inside a page: the model runs where the reader types, compiled to WebAssembly.
//!
//! | file | content |
//! |---|---|
//! | `result_cache` | results for hidden states, used again while these stay the same |
//! | `live` | [`Live`]: a model and its tokenizer, which answers a request with the data of a page and the next token |
//! | `request` | [`PageRequest`]: what a page asks; [`PageAnswer`]: what it gets |
//! | `token_path` | [`FollowedToken`]: which token to follow through the model, and what each [`Stage`] computes for it |
//! | `page` | [`LiveFile`]: the page as one file, with the module and the model in it |
//! | `interface` | [`INTERFACE`]: by which a page and a module know that they belong together |
//! | `module` | what the page's worker calls, in builds for WebAssembly |

mod interface;
mod live;
#[cfg(target_family = "wasm")]
mod module;
mod page;
mod request;
mod result_cache;
mod token_path;

pub use interface::INTERFACE;
pub use live::{DEMO, Live};
pub use page::LiveFile;
pub use request::{DrawSettings, Effect, Next, PageAnswer, PageRequest};
pub use token_path::{FollowedToken, STAGES, Stage, TokenPath};

// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
