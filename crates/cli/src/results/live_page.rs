//! Pages with a model in them, for `gpt2 live` and for the commands whose page may be one.

use super::browser::open;
use crate::model::args::{FirstTokenArg, ModelArgs};
use crate::output::note;
use crate::output::written_files::Outputs;
use anyhow::{anyhow, bail};
use candle_core::DType;
use gpt2_engine::DEMO_NAME;
use gpt2_engine::Opened;
use gpt2_engine::interventions::Applied;
use gpt2_loader::Files;
use gpt2_model::hooks::Intervention;
use gpt2_page_module::{LOADER, PACKED};
use gpt2_web::{Live, LiveFile, PageRequest};
use std::path::Path;

/// A page that has a model in it, in the place of one that only shows what the command computed.
#[derive(Debug, clap::Args)]
pub(crate) struct LiveArg {
    /// Put the model into the page, as gpt2 live does: the page then follows what is typed
    #[arg(id = "live", long, requires = "page", help_heading = "Page for a browser")]
    pub(crate) wanted: bool,
}

impl LiveArg {
    /// Refuses a model that such a page does not run, if one is wanted.
    pub(crate) fn check(&self, model: &ModelArgs, first_token: &FirstTokenArg) -> anyhow::Result<()> {
        let given = [
            (
                "--adapter",
                !model.adapters.list.is_empty(),
                "gpt2 merge writes a model with the adapter in it",
            ),
            ("--quantize", model.quantize.is_some(), "gpt2 quantize writes a model in fewer bits"),
            ("--processed", model.processed, "the page has the weights as they are"),
            ("--prepend-bos", first_token.prepend_bos, "the page reads what is typed; give --ids"),
            ("--dtype", model.dtype != DType::F32, "the page computes in f32"),
        ];
        match given.iter().find(|(_, given, _)| *given && self.wanted) {
            Some((option, _, remedy)) => bail!("{option}: not with --live: {remedy}"),
            None => Ok(()),
        }
    }
}

/// The page of an opened model that opens on `first`.
pub(crate) fn page_of(model: &ModelArgs, opened: &Opened, first: &PageRequest) -> anyhow::Result<Vec<u8>> {
    let is_demo = model.model.as_deref().is_none_or(|name| name == DEMO_NAME);
    page(opened.files.as_ref().filter(|_| !is_demo), first)
}

/// The interventions as a page with a model reads them; refuses those that text cannot hold.
pub(crate) fn changes_for_page(applied: &Applied) -> anyhow::Result<Vec<String>> {
    let one = |one: &Intervention| {
        let text = one.to_string();
        let is_whole = text.parse::<Intervention>().is_ok() && applied.sources.is_empty();
        if is_whole { Ok(text) } else { Err(anyhow!("--live: a page cannot hold `{text}`; leave it out")) }
    };
    applied.list.iter().map(one).collect()
}

/// The page that opens on `first`; on the demo model if there is no other.
pub(crate) fn page(model: Option<&Files>, first: &PageRequest) -> anyhow::Result<Vec<u8>> {
    let file = LiveFile { module: PACKED, loader: LOADER, model };
    file.check()?;
    let live = model.map_or_else(Live::demo, Live::open)?;
    // A text that the page could not show is refused here.
    if let Some(left_out) = live.look(first)?.left_out {
        note(&format!("the vocabulary cannot spell these characters, left out: {left_out}"));
    }
    let mut page = vec![];
    file.write(first, &mut page)?;
    if model.is_some() {
        note(&format!("the page has {} MB", page.len() / 1_000_000));
    }
    Ok(page)
}

/// Writes the page to `path` and opens it in the browser, each if that is wanted.
pub(crate) fn deliver(
    page: &[u8],
    path: Option<&Path>,
    opens: bool,
    mut outputs: Outputs,
) -> anyhow::Result<()> {
    if let Some(path) = path {
        outputs.stage_bytes(path, page)?;
    }
    outputs.commit()?;
    if opens { open(path, page) } else { Ok(()) }
}
