//! The block as a developer of another Candle model calls it: as a `Module`, in training, with masks of any dtype, and wrongly.

use crate::common::{Result, assert_close, test_device};
use crate::inputs::assert_refused;
use crate::models::{load, random_model};
use candle_core::{DType, Module, Tensor};
use candle_nn::VarBuilder;
use gpt2_model::mask::position_ids;
use gpt2_model::{
    Block, Config, Encoder, ForwardArgs, LayerCache, LayerNorm, Pass, Training, attention, init,
};
use std::collections::HashMap;

const INTEGERS: [DType; 5] = [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64];

/// Attention of 2 heads over at most 8 positions of width 8, in f32.
fn block(dropout: f64) -> Result<Block> {
    let sizes = Config { n_embd: 8, n_head: 2, n_layer: 1, n_positions: 8, ..Config::gpt2() };
    let config = Config { attn_pdrop: dropout, resid_pdrop: dropout, initializer_range: 0.3, ..sizes };
    Ok(Block::load(init::seeded(3, DType::F32, &test_device()), &config, 0)?)
}

/// (2, T, 8)
fn stream(t: u32) -> Result<Tensor> {
    Ok(Tensor::arange(0, 16 * t, &test_device())?.to_dtype(DType::F32)?.sin()?.reshape((2, t as usize, 8))?)
}

fn with(mask: &Tensor) -> Pass<'_> {
    Pass { padding_mask: Some(mask), ..Pass::default() }
}

#[test]
fn a_block_is_a_module_and_takes_a_pass_beside_it() -> Result {
    let block = block(0.1)?;
    let x = stream(6)?;
    let alone = block.attn.forward(&x)?;
    assert_close("attention", &alone, &block.attn.forward_with(&x, Pass::default())?, 0.);
    assert_close(
        "the block",
        &block.forward(&x)?,
        &block.forward_with(&x, Pass::default())?.hidden_state,
        0.,
    );
    // As part of a sequence of layers, where only the trait counts.
    let twice = candle_nn::seq().add(block.clone()).add(block.clone());
    assert_close("in a row", &twice.forward(&x)?, &block.forward(&block.forward(&x)?)?, 0.);
    Ok(())
}

/// Without dropout, training changes nothing; with it, every call draws masks of its own, whose mean is the plain result.
#[test]
fn forward_t_trains_with_the_configs_dropout() -> Result {
    let x = stream(6)?;
    let plain = block(0.)?;
    assert_close("no dropout", &plain.attn.forward_t(&x, true)?, &plain.attn.forward(&x)?, 0.);
    let block = block(0.2)?;
    let expected = block.attn.forward(&x)?;
    assert_close("not in training", &block.attn.forward_t(&x, false)?, &expected, 0.);
    assert_close("the block", &block.forward_t(&x, false)?, &block.forward(&x)?, 0.);
    let largest = |x: &Tensor| -> Result<f32> { Ok(x.abs()?.max_all()?.to_scalar()?) };
    let first = block.attn.forward_t(&x, true)?;
    assert!(largest(&(&first - block.attn.forward_t(&x, true)?)?)? > 1e-3, "the same masks twice");
    assert!(largest(&(block.forward_t(&x, true)? - block.forward_t(&x, true)?)?)? > 1e-3);
    let n = 2000;
    let mut sum = first.zeros_like()?;
    for _ in 0..n {
        sum = (sum + block.attn.forward_t(&x, true)?)?;
    }
    // A number is 0 or 1.25 times itself, and so is each weight: its deviation is at most about the largest number, that of the mean
    // of 2000 a 45th of it; 5 of those. Forgetting to scale one of the two would be an error of 0.2.
    let error = largest(&((sum / f64::from(n))? - &expected)?)? / largest(&expected)?;
    assert!(error < 0.11, "{error}");
    let given = |step| Pass { training: Some(Training { seed: 1, step }), ..Pass::default() };
    assert_close(
        "a seed",
        &block.attn.forward_with(&x, given(5))?,
        &block.attn.forward_with(&x, given(5))?,
        0.,
    );
    Ok(())
}

/// A key that is padding has no effect, whatever the dtype of the mask, its visible number, and who takes it.
#[test]
fn masks_of_every_integer_dtype_hide_the_same_keys() -> Result {
    let block = block(0.)?;
    let x = stream(5)?;
    let visible = Tensor::new(&[[0u8, 0, 1, 1, 1], [1, 1, 1, 1, 1]], &test_device())?;
    let expected = block.attn.forward_with(&x, with(&visible))?;
    let of_block = block.forward_with(&x, with(&visible))?.hidden_state;
    let (_, weights) = block.attn.forward_with_weights(&x, with(&visible))?;
    assert!(weights.get(0)?.narrow(2, 0, 2)?.sum_all()?.to_scalar::<f32>()? < 1e-9, "padding has weight");
    assert!(block.attn.forward(&x)?.get(0)?.to_vec2::<f32>()? != expected.get(0)?.to_vec2::<f32>()?);
    let q = x.reshape((2, 5, 2, 4))?;
    let pattern = |mask: &Tensor| block.attn.pattern(&q, &q, Some(mask), &[], attention::PatternOf::Weights);
    for dtype in INTEGERS {
        // 256 is 0 in its lowest byte.
        let most = if dtype == DType::U8 { 255. } else { 256. };
        let mask = (visible.to_dtype(dtype)? * most)?;
        assert_close("attention", &block.attn.forward_with(&x, with(&mask))?, &expected, 0.);
        assert_close("block", &block.forward_with(&x, with(&mask))?.hidden_state, &of_block, 0.);
        assert_close("weights", &block.attn.forward_with_weights(&x, with(&mask))?.1, &weights, 0.);
        assert_close("pattern", &pattern(&mask)?, &pattern(&visible)?, 0.);
        assert_eq!(
            position_ids(&mask)?.to_vec2::<u32>()?,
            position_ids(&visible)?.to_vec2::<u32>()?,
            "{dtype:?}"
        );
    }
    let floats = visible.to_dtype(DType::F32)?;
    assert_refused(
        block.attn.forward_with(&x, with(&floats)),
        "must be integers (1 = visible), got f32 [2, 5]",
    );
    assert_refused(position_ids(&floats), "must be integers");

    let model = load("cross", DType::F32)?;
    let x = Tensor::arange(0u32, 120, &test_device())?.to_dtype(DType::F32)?.cos()?.reshape((2, 5, 12))?;
    let crossed = |mask: &Tensor| {
        let encoder = Some(Encoder { hidden_states: &x, attention_mask: Some(mask) });
        model.transformer.h[0].forward_with(&x, Pass { encoder, ..Pass::default() })
    };
    let expected = crossed(&visible)?.hidden_state;
    for dtype in INTEGERS {
        assert_close("an encoder's", &crossed(&visible.to_dtype(dtype)?)?.hidden_state, &expected, 0.);
    }
    Ok(())
}

#[test]
fn messages_name_the_layer_the_shape_and_the_limit() -> Result {
    let block = block(0.)?;
    let attn = &block.attn;
    let x = stream(5)?;
    assert_refused(
        attn.forward(&x.get(0)?.narrow(0, 0, 5)?),
        "layer 0: attn: x must be (B, T, 8), got [5, 8]",
    );
    assert_refused(attn.forward(&x.narrow(2, 0, 7)?), "layer 0: attn: x must be (B, T, 8), got [2, 5, 7]");
    assert_refused(block.forward(&x.get(0)?), "layer 0: x must be (B, T, C), got [5, 8]");
    assert_refused(
        attn.forward(&stream(9)?),
        "layer 0: attn: x [2, 9, 8] has 9 positions, more than n_positions = 8",
    );
    assert_refused(block.forward(&stream(9)?), "9 positions, more than n_positions = 8");
    let mut cache = LayerCache::with_heads(attn.heads(), 2, 12, DType::F32, &test_device())?;
    attn.forward_with(&x, Pass { cache: Some(&mut cache), ..Pass::default() })?;
    let more = attn.forward_with(&x, Pass { cache: Some(&mut cache), ..Pass::default() });
    assert_refused(more, "5 positions after 5 in the cache, more than n_positions = 8");
    for (result, part) in [
        (attn.forward(&x.to_dtype(DType::BF16)?), "layer 0: attn.c_attn of x in bf16"),
        (block.forward(&x.to_dtype(DType::BF16)?), "bf16"),
    ] {
        assert_refused(result, part);
    }
    for eps in [f64::NAN, f64::INFINITY, -1e-5] {
        let vb = VarBuilder::zeros(DType::F32, &test_device());
        assert_refused(LayerNorm::load(vb, 8, eps), "eps is");
    }
    Ok(())
}

/// The names are the checkpoint's, the numbers are the model's, and the triangle is none of them.
#[test]
fn named_tensors_are_what_loads_again() -> Result {
    let model = random_model(2, 4, 8)?;
    let tensors: HashMap<String, Tensor> = model.named_tensors()?.into_iter().collect();
    assert_eq!(tensors.len(), model.config().parameters()?.len());
    assert!(!tensors.keys().any(|name| name.ends_with(".attn.bias")));
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &test_device());
    let again = gpt2_model::Gpt2LMHeadModel::load(vb, model.config())?;
    let ids = Tensor::new(&[[1u32, 2, 3]], &test_device())?;
    let logits = |of: &gpt2_model::Gpt2LMHeadModel| of.forward(&ids, ForwardArgs::default());
    assert_close("again", &logits(&again)?.logits, &logits(&model)?.logits, 0.);

    let attn = &model.transformer.h[0].attn;
    let names: Vec<String> = attn.named_tensors()?.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["c_attn.weight", "c_attn.bias", "c_proj.weight", "c_proj.bias"]);
    let triangle = attn.bias.tensor()?;
    assert_eq!((triangle.dtype(), triangle.dims()), (DType::U8, &[1, 1, 8, 8][..]));
    Ok(())
}
