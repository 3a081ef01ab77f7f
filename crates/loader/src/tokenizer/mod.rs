//! [`Tokenizer`]: text to token ids and back, from the files beside a checkpoint.

mod adapt;
mod catch_panics;
pub(crate) mod list;
mod open;
mod parts;
mod settings;
mod shape;
mod spelling;
pub(crate) mod stream;
mod unsupported;
mod vocab;

use crate::error::LoadError;
use crate::error::unspellable::Unspellable;
use catch_panics::guarded;
use settings::Settings;
use shape::Shape;
use spelling::Spelling;
use std::sync::Arc;
use tiktoken_rs::CoreBPE;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, TokenizerBuilder};
use vocab::END_OF_TEXT;

const GPT2_VOCAB_SIZE: usize = 50257;
/// The length in bytes of the longest token in GPT-2's vocabulary.
const GPT2_LONGEST: usize = 128;

/// A byte-level BPE tokenizer.
///
/// `<|endoftext|>` in a text becomes the special token, as in transformers' GPT-2 tokenizer: to the model, another
/// text begins there.
#[derive(Clone)]
pub struct Tokenizer {
    name: String,
    kind: Kind,
    spelling: Spelling,
    /// A note for the reader about its files.
    note: Option<Arc<str>>,
}

#[derive(Clone)]
enum Kind {
    HuggingFace(Box<tokenizers::Tokenizer>),
    /// GPT-2's own vocabulary, from the crate tiktoken-rs.
    Gpt2(&'static CoreBPE),
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// GPT-2's own vocabulary of 50257 tokens, which needs no file.
    #[must_use]
    pub fn gpt2() -> Self {
        let kind = Kind::Gpt2(tiktoken_rs::r50k_base_singleton());
        Self { name: "GPT-2".into(), kind, spelling: Spelling::of_bytes(GPT2_LONGEST), note: None }
    }

    /// Trains a byte-level BPE of `vocab_size` tokens on `text`: the 256 bytes, `<|endoftext|>`, and the
    /// most frequent merges.
    ///
    /// # Errors
    /// When `vocab_size` is below 257. A text with fewer merges than asked for gives a smaller vocabulary.
    pub fn train(text: &str, vocab_size: usize) -> Result<Self, LoadError> {
        let name = "training".to_string();
        let failed = |reason: String| LoadError::Tokenizer { name: "training text".into(), reason };
        if vocab_size < 257 {
            return Err(failed(format!(
                "a vocabulary of {vocab_size} cannot hold 256 bytes and {END_OF_TEXT}"
            )));
        }
        let tokenizer = guarded("training text", || {
            let mut tokenizer = byte_level(BPE::default(), &[END_OF_TEXT]).map_err(|e| e.to_string())?;
            let mut trainer: TrainerWrapper = BpeTrainer::builder()
                .vocab_size(vocab_size)
                .show_progress(false)
                .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
                .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
                .build()
                .into();
            tokenizer
                .train(&mut trainer, text.lines().map(|line| format!("{line}\n")))
                .map_err(|e| e.to_string())?;
            Ok(tokenizer)
        })?;
        let spelling = Spelling::of_byte_level(tokenizer.get_vocab(true).keys());
        Ok(Self { name, kind: Kind::HuggingFace(Box::new(tokenizer)), spelling, note: None })
    }

    /// A line about settings that are not used, or are used otherwise than the tokenizer's files say; `None` if there are none.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The number of tokens, including special ones.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        match &self.kind {
            Kind::HuggingFace(t) => t.get_vocab_size(true),
            Kind::Gpt2(_) => GPT2_VOCAB_SIZE,
        }
    }

    /// The id of `<|endoftext|>`, if the vocabulary has it.
    #[must_use]
    pub fn end_of_text(&self) -> Option<u32> {
        match &self.kind {
            Kind::HuggingFace(t) => t.token_to_id(END_OF_TEXT),
            Kind::Gpt2(_) => Some(50256),
        }
    }

    /// The ids of `text`; none for an empty text.
    ///
    /// It leaves out characters that the vocabulary cannot spell; [`Tokenizer::unspellable`] lists them.
    ///
    /// # Errors
    /// When nothing is left of the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, LoadError> {
        let ids = guarded(&self.name, || match &self.kind {
            Kind::HuggingFace(t) => t
                .encode_fast(text, true)
                .map(|encoding| encoding.get_ids().to_vec())
                .map_err(|e| e.to_string()),
            Kind::Gpt2(bpe) => {
                bpe.encode(text, &bpe.special_tokens()).map(|(ids, _)| ids).map_err(|e| format!("{e:?}"))
            }
        })?;
        if !text.is_empty() && self.has_nothing_of(text, &ids)? {
            let characters = self.unspellable(text)?;
            return Err(LoadError::NothingLeft { name: self.name.clone(), characters });
        }
        Ok(ids)
    }

    /// The range of each token in `text`, in characters: its first one, and the one after its last. Tokens that share a
    /// character both include it. The tokens are those of [`encode`](Self::encode).
    ///
    /// # Errors
    /// When the tokenizer fails on the text.
    pub fn offsets(&self, text: &str) -> Result<Vec<(usize, usize)>, LoadError> {
        guarded(&self.name, || match &self.kind {
            Kind::HuggingFace(t) => t
                .encode_char_offsets(text, true)
                .map(|encoding| encoding.get_offsets().to_vec())
                .map_err(|e| e.to_string()),
            Kind::Gpt2(bpe) => {
                let (ids, _) = bpe.encode(text, &bpe.special_tokens()).map_err(|e| format!("{e:?}"))?;
                // The character that each byte belongs to.
                let of_byte: Vec<usize> = text
                    .chars()
                    .enumerate()
                    .flat_map(|(i, c)| std::iter::repeat_n(i, c.len_utf8()))
                    .collect();
                let mut from = 0;
                let spans = ids.iter().map(|id| {
                    let bytes = bpe.decode_bytes(&[*id]).map_err(|e| format!("{e:?}"))?.len();
                    let start = from;
                    let end = from + bytes;
                    from = end;
                    let span = of_byte.get(start).zip(of_byte.get(end - 1));
                    span.map(|(first, last)| (*first, last + 1)).ok_or("tokens beyond the text".to_owned())
                });
                spans.collect()
            }
        })
    }

    /// Whether none of `ids` comes from the text itself: some tokenizers put tokens around it.
    fn has_nothing_of(&self, text: &str, ids: &[u32]) -> Result<bool, LoadError> {
        match &self.kind {
            Kind::HuggingFace(t) if !ids.is_empty() && !self.spelling.whole => guarded(&self.name, || {
                let plain = t.encode_fast(text, false).map_err(|e| e.to_string())?;
                Ok(plain.get_ids().is_empty())
            }),
            _ => Ok(ids.is_empty()),
        }
    }

    /// The characters of `text` that the vocabulary cannot spell, which [`Tokenizer::encode`] leaves out.
    ///
    /// There are none if the vocabulary has all bytes, as GPT-2's has, or a token for unknown text.
    ///
    /// # Errors
    /// When the tokenizer fails on the text.
    pub fn unspellable(&self, text: &str) -> Result<Unspellable, LoadError> {
        match &self.kind {
            Kind::HuggingFace(t) => guarded(&self.name, || self.spelling.unspellable(t, text)),
            Kind::Gpt2(_) => Ok(Unspellable::default()),
        }
    }

    /// The most bytes of text that one token can stand for; `None` if there is no limit, because characters are
    /// dropped, joined or removed before the text becomes tokens.
    #[must_use]
    pub fn longest_token(&self) -> Option<usize> {
        self.spelling.longest
    }

    /// Refuses a prompt that is too long to fit in `n_positions` tokens, without spending time and memory on
    /// tokenizing it. A text that passes may still give more tokens than that.
    ///
    /// # Errors
    /// When the text is too long.
    pub fn check_length(&self, text: &str, n_positions: usize) -> Result<(), LoadError> {
        let most = self.spelling.most_bytes(n_positions);
        if text.len() > most {
            return Err(LoadError::PromptTooLong { bytes: text.len(), most, n_positions });
        }
        Ok(())
    }

    /// The text of `ids`. Bytes that are not UTF-8 become `U+FFFD`; an id without a token gives nothing. If the
    /// tokenizer fails, the text is the ids themselves, in brackets.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let text = guarded(&self.name, || match &self.kind {
            Kind::HuggingFace(t) => t.decode(ids, false).map_err(|e| e.to_string()),
            Kind::Gpt2(bpe) => {
                let bytes: Vec<u8> =
                    ids.iter().flat_map(|id| bpe.decode_bytes(&[*id]).unwrap_or_default()).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
        });
        text.unwrap_or_else(|_| format!("{ids:?}"))
    }

    /// The text of each id on its own, for labels.
    #[must_use]
    pub fn tokens(&self, ids: &[u32]) -> Vec<String> {
        ids.iter().map(|&id| self.decode(&[id])).collect()
    }

    /// The text of each id on its own, for a reader: bytes that are part of a character appear as `<E6>`, since every
    /// `U+FFFD` looks alike.
    #[must_use]
    pub fn spelled(&self, ids: &[u32]) -> Vec<String> {
        let spelled = |(&id, text): (&u32, String)| {
            if !text.contains(char::REPLACEMENT_CHARACTER) {
                return text;
            }
            let Some(bytes) = self.bytes(id) else { return text };
            let mut out = String::new();
            for chunk in bytes.utf8_chunks() {
                out += chunk.valid();
                out.extend(chunk.invalid().iter().map(|byte| format!("<{byte:02X}>")));
            }
            out
        };
        ids.iter().zip(self.tokens(ids)).map(spelled).collect()
    }

    /// The bytes of a token, if the vocabulary says which it has.
    fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        match &self.kind {
            Kind::HuggingFace(t) => self.spelling.bytes(&t.id_to_token(id)?),
            Kind::Gpt2(bpe) => bpe.decode_bytes(&[id]).ok(),
        }
    }

    /// Whether a saved tokenizer needs a `tokenizer_config.json`, without which transformers would read it otherwise: with GPT-2's
    /// own class, which takes only parts of tokenizer.json.
    #[must_use]
    pub fn has_settings(&self) -> bool {
        self.settings_json().is_some()
    }

    /// The `tokenizer_config.json` of a saved tokenizer, if it needs one.
    pub(crate) fn settings_json(&self) -> Option<String> {
        let Kind::HuggingFace(tokenizer) = &self.kind else { return None };
        let splits = tokenizer.get_encode_special_tokens();
        let shape = guarded(&self.name, || Shape::from_json(self.json()?.as_bytes()));
        let is_gpt2s = shape.is_ok_and(|shape| shape.is_gpt2s());
        (splits || !is_gpt2s).then(|| Settings::saved(splits))
    }

    fn json(&self) -> Result<String, String> {
        match &self.kind {
            Kind::HuggingFace(t) => t.to_string(true).map_err(|e| e.to_string()),
            Kind::Gpt2(_) => Err("the built-in vocabulary is not a file to be saved".into()),
        }
    }

    /// tokenizer.json
    ///
    /// # Errors
    /// For GPT-2's built-in vocabulary, which has no such file.
    pub fn to_json(&self) -> Result<String, LoadError> {
        guarded(&self.name, || self.json())
    }
}

/// The parts around a BPE that make it GPT-2's: bytes as letters, no space put in front. `special` tokens stand for their own
/// text.
fn byte_level(bpe: BPE, special: &[&str]) -> tokenizers::Result<tokenizers::Tokenizer> {
    let byte_level = ByteLevel::new(false, true, true);
    let mut tokenizer: tokenizers::Tokenizer = TokenizerBuilder::default()
        .with_model(bpe)
        .with_normalizer(None::<tokenizers::NormalizerWrapper>)
        .with_pre_tokenizer(Some(byte_level))
        .with_post_processor(Some(byte_level.trim_offsets(false)))
        .with_decoder(Some(byte_level))
        .build()?
        .into();
    tokenizer.add_special_tokens(special.iter().map(|token| AddedToken::from(*token, true)))?;
    Ok(tokenizer)
}
