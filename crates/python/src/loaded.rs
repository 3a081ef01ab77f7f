//! A model that is ready to run, with what only Python keeps of it.

use crate::error::Failed;
use gpt2_engine::{Opened, RunProvenance};
use gpt2_loader::Tokenizer;
use gpt2_model::lora::{Adapter, LoraOptions};
use gpt2_view::Provenance;
use std::ops::Deref;

/// A model that is ready to run.
pub(crate) struct Loaded {
    pub(crate) opened: Opened,
    /// Notes for the reader about the choices that were made.
    pub(crate) notes: Vec<String>,
    /// The adapter that was trained on it.
    pub(crate) trained: Option<TrainedAdapter>,
}

/// An adapter that was trained, and its settings.
pub(crate) type TrainedAdapter = (Adapter, LoraOptions);

impl Deref for Loaded {
    type Target = Opened;

    fn deref(&self) -> &Opened {
        &self.opened
    }
}

impl Loaded {
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, Failed> {
        Ok(self.opened.tokenizer()?)
    }

    /// Refuses to write or train processed weights, which no checkpoint has.
    pub(crate) fn refuse_processed(&self, done: &str) -> Result<(), Failed> {
        if self.opened.processed {
            return Err(Failed::value(format!(
                "{}: its weights are processed, and processed weights cannot be {done}; load it without processed=True",
                self.opened.name
            )));
        }
        Ok(())
    }

    /// The provenance of a result: a line for a reader, and the facts.
    pub(crate) fn provenance(&self, ids: &[u32], changes: &[String]) -> anyhow::Result<Provenance> {
        RunProvenance::new(&self.opened, ids)?.from_python().with_texts(changes).for_files()
    }
}
