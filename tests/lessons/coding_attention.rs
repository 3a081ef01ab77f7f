//! "Coding Attention Mechanisms", cell by cell.
//!
//! Three things that it prints are not results of its code on these inputs:
//!
//! - the text after [7] gives weights for the scores of [2] that differ from [5], [6] and [7] by up to
//!   9e-5. It explains the steps in pictures, which the text does not include; they seem to be calculated by hand;
//! - [31] is a dropout mask from PyTorch's generator, and the document says that other systems draw other
//!   masks (PyTorch 2.11 does). Here it is the input of [32], and a test checks its pattern (0 or 2, at rate 0.5);
//! - [49] prints an error, `12x3` by `768x768`, but the text continues as if it had succeeded: the cell ran
//!   after [53]'s exercise had set `d_in` and `d_out` to 768. The output that it should have printed is in [51],
//!   whose first head has the same seed.

use super::coding_attention_numbers as printed;
use super::{Printed, batch, checkpoint, words};
use crate::common::{Result, assert_close};
use candle_core::{D, DType, Device, Tensor};
use candle_fused::Dropout;
use gpt2_lessons::causal_attention::{causal_mask, masked_scores, masked_weights, renormalized_weights};
use gpt2_lessons::self_attention::{scale, scores};
use gpt2_lessons::{CausalAttention, MultiHeadAttention, MultiHeadAttentionWrapper, SelfAttention, simple};
use gpt2_model::Pass;
use gpt2_model::init;

/// 3.3: no weights to train.
fn simple_self_attention() -> Result<Vec<Printed>> {
    let x = words()?;
    let all_scores = simple::scores(&x)?; // (6, 6)
    let scores_2 = all_scores.get(1)?; // (6)
    let dot = (x.get(0)? * x.get(1)?)?.sum_all()?;
    let shares = simple::normalize_by_sum(&scores_2)?;
    let naive = simple::softmax_naive(&scores_2)?;
    let stable = simple::softmax(&scores_2)?;
    let weights = simple::softmax(&all_scores)?;
    let context_2 = simple::context(&stable.unsqueeze(0)?, &x)?;
    let rounded = Tensor::new(&printed::WEIGHTS_2, &Device::Cpu)?;
    let words = printed::WORDS.map(|row| row.map(f64::from));
    Ok(vec![
        Printed::new("[2]", &scores_2, &printed::SCORES_2)?,
        Printed::new("the text after [3]", &dot, &[[0.9544]])?,
        Printed::new("[3], the loop", &dot, &[[0.9544]])?,
        Printed::new("[3], torch.dot", &scores_2.get(0)?, &[[0.9544]])?,
        Printed::new("[4]", &shares, &printed::SHARES_2)?,
        Printed::new("[4], the sum", &shares.sum_all()?, &[[1.]])?,
        Printed::new("[5]", &naive, &printed::WEIGHTS_2)?,
        Printed::new("[5], the sum", &naive.sum_all()?, &[[1.]])?,
        Printed::new("[6]", &stable, &printed::WEIGHTS_2)?,
        Printed::new("[6], the sum", &stable.sum_all()?, &[[1.]])?,
        Printed::new("[7], the weights", &stable, &printed::WEIGHTS_2_IN_FULL)?,
        Printed::new("[7], the words", &x, &words)?,
        Printed::new("[7], their sum", &context_2, &printed::CONTEXT_2)?,
        Printed::new("the text after [7], scores", &scores_2, &printed::SCORES_2)?,
        Printed::new("[8]", &all_scores, &printed::SCORES)?,
        Printed::new("[9]", &scores(&x, &x)?, &printed::SCORES)?,
        Printed::new("[10]", &weights, &printed::WEIGHTS)?,
        Printed::new("[11], row 2 as printed", &rounded.sum_all()?, &[[1.]])?,
        Printed::new("[11], all rows", &weights.sum(D::Minus1)?, &[[1.; 6]])?,
        Printed::new("[12]", &simple::self_attention(&x)?, &printed::CONTEXT)?,
        Printed::new("[13]", &context_2, &printed::CONTEXT_2)?,
    ])
}

/// 3.4: weights to train, as parameters and as linear layers.
fn self_attention() -> Result<Vec<Printed>> {
    let x = words()?;
    let v1 = SelfAttention::load_parameters(checkpoint()?.pp("v1"), 3, 2)?;
    let v2 = SelfAttention::load(checkpoint()?.pp("v2"), 3, 2, false)?;
    let [q, k, v] = v1.qkv(&x)?; // (6, 2)
    let scores_2 = scores(&q.narrow(0, 1, 1)?, &k)?; // (1, 6)
    let d_k = k.dim(1)?;
    let weights_2 = simple::softmax(&scale(&scores_2, d_k)?)?;
    let d_k = Tensor::new(u32::try_from(d_k)?, &Device::Cpu)?;
    Ok(vec![
        Printed::new("[15], W_query", &v1.w_query.weight().t()?, &printed::V1_W_QUERY)?,
        Printed::new("[15], W_key", &v1.w_key.weight().t()?, &printed::V1_W_KEY)?,
        Printed::new("[15], W_value", &v1.w_value.weight().t()?, &printed::V1_W_VALUE)?,
        Printed::new("[16]", &q.get(1)?, &printed::V1_QUERY_2)?,
        Printed::shape("[17], keys", &k, &[6, 2]),
        Printed::shape("[17], values", &v, &[6, 2]),
        Printed::new("[18]", &scores_2.get(0)?.get(1)?, &[[1.8524]])?,
        Printed::new("[19]", &scores_2, &printed::V1_SCORES_2)?,
        Printed::new("[20], d_k", &d_k, &[[2.]])?,
        Printed::new("[20]", &weights_2, &printed::V1_WEIGHTS_2)?,
        Printed::new("[21]", &simple::context(&weights_2, &v)?, &printed::V1_CONTEXT_2)?,
        Printed::new("[23]", &v1.forward(&x)?, &printed::V1_CONTEXT)?,
        Printed::new("[24]", &v2.forward(&x)?, &printed::V2_CONTEXT)?,
    ])
}

/// 3.5: hiding the future in both ways; dropout.
fn causal_attention() -> Result<Vec<Printed>> {
    let [q, k, _] = SelfAttention::load(checkpoint()?.pp("v2"), 3, 2, false)?.qkv(&words()?)?;
    let plain = scores(&q, &k)?; // (6, 6)
    let scaled = scale(&plain, k.dim(1)?)?;
    let visible = causal_mask(6, &Device::Cpu)?;
    let weights = simple::softmax(&scaled)?;
    let below_diagonal = (&weights * visible.to_dtype(DType::F32)?)?;
    let causal = masked_weights(&scaled, &visible)?;
    let mask = Tensor::new(&printed::DROPOUT_OF_ONES, &Device::Cpu)?.to_dtype(DType::F32)?;
    let two_texts = [printed::WORDS, printed::WORDS].concat();
    let two_texts: Vec<_> = two_texts.into_iter().map(|row| row.map(f64::from)).collect();
    Ok(vec![
        Printed::new("[25]", &weights, &printed::V2_WEIGHTS)?,
        Printed::new("[26]", &visible, &printed::VISIBLE)?,
        Printed::new("[27]", &below_diagonal, &printed::WEIGHTS_BELOW_DIAGONAL)?,
        Printed::new("[28]", &renormalized_weights(&scaled, &visible)?, &printed::CAUSAL_WEIGHTS)?,
        Printed::new("[29], the mask", &(1. - visible.to_dtype(DType::F32)?)?, &printed::HIDDEN)?,
        Printed::new("[29], the scores", &masked_scores(&plain, &visible)?, &printed::MASKED_SCORES)?,
        Printed::new("[30]", &causal, &printed::CAUSAL_WEIGHTS)?,
        Printed::new("[32], with the mask of [31]", &(causal * mask)?, &printed::DROPOUT_OF_WEIGHTS)?,
        Printed::new("[47]", &batch()?, &two_texts)?,
        Printed::shape("[47], its shape", &batch()?, &[2, 6, 3]),
    ])
}

/// 3.6: several heads, stacked and split.
fn multi_head_attention() -> Result<Vec<Printed>> {
    let x = batch()?; // (2, 6, 3)
    let vb = checkpoint()?;
    let wrapper = |name, d_out| MultiHeadAttentionWrapper::load(vb.pp(name), 3, d_out, 6, 2, false);
    let stacked = wrapper("wrapper", 2)?.forward(&x)?;
    let stacked_of_1 = wrapper("wrapper_of_1", 1)?.forward(&x)?;
    let split = MultiHeadAttention::load(vb.pp("split"), 3, 2, 6, 2, false)?.forward(&x)?;
    let a = Tensor::new(&printed::TWO_HEADS, &Device::Cpu)?.reshape((1, 2, 3, 4))?; // (B, H, T, D)
    let one_by_one = [simple::scores(&a.get(0)?.get(0)?)?, simple::scores(&a.get(0)?.get(1)?)?];
    let mut all = vec![
        Printed::new("[51]", &stacked, &[printed::WRAPPER, printed::WRAPPER].concat())?,
        Printed::shape("[51], its shape", &stacked, &[2, 6, 4]),
        Printed::new("[52]", &stacked_of_1, &[printed::WRAPPER_OF_1, printed::WRAPPER_OF_1].concat())?,
        Printed::shape("[52], its shape", &stacked_of_1, &[2, 6, 2]),
        Printed::new("[41]", &scores(&a, &a)?, &printed::SCORES_OF_TWO_HEADS)?,
        Printed::new("[44]", &Tensor::cat(&one_by_one, 0)?, &printed::SCORES_OF_TWO_HEADS)?,
        Printed::new("[42]", &split, &[printed::SPLIT, printed::SPLIT].concat())?,
        Printed::shape("[42], its shape", &split, &[2, 6, 2]),
    ];
    let gpt2 =
        MultiHeadAttention::load(init::seeded(0, DType::F32, &Device::Cpu), 768, 768, 1024, 12, false)?;
    for layer in [&gpt2.w_query, &gpt2.w_key, &gpt2.w_value, &gpt2.out_proj] {
        all.push(Printed::shape("[53], a layer", layer.weight(), &[768, 768]));
    }
    let no_dropout = Tensor::new(Dropout::new(0., 0, 0)?.rate(), &Device::Cpu)?;
    all.push(Printed::new("[53], dropout", &no_dropout, &[[0.]])?);
    Ok(all)
}

/// Counts the printed numbers that are reproduced, by mechanism.
pub(super) fn counts() -> Result<[(&'static str, String); 4]> {
    let count = |all: Vec<Printed>, not: usize| {
        let reproduced: usize = all.iter().map(Printed::reproduced).sum();
        let printed: usize = all.iter().map(|p| p.numbers.len()).sum();
        format!("{reproduced} of {}", printed + not)
    };
    let mut simple = simple_self_attention()?;
    simple.push(text_after_7()?);
    let mask = printed::DROPOUT_OF_ONES.as_flattened().len();
    let error = 4; // 12x3 and 768x768
    Ok([
        ("without weights", count(simple, 0)),
        ("one head", count(self_attention()?, 0)),
        ("causal masks, dropout", count(causal_attention()?, mask + error)),
        ("several heads", count(multi_head_attention()?, 0)),
    ])
}

#[test]
fn every_part_prints_the_same() -> Result {
    for part in [simple_self_attention, self_attention, causal_attention, multi_head_attention] {
        part()?.iter().for_each(Printed::check);
    }
    Ok(())
}

/// [7] prints its weights as Python floats, with all digits of an f32. The remaining difference is two roundings, in
/// `exp` and in the division.
#[test]
fn the_weights_in_full_agree_to_the_last_bits() -> Result {
    let weights = simple::softmax(&simple::scores(&words()?)?.get(1)?)?;
    let printed = Tensor::new(&printed::WEIGHTS_2_IN_FULL, &Device::Cpu)?.squeeze(0)?;
    assert_close("[7]", &weights, &printed, 2. * f64::from(f32::EPSILON));
    Ok(())
}

fn text_after_7() -> Result<Printed> {
    let weights = simple::softmax(&simple::scores(&words()?)?.get(1)?)?;
    Printed::new("the text after [7], weights", &weights, &printed::WEIGHTS_2_IN_TEXT)
}

/// Of the six weights that the text gives after [7], two agree with the cells around it.
#[test]
fn the_weights_in_the_text_are_not_those_of_its_cells() -> Result {
    let text = text_after_7()?;
    assert_eq!((text.numbers.len(), text.reproduced()), (6, 2));
    let far = text.numbers.iter().zip(&text.got).map(|(a, b)| (a - b).abs()).fold(0., f64::max);
    assert!(far > 8e-5 && far < 1e-4, "{far}");
    Ok(())
}

/// [49] as intended: `CausalAttention` on the batch is the first head of [51].
#[test]
fn the_cell_that_failed_gives_the_first_head_of_the_wrapper() -> Result {
    let attn = CausalAttention::load(checkpoint()?.pp("wrapper.heads.0"), 3, 2, 6, false)?;
    let context = attn.forward(&batch()?)?;
    assert_eq!(context.dims(), [2, 6, 2], "each token is now two numbers, as the text after [49] says");
    let first_head = printed::WRAPPER.map(|[a, b, ..]| [a, b]);
    Printed::new("[49]", &context, &[first_head, first_head].concat())?.check();
    Ok(())
}

/// [49] as it ran: a layer with 768 inputs refuses words of width 3, and the error gives both numbers.
#[test]
fn the_cell_that_failed_fails_here_with_both_shapes() -> Result {
    let attn = CausalAttention::load(init::seeded(0, DType::F32, &Device::Cpu), 768, 768, 6, false)?;
    let error = attn.forward(&batch()?).expect_err("3 is not 768").to_string();
    assert!(error.contains("[2, 6, 3] does not end in the 768 inputs of W_query"), "{error}");
    Ok(())
}

/// [31] and [32] with our generator: at rate 0.5 a weight is dropped or doubled, about half of them each.
/// If the words are the unit vectors, and the values are the words, then the context equals the weights.
#[test]
fn dropout_drops_or_doubles_each_weight() -> Result {
    let n = 64;
    let mut attn = CausalAttention::load(init::seeded(0, DType::F32, &Device::Cpu), n, n, n, false)?;
    let unit = Tensor::eye(n, DType::F32, &Device::Cpu)?;
    attn.w_value = candle_nn::Linear::new(unit.clone(), None);
    let x = unit.unsqueeze(0)?;
    let weights = attn.weights(&x)?;
    assert_close("the context", &attn.forward(&x)?, &weights, 0.);

    let dropped = attn.forward_with(&x, Some(&Dropout::new(0.5, 1, 0)?))?.flatten_all()?.to_vec1::<f32>()?;
    let weights = weights.flatten_all()?.to_vec1::<f32>()?;
    let visible: Vec<_> = dropped.iter().zip(&weights).filter(|(_, w)| **w > 0.).collect();
    assert_eq!(visible.len(), n * (n + 1) / 2);
    for (d, w) in &visible {
        assert!(**d == 0. || (**d - 2. * **w).abs() <= 1e-6 * **w, "{d} is neither 0 nor twice {w}");
    }
    let kept = visible.iter().filter(|(d, _)| **d > 0.).count();
    // Four standard deviations of 2080 fair coins are 91.
    assert!(kept.abs_diff(1040) < 91, "{kept} of 2080 kept");
    Ok(())
}

/// [53]'s exercise: GPT-2's 768 dimensions, 12 heads and 1024 tokens, two texts.
#[test]
fn gpt2s_shape_runs_and_its_fused_form_agrees() -> Result {
    let vb = init::seeded(53, DType::F32, &Device::Cpu);
    let attn = MultiHeadAttention::load(vb, 768, 768, 1024, 12, false)?;
    let x = super::normal(1024, (2, 1024, 768))?;
    let context = attn.forward(&x)?;
    assert_eq!(context.dims(), [2, 1024, 768]);
    let fused = attn.to_gpt2()?;
    assert_close("fused", &fused.forward_with(&x, Pass::default())?, &context, 1e-5);
    Ok(())
}
