//! The beginning of a continuation.

use super::options::Options;
use crate::interventions::Applied;
use crate::open::Opened;
use crate::provenance::RunProvenance;
use crate::spelling::Spelling;
use crate::studies::study::Run;
use crate::texts::{Continuation, Prompt};
use anyhow::Context;
use gpt2_loader::Tokenizer;
use gpt2_model::hooks::Chain;
use gpt2_model::{CacheDType, Generation};
use std::ops::ControlFlow;

/// Hears each part of a text as it comes, and the row that it belongs to; may end the work, and then hears no more.
pub type OnPiece<'a> = &'a mut dyn FnMut(usize, Piece) -> ControlFlow<()>;

/// A part of a text as it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// The text that a new token adds, which may be empty.
    Token(&'a str),
    /// The characters that were held back at the end.
    Rest(&'a str),
}

impl<'a> Piece<'a> {
    /// Its text.
    #[must_use]
    pub fn text(self) -> &'a str {
        match self {
            Self::Token(text) | Self::Rest(text) => text,
        }
    }
}

/// Facts of a prompt's continuation that are known before its first token.
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

/// An empty continuation of a prompt: text, or ids after a prompt of ids.
pub(super) fn continuation<'a>(
    options: &Options,
    opened: &'a Opened,
    prompt: &Prompt,
) -> anyhow::Result<Continuation<&'a Tokenizer>> {
    let tokenizer = prompt.text.as_ref().map(|_| opened.tokenizer()).transpose()?;
    Ok(Continuation::new(opened.model.config(), tokenizer, &options.stop))
}

/// A generation after some prompts, before its first pass.
pub(super) fn generation<'a>(
    options: &Options,
    run: &Run<'a>,
    prompts: &[Vec<u32>],
    most: usize,
) -> anyhow::Result<Generation<'a>> {
    let mut generation = Generation::new(&run.opened.model, prompts, options.sampling(run.seed), most)?;
    if let Some(kv) = options.kv {
        generation = generation.with_cache_dtype(kv)?;
    }
    if options.cuda_graph {
        generation =
            generation.with_cuda_graph().with_context(|| run.opened.spelling.option("cuda-graph"))?;
    }
    Ok(generation)
}

/// A generation under these hooks.
pub(super) fn hooked<'a>(
    generation: Generation<'a>,
    options: &Options,
    hooks: &'a Chain<'a>,
    spelling: Spelling,
) -> anyhow::Result<Generation<'a>> {
    if hooks.0.is_empty() {
        return Ok(generation);
    }
    options.check_hooks(spelling)?;
    Ok(generation.with_hooks(hooks))
}
