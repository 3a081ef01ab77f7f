//! The `config.json` of GPT-2 and of gpt_bigcode.

use candle_core::{Result, Tensor};
use candle_fused::Implementation;
use candle_fused::WeightLayout;
use candle_fused::attention::HeadLayout;
use serde::{Deserialize, Serialize};

/// The order of queries, keys and values in the output of `c_attn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkvOrder {
    /// The queries of all heads, then all keys, then all values: GPT-2, and gpt_bigcode with one head of keys.
    SideBySide,
    /// The query, key and value of the first head, then those of the next: gpt_bigcode with keys for each head.
    HeadByHead,
}

/// The value of `model_type` of GPT-2.
const GPT2: &str = "gpt2";
/// The value of `model_type` of the family of StarCoder.
const GPT_BIGCODE: &str = "gpt_bigcode";

/// GPT-2's configuration, or gpt_bigcode's, with the field names of `config.json`.
///
/// gpt_bigcode is the family of SantaCoder and StarCoder (Li et al. 2023): GPT-2 whose heads share one head of keys and values
/// (`multi_query`), with linear layers in PyTorch's layout.
///
/// A field missing from the file takes transformers' default, which is GPT-2 small's value. Fields that
/// do not affect a forward pass (`summary_*`, `use_cache`, ..) are ignored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// V, the number of tokens.
    pub vocab_size: usize,
    /// N, the longest sequence: the rows of `wpe` and the side of the `bias` triangle.
    #[serde(alias = "max_position_embeddings")]
    pub n_positions: usize,
    /// C, the width of the residual stream.
    #[serde(alias = "hidden_size")]
    pub n_embd: usize,
    /// L, the number of blocks.
    #[serde(alias = "num_hidden_layers")]
    pub n_layer: usize,
    /// H, the number of heads per block; divides `n_embd`.
    #[serde(alias = "num_attention_heads")]
    pub n_head: usize,
    /// The width inside the MLP; `None` means `4 * n_embd`.
    pub n_inner: Option<usize>,
    /// The MLP's non-linearity.
    pub activation_function: Activation,
    /// Dropout on what attention and the MLP add to the residual stream, during training: see
    /// [`Training`](crate::training::Training).
    pub resid_pdrop: f64,
    /// Dropout on the embeddings, during training.
    pub embd_pdrop: f64,
    /// Dropout on the attention weights, during training.
    pub attn_pdrop: f64,
    /// The constant under the square root in every layer norm.
    pub layer_norm_epsilon: f64,
    /// The standard deviation of the initial weights.
    pub initializer_range: f64,
    /// Whether scores are divided by `sqrt(D)`.
    pub scale_attn_weights: bool,
    /// Whether scores are also divided by the layer's number, counted from 1.
    pub scale_attn_by_inverse_layer_idx: bool,
    /// Whether scores are computed in f32 and scaled first. Here they always are, so both values give
    /// the same result; the field exists only to preserve the file's value.
    pub reorder_and_upcast_attn: bool,
    /// gpt_bigcode alone: whether all heads share one head of keys and values. Missing means true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multi_query: Option<bool>,
    /// gpt_bigcode alone: whether the softmax is computed in f32. Here it always is; see
    /// [`reorder_and_upcast_attn`](Self::reorder_and_upcast_attn).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_softmax_in_fp32: Option<bool>,
    /// gpt_bigcode alone: whether scores are scaled in f32. Here they always are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_attention_softmax_in_fp32: Option<bool>,
    /// Whether blocks also attend to the hidden states of an encoder: see
    /// [`CrossAttention`](crate::CrossAttention).
    pub add_cross_attention: bool,
    /// Whether `lm_head` is `wte`.
    pub tie_word_embeddings: bool,
    /// The token that begins a text.
    pub bos_token_id: Option<u32>,
    /// The token or tokens that end a text.
    pub eos_token_id: Option<TokenIds>,
    /// The architecture: `"gpt2"` or `"gpt_bigcode"`; GPT-2 if the file names none.
    pub model_type: String,
    /// The implementation of attention and, on GPUs, of the layers around it; not part of the file.
    #[serde(skip)]
    pub attn_implementation: Implementation,
    /// The settings of a quantized checkpoint. Not supported: any value is rejected.
    #[serde(skip_serializing)]
    pub quantization_config: Option<serde::de::IgnoredAny>,
}

/// One token id or several: `config.json` allows both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a token id or a list of them")]
pub enum TokenIds {
    /// A single id.
    One(u32),
    /// A list of ids.
    Many(Vec<u32>),
}

impl TokenIds {
    /// The ids as a slice.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Many(ids) => ids,
        }
    }
}

/// The activation functions that GPT-2 checkpoints use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Activation {
    /// GELU in its tanh form, `0.5x(1 + tanh(√(2/π)(x + 0.044715x³)))`, as in the original GPT-2.
    #[default]
    #[serde(alias = "gelu_fast", alias = "gelu_accurate", alias = "gelu_python_tanh")]
    GeluNew,
    /// GELU in its tanh form, under PyTorch's name.
    GeluPytorchTanh,
    /// Exact GELU, `x·Φ(x)`.
    #[serde(alias = "gelu_python")]
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// `x·σ(x)`, also called swish.
    #[serde(alias = "swish")]
    Silu,
}

impl Activation {
    /// Applies the function to each element of `x`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn forward(self, x: &Tensor) -> Result<Tensor> {
        self.function().forward(x)
    }

    /// The function, under its name in the kernels.
    pub(crate) fn function(self) -> candle_fused::Activation {
        match self {
            Self::GeluNew | Self::GeluPytorchTanh => candle_fused::Activation::GeluTanh,
            Self::Gelu => candle_fused::Activation::Gelu,
            Self::Relu => candle_fused::Activation::Relu,
            Self::Silu => candle_fused::Activation::Silu,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::gpt2()
    }
}

impl Config {
    /// GPT-2 small: 124 million parameters.
    #[must_use]
    pub fn gpt2() -> Self {
        Self {
            vocab_size: 50257,
            n_positions: 1024,
            n_embd: 768,
            n_layer: 12,
            n_head: 12,
            n_inner: None,
            activation_function: Activation::GeluNew,
            resid_pdrop: 0.1,
            embd_pdrop: 0.1,
            attn_pdrop: 0.1,
            layer_norm_epsilon: 1e-5,
            initializer_range: 0.02,
            scale_attn_weights: true,
            scale_attn_by_inverse_layer_idx: false,
            reorder_and_upcast_attn: false,
            multi_query: None,
            attention_softmax_in_fp32: None,
            scale_attention_softmax_in_fp32: None,
            add_cross_attention: false,
            tie_word_embeddings: true,
            bos_token_id: Some(50256),
            eos_token_id: Some(TokenIds::One(50256)),
            model_type: GPT2.to_string(),
            attn_implementation: Implementation::default(),
            quantization_config: None,
        }
    }

    /// GPT-2 medium: 355 million parameters.
    #[must_use]
    pub fn gpt2_medium() -> Self {
        Self { n_layer: 24, n_head: 16, n_embd: 1024, ..Self::gpt2() }
    }

    /// GPT-2 large: 774 million parameters.
    #[must_use]
    pub fn gpt2_large() -> Self {
        Self { n_layer: 36, n_head: 20, n_embd: 1280, ..Self::gpt2() }
    }

    /// GPT-2 XL: 1.6 billion parameters.
    #[must_use]
    pub fn gpt2_xl() -> Self {
        Self { n_layer: 48, n_head: 25, n_embd: 1600, ..Self::gpt2() }
    }

    /// DistilGPT2: GPT-2 small with 6 layers, 82 million parameters.
    #[must_use]
    pub fn distilgpt2() -> Self {
        Self { n_layer: 6, ..Self::gpt2() }
    }

    /// The preset of that name: `gpt2`, `gpt2-medium`, `gpt2-large`, `gpt2-xl` or `distilgpt2`.
    #[must_use]
    pub fn preset(name: &str) -> Option<Self> {
        match name {
            "gpt2" => Some(Self::gpt2()),
            "gpt2-medium" => Some(Self::gpt2_medium()),
            "gpt2-large" => Some(Self::gpt2_large()),
            "gpt2-xl" => Some(Self::gpt2_xl()),
            "distilgpt2" => Some(Self::distilgpt2()),
            _ => None,
        }
    }

    /// D, the width of a head: `n_embd / n_head`.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        self.n_embd / self.n_head.max(1)
    }

    /// Whether this is gpt_bigcode, not GPT-2.
    #[must_use]
    pub fn is_bigcode(&self) -> bool {
        self.model_type == GPT_BIGCODE
    }

    /// The number of heads of keys and values in a block: `n_head`, or 1 if all heads of queries share them.
    #[must_use]
    pub fn key_heads(&self) -> usize {
        if self.is_bigcode() && self.multi_query.unwrap_or(true) { 1 } else { self.n_head }
    }

    /// The layout of the heads in the channels.
    #[must_use]
    pub fn heads(&self) -> HeadLayout {
        HeadLayout::grouped(self.n_head, self.key_heads(), self.head_dim())
    }

    /// The order of queries, keys and values in the output of `c_attn`.
    #[must_use]
    pub fn qkv_order(&self) -> QkvOrder {
        let by_head = self.is_bigcode() && self.key_heads() > 1;
        if by_head { QkvOrder::HeadByHead } else { QkvOrder::SideBySide }
    }

    /// The axis order of linear layers' weights in the checkpoint.
    #[must_use]
    pub fn weight_layout(&self) -> WeightLayout {
        if self.is_bigcode() { WeightLayout::OutIn } else { WeightLayout::InOut }
    }

    /// The name of transformers' class of language models with this config.
    #[must_use]
    pub fn architecture(&self) -> &'static str {
        if self.is_bigcode() { "GPTBigCodeForCausalLM" } else { "GPT2LMHeadModel" }
    }

    /// The width inside the MLP, `n_inner` or `4 * n_embd`.
    #[must_use]
    pub fn inner_dim(&self) -> usize {
        self.n_inner.unwrap_or(self.n_embd.saturating_mul(4))
    }

    /// The factor on the scores of layer `layer_idx` (from 0).
    #[must_use]
    pub fn attention_scale(&self, layer_idx: usize) -> f64 {
        let mut scale = 1.0;
        if self.scale_attn_weights {
            scale /= (self.head_dim() as f64).sqrt();
        }
        if self.scale_attn_by_inverse_layer_idx {
            scale /= (layer_idx + 1) as f64;
        }
        scale
    }

    /// The deviation of the projections that add to the residual stream, `initializer_range / sqrt(2L)`:
    /// Radford et al. 2019, §2.3, with one addition for each of the 2L sublayers.
    #[must_use]
    pub fn residual_stdev(&self) -> f64 {
        self.initializer_range / (2.0 * self.n_layer as f64).sqrt()
    }

    /// Whether `id` ends a text.
    #[must_use]
    pub fn is_eos(&self, id: u32) -> bool {
        self.eos_token_id.as_ref().is_some_and(|ids| ids.as_slice().contains(&id))
    }

    /// Rejects everything that this crate cannot compute, naming each field as in `config.json`.
    ///
    /// # Errors
    /// For a size that is 0 or unreasonably large, an `n_embd` that `n_head` does not divide, a dropout
    /// rate outside 0..1, and every unsupported flag.
    pub fn validate(&self) -> Result<()> {
        let problems = self.problems();
        if problems.is_empty() {
            return Ok(());
        }
        candle_core::bail!("config: {}", problems.join("; "))
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = vec![];
        // The limits are far above any GPT-2, so a number beyond them must be a mistake.
        for (name, value, limit) in [
            ("vocab_size", self.vocab_size, 1 << 24),
            ("n_positions", self.n_positions, 1 << 24),
            ("n_embd", self.n_embd, 1 << 16),
            ("n_layer", self.n_layer, 1 << 10),
            ("n_head", self.n_head, 1 << 16),
            ("n_inner", self.inner_dim(), 1 << 18),
        ] {
            if !(1..=limit).contains(&value) {
                problems.push(format!("{name} is {value}, expected 1 to {limit}"));
            }
        }
        if self.n_head > 0 && !self.n_embd.is_multiple_of(self.n_head) {
            problems.push(format!("n_embd ({}) must be a multiple of n_head ({})", self.n_embd, self.n_head));
        }
        for (name, p) in [
            ("resid_pdrop", self.resid_pdrop),
            ("embd_pdrop", self.embd_pdrop),
            ("attn_pdrop", self.attn_pdrop),
        ] {
            if !(0.0..1.0).contains(&p) {
                problems.push(format!("{name} is {p}, expected at least 0 and below 1"));
            }
        }
        for (name, value) in
            [("layer_norm_epsilon", self.layer_norm_epsilon), ("initializer_range", self.initializer_range)]
        {
            if !(value.is_finite() && value >= 0.0) {
                problems.push(format!("{name} is {value}, expected a finite number of at least 0"));
            }
        }
        problems.extend(self.problems_of_model_type());
        if self.quantization_config.is_some() {
            problems.push(
                "quantization_config is not supported; use the f32, f16 or bf16 weights of this model".into(),
            );
        }
        problems
    }

    /// Fields that a model of this type does not have, set to a value that would change it.
    fn problems_of_model_type(&self) -> Vec<String> {
        let refuse = |name: &str| format!("{name} is not supported in model_type {:?}", self.model_type);
        match self.model_type.as_str() {
            GPT2 => {
                (self.multi_query == Some(true)).then(|| refuse("multi_query = true")).into_iter().collect()
            }
            GPT_BIGCODE => [
                ("scale_attn_by_inverse_layer_idx = true", self.scale_attn_by_inverse_layer_idx),
                // transformers cannot compute it with one head of keys, and gives it the wrong shapes otherwise.
                ("add_cross_attention = true", self.add_cross_attention),
            ]
            .into_iter()
            .filter(|(_, set)| *set)
            .map(|(name, _)| refuse(name))
            .collect(),
            other => {
                vec![format!("model_type {other:?} is not supported, only {GPT2:?} and {GPT_BIGCODE:?} are")]
            }
        }
    }
}
