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

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    #[test]
    fn shakespeare_is_the_text_that_the_demo_model_has_learned() -> anyhow::Result<()> {
        let text = KnownText::named("shakespeare")?.text()?;
        let hash = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed";
        assert_eq!((text.len(), hex::encode(Sha256::digest(&text)).as_str()), (1_115_394, hash));
        Ok(())
    }
}
