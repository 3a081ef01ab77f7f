//! [`Tokenizer`]: text to token ids and back, from the files beside a checkpoint.

use crate::{Bytes, Files, LoadError, TokenizerFiles};
use std::path::Path;
use tiktoken_rs::CoreBPE;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, TokenizerBuilder};

const END_OF_TEXT: &str = "<|endoftext|>";
const GPT2_VOCAB_SIZE: usize = 50257;

/// A byte-level BPE tokenizer.
///
/// `<|endoftext|>` in a text is the special token, as in transformers' GPT-2 tokenizer: what follows it
/// is another text to the model.
#[derive(Clone)]
pub struct Tokenizer {
    name: String,
    kind: Kind,
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
    /// Opens tokenizer.json, else vocab.json with merges.txt, else, for a model of 50257 tokens, GPT-2's
    /// own vocabulary.
    ///
    /// # Errors
    /// When a file is damaged, or there is none and the vocabulary is not GPT-2's.
    pub fn open(files: &Files, vocab_size: usize) -> Result<Self, LoadError> {
        match &files.tokenizer {
            TokenizerFiles::Json(path, bytes) => Self::from_json(path, bytes),
            TokenizerFiles::VocabMerges(vocab, merges) => Self::from_vocab_merges(vocab, merges),
            TokenizerFiles::Unreachable(reason) => {
                Err(LoadError::Tokenizer { name: files.name.clone(), reason: reason.clone() })
            }
            TokenizerFiles::Absent if vocab_size == GPT2_VOCAB_SIZE => Ok(Self::gpt2()),
            TokenizerFiles::Absent => Err(LoadError::NoTokenizer { name: files.name.clone(), vocab_size }),
        }
    }

    /// GPT-2's own vocabulary of 50257 tokens, which needs no file.
    #[must_use]
    pub fn gpt2() -> Self {
        Self { name: "GPT-2".into(), kind: Kind::Gpt2(tiktoken_rs::r50k_base_singleton()) }
    }

    /// Opens a tokenizer.json.
    ///
    /// # Errors
    /// When it cannot be read or is damaged.
    pub fn from_file(path: &Path) -> Result<Self, LoadError> {
        Self::from_json(path, &Bytes::open(path)?)
    }

    fn from_json(path: &Path, bytes: &Bytes) -> Result<Self, LoadError> {
        let name = path.display().to_string();
        let failed = |reason: String| LoadError::Tokenizer { name: name.clone(), reason };
        let mut tokenizer =
            tokenizers::Tokenizer::from_bytes(&bytes[..]).map_err(|e| failed(e.to_string()))?;
        // Settings of the batches that the file was last used with; transformers sets them aside, too.
        tokenizer.with_truncation(None).map_err(|e| failed(e.to_string()))?.with_padding(None);
        Ok(Self { name, kind: Kind::HuggingFace(Box::new(tokenizer)) })
    }

    fn from_vocab_merges(vocab: &Path, merges: &Path) -> Result<Self, LoadError> {
        let name = format!("{} and merges.txt", vocab.display());
        let failed = |reason: tokenizers::Error| LoadError::Tokenizer {
            name: name.clone(),
            reason: reason.to_string(),
        };
        let bpe = BPE::from_file(&vocab.to_string_lossy(), &merges.to_string_lossy());
        let tokenizer = byte_level(bpe.build().map_err(failed)?).map_err(failed)?;
        Ok(Self { name, kind: Kind::HuggingFace(Box::new(tokenizer)) })
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
        let mut tokenizer = byte_level(BPE::default()).map_err(|e| failed(e.to_string()))?;
        let mut trainer: TrainerWrapper = BpeTrainer::builder()
            .vocab_size(vocab_size)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
            .build()
            .into();
        tokenizer
            .train(&mut trainer, text.lines().map(|line| format!("{line}\n")))
            .map_err(|e| failed(e.to_string()))?;
        Ok(Self { name, kind: Kind::HuggingFace(Box::new(tokenizer)) })
    }

    /// The number of tokens, special ones included.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        match &self.kind {
            Kind::HuggingFace(t) => t.get_vocab_size(true),
            Kind::Gpt2(_) => GPT2_VOCAB_SIZE,
        }
    }

    /// The id of `<|endoftext|>`, where the vocabulary has it.
    #[must_use]
    pub fn end_of_text(&self) -> Option<u32> {
        match &self.kind {
            Kind::HuggingFace(t) => t.token_to_id(END_OF_TEXT),
            Kind::Gpt2(_) => Some(50256),
        }
    }

    /// The ids of `text`; none for an empty text.
    ///
    /// # Errors
    /// When the tokenizer's files do not cover the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, LoadError> {
        match &self.kind {
            Kind::HuggingFace(t) => match t.encode_fast(text, true) {
                Ok(encoding) => Ok(encoding.get_ids().to_vec()),
                Err(e) => Err(LoadError::Tokenizer { name: self.name.clone(), reason: e.to_string() }),
            },
            Kind::Gpt2(bpe) => match bpe.encode(text, &bpe.special_tokens()) {
                Ok((ids, _)) => Ok(ids),
                Err(e) => Err(LoadError::Tokenizer { name: self.name.clone(), reason: format!("{e:?}") }),
            },
        }
    }

    /// The text of `ids`. Bytes that are not UTF-8 become `U+FFFD`; an id without a token gives nothing.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        match &self.kind {
            Kind::HuggingFace(t) => t.decode(ids, false).unwrap_or_default(),
            Kind::Gpt2(bpe) => {
                let bytes: Vec<u8> =
                    ids.iter().flat_map(|id| bpe.decode_bytes(&[*id]).unwrap_or_default()).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
        }
    }

    /// The text of each id on its own, for labels.
    #[must_use]
    pub fn tokens(&self, ids: &[u32]) -> Vec<String> {
        ids.iter().map(|&id| self.decode(&[id])).collect()
    }

    /// A decoder that takes ids one by one.
    #[must_use]
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { tokenizer: self, pending: vec![], written: 0 }
    }

    /// tokenizer.json
    ///
    /// # Errors
    /// For GPT-2's built-in vocabulary, which has no such file.
    pub fn to_json(&self) -> Result<String, LoadError> {
        let failed = |reason: String| LoadError::Tokenizer { name: self.name.clone(), reason };
        match &self.kind {
            Kind::HuggingFace(t) => t.to_string(true).map_err(|e| failed(e.to_string())),
            Kind::Gpt2(_) => Err(failed("the built-in vocabulary is not a file to be saved".into())),
        }
    }
}

/// The parts around a BPE that make it GPT-2's: bytes as letters, no space put in front.
fn byte_level(bpe: BPE) -> tokenizers::Result<tokenizers::Tokenizer> {
    let byte_level = ByteLevel::new(false, true, true);
    let mut tokenizer: tokenizers::Tokenizer = TokenizerBuilder::default()
        .with_model(bpe)
        .with_normalizer(None::<tokenizers::NormalizerWrapper>)
        .with_pre_tokenizer(Some(byte_level))
        .with_post_processor(Some(byte_level.trim_offsets(false)))
        .with_decoder(Some(byte_level))
        .build()?
        .into();
    tokenizer.add_special_tokens([AddedToken::from(END_OF_TEXT, true)])?;
    Ok(tokenizer)
}

/// Text from ids that arrive one by one: a character whose bytes are spread over several tokens comes out
/// whole, with the last of them.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The ids since the last whole character.
    pending: Vec<u32>,
    /// How many bytes of their text are out already.
    written: usize,
}

impl TextStream<'_> {
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

    /// What is left when no more ids come.
    #[must_use]
    pub fn finish(self) -> String {
        self.tokenizer.decode(&self.pending).get(self.written..).unwrap_or_default().to_string()
    }
}
