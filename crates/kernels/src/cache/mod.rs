//! Caches of keys and values for decoding: what attention reads again for each new token.
//!
//! | | |
//! |---|---|
//! | [`KvCache`] | one layer, a batch of texts of one length: allocated once, with rewind and fork; or a window that forgets |
//! | [`PagedCache`] | all layers, many sequences of any lengths in one pool of pages: shared prefixes, fork, rewind |
//! | [`RowCache`] | keys or values alone: what [`KvCache`] is made of, and what a layer with both in one tensor needs |
//!
//! Each holds f64, f32, f16, bf16 or 8 bits a number ([`CacheDType::Q8_0`]). On the CPU, attention with queries in f32 reads all but
//! f64 in place. Writing in place keeps no gradient: a cache is for inference. The keys and values that cross-attention computes
//! from an encoder are appended once, and read with [`Window::ALL`](crate::attention::Window::ALL).

mod dtype;
mod kv;
mod paged;
mod row_cache;

pub use dtype::CacheDType;
pub use kv::KvCache;
pub use paged::{PagedCache, SequenceId};
pub use row_cache::RowCache;
