//! The reports of timed runs and of the machine's limits.

use super::work::Work;
use crate::words::count;
use candle_fused::{Isa, measure};
use gpt2_model::Config;
use serde::Serialize;

/// The sizes of the model that is timed.
#[derive(Debug, Serialize)]
pub struct ModelSize {
    n_layer: usize,
    n_head: usize,
    n_embd: usize,
    vocab_size: usize,
}

impl From<&Config> for ModelSize {
    fn from(config: &Config) -> Self {
        let &Config { n_layer, n_head, n_embd, vocab_size, .. } = config;
        Self { n_layer, n_head, n_embd, vocab_size }
    }
}

impl std::fmt::Display for ModelSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { n_layer, n_head, n_embd, vocab_size } = self;
        let layers = count(*n_layer, "layer");
        let heads = count(*n_head, "head");
        write!(f, "{layers}, {heads}, width {n_embd}, vocabulary {vocab_size}")
    }
}

/// The times of a target.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The target.
    pub what: &'static str,
    /// The model's name.
    pub model: String,
    /// Its sizes.
    pub shape: ModelSize,
    /// The implementation of attention that ran.
    #[serde(rename = "impl")]
    pub implementation: &'static str,
    /// The rows of the batch.
    pub batch: usize,
    /// The tokens of a row.
    pub tokens: usize,
    /// The precision of the activations.
    pub dtype: &'static str,
    /// The formats of weights that stay quantized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantized: Option<String>,
    /// The dtype of cached keys and values, if it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv: Option<&'static str>,
    /// Whether the step for a token was one CUDA graph.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cuda_graph: bool,
    /// The device.
    pub device: String,
    /// The threads of the CPU.
    pub threads: usize,
    /// The instruction set of the CPU kernels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isa: Option<&'static str>,
    /// The source of the times: the device's own events, or a clock.
    pub timer: &'static str,
    /// The timed runs.
    pub runs: usize,
    /// On a GPU, the groups of runs that were measured; a time is the mean of a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<usize>,
    /// Whether products in f32 rounded their inputs to TF32.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tf32: bool,
    /// The median of the times, in milliseconds.
    pub median_ms: f64,
    /// The shortest time.
    pub min_ms: f64,
    /// The median of the alternate passes, which compute nothing more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plain_median_ms: Option<f64>,
    /// The median ratio of neighboring passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_plain: Option<f64>,
    /// The time of a new token, of targets that make tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ms_per_token: Option<f64>,
    /// New tokens a second, of all rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_s: Option<f64>,
    /// The work beside the machine's limit, on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
}

/// The most that the processor and the memory can do.
#[derive(Debug, Serialize)]
pub struct MachineLimits {
    /// The threads that were measured.
    pub threads: usize,
    /// The instruction set of the CPU kernels.
    pub isa: &'static str,
    /// Multiply-adds in f32, in registers.
    pub fma_gflops: f64,
    /// Products of bf16, where the processor has instructions for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bf16_gflops: Option<f64>,
    /// Reading from memory.
    pub read_gb_s: f64,
}

impl MachineLimits {
    /// Measures them.
    #[must_use]
    pub fn measure() -> Self {
        Self {
            threads: rayon::current_num_threads(),
            isa: Isa::current().as_str(),
            fma_gflops: measure::fma_gflops(),
            read_gb_s: measure::read_gb_s(),
            bf16_gflops: measure::bf16_gflops(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_layer_is_no_plural() {
        let shape = ModelSize { n_layer: 1, n_head: 2, n_embd: 8, vocab_size: 300 };
        assert_eq!(shape.to_string(), "1 layer, 2 heads, width 8, vocabulary 300");
    }
}
