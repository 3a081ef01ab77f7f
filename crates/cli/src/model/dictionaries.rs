//! `--dictionary`: a dictionary of features, found and read.

use super::hub::{self, HubArgs};
use crate::output::note;
use anyhow::Context;
use gpt2_circuits::features::Features;
use gpt2_engine::NamedDictionary;
use gpt2_loader::DictionaryCheckpoint;
use gpt2_model::Config;
use gpt2_model::dictionary::Dictionary;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

/// The files of a dictionary, checked.
pub(crate) struct DictionaryFiles {
    pub(crate) checkpoint: DictionaryCheckpoint,
    folder: Option<PathBuf>,
}

/// A dictionary that is ready to use.
pub(crate) struct OpenedDictionary {
    pub(crate) dictionary: Arc<Dictionary>,
    pub(crate) found: DictionaryFiles,
}

/// A dictionary in a folder, if one of that name exists, otherwise on the Hub.
pub(crate) fn find(source: &str, args: &HubArgs) -> anyhow::Result<DictionaryFiles> {
    match NamedDictionary::find(source)? {
        NamedDictionary::Folder(folder) => {
            Ok(DictionaryFiles { checkpoint: DictionaryCheckpoint::open(&folder)?, folder: Some(folder) })
        }
        NamedDictionary::Hub(id, revision, inside) => {
            let checkpoint =
                hub::settings(args)?.open_dictionary(&id, &revision, &inside).with_context(|| {
                    format!("there is no folder {source}, so it was taken for a dictionary on the Hub")
                })?;
            Ok(DictionaryFiles { checkpoint, folder: None })
        }
    }
}

impl DictionaryFiles {
    pub(crate) fn load(self) -> anyhow::Result<OpenedDictionary> {
        if self.checkpoint.origin().is_some() {
            note(&format!("dictionary: {}", self.checkpoint.name()));
        }
        Ok(OpenedDictionary { dictionary: Arc::new(self.checkpoint.load()?), found: self })
    }
}

impl OpenedDictionary {
    /// The dictionary at the hook points that it reads and writes in a model of this config.
    pub(crate) fn features(&self, config: &Config) -> anyhow::Result<Features> {
        let checkpoint = &self.found.checkpoint;
        let hook = checkpoint.config().hook;
        let hook_out = checkpoint.config().hook_out;
        Features::new(&self.dictionary, hook, hook_out, config).with_context(|| checkpoint.name().to_string())
    }

    /// Hashes what is in its files, or where on the Hub they are.
    pub(crate) fn hash(&self, hasher: &mut impl Hasher) -> anyhow::Result<()> {
        self.found.checkpoint.name().hash(hasher);
        for path in self.found.folder.iter().flat_map(|folder| DictionaryCheckpoint::paths_in(folder)) {
            std::fs::read(&path).with_context(|| path.display().to_string())?.hash(hasher);
        }
        Ok(())
    }
}
