//! Options of `quantize` and `compare`.
// These comments are the help text, which would print backticks and backslashes.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

use super::hub::HubArgs;
use super::model::RunArgs;
use clap::ValueEnum;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The file holds weights, config and tokenizer; llama.cpp and gpt2 --model read it. It is read back and compared before it
gets its name. What the loss of digits costs on a text of yours: gpt2 compare.

Examples:
  gpt2 quantize gpt2 --to q8_0 --out gpt2-q8_0.gguf
  gpt2 quantize --to q4_0 --out demo.gguf                the built-in demo model
  gpt2 compare gpt2 gpt2-q8_0.gguf --text notes.txt")]
pub(crate) struct QuantizeArgs {
    /// Folder with config.json and weights, a GGUF file that is not quantized, or a model on the Hugging Face Hub
    /// [default: the built-in demo model]
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Type of the weights
    #[arg(long, value_enum)]
    pub(crate) to: GgufArg,
    /// The file to write
    #[arg(short, long, value_name = "FILE.gguf")]
    pub(crate) out: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// CPU threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

/// What a GGUF file is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GgufArg {
    /// 16 bits a weight
    F16,
    /// 8.5 bits a weight
    #[value(name = "q8_0")]
    Q8,
    /// 4.5 bits a weight, and 6.6 in the output projection
    #[value(name = "q4_0")]
    Q4,
    /// 4.5 or 6.6 bits a weight, as llama.cpp mixes them
    #[value(name = "q4_k_m")]
    Q4KM,
}

impl From<GgufArg> for gpt2_loader::GgufType {
    fn from(arg: GgufArg) -> Self {
        match arg {
            GgufArg::F16 => Self::F16,
            GgufArg::Q8 => Self::Q8_0,
            GgufArg::Q4 => Self::Q4_0,
            GgufArg::Q4KM => Self::Q4KM,
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Both models must have the same vocabulary. The text is cut into windows of the shorter context; each token but the first
of a window is predicted once. KL divergence is that of MODEL's distribution from OTHER's, in nats.

Examples:
  gpt2 compare gpt2 gpt2-q4_0.gguf --text notes.txt
  gpt2 compare gpt2 gpt2 --quantize-other q4_0 --text notes.txt --tokens 20000 --json
  gpt2 compare gpt2 gpt2 --adapter poems --text poems.txt       what an adapter changes")]
pub(crate) struct CompareArgs {
    /// The model that is taken for right: a folder, a GGUF file, a model on the Hugging Face Hub, or `demo`
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// The model to compare with it
    #[arg(value_name = "OTHER")]
    pub(crate) other: String,
    /// The text to predict; - is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Quantize OTHER as it is loaded
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) quantize_other: Option<super::choices::QuantizeArg>,
    /// Put a LoRA adapter on OTHER, in PEFT's files: a folder or owner/name on the Hub, times WEIGHT; may be repeated
    #[arg(long = "adapter", value_name = "DIR|NAME[=WEIGHT]")]
    pub(crate) adapters: Vec<super::adapter::AdapterArg>,
    /// Compare only so many tokens from the start of the text [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) tokens: Option<u64>,
    /// Tokens of a window [default: the shorter context of the two models]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) window: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}
