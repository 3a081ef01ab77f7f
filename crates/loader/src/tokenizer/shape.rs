//! [`Shape`]: a supported tokenizer, read from tokenizer.json, or from vocab.json and merges.txt.
//!
//! Given a damaged or hostile file, the crate tokenizers may panic, fill memory or never return. So it never sees a
//! file: a file is read into a [`Shape`], which has room only for what GPT-2's family uses, every part is checked,
//! and the tokenizer is built from that. Any other part is refused by name.

use super::parts::{Decoder, Normalizer, PostProcessor, PreTokenizer, handed_on};
use super::vocab::{END_OF_TEXT, Merges, Vocab, check_id, check_len, check_token, read_json};
use serde::Deserialize;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizedString, Normalizer as _, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, TokenizerBuilder,
};

/// Tokens beside the vocabulary, and the bytes of all of them.
const MOST_ADDED: usize = 1 << 16;
const MOST_ADDED_BYTES: usize = 1 << 20;
/// The most bytes of the token for unknown characters; each such character becomes one.
const LONGEST_UNK: usize = 64;

/// A tokenizer of GPT-2's family.
#[derive(Deserialize)]
pub(super) struct Shape {
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedTokenEntry>,
    #[serde(default)]
    pub(super) normalizer: Option<Normalizer>,
    #[serde(default)]
    pub(super) pre_tokenizer: Option<PreTokenizer>,
    #[serde(default)]
    pub(super) post_processor: Option<PostProcessor>,
    #[serde(default)]
    pub(super) decoder: Option<Decoder>,
    pub(super) model: Model,
    // Truncation and padding are remains of the tokenizer's last use; like transformers, this crate ignores them.
}

/// A token that is searched for in the text before any other step.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct AddedTokenEntry {
    pub(super) id: u32,
    pub(super) content: String,
    pub(super) single_word: bool,
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
    pub(super) normalized: bool,
    pub(super) special: bool,
}

/// A BPE.
#[derive(Default, Deserialize)]
pub(super) struct Model {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    dropout: Option<f32>,
    #[serde(default)]
    pub(super) unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(super) fuse_unk: Option<bool>,
    #[serde(default)]
    pub(super) byte_fallback: Option<bool>,
    #[serde(default)]
    pub(super) ignore_merges: Option<bool>,
    pub(super) vocab: Vocab,
    merges: Merges,
}

impl Shape {
    /// tokenizer.json
    pub(super) fn from_json(bytes: &[u8]) -> Result<Self, String> {
        let shape: Self = read_json(bytes)?;
        shape.check()?;
        Ok(shape)
    }

    /// A vocabulary and its merges, without anything around them.
    pub(super) fn plain(vocab: Vocab, merges: Merges) -> Self {
        let model = Model { vocab, merges, ..Model::default() };
        Self {
            version: None,
            added_tokens: vec![],
            normalizer: None,
            pre_tokenizer: None,
            post_processor: None,
            decoder: None,
            model,
        }
    }

    /// Whether GPT-2's own class reads it as it is: the vocabulary and the merges with that class's parts around them, and the
    /// end of text among the added tokens.
    pub(super) fn is_gpt2s(&self) -> bool {
        let model = &self.model;
        let splits = self.pre_tokenizer.as_ref().and_then(PreTokenizer::gpt2s) == Some(false);
        let plain = self.normalizer.is_none() && model.unk_token.is_none();
        let off = |flag: Option<bool>| flag != Some(true);
        let ends = self.added_tokens.iter().any(|token| token.content == END_OF_TEXT);
        ends && splits && plain && off(model.byte_fallback) && off(model.ignore_merges)
    }

    /// The id of a token, added or not.
    pub(super) fn id(&self, content: &str) -> Option<u32> {
        let added = self.added_tokens.iter().find(|token| token.content == content);
        added.map(|token| token.id).or_else(|| self.model.vocab.0.get(content).copied())
    }

    /// The merges of a merges.txt of bounded length.
    pub(super) fn merges(bytes: &[u8]) -> Result<Merges, String> {
        check_len(bytes)?;
        Merges::from_text(bytes)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(version) = self.version.as_ref().filter(|version| *version != "1.0") {
            return Err(format!("version: {version:?}; expected \"1.0\""));
        }
        self.model.check().map_err(|reason| format!("model: {reason}"))?;
        self.normalizer.as_ref().map_or(Ok(()), Normalizer::check)?;
        self.pre_tokenizer.as_ref().map_or(Ok(()), PreTokenizer::check)?;
        self.post_processor.as_ref().map_or(Ok(()), PostProcessor::check)?;
        self.decoder.as_ref().map_or(Ok(()), Decoder::check)?;
        check_added(&self.added_tokens)
    }

    /// The tokenizer of this shape.
    pub(super) fn build(self) -> Result<tokenizers::Tokenizer, String> {
        let text = |e: tokenizers::Error| e.to_string();
        let normalizer: Option<NormalizerWrapper> = self.normalizer.as_ref().map(handed_on).transpose()?;
        let pre_tokenizer: Option<PreTokenizerWrapper> =
            self.pre_tokenizer.as_ref().map(handed_on).transpose()?;
        let post: Option<PostProcessorWrapper> = self.post_processor.as_ref().map(handed_on).transpose()?;
        let decoder: Option<DecoderWrapper> = self.decoder.as_ref().map(handed_on).transpose()?;
        if let Some(normalizer) = &normalizer {
            check_normalized(&self.added_tokens, normalizer)?;
        }
        let mut tokenizer: tokenizers::Tokenizer = TokenizerBuilder::default()
            .with_model(self.model.build()?)
            .with_normalizer(normalizer)
            .with_pre_tokenizer(pre_tokenizer)
            .with_post_processor(post)
            .with_decoder(decoder)
            .build()
            .map_err(text)?
            .into();
        let ids: Vec<(String, u32)> =
            self.added_tokens.iter().map(|token| (token.content.clone(), token.id)).collect();
        tokenizer.add_tokens(self.added_tokens.into_iter().map(AddedTokenEntry::build)).map_err(text)?;
        for (content, id) in ids {
            let given = tokenizer.token_to_id(&content);
            if given != Some(id) {
                return Err(format!(
                    "added_tokens: {content:?} has id {id}, where the vocabulary gives it {}",
                    given.map_or_else(|| "none".into(), |given| given.to_string())
                ));
            }
        }
        Ok(tokenizer)
    }
}

impl Model {
    /// A BPE without anything special.
    pub(super) fn plain(vocab: Vocab, merges: Merges) -> Result<BPE, String> {
        vocab.check(&merges)?;
        BPE::builder().vocab_and_merges(vocab.0, merges.0).build().map_err(|e| e.to_string())
    }

    fn check(&self) -> Result<(), String> {
        if let Some(kind) = self.kind.as_ref().filter(|kind| *kind != "BPE") {
            return Err(format!("type {kind:?} is not supported; expected \"BPE\""));
        }
        if self.dropout.is_some_and(|dropout| dropout != 0.0) {
            return Err("dropout is not supported: the same text would give other ids; expected null".into());
        }
        for (field, value) in [
            ("continuing_subword_prefix", &self.continuing_subword_prefix),
            ("end_of_word_suffix", &self.end_of_word_suffix),
        ] {
            if let Some(value) = value.as_ref().filter(|value| !value.is_empty()) {
                let start: String = value.chars().take(20).collect();
                return Err(format!("{field} {start:?} is not supported; expected null or \"\""));
            }
        }
        if let Some(unk) = &self.unk_token {
            if unk.len() > LONGEST_UNK {
                return Err(format!("unk_token has {} bytes; expected at most {LONGEST_UNK}", unk.len()));
            }
            if !self.vocab.0.contains_key(unk) {
                return Err(format!("unk_token {unk:?} is not in the vocabulary"));
            }
        }
        self.vocab.check(&self.merges)
    }

    fn build(self) -> Result<BPE, String> {
        let mut builder = BPE::builder()
            .vocab_and_merges(self.vocab.0, self.merges.0)
            .fuse_unk(self.fuse_unk.unwrap_or(false))
            .byte_fallback(self.byte_fallback.unwrap_or(false))
            .ignore_merges(self.ignore_merges.unwrap_or(false));
        if let Some(unk) = self.unk_token {
            builder = builder.unk_token(unk);
        }
        // Empty ones do nothing; they are kept so that a saved tokenizer has them as well.
        if let Some(prefix) = self.continuing_subword_prefix {
            builder = builder.continuing_subword_prefix(prefix);
        }
        if let Some(suffix) = self.end_of_word_suffix {
            builder = builder.end_of_word_suffix(suffix);
        }
        builder.build().map_err(|e| e.to_string())
    }
}

/// Refuses more tokens beside the vocabulary than a search for them can hold.
pub(super) fn check_added_size<'a>(added: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let (count, bytes) = added.fold((0, 0), |(count, bytes), token| (count + 1, bytes + token.len()));
    if count > MOST_ADDED || bytes > MOST_ADDED_BYTES {
        return Err(format!(
            "added_tokens: {count} tokens of {bytes} bytes; expected at most {MOST_ADDED} of {MOST_ADDED_BYTES}"
        ));
    }
    Ok(())
}

fn check_added(added: &[AddedTokenEntry]) -> Result<(), String> {
    check_added_size(added.iter().map(|token| token.content.as_str()))?;
    let strips = strips(added);
    for token in added {
        check_id(token.id)
            .and_then(|()| check_token(&token.content))
            .and_then(|()| check_found(&token.content, strips))
            .map_err(|reason| format!("added_tokens: id {}: {reason}", token.id))?;
    }
    Ok(())
}

/// Applies [`check_found`] to tokens after normalization, the form to search for in a normalized text.
fn check_normalized(added: &[AddedTokenEntry], normalizer: &NormalizerWrapper) -> Result<(), String> {
    let strips = strips(added);
    for token in added.iter().filter(|token| token.normalized) {
        let mut content = NormalizedString::from(token.content.as_str());
        normalizer.normalize(&mut content).map_err(|e| e.to_string())?;
        check_found(content.get(), strips)
            .map_err(|reason| format!("added_tokens: id {}, normalized: {reason}", token.id))?;
    }
    Ok(())
}

fn strips(added: &[AddedTokenEntry]) -> bool {
    added.iter().any(|token| token.lstrip || token.rstrip)
}

/// Whether the crate tokenizers can look for `content` in a text. An empty token matches at every byte, even inside a
/// character; and tokens that strip each other's white space make a slice that ends before it starts.
fn check_found(content: &str, strips: bool) -> Result<(), String> {
    if content.is_empty() {
        return Err("the token is empty".into());
    }
    if strips && content.trim() != content {
        return Err(format!(
            "{content:?} begins or ends with white space, which a token with lstrip or rstrip takes"
        ));
    }
    Ok(())
}

impl AddedTokenEntry {
    /// A token without a place in the vocabulary and without flags.
    pub(super) fn plain(content: &str) -> Self {
        Self {
            id: u32::MAX,
            content: content.into(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: false,
        }
    }

    fn build(self) -> AddedToken {
        AddedToken::from(self.content, self.special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized)
    }
}
