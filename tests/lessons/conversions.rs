//! One mechanism in several layouts gives the same numbers, for random shapes and for the documents' shapes.

use super::coding_attention_numbers as printed;
use super::{Printed, batch, checkpoint, normal};
use crate::common::{Result, assert_close, cases};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarMap;
use gpt2_lessons::{
    CausalAttention, MultiHeadAttention, MultiHeadAttentionWrapper, PerHeadAttention, PerHeadSizes,
};
use gpt2_model::{CausalSelfAttention, Config, Implementation, Pass, init};
use proptest::prelude::*;

/// The tolerance between two ways to compute the same sums, relative to the largest output. At least one of the four
/// texts below has outputs that do not cancel out.
const SAME: f64 = 1e-5;

fn seeded(seed: u64) -> candle_nn::VarBuilder<'static> {
    init::seeded(seed, DType::F32, &Device::Cpu)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(24)))]

    #[test]
    fn a_stack_of_heads_is_one_split_layer(
        (d_in, width, h, t) in (1usize..9, 1usize..6, 1usize..5, 1usize..9), qkv_bias: bool, seed: u64,
    ) {
        let check = || -> Result {
            let wrapper = MultiHeadAttentionWrapper::load(seeded(seed), d_in, width, t + 2, h, qkv_bias)?;
            let split = MultiHeadAttention::from_wrapper(&wrapper)?;
            let x = normal(seed, (4, t, d_in))?;
            assert_eq!(split.n_head(), h);
            assert_close("split", &split.forward(&x)?, &wrapper.forward(&x)?, SAME);
            Ok(())
        };
        check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }

    #[test]
    fn split_projections_are_gpt2s_one(
        (width, h, t) in (1usize..6, 1usize..5, 1usize..9), qkv_bias: bool, seed: u64,
    ) {
        let check = || -> Result {
            let c = width * h;
            let split = MultiHeadAttention::load(seeded(seed), c, c, t + 2, h, qkv_bias)?;
            let block = split.to_gpt2()?;
            let back = MultiHeadAttention::from_gpt2(&block)?;
            let x = normal(seed, (4, t, c))?;
            let expected = split.forward(&x)?;
            assert_close("block", &block.forward_with(&x, Pass::default())?, &expected, SAME);
            assert_close("and back", &back.forward(&x)?, &expected, SAME);
            let (_, weights) = block.forward_with_weights(&x, Pass::default())?;
            assert_close("weights", &weights, &split.weights(&x)?, SAME);
            // A round trip moves numbers without computing anything.
            for (a, b) in [(&split.w_key, &back.w_key), (&split.out_proj, &back.out_proj)] {
                assert_eq!(a.weight().to_vec2::<f32>()?, b.weight().to_vec2::<f32>()?);
            }
            Ok(())
        };
        check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }

    #[test]
    fn matrices_for_each_head_are_one_split_layer(
        (width, h, t) in (1usize..6, 1usize..5, 1usize..9), with_w_o: bool, seed: u64,
    ) {
        let check = || -> Result {
            let sizes = PerHeadSizes { d_model: width * h, d_k: width, d_v: width, n_head: h };
            let mut layer = PerHeadAttention::load(seeded(seed), sizes, true)?;
            if !with_w_o {
                layer.w_o = None;
            }
            let split = MultiHeadAttention::from_per_head(&layer, t + 2)?;
            let block = split.to_gpt2()?;
            let x = normal(seed, (4, t, width * h))?;
            let expected = layer.forward(&x)?;
            assert_close("split", &split.forward(&x)?, &expected, SAME);
            assert_close("GPT-2's block", &block.forward_with(&x, Pass::default())?, &expected, SAME);
            Ok(())
        };
        check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }
}

/// From a block with GPT-2's initial weights, in both implementations, to three matrices and back.
#[test]
fn gpt2s_block_comes_apart_and_together() -> Result {
    for attn_implementation in [Implementation::Eager, Implementation::Fused] {
        let config = Config { n_embd: 48, n_head: 3, n_positions: 77, attn_implementation, ..Config::gpt2() };
        let config = Config { initializer_range: 0.3, ..config };
        let block = CausalSelfAttention::load(seeded(1), &config, 0)?;
        let split = MultiHeadAttention::from_gpt2(&block)?;
        let again = split.to_gpt2()?;
        let x = normal(1, (3, 77, 48))?;
        let expected = block.forward_with(&x, Pass::default())?;
        assert_close("split", &split.forward(&x)?, &expected, SAME);
        assert_close("again", &again.forward_with(&x, Pass::default())?, &expected, SAME);
        assert_eq!(again.c_attn.weight()?.to_vec2::<f32>()?, block.c_attn.weight()?.to_vec2::<f32>()?);
        assert_eq!(again.c_proj.weight()?.to_vec2::<f32>()?, block.c_proj.weight()?.to_vec2::<f32>()?);
        assert_eq!(again.bias.tensor()?.dims(), block.bias.tensor()?.dims());
    }
    Ok(())
}

/// The converted layer reproduces the wrapper's printed results.
#[test]
fn the_documents_wrapper_prints_the_same_as_one_layer() -> Result {
    for (name, d_out) in [("wrapper", 2), ("wrapper_of_1", 1)] {
        let wrapper = MultiHeadAttentionWrapper::load(checkpoint()?.pp(name), 3, d_out, 6, 2, false)?;
        let context = MultiHeadAttention::from_wrapper(&wrapper)?.forward(&batch()?)?;
        match d_out {
            1 => Printed::new("[52]", &context, &[printed::WRAPPER_OF_1; 2].concat())?.check(),
            _ => Printed::new("[51]", &context, &[printed::WRAPPER; 2].concat())?.check(),
        }
    }
    Ok(())
}

/// In the papers, matrices multiply from the right: head h consists of columns of the transposed `W_query`.
#[test]
fn a_head_of_its_own_is_a_causal_attention() -> Result {
    let sizes = PerHeadSizes { d_model: 5, d_k: 3, d_v: 4, n_head: 1 };
    let mut layer = PerHeadAttention::load(seeded(4), sizes, true)?;
    layer.w_o = None;
    let linear = |w: &Tensor| Result::Ok(candle_nn::Linear::new(w.t()?.contiguous()?, None));
    let head = &layer.heads[0];
    let mut single = CausalAttention::load(seeded(0), 5, 3, 7, false)?;
    (single.w_query, single.w_key, single.w_value) =
        (linear(&head.w_q)?, linear(&head.w_k)?, linear(&head.w_v)?);
    let x = normal(4, (2, 7, 5))?;
    assert_close("head", &layer.forward(&x)?, &single.forward(&x)?, SAME);
    Ok(())
}

/// Training a converted layer trains the original one.
#[test]
fn gradients_pass_through_every_conversion() -> Result {
    let variables = VarMap::new();
    let vb = init::seeded_variables(6, &variables, DType::F32, &Device::Cpu);
    let wrapper = MultiHeadAttentionWrapper::load(vb.pp("wrapper"), 4, 2, 5, 2, true)?;
    let sizes = PerHeadSizes { d_model: 4, d_k: 2, d_v: 2, n_head: 2 };
    let per_head = PerHeadAttention::load(vb.pp("per_head"), sizes, true)?;
    let x = normal(6, (2, 5, 4))?;
    let mut x = x.clone();
    for split in
        [MultiHeadAttention::from_wrapper(&wrapper)?, MultiHeadAttention::from_per_head(&per_head, 5)?]
    {
        let block = split.to_gpt2()?;
        let again = MultiHeadAttention::from_gpt2(&block)?;
        x = (block.forward_with(&x, Pass::default())? + again.forward(&x)?)?;
    }
    super::gradients::assert_all_learn(&variables, &x.sqr()?.sum_all()?)
}
