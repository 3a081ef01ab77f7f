//! The options of a timed run.

use crate::open::ModelOptions;
use crate::spelling::Spelling;
use crate::words::Choices;
use anyhow::bail;
use candle_core::DType;
use gpt2_model::CacheDType;
use gpt2_train::TrainDType;

/// The autoencoder of [`Target::Features`]: its features per input dimension, and how many of them fire.
pub(super) const FEATURES_OF_ONE: usize = 32;
pub(super) const FIRING: usize = 32;

/// The work to time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Attention alone, on q, k and v as `c_attn` returns them.
    Core,
    /// `CausalSelfAttention`, from `c_attn` to `c_proj`.
    Block,
    /// The whole model.
    Forward,
    /// Greedy steps with the cache, after a prompt.
    Decode,
    /// Steps with tokens drawn, after a prompt.
    Generate,
    /// Forward, backward and `AdamW`.
    Train,
    /// Attribution patching of all parts between two texts.
    Attribution,
    /// A `TopK` autoencoder of the stream.
    Features,
}

/// The targets by name.
pub const TARGETS: &Choices<Target> = &[
    ("core", Target::Core),
    ("block", Target::Block),
    ("forward", Target::Forward),
    ("decode", Target::Decode),
    ("generate", Target::Generate),
    ("train", Target::Train),
    ("attribution", Target::Attribution),
    ("features", Target::Features),
];

impl Target {
    /// Whether a run is [`Options::new_tokens`] steps with a cache.
    #[must_use]
    pub fn makes_tokens(self) -> bool {
        matches!(self, Self::Decode | Self::Generate)
    }
}

/// The options of a timed run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The work.
    pub what: Target,
    /// The rows of the batch.
    pub batch: usize,
    /// The tokens of a row; of targets that make tokens, those of the prompt.
    pub tokens: usize,
    /// The timed runs. One more run before them is not timed.
    pub runs: usize,
    /// Whether a pass computes the logits of the last position only.
    pub last: bool,
    /// Whether a pass also summarizes the attention of all heads. Every second pass is timed without.
    pub summaries: bool,
    /// Whether a pass reads every hook point. Every second pass is timed without.
    pub hooks: bool,
    /// The heads of which a pass also computes all attention weights. Every second pass is timed without.
    pub weights_heads: Option<usize>,
    /// Whether each block runs again in the backward pass.
    pub recompute: bool,
    /// The dtype of the factors of products with weights in training.
    pub train_dtype: TrainDType,
    /// The rank of a LoRA adapter to train in place of the model.
    pub lora: Option<usize>,
    /// The precision of cached keys and values; that of the activations if there is none.
    pub kv: Option<CacheDType>,
    /// The steps of targets that make tokens; 32 if there is no number.
    pub new_tokens: Option<usize>,
    /// Whether the step for a token is one CUDA graph.
    pub cuda_graph: bool,
    /// The seed of random weights and inputs.
    pub seed: u64,
}

/// The steps of targets that make tokens, if nobody chooses their number.
const NEW_TOKENS: usize = 32;

impl Options {
    /// Whether a pass is also timed without what it computes more.
    pub(super) fn asks(&self) -> bool {
        self.summaries || self.hooks || self.weights_heads.is_some()
    }

    /// The steps that are not timed, in which a graph is recorded.
    pub(super) fn steps_before(&self) -> usize {
        usize::from(self.cuda_graph)
    }

    /// Refuses options that do not fit the target.
    pub(super) fn check(&self, model: &ModelOptions) -> anyhow::Result<()> {
        let option = |name| Spelling::option(model.spelling, name);
        if self.asks() && self.what != Target::Forward {
            let [summaries, hooks, heads] = ["summaries", "hooks", "weights-heads"].map(option);
            bail!("{summaries}, {hooks} and {heads} are only for bench forward");
        }
        if self.lora.is_some() && self.what != Target::Train {
            bail!(
                "{} is only for bench train; to time a model with an adapter, give {}",
                option("lora"),
                option("adapter")
            );
        }
        if self.lora.is_some() && model.dtype != DType::F32 {
            bail!("{}: an adapter is trained in f32; leave {} out", option("lora"), option("dtype"));
        }
        if self.train_dtype != TrainDType::F32 && (self.what != Target::Train || self.lora.is_some()) {
            bail!("{} is only for bench train, and without {}", option("train-dtype"), option("lora"));
        }
        let whole = self.what.makes_tokens() || matches!(self.what, Target::Forward | Target::Attribution);
        if !model.adapters.is_empty() && !whole {
            bail!("{} is only for bench forward, decode, generate and attribution", option("adapter"));
        }
        if self.last && self.what != Target::Forward {
            bail!("{} is only for bench forward", option("last"));
        }
        if self.recompute && self.what != Target::Train {
            bail!("{} is only for bench train", option("recompute"));
        }
        if self.new_tokens.is_some() && !self.what.makes_tokens() {
            bail!("{} is only for bench decode and generate", option("new-tokens"));
        }
        if self.cuda_graph && self.what != Target::Generate {
            bail!("{} is only for bench generate", option("cuda-graph"));
        }
        let sizes = [
            ("batch", self.batch),
            ("tokens", self.tokens),
            ("runs", self.runs),
            ("new-tokens", self.steps()),
        ];
        if let Some((name, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            bail!("{}: expected at least 1", model.spelling.given(name, 0));
        }
        Ok(())
    }

    /// The steps of targets that make tokens.
    pub(super) fn steps(&self) -> usize {
        self.new_tokens.unwrap_or(NEW_TOKENS)
    }
}
