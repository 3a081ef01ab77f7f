//! A draft guesses the next tokens, so that the model checks several in one pass.

use crate::hub::HubOptions;
use crate::observer::Observer;
use crate::open::{FORMATS, ModelOptions, Opened, checkpoint};
use anyhow::{Context, bail};
use candle_core::DType;
use candle_fused::BlockFormat;
use gpt2_loader::Tokenizer;
use gpt2_model::draft::{Draft, Drafted, LookupDraft, ModelDraft};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// A draft by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum DraftKind {
    /// `lookup`: repeats what followed the last words before.
    Lookup,
    /// `q4_0` or `q8_0`: the same weights, quantized.
    Quantized(BlockFormat),
    /// Another model of the same vocabulary, by its name.
    Model(String),
}

impl FromStr for DraftKind {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.to_owned().into())
    }
}

impl From<String> for DraftKind {
    fn from(text: String) -> Self {
        let format = FORMATS.iter().find(|(name, _)| *name == text);
        match (text.as_str(), format) {
            ("lookup", _) => Self::Lookup,
            (_, Some((_, format))) => Self::Quantized(*format),
            _ => Self::Model(text),
        }
    }
}

impl From<DraftKind> for String {
    fn from(kind: DraftKind) -> Self {
        kind.to_string()
    }
}

impl fmt::Display for DraftKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lookup => f.write_str("lookup"),
            Self::Quantized(format) => write!(f, "{format}"),
            Self::Model(name) => f.write_str(name),
        }
    }
}

impl DraftKind {
    /// The draft for a model.
    pub(super) fn open(&self, opened: &Opened, observer: &dyn Observer) -> anyhow::Result<Box<dyn Draft>> {
        let spelling = opened.spelling;
        let option = spelling.option("draft");
        let model = match self {
            Self::Lookup => return Ok(Box::new(LookupDraft::default())),
            Self::Quantized(format) if opened.model.dtype() != DType::F32 => {
                bail!(
                    "{}: quantized layers compute in f32; leave {} out, or give {}",
                    spelling.given("draft", format),
                    spelling.option("dtype"),
                    spelling.given("draft", "lookup")
                )
            }
            Self::Quantized(format) => opened.model.clone().quantize(*format).context(option)?,
            Self::Model(name) => {
                // The revision is the model's own.
                let hub = HubOptions { revision: None, ..opened.hub.clone() };
                let model = Some(name.clone());
                let named = ModelOptions { model, hub, spelling, ..ModelOptions::default() };
                let files = named.files(observer).with_context(|| option.clone())?;
                let checkpoint = checkpoint(&files, observer)?;
                let theirs = checkpoint.config().vocab_size;
                let ours = opened.model.config().vocab_size;
                if theirs != ours {
                    bail!(
                        "{option}: {name} has {theirs} tokens and {} has {ours}; name a model of the same vocabulary",
                        opened.name
                    )
                }
                let ids: Vec<u32> = (0..).take(ours).collect();
                if let (Ok(tokenizer), Ok(own)) = (Tokenizer::open(&files, theirs), opened.tokenizer())
                    && tokenizer.tokens(&ids) != own.tokens(&ids)
                {
                    bail!(
                        "{option}: the tokenizers of {name} and {} differ; name a model of the same vocabulary",
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
#[derive(Debug, Clone, Serialize)]
pub struct DraftCounts {
    /// The draft's name.
    pub draft: String,
    /// The passes of the model after the one over the prompt.
    pub passes: usize,
    /// The tokens that the draft proposed.
    pub proposed: usize,
    /// The proposed tokens that became part of the text.
    pub accepted: usize,
}

impl DraftCounts {
    pub(super) fn new(draft: &DraftKind, Drafted { passes, proposed, accepted }: Drafted) -> Self {
        Self { draft: draft.to_string(), passes, proposed, accepted }
    }
}
