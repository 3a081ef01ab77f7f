//! The options of `gpt2 patch`.

use crate::input::pairs::PairsArgs;
use crate::results::picture::PictureArgs;
use crate::study::args::StudyArgs;
use crate::values::one_of;
use gpt2_circuits::discovery::Freeze;
use gpt2_engine::studies::interpret::patch::{FREEZES, Options, PathsText};
use std::str::FromStr;

#[derive(Debug, clap::Args)]
#[command(mut_arg("circuit", |arg| arg.hide(true)))]
#[command(after_help = "\
Both prompts need the same number of tokens. One part of the corrupted run at a time is replaced by the clean run's. The
part's number says how far that moves the logit difference: 0 is no change, 1 is all the way to the clean run. Exact numbers
take a run for each part. Estimates (attribution patching) take one forward and one backward pass for all parts. The picture
shows the heads by layer, or with --by-position each head at each position. With --pairs, numbers are means over all pairs with
their standard errors, as shares of the mean difference; --json has each pair.

Examples:
  gpt2 patch \" fair king and fair\" \" fair lord and fair\" --answer \" king\" --against \" lord\"
  gpt2 patch \"When Mary and John went to the store, John gave a drink to\" \\
    \"When Mary and John went to the store, Mary gave a drink to\" --answer \" Mary\" --against \" John\" --model gpt2
  gpt2 patch \" fair king and fair\" \" fair lord and fair\" --answer \" king\" --against \" lord\" --by-position --picture patch.svg
  gpt2 patch \" fair king and fair\" \" fair lord and fair\" --answer \" king\" --against \" lord\" --path \"0.3->1.0.k,1.2.k\"
  gpt2 pairs induction | gpt2 patch --pairs -")]
pub(crate) struct PatchArgs {
    #[command(flatten)]
    pub(crate) pairs: PairsArgs,
    /// Also patch each head at each position: a run for each
    #[arg(long, conflicts_with = "pairs")]
    pub(crate) by_position: bool,
    /// Also patch paths: what heads (0.3), MLPs (0.mlp) or the embeddings (embed) tell readers (1.2.q, 1.2.k, 1.2.v, 1.mlp,
    /// logits), as in 0.3->1.2.k,1.0.k. The number says how much of the difference the clean run loses when the readers hear the
    /// corrupted senders. Repeatable
    #[arg(long = "path", value_name = "SENDERS->READERS", value_parser = PathsText::from_str)]
    pub(crate) paths: Vec<PathsText>,
    /// What stays as in the clean run between the senders and the readers of --path: all, heads alone, or nothing
    #[arg(long, default_value = "all", value_name = "WHAT", requires = "paths", value_parser = one_of(FREEZES))]
    pub(crate) freeze: Freeze,
    /// List every head, not only the 10 with the largest numbers
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) picture: PictureArgs,
    /// Let --picture replace an existing file
    #[arg(long, requires = "drawn", help_heading = "Files")]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) study: StudyArgs,
}

impl PatchArgs {
    pub(super) fn options(&self) -> Options {
        Options {
            pairs: self.pairs.input(),
            metric: self.pairs.metric,
            positions: self.pairs.positions.clone(),
            by_position: self.by_position,
            path: self.paths.clone(),
            freeze: self.freeze,
            // A terminal shows few positions.
            summary: !self.study.json,
        }
    }
}
