//! `gpt2 pairs`: tasks that papers on circuits use, as lines of JSON.

use crate::model::args::{MODEL, files};
use crate::model::hub::HubArgs;
use crate::output;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::values::one_of;
use gpt2_engine::ReadFiles;
use gpt2_engine::open::open_tokenizer;
use gpt2_engine::studies::interpret::pairs::Options;
use gpt2_engine::texts::{TASKS, Task};
use gpt2_loader::Checkpoint;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line has a clean text, a corrupted one of as many tokens, and the correct and incorrect answers to the clean one:
  ioi            two names, one of them repeated: the other one gets it; the corrupted text has three names (Wang et al. 2022)
  greater-than   from the year 1732 to the year 17..: any later year; the corrupted text has the year 01 (Hanna et al. 2023)
  induction      random tokens that begin again: what came next before; for any vocabulary (Olsson et al. 2022)
  pronouns       she or he, by the name; the corrupted text has a name of the other kind (Mathwin et al. 2023)
The texts are ours, in the form of the papers'. A vocabulary that breaks up the words of a task is refused.

Examples:
  gpt2 pairs induction --count 20 > induction.jsonl
  gpt2 pairs ioi --count 100 --seed 1 --model gpt2 --out ioi.jsonl")]
pub(crate) struct PairsCommandArgs {
    /// The kind of task
    #[arg(value_name = "TASK", value_parser = one_of(TASKS))]
    task: Task,
    /// How many pairs
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// The same seed gives the same pairs
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    seed: u64,
    /// Write the pairs to a file instead of standard output
    #[arg(short, long, value_name = "FILE", help_heading = "Files")]
    out: Option<PathBuf>,
    /// Let --out replace an existing file
    #[arg(long, requires = "out", help_heading = "Files")]
    overwrite: bool,
    #[arg(short, long, value_name = "DIR|FILE|NAME", help = MODEL, help_heading = "Model and device")]
    model: Option<String>,
    #[command(flatten)]
    hub: HubArgs,
}

pub(crate) fn run(args: &PairsCommandArgs) -> anyhow::Result<()> {
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(path) = &args.out {
        outputs.add("--out", path);
    }
    let mut inputs = ReadFiles::default();
    crate::model::hub::inputs(&args.hub, &mut inputs);
    outputs.check(&inputs)?;
    let files = files(args.model.as_deref(), &args.hub)?;
    inputs.model(&files)?;
    outputs.check(&inputs)?;
    let tokenizer = open_tokenizer(&files, Checkpoint::open(&files)?.config().vocab_size, &TERMINAL)?;
    let options = Options { task: args.task, count: args.count as usize };
    let pairs = options.pairs(&tokenizer, &files.name, args.seed)?;
    let mut lines = vec![];
    for pair in &pairs {
        serde_json::to_writer(&mut lines, pair)?;
        lines.push(b'\n');
    }
    if let Some(path) = &args.out {
        outputs.stage_bytes(path, &lines)?;
        return outputs.commit();
    }
    let mut out = output::stdout();
    out.write_all(&lines)?;
    Ok(out.flush()?)
}
