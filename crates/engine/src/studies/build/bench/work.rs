//! The operations or bytes of a timed run, and their share of the machine's limit.

use super::options::{FEATURES_OF_ONE, FIRING, Options, Target};
use candle_core::DType;
use candle_fused::measure;
use gpt2_loader::{Checkpoint, Encoding, TensorInfo};
use gpt2_model::Config;
use gpt2_model::parameters::WPE;
use serde::Serialize;
use std::cell::RefCell;

/// The work of a run, beside the most that the machine can do.
#[derive(Debug, Serialize)]
pub struct Work {
    /// 10⁹ operations or bytes a second.
    pub giga_per_s: f64,
    /// `GFLOP/s` or `GB/s`.
    pub unit: &'static str,
    /// The machine's limit: the most of what was measured before, between and after the runs.
    pub peak: f64,
    /// The share of it.
    pub of_peak: f64,
    /// The least that was measured: where it is far below `peak`, other programs used the machine, or its speed changed.
    pub least_peak: f64,
}

impl Work {
    /// Of a target that took `seconds` on the CPU.
    pub(super) fn of(
        options: &Options,
        config: &Config,
        numbers: NumberSizes,
        seconds: f64,
        limit: &Limit,
    ) -> Self {
        let amount = if options.what.makes_tokens() {
            bytes_of_a_token(options, config, numbers)
        } else {
            operations(options, config)
        };
        let giga_per_s = 1e-9 * amount / seconds;
        let seen = limit.seen.borrow();
        let peak = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least_peak = seen.iter().copied().fold(f64::INFINITY, f64::min);
        Self { giga_per_s, unit: limit.unit, peak, of_peak: giga_per_s / peak, least_peak }
    }
}

/// The most that the machine does of what a target needs. It changes while other programs run, so it is measured several times.
pub(super) struct Limit {
    unit: &'static str,
    measure_now: fn() -> f64,
    seen: RefCell<Vec<f64>>,
}

impl Limit {
    /// The limit of a target; `None` for products of quantized weights, whose limit nothing here measures. Attention and training
    /// compute in f32.
    pub(super) fn of(what: Target, dtype: DType, quantized: bool) -> Option<Self> {
        let in_bf16 = dtype == DType::BF16 && matches!(what, Target::Block | Target::Forward);
        let (unit, measure_now): (_, fn() -> f64) = if what.makes_tokens() {
            ("GB/s", measure::read_gb_s)
        } else if quantized {
            return None;
        } else if in_bf16 {
            ("GFLOP/s", || measure::bf16_gflops().unwrap_or_else(measure::fma_gflops))
        } else {
            ("GFLOP/s", measure::fma_gflops)
        };
        Some(Self { unit, measure_now, seen: RefCell::default() })
    }

    /// Measures once more.
    pub(super) fn measure(&self) {
        self.seen.borrow_mut().push((self.measure_now)());
    }

    pub(super) fn is_measured(&self) -> bool {
        !self.seen.borrow().is_empty()
    }
}

/// The sizes of weights, keys and values.
#[derive(Clone, Copy)]
pub(super) struct NumberSizes {
    /// The bytes of a weight, on average.
    pub(super) weight: f64,
    /// The bytes of one number of a cached key or value.
    pub(super) number: f64,
}

/// The bits of a weight in memory, under a model in f32.
fn bits_in_memory(encoding: Encoding) -> f64 {
    match encoding {
        Encoding::Blocks(format) => format.bits_in_memory(),
        Encoding::Packed(_) => 32.0,
        other => other.bits().min(32.0),
    }
}

/// The bytes of a weight on average, in a model in f32 whose weights stay as they are in the file.
pub(super) fn bytes_of_a_weight(checkpoint: &Checkpoint) -> f64 {
    let matrices = checkpoint.tensors().filter(|(name, info)| info.shape.len() == 2 && *name != WPE);
    let size = |info: &TensorInfo| info.shape.iter().map(|&n| n as f64).product::<f64>();
    let (bits, count) = matrices.fold((0.0, 0.0), |(bits, count), (_, info)| {
        (bits + size(info) * bits_in_memory(info.dtype), count + size(info))
    });
    bits / 8.0 / count
}

/// The bytes that decoding a token reads: all weights but the position embedding, and the keys and values of the tokens
/// before it.
fn bytes_of_a_token(options: &Options, config: &Config, numbers: NumberSizes) -> f64 {
    let c = config.n_embd as f64;
    let l = config.n_layer as f64;
    let v = config.vocab_size as f64;
    let inner = config.n_inner.map_or(4.0 * c, |inner| inner as f64);
    let kv = keys_and_values(config);
    let weights = l * (2.0 * c * c + c * kv + 2.0 * c * inner) + v * c;
    let keys = options.tokens as f64 + (options.steps() + 1) as f64 / 2.0; // on average
    numbers.weight * weights + numbers.number * options.batch as f64 * l * keys * kv
}

fn keys_and_values(config: &Config) -> f64 {
    let heads = config.heads();
    (heads.packed_width() - heads.query_width()) as f64
}

/// The multiplications and additions of matrix products in a run. A training step counts as three forward passes.
fn operations(options: &Options, config: &Config) -> f64 {
    let b = options.batch as f64;
    let t = options.tokens as f64;
    let c = config.n_embd as f64;
    let l = config.n_layer as f64;
    let v = config.vocab_size as f64;
    let inner = config.n_inner.map_or(4.0 * c, |inner| inner as f64);
    let kv = keys_and_values(config);
    let core = 4.0 * c * t * (t + 1.0) / 2.0;
    let block = core + 2.0 * t * c * (2.0 * c + kv);
    let mlp = 4.0 * t * c * inner;
    let forward = if options.last {
        // The last block computes keys and values of all positions, and the rest for the last one.
        let last = 2.0 * c * (t * kv + 2.0 * c) + 4.0 * c * t + 4.0 * c * inner;
        (l - 1.0) * (block + mlp) + last + 2.0 * c * v
    } else {
        l * (block + mlp) + 2.0 * t * c * v
    };
    b * match options.what {
        Target::Core => core,
        Target::Block => block,
        Target::Features => 2.0 * t * c * (FEATURES_OF_ONE as f64 * c + FIRING as f64),
        // A frozen weight gets no gradient.
        Target::Train if options.lora.is_some() => 2.0 * (l * (block + mlp) + 2.0 * t * c * v) + l * core,
        Target::Train => 3.0 * (l * (block + mlp) + 2.0 * t * c * v),
        _ => forward,
    }
}
