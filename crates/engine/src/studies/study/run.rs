//! A study, what it runs on, and its outcome.

use crate::interventions::{Applied, Prepared, Reads};
use crate::observer::Observer;
use crate::open::{Opened, OpenedDictionary, check_finite};
use crate::texts::{Content, Prompt};
use candle_core::Tensor;
use gpt2_model::analysis::Metric;
use gpt2_model::hooks::Hooks;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// The options of a study, which run. Names and values are those of the command's options and of Python's keywords.
pub trait Study: Default + Serialize + DeserializeOwned {
    /// Its name: the command's, and with underscores the Python method's.
    const NAME: &'static str;
    /// The interventions that have no meaning in it, by the names of their options.
    const REFUSES: &'static [&'static str] = &[];
    /// Its result.
    type Report: Serialize;

    /// Runs the study.
    ///
    /// # Errors
    /// When an option does not fit the model, a number is not finite, or the observer ends it.
    fn run(&self, run: &Run) -> anyhow::Result<Outcome<Self::Report>>;
}

/// The surroundings of a study, besides its own options.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    /// The model.
    pub opened: &'a Opened,
    /// The interventions.
    pub interventions: &'a Prepared<'a>,
    /// The metric of a study of pairs, in place of that of its options: of a pair by its place among them.
    pub metric: Option<&'a (dyn Fn(usize) -> Metric + Sync)>,
    /// Dictionaries of a study of several that are open already, besides those that its options name.
    pub dictionaries: &'a [Arc<OpenedDictionary>],
    /// The seed for everything random.
    pub seed: u64,
    /// Whether NaN and infinity are results instead of errors.
    pub allow_nonfinite: bool,
    /// Whether the caller wants the outcome's tensors.
    pub wants_tensors: bool,
    /// Hears notes and progress, and may end the study.
    pub observer: &'a dyn Observer,
}

/// The result of a study.
#[derive(Debug)]
pub struct Outcome<R> {
    /// The facts.
    pub report: R,
    /// The tensors behind them, by name.
    pub tensors: Vec<(String, Tensor)>,
}

impl<R> Outcome<R> {
    /// A report without tensors.
    #[must_use]
    pub fn new(report: R) -> Self {
        Self { report, tensors: vec![] }
    }
}

impl<'a> Run<'a> {
    /// A run of a model with interventions, with the defaults of everything else: tensors are wanted, where a study has some.
    #[must_use]
    pub fn new(interventions: &'a Prepared<'a>, observer: &'a dyn Observer) -> Self {
        Self {
            opened: interventions.opened(),
            interventions,
            metric: None,
            dictionaries: &[],
            seed: 0,
            allow_nonfinite: false,
            wants_tensors: true,
            observer,
        }
    }

    /// The prompt of a study.
    ///
    /// # Errors
    /// When it is empty, too long, or the model has no tokenizer for a text.
    pub fn prompt(&self, content: &Content) -> anyhow::Result<Prompt> {
        Prompt::new(self.opened, content, "the prompt", self.observer)
    }

    /// The interventions for a run over one prompt.
    ///
    /// # Errors
    /// When one does not fit the prompt.
    pub fn on_prompt(&self, prompt: &Prompt) -> anyhow::Result<Applied> {
        self.interventions.of(Reads::Whole(&[&prompt.ids]))
    }

    /// Refuses results of a run over `ids` (B, T) that are not finite, unless the caller allows them.
    ///
    /// # Errors
    /// When there is such a number: it says where in the model the first one appears.
    pub fn check_finite<'t>(
        &self,
        ids: &Tensor,
        hooks: Option<&dyn Hooks>,
        results: impl IntoIterator<Item = &'t Tensor>,
    ) -> anyhow::Result<()> {
        if self.allow_nonfinite { Ok(()) } else { check_finite(self.opened, ids, hooks, results) }
    }
}
