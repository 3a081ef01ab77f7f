//! "Implementing GPT-Style Attention": the same steps with biases, compared with PyTorch's results; it prints none of its own.
//!
//! In three places its text disagrees with its mechanism:
//!
//! - the step-by-step code divides the scores by `√d` and, after masking, divides them again; its classes divide
//!   once, and so does everything here;
//! - it says that dropout at rate 0.1 raises what it keeps by 10%; the factor is 1/0.9, 11.1%;
//! - it says that GPT-2's smallest model has 117 million parameters; the released one has 124 million.

use super::{Printed, checkpoint, stored, words};
use crate::common::{Result, assert_close};
use candle_core::{DType, Device, Tensor};
use candle_fused::Dropout;
use gpt2_lessons::{CausalAttention, MultiHeadAttention, SelfAttention, simple};
use gpt2_model::Config;

#[test]
fn its_classes_give_pytorchs_results() -> Result {
    let vb = checkpoint()?.pp("biased");
    let stored = stored()?;
    let x = &stored["biased.x"]; // (2, 5, 3)
    let everything = SelfAttention::load(vb.clone(), 3, 4, true)?.forward(x)?;
    assert_close("SelfAttention", &everything, &stored["biased.expected.self"], 1e-6);
    let past = CausalAttention::load(vb.clone(), 3, 4, 5, true)?.forward(x)?;
    assert_close("CausalAttention", &past, &stored["biased.expected.causal"], 1e-6);
    let heads = MultiHeadAttention::load(vb, 3, 4, 5, 2, true)?.forward(x)?;
    assert_close("MultiHeadAttention", &heads, &stored["biased.expected.split"], 1e-6);
    Ok(())
}

/// It starts from the words of "Coding Attention Mechanisms", so its first results are the same as there.
#[test]
fn its_first_steps_are_those_of_coding_attention() -> Result {
    let context = simple::self_attention(&words()?)?;
    Printed::new("context_vecs", &context, &super::coding_attention_numbers::CONTEXT)?.check();
    Ok(())
}

#[test]
fn a_batch_is_its_rows_and_a_context_may_be_shorter_than_the_mask() -> Result {
    let (vb, x) = (checkpoint()?.pp("biased"), stored()?["biased.x"].clone()); // (2, 5, 3)
    let exact = CausalAttention::load(vb.clone(), 3, 4, 5, true)?;
    let longer = CausalAttention::load(vb.clone(), 3, 4, 1024, true)?;
    let heads = MultiHeadAttention::load(vb, 3, 4, 1024, 2, true)?;
    assert_close("mask of 1024", &longer.forward(&x)?, &exact.forward(&x)?, 1e-6);
    for i in 0..2 {
        let row = x.narrow(0, i, 1)?;
        assert_close("row", &longer.forward(&row)?, &longer.forward(&x)?.narrow(0, i, 1)?, 1e-6);
        assert_close("row, heads", &heads.forward(&row)?, &heads.forward(&x)?.narrow(0, i, 1)?, 1e-6);
        for t in 1..5 {
            let start = row.narrow(1, 0, t)?;
            let expected = exact.forward(&row)?.narrow(1, 0, t)?.contiguous()?;
            assert_close("its first words", &longer.forward(&start)?, &expected, 1e-6);
        }
    }
    Ok(())
}

#[test]
fn dropout_at_a_tenth_raises_the_rest_by_a_ninth() -> Result {
    let ones = Tensor::ones((100, 100), DType::F32, &Device::Cpu)?;
    let dropped = Dropout::new(0.1, 0, 0)?.apply(&ones)?.flatten_all()?.to_vec1::<f32>()?;
    let gone = dropped.iter().filter(|x| **x == 0.).count();
    assert!(dropped.iter().all(|x| *x == 0. || (x - 1. / 0.9).abs() < 1e-6));
    // Five standard deviations, sqrt(10000 · 0.1 · 0.9) = 30 each.
    assert!(gone.abs_diff(1000) < 150, "{gone} of 10000");
    Ok(())
}

/// The text is right about heads and widths of the smallest and the largest GPT-2, but not about the smallest one's
/// size.
#[test]
fn gpt2s_sizes() -> Result {
    let small = Config::preset("gpt2").ok_or("a preset")?;
    let xl = Config::preset("gpt2-xl").ok_or("a preset")?;
    assert_eq!((small.n_head, small.n_embd, small.n_positions), (12, 768, 1024));
    assert_eq!((xl.n_head, xl.n_embd), (25, 1600));
    assert_eq!(small.parameter_count()? / 1_000_000, 124);
    assert_eq!(xl.parameter_count()? / 100_000_000, 15);
    Ok(())
}
