//! Adapters found, checked and put on a model.

use super::adapters::{AdapterChoice, FoundAdapter, UsedAdapter};
use super::options::ModelOptions;
use super::taken::{HubThing, TakenForHub};
use crate::names::{DEMO_NAME, NamedAdapter};
use crate::observer::Observer;
use anyhow::{Context, bail};
use gpt2_loader::{AdapterCheckpoint, AdapterFiles};
use gpt2_model::Gpt2LMHeadModel;
use std::collections::BTreeMap;

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
                let files =
                    files.context(TakenForHub { name: source.to_owned(), kind: HubThing::Adapter })?;
                observer.note(&format!("adapter: {}", files.name));
                Ok(files)
            }
        }
    }

    /// The files of all adapters.
    ///
    /// # Errors
    /// See [`ModelOptions::adapter`]; also when one is named twice.
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
                files: vec![files.config.clone(), files.weights.clone()],
            });
        }
        Ok((model, used))
    }
}
