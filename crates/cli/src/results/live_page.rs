//! Pages with a model in them, for `gpt2 live` and for the commands whose page may be one.

use super::weights_page::open;
use crate::model::args::ModelArgs;
use crate::output::note;
use crate::output::read_files::ReadFiles;
use crate::output::written_files::Outputs;
use anyhow::{Context, anyhow, bail};
use candle_core::DType;
use gpt2_engine::DEMO_NAME;
use gpt2_engine::Opened;
use gpt2_engine::interventions::Applied;
use gpt2_loader::Files;
use gpt2_model::hooks::Intervention;
use gpt2_web::{Live, LiveFile, PageRequest};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// The files that `scripts/web.sh` writes.
const WASM: &str = "gpt2_web_bg.wasm";
const GLUE: &str = "gpt2_web.js";

/// A page that has a model in it, in the place of one that only shows what the command computed.
#[derive(Debug, clap::Args)]
pub(crate) struct LiveArg {
    /// Put the model into the page, as gpt2 live does: the page then follows what is typed. Most builds need DIR, the module for
    /// the browser: scripts/web.sh writes target/web/page
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = "", requires = "page",
          value_parser = |folder: &str| Ok::<_, String>(PathBuf::from(folder)), help_heading = "Page for a browser")]
    pub(crate) live: Option<PathBuf>,
}

impl LiveArg {
    /// The folder of the browser's module, if one is named.
    fn module(&self) -> Option<&Path> {
        self.live.as_deref().filter(|folder| !folder.as_os_str().is_empty())
    }

    /// Adds the files that the option names.
    pub(crate) fn inputs(&self, inputs: &mut ReadFiles) {
        module_inputs(self.module(), inputs);
    }

    /// The module, if a live page is wanted. Refuses a model that such a page does not run.
    pub(crate) fn open(&self, model: &ModelArgs) -> anyhow::Result<Option<Module>> {
        if self.live.is_none() {
            return Ok(None);
        }
        let given = [
            (
                "--adapter",
                !model.adapters.list.is_empty(),
                "gpt2 merge writes a model with the adapter in it",
            ),
            ("--quantize", model.quantize.is_some(), "gpt2 quantize writes a model in fewer bits"),
            ("--dtype", model.dtype != DType::F32, "the page computes in f32"),
        ];
        if let Some((option, _, remedy)) = given.iter().find(|(_, given, _)| *given) {
            bail!("{option}: not with --live: {remedy}");
        }
        Module::open(self.module()).map(Some)
    }
}

/// The WebAssembly module that runs the model in a browser.
pub(crate) struct Module {
    wasm: Cow<'static, [u8]>,
    /// The script that loads it.
    glue: Cow<'static, str>,
}

impl Module {
    /// The module in a folder, or the one in this binary.
    pub(crate) fn open(folder: Option<&Path>) -> anyhow::Result<Self> {
        let Some(folder) = folder else {
            return BUILT_IN.context(
                "this build has no module for the browser: in a checkout of the repository, run scripts/web.sh, then name its folder \
                 (gpt2 live --module target/web/page, or --live=target/web/page), or build with --features live",
            );
        };
        let unreadable =
            |name: &str| format!("cannot read {}; scripts/web.sh writes it", folder.join(name).display());
        let read = |name: &str| std::fs::read(folder.join(name)).with_context(|| unreadable(name));
        let wasm = Cow::from(read(WASM)?);
        let glue = String::from_utf8(read(GLUE)?).with_context(|| unreadable(GLUE))?;
        Ok(Self { wasm, glue: glue.into() })
    }
}

/// Adds the files of a module to what no output may replace.
pub(crate) fn module_inputs(folder: Option<&Path>, inputs: &mut ReadFiles) {
    if let Some(folder) = folder {
        for name in [WASM, GLUE] {
            inputs.file("the module", folder.join(name));
        }
    }
}

/// The page of an opened model that opens on `first`.
pub(crate) fn page_of(
    module: &Module,
    model: &ModelArgs,
    opened: &Opened,
    first: &PageRequest,
) -> anyhow::Result<Vec<u8>> {
    let is_demo = model.model.as_deref().is_none_or(|name| name == DEMO_NAME);
    page(module, opened.files.as_ref().filter(|_| !is_demo), first)
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
pub(crate) fn page(module: &Module, model: Option<&Files>, first: &PageRequest) -> anyhow::Result<Vec<u8>> {
    let file = LiveFile { module: &module.wasm, glue: &module.glue, model };
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

/// The module in this binary.
#[cfg(feature = "live")]
const BUILT_IN: Option<Module> = Some(Module {
    wasm: Cow::Borrowed(include_bytes!("../../../../target/web/page/gpt2_web_bg.wasm")),
    glue: Cow::Borrowed(include_str!("../../../../target/web/page/gpt2_web.js")),
});

#[cfg(not(feature = "live"))]
const BUILT_IN: Option<Module> = None;
