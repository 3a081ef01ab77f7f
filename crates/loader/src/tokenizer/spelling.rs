//! [`Spelling`]: which characters a vocabulary can spell, and how much text a token stands for.

use super::parts::{Normalizer, PreTokenizer};
use super::shape::Shape;
use crate::error::unspellable::Unspellable;
use std::collections::HashMap;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{Decoder as _, Model, ModelWrapper, OffsetReferential, OffsetType, PreTokenizer as _};

/// The longest prompt in bytes that is tokenized for any model: each byte takes up to 450 bytes of memory and two
/// microseconds.
const MOST_BYTES: usize = 1 << 20;

/// The way a vocabulary spells text.
#[derive(Debug, Clone)]
pub(super) struct Spelling {
    /// Whether no character is ever dropped.
    pub(super) whole: bool,
    byte_level: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    /// The most bytes of text that one token can stand for; `None` if there is no limit.
    pub(super) longest: Option<usize>,
    /// The largest factor by which the normalizer lengthens a text, in bytes.
    growth: usize,
}

impl Spelling {
    /// The spelling of a byte-level vocabulary that has all bytes, and no token for more than `longest` of them.
    pub(super) fn of_bytes(longest: usize) -> Self {
        Self {
            whole: true,
            byte_level: true,
            byte_fallback: false,
            ignore_merges: false,
            longest: Some(longest),
            growth: 1,
        }
    }

    /// The spelling of a plain byte-level BPE with these tokens.
    pub(super) fn of_byte_level<'a>(tokens: impl Iterator<Item = &'a String> + Clone) -> Self {
        let alphabet = ByteLevel::alphabet();
        let is_letter = |token: &&String| {
            let mut characters = token.chars();
            characters.next().is_some_and(|c| alphabet.contains(&c)) && characters.next().is_none()
        };
        let whole = tokens.clone().filter(is_letter).count() == alphabet.len();
        let longest = tokens.map(|token| token.chars().count()).max().unwrap_or(0);
        Self { whole, longest: Some(longest).filter(|_| whole), ..Self::of_bytes(longest) }
    }

    /// Adds a token, which stands for its own text.
    pub(super) fn with_token(self, token: &str) -> Self {
        Self { longest: self.longest.map(|longest| longest.max(token.len())), ..self }
    }

    /// The spelling of a tokenizer.json.
    pub(super) fn of_shape(shape: &Shape) -> Self {
        let model = &shape.model;
        let pre_tokenizer = shape.pre_tokenizer.as_ref();
        let byte_level = pre_tokenizer.is_some_and(PreTokenizer::is_byte_level);
        let byte_fallback = model.byte_fallback.unwrap_or(false);
        let letters = Self::of_byte_level(model.vocab.0.keys());
        let fallback = || (0..=u8::MAX).all(|byte| model.vocab.0.contains_key(&fallback_token(byte)));
        // If text is removed, dropped or joined first, a token may stand for text of any length.
        let keeps_length = byte_level
            && letters.whole
            && shape.normalizer.is_none()
            && !pre_tokenizer.is_some_and(PreTokenizer::removes)
            && !shape.added_tokens.iter().any(|token| token.lstrip || token.rstrip);
        let added = shape.added_tokens.iter().map(|token| token.content.len()).max().unwrap_or(0);
        Self {
            whole: model.unk_token.is_some() || byte_level && letters.whole || byte_fallback && fallback(),
            byte_level,
            byte_fallback,
            ignore_merges: model.ignore_merges.unwrap_or(false),
            longest: letters.longest.map(|longest| longest.max(added)).filter(|_| keeps_length),
            growth: shape.normalizer.as_ref().map_or(1, Normalizer::growth),
        }
    }

    /// The most bytes of text that can fit in `positions` tokens.
    pub(super) fn most_bytes(&self, positions: usize) -> usize {
        let spelt = self.longest.map_or(usize::MAX, |longest| longest.saturating_mul(positions));
        spelt.min(MOST_BYTES / self.growth)
    }

    /// The characters of `text` that `tokenizer` drops; `self` is its spelling.
    pub(super) fn unspellable(
        &self,
        tokenizer: &tokenizers::Tokenizer,
        text: &str,
    ) -> Result<Unspellable, String> {
        let mut found = Unspellable::default();
        let ModelWrapper::BPE(bpe) = tokenizer.get_model() else { return Ok(found) };
        if self.whole {
            return Ok(found);
        }
        let mut places = HashMap::new();
        let mut count = |character| {
            let place = *places.entry(character).or_insert_with(|| {
                found.0.push((character, 0));
                found.0.len() - 1
            });
            found.0[place].1 += 1;
        };
        let letters = letters();
        // The words as the model gets them; words that already have tokens are added tokens.
        let added = tokenizer.get_added_vocabulary();
        let mut words = added.extract_and_normalize(tokenizer.get_normalizer(), text);
        if let Some(part) = tokenizer.get_pre_tokenizer() {
            part.pre_tokenize(&mut words).map_err(|e| e.to_string())?;
        }
        for (word, _, tokens) in words.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
            if tokens.is_some() || self.ignore_merges && bpe.token_to_id(word).is_some() {
                continue;
            }
            if self.byte_level {
                let is_spelt = |byte| has(bpe, letters[usize::from(byte)]);
                let text = ByteLevel::default().decode(vec![word.to_string()]).map_err(|e| e.to_string())?;
                let lacks = |c: &char| !c.encode_utf8(&mut [0; 4]).bytes().all(is_spelt);
                text.chars().filter(lacks).for_each(&mut count);
            } else {
                word.chars().filter(|&c| !has(bpe, c) && !self.falls_back(bpe, c)).for_each(&mut count);
            }
        }
        Ok(found)
    }

    /// The bytes of a token as the vocabulary has it, if that spells bytes.
    pub(super) fn bytes(&self, token: &str) -> Option<Vec<u8>> {
        let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        if let Some(hex) = hex.filter(|_| self.byte_fallback) {
            return u8::from_str_radix(hex, 16).ok().map(|byte| vec![byte]);
        }
        let letters = letters();
        let byte =
            |letter| letters.iter().position(|of| *of == letter).and_then(|place| u8::try_from(place).ok());
        token.chars().map(byte).collect::<Option<_>>().filter(|_| self.byte_level)
    }

    /// Whether `character` is spelt byte by byte.
    fn falls_back(&self, bpe: &BPE, character: char) -> bool {
        let has = |byte| bpe.token_to_id(&fallback_token(byte)).is_some();
        self.byte_fallback && character.encode_utf8(&mut [0; 4]).bytes().all(has)
    }
}

fn has(bpe: &BPE, character: char) -> bool {
    bpe.token_to_id(character.encode_utf8(&mut [0; 4])).is_some()
}

/// The token of a byte, for characters that are spelt byte by byte.
fn fallback_token(byte: u8) -> String {
    format!("<{byte:#04X}>")
}

/// GPT-2's letter for each byte: its own character where the alphabet has that, otherwise the next one from U+0100 on.
pub(super) fn letters() -> Vec<char> {
    let alphabet = ByteLevel::alphabet();
    let mut others: Vec<char> = alphabet.iter().copied().filter(|letter| *letter > '\u{ff}').collect();
    others.sort_unstable();
    let mut others = others.into_iter();
    let own = |byte| Some(char::from(byte)).filter(|letter| alphabet.contains(letter));
    (0..=u8::MAX).filter_map(|byte| own(byte).or_else(|| others.next())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_letters_are_those_that_the_byte_level_decoder_reads() {
        let letters = letters();
        assert_eq!((letters.len(), letters[0], letters[usize::from(b' ')]), (256, '\u{100}', '\u{120}'));
        for (byte, letter) in (0..0x80).zip(&letters) {
            let text = ByteLevel::default().decode(vec![letter.to_string()]).unwrap();
            assert_eq!(text.as_bytes(), [byte], "{letter:?}");
        }
        // The other bytes are text in pairs: the two of each character up to U+00FF.
        for character in '\u{80}'..='\u{ff}' {
            let bytes = character.to_string().into_bytes();
            let word = bytes.iter().map(|byte| letters[usize::from(*byte)]).collect();
            assert_eq!(ByteLevel::default().decode(vec![word]).unwrap(), character.to_string());
        }
    }
}
