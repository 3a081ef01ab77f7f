//! What follows a prompt: its tokens as text, up to the end token or the first of the strings of `--stop`.

use crate::prompt::Prompt;
use crate::session::Session;
use gpt2_loader::TextStream;

/// The text after a prompt, or the ids after a prompt of ids.
pub(super) struct Continuation<'a> {
    session: &'a Session,
    /// `None` for ids.
    stream: Option<TextStream<'a>>,
    until: Until<'a>,
    /// The generated ids, including the end token.
    pub(super) ids: Vec<u32>,
    pub(super) text: String,
}

impl<'a> Continuation<'a> {
    pub(super) fn new(session: &'a Session, prompt: &Prompt, stops: &'a [String]) -> anyhow::Result<Self> {
        let stream = prompt.text.as_ref().map(|_| anyhow::Ok(session.tokenizer()?.stream())).transpose()?;
        Ok(Self { session, stream, until: Until::new(stops), ids: vec![], text: String::new() })
    }

    /// Adds a token; what it adds to the text.
    pub(super) fn push(&mut self, id: u32) -> String {
        let first = self.ids.is_empty();
        self.ids.push(id);
        if self.session.model.config().is_eos(id) {
            return String::new();
        }
        let piece = match &mut self.stream {
            Some(stream) => self.until.push(&stream.push(id)),
            None => format!("{}{id}", if first { "" } else { "," }),
        };
        self.text.push_str(&piece);
        piece
    }

    /// What is left of the text when no more tokens come.
    pub(super) fn finish(&mut self) -> String {
        let Some(stream) = self.stream.take() else { return String::new() };
        let rest = self.until.push(&stream.finish()) + &self.until.finish();
        self.text.push_str(&rest);
        rest
    }

    /// The stop string that ended the text.
    pub(super) fn stopped_at(&self) -> Option<&'a str> {
        self.until.found
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.ids.last().is_some_and(|&id| self.session.model.config().is_eos(id))
    }
}

/// A text that arrives in pieces, up to the first stop string.
struct Until<'a> {
    stops: &'a [String],
    /// What may be the beginning of a stop string.
    held: String,
    /// The stop string that ended the text.
    found: Option<&'a str>,
}

impl<'a> Until<'a> {
    fn new(stops: &'a [String]) -> Self {
        Self { stops, held: String::new(), found: None }
    }

    /// What `piece` adds to the text for certain.
    fn push(&mut self, piece: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        // Character by character, so that the stop string that ends first ends the text.
        for c in piece.chars() {
            self.held.push(c);
            let ends = self.stops.iter().filter(|stop| self.held.ends_with(stop.as_str()));
            if let Some(stop) = ends.max_by_key(|stop| stop.len()) {
                self.found = Some(stop);
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

    /// What is left when no more pieces come.
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
                let mut until = Until::new(&stops);
                let mut got: String =
                    characters.chunks(size).map(|piece| until.push(&piece.concat())).collect();
                got.push_str(&until.finish());
                assert_eq!((got.as_str(), until.found), (expected, found), "{text:?} by {size}");
            }
        }
        let stops = ["abc", "b"].map(String::from);
        for pieces in [&["abc"][..], &["ab", "c"], &["a", "b", "c"]] {
            let mut until = Until::new(&stops);
            let got: String = pieces.iter().map(|piece| until.push(piece)).collect();
            assert_eq!((got.as_str(), until.found), ("a", Some("b")), "the one that ends first");
        }
    }
}
