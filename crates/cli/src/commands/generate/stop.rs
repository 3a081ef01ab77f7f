//! `--stop`: the text ends before the first of some strings.

/// A text that arrives in pieces, up to the first stop string.
pub(super) struct Until<'a> {
    stops: &'a [String],
    /// What may be the beginning of a stop string.
    held: String,
    /// The stop string that ended the text.
    pub(super) found: Option<&'a str>,
}

impl<'a> Until<'a> {
    pub(super) fn new(stops: &'a [String]) -> Self {
        Self { stops, held: String::new(), found: None }
    }

    /// What `piece` adds to the text for certain.
    pub(super) fn push(&mut self, piece: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        self.held.push_str(piece);
        let places = self.stops.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        if let Some((at, stop)) = places.min_by_key(|(at, _)| *at) {
            self.found = Some(stop);
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let begins = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let places = self.held.char_indices().map(|(at, _)| at);
        let certain = places.into_iter().find(begins).unwrap_or(self.held.len());
        let rest = self.held.split_off(certain);
        std::mem::replace(&mut self.held, rest)
    }

    /// What is left when no more pieces come.
    pub(super) fn finish(&mut self) -> String {
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
    }
}
