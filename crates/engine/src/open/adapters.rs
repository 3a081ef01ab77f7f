//! Adapters found, checked and put on a model.

use super::options::ModelOptions;
use crate::names::{DEMO_NAME, NamedAdapter};
use crate::observer::Observer;
use anyhow::{Context, bail};
use gpt2_loader::{AdapterCheckpoint, AdapterFiles};
use gpt2_model::Gpt2LMHeadModel;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// An adapter by its name, times a weight.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterChoice {
    /// A folder, or `owner/name` on the Hub.
    pub source: String,
    /// The factor on its change.
    pub weight: f64,
}

impl std::str::FromStr for AdapterChoice {
    type Err = String;

    /// `DIR|NAME[=WEIGHT]`
    fn from_str(text: &str) -> Result<Self, String> {
        // A folder's name may hold an equals sign.
        let (source, weight) = match text.rsplit_once('=') {
            Some((source, weight)) if !Path::new(text).is_dir() => {
                let weight = weight.parse().ok().filter(|weight: &f64| weight.is_finite());
                (source, weight.ok_or("expected a number after the last =, as in poems=0.5")?)
            }
            _ => (text, 1.0),
        };
        if source.is_empty() {
            return Err("expected a folder or a name on the Hub".into());
        }
        Ok(Self { source: source.into(), weight })
    }
}

/// An adapter of a run: where it came from, and how strong it is.
#[derive(Debug, Clone, Serialize)]
pub struct UsedAdapter {
    /// The folder as the user gave it, or the name on the Hub.
    pub name: String,
    /// The factor on its change.
    pub weight: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    /// The hash of its weights, if known without reading them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    weights: BTreeMap<String, String>,
}

impl UsedAdapter {
    /// An adapter that was trained in this process.
    #[must_use]
    pub fn trained(name: String) -> Self {
        Self { name, weight: 1.0, commit: None, weights: BTreeMap::new() }
    }
}

/// The files of an adapter, and its weight.
#[derive(Debug, Clone)]
pub struct FoundAdapter {
    /// The files.
    pub files: AdapterFiles,
    /// The factor on its change.
    pub weight: f64,
}

impl ModelOptions {
    /// The files of an adapter: of a folder, if one of that name exists, otherwise of the Hub.
    ///
    /// # Errors
    /// When there is no such adapter, or the Hub fails.
    pub fn adapter(&self, source: &str, observer: &dyn Observer) -> anyhow::Result<AdapterFiles> {
        match NamedAdapter::find(source)? {
            NamedAdapter::Folder(dir) => Ok(AdapterFiles::directory(&dir)?),
            NamedAdapter::Hub(id, revision) => {
                let files = self.hub.connect(observer)?.open_adapter(&id, &revision);
                let files = files.with_context(|| {
                    format!("there is no folder {source}, so it was taken for an adapter on the Hub")
                })?;
                observer.note(&format!("adapter: {}", files.name));
                Ok(files)
            }
        }
    }

    /// The files of all adapters.
    ///
    /// # Errors
    /// As for [`ModelOptions::adapter`], and when one is named twice.
    pub fn find_adapters(&self, observer: &dyn Observer) -> anyhow::Result<Vec<FoundAdapter>> {
        let mut found: Vec<FoundAdapter> = vec![];
        for AdapterChoice { source, weight } in &self.adapters {
            let files = self.adapter(source, observer)?;
            let place = |files: &AdapterFiles| std::fs::canonicalize(&files.config).ok();
            if found.iter().any(|other| place(&other.files) == place(&files)) {
                bail!(
                    "{}: {} is named twice; give it one weight",
                    self.spelling.option("adapter"),
                    files.name
                );
            }
            found.push(FoundAdapter { files, weight: *weight });
        }
        Ok(found)
    }

    /// The model with the adapters on it, and what they are. Where no model was named, an adapter that does not fit it says of which
    /// model it is.
    ///
    /// # Errors
    /// When an adapter does not fit the model, or two hold the same parameter whole.
    pub fn with_adapters(
        &self,
        mut model: Gpt2LMHeadModel,
        adapters: &[FoundAdapter],
        observer: &dyn Observer,
    ) -> anyhow::Result<(Gpt2LMHeadModel, Vec<UsedAdapter>)> {
        let option = self.spelling.option("adapter");
        let mut used: Vec<UsedAdapter> = vec![];
        let mut replaced: BTreeMap<String, &str> = BTreeMap::new();
        for FoundAdapter { files, weight } in adapters {
            let checkpoint = AdapterCheckpoint::open(files)?;
            let adapter = checkpoint.load(model.config());
            let base = checkpoint.config().base_model_name_or_path.as_ref();
            if let Some(base) = base.filter(|base| self.model.is_none() && *base != DEMO_NAME) {
                let named = self.spelling.given("model", base);
                if adapter.is_err() {
                    bail!(
                        "{option} {}: is an adapter of {base}, and does not fit the built-in demo model; give {named}",
                        files.name
                    );
                }
                observer.note(&format!(
                    "{option} {} was trained on {base} but now runs on the built-in demo model; to run it on {base}, give {named}",
                    files.name
                ));
            }
            let adapter = adapter?;
            for parameter in adapter.replaced.keys() {
                if let Some(other) = replaced.insert(parameter.clone(), &files.name) {
                    bail!(
                        "{option}: {} and {other} both hold {parameter} whole; choose one of them",
                        files.name
                    );
                }
            }
            model = model.with_adapter(&files.name, &adapter, *weight)?;
            used.push(UsedAdapter {
                name: files.name.clone(),
                weight: *weight,
                commit: files.commit.clone(),
                weights: files.verified.clone(),
            });
        }
        Ok((model, used))
    }
}

/// The model that the config of the adapter in a folder names.
#[must_use]
pub fn base_of_adapter(dir: &Path) -> Option<String> {
    let adapter = AdapterCheckpoint::open(&AdapterFiles::directory(dir).ok()?).ok()?;
    adapter.config().base_model_name_or_path.clone()
}
