//! `--adapter`
// These comments are the help text, which would print backticks and angle brackets.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

use std::str::FromStr;

/// The adapters of a model.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct AdapterArgs {
    /// Put a LoRA adapter on the model, in PEFT's files: a folder or owner/name on the Hub, times WEIGHT; may be repeated
    #[arg(long = "adapter", value_name = "DIR|NAME[=WEIGHT]")]
    pub(crate) list: Vec<AdapterArg>,
}

/// `DIR|NAME[=WEIGHT]`
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AdapterArg {
    pub(crate) source: String,
    pub(crate) weight: f64,
}

impl FromStr for AdapterArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A folder's name may hold an equals sign.
        let (source, weight) = match text.rsplit_once('=') {
            Some((source, weight)) if !std::path::Path::new(text).is_dir() => {
                let weight = weight.parse().ok().filter(|weight: &f64| weight.is_finite());
                (source, weight.ok_or("expected a number after the last =, as in poems=0.5")?)
            }
            _ => (text, 1.0),
        };
        if source.is_empty() {
            return Err("expected a folder or a name on the Hub".into());
        }
        Ok(Self { source: source.into(), weight })
    }
}
