//! Pairs of texts for tasks that papers on circuits use.

use crate::interventions::ALL_INTERVENTIONS;
use crate::studies::study::{Outcome, Run, Study};
use crate::texts::{PairInput, Task};
use anyhow::Context;
use gpt2_loader::Tokenizer;
use serde::{Deserialize, Serialize};

/// The task, and how many pairs of it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The kind of task.
    pub task: Task,
    /// The number of pairs.
    pub count: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { task: Task::default(), count: 20 }
    }
}

impl Options {
    /// The pairs in the words of a vocabulary; `name` is that of its model. The same seed gives the same pairs.
    ///
    /// # Errors
    /// When the vocabulary breaks up the words that the task needs, or has too few tokens.
    pub fn pairs(&self, tokenizer: &Tokenizer, name: &str, seed: u64) -> anyhow::Result<Vec<PairInput>> {
        self.task.pairs(tokenizer, self.count, seed).with_context(|| format!("{name} has no such task"))
    }
}

impl Study for Options {
    const NAME: &'static str = "pairs";
    // Nothing runs.
    const REFUSES: &'static [&'static str] = ALL_INTERVENTIONS;
    type Report = Vec<PairInput>;

    fn run(&self, run: &Run) -> anyhow::Result<Outcome<Vec<PairInput>>> {
        let opened = run.opened;
        Ok(Outcome::new(self.pairs(opened.tokenizer()?, &opened.name, run.seed)?))
    }
}
