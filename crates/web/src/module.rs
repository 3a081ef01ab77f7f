//! The functions that the page's worker calls.

use crate::{INTERFACE, Live, PageRequest};
use gpt2_loader::Files;
use std::collections::BTreeMap;
use wasm_bindgen::prelude::*;

/// A model in the worker.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Model(Live);

#[wasm_bindgen]
impl Model {
    /// The name of this module's interface, which must be the page's.
    #[must_use]
    pub fn interface() -> String {
        INTERFACE.to_owned()
    }

    /// A model from its files.
    ///
    /// # Errors
    /// Fails as [`Files::in_memory`] and [`Live::open`] do.
    pub fn open(name: &str, files: ModelFiles) -> Result<Self, JsError> {
        let open = || Live::open(&Files::in_memory(name, files.0)?);
        open().map(Self).map_err(thrown)
    }

    /// Runs the model over a text. Returns a first line of JSON, [`PageAnswer`](crate::PageAnswer), then the lines of the page's
    /// data. `look` is a [`PageRequest`] as JSON.
    ///
    /// # Errors
    /// Fails as [`Live::look`] does, and when `look` is not the JSON of a [`PageRequest`].
    pub fn look(&self, look: &str) -> Result<String, JsError> {
        let shown = self.0.look(&parsed(look)?).map_err(thrown)?;
        let first = serde_json::to_string(&shown).map_err(|e| thrown(e.into()))?;
        Ok(format!("{first}\n{}", shown.page))
    }

    /// The tokens of a text and up to `count` drawn ones. `look` is a [`PageRequest`] as JSON.
    ///
    /// # Errors
    /// Fails as [`Live::go_on`] does, and when `look` is not the JSON of a [`PageRequest`].
    pub fn go_on(&self, look: &str, count: usize) -> Result<Vec<u32>, JsError> {
        self.0.go_on(&parsed(look)?, count).map_err(thrown)
    }
}

/// The files of a model, by their names.
#[wasm_bindgen]
#[derive(Debug, Default)]
pub struct ModelFiles(BTreeMap<String, Vec<u8>>);

#[wasm_bindgen]
impl ModelFiles {
    /// None yet.
    #[wasm_bindgen(constructor)]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file.
    pub fn add(&mut self, name: String, content: Vec<u8>) {
        self.0.insert(name, content);
    }
}

fn parsed(look: &str) -> Result<PageRequest, JsError> {
    serde_json::from_str(look).map_err(|e| thrown(e.into()))
}

fn thrown(error: anyhow::Error) -> JsError {
    JsError::new(&format!("{error:#}"))
}
