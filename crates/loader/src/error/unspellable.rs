//! [`Unspellable`]: the characters of a text that a vocabulary cannot spell.

use std::fmt;

/// The number of characters a message shows.
const SHOWN: usize = 10;

/// Characters of a text that a vocabulary cannot spell, in order of first appearance, and how often each occurs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unspellable(pub(crate) Vec<(char, usize)>);

impl Unspellable {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each character and how often it occurs.
    #[must_use]
    pub fn characters(&self) -> &[(char, usize)] {
        &self.0
    }

    /// The number of characters, each counted as often as it occurs.
    #[must_use]
    pub fn total(&self) -> usize {
        self.0.iter().map(|(_, count)| count).sum()
    }
}

/// `'ä' (3), U+200B, …`: the first ten.
impl fmt::Display for Unspellable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, &(character, count)) in self.0.iter().take(SHOWN).enumerate() {
            f.write_str(if i == 0 { "" } else { ", " })?;
            // Debug writes an invisible character as an escape.
            if character.escape_debug().len() > 1 || character.is_whitespace() {
                write!(f, "U+{:04X}", u32::from(character))?;
            } else {
                write!(f, "'{character}'")?;
            }
            if count > 1 {
                write!(f, " ({count})")?;
            }
        }
        f.write_str(if self.0.len() > SHOWN { ", …" } else { "" })
    }
}
