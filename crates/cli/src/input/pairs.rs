//! Two prompts and their answers, or a file of such pairs.

use super::prompt::prompt;
use crate::output::read_files::ReadFiles;
use crate::output::terminal::TERMINAL;
use anyhow::{Context, bail};
use gpt2_circuits::discovery::Pair;
use gpt2_engine::Opened;
use gpt2_engine::Spelling;
use gpt2_engine::texts::{Content, STDIN, TextLines, pair, place, refuse_device, single_token};
use gpt2_model::analysis::Metric;
use gpt2_view::visible_token;
use serde_json::json;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// Two prompts, or many pairs of them.
#[derive(Debug, clap::Args)]
// Groups, because clap forgets a required argument that conflicts with a given one.
#[command(group = clap::ArgGroup::new("prompts").args(["clean", "pairs"]).required(true))]
pub(crate) struct PairsArgs {
    /// The prompt that the model gets right
    #[arg(value_name = "CLEAN", requires_all = ["corrupt", "answer", "against"])]
    pub(crate) clean: Option<String>,
    /// A prompt that differs from it in the tokens of interest, and has as many tokens
    #[arg(value_name = "CORRUPT", requires = "clean")]
    pub(crate) corrupt: Option<String>,
    /// The token that should follow the clean prompt, with its leading space
    #[arg(long, value_name = "TOKEN", requires = "clean")]
    pub(crate) answer: Option<String>,
    /// The token that should follow the corrupted prompt
    #[arg(long, value_name = "TOKEN", requires = "clean")]
    pub(crate) against: Option<String>,
    /// Many pairs instead: lines of JSON with clean, corrupted, correct and incorrect, as `gpt2 pairs` writes them; - is
    /// standard input. An answer is a token, its id, or a list: the metric is then the difference of the mean logits
    #[arg(long, value_name = "FILE")]
    pub(crate) pairs: Option<PathBuf>,
}

/// The only pair of a run, as the user gave it.
pub(crate) struct OnePair<'a> {
    pub(crate) clean: &'a str,
    pub(crate) corrupt: &'a str,
    pub(crate) answer: &'a str,
    pub(crate) against: &'a str,
}

impl PairsArgs {
    /// The pair, if there are not many.
    pub(crate) fn one(&self) -> Option<OnePair<'_>> {
        match (&self.clean, &self.corrupt, &self.answer, &self.against) {
            (Some(clean), Some(corrupt), Some(answer), Some(against)) => {
                Some(OnePair { clean, corrupt, answer, against })
            }
            _ => None,
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

    /// The pair, or all of the file's.
    pub(crate) fn read(&self, opened: &Opened) -> anyhow::Result<Vec<Pair>> {
        let Some(path) = &self.pairs else {
            let one = self.one().context("no pair of prompts")?;
            return Ok(vec![one.pair(opened)?]);
        };
        let (tokenizer, config) = (|| Ok(opened.tokenizer()?), opened.model.config());
        refuse_device(path).with_context(|| place(path, None))?;
        let mut lines = TextLines::open(path, None, Spelling::Flags, &TERMINAL)?;
        let mut pairs = vec![];
        while let Some((number, line)) = lines.next_line()? {
            let pair = pair(&line, &tokenizer, config);
            pairs.push(pair.with_context(|| place(path, Some(number)))?);
        }
        if pairs.is_empty() {
            bail!("{}: holds no pair; `gpt2 pairs` writes some", place(path, None));
        }
        Ok(pairs)
    }

    /// The source of the pairs and their fingerprint, for the outputs of a run.
    pub(crate) fn facts(&self, pairs: &[Pair]) -> serde_json::Value {
        let mut hash = DefaultHasher::new();
        for Pair { clean, corrupt, metric } in pairs {
            (clean, corrupt).hash(&mut hash);
            if let Metric::LogitDifference { answers, against } = metric {
                (answers, against).hash(&mut hash);
            }
        }
        let fingerprint = format!("{:016x}", hash.finish());
        match self.one() {
            Some(OnePair { answer, against, .. }) => {
                json!({ "pairs": 1, "answer": answer, "against": against, "fingerprint": fingerprint })
            }
            None => json!({ "pairs": pairs.len(), "pairs_of": self.pairs, "fingerprint": fingerprint }),
        }
    }
}

impl OnePair<'_> {
    fn pair(&self, opened: &Opened) -> anyhow::Result<Pair> {
        let clean = prompt(opened, &Content::from(self.clean), "the clean prompt")?.ids;
        let corrupt = prompt(opened, &Content::from(self.corrupt), "the corrupted prompt")?.ids;
        if clean.len() != corrupt.len() {
            let spelled = |ids: &[u32]| {
                opened.shown(ids).iter().map(|token| visible_token(token)).collect::<Vec<_>>().join(" ")
            };
            bail!(
                "the clean prompt has {} tokens and the corrupted one {}, so their positions do not correspond; reword one of \
                 them:\n  {}\n  {}",
                clean.len(),
                corrupt.len(),
                spelled(&clean),
                spelled(&corrupt)
            );
        }
        let answer = single_token(opened, "--answer", self.answer, &TERMINAL)?;
        let against = single_token(opened, "--against", self.against, &TERMINAL)?;
        if answer == against {
            bail!("--answer and --against are the same token: their difference is always 0");
        }
        Ok(Pair { clean, corrupt, metric: Metric::difference(answer, against) })
    }
}

/// A mean over pairs, and its standard error.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(crate) struct Mean {
    pub(crate) mean: f64,
    /// The standard deviation of the sample by the square root of its size; `None` for a single pair.
    pub(crate) error: Option<f64>,
}

impl Mean {
    pub(crate) fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        Self { mean, error: (values.len() > 1).then(|| (squares / (n - 1.0) / n).sqrt()) }
    }
}

impl std::fmt::Display for Mean {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:+.3}", self.mean)?;
        self.error.map_or(Ok(()), |error| write!(f, " ± {error:.3}"))
    }
}
