//! [`Settings`]: what `tokenizer_config.json`, `added_tokens.json` and `special_tokens_map.json` say, as transformers' `AutoTokenizer`
//! reads them.

use super::shape::AddedTokenEntry;
use super::vocab::{END_OF_TEXT, check_len, read_json};
use crate::error::LoadError;
use crate::files::{Files, SettingsFiles};
use crate::formats::json::another;
use crate::stored::bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The tokens that transformers knows by their purpose, in the order in which it adds them.
const PURPOSES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Settings that would change ids or text, and are not used here.
const UNUSED: [&str; 3] = ["auto_map", "fast_tokenizer_files", "init_inputs"];
/// Decodes without the spaces before punctuation, if both are set.
const CLEAN_UP: [&str; 2] = [
    "clean_up_tokenization_spaces",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
];
/// The remedy for a setting that has no meaning.
const CORRECT: &str = "correct the file";

/// The class with which transformers reads a tokenizer's files.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Class {
    /// GPT-2's own class: of tokenizer.json it takes the vocabulary, the merges and the post-processor.
    Gpt2,
    /// The class for any tokenizer.json, which takes all of it.
    Any,
    /// Another family's class, by its name.
    Other(String),
}

/// The settings of a tokenizer, beside its vocabulary.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) class: Class,
    /// The file of the most important settings, for messages.
    pub(super) name: String,
    pub(super) add_prefix_space: Option<bool>,
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
    /// Whether special tokens in a text are read as any other text.
    pub(super) splits_special: bool,
    /// `added_tokens_decoder`, after which nothing else is asked for tokens: by id.
    pub(super) decoder: Option<BTreeMap<u32, AddedTokenEntry>>,
    /// `added_tokens.json`, by id.
    pub(super) listed: BTreeMap<u32, AddedTokenEntry>,
    /// Tokens by purpose; `None` for one that is said not to exist.
    purposes: BTreeMap<String, Option<AddedTokenEntry>>,
    /// Special tokens of other purposes, in order.
    pub(super) others: Vec<AddedTokenEntry>,
    /// Settings that are not used.
    pub(super) unused: Vec<String>,
}

/// The fields of config.json that say which tokenizer the model has.
#[derive(Default, Deserialize)]
struct ModelConfig {
    #[serde(default)]
    model_type: Option<String>,
    #[serde(default)]
    tokenizer_class: Option<String>,
}

impl Settings {
    /// Reads the files of settings beside a model.
    pub(super) fn open(files: &Files) -> Result<Self, LoadError> {
        let SettingsFiles { tokenizer_config, added_tokens, special_tokens, .. } = &files.settings;
        let object = |file: &Option<(PathBuf, Bytes)>| -> Result<Map<String, Value>, LoadError> {
            match file {
                Some((path, bytes)) => read_json(bytes).map_err(|reason| {
                    another(path, bytes, "config of a tokenizer").unwrap_or_else(|| wrong(path, reason))
                }),
                None => Ok(Map::new()),
            }
        };
        let here = |file: &Option<(PathBuf, Bytes)>| {
            file.as_ref().map_or_else(|| PathBuf::from(&files.name), |(path, _)| path.clone())
        };
        let model: ModelConfig =
            check_len(&files.config.1).and_then(|()| files.config.1.parse()).unwrap_or_default();
        let config = object(tokenizer_config)?;
        let at = here(tokenizer_config);
        let mut found = Self::of_config(&config, &model, &at).map_err(|reason| wrong(&at, reason))?;
        if found.decoder.is_some() {
            return Ok(found);
        }
        let special = object(special_tokens)?;
        let at = here(special_tokens);
        found.take_special(&special, true).map_err(|reason| wrong(&at, reason))?;
        let added = object(added_tokens)?;
        let at = here(added_tokens);
        found.take_added(&added).map_err(|reason| wrong(&at, reason))?;
        Ok(found)
    }

    /// The settings of `tokenizer_config.json` alone.
    fn of_config(config: &Map<String, Value>, model: &ModelConfig, at: &Path) -> Result<Self, String> {
        let own = text(config, "tokenizer_class")?.or(model.tokenizer_class.as_deref());
        let is_set = |name: &&&str| config.get(**name).is_some_and(|value| !value.is_null());
        let mut unused: Vec<String> = UNUSED.iter().filter(is_set).map(ToString::to_string).collect();
        if CLEAN_UP.iter().all(|name| config.get(*name) == Some(&Value::Bool(true))) {
            unused.push(CLEAN_UP[0].into());
        }
        let mut found = Self {
            class: class(own, model.model_type.as_deref()),
            name: at.display().to_string(),
            add_prefix_space: flag(config, "add_prefix_space")?,
            add_bos: flag(config, "add_bos_token")?.unwrap_or(false),
            add_eos: flag(config, "add_eos_token")?.unwrap_or(false),
            splits_special: flag(config, "split_special_tokens")?.unwrap_or(false),
            decoder: decoder(config)?,
            listed: BTreeMap::new(),
            purposes: BTreeMap::new(),
            others: vec![],
            unused,
        };
        found.take_special(config, false)?;
        Ok(found)
    }

    /// Takes the special tokens of `tokenizer_config.json`, or of `special_tokens_map.json`, where each is `special`.
    fn take_special(&mut self, fields: &Map<String, Value>, special: bool) -> Result<(), String> {
        let named = |name: &str, value: &Value| {
            token(value, special)
                .map(|of| of.map(|of| AddedTokenEntry { special: true, ..of }))
                .map_err(|e| format!("{name}: {e}"))
        };
        for (name, value) in fields {
            if PURPOSES.contains(&name.as_str()) {
                self.purposes.insert(name.clone(), named(name, value)?);
            } else if name.ends_with("_token") && value.is_string() {
                self.others.extend(named(name, value)?);
            }
        }
        let lists = ["extra_special_tokens", "additional_special_tokens"];
        let list = lists.iter().filter_map(|name| Some((name, fields.get(*name)?)));
        match list.into_iter().find(|(_, value)| !value.is_null()) {
            Some((name, Value::Array(list))) => {
                let more = list.iter().map(|value| named(name, value)).collect::<Result<Vec<_>, _>>()?;
                self.others.extend(more.into_iter().flatten());
            }
            Some((name, Value::Object(list))) => {
                let more = list.values().map(|value| named(name, value)).collect::<Result<Vec<_>, _>>()?;
                self.others.extend(more.into_iter().flatten());
            }
            Some((name, other)) => return Err(format!("{name} is {other}, expected a list of tokens")),
            None => {}
        }
        Ok(())
    }

    /// Takes `added_tokens.json`: tokens and their ids. A token is special if it has a purpose.
    fn take_added(&mut self, fields: &Map<String, Value>) -> Result<(), String> {
        for (content, id) in fields {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id =
                id.ok_or_else(|| format!("{content:?} has the id {}, expected a token id", fields[content]))?;
            let special = self.special(true).any(|of| of.content == *content);
            let token = AddedTokenEntry { special, normalized: !special, ..AddedTokenEntry::plain(content) };
            self.listed.insert(id, token);
        }
        Ok(())
    }

    /// The token of a purpose. `gpt2` says that the class's own default counts: GPT-2's begin, end and unknown.
    pub(super) fn purpose(&self, name: &str, gpt2: bool) -> Option<AddedTokenEntry> {
        match self.purposes.get(name) {
            Some(token) => token.clone(),
            None if gpt2 && PURPOSES[..3].contains(&name) => {
                Some(AddedTokenEntry { special: true, ..AddedTokenEntry::plain(END_OF_TEXT) })
            }
            None => None,
        }
    }

    /// Every special token, in the order in which transformers adds them.
    pub(super) fn special(&self, gpt2: bool) -> impl Iterator<Item = AddedTokenEntry> {
        let purposes = PURPOSES.into_iter().filter_map(move |name| self.purpose(name, gpt2));
        purposes.chain(self.others.iter().cloned())
    }

    /// `tokenizer_config.json` for a tokenizer.json of which everything counts.
    pub(super) fn saved(splits_special: bool) -> String {
        let mut fields = json!({"tokenizer_class": "PreTrainedTokenizerFast"});
        if splits_special {
            fields["split_special_tokens"] = true.into();
        }
        format!("{fields:#}\n")
    }

    /// Whether nothing beyond GPT-2's own tokenizer is said.
    pub(super) fn is_plain(&self) -> bool {
        let is_end = |token: &AddedTokenEntry| token.content == END_OF_TEXT && !token.lstrip && !token.rstrip;
        let declared = self.decoder.iter().flatten().chain(&self.listed).all(|(_, token)| is_end(token));
        declared
            && self.special(true).all(|token| is_end(&token))
            && self.purpose("eos_token", true).is_some()
            && !self.add_prefix_space.unwrap_or(false)
            && !(self.add_bos || self.add_eos || self.splits_special)
    }
}

/// The error for settings that have no meaning.
fn wrong(path: &Path, reason: String) -> LoadError {
    LoadError::OtherTokenizer { name: path.display().to_string(), reason, remedy: CORRECT }
}

/// The class by its name in `tokenizer_config.json` or else in config.json, or else by the type of the model.
fn class(named: Option<&str>, model_type: Option<&str>) -> Class {
    let is_gpt2 = model_type.is_none_or(|model_type| model_type == "gpt2");
    let named = named.map(|name| name.strip_suffix("Fast").unwrap_or(name));
    match named {
        None | Some("GPT2Tokenizer") if is_gpt2 => Class::Gpt2,
        None | Some("GPT2Tokenizer" | "PreTrainedTokenizer" | "TokenizersBackend" | "PythonBackend") => {
            Class::Any
        }
        Some(other) => Class::Other(other.into()),
    }
}

fn flag(fields: &Map<String, Value>, name: &str) -> Result<Option<bool>, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => Err(format!("{name} is {other}, expected true or false")),
    }
}

fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(format!("{name} is {other}, expected a name")),
    }
}

fn decoder(config: &Map<String, Value>) -> Result<Option<BTreeMap<u32, AddedTokenEntry>>, String> {
    const NAME: &str = "added_tokens_decoder";
    let tokens = match config.get(NAME) {
        None => return Ok(None),
        Some(Value::Object(tokens)) => tokens,
        Some(other) => return Err(format!("{NAME} is {other}, expected an object of ids and tokens")),
    };
    let mut found = BTreeMap::new();
    for (id, value) in tokens {
        let of = |reason: String| format!("{NAME}: {id}: {reason}");
        let number = id.parse().map_err(|_| of("expected a token id".into()))?;
        if let Some(token) = token(value, false).map_err(of)? {
            found.insert(number, token);
        }
    }
    Ok(Some(found))
}

/// A token as a text, or with its flags; `None` for null and for an empty one.
fn token(value: &Value, special: bool) -> Result<Option<AddedTokenEntry>, String> {
    let fields = match value {
        Value::Null => return Ok(None),
        Value::String(content) => {
            let token = AddedTokenEntry { special: true, ..AddedTokenEntry::plain(content) };
            return Ok(Some(token).filter(|token| !token.content.is_empty()));
        }
        Value::Object(fields) => fields,
        other => return Err(format!("{other} is no token, expected a text, or an object with content")),
    };
    let content = text(fields, "content")?.ok_or("a token without content")?;
    let flag = |name| flag(fields, name);
    let special = flag("special")?.unwrap_or(special);
    let token = AddedTokenEntry {
        special,
        single_word: flag("single_word")?.unwrap_or(false),
        lstrip: flag("lstrip")?.unwrap_or(false),
        rstrip: flag("rstrip")?.unwrap_or(false),
        normalized: flag("normalized")?.unwrap_or(!special),
        ..AddedTokenEntry::plain(content)
    };
    Ok(Some(token).filter(|token| !token.content.is_empty()))
}
