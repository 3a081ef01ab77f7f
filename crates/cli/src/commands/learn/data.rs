//! `gpt2 data`: a text to begin with.

use crate::output::written_files::Outputs;
use crate::output::{self, note};
use crate::values::one_of;
use gpt2_engine::ReadFiles;
use gpt2_engine::texts::{KNOWN_TEXTS, KnownText};
use gpt2_view::visible_text;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
shakespeare: parts of his plays, 1.1 MB, from which the built-in demo model has learned. A text of your own serves as well: any
file in UTF-8.

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
}

pub(crate) fn run(args: &DataArgs) -> anyhow::Result<()> {
    let mut outputs = Outputs::new(args.overwrite);
    outputs.add("--out", &args.out);
    outputs.check(&ReadFiles::default())?;
    let text = args.name.text()?;
    outputs.stage_bytes(&args.out, text.as_bytes())?;
    outputs.commit()?;
    let out = visible_text(&args.out.display().to_string());
    writeln!(output::stdout(), "{out}: {} bytes, {} lines", text.len(), text.lines().count())?;
    note(&format!("next: gpt2 train --text {} --out my-model", output::for_shell(&out)));
    Ok(())
}
