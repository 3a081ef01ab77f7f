//! Whisper's encoder with the attention of candle-fused, beside that of candle-transformers: the same weights, the same
//! states. An encoder's attention is not causal: every frame sees every other.
//!
//! ```text
//! cargo run --release --bin whisper               # Whisper small's encoder, on 30 seconds of sound
//! cargo run --release --bin whisper -- --tiny     # in a second
//! ```

use anyhow::Result;
use attention_in_other_models::{compare, heading, random, random_weights};
use candle_core::{DType, Device, Tensor};
use candle_fused::flash::flash_attn;
use candle_nn::{Conv1d, Conv1dConfig, LayerNorm, Linear, Module, VarBuilder};
use candle_nn::{conv1d, layer_norm, linear, linear_no_bias};
use candle_transformers::models::whisper as theirs;
use clap::Parser;

#[derive(Parser)]
struct Args {
    /// A model of 48 channels, to see that it works
    #[arg(long)]
    tiny: bool,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    out_proj: Linear,
    heads: usize,
}

impl Attention {
    fn load(vb: VarBuilder, width: usize, heads: usize) -> Result<Self> {
        Ok(Self {
            q_proj: linear(width, width, vb.pp("q_proj"))?,
            k_proj: linear_no_bias(width, width, vb.pp("k_proj"))?,
            v_proj: linear(width, width, vb.pp("v_proj"))?,
            out_proj: linear(width, width, vb.pp("out_proj"))?,
            heads,
        })
    }

    /// (B, T, C) -> (B, T, C)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (b, t, width) = x.dims3()?;
        let split = |x: Tensor| x.reshape((b, t, self.heads, width / self.heads)); // (B, T, H, D)
        let (q, k, v) = (
            split(self.q_proj.forward(x)?)?,
            split(self.k_proj.forward(x)?)?,
            split(self.v_proj.forward(x)?)?,
        );
        let scale = ((width / self.heads) as f32).powf(-0.5);
        let context = flash_attn(&q, &k, &v, scale, false)?; // (B, T, H, D)
        Ok(self.out_proj.forward(&context.flatten_from(2)?)?)
    }
}

struct Block {
    self_attn: Attention,
    self_attn_layer_norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    final_layer_norm: LayerNorm,
}

impl Block {
    fn load(vb: VarBuilder, width: usize, heads: usize) -> Result<Self> {
        Ok(Self {
            self_attn: Attention::load(vb.pp("self_attn"), width, heads)?,
            self_attn_layer_norm: layer_norm(width, 1e-5, vb.pp("self_attn_layer_norm"))?,
            fc1: linear(width, 4 * width, vb.pp("fc1"))?,
            fc2: linear(4 * width, width, vb.pp("fc2"))?,
            final_layer_norm: layer_norm(width, 1e-5, vb.pp("final_layer_norm"))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = (x + self.self_attn.forward(&self.self_attn_layer_norm.forward(x)?)?)?;
        let inner = self.fc1.forward(&self.final_layer_norm.forward(&x)?)?.gelu()?;
        Ok((&x + self.fc2.forward(&inner)?)?)
    }
}

/// The encoder of Whisper (Radford et al. 2022) under the checkpoint's names.
struct Encoder {
    conv1: Conv1d,
    conv2: Conv1d,
    positions: Tensor,
    layers: Vec<Block>,
    layer_norm: LayerNorm,
}

impl Encoder {
    fn load(vb: VarBuilder, c: &theirs::Config) -> Result<Self> {
        let (width, heads) = (c.d_model, c.encoder_attention_heads);
        let convolution = |stride| Conv1dConfig { padding: 1, stride, ..Default::default() };
        let layer = |i: usize| Block::load(vb.pp("layers").pp(i), width, heads);
        Ok(Self {
            conv1: conv1d(c.num_mel_bins, width, 3, convolution(1), vb.pp("conv1"))?,
            conv2: conv1d(width, width, 3, convolution(2), vb.pp("conv2"))?,
            positions: sinusoids(c.max_source_positions, width)?.to_dtype(vb.dtype())?,
            layers: (0..c.encoder_layers).map(layer).collect::<Result<_>>()?,
            layer_norm: layer_norm(width, 1e-5, vb.pp("layer_norm"))?,
        })
    }

    /// `mel` (B, bins, 2·T) -> (B, T, C)
    fn forward(&self, mel: &Tensor) -> Result<Tensor> {
        let frames = self.conv2.forward(&self.conv1.forward(mel)?.gelu()?)?.gelu()?.transpose(1, 2)?; // (B, T, C)
        let mut x = frames.broadcast_add(&self.positions.narrow(0, 0, frames.dim(1)?)?)?;
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        Ok(self.layer_norm.forward(&x)?)
    }
}

/// (T, C): sines in the first half of the channels, cosines in the second.
fn sinusoids(t: usize, width: usize) -> Result<Tensor> {
    let half = width / 2;
    let frequency = |i: usize| (-(10_000f32.ln()) * i as f32 / (half - 1) as f32).exp();
    let angle = |position: usize, i: usize| position as f32 * frequency(i);
    let row = |p: usize| {
        (0..width).map(move |c| if c < half { angle(p, c).sin() } else { angle(p, c - half).cos() })
    };
    let values: Vec<f32> = (0..t).flat_map(row).collect();
    Ok(Tensor::from_vec(values, (t, width), &Device::Cpu)?)
}

/// Whisper small, or a tiny one, without a decoder.
fn config(tiny: bool) -> theirs::Config {
    let size = |whole: usize, small: usize| if tiny { small } else { whole };
    theirs::Config {
        num_mel_bins: size(80, 8),
        max_source_positions: size(1500, 50),
        d_model: size(768, 48),
        encoder_attention_heads: size(12, 3),
        encoder_layers: size(12, 2),
        vocab_size: 8,
        max_target_positions: 8,
        decoder_attention_heads: size(12, 3),
        decoder_layers: 0,
        suppress_tokens: vec![],
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let config = config(args.tiny);
    let vb = random_weights(DType::F32);
    let mut before = theirs::model::Whisper::load(&vb, config.clone())?.encoder;
    let after = Encoder::load(vb.pp("model.encoder"), &config)?;
    let t = config.max_source_positions;
    let mel = random((1, config.num_mel_bins, 2 * t), 1 << 20, &Device::Cpu)?;
    heading("Whisper's encoder in f32");
    compare(
        &format!("{} layers, {t} positions", config.encoder_layers),
        args.rounds,
        1e-4,
        || Ok(before.forward(&mel, true)?),
        || after.forward(&mel),
    )
}
