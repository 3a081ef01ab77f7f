//! `--draft`: what guesses the next tokens, so that the model checks several in one pass.

use crate::model::args::files;
use crate::model::hub::HubArgs;
use crate::output::note;
use crate::output::terminal::TERMINAL;
use anyhow::{Context, bail};
use candle_core::DType;
use candle_fused::BlockFormat;
use gpt2_engine::Opened;
use gpt2_engine::open::{FORMATS, checkpoint};
use gpt2_loader::Tokenizer;
use gpt2_model::draft::{Draft, Drafted, LookupDraft, ModelDraft};
use serde::Serialize;
use std::str::FromStr;

/// The draft that `--draft` names.
#[derive(Debug, Clone)]
pub(super) enum DraftKind {
    Lookup,
    Quantized(BlockFormat),
    Model(String),
}

impl FromStr for DraftKind {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let format = FORMATS.iter().find(|(name, _)| *name == text);
        Ok(match (text, format) {
            ("lookup", _) => Self::Lookup,
            (_, Some((_, format))) => Self::Quantized(*format),
            _ => Self::Model(text.to_string()),
        })
    }
}

impl DraftKind {
    /// The draft for a opened's model.
    pub(super) fn open(&self, opened: &Opened, hub: &HubArgs) -> anyhow::Result<Box<dyn Draft>> {
        let model = match self {
            Self::Lookup => return Ok(Box::new(LookupDraft::default())),
            Self::Quantized(format) if opened.model.dtype() != DType::F32 => {
                bail!(
                    "--draft {format}: quantized layers compute in f32; leave --dtype out, or give --draft lookup"
                )
            }
            Self::Quantized(format) => opened.model.clone().quantize(*format).context("--draft")?,
            Self::Model(name) => {
                let files = files(Some(name), hub).context("--draft")?;
                let checkpoint = checkpoint(&files, &TERMINAL)?;
                let theirs = checkpoint.config().vocab_size;
                let ours = opened.model.config().vocab_size;
                if theirs != ours {
                    bail!(
                        "--draft: {name} has {theirs} tokens and {} has {ours}; name a model of the same vocabulary",
                        opened.name
                    )
                }
                let ids: Vec<u32> = (0..).take(ours).collect();
                if let (Ok(tokenizer), Ok(own)) = (Tokenizer::open(&files, theirs), opened.tokenizer())
                    && tokenizer.tokens(&ids) != own.tokens(&ids)
                {
                    bail!(
                        "--draft: the tokenizers of {name} and {} differ; name a model of the same vocabulary",
                        opened.name
                    )
                }
                checkpoint.load_model(DType::F32, &opened.device)?
            }
        };
        Ok(Box::new(ModelDraft::new(model)?))
    }
}

/// The counts of a draft's proposed and accepted tokens.
#[derive(Serialize)]
pub(super) struct Report {
    /// The value of `--draft`.
    draft: String,
    /// The passes of the model after the one over the prompt.
    passes: usize,
    proposed: usize,
    accepted: usize,
}

impl Report {
    pub(super) fn new(draft: &DraftKind, drafted: Drafted) -> Self {
        let Drafted { passes, proposed, accepted } = drafted;
        let draft = match draft {
            DraftKind::Lookup => "lookup".to_string(),
            DraftKind::Quantized(format) => format.to_string(),
            DraftKind::Model(name) => name.clone(),
        };
        Self { draft, passes, proposed, accepted }
    }

    pub(super) fn print(&self) {
        let Self { draft, passes, proposed, accepted } = self;
        let share = 100.0 * *accepted as f64 / *proposed.max(&1) as f64;
        note(&format!(
            "draft {draft}: {accepted} of {proposed} guesses right ({share:.0} %), {passes} passes after the prompt"
        ));
    }
}
