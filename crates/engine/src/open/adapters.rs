//! Adapters: chosen by name, found, and used.

use gpt2_loader::{AdapterCheckpoint, AdapterFiles};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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
    pub(super) commit: Option<String>,
    /// The hash of its weights, if known without reading them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) weights: BTreeMap<String, String>,
    /// Its files.
    #[serde(skip)]
    pub(crate) files: Vec<PathBuf>,
}

impl UsedAdapter {
    /// An adapter that was trained in this process.
    #[must_use]
    pub fn trained(name: String) -> Self {
        Self { name, weight: 1.0, commit: None, weights: BTreeMap::new(), files: vec![] }
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

/// The model that the config of the adapter in a folder names.
#[must_use]
pub fn base_of_adapter(dir: &Path) -> Option<String> {
    let adapter = AdapterCheckpoint::open(&AdapterFiles::directory(dir).ok()?).ok()?;
    adapter.config().base_model_name_or_path.clone()
}
