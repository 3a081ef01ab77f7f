//! The options of `gpt2 record`.

use crate::input::corpus::{CorpusArgs, DocumentArgs};
use crate::interventions::args::InterventionArgs;
use crate::model::args::ModelArgs;
use crate::process::parallel::{ParallelArgs, TIMEOUT};
use crate::values::one_of;
use gpt2_engine::studies::PointName;
use gpt2_engine::studies::learn::record::{Options, StoredAs};
use gpt2_engine::texts::DocumentOptions;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(mut_arg("timeout", |arg| arg.help(TIMEOUT)))]
// These depend on positions, which windows do not have.
#[command(mut_arg("block", |arg| arg.hide(true)), mut_arg("patch", |arg| arg.hide(true)))]
#[command(after_help = "\
DIR holds store.json and shards (00000.safetensors and so on), each with a tensor (tokens, ..) for every point, and `ids`,
`documents` and `positions` (tokens). A document longer than the context is read in windows one after another, each with nothing before it. The pass
ends at the last point. Shards are there whole or not at all, and the same corpus gives the same bytes on any number of processes, which
must see the same DIR.

Examples:
  gpt2 record notes.txt --points blocks.2.hook_resid_post --out activations
  gpt2 record texts/ --points blocks.1.attn.hook_z,blocks.1.hook_mlp_out --store f16 --out heads --model gpt2
  gpt2 record notes.txt --points blocks.2.hook_resid_post --out activations --resume   # go on after Ctrl-C
  mpirun -n 4 gpt2 record texts/ --points blocks.2.hook_resid_post --out shared   # on four processes")]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    pub(super) corpus: CorpusArgs,
    /// The hook points, by TransformerLens' names; `gpt2 inspect --points` lists them
    #[arg(long, value_name = "NAME", value_delimiter = ',', required = true)]
    pub(super) points: Vec<PointName>,
    /// The folder for the shards
    #[arg(short, long, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// The precision of the values on disk
    #[arg(long, default_value = "f32", value_name = "DTYPE", value_parser = one_of(STORED))]
    pub(super) store: StoredAs,
    /// Tokens of a shard at most
    #[arg(long, default_value_t = 32_768, value_name = "T", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub(super) shard_tokens: u32,
    #[command(flatten)]
    pub(super) documents: DocumentArgs,
    /// Put the model's first token (<|endoftext|> in GPT-2) before each window
    #[arg(long)]
    pub(super) bos: bool,
    /// Tokens of a window at most [default: the model's context]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) window: Option<u32>,
    /// Go on where an earlier run stopped, or start if there was none
    #[arg(long)]
    pub(super) resume: bool,
    /// Print the totals as JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) interventions: InterventionArgs,
    #[command(flatten)]
    pub(super) parallel: ParallelArgs,
    #[command(flatten)]
    pub(super) model: ModelArgs,
}

const STORED: &[(&str, StoredAs)] = &[("f32", StoredAs::F32), ("f16", StoredAs::F16)];

impl RecordArgs {
    pub(super) fn options(&self) -> Options {
        let DocumentOptions { by, field } = self.documents.options();
        Options {
            corpus: self.corpus.path(),
            points: self.points.clone(),
            out: self.out.clone(),
            store: self.store,
            shard_tokens: self.shard_tokens,
            by,
            field,
            bos: self.bos,
            window: self.window,
            resume: self.resume,
        }
    }
}
