//! [`TextStream`]: text from ids that arrive one by one.

use super::Tokenizer;
use std::ops::Deref;

/// Text from ids that arrive one by one. A character whose bytes are spread over several tokens comes out complete
/// with the last of them.
#[derive(Debug)]
pub struct TextStream<T> {
    tokenizer: T,
    /// The ids since the last whole character.
    pending: Vec<u32>,
    /// The number of bytes of their text that have been returned.
    written: usize,
}

impl Tokenizer {
    /// A decoder that takes ids one by one.
    #[must_use]
    pub fn stream(&self) -> TextStream<&Self> {
        TextStream::new(self)
    }
}

impl<T: Deref<Target = Tokenizer>> TextStream<T> {
    /// A decoder that owns or shares its tokenizer, for example through an `Arc`.
    #[must_use]
    pub fn new(tokenizer: T) -> Self {
        Self { tokenizer, pending: vec![], written: 0 }
    }

    /// The text that `id` completes; empty while a character is unfinished.
    pub fn push(&mut self, id: u32) -> String {
        self.pending.push(id);
        let text = self.tokenizer.decode(&self.pending);
        // The bytes of an unfinished character decode to one replacement character at the end.
        let whole = text.strip_suffix(char::REPLACEMENT_CHARACTER);
        let out = whole.unwrap_or(&text).get(self.written..).unwrap_or_default().to_string();
        self.written += out.len();
        if whole.is_none() {
            self.pending.clear();
            self.written = 0;
        }
        out
    }

    /// The rest of the text, after the last id.
    #[must_use]
    pub fn finish(self) -> String {
        self.tokenizer.decode(&self.pending).get(self.written..).unwrap_or_default().to_string()
    }
}
