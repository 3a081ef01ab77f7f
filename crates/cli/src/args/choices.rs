//! Values that are one of a few.
// The comments are the help text, where backticks and backslashes would be printed.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchTarget {
    /// Attention alone, on q, k and v as c_attn leaves them
    Core,
    /// CausalSelfAttention, from c_attn to c_proj
    Block,
    /// The whole model
    Forward,
    /// Greedy steps with the cache, after a prompt
    Decode,
    /// Forward, backward and AdamW
    Train,
    /// What the processor and the memory can do at most; needs no model
    Machine,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImplArg {
    /// Fused on the CPU; eager on GPUs, where the fused kernels have not been shown right yet
    Auto,
    /// One kernel without a (T, T) tensor, where there is one
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

impl From<ImplArg> for gpt2_kernels::Implementation {
    fn from(arg: ImplArg) -> Self {
        match arg {
            ImplArg::Auto => Self::Auto,
            ImplArg::Fused => Self::Fused,
            ImplArg::Eager => Self::Eager,
        }
    }
}
