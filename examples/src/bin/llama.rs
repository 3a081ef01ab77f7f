//! Llama with the attention of candle-fused, beside that of candle-transformers: the same weights, the same logits.
//!
//! ```text
//! cargo run --release --bin llama                 # Llama 3.2 1B's shape cut to 4 layers: 2 GB of weights
//! cargo run --release --bin llama -- --tiny       # in a second
//! ```

use anyhow::Result;
use attention_in_other_models::{compare, heading, random_weights};
use candle_core::{D, DType, Device, IndexOp, Tensor};
use candle_fused::flash::flash_attn;
use candle_nn::kv_cache::KvCache;
use candle_nn::rotary_emb::rope;
use candle_nn::{Embedding, Linear, Module, RmsNorm, VarBuilder, embedding, linear_no_bias, rms_norm};
use candle_transformers::models::llama as theirs;
use clap::Parser;
use std::cell::RefCell;

#[derive(Parser)]
struct Args {
    /// A model of 128 channels, to see that it works
    #[arg(long)]
    tiny: bool,
    /// Lengths of prompts
    #[arg(long, value_delimiter = ',', default_values_t = [128, 1024, 2048])]
    tokens: Vec<usize>,
    /// Tokens decoded after the last prompt
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    new_tokens: u32,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// f32, f16 or bf16
    #[arg(long, default_value = "f32")]
    dtype: String,
}

/// Grouped-query attention: H queries over fewer heads of keys and values.
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    heads: usize,
    key_heads: usize,
    cache: KvCache,
}

impl Attention {
    fn load(vb: VarBuilder, c: &theirs::Config) -> Result<Self> {
        let (heads, key_heads) = (c.num_attention_heads, c.num_key_value_heads);
        let kv = c.hidden_size / heads * key_heads;
        Ok(Self {
            q_proj: linear_no_bias(c.hidden_size, c.hidden_size, vb.pp("q_proj"))?,
            k_proj: linear_no_bias(c.hidden_size, kv, vb.pp("k_proj"))?,
            v_proj: linear_no_bias(c.hidden_size, kv, vb.pp("v_proj"))?,
            o_proj: linear_no_bias(c.hidden_size, c.hidden_size, vb.pp("o_proj"))?,
            heads,
            key_heads,
            cache: KvCache::new(2, c.max_position_embeddings),
        })
    }

    /// (B, T, C) -> (B, T, C)
    fn forward(&mut self, x: &Tensor, (cos, sin): (&Tensor, &Tensor)) -> Result<Tensor> {
        let (b, t, _) = x.dims3()?;
        let split = |x: Tensor, heads: usize| x.reshape((b, t, heads, ()))?.transpose(1, 2); // (B, heads, T, D)
        let q = split(self.q_proj.forward(x)?, self.heads)?;
        let k = split(self.k_proj.forward(x)?, self.key_heads)?;
        let v = split(self.v_proj.forward(x)?, self.key_heads)?;
        let (q, k) = (rope(&q.contiguous()?, cos, sin)?, rope(&k.contiguous()?, cos, sin)?);
        let (k, v) = self.cache.append(&k, &v.contiguous()?)?; // (B, key heads, S, D)

        // Here candle-transformers repeats keys and values, multiplies, hides, takes the softmax and multiplies again.
        #[allow(clippy::cast_possible_truncation)]
        let scale = (q.dim(D::Minus1)? as f64).powf(-0.5) as f32;
        let [q, k, v] = [q, k, v].map(|x| x.transpose(1, 2)); // views (B, T or S, heads, D)
        let context = flash_attn(&q?, &k?, &v?, scale, true)?; // (B, T, H, D)
        Ok(self.o_proj.forward(&context.flatten_from(2)?)?)
    }
}

/// `down(silu(gate(x))·up(x))`
struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Mlp {
    fn load(vb: VarBuilder, c: &theirs::Config) -> Result<Self> {
        let (width, inner) = (c.hidden_size, c.intermediate_size);
        Ok(Self {
            gate: linear_no_bias(width, inner, vb.pp("gate_proj"))?,
            up: linear_no_bias(width, inner, vb.pp("up_proj"))?,
            down: linear_no_bias(inner, width, vb.pp("down_proj"))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let gated = (self.gate.forward(x)?.silu()? * self.up.forward(x)?)?;
        Ok(self.down.forward(&gated)?)
    }
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

/// Llama (Touvron et al. 2023) with rotary positions, under the checkpoint's names.
struct Llama {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Linear,
    cos: Tensor,
    sin: Tensor,
}

impl Llama {
    fn load(vb: VarBuilder, c: &theirs::Config) -> Result<Self> {
        let norm = |vb: VarBuilder| rms_norm(c.hidden_size, c.rms_norm_eps, vb);
        let layer = |i: usize| -> Result<Block> {
            let vb = vb.pp("model.layers").pp(i);
            Ok(Block {
                input_layernorm: norm(vb.pp("input_layernorm"))?,
                self_attn: Attention::load(vb.pp("self_attn"), c)?,
                post_attention_layernorm: norm(vb.pp("post_attention_layernorm"))?,
                mlp: Mlp::load(vb.pp("mlp"), c)?,
            })
        };
        let embed_tokens = embedding(c.vocab_size, c.hidden_size, vb.pp("model.embed_tokens"))?;
        let (cos, sin) = rotations(c, vb.dtype())?;
        Ok(Self {
            lm_head: Linear::new(embed_tokens.embeddings().clone(), None),
            embed_tokens,
            layers: (0..c.num_hidden_layers).map(layer).collect::<Result<_>>()?,
            norm: norm(vb.pp("model.norm"))?,
            cos,
            sin,
        })
    }

    /// The logits of the last token, after `past` tokens in the cache: (B, T) -> (B, V)
    fn forward(&mut self, ids: &Tensor, past: usize) -> Result<Tensor> {
        let t = ids.dim(1)?;
        let (cos, sin) = (self.cos.narrow(0, past, t)?, self.sin.narrow(0, past, t)?);
        let mut x = self.embed_tokens.forward(ids)?;
        for block in &mut self.layers {
            x = (&x + block.self_attn.forward(&block.input_layernorm.forward(&x)?, (&cos, &sin))?)?;
            x = (&x + block.mlp.forward(&block.post_attention_layernorm.forward(&x)?)?)?;
        }
        let last = self.norm.forward(&x)?.i((.., t - 1, ..))?.contiguous()?;
        Ok(self.lm_head.forward(&last)?.to_dtype(DType::F32)?)
    }

    fn reset(&mut self) {
        self.layers.iter_mut().for_each(|block| block.self_attn.cache.reset());
    }
}

/// The cosines and sines of each position's angles, (N, D / 2) (Su et al. 2021, §3.2).
fn rotations(c: &theirs::Config, dtype: DType) -> Result<(Tensor, Tensor)> {
    let d = c.hidden_size / c.num_attention_heads;
    let frequencies: Vec<f32> = (0..d / 2).map(|i| c.rope_theta.powf(-2. * i as f32 / d as f32)).collect();
    let frequencies = Tensor::new(frequencies, &Device::Cpu)?.unsqueeze(0)?;
    #[allow(clippy::cast_possible_truncation)]
    let positions = Tensor::arange(0, c.max_position_embeddings as u32, &Device::Cpu)?;
    let angles = positions.to_dtype(DType::F32)?.unsqueeze(1)?.matmul(&frequencies)?; // (N, D / 2)
    Ok((angles.cos()?.to_dtype(dtype)?, angles.sin()?.to_dtype(dtype)?))
}

/// Llama 3.2 1B with 4 of its 16 layers, or a tiny one with the same number of query heads per key head.
fn config(tiny: bool) -> theirs::Config {
    let size = |whole: usize, small: usize| if tiny { small } else { whole };
    theirs::Config {
        hidden_size: size(2048, 128),
        intermediate_size: size(8192, 200),
        vocab_size: size(128_256, 300),
        num_hidden_layers: 4,
        num_attention_heads: size(32, 8),
        num_key_value_heads: size(8, 2),
        rope_theta: 500_000.,
        max_position_embeddings: 4096,
        tie_word_embeddings: true,
        ..theirs::Config::config_7b_v2(false)
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let (config, dtype) = (config(args.tiny), args.dtype.parse::<DType>()?);
    let vb = random_weights(dtype);
    let before = theirs::Llama::load(vb.clone(), &config)?;
    let after = RefCell::new(Llama::load(vb, &config)?);
    let theirs_cache = || theirs::Cache::new(true, dtype, &config, &Device::Cpu);
    let ids = |t: usize| -> Result<Tensor> {
        let ids: Vec<u32> =
            (0..t as u32).map(|i| i.wrapping_mul(2_654_435_761) % config.vocab_size as u32).collect();
        Ok(Tensor::from_vec(ids, (1, t), &Device::Cpu)?)
    };
    // Sums in another order, through 4 layers.
    let tolerance = if dtype == DType::F32 { 1e-4 } else { 0.1 };

    heading(&format!("Llama in {}", args.dtype));
    for &t in &args.tokens {
        let prompt = ids(t)?;
        let theirs = || Ok(before.forward(&prompt, 0, &mut theirs_cache()?)?);
        let ours = || {
            let mut model = after.borrow_mut();
            model.reset();
            model.forward(&prompt, 0)
        };
        compare(&format!("a prompt of {t}"), args.rounds, tolerance, theirs, ours)?;
    }
    let (t, n) = (args.tokens.last().copied().unwrap_or(1), args.new_tokens as usize);
    let (prompt, rest) = (ids(t)?, ids(n)?);
    let mut cache = theirs_cache()?;
    before.forward(&prompt, 0, &mut cache)?;
    after.borrow_mut().reset();
    after.borrow_mut().forward(&prompt, 0)?;
    // Clones share memory: every round writes the same keys at the same places.
    let held: Vec<_> = after.borrow().layers.iter().map(|block| block.self_attn.cache.clone()).collect();
    let theirs = || {
        let mut cache = cache.clone(); // its tensors are shared
        let step = |i| before.forward(&rest.narrow(1, i, 1)?, t + i, &mut cache);
        Ok((0..n).map(step).last().transpose()?.expect("a token"))
    };
    let ours = || {
        let mut model = after.borrow_mut();
        model.layers.iter_mut().zip(&held).for_each(|(block, held)| block.self_attn.cache = held.clone());
        let step = |i| model.forward(&rest.narrow(1, i, 1)?, t + i);
        Ok((0..n).map(step).last().transpose()?.expect("a token"))
    };
    compare(&format!("{n} tokens after {t}"), args.rounds, tolerance, theirs, ours)
}
