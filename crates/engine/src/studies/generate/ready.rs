//! The facts of a prompt's continuation before its first token.

use super::options::Options;
use crate::interventions::Applied;
use crate::provenance::RunProvenance;
use crate::studies::run::Run;
use crate::texts::Prompt;
use gpt2_model::CacheDType;

/// What is known of a prompt's continuation before its first token.
#[derive(Debug)]
pub struct Ready {
    /// The model's name.
    pub(super) model: String,
    /// The prompt.
    pub prompt: Prompt,
    /// The facts that the result depends on.
    pub provenance: RunProvenance,
    /// The most new tokens.
    pub(super) most: usize,
}

impl Ready {
    pub(super) fn new(
        options: &Options,
        run: &Run,
        applied: &Applied,
        prompt: Prompt,
        most: usize,
    ) -> anyhow::Result<Self> {
        let mut provenance = RunProvenance::new(run.opened, &prompt.ids)?.under(applied);
        provenance.kv = options.kv.map(CacheDType::as_str);
        Ok(Self { model: run.opened.name.clone(), prompt, provenance, most })
    }
}
