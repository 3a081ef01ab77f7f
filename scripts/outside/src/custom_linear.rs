//! Your own linear layer inside GPT-2: `x·W + b + x·A·B` around a frozen W, where only A and B learn.

use crate::Result;
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_nn::Init;
use gpt2_model::linear::{Epilogue, LinearLayer};
use gpt2_model::parameters::{Role, Visitor};
use gpt2_model::training::TrainingBatch;
use gpt2_model::{CausalSelfAttention, Config, Conv1D, ForwardArgs, Gpt2LMHeadModel, init};

#[derive(Debug)]
struct LowRank {
    base: Conv1D,
    a: Var, // (in, r)
    b: Var, // (r, out)
}

impl LowRank {
    /// Starts with the same output as `base`, until B learns.
    fn around(base: &Conv1D, rank: usize) -> candle_core::Result<Self> {
        let (n_in, n_out) = base.shape();
        let normal = Init::Randn { mean: 0., stdev: 0.1 };
        let a = init::seeded(2, DType::F32, &Device::Cpu).get_with_hints((n_in, rank), "a", normal)?;
        let a = Var::from_tensor(&a)?;
        Ok(Self { base: base.clone(), a, b: Var::zeros((rank, n_out), DType::F32, &Device::Cpu)? })
    }
}

impl LinearLayer for LowRank {
    fn shape(&self) -> (usize, usize) {
        self.base.shape()
    }

    fn forward(&self, x: &Tensor, epilogue: Epilogue) -> candle_core::Result<Tensor> {
        let low = x.broadcast_matmul(&self.a)?.broadcast_matmul(&self.b)?;
        epilogue.apply((self.base.forward(x)? + low)?)
    }

    fn weight(&self) -> candle_core::Result<Tensor> {
        self.base.weight()? + self.a.matmul(&self.b)?
    }

    fn bias(&self) -> Option<&Tensor> {
        self.base.bias()
    }

    fn visit(&self, visitor: &mut Visitor) {
        self.base.visit(visitor);
        visitor.parameter("lora_a", Role::LinearWeight, &self.a);
        visitor.parameter("lora_b", Role::LinearWeight, &self.b);
    }
}

pub fn run() -> Result {
    let config = Config {
        n_layer: 2,
        n_head: 2,
        n_embd: 8,
        n_positions: 16,
        vocab_size: 11,
        initializer_range: 0.3,
        ..Config::gpt2()
    };
    let mut model = Gpt2LMHeadModel::load(init::seeded(1, DType::F32, &Device::Cpu), &config)?;
    let ids = Tensor::new(&[[3u32, 1, 4, 1, 5]], &Device::Cpu)?;
    let targets = Tensor::new(&[[1u32, 4, 1, 5, 9]], &Device::Cpu)?;
    let batch = TrainingBatch::new(ids, targets);
    let before = model.loss(&batch, ForwardArgs::default())?.to_scalar::<f32>()?;

    for block in &mut model.transformer.h {
        let attn: &mut CausalSelfAttention = &mut block.attn;
        attn.c_attn = attn.c_attn.with_layer(LowRank::around(&attn.c_attn, 2)?)?;
    }
    let variables = model.named_variables()?;
    let names: Vec<&str> = variables.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..2], ["h.0.attn.c_attn.lora_a", "h.0.attn.c_attn.lora_b"]);
    assert_eq!(variables.len(), 4, "W stays frozen");

    let mut losses = vec![];
    for _ in 0..40 {
        let loss = model.loss(&batch, ForwardArgs::default())?;
        let gradients = loss.backward()?;
        for (name, variable) in &variables {
            let gradient = gradients.get(variable).ok_or_else(|| format!("{name} has no gradient"))?;
            variable.set(&(variable.as_tensor() - (gradient * 0.5)?)?)?;
        }
        losses.push(loss.to_scalar::<f32>()?);
    }
    assert!((losses[0] - before).abs() < 1e-6, "B begins as 0: {} is not {before}", losses[0]);
    assert!(losses[39] < before, "{losses:?}");
    println!("a linear layer of your own: loss {before:.3}, then {:.3} with W frozen", losses[39]);
    Ok(())
}
