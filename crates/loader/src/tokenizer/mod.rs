//! Text to token ids and back, from the files beside a checkpoint.

mod bpe;
mod file;
mod guard;
mod list;
mod parts;
mod shape;
mod spelling;
mod stream;
pub(crate) mod unspellable;
mod vocab;

pub use bpe::Tokenizer;
pub(crate) use list::List;
pub use stream::TextStream;
pub use unspellable::Unspellable;
