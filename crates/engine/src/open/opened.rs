//! A model that is ready to run.

use super::adapters::UsedAdapter;
use super::dictionaries::{FilesThen, OpenedDictionary};
use crate::hub::HubOptions;
use crate::observer::Observer;
use crate::read_files::ReadFiles;
use crate::spelling::Spelling;
use anyhow::bail;
use candle_core::{Device, Tensor};
use candle_fused::BlockFormat;
use gpt2_loader::{Files, LoadError, Tokenizer};
use gpt2_model::Gpt2LMHeadModel;
use gpt2_view::{visible_token, without_folders};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A model that is ready to run, with its tokenizer and files. Nothing changes it, so several threads may use it at once.
#[derive(Debug)]
pub struct Opened {
    /// The folder as the user gave it, the name with its commit, or the built-in model's name.
    pub name: String,
    /// The model.
    pub model: Gpt2LMHeadModel,
    /// The formats of quantized weights, most frequent first.
    pub formats: Vec<BlockFormat>,
    /// The adapters on the model.
    pub adapters: Vec<UsedAdapter>,
    /// Whether the weights are [processed](Gpt2LMHeadModel::processed).
    pub processed: bool,
    /// The token that stands before every text, but not before ids; see [`Opened::with_first_token`].
    pub first_token: Option<u32>,
    /// The device that it runs on.
    pub device: Device,
    /// The files that it was loaded from; none for a model that was made in this process.
    pub files: Option<Files>,
    /// All that it was read from, by absolute paths: the process may work in another folder by now.
    pub read: ReadFiles,
    /// The Hub, for dictionaries.
    pub hub: HubOptions,
    /// The face that messages speak to.
    pub spelling: Spelling,
    tokenizer: OnceLock<Arc<Tokenizer>>,
    /// Dictionaries that were read, by their places.
    dictionaries: Mutex<BTreeMap<String, KnownDictionary>>,
}

/// A dictionary that was read, and its files as they were.
#[derive(Debug)]
struct KnownDictionary {
    files: FilesThen,
    opened: Arc<OpenedDictionary>,
}

/// A token: in JSON as its text, on a terminal in a form that shows all of it.
#[derive(Debug, Clone)]
pub struct Label {
    text: String,
    shown: String,
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Serialize for Label {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.text)
    }
}

impl Opened {
    /// A model without files, adapters and tokenizer.
    #[must_use]
    pub fn new(name: String, model: Gpt2LMHeadModel, device: Device, spelling: Spelling) -> Self {
        Self {
            name,
            model,
            formats: vec![],
            adapters: vec![],
            processed: false,
            first_token: None,
            device,
            files: None,
            read: ReadFiles::default(),
            hub: HubOptions::default(),
            spelling,
            tokenizer: OnceLock::new(),
            dictionaries: Mutex::default(),
        }
    }

    /// This model, with the files that it came from.
    #[must_use]
    pub fn with_files(self, files: Files) -> Self {
        Self { files: Some(files), ..self }
    }

    /// This model, with a tokenizer.
    #[must_use]
    pub fn with_tokenizer(self, tokenizer: impl Into<Arc<Tokenizer>>) -> Self {
        Self { tokenizer: OnceLock::from(tokenizer.into()), ..self }
    }

    /// This model, reading every text after its first token, `bos_token_id`, as TransformerLens' `prepend_bos` has it.
    ///
    /// # Errors
    /// When the config names no such token.
    pub fn with_first_token(self) -> anyhow::Result<Self> {
        Ok(Self { first_token: Some(self.bos()?), ..self })
    }

    /// The model's first token.
    ///
    /// # Errors
    /// When the config names none.
    pub fn bos(&self) -> anyhow::Result<u32> {
        let config = self.model.config();
        let Some(bos) = config.bos_token_id.filter(|&id| (id as usize) < config.vocab_size) else {
            let option = self.spelling.option("prepend-bos");
            bail!("{option}: the model's config names no bos_token_id; leave {option} out");
        };
        Ok(bos)
    }

    /// The model's name in a file that others will see.
    #[must_use]
    pub fn title(&self) -> String {
        without_folders(&self.name)
    }

    /// The commit on the Hub.
    #[must_use]
    pub fn commit(&self) -> Option<&str> {
        self.files.as_ref()?.commit.as_deref()
    }

    /// The tokenizer, opened on first use: a prompt of ids needs none.
    ///
    /// # Errors
    /// When the model has none, or it is damaged.
    pub fn tokenizer(&self) -> Result<&Tokenizer, LoadError> {
        if let Some(tokenizer) = self.tokenizer.get() {
            return Ok(tokenizer);
        }
        let Some(files) = &self.files else {
            let vocab_size = self.model.config().vocab_size;
            return Err(LoadError::NoTokenizer { name: self.name.clone(), vocab_size });
        };
        let tokenizer = Tokenizer::open(files, self.model.config().vocab_size)?;
        Ok(self.tokenizer.get_or_init(|| Arc::new(tokenizer)))
    }

    /// The tokenizer, for another model of the same vocabulary.
    #[must_use]
    pub fn shared_tokenizer(&self) -> Option<Arc<Tokenizer>> {
        self.tokenizer().ok()?;
        self.tokenizer.get().cloned()
    }

    /// A dictionary of features by the name that a user gives, read on first use, and again after its files have changed.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub fn dictionary(&self, source: &str, observer: &dyn Observer) -> anyhow::Result<Arc<OpenedDictionary>> {
        let place = FilesThen::place(source)?;
        let files = FilesThen::of(source)?;
        let known = || self.dictionaries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known().get(&place)
            && found.files == files
        {
            return Ok(Arc::clone(&found.opened));
        }
        // Without the lock: whoever hears of the download may ask for a dictionary, too.
        let opened = Arc::new(self.hub.find_dictionary(source, observer)?.load(observer)?);
        known().insert(place, KnownDictionary { files, opened: Arc::clone(&opened) });
        Ok(opened)
    }

    /// A label for each id: its text, or its number if there is no tokenizer.
    #[must_use]
    pub fn labels(&self, ids: &[u32]) -> Vec<String> {
        match self.tokenizer() {
            Ok(tokenizer) => tokenizer.tokens(ids),
            Err(_) => ids.iter().map(u32::to_string).collect(),
        }
    }

    /// A label for each id, for display: its text, with a part of a character as its bytes, or its number if there is
    /// no tokenizer.
    #[must_use]
    pub fn shown(&self, ids: &[u32]) -> Vec<String> {
        match self.tokenizer() {
            Ok(tokenizer) => tokenizer.spelled(ids),
            Err(_) => ids.iter().map(u32::to_string).collect(),
        }
    }

    /// A token for a report.
    #[must_use]
    pub fn label(&self, id: u32) -> Label {
        Label { text: self.labels(&[id]).concat(), shown: visible_token(&self.shown(&[id]).concat()) }
    }

    /// The ids as a batch of one row, (1, T).
    ///
    /// # Errors
    /// When the device has no room.
    pub fn input_ids(&self, ids: &[u32]) -> anyhow::Result<Tensor> {
        Ok(self.model.ids(ids)?)
    }
}
