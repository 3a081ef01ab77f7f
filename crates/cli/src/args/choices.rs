//! Options with a fixed set of values.
// These comments are the help text, which would print backticks and backslashes.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchTarget {
    /// Only attention, on q, k and v as c_attn returns them
    Core,
    /// CausalSelfAttention, from c_attn to c_proj
    Block,
    /// The whole model
    Forward,
    /// Greedy steps with the cache, after a prompt
    Decode,
    /// Steps as `gpt2 generate` makes them: tokens drawn with top-k 40 and read back, after a prompt
    Generate,
    /// Forward, backward and AdamW
    Train,
    /// Attribution patching of all heads, streams and MLPs between two texts: two forward passes and a backward pass
    Attribution,
    /// The most that the processor and the memory can do; needs no model
    Machine,
}

impl BenchTarget {
    /// Whether a run is `--new-tokens` steps with a cache.
    pub(crate) fn makes_tokens(self) -> bool {
        matches!(self, Self::Decode | Self::Generate)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImplArg {
    /// Fused on the CPU; eager on GPUs, where nobody has verified the fused kernels yet
    Auto,
    /// One kernel without a (T, T) tensor, where such a kernel exists
    Fused,
    /// Plain Candle operations
    Eager,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorArg {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DTypeArg {
    F32,
    F16,
    Bf16,
    F64,
}

/// The dtype of the cache of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvArg {
    F32,
    F16,
    Bf16,
}

impl From<KvArg> for candle_core::DType {
    fn from(arg: KvArg) -> Self {
        match arg {
            KvArg::F32 => Self::F32,
            KvArg::F16 => Self::F16,
            KvArg::Bf16 => Self::BF16,
        }
    }
}

impl From<DTypeArg> for candle_core::DType {
    fn from(arg: DTypeArg) -> Self {
        match arg {
            DTypeArg::F32 => Self::F32,
            DTypeArg::F16 => Self::F16,
            DTypeArg::Bf16 => Self::BF16,
            DTypeArg::F64 => Self::F64,
        }
    }
}

/// A format that a model is quantized to when it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum QuantizeArg {
    /// 8.5 bits a weight
    #[value(name = "q8_0")]
    Q8,
    /// 4.5 bits a weight
    #[value(name = "q4_0")]
    Q4,
}

impl From<QuantizeArg> for candle_fused::BlockFormat {
    fn from(arg: QuantizeArg) -> Self {
        match arg {
            QuantizeArg::Q8 => Self::Q8_0,
            QuantizeArg::Q4 => Self::Q4_0,
        }
    }
}

impl From<ImplArg> for candle_fused::Implementation {
    fn from(arg: ImplArg) -> Self {
        match arg {
            ImplArg::Auto => Self::Auto,
            ImplArg::Fused => Self::Fused,
            ImplArg::Eager => Self::Eager,
        }
    }
}
