//! The text that starts from "What is the capital of France?": `softmax(Q·Kᵀ/√d_k)·V`, then heads with separate matrices and `W_O`.
//!
//! Its vectors (39 numbers) are examples of an embedding that the text does not give, and they contradict each
//! other: the text says that row 2 of its matrix M is the second token's vector, whose first number it prints
//! as 0.110 there and as -0.133 in M. Two numbers can be checked: 7 tokens and `d_k` = 64.
//! Its Python passes an int to `torch.sqrt`, which PyTorch refuses.

use super::{Printed, normal};
use crate::common::{Result, assert_close};
use candle_core::{DType, Device, Tensor};
use gpt2_lessons::self_attention::{scale, scaled_dot_product_attention, scores};
use gpt2_lessons::simple::softmax;
use gpt2_lessons::{PerHeadAttention, PerHeadSizes};
use gpt2_loader::Tokenizer;
use gpt2_model::init;

const EXAMPLES: usize = 39;

/// `d_model` of Vaswani et al. 2017, in 8 heads.
const SIZES: PerHeadSizes = PerHeadSizes { d_model: 512, d_k: 512 / 8, d_v: 512 / 8, n_head: 8 };

fn layer() -> Result<PerHeadAttention> {
    Ok(PerHeadAttention::load(init::seeded(2, DType::F32, &Device::Cpu), SIZES, false)?)
}

fn numbers() -> Result<Vec<Printed>> {
    let ids = Tokenizer::gpt2().encode("What is the capital of France?")?;
    let ids = Tensor::new(ids, &Device::Cpu)?;
    let one_key = layer()?.heads[0].w_k.get(0)?;
    Ok(vec![Printed::shape("n tokens", &ids, &[7]), Printed::shape("d_model/8", &one_key, &[64])])
}

pub(super) fn count() -> Result<String> {
    let numbers = numbers()?;
    let reproduced: usize = numbers.iter().map(Printed::reproduced).sum();
    Ok(format!("{reproduced} of {}", numbers.len() + EXAMPLES))
}

/// The document tokenizes with `cl100k_base`; GPT-2's own vocabulary splits this sentence at the same places.
#[test]
fn its_sentence_is_seven_tokens_and_its_heads_are_64_wide() -> Result {
    numbers()?.iter().for_each(Printed::check);
    let tokenizer = Tokenizer::gpt2();
    let tokens = tokenizer.tokens(&tokenizer.encode("What is the capital of France?")?);
    assert_eq!(tokens, ["What", " is", " the", " capital", " of", " France", "?"]);
    Ok(())
}

#[test]
fn heads_are_n_by_d_v_side_by_side_and_w_o_brings_them_back() -> Result {
    let m = normal(7, (7, 512))?; // (n, d_model)
    let mut layer = layer()?;
    let w_o = layer.w_o.clone().ok_or("the document has W_O")?;
    assert_eq!(w_o.dims(), [8 * 64, 512]);
    assert_eq!(layer.forward(&m)?.dims(), [7, 512]);
    layer.w_o = None;
    let concat = layer.forward(&m)?;
    assert_eq!(concat.dims(), [7, 8 * 64]);
    // Head 3 is the columns from 3·d_v on.
    let head = &layer.heads[3];
    let one =
        scaled_dot_product_attention(&m.matmul(&head.w_q)?, &m.matmul(&head.w_k)?, &m.matmul(&head.w_v)?)?;
    assert_close("head 3", &concat.narrow(1, 3 * 64, 64)?.contiguous()?, &one, 1e-6);
    Ok(())
}

/// The document calls the attention matrix symmetric if Q = K. The scores are, but the softmax divides each row by a
/// different sum, so the weights are not. The rows of the weights sum to 1, as it says; those of the output do not.
#[test]
fn scores_are_symmetric_and_weights_are_not() -> Result {
    let m = normal(2, (7, 16))?;
    let scores = scale(&scores(&m, &m)?, 16)?;
    let weights = softmax(&scores)?;
    assert_close("scores", &scores.t()?.contiguous()?, &scores, 1e-6);
    let asymmetry = (&weights - weights.t()?)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(asymmetry > 0.01, "{asymmetry}");
    let ones = Tensor::ones(7, DType::F32, &Device::Cpu)?;
    assert_close("row sums", &weights.sum(1)?, &ones, 1e-6);
    Ok(())
}
