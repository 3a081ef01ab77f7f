//! Wrong shapes are refused with an error that names the tensor and the shapes.

use super::{normal, stored};
use crate::common::Result;
use candle_core::{DType, Device, Tensor};
use candle_fused::Dropout;
use candle_nn::VarBuilder;
use gpt2_lessons::causal_attention::{causal_mask, masked_weights, renormalized_weights};
use gpt2_lessons::{
    CausalAttention, MultiHeadAttention, MultiHeadAttentionWrapper, PerHeadAttention, PerHeadSizes,
    SelfAttention, simple,
};
use gpt2_model::{CausalSelfAttention, Config, init};

fn seeded() -> VarBuilder<'static> {
    init::seeded(1, DType::F32, &Device::Cpu)
}

#[track_caller]
fn refuses<T>(result: candle_core::Result<T>, because: &str) {
    match result {
        Ok(_) => panic!("accepted; expected: {because}"),
        Err(error) => assert!(error.to_string().contains(because), "{error}\nshould contain: {because}"),
    }
}

fn zeros(shape: impl Into<candle_core::Shape>) -> candle_core::Result<Tensor> {
    Tensor::zeros(shape, DType::F32, &Device::Cpu)
}

#[test]
fn sizes_that_no_layer_can_have() -> Result {
    let split = |d_out, n_head| MultiHeadAttention::load(seeded(), 3, d_out, 6, n_head, false);
    refuses(split(7, 2), "d_out 7 is not divisible by n_head 2");
    refuses(split(7, 0), "d_out 7 is not divisible by n_head 0");
    refuses(split(0, 2), "a layer of 3 inputs and 0 outputs is empty");
    refuses(MultiHeadAttentionWrapper::load(seeded(), 3, 2, 6, 0, false), "needs a head at least");
    refuses(
        CausalAttention::load(seeded(), 0, 2, 6, false),
        "W_query: a layer of 0 inputs and 2 outputs is empty",
    );
    refuses(SelfAttention::load(seeded(), 3, 0, true), "is empty");
    refuses(SelfAttention::load_parameters(seeded(), 0, 3), "matrices of [0, 3] hold nothing");
    let sizes = PerHeadSizes { d_model: 4, d_k: 0, d_v: 2, n_head: 2 };
    refuses(
        PerHeadAttention::load(seeded(), sizes, true),
        "no size may be 0, got PerHeadSizes { d_model: 4, d_k: 0",
    );
    let a = zeros((3, 2))?;
    let b = zeros((3, 4))?;
    refuses(
        SelfAttention::from_parameters(&a, &a, &b),
        "W_query is [3, 2], so W_key and W_value must be, got [3, 2] and [3, 4]",
    );
    refuses(SelfAttention::from_parameters(&zeros(3)?, &a, &a), "rank");
    Ok(())
}

#[test]
fn a_checkpoint_of_another_shape_or_name() -> Result {
    let vb = VarBuilder::from_tensors(stored()?, DType::F32, &Device::Cpu);
    refuses(SelfAttention::load(vb.pp("v2"), 4, 2, false), "v2.W_query.weight");
    refuses(SelfAttention::load(vb.pp("v2"), 3, 2, true), "v2.W_query.bias");
    refuses(
        MultiHeadAttentionWrapper::load(vb.pp("wrapper"), 3, 2, 6, 3, false),
        "wrapper.heads.2.W_query.weight",
    );
    refuses(MultiHeadAttention::load(vb.pp("v2"), 3, 2, 6, 2, false), "v2.out_proj.weight");
    Ok(())
}

#[test]
fn words_of_another_width_or_rank() -> Result {
    let alone = SelfAttention::load(seeded(), 3, 2, false)?;
    let single = CausalAttention::load(seeded(), 3, 2, 6, false)?;
    let split = MultiHeadAttention::load(seeded(), 3, 2, 6, 2, false)?;
    let sizes = PerHeadSizes { d_model: 3, d_k: 2, d_v: 2, n_head: 2 };
    let mut per_head = PerHeadAttention::load(seeded(), sizes, true)?;
    let x = normal(1, (2, 5, 4))?;
    refuses(alone.forward(&x), "SelfAttention: x [2, 5, 4] does not end in the 3 inputs of W_query");
    refuses(single.forward(&x), "CausalAttention: x [2, 5, 4] does not end in the 3 inputs of W_query");
    refuses(split.forward(&x), "MultiHeadAttention: x [2, 5, 4] does not end in the 3 inputs of W_query");
    refuses(per_head.forward(&x), "PerHeadAttention: x [2, 5, 4] must be (.., T, 3) for W_Q");
    refuses(alone.forward(&zeros(3)?), "SelfAttention: x is [3], but must be (.., T, d_in)");
    refuses(single.forward(&zeros((5, 3))?), "CausalAttention: x must be (B, T, d_in), got [5, 3]");
    refuses(split.forward(&zeros((5, 3))?), "MultiHeadAttention: x must be (B, T, d_in), got [5, 3]");
    per_head.w_o = Some(zeros((5, 3))?);
    refuses(per_head.forward(&zeros((6, 3))?), "must be (.., T, 5) for W_O");
    per_head.heads.clear();
    refuses(per_head.forward(&zeros((6, 3))?), "needs a head at least");
    refuses(simple::self_attention(&zeros(3)?), "");
    Ok(())
}

#[test]
fn texts_that_are_too_long_or_empty() -> Result {
    let single = CausalAttention::load(seeded(), 3, 2, 6, false)?;
    let stack = MultiHeadAttentionWrapper::load(seeded(), 3, 2, 6, 2, false)?;
    let split = MultiHeadAttention::load(seeded(), 3, 2, 6, 2, false)?;
    for t in [7, 0] {
        let because =
            if t == 0 { "x [2, 0, 3] holds no word" } else { "7 words do not fit a triangle of [6, 6]" };
        let x = zeros((2, t, 3))?;
        refuses(single.forward(&x), because);
        refuses(stack.forward(&x), because);
        refuses(split.forward(&x), because);
    }
    refuses(simple::self_attention(&zeros((0, 3))?), "no score");
    let sizes = PerHeadSizes { d_model: 3, d_k: 2, d_v: 2, n_head: 2 };
    let per_head = PerHeadAttention::load(seeded(), sizes, true)?;
    refuses(per_head.forward(&zeros((2, 0, 3))?), "x [2, 0, 3] holds no word");
    let drop = Dropout::new(0.1, 0, 0)?;
    refuses(stack.forward_with(&zeros((2, 6, 3))?, &[drop]), "2 heads need as many dropouts, got 1");
    let mask = causal_mask(6, &Device::Cpu)?;
    for weights in [masked_weights, renormalized_weights] {
        refuses(weights(&zeros((5, 4))?, &mask), "scores must be (.., T, T), got [5, 4]");
        refuses(weights(&zeros(5)?, &mask), "scores must be (.., T, T), got [5]");
        refuses(weights(&zeros((5, 5))?, &mask.narrow(0, 0, 5)?), "5 words do not fit a triangle of [5, 6]");
    }
    Ok(())
}

#[test]
fn layers_that_no_conversion_can_keep() -> Result {
    let mut stack = MultiHeadAttentionWrapper::load(seeded(), 4, 2, 6, 2, false)?;
    let longer = CausalAttention::load(seeded(), 4, 2, 9, false)?;
    let biased = CausalAttention::load(seeded(), 4, 2, 6, true)?;
    for odd in [longer, biased] {
        stack.heads[1] = odd;
        refuses(MultiHeadAttention::from_wrapper(&stack), "heads must have one shape, but head 0 has");
    }
    stack.heads.clear();
    refuses(MultiHeadAttention::from_wrapper(&stack), "a layer without heads has no shape");

    let per_head = |d_k, d_v, causal| {
        let sizes = PerHeadSizes { d_model: 4, d_k, d_v, n_head: 2 };
        let layer = PerHeadAttention::load(seeded(), sizes, causal)?;
        MultiHeadAttention::from_per_head(&layer, 6)
    };
    refuses(per_head(2, 2, false), "MultiHeadAttention is causal; this PerHeadAttention sees every word");
    refuses(per_head(2, 3, true), "W_query gives 4, so W_value (out, in) must be [4, 4], got [6, 4]");
    refuses(per_head(1, 1, true), "W_query gives 2, so out_proj (out, in) must be [2, 2], got [4, 2]");

    let narrow = MultiHeadAttention::load(seeded(), 3, 4, 6, 2, false)?;
    refuses(narrow.to_gpt2(), "one width n_embd; this layer takes 3 and gives 4");
    let config = Config { n_embd: 8, n_head: 2, n_positions: 6, scale_attn_weights: false, ..Config::gpt2() };
    let unscaled = CausalSelfAttention::load(seeded(), &config, 0)?;
    refuses(MultiHeadAttention::from_gpt2(&unscaled), "scales scores by 0.5; this block scales by 1");
    Ok(())
}
