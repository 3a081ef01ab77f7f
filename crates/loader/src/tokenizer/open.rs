//! Opens a [`Tokenizer`] from a model's files, as their settings say.

use super::catch_panics::guarded;
use super::settings::{Class, Settings};
use super::shape::{Model, Shape, check_added_size};
use super::spelling::Spelling;
use super::vocab::{Merges, Vocab};
use super::{GPT2_VOCAB_SIZE, Kind, Tokenizer, byte_level, unsupported};
use crate::error::LoadError;
use crate::files::{Files, TokenizerFiles};
use crate::formats::gguf::{self, Vocabulary};
use crate::formats::json;
use crate::stored::bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// nanoGPT's and llm.c's vocabulary for GPT-2's tokens: a multiple of 128.
const PADDED: usize = 50_304;

impl Tokenizer {
    /// Opens tokenizer.json, or else vocab.json with merges.txt, or else, for a model of 50257 tokens or of nanoGPT's 50304, GPT-2's
    /// own vocabulary. It reads `tokenizer_config.json`, `added_tokens.json` and `special_tokens_map.json` beside them as
    /// transformers' `AutoTokenizer` does.
    ///
    /// # Errors
    /// When a file is damaged, has a part that GPT-2's family does not use, or belongs to another kind of tokenizer, and when
    /// there is no file and the vocabulary is not GPT-2's.
    pub fn open(files: &Files, vocab_size: usize) -> Result<Self, LoadError> {
        match Self::from_files(files)? {
            Some(tokenizer) => Ok(tokenizer),
            None if vocab_size == GPT2_VOCAB_SIZE => Self::gpt2_with(&Settings::open(files)?),
            None if vocab_size == PADDED => {
                let own = Self::gpt2_with(&Settings::open(files)?)?;
                let note = format!(
                    "the vocabulary is padded from {GPT2_VOCAB_SIZE} to {vocab_size} tokens: the tokenizer is GPT-2's"
                );
                Ok(Self {
                    note: Some(own.note.map_or(note.clone(), |own| format!("{own}; {note}")).into()),
                    ..own
                })
            }
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
            TokenizerFiles::Foreign(path) => Err(unsupported::of_file(path)),
            TokenizerFiles::Absent => match Settings::open(files)?.class {
                Class::Other(class) => Err(unsupported::of_class(&files.name, &class)),
                Class::Gpt2 | Class::Any => Ok(None),
            },
        }
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
        let shape = guarded(&name, || Shape::from_json(bytes))
            .map_err(|error| unsupported::of_json(&name, bytes).unwrap_or(error))
            .map_err(|error| json::another(path, bytes, "tokenizer.json").unwrap_or(error))?;
        Self::from_shape(name, shape, settings.map(|settings| (settings, true)))
    }

    /// The tokenizer of a shape that was checked, as `settings` say; with them, whether the shape is a tokenizer.json's.
    fn from_shape(
        name: String,
        mut shape: Shape,
        settings: Option<(&Settings, bool)>,
    ) -> Result<Self, LoadError> {
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
            return Err(unsupported::of_class(&file, class));
        }
        let another = |path: &Path, bytes: &Bytes, expected, error| {
            json::another(path, bytes, expected).unwrap_or(error)
        };
        let tokens = guarded(&file, || Vocab::from_json(vocab_bytes))
            .map_err(|error| another(vocab, vocab_bytes, "vocab.json", error))?;
        let pairs = guarded(&merges.display().to_string(), || Shape::merges(merges_bytes))
            .map_err(|error| another(merges, merges_bytes, "merges.txt", error))?;
        let merges = merges.file_name().unwrap_or_default().display();
        let name = format!("{file} and {merges}");
        let shape = Shape::plain(tokens, pairs);
        guarded(&name, || shape.check())?;
        Self::from_shape(name, shape, Some((settings, false)))
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
}
