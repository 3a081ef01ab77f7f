//! [`Tokenizer`]: text to token ids and back, from the files beside a checkpoint.

mod adapt;
mod guard;
mod kind;
pub(crate) mod list;
mod parts;
mod settings;
mod shape;
mod spelling;
mod vocab;

use crate::error::LoadError;
use crate::error::unspellable::Unspellable;
use crate::files::{Files, TokenizerFiles};
use crate::formats::gguf::{self, Vocabulary};
use crate::stored::bytes::Bytes;
use guard::guarded;
use settings::{Class, Settings};
use shape::{Model, Shape, check_added_size};
use spelling::Spelling;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tiktoken_rs::CoreBPE;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, TokenizerBuilder};
use vocab::{Merges, Vocab};

const END_OF_TEXT: &str = "<|endoftext|>";
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
    /// What a reader should know of its files.
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
    /// Opens tokenizer.json, or else vocab.json with merges.txt, or else, for a model of 50257 tokens, GPT-2's
    /// own vocabulary. It reads tokenizer_config.json, added_tokens.json and special_tokens_map.json beside them as
    /// transformers' `AutoTokenizer` does.
    ///
    /// # Errors
    /// When a file is damaged, has a part that GPT-2's family does not use, or belongs to another kind of tokenizer, and when
    /// there is no file and the vocabulary is not GPT-2's.
    pub fn open(files: &Files, vocab_size: usize) -> Result<Self, LoadError> {
        match Self::from_files(files)? {
            Some(tokenizer) => Ok(tokenizer),
            None if vocab_size == GPT2_VOCAB_SIZE => Self::gpt2_with(&Settings::open(files)?),
            None => Err(LoadError::NoTokenizer { name: files.name.clone(), vocab_size }),
        }
    }

    /// The tokenizer that a model's files hold; `None` if they have none.
    ///
    /// # Errors
    /// When a file is damaged, cannot be had, has a part that GPT-2's family does not use, or belongs to another kind of
    /// tokenizer.
    pub fn from_files(files: &Files) -> Result<Option<Self>, LoadError> {
        match &files.tokenizer {
            TokenizerFiles::Json(path, bytes) => {
                Self::from_json(path, bytes, Some(&Settings::open(files)?)).map(Some)
            }
            TokenizerFiles::VocabMerges { vocab, merges } => {
                Self::from_vocab_merges(vocab, merges, &Settings::open(files)?).map(Some)
            }
            TokenizerFiles::Gguf(path, bytes) => Self::from_gguf(path, bytes),
            TokenizerFiles::Unreachable(reason) => {
                Err(LoadError::TokenizerUnreachable { name: files.name.clone(), reason: Arc::clone(reason) })
            }
            TokenizerFiles::Foreign(path) => Err(kind::of_file(path)),
            TokenizerFiles::Absent => match Settings::open(files)?.class {
                Class::Other(class) => Err(kind::of_class(&files.name, &class)),
                Class::Gpt2 | Class::Any => Ok(None),
            },
        }
    }

    /// GPT-2's own vocabulary of 50257 tokens, which needs no file.
    #[must_use]
    pub fn gpt2() -> Self {
        let kind = Kind::Gpt2(tiktoken_rs::r50k_base_singleton());
        Self { name: "GPT-2".into(), kind, spelling: Spelling::of_bytes(GPT2_LONGEST), note: None }
    }

    /// GPT-2's own vocabulary, used as the settings say.
    fn gpt2_with(settings: &Settings) -> Result<Self, LoadError> {
        let own = Self::gpt2();
        if settings.is_plain() {
            return Ok(own);
        }
        let list = own.list()?;
        let shape = guarded(&own.name, || {
            let tokens: Vec<&str> = list.tokens.iter().flatten().map(String::as_str).collect();
            let merges = Merges::from_lines(list.merges.iter().map(String::as_str))?;
            Ok(Shape::plain(Vocab::from_list(&tokens)?, merges))
        })?;
        Self::from_shape(own.name, shape, Some((settings, false)))
    }

    /// Opens a tokenizer.json by itself: no settings beside it count.
    ///
    /// # Errors
    /// When it cannot be read, is damaged, or has a part that GPT-2's family does not use.
    pub fn from_file(path: &Path) -> Result<Self, LoadError> {
        Self::from_json(path, &Bytes::open(path)?, None)
    }

    fn from_json(path: &Path, bytes: &Bytes, settings: Option<&Settings>) -> Result<Self, LoadError> {
        let name = path.display().to_string();
        let shape =
            guarded(&name, || Shape::from_json(bytes)).map_err(|error| kind::of_json(&name, bytes).unwrap_or(error))?;
        Self::from_shape(name, shape, settings.map(|settings| (settings, true)))
    }

    /// The tokenizer of a shape that was checked, as `settings` say; with them, whether the shape is a tokenizer.json's.
    fn from_shape(name: String, mut shape: Shape, settings: Option<(&Settings, bool)>) -> Result<Self, LoadError> {
        let mut notes = vec![];
        if let Some((settings, is_json)) = settings {
            notes = settings.apply(&mut shape, is_json);
            let checked = shape.check();
            checked.map_err(|reason| LoadError::Tokenizer { name: settings.name.clone(), reason })?;
        }
        let (mut tokenizer, spelling) = guarded(&name, || {
            let spelling = Spelling::of_shape(&shape);
            Ok((shape.build()?, spelling))
        })?;
        tokenizer.set_encode_special_tokens(settings.is_some_and(|(settings, _)| settings.splits_special));
        let note = (!notes.is_empty()).then(|| notes.join("; ").into());
        Ok(Self { name, kind: Kind::HuggingFace(Box::new(tokenizer)), spelling, note })
    }

    fn from_vocab_merges(
        (vocab, vocab_bytes): &(PathBuf, Bytes),
        (merges, merges_bytes): &(PathBuf, Bytes),
        settings: &Settings,
    ) -> Result<Self, LoadError> {
        let file = vocab.display().to_string();
        // CodeGen's tokenizers are GPT-2's.
        if let Class::Other(class) = &settings.class
            && class != "CodeGenTokenizer"
        {
            return Err(kind::of_class(&file, class));
        }
        let tokens = guarded(&file, || Vocab::from_json(vocab_bytes))?;
        let pairs = guarded(&merges.display().to_string(), || Shape::merges(merges_bytes))?;
        let merges = merges.file_name().unwrap_or_default().display();
        Self::from_shape(format!("{file} and {merges}"), Shape::plain(tokens, pairs), Some((settings, false)))
    }

    /// The tokenizer of a GGUF file, if it holds one.
    fn from_gguf(path: &Path, bytes: &[u8]) -> Result<Option<Self>, LoadError> {
        let name = path.display().to_string();
        let built = guarded(&name, || {
            let Some(Vocabulary { tokens, merges, special }) = gguf::vocabulary(bytes)? else {
                return Ok(None);
            };
            let special: Vec<&str> =
                special.iter().filter_map(|id| tokens.get(*id as usize).copied()).collect();
            check_added_size(special.iter().copied())?;
            let tokens = Vocab::from_list(&tokens)?;
            let pairs = Merges::from_lines(merges.into_iter())?;
            let longest = special.iter().max_by_key(|token| token.len()).copied().unwrap_or_default();
            let spelling = Spelling::of_byte_level(tokens.0.keys()).with_token(longest);
            let tokenizer = byte_level(Model::plain(tokens, pairs)?, &special).map_err(|e| e.to_string())?;
            Ok(Some((tokenizer, spelling)))
        })?;
        Ok(built.map(|(tokenizer, spelling)| Self {
            name,
            kind: Kind::HuggingFace(Box::new(tokenizer)),
            spelling,
            note: None,
        }))
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

    /// What of the tokenizer's files is not used, or is used otherwise than they say, in one line.
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

    /// tokenizer.json
    ///
    /// # Errors
    /// For GPT-2's built-in vocabulary, which has no such file.
    pub fn to_json(&self) -> Result<String, LoadError> {
        guarded(&self.name, || match &self.kind {
            Kind::HuggingFace(t) => t.to_string(true).map_err(|e| e.to_string()),
            Kind::Gpt2(_) => Err("the built-in vocabulary is not a file to be saved".into()),
        })
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
