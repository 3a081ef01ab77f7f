//! Dictionaries of features, found and read.

use super::taken::{HubThing, TakenForHub};
use crate::hub::HubOptions;
use crate::names::NamedDictionary;
use crate::observer::Observer;
use anyhow::Context;
use gpt2_circuits::features::Features;
use gpt2_loader::DictionaryCheckpoint;
use gpt2_model::Config;
use gpt2_model::dictionary::Dictionary;
use gpt2_model::hooks::FeatureSite;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// The files of a dictionary, checked.
#[derive(Debug)]
pub struct DictionaryFiles {
    /// Its config and tensors.
    pub checkpoint: DictionaryCheckpoint,
    folder: Option<PathBuf>,
}

/// A dictionary that is ready to use.
#[derive(Debug)]
pub struct OpenedDictionary {
    /// The layers.
    pub dictionary: Arc<Dictionary>,
    /// Its files.
    pub found: DictionaryFiles,
}

/// The files of a dictionary at some time, by path, length and time of their last change; none for one on the Hub, which has a commit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FilesThen(Vec<(PathBuf, u64, Option<SystemTime>)>);

impl FilesThen {
    /// The place that a name means: the folder, from wherever the process works, or the name on the Hub.
    pub(super) fn place(source: &str) -> anyhow::Result<String> {
        Ok(match NamedDictionary::find(source)? {
            NamedDictionary::Folder(folder) => folder.canonicalize().unwrap_or(folder).display().to_string(),
            NamedDictionary::Hub(..) | NamedDictionary::Demo => source.to_owned(),
        })
    }

    /// The files that a name means now.
    pub(super) fn of(source: &str) -> anyhow::Result<Self> {
        let NamedDictionary::Folder(folder) = NamedDictionary::find(source)? else { return Ok(Self(vec![])) };
        let state = |path: PathBuf| {
            let about = std::fs::metadata(&path).ok()?;
            Some((path.canonicalize().ok()?, about.len(), about.modified().ok()))
        };
        Ok(Self(DictionaryCheckpoint::paths_in(&folder).into_iter().filter_map(state).collect()))
    }
}

impl HubOptions {
    /// The built-in dictionary, one in a folder, if one of that name exists, or else on the Hub.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub fn find_dictionary(&self, source: &str, observer: &dyn Observer) -> anyhow::Result<DictionaryFiles> {
        match NamedDictionary::find(source)? {
            NamedDictionary::Demo => {
                if Path::new(source).is_dir() {
                    observer
                        .note("dictionary: demo, the built-in one; for the folder of that name, give ./demo");
                }
                let config = gpt2_demo::FEATURES_CONFIG;
                let weights = gpt2_demo::FEATURES_WEIGHTS;
                let checkpoint = DictionaryCheckpoint::embedded(source, config, weights)?;
                Ok(DictionaryFiles { checkpoint, folder: None })
            }
            NamedDictionary::Folder(folder) => {
                let checkpoint = DictionaryCheckpoint::open(&folder)?;
                // The process may work in another folder by the time that it writes.
                let folder = std::path::absolute(&folder).unwrap_or(folder);
                Ok(DictionaryFiles { checkpoint, folder: Some(folder) })
            }
            NamedDictionary::Hub(id, revision, inside) => {
                let found = self.connect(observer)?.open_dictionary(&id, &revision, &inside);
                let taken = TakenForHub { name: source.to_owned(), kind: HubThing::Dictionary };
                let checkpoint = found.context(taken)?;
                Ok(DictionaryFiles { checkpoint, folder: None })
            }
        }
    }
}

impl DictionaryFiles {
    /// The files in its folder; none of one that is built in, or on the Hub.
    pub fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.folder.iter().flat_map(|folder| DictionaryCheckpoint::paths_in(folder))
    }

    /// Reads the tensors.
    ///
    /// # Errors
    /// When they do not fit the config, or cannot be read.
    pub fn load(self, observer: &dyn Observer) -> anyhow::Result<OpenedDictionary> {
        if self.checkpoint.origin().is_some() {
            observer.note(&format!("dictionary: {}", self.checkpoint.name()));
        }
        Ok(OpenedDictionary { dictionary: Arc::new(self.checkpoint.load()?), found: self })
    }
}

impl OpenedDictionary {
    /// The dictionary at the hook points that it reads and writes in a model of this config.
    ///
    /// # Errors
    /// When the model has no such points, or their widths differ.
    pub fn features(&self, config: &Config) -> anyhow::Result<Features> {
        let checkpoint = &self.found.checkpoint;
        let hook = checkpoint.config().hook;
        let hook_out = checkpoint.config().hook_out;
        Features::new(&self.dictionary, hook, hook_out, config).with_context(|| checkpoint.name().to_string())
    }

    /// The point at which changes of its features act.
    pub(crate) fn site(&self) -> FeatureSite {
        let config = self.found.checkpoint.config();
        FeatureSite::new(Arc::clone(&self.dictionary), config.hook, config.hook_out)
    }

    /// Hashes what is in its files, or where on the Hub they are.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn hash(&self, hasher: &mut impl Hasher) -> anyhow::Result<()> {
        self.found.checkpoint.name().hash(hasher);
        if self.found.folder.is_none() && self.found.checkpoint.origin().is_none() {
            gpt2_demo::FEATURES_WEIGHTS.hash(hasher);
        }
        for path in self.found.paths() {
            std::fs::read(&path).with_context(|| path.display().to_string())?.hash(hasher);
        }
        Ok(())
    }
}
