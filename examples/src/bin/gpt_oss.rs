//! gpt-oss's attention, which candle-transformers does not have: learned sinks, a window in every other layer, biases, and YaRN's
//! angles between whole pairs. Its result must be that of transformers' `GptOssAttention`, for a prompt and token by token.
//!
//! ```text
//! cargo run --release --bin gpt_oss
//! ```

use anyhow::{Result, ensure};
use candle_core::{DType, Device, Module, Tensor};
use candle_fused::attention::{Mask, Sdpa, Window};
use candle_fused::cache::KvCache;
use candle_fused::nn::rotary_emb::{RopeScaling, RotaryTables, rope};
use candle_fused::nn::{Linear, linear};
use candle_nn::VarBuilder;
use models_on_candle_fused::relative_difference;

/// Written by scripts/make_attention_reference.py: 4 heads of queries over 2 of keys and values.
const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/attention/gpt_oss.safetensors");
const HIDDEN: usize = 32;
const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const D: usize = 16;
/// The keys that a query of a layer with a window sees.
const WINDOW: usize = 7;
const POSITIONS: usize = 131_072;

struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    sdpa: Sdpa,
    tables: RotaryTables,
    cache: KvCache,
}

impl Attention {
    fn load(window: Option<usize>, tables: &RotaryTables, vb: VarBuilder) -> Result<Self> {
        let sdpa = Sdpa {
            sinks: Some(vb.get(HEADS, "sinks")?),
            window: window.map_or(Window::CAUSAL, Window::sliding),
            ..Sdpa::default()
        };
        Ok(Self {
            q_proj: linear(HIDDEN, HEADS * D, vb.pp("q_proj"))?,
            k_proj: linear(HIDDEN, KEY_HEADS * D, vb.pp("k_proj"))?,
            v_proj: linear(HIDDEN, KEY_HEADS * D, vb.pp("v_proj"))?,
            o_proj: linear(HEADS * D, HIDDEN, vb.pp("o_proj"))?,
            sdpa,
            tables: tables.clone(),
            cache: match window {
                Some(window) => KvCache::sliding(window, 2 * window, DType::F32)?,
                None => KvCache::new(POSITIONS, DType::F32),
            },
        })
    }

    /// The next T positions: (B, T, C) -> (B, T, C)
    fn forward(&mut self, x: &Tensor) -> Result<Tensor> {
        let (b, t, _) = x.dims3()?;
        let (cos, sin) = self.tables.at(self.cache.len(), t)?;
        let heads = |x: Tensor, heads: usize| x.reshape((b, t, heads, D))?.transpose(1, 2);
        let q = rope(&heads(self.q_proj.forward(x)?, HEADS)?, &cos, &sin)?;
        let k = rope(&heads(self.k_proj.forward(x)?, KEY_HEADS)?, &cos, &sin)?;
        let (k, v) = self.cache.append(&k, &heads(self.v_proj.forward(x)?, KEY_HEADS)?)?;
        let context = self.sdpa.forward(&q, &k, &v, Mask::default())?; // (B, T, H, D)
        Ok(self.o_proj.forward(&context.flatten_from(2)?)?)
    }
}

fn main() -> Result<()> {
    let device = Device::Cpu;
    let tensors = candle_core::safetensors::load(REFERENCE, &device)?;
    let x = tensors["x"].clone();
    let t = x.dim(1)?;
    let yarn = RopeScaling::Yarn {
        factor: 32.,
        fast: 32.,
        slow: 1.,
        original: 4096,
        truncate: false,
        attention_factor: None,
    };
    let tables = RotaryTables::new(D, POSITIONS, 150_000., yarn, DType::F32, &device)?;
    let vb = VarBuilder::from_tensors(tensors.clone(), DType::F32, &device);
    for (n, window) in [(0, Some(WINDOW)), (1, None)] {
        let expected = &tensors[&format!("layers.{n}.out")];
        let mut attention = Attention::load(window, &tables, vb.pp("layers").pp(n).pp("self_attn"))?;
        let of_prompt = attention.forward(&x)?;
        attention.cache.reset();
        let mut parts = vec![attention.forward(&x.narrow(1, 0, 5)?)?];
        for i in 5..t {
            parts.push(attention.forward(&x.narrow(1, i, 1)?)?);
        }
        let token_by_token = Tensor::cat(&parts, 1)?;
        let differences =
            [relative_difference(&of_prompt, expected)?, relative_difference(&token_by_token, expected)?];
        println!(
            "layer {n}, window {window:?}: a prompt {:.1e}, token by token {:.1e}",
            differences[0], differences[1]
        );
        ensure!(
            differences.iter().all(|difference| *difference < 1e-5),
            "layer {n} differs from transformers"
        );
    }
    Ok(())
}
