//! Two prompts and their answers, or a file of such pairs.

use crate::values::one_of;
use gpt2_engine::ReadFiles;
use gpt2_engine::studies::interpret::measure::{METRICS, MetricName};
use gpt2_engine::texts::{Answer, Answers, Content, PairInput, PairsInput, STDIN};
use std::path::{Path, PathBuf};

/// Two prompts, or many pairs of them.
#[derive(Debug, clap::Args)]
// Groups, because clap forgets a required argument that conflicts with a given one.
#[command(group = clap::ArgGroup::new("prompts").args(["clean", "pairs"]).required(true))]
pub(crate) struct PairsArgs {
    /// The prompt that the model gets right
    #[arg(value_name = "CLEAN", requires = "corrupt")]
    pub(crate) clean: Option<String>,
    /// A prompt that differs from it in the tokens of interest, and has as many tokens
    #[arg(value_name = "CORRUPT", requires = "clean")]
    pub(crate) corrupt: Option<String>,
    /// The token that should follow the clean prompt, with its leading space
    #[arg(long, value_name = "TOKEN", requires = "clean", required_unless_present_any = ["pairs", "metric"])]
    pub(crate) answer: Option<String>,
    /// The token that should follow the corrupted prompt
    #[arg(long, value_name = "TOKEN", requires = "clean", required_unless_present_any = ["pairs", "metric"])]
    pub(crate) against: Option<String>,
    /// Many pairs instead: lines of JSON with clean, corrupted, correct and incorrect, as `gpt2 pairs` writes them; - is
    /// standard input. An answer is a token, its id, or a list: a logit difference takes their mean logit
    #[arg(long, value_name = "FILE")]
    pub(crate) pairs: Option<PathBuf>,
    /// The metric: logit-difference of the answers, log-prob of the right one, probability of any right one,
    /// probability-difference (the probability of any right one less that of any wrong one), loss (the mean surprise of
    /// the clean prompt's tokens) or kl (the divergence from the clean run's prediction), which need no answers
    #[arg(long, value_name = "METRIC", value_parser = one_of(METRICS), help_heading = "Metric")]
    pub(crate) metric: Option<MetricName>,
    /// Average the metric of the answers over these positions, counted from 0, instead of taking the last
    #[arg(long, value_name = "N", value_delimiter = ',', help_heading = "Metric")]
    pub(crate) positions: Vec<usize>,
}

impl PairsArgs {
    /// The engine's pairs.
    pub(crate) fn input(&self) -> PairsInput {
        let text = |text: &Option<String>| Content::Text(text.clone().unwrap_or_default());
        let answer = |text: &String| Answers::One(Answer::Text(text.clone()));
        match &self.pairs {
            Some(path) => PairsInput::File(path.clone()),
            None => PairsInput::One(Box::new(PairInput {
                clean: text(&self.clean),
                corrupted: text(&self.corrupt),
                correct: self.answer.as_ref().map(answer).unwrap_or_default(),
                incorrect: self.against.as_ref().map(answer),
            })),
        }
    }

    /// The file that the pairs come from, if they come from one.
    pub(crate) fn inputs(&self) -> ReadFiles {
        let mut inputs = ReadFiles::default();
        match &self.pairs {
            Some(path) if path != Path::new(STDIN) => inputs.file("the file of pairs", path),
            Some(_) if cfg!(unix) => inputs.file("the file of pairs", "/dev/stdin"),
            _ => {}
        }
        inputs
    }
}
