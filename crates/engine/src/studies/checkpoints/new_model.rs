//! The folder of a model that is about to be written.

use crate::hub::HubOptions;
use crate::open::FoundAdapter;
use crate::read_files::{folders, model_folders};
use crate::spelling::Spelling;
use anyhow::{Context, bail};
use candle_core::DType;
use gpt2_files::unfinished::NewFolders;
use gpt2_loader::{AdapterFiles, Files, TokenizerFiles};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::{Path, PathBuf};

/// The files of a model's folder.
const FILES: [&str; 3] = ["config.json", "model.safetensors", "tokenizer.json"];

/// A folder to write a model to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewModel {
    /// The folder, which may be new.
    pub out: PathBuf,
    /// The precision of the saved weights.
    #[serde(with = "dtype_name")]
    pub save_dtype: DType,
    /// Whether to replace a model that is there.
    pub overwrite: bool,
}

impl Default for NewModel {
    fn default() -> Self {
        Self { out: PathBuf::new(), save_dtype: DType::F32, overwrite: false }
    }
}

impl NewModel {
    /// The folder as the user named it.
    #[must_use]
    pub fn named(&self, spelling: Spelling) -> String {
        spelling.given("out", self.out.display())
    }

    /// Refuses the folder of an adapter.
    ///
    /// # Errors
    /// When it is one.
    pub fn refuse_adapter(&self, spelling: Spelling) -> anyhow::Result<()> {
        if AdapterFiles::is_in(&self.out) {
            bail!(
                "{}: holds an adapter, and other programs would take the model for one; choose another folder",
                self.named(spelling)
            );
        }
        Ok(())
    }

    /// The files that will be written. Refuses to replace one without leave.
    ///
    /// # Errors
    /// When the folder holds a model already.
    pub fn files(&self, spelling: Spelling) -> anyhow::Result<Vec<PathBuf>> {
        let paths = FILES.map(|name| self.out.join(name)).to_vec();
        let there = FILES.iter().zip(&paths).find(|(_, path)| path.symlink_metadata().is_ok());
        if let Some((name, _)) = there.filter(|_| !self.overwrite) {
            bail!(
                "{}: holds {name} already; choose another folder, or replace it with {}",
                self.named(spelling),
                spelling.switch("overwrite")
            );
        }
        Ok(paths)
    }

    /// Refuses the folder of the model or of an adapter that the work reads, and one in the Hub's cache.
    pub(super) fn spare(
        &self,
        files: &Files,
        adapters: &[FoundAdapter],
        hub: &HubOptions,
        spelling: Spelling,
    ) -> anyhow::Result<()> {
        if hub.caches(&self.out) {
            bail!("{}: lies in the cache of the Hub's models; choose another folder", self.named(spelling));
        }
        let Ok(place) = self.out.canonicalize() else { return Ok(()) };
        let configs: Vec<PathBuf> = adapters.iter().map(|adapter| adapter.files.config.clone()).collect();
        if model_folders(files)?.contains(&place) || folders(&configs).contains(&place) {
            bail!(
                "{}: is the folder of the model or of an adapter, which this reads; choose another",
                self.named(spelling)
            );
        }
        Ok(())
    }

    /// Whether there is a tokenizer that the written model has none to replace with, and other programs would take for its own.
    pub(super) fn keeps_a_tokenizer(&self, files: &Files) -> bool {
        matches!(files.tokenizer, TokenizerFiles::Absent) && self.holds("tokenizer.json")
    }

    pub(super) fn holds(&self, name: &str) -> bool {
        self.out.join(name).symlink_metadata().is_ok()
    }

    /// Makes the folder, which goes again if nothing is written to it.
    pub(super) fn make(&self) -> anyhow::Result<NewFolders> {
        let out: &Path = &self.out;
        NewFolders::make(out).with_context(|| format!("cannot make {}", out.display()))
    }
}

/// A dtype, by its name.
mod dtype_name {
    use super::{DType, Deserialize, Deserializer, Serialize, Serializer};
    use crate::open::DTYPES;
    use crate::words::{name_of, one_of};

    #[allow(clippy::trivially_copy_pass_by_ref)] // the form that serde calls
    pub(super) fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        name_of(DTYPES, dtype).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
        let name = String::deserialize(from)?;
        one_of("save_dtype", &name, DTYPES).map_err(serde::de::Error::custom)
    }
}
