//! The options of `gpt2 bench`.

use crate::model::args::ModelArgs;
use crate::values::one_of;
use clap::ValueEnum;
use gpt2_engine::open::CACHES;
use gpt2_engine::studies::learn::train::TRAIN_DTYPES;
use gpt2_model::CacheDType;
use gpt2_train::TrainDType;

/// Unlike other commands, this one needs no model.
const MODEL: &str = "Time this model, or what has its shape: a folder, a GGUF file, a model on the Hugging Face Hub, or demo, which is built in \
     [default: random weights of GPT-2 small's shape]";

/// The options of one target.
const TRAIN: &str = "Only for bench train";

#[derive(Debug, clap::Args)]
#[command(mut_arg("model", |arg| arg.help(MODEL)))]
#[command(after_help = "\
Examples:
  gpt2 bench core --tokens 1024   # attention alone
  gpt2 bench forward --last --model gpt2   # a pass of GPT-2 small
  gpt2 bench decode --tokens 900 --json   # a token after a long prompt
  gpt2 bench block --tokens 1024 --isa avx2   # without AVX-512
  gpt2 bench forward --tokens 1024 --summaries   # with summaries and without, in turn")]
pub(crate) struct BenchArgs {
    /// What to time
    #[arg(value_enum)]
    pub(crate) what: BenchTarget,
    /// Rows of the batch
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) batch: u16,
    /// Tokens in a row (T). For decode and generate, the tokens of the prompt
    #[arg(short, long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tokens: u32,
    /// Timed runs. One more run before them is not timed
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,
    /// forward: compute the logits of the last position only
    #[arg(long)]
    pub(crate) last: bool,
    /// forward: also summarize the attention of all heads. Every second pass is timed without
    #[arg(long)]
    pub(crate) summaries: bool,
    /// forward: read every hook point. Every second pass is timed without
    #[arg(long)]
    pub(crate) hooks: bool,
    /// forward: also compute all attention weights of the first N heads. Every second pass is timed without
    #[arg(long, value_name = "N")]
    pub(crate) weights_heads: Option<u16>,
    /// Run each block again in the backward pass
    #[arg(long, help_heading = TRAIN)]
    pub(crate) recompute: bool,
    /// Round the factors of products with weights to bf16, as train --train-dtype does
    #[arg(long, value_name = "DTYPE", value_parser = one_of(TRAIN_DTYPES), default_value = "f32", help_heading = TRAIN)]
    pub(crate) train_dtype: TrainDType,
    /// Train a LoRA adapter of rank R on all linear layers of a frozen model
    #[arg(long, value_name = "R", help_heading = TRAIN, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) lora: Option<u16>,
    /// Hold the CPU kernels to an instruction set: portable, neon, avx2, avx-vnni, avx512 or amx [default: the
    /// environment variable GPT2_ISA, or the fastest]
    #[arg(long, value_name = "ISA", value_parser = str::parse::<candle_fused::Isa>)]
    pub(crate) isa: Option<candle_fused::Isa>,
    /// decode: precision of the cached keys and values [default: that of --dtype]
    #[arg(long, value_name = "DTYPE", value_parser = one_of(CACHES))]
    pub(crate) kv: Option<CacheDType>,
    /// decode: greedy steps per run
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) new_tokens: u32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// The autoencoder of `bench features`: its features per input dimension, and how many of them fire.
pub(super) const FEATURES_OF_ONE: usize = 32;
pub(super) const FIRING: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchTarget {
    /// Attention alone, on q, k and v as c_attn returns them
    Core,
    /// CausalSelfAttention, from c_attn to c_proj
    Block,
    /// The whole model
    Forward,
    /// Greedy steps with the cache, after a prompt
    Decode,
    /// The same with tokens drawn, as gpt2 generate does
    Generate,
    /// Forward, backward and AdamW
    Train,
    /// Attribution patching of all parts between two texts
    Attribution,
    /// A TopK autoencoder with 32 features for each number of the stream, of which 32 fire: the features, and what they rebuild
    Features,
    /// The most that processor and memory can do; no model
    Machine,
}

impl BenchTarget {
    /// Whether a run is `--new-tokens` steps with a cache.
    pub(crate) fn makes_tokens(self) -> bool {
        matches!(self, Self::Decode | Self::Generate)
    }
}
