//! The text on the path from theory to code: GPT-2's block on [4, 12, 6] with 3 heads, described by its shapes.

use super::{Printed, stored};
use crate::common::{Result, assert_close};
use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::VarBuilder;
use gpt2_lessons::MultiHeadAttention;
use gpt2_lessons::self_attention::scores;
use gpt2_model::Pass;
use gpt2_model::{CausalSelfAttention, Config};

/// Its block with PyTorch's weights: a `Linear` there (out, in), a `Conv1D` here (in, out).
fn block() -> Result<CausalSelfAttention> {
    let mut tensors = stored()?;
    for name in ["c_attn", "c_proj"] {
        let name = format!("fused.{name}.weight");
        let transposed = tensors[&name].t()?.contiguous()?;
        tensors.insert(name, transposed);
    }
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let config = Config { n_embd: 6, n_head: 3, n_positions: 12, ..Config::gpt2() };
    Ok(CausalSelfAttention::load(vb.pp("fused"), &config, 0)?)
}

/// Every shape in its text and comments, in the order of its forward pass.
fn shapes() -> Result<Vec<Printed>> {
    let block = block()?;
    let x = stored()?["fused.x"].clone();
    let qkv = block.c_attn.forward(&x)?;
    let q = qkv.narrow(D::Minus1, 0, 6)?;
    let side_by_side = q.reshape((4, 12, 3, ()))?;
    let split = MultiHeadAttention::from_gpt2(&block)?;
    let [q_heads, k_heads, _] = split.qkv(&x)?;
    let one_text = q_heads.get(0)?;
    let one_q = one_text.get(0)?;
    let one_k = k_heads.get(0)?.get(0)?;
    Ok(vec![
        Printed::shape("x", &x, &[4, 12, 6]),
        Printed::shape("one text of x", &x.get(0)?, &[12, 6]),
        Printed::shape("c_attn", &qkv, &[4, 12, 18]),
        Printed::shape("q", &q, &[4, 12, 6]),
        Printed::shape("q as heads side by side", &side_by_side, &[4, 12, 3, 2]),
        Printed::shape("q head by head", &q_heads, &[4, 3, 12, 2]),
        Printed::shape("q of one text", &one_text, &[3, 12, 2]),
        Printed::shape("q of one head", &one_q, &[12, 2]),
        Printed::shape("scores of one head", &scores(&one_q, &one_k)?, &[12, 12]),
        Printed::shape("weights", &split.weights(&x)?, &[4, 3, 12, 12]),
        Printed::shape("output", &block.forward_with(&x, Pass::default())?, &[4, 12, 6]),
    ])
}

pub(super) fn count() -> Result<String> {
    let shapes = shapes()?;
    Ok(format!("{} of {} shapes", shapes.iter().filter(|p| p.numbers == p.got).count(), shapes.len()))
}

#[test]
fn every_shape_of_the_text_is_met() -> Result {
    shapes()?.iter().for_each(Printed::check);
    Ok(())
}

/// The document prints no result, so this uses PyTorch's.
#[test]
fn its_block_gives_pytorchs_weights_and_output() -> Result {
    let block = block()?;
    let stored = stored()?;
    let (output, weights) = block.forward_with_weights(&stored["fused.x"], Pass::default())?;
    assert_close("weights", &weights, &stored["fused.expected.weights"], 1e-6);
    assert_close("output", &output, &stored["fused.expected.output"], 1e-6);
    let split = MultiHeadAttention::from_gpt2(&block)?;
    assert_close("split", &split.forward(&stored["fused.x"])?, &stored["fused.expected.output"], 1e-6);
    Ok(())
}

/// Its `bias`: ones on and below the diagonal, in two dimensions of length 1.
#[test]
fn its_bias_is_the_lower_triangle() -> Result {
    let ones = Tensor::tril2(12, DType::U8, &Device::Cpu)?.reshape((1, 1, 12, 12))?;
    let bias = block()?.bias.tensor()?;
    assert_eq!(bias.dims(), ones.dims());
    assert_eq!(bias.flatten_all()?.to_vec1::<u8>()?, ones.flatten_all()?.to_vec1::<u8>()?);
    Ok(())
}
