//! `gpt2 data`: a text to begin with.

use crate::output::read_files::ReadFiles;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::output::{self, note};
use crate::values::one_of;
use anyhow::anyhow;
use gpt2_engine::HubOptions;
use gpt2_engine::texts::{KNOWN_TEXTS, KnownText};
use gpt2_loader::LoadError;
use gpt2_view::visible_text;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
shakespeare: parts of his plays, 1.1 MB, from which the built-in demo model has learned. It comes from
https://raw.githubusercontent.com/karpathy/char-rnn, at one commit, and is used only if its SHA-256 is the one that this program
knows. A text of your own serves as well: any file in UTF-8.

Examples:
  gpt2 data shakespeare --out shakespeare.txt
  gpt2 train --text shakespeare.txt --out my-model   # then")]
pub(crate) struct DataArgs {
    /// The text's name
    #[arg(value_name = "NAME", value_parser = one_of(KNOWN_TEXTS))]
    name: KnownText,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Let --out replace an existing file
    #[arg(long)]
    overwrite: bool,
    /// Fetch it from another site that has it at the same path: its content must be the same
    #[arg(long, value_name = "URL")]
    from: Option<String>,
    /// Make no request: the text is never fetched, and this says so [env: HF_HUB_OFFLINE]
    #[arg(long)]
    offline: bool,
    /// Give up on a request that brings no data for this long [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    timeout: Option<u64>,
}

pub(crate) fn run(args: &DataArgs) -> anyhow::Result<()> {
    let mut outputs = Outputs::new(args.overwrite);
    outputs.add("--out", &args.out);
    outputs.check(&ReadFiles::default())?;
    let options = HubOptions { offline: args.offline, timeout: args.timeout, ..HubOptions::default() };
    let fetched = args.name.fetch(args.from.as_deref(), &options, &TERMINAL);
    let text = fetched.map_err(|error| match error.downcast_ref() {
        // The Hub's own advice speaks of models.
        Some(LoadError::Hub(reason)) => anyhow!(
            "{reason}; or take {} from elsewhere: any text in UTF-8 can be trained on",
            args.name.address(None)
        ),
        _ => error,
    })?;
    outputs.stage_bytes(&args.out, text.as_bytes())?;
    outputs.commit()?;
    let out = visible_text(&args.out.display().to_string());
    writeln!(output::stdout(), "{out}: {} bytes, {} lines", text.len(), text.lines().count())?;
    note(&format!("next: gpt2 train --text {out} --out my-model"));
    Ok(())
}
