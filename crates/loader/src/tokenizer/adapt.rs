//! The tokenizer that transformers makes of a [`Shape`] and its [`Settings`].

use super::parts::{ByteLevel, Decoder, PostProcessor, PreTokenizer};
use super::settings::{Class, Settings};
use super::shape::{AddedTokenEntry, Shape};
use std::collections::{BTreeMap, HashMap};

impl Settings {
    /// Changes `shape` as the settings say. `is_json` says that it is tokenizer.json's. Returns what a reader should know.
    pub(super) fn apply(&self, shape: &mut Shape, is_json: bool) -> Vec<String> {
        let mut notes = vec![];
        let keeps = is_json && self.class != Class::Gpt2;
        self.add_tokens(shape, keeps, &mut notes);
        if !keeps {
            let left_out = self.make_gpt2s(shape);
            if is_json && !left_out.is_empty() {
                notes.push(format!(
                    "tokenizer.json: {} not used, as in transformers, which reads it with the class of GPT-2's tokenizers; \
                     tokenizer_class \"PreTrainedTokenizerFast\" in tokenizer_config.json makes use of all of it",
                    list(&left_out)
                ));
            }
        }
        if let (Class::Other(name), true) = (&self.class, is_json) {
            notes.push(format!(
                "{}: tokenizer_class {name:?} is not used: tokenizer.json is read as it is",
                self.name
            ));
        }
        if !self.unused.is_empty() {
            notes.push(format!("{}: {} not used", self.name, list(&self.unused)));
        }
        if !is_json {
            let around =
                |name, add: bool| self.purpose(name, true).filter(|_| add).map(|token| token.content);
            let bos = around("bos_token", self.add_bos);
            let eos = around("eos_token", self.add_eos);
            let with_id = |content: Option<String>| content.and_then(|it| shape.id(&it).map(|id| (it, id)));
            shape.post_processor = Some(PostProcessor::around(with_id(bos), with_id(eos)));
        }
        notes
    }

    /// Puts the tokens that are declared, then the special ones, behind the vocabulary. If the shape `keeps` its own added
    /// tokens, they stay where they are.
    fn add_tokens(&self, shape: &mut Shape, keeps: bool, notes: &mut Vec<String>) {
        let own = std::mem::take(&mut shape.added_tokens);
        let mut declared: BTreeMap<u32, AddedTokenEntry> = match &self.decoder {
            Some(decoder) => decoder.clone(),
            None => self.listed.clone(),
        };
        if self.decoder.is_none() {
            declared.extend(own.iter().map(|token| (token.id, token.clone())));
        }
        let special: Vec<AddedTokenEntry> = self.special(!keeps).collect();
        let mut places = HashMap::new();
        if keeps {
            for token in own {
                places.insert(token.content.clone(), shape.added_tokens.len());
                shape.added_tokens.push(token);
            }
        }
        let vocab_len = u32::try_from(shape.model.vocab.0.len()).unwrap_or(u32::MAX);
        let last = shape.added_tokens.iter().map(|token| token.id).max();
        let mut next = last.map_or(vocab_len, |last| vocab_len.max(last.saturating_add(1)));
        let mut moved = vec![];
        let count = declared.len();
        let tokens = declared.into_iter().map(|(id, token)| (Some(id), token));
        for (i, (id, mut token)) in
            tokens.chain(special.iter().map(|token| (None, token.clone()))).enumerate()
        {
            let place = places.get(&token.content).copied();
            if let Some(old) = place.and_then(|place: usize| shape.added_tokens.get_mut(place)) {
                // A declared token has the last word, a purpose none.
                token.id = old.id;
                if i < count && token != *old {
                    *old = made_special(token, &special);
                }
                continue;
            }
            token.id = shape.model.vocab.0.get(&token.content).copied().unwrap_or(next);
            if token.id >= next {
                next = token.id.saturating_add(1);
            }
            if id.is_some_and(|id| id != token.id) {
                moved.push(format!("{:?} has id {}", token.content, token.id));
            }
            places.insert(token.content.clone(), shape.added_tokens.len());
            shape.added_tokens.push(made_special(token, &special));
        }
        if !moved.is_empty() {
            moved.truncate(8);
            notes.push(format!(
                "{}: {} as in transformers, where added tokens follow the vocabulary, though other ids are declared",
                self.name,
                moved.join(", ")
            ));
        }
    }

    /// Gives the shape the parts of GPT-2's own class. Returns the names of the parts that it had instead.
    fn make_gpt2s(&self, shape: &mut Shape) -> Vec<String> {
        let mut left_out = vec![];
        let model = &mut shape.model;
        let mut lacks = |is_there: bool, name: &str| left_out.extend(is_there.then(|| name.to_string()));
        lacks(shape.normalizer.take().is_some(), "normalizer");
        let prefix = self.add_prefix_space.unwrap_or(false);
        match shape.pre_tokenizer.as_ref().and_then(PreTokenizer::gpt2s) {
            Some(own) => lacks(own && self.add_prefix_space.is_none(), "add_prefix_space"),
            None => lacks(true, "pre_tokenizer"),
        }
        lacks(model.unk_token.take().is_some(), "unk_token");
        lacks(model.byte_fallback.take() == Some(true), "byte_fallback");
        lacks(model.ignore_merges.take() == Some(true), "ignore_merges");
        model.fuse_unk = None;
        let byte_level = || ByteLevel::new(prefix, true);
        shape.pre_tokenizer = Some(PreTokenizer::ByteLevel(byte_level()));
        lacks(!matches!(shape.decoder, Some(Decoder::ByteLevel(_))), "decoder");
        shape.decoder = Some(Decoder::ByteLevel(byte_level()));
        left_out
    }
}

/// The token, special if one of the special ones has its text.
fn made_special(token: AddedTokenEntry, special: &[AddedTokenEntry]) -> AddedTokenEntry {
    AddedTokenEntry {
        special: token.special || special.iter().any(|of| of.content == token.content),
        ..token
    }
}

/// "a is", "a and b are".
fn list(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => format!("{one} is"),
        [first @ .., last] => format!("{} and {last} are", first.join(", ")),
    }
}
