//! candle-transformers' models beside the same models on candle-fused: the same random weights, the same results, and the times.
//!
//! ```text
//! cargo run --release --bin models -- --tiny             # every model, small, in seconds
//! cargo run --release --bin models -- llama bert         # Llama 3.2 1B's shape cut to 4 layers, and MiniLM
//! cargo run --release --bin models -- llama --hold q8_0 --json
//! ```

use anyhow::{Context, Result, ensure};
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Tensor};
use candle_fused::nn::hold_weights_in;
use candle_fused::{BlockFormat, Isa, KeepLarge, WeightDType};
use candle_nn::VarBuilder;
use clap::Parser;
use models_on_candle_fused::models::{Model, ours, theirs};
use models_on_candle_fused::{Times, gguf, random_weights, relative_difference};
use serde_json::{Value, json};
use std::alloc::System;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: KeepLarge<System> = KeepLarge::new(System);

const ALL: [&str; 8] = ["llama", "qwen3", "mistral", "gemma3", "phi", "bert", "modernbert", "whisper"];

#[derive(Parser)]
struct Args {
    /// Which models; all without a name
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(ALL))]
    models: Vec<String>,
    /// Small ones, to see that they work
    #[arg(long)]
    tiny: bool,
    /// Lengths of prompts, or of what an encoder reads
    #[arg(long, value_delimiter = ',')]
    tokens: Vec<usize>,
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    batch: Vec<usize>,
    /// f32, f16 or bf16, for both models
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// How ours holds its weights: bf16, f16, q8_0, q4_0, ..; in that of --dtype by default
    #[arg(long)]
    hold: Option<String>,
    /// Only one of the two models: ours or theirs, to see its memory
    #[arg(long, value_parser = ["ours", "theirs"])]
    only: Option<String>,
    /// Instead: candle-transformers' quantized Llama of this GGUF file, which is written first, in the format of --hold, if it is
    /// not there
    #[arg(long, value_name = "FILE")]
    gguf: Option<PathBuf>,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// A line of JSON for each measurement
    #[arg(long)]
    json: bool,
    /// Print the sizes as JSON, and stop
    #[arg(long)]
    config: bool,
}

/// The sizes of the models: published ones, with fewer layers where a layer stands for all, or small ones.
fn config(name: &str, tiny: bool) -> Value {
    let size = |whole: usize, small: usize| if tiny { small } else { whole };
    let heads = size(32, 8);
    let key_heads = size(8, 2);
    let decoder = |hidden: usize, inner: usize, vocab: usize| {
        json!({
            "vocab_size": size(vocab, 300),
            "hidden_size": size(hidden, 128),
            "intermediate_size": size(inner, 224),
            "num_hidden_layers": size(4, 2),
            "num_attention_heads": heads,
            "num_key_value_heads": key_heads,
            "head_dim": size(hidden, 128) / heads,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10_000.0,
            "hidden_act": "silu",
        })
    };
    let with = |mut base: Value, more: Value| {
        if let (Some(base), Value::Object(more)) = (base.as_object_mut(), more) {
            base.extend(more);
        }
        base
    };
    match name {
        "llama" => with(
            decoder(2048, 8192, 128_256),
            json!({
                "tie_word_embeddings": true,
                "rope_theta": 500_000.0,
                "rope_scaling": {
                    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                },
            }),
        ),
        "qwen3" => with(
            decoder(2048, 6144, 151_936),
            json!({
                "num_attention_heads": size(16, 8), "head_dim": size(128, 16), "attention_bias": false,
                "tie_word_embeddings": true, "use_sliding_window": false, "max_window_layers": 4,
            }),
        ),
        // A window that both prompts of a small model are longer than.
        "mistral" => with(decoder(4096, 14336, 32_000), json!({"sliding_window": size(4096, 20)})),
        "gemma3" => with(
            decoder(1152, 6912, 262_144),
            json!({
                "num_attention_heads": size(4, 8), "num_key_value_heads": size(1, 2), "head_dim": size(256, 32),
                "attention_bias": false, "hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 10_000.0,
                "query_pre_attn_scalar": 256, "sliding_window": size(512, 12), "sliding_window_pattern": 2,
                "final_logit_softcapping": null, "attn_logit_softcapping": if tiny { json!(30.0) } else { Value::Null },
            }),
        ),
        "phi" => with(
            decoder(2560, 10240, 51_200),
            json!({
                "num_key_value_heads": null, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5,
                "tie_word_embeddings": false, "partial_rotary_factor": 0.5, "qk_layernorm": false,
            }),
        ),
        "bert" => json!({
            "vocab_size": size(30_522, 300), "hidden_size": size(384, 96), "num_hidden_layers": size(6, 2),
            "num_attention_heads": size(12, 6), "intermediate_size": size(1536, 224), "hidden_act": "gelu",
            "hidden_dropout_prob": 0.0, "max_position_embeddings": 512, "type_vocab_size": 2,
            "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0,
        }),
        "modernbert" => json!({
            "vocab_size": size(50_368, 300), "hidden_size": size(768, 96), "num_hidden_layers": size(6, 3),
            "num_attention_heads": size(12, 6), "intermediate_size": size(1152, 128),
            "max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "pad_token_id": 0,
            "global_attn_every_n_layers": 3, "global_rope_theta": 160_000.0, "local_attention": size(128, 16),
            "local_rope_theta": 10_000.0,
        }),
        _ => json!({
            "num_mel_bins": size(80, 8), "max_source_positions": size(1500, 64), "d_model": size(768, 96),
            "encoder_attention_heads": size(12, 3), "encoder_layers": size(6, 2), "vocab_size": size(51_865, 300),
            "max_target_positions": size(448, 32), "decoder_attention_heads": size(12, 3),
            "decoder_layers": size(1, 2),
        }),
    }
}

/// What is measured of one model.
struct Case<'a> {
    name: &'a str,
    args: &'a Args,
    vocab: u64,
    /// How far results may differ, of the largest number.
    tolerance: f32,
}

impl Case<'_> {
    fn ids(&self, batch: usize, t: usize, salt: u32) -> Result<Tensor> {
        let id = |i: u32| u32::try_from(u64::from((i + salt).wrapping_mul(2_654_435_761)) % self.vocab);
        let ids = (0..u32::try_from(batch * t)?).map(id).collect::<std::result::Result<Vec<u32>, _>>()?;
        Ok(Tensor::from_vec(ids, (batch, t), &Device::Cpu)?)
    }

    /// Prompts, and tokens after each, by all models in turn.
    fn run(&self, models: &mut [(&str, Box<dyn Model>)]) -> Result<()> {
        let lengths = match (&self.args.tokens[..], self.args.tiny) {
            ([], true) => &[9, 33][..],
            ([], false) => &[128, 1024][..],
            (given, _) => given,
        };
        for &batch in &self.args.batch {
            // BERT has 512 positions.
            for &t in lengths.iter().filter(|&&t| self.name != "bert" || t <= 512) {
                let ids = self.ids(batch, t, 0)?;
                self.measure(&format!("{batch} x {t}"), models, &mut |model| model.read(&ids))?;
                let next = self.ids(batch, 1, 7)?;
                if models[0].1.step(&next, t)?.is_none() {
                    continue;
                }
                // The first model has taken its step: all read the prompt again.
                for (_, model) in models.iter_mut() {
                    model.read(&ids)?;
                }
                let mut past = vec![t; models.len()];
                let mut turn = 0;
                let count = models.len();
                self.measure(&format!("a token after {batch} x {t}"), models, &mut |model| {
                    let at = &mut past[turn % count];
                    turn += 1;
                    *at += 1;
                    model.step(&next, *at - 1)?.context("a decoder")
                })?;
            }
        }
        Ok(())
    }

    /// One row: the models in turn, after a round whose results are compared.
    fn measure(
        &self,
        what: &str,
        models: &mut [(&str, Box<dyn Model>)],
        run: &mut dyn FnMut(&mut dyn Model) -> Result<Tensor>,
    ) -> Result<()> {
        let results = models.iter_mut().map(|(_, model)| run(&mut **model)).collect::<Result<Vec<_>>>()?;
        let difference = match &results[..] {
            [ours, theirs] => Some(relative_difference(ours, theirs)?),
            _ => None,
        };
        let mut times = vec![Times::default(); models.len()];
        for _ in 0..self.args.rounds {
            for ((_, model), times) in models.iter_mut().zip(&mut times) {
                let start = Instant::now();
                run(&mut **model)?;
                times.add(start.elapsed());
            }
        }
        self.print(what, models, &times, difference);
        if let Some(difference) = difference.filter(|difference| *difference > self.tolerance) {
            anyhow::bail!(
                "{}, {what}: the results differ by {difference:e}, expected at most {:e}",
                self.name,
                self.tolerance
            )
        }
        Ok(())
    }

    fn print(&self, what: &str, models: &[(&str, Box<dyn Model>)], times: &[Times], difference: Option<f32>) {
        if self.args.json {
            let mut row = json!({
                "model": self.name, "what": what, "dtype": self.args.dtype, "hold": self.args.hold,
                "isa": Isa::current().as_str(), "difference": difference,
            });
            for ((name, _), times) in models.iter().zip(times) {
                row[name] = json!({"min_ms": times.fastest(), "median_ms": times.median()});
            }
            println!("{row}");
            return;
        }
        let name = format!("{} {what}", self.name);
        match times {
            [ours, theirs] => println!(
                "{name:<36}{:>12.2}{:>12.2}{:>8.2}{:>14.1e}",
                theirs.fastest(),
                ours.fastest(),
                ours.fastest() / theirs.fastest(),
                difference.unwrap_or(f32::NAN)
            ),
            _ => println!("{name:<36}{:>12.2}", times[0].fastest()),
        }
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(args.rounds > 0, "--rounds must be at least 1");
    let dtype: DType = args.dtype.parse()?;
    let hold = args.hold.as_deref().map(format).transpose()?;
    let names: Vec<&str> =
        if args.models.is_empty() { ALL.to_vec() } else { args.models.iter().map(String::as_str).collect() };
    if args.config {
        names.iter().for_each(|name| println!("{}", config(name, args.tiny)));
        return Ok(());
    }
    if !args.json {
        println!(
            "{:<36}{:>12}{:>12}{:>8}{:>14}",
            "fastest of each, in turn", "theirs, ms", "ours, ms", "ratio", "difference"
        );
    }
    for name in names {
        let config = config(name, args.tiny);
        let vb = random_weights(dtype, args.only.is_none());
        let vocab = config["vocab_size"].as_u64().context("vocab_size")?;
        if let Some(path) = &args.gguf {
            ensure!(name == "llama", "--gguf is for llama");
            let mut models = [("quantized", of_file(path, hold, &config, &vb)?)];
            Case { name, args: &args, vocab, tolerance: f32::INFINITY }.run(&mut models)?;
            continue;
        }
        let mut models = vec![];
        if args.only.as_deref() != Some("theirs") {
            let load = || ours::load(name, &config, vb.clone());
            models.push(("ours", hold.map_or_else(load, |hold| hold_weights_in(hold, load))?));
        }
        if args.only.as_deref() != Some("ours") {
            models.push(("theirs", theirs::load(name, &config, vb.clone())?));
        }
        // Sums in another order; weights that are rounded to a few bits change more than that.
        let tolerance = match (dtype, hold) {
            (_, Some(WeightDType::Blocks(_))) => f32::INFINITY,
            (DType::F32, None) => 1e-4,
            _ => 0.1,
        };
        Case { name, args: &args, vocab, tolerance }.run(&mut models)?;
    }
    Ok(())
}

/// candle-transformers' quantized model of a file, which is written if it is not there.
fn of_file(
    path: &Path,
    hold: Option<WeightDType>,
    config: &Value,
    vb: &VarBuilder,
) -> Result<Box<dyn Model>> {
    if !path.exists() {
        let format = match hold {
            Some(WeightDType::Blocks(BlockFormat::Q8_0)) => GgmlDType::Q8_0,
            Some(WeightDType::Blocks(BlockFormat::Q4_0)) => GgmlDType::Q4_0,
            _ => anyhow::bail!("--gguf writes q8_0 or q4_0: say which by --hold"),
        };
        gguf::write_llama(path, config, format, vb)?;
    }
    gguf::load_llama(path)
}

/// A dtype or a format of blocks by its name.
fn format(name: &str) -> Result<WeightDType> {
    if let Some(format) = BlockFormat::ALL.iter().find(|format| format.as_str() == name) {
        return Ok(WeightDType::Blocks(*format));
    }
    Ok(WeightDType::Plain(name.parse().with_context(|| format!("--hold {name}"))?))
}
