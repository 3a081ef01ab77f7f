//! The continuation of a prompt: its tokens as text, up to the end token or the first of some stop strings.

use gpt2_loader::{TextStream, Tokenizer};
use gpt2_model::Config;
use std::ops::Deref;

/// The default number of new tokens, if the context has room for them.
const NEW_TOKENS: usize = 100;

/// The most tokens to generate after a prompt of `prompt` tokens: `asked`, or else 100, or fewer where the context has
/// no room for 100.
#[must_use]
pub fn new_tokens(asked: Option<usize>, config: &Config, prompt: usize) -> usize {
    // The last new token is never fed back to the model.
    asked.unwrap_or(NEW_TOKENS.min((config.n_positions + 1).saturating_sub(prompt)))
}

/// The text after a prompt, or the ids after a prompt of ids. `T` leads to the tokenizer.
#[derive(Debug)]
pub struct Continuation<T> {
    /// The tokens that end a text.
    ends: Vec<u32>,
    /// `None` for ids.
    stream: Option<TextStream<T>>,
    until: Until,
    /// The generated ids, including the end token.
    pub ids: Vec<u32>,
    /// Their text without the end token, or the ids with commas between them.
    pub text: String,
}

impl<T: Deref<Target = Tokenizer>> Continuation<T> {
    /// A continuation as text with a tokenizer, and as ids without one; it ends before the first of `stops`.
    #[must_use]
    pub fn new(config: &Config, tokenizer: Option<T>, stops: &[String]) -> Self {
        let ends = config.eos_token_id.as_ref().map(|ids| ids.as_slice().to_vec()).unwrap_or_default();
        let stream = tokenizer.map(TextStream::new);
        Self { ends, stream, until: Until::new(stops.to_vec()), ids: vec![], text: String::new() }
    }

    /// Adds a token. Returns the text that it adds.
    pub fn push(&mut self, id: u32) -> String {
        let first = self.ids.is_empty();
        self.ids.push(id);
        if self.ends.contains(&id) {
            return String::new();
        }
        let piece = match &mut self.stream {
            Some(stream) => self.until.push(&stream.push(id)),
            None => format!("{}{id}", if first { "" } else { "," }),
        };
        self.text.push_str(&piece);
        piece
    }

    /// Ends the text. Returns the part of it that was still held back.
    pub fn finish(&mut self) -> String {
        let Some(stream) = self.stream.take() else { return String::new() };
        let rest = self.until.push(&stream.finish()) + &self.until.finish();
        self.text.push_str(&rest);
        rest
    }

    /// The stop string that ended the text.
    #[must_use]
    pub fn stopped_at(&self) -> Option<&str> {
        self.until.found()
    }

    /// Whether the last token is one that ends a text.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.ids.last().is_some_and(|id| self.ends.contains(id))
    }
}

/// A text that arrives in pieces, up to the first stop string.
#[derive(Debug)]
struct Until {
    stops: Vec<String>,
    /// The last characters, which may begin a stop string.
    held: String,
    /// The index of the stop string that ended the text.
    found: Option<usize>,
}

impl Until {
    fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new(), found: None }
    }

    fn found(&self) -> Option<&str> {
        self.found.map(|i| self.stops[i].as_str())
    }

    /// Adds `piece`. Returns the text that certainly belongs to no stop string.
    fn push(&mut self, piece: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        // Character by character, so that the stop string that ends first ends the text.
        for c in piece.chars() {
            self.held.push(c);
            let ends = self.stops.iter().enumerate().filter(|(_, stop)| self.held.ends_with(stop.as_str()));
            if let Some((i, stop)) = ends.max_by_key(|(_, stop)| stop.len()) {
                self.found = Some(i);
                self.held.truncate(self.held.len() - stop.len());
                return std::mem::take(&mut self.held);
            }
        }
        let begins = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let places = self.held.char_indices().map(|(at, _)| at);
        let certain = places.into_iter().find(begins).unwrap_or(self.held.len());
        let rest = self.held.split_off(certain);
        std::mem::replace(&mut self.held, rest)
    }

    /// Ends the text. Returns the characters that were held back.
    fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_ends_before_the_first_stop_string_however_it_is_cut() {
        let stops = ["\n\n", "END.", "né"].map(String::from);
        for (text, expected, found) in [
            ("one\ntwo\n\nthree", "one\ntwo", Some("\n\n")),
            ("the END is near, END", "the END is near, END", None),
            ("EEND.END.", "E", Some("END.")),
            ("END.\n\n", "", Some("END.")),
            ("fiancé, née", "fiancé, ", Some("né")),
            ("open\n", "open\n", None),
            ("", "", None),
        ] {
            let characters: Vec<String> = text.chars().map(String::from).collect();
            for size in 1..=text.len().max(1) {
                let mut until = Until::new(stops.to_vec());
                let mut got: String =
                    characters.chunks(size).map(|piece| until.push(&piece.concat())).collect();
                got.push_str(&until.finish());
                assert_eq!((got.as_str(), until.found()), (expected, found), "{text:?} by {size}");
            }
        }
        let stops = ["abc", "b"].map(String::from);
        for pieces in [&["abc"][..], &["ab", "c"], &["a", "b", "c"]] {
            let mut until = Until::new(stops.to_vec());
            let got: String = pieces.iter().map(|piece| until.push(piece)).collect();
            assert_eq!((got.as_str(), until.found()), ("a", Some("b")), "the one that ends first");
        }
    }
}
