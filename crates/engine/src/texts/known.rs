//! Texts to begin with, in the public domain, which are part of this program.

use anyhow::{Context, anyhow};
use miniz_oxide::inflate::decompress_to_vec_zlib;

/// A text inside this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownText {
    name: &'static str,
    packed: &'static [u8],
}

/// Parts of plays of Shakespeare, 40,000 lines, as Karpathy's char-rnn has them ("tiny Shakespeare"). The built-in demo model learned
/// from them.
const SHAKESPEARE: KnownText = KnownText { name: "shakespeare", packed: gpt2_demo::TEXT_PACKED };

/// All of them, by name.
pub const KNOWN_TEXTS: &[(&str, KnownText)] = &[(SHAKESPEARE.name, SHAKESPEARE)];

impl KnownText {
    /// The text of this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn named(name: &str) -> anyhow::Result<Self> {
        let names: Vec<&str> = KNOWN_TEXTS.iter().map(|(name, _)| *name).collect();
        let known = KNOWN_TEXTS.iter().find(|(known, _)| *known == name);
        known
            .map(|(_, text)| *text)
            .with_context(|| format!("name: {name:?} is no text; expected one of {names:?}"))
    }

    /// The text itself.
    ///
    /// # Errors
    /// When this program is damaged.
    pub fn text(&self) -> anyhow::Result<String> {
        let content = decompress_to_vec_zlib(self.packed).map_err(|e| anyhow!("{}: {e}", self.name))?;
        String::from_utf8(content).context(self.name)
    }
}
