//! `CausalSelfAttention` alone, in your own model.

use crate::Result;
use candle_core::{D, DType, Device, Tensor};
use candle_nn::{Embedding, Linear, Module, VarBuilder, VarMap, embedding, linear, loss};
use gpt2_model::{CausalSelfAttention, Config};

const VOCABULARY: usize = 7;
const WIDTH: usize = 12;

/// One block of attention between an embedding and a linear layer.
struct Model {
    tokens: Embedding,
    attn: CausalSelfAttention,
    head: Linear,
}

impl Model {
    fn load(vb: VarBuilder) -> candle_core::Result<Self> {
        let config = Config { n_embd: WIDTH, n_head: 3, n_positions: 16, ..Config::gpt2() };
        Ok(Self {
            tokens: embedding(VOCABULARY, WIDTH, vb.pp("tokens"))?,
            attn: CausalSelfAttention::load(vb.pp("attn"), &config, 0)?,
            head: linear(WIDTH, VOCABULARY, vb.pp("head"))?,
        })
    }

    fn forward(&self, ids: &Tensor) -> candle_core::Result<Tensor> {
        let x = self.tokens.forward(ids)?; // (B, T, C)
        let x = (&x + self.attn.forward(&x)?)?;
        self.head.forward(&x) // (B, T, V)
    }
}

pub fn run() -> Result {
    let variables = VarMap::new();
    let model = Model::load(VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu))?;
    let ids = Tensor::new(&[[3u32, 1, 4, 1, 5]], &Device::Cpu)?; // (B, T)
    let logits = model.forward(&ids)?;
    assert_eq!(logits.dims(), [1, 5, VOCABULARY]);

    // Changing the last token changes nothing before it.
    let other = model.forward(&Tensor::new(&[[3u32, 1, 4, 1, 6]], &Device::Cpu)?)?;
    let moved = (&logits - other)?.abs()?.max(D::Minus1)?.squeeze(0)?.to_vec1::<f32>()?;
    assert!(moved[..4].iter().all(|&x| x == 0.) && moved[4] > 0., "{moved:?}");

    let targets = Tensor::new(&[1u32, 4, 1, 5, 2], &Device::Cpu)?;
    let gradients = loss::cross_entropy(&logits.squeeze(0)?, &targets)?.backward()?;
    for variable in variables.all_vars() {
        let gradient = gradients.get(&variable).ok_or("a variable without a gradient")?;
        assert!(gradient.sqr()?.sum_all()?.to_scalar::<f32>()?.is_finite());
    }
    println!("CausalSelfAttention alone: {} variables learn", variables.all_vars().len());
    Ok(())
}
