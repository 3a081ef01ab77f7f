//! `gpt2 live`: a page with the model in it.

use crate::changes;
use crate::inputs::Inputs;
use crate::interventions::{OnHeads, on_heads};
use crate::output::note;
use crate::outputs::Outputs;
use crate::weights::open;
use anyhow::Context;
use gpt2_web::{Live, LiveFile, Look};
use std::path::PathBuf;

/// The files that `scripts/web.sh` writes.
const MODULE: &str = "gpt2_web_bg.wasm";
const GLUE: &str = "gpt2_web.js";

#[derive(Debug, clap::Args)]
#[command(long_about = "\
Write a page that runs the demo model in the browser: type, and its attention follows. It is one file of some 6 MB that fetches \
nothing. Its numbers are those of gpt2 attention and gpt2 generate, up to the last digits. Most builds have no module for the browser: \
scripts/web.sh builds it, for --module")]
#[command(after_help = "\
Examples:
  gpt2 live --open                                    # type, and watch
  gpt2 live --out live.html \"O Romeo, Romeo\"          # the page as a file, opening on this text
  gpt2 live --open \"O Romeo, Romeo\" --ablate 0.3      # with a head switched off, beside the plain run")]
#[command(group = clap::ArgGroup::new("where").required(true).multiple(true))]
pub(crate) struct LiveArgs {
    /// The text that the page opens on
    #[arg(default_value = "O Romeo, Romeo! wherefore art thou Romeo?")]
    pub(crate) text: String,
    /// Write the page to this file
    #[arg(short, long, value_name = "FILE", group = "where")]
    pub(crate) out: Option<PathBuf>,
    /// Open the page in the browser. Without --out, it is a temporary file
    #[arg(long, group = "where")]
    pub(crate) open: bool,
    /// Let --out replace an existing file
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Switch off heads from the start: LAYER.HEAD, counted from 0, as in 0.3; '0.*' is the whole layer (repeatable)
    #[arg(long, value_name = "L.H", value_delimiter = ',', value_parser = on_heads("ablate"))]
    pub(crate) ablate: Vec<OnHeads>,
    /// The folder of the browser's module, as scripts/web.sh writes it [default: the module in this binary, if it was built
    /// with the feature live]
    #[arg(long, value_name = "DIR")]
    pub(crate) module: Option<PathBuf>,
}

pub(crate) fn run(args: &LiveArgs) -> anyhow::Result<()> {
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(path) = &args.out {
        outputs.add("--out", path);
    }
    let mut inputs = Inputs::default();
    if let Some(folder) = &args.module {
        for name in [MODULE, GLUE] {
            inputs.file("the module", folder.join(name));
        }
    }
    outputs.check(&inputs)?;
    let live = Live::demo()?;
    let changes = changes::on_heads(args.ablate.iter(), live.config())?;
    let changes = changes.iter().map(ToString::to_string).collect();
    let first = Look { text: args.text.clone(), changes, ..Look::default() };
    // What the page could not show is refused here.
    if let Some(left_out) = live.look(&first)?.left_out {
        note(&format!("the vocabulary cannot spell these characters, left out: {left_out}"));
    }
    let mut page = vec![];
    match &args.module {
        Some(folder) => {
            let unreadable = |name: &str| {
                format!("--module {}: cannot read {name}; scripts/web.sh writes it", folder.display())
            };
            let read = |name: &str| std::fs::read(folder.join(name)).with_context(|| unreadable(name));
            let module = read(MODULE)?;
            let glue = String::from_utf8(read(GLUE)?).with_context(|| unreadable(GLUE))?;
            LiveFile { module: &module, glue: &glue }.write(&first, &mut page)?;
        }
        None => BUILT_IN
            .context(
                "this build has no module for the browser: in a checkout of the repository, run scripts/web.sh, then give --module \
                 target/web/page, or build with --features live",
            )?
            .write(&first, &mut page)?,
    }
    if let Some(path) = &args.out {
        outputs.stage_bytes(path, &page)?;
    }
    outputs.commit()?;
    if args.open { open(args.out.as_deref(), &page) } else { Ok(()) }
}

/// The module in this binary.
#[cfg(feature = "live")]
const BUILT_IN: Option<LiveFile<'static>> = Some(LiveFile {
    module: include_bytes!("../../../../target/web/page/gpt2_web_bg.wasm"),
    glue: include_str!("../../../../target/web/page/gpt2_web.js"),
});

#[cfg(not(feature = "live"))]
const BUILT_IN: Option<LiveFile<'static>> = None;
