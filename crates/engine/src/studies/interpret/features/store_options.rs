//! The options of features over a store, and what they name to read.

use crate::interventions::DictionaryChoice;
use crate::read_files::ReadFiles;
use anyhow::Context;
use gpt2_view::NeuronpediaId;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The options of features over a store.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreOptions {
    /// The folder with the values.
    pub store: PathBuf,
    /// The dictionary: a folder, or `owner/name/FOLDER` on the Hub; by default that of the interventions.
    pub dictionary: Option<String>,
    /// The number of features to list, the most frequent first, and of places, tokens, related features and heads for each one that is
    /// followed.
    pub top_k: usize,
    /// The features to follow: where they fire most, and which tokens they make likelier.
    pub feature: Vec<u32>,
    /// Whether to tell all about these features, or about every one: also how large their activations are, and what is related.
    pub details: bool,
    /// The folder of pages to write, with all of these features, or of every one.
    pub pages: Option<PathBuf>,
    /// The files to write for Neuronpedia, of these features or of every one; the report has the activations around each place, too.
    pub neuronpedia: Option<Upload>,
    /// Files with published explanations of the dictionary's features.
    pub explanations: Vec<PathBuf>,
    /// Whether to replace pages that are there.
    pub overwrite: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            store: PathBuf::new(),
            dictionary: None,
            top_k: 5,
            feature: vec![],
            details: false,
            pages: None,
            neuronpedia: None,
            explanations: vec![],
            overwrite: false,
        }
    }
}

/// Files to write for an upload to Neuronpedia.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upload {
    /// The folder, new or empty.
    pub folder: PathBuf,
    /// The dictionary's place there.
    pub id: NeuronpediaId,
}

impl StoreOptions {
    /// Whether to tell all about features: pages have all of it.
    pub(super) fn wants_details(&self) -> bool {
        self.details || self.pages.is_some()
    }

    /// Adds everything that the study reads, but for the model. A dictionary that these options do not name is that of the interventions.
    ///
    /// # Errors
    /// When there is no such store.
    pub fn add_inputs(
        &self,
        inputs: &mut ReadFiles,
        of_interventions: Option<&DictionaryChoice>,
    ) -> anyhow::Result<()> {
        for file in self.store.read_dir().with_context(|| self.store.display().to_string())? {
            inputs.file("a file of the store", file?.path());
        }
        let named = self.dictionary.clone().map(DictionaryChoice::Named);
        for path in named.as_ref().or(of_interventions).iter().flat_map(|dictionary| dictionary.paths()) {
            inputs.file("a file of the dictionary", path);
        }
        for path in &self.explanations {
            inputs.file("a file of explanations", path);
        }
        Ok(())
    }
}
