//! `--adapter`: adapters found, checked and put on a model.

use super::hub::{self, HubArgs};
use crate::output::note;
use crate::output::read_files::ReadFiles;
use anyhow::{Context, bail};
use gpt2_engine::{DEMO_NAME, NamedAdapter};
use gpt2_loader::{AdapterCheckpoint, AdapterFiles};
use gpt2_model::Gpt2LMHeadModel;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct AdapterArgs {
    /// Put a LoRA adapter on the model, times WEIGHT: a folder, or owner/name on the Hub, in PEFT's format
    /// (repeatable)
    #[arg(long = "adapter", value_name = "DIR|NAME[=WEIGHT]")]
    pub(crate) list: Vec<AdapterArg>,
}

/// `DIR|NAME[=WEIGHT]`
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AdapterArg {
    pub(crate) source: String,
    pub(crate) weight: f64,
}

impl FromStr for AdapterArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A folder's name may hold an equals sign.
        let (source, weight) = match text.rsplit_once('=') {
            Some((source, weight)) if !std::path::Path::new(text).is_dir() => {
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
pub(crate) struct Used {
    pub(crate) name: String,
    pub(crate) weight: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    /// The hash of its weights, if known without reading them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    weights: BTreeMap<String, String>,
}

/// The files of an adapter: of a folder, if one of that name exists, otherwise of the Hub.
pub(crate) fn files(source: &str, args: &HubArgs) -> anyhow::Result<AdapterFiles> {
    match NamedAdapter::find(source)? {
        NamedAdapter::Folder(dir) => Ok(AdapterFiles::directory(&dir)?),
        NamedAdapter::Hub(id, revision) => {
            let files = hub::settings(args)?.open_adapter(&id, &revision);
            let files = files.with_context(|| {
                format!("there is no folder {source}, so it was taken for an adapter on the Hub")
            })?;
            note(&format!("adapter: {}", files.name));
            Ok(files)
        }
    }
}

/// Finds all adapters, and adds their files to what the run reads.
pub(crate) fn find(
    list: &[AdapterArg],
    args: &HubArgs,
    inputs: &mut ReadFiles,
) -> anyhow::Result<Vec<(AdapterFiles, f64)>> {
    let mut found: Vec<(AdapterFiles, f64)> = vec![];
    for AdapterArg { source, weight } in list {
        let files = files(source, args)?;
        let place = |files: &AdapterFiles| std::fs::canonicalize(&files.config).ok();
        if found.iter().any(|(other, _)| place(other) == place(&files)) {
            bail!("--adapter: {} is named twice; give it one weight", files.name);
        }
        inputs.adapter(&files);
        found.push((files, *weight));
    }
    Ok(found)
}

/// The model that the config of the adapter in a folder names.
pub(crate) fn base(dir: &Path) -> Option<String> {
    let adapter = AdapterCheckpoint::open(&AdapterFiles::directory(dir).ok()?).ok()?;
    adapter.config().base_model_name_or_path.clone()
}

/// The model with the adapters on it, and what they are. `is_default`: the user named no model, so an adapter that does not fit it
/// says of which model it is.
pub(crate) fn put_on(
    mut model: Gpt2LMHeadModel,
    adapters: &[(AdapterFiles, f64)],
    is_default: bool,
) -> anyhow::Result<(Gpt2LMHeadModel, Vec<Used>)> {
    let mut used: Vec<Used> = vec![];
    let mut replaced: BTreeMap<String, &str> = BTreeMap::new();
    for (files, weight) in adapters {
        let checkpoint = AdapterCheckpoint::open(files)?;
        let adapter = checkpoint.load(model.config());
        let base = checkpoint.config().base_model_name_or_path.as_ref();
        if let Some(base) = base.filter(|base| is_default && *base != DEMO_NAME) {
            if adapter.is_err() {
                bail!(
                    "--adapter {}: is an adapter of {base}, and does not fit the built-in demo model; give --model {base}",
                    files.name
                );
            }
            note(&format!(
                "--adapter {} was trained on {base} but now runs on the built-in demo model; to run it on {base}, give \
                 --model {base}",
                files.name
            ));
        }
        let adapter = adapter?;
        for parameter in adapter.replaced.keys() {
            if let Some(other) = replaced.insert(parameter.clone(), &files.name) {
                bail!(
                    "--adapter: {} and {other} both hold {parameter} whole; choose one of them",
                    files.name
                );
            }
        }
        model = model.with_adapter(&files.name, &adapter, *weight)?;
        used.push(Used {
            name: files.name.clone(),
            weight: *weight,
            commit: files.commit.clone(),
            weights: files.verified.clone(),
        });
    }
    Ok((model, used))
}
