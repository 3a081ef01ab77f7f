//! From six words to GPT-2's block, printing every matrix: `cargo run --release --example walkthrough`.
//!
//! The words, and the matrices of step 2, come from "Coding Attention Mechanisms".

#![allow(clippy::print_stdout)] // a text to read

use candle_core::{D, DType, Device, IndexOp, Module, Result, Shape, Tensor};
use candle_fused::Dropout;
use candle_nn::Init;
use gpt2_lessons::causal_attention::{causal_mask, masked_scores, masked_weights, renormalized_weights};
use gpt2_lessons::self_attention::{scale, scores};
use gpt2_lessons::simple::{self, softmax};
use gpt2_lessons::{MultiHeadAttention, MultiHeadAttentionWrapper, SelfAttention};
use gpt2_model::{Block, Config, Pass, init};

const CPU: Device = Device::Cpu;
const WORDS: [&str; 6] = ["Your", "journey", "starts", "with", "one", "step"];
const X: [[f32; 3]; 6] = [
    [0.43, 0.15, 0.89],
    [0.55, 0.87, 0.66],
    [0.57, 0.85, 0.64],
    [0.22, 0.58, 0.33],
    [0.77, 0.25, 0.10],
    [0.05, 0.80, 0.55],
];
const W_QUERY: [[f32; 2]; 3] = [[0.29611, 0.51656], [0.25167, 0.68856], [0.07397, 0.86652]];
const W_KEY: [[f32; 2]; 3] = [[0.13658, 0.10248], [0.18406, 0.72645], [0.31525, 0.68711]];
const W_VALUE: [[f32; 2]; 3] = [[0.07564, 0.19664], [0.31641, 0.40174], [0.11857, 0.82740]];

fn main() -> Result<()> {
    let x = Tensor::new(&X, &CPU)?;

    println!("1. NO WEIGHTS TO TRAIN: softmax(x·xᵀ)·x");
    show("x: six words of three numbers", &x)?;
    let alike = simple::scores(&x)?;
    show("scores = x·xᵀ: how alike are two words?", &alike)?;
    let weights = softmax(&alike)?;
    show("weights = softmax(scores): the answers as shares of 1", &weights)?;
    show("context = weights·x: every word, mixed with those like it", &simple::context(&weights, &x)?)?;

    println!("\n2. WEIGHTS TO TRAIN: softmax(q·kᵀ/√d)·v");
    let [w_query, w_key, w_value] = [W_QUERY, W_KEY, W_VALUE].map(|w| Tensor::new(&w, &CPU));
    let attn = SelfAttention::from_parameters(&w_query?, &w_key?, &w_value?)?;
    let [q, k, v] = attn.qkv(&x)?;
    show("q = x·W_query: what a word asks for", &q)?;
    show("k = x·W_key: what it is found by", &k)?;
    show("v = x·W_value: what it says", &v)?;
    let plain = scores(&q, &k)?;
    show("scores = q·kᵀ: no longer symmetric", &plain)?;
    let scaled = scale(&plain, 2)?;
    show("weights = softmax(scores/√2)", &softmax(&scaled)?)?;
    show("context = weights·v", &attn.forward(&x)?)?;

    println!("\n3. NO FUTURE: a word sees itself and those before it");
    let mask = causal_mask(6, &CPU)?;
    show("scores, the future at -inf", &masked_scores(&plain, &mask)?)?;
    let weights = masked_weights(&scaled, &mask)?;
    show("weights = softmax(scores/√2): exp(-inf) is 0", &weights)?;
    println!();
    differs("softmax first, then mask and renormalize", &renormalized_weights(&scaled, &mask)?, &weights)?;
    let dropped = Dropout::new(0.5, 3, 0)?.apply(&weights)?;
    show("while training, dropout at 0.5: a weight is dropped, or doubled", &dropped)?;
    show("context = weights·v, without dropout", &simple::context(&weights, &v)?)?;

    println!("\n4. SEVERAL HEADS: each asks its own question");
    let texts = Tensor::stack(&[&x, &x], 0)?; // (2, 6, 3)
    let stack = MultiHeadAttentionWrapper::load(init::seeded(4, DType::F32, &CPU), 3, 2, 6, 2, false)?;
    let split = MultiHeadAttention::from_wrapper(&stack)?;
    let context = stack.forward(&texts)?;
    shape("two texts", &texts);
    shape("two causal heads of width 2, run in turn, side by side", &context);
    show("the first text", &context.i(0)?)?;
    println!();
    shape("the same in one layer: q, split into heads", &split.qkv(&texts)?[0]);
    shape("their weights, all heads at once", &split.weights(&texts)?);
    differs("the output of the one layer", &split.forward(&texts)?, &context)?;
    gpt2()?;
    the_scale()
}

/// The [4, 12, 6] example with 3 heads, stage by stage, and its properties.
fn gpt2() -> Result<()> {
    println!("\n5. GPT-2: W_query, W_key and W_value side by side in one matrix, c_attn");
    let config = Config { n_embd: 6, n_head: 3, n_positions: 12, initializer_range: 0.5, ..Config::gpt2() };
    let block = Block::load(init::seeded(5, DType::F32, &CPU).pp("h.0"), &config, 0)?;
    let forward = |x: &Tensor| block.attn.forward_with(x, Pass::default());
    let x = normal(6, (4, 12, 6))?;
    let qkv = block.attn.c_attn.forward(&x)?;
    let heads = |i: usize| qkv.narrow(2, 6 * i, 6)?.reshape((4, 12, 3, 2))?.transpose(1, 2)?.contiguous();
    let scaled = scale(&scores(&heads(0)?, &heads(1)?)?, 2)?;
    let weights = masked_weights(&scaled, &causal_mask(12, &CPU)?)?;
    let context = simple::context(&weights, &heads(2)?)?;
    let merged = context.transpose(1, 2)?.flatten_from(2)?;
    let output = block.attn.c_proj.forward(&merged)?;
    shape("x: 4 texts of 12 tokens of 6 numbers", &x);
    shape("c_attn(x): q, k and v side by side", &qkv);
    shape("q, a third of it, as 3 heads of width 2; k and v alike", &heads(0)?);
    shape("weights = softmax(mask(q·kᵀ/√2))", &weights);
    shape("context = weights·v", &context);
    shape("the heads merged", &merged);
    shape("output = c_proj(merged)", &output);
    let expected = forward(&x)?;
    differs("CausalSelfAttention, which makes no tensor of weights", &expected, &output)?;
    differs(
        "taken apart into three matrices",
        &MultiHeadAttention::from_gpt2(&block.attn)?.forward(&x)?,
        &expected,
    )?;
    let alone = (0..4).map(|i| forward(&x.narrow(0, i, 1)?)).collect::<Result<Vec<_>>>()?;
    differs("each text alone, against the four at once", &Tensor::cat(&alone, 0)?, &expected)?;

    println!(
        "\n  Another last token: how far the output of each of the 12 positions of the first text moves"
    );
    let changed = Tensor::cat(&[x.narrow(1, 0, 11)?, normal(7, (4, 1, 6))?], 1)?;
    let moved = (forward(&changed)? - expected)?.abs()?.max(D::Minus1)?.narrow(0, 0, 1)?; // (1, 12)
    rows(&[""], &moved)?;

    let y = block.forward_with(&x, Pass::default())?.hidden_state;
    println!("\n  Around it, the block: x + attn(ln_1(x)), then x + mlp(ln_2(x))");
    shape("block(x)", &y);
    Ok(())
}

/// Var(q·k) over 16384 pairs of normal vectors, and the largest share that a softmax gives to one of 8 such scores.
fn the_scale() -> Result<()> {
    println!(
        "\n6. WHY √d: scores grow with the width of the keys, until a softmax of them picks one and learns no more"
    );
    println!("\n       d    Var(q·k)  Var(q·k/√d)    best of 8 shares    scaled");
    for d in [4, 16, 64, 256, 1024] {
        let plain = (normal(1, (16384, d))? * normal(2, (16384, d))?)?.sum(D::Minus1)?;
        let scaled = scale(&plain, d)?;
        let variance = |s: &Tensor| s.sqr()?.mean_all()?.to_scalar::<f32>();
        let best = |s: &Tensor| softmax(&s.reshape(((), 8))?)?.max(D::Minus1)?.mean_all()?.to_scalar::<f32>();
        let a = variance(&plain)?;
        let b = variance(&scaled)?;
        let c = best(&plain)?;
        let e = best(&scaled)?;
        println!("  {d:>6} {a:>11.2} {b:>12.3} {c:>19.3} {e:>9.3}");
    }
    Ok(())
}

/// Normally distributed numbers, the same in every run.
fn normal(seed: u64, shape: impl Into<Shape>) -> Result<Tensor> {
    let hint = Init::Randn { mean: 0., stdev: 1. };
    init::seeded(seed, DType::F32, &CPU).get_with_hints(shape, "x", hint)
}

fn differs(what: &str, a: &Tensor, b: &Tensor) -> Result<()> {
    let most = (a - b)?.abs()?.max_all()?.to_scalar::<f32>()?;
    println!(
        "  {what:<64} {}",
        if most > 0. { format!("differs by {most:.0e}") } else { "is the same".into() }
    );
    Ok(())
}

fn shape(what: &str, x: &Tensor) {
    println!("  {what:<64} {:?}", x.dims());
}

fn show(what: &str, x: &Tensor) -> Result<()> {
    println!();
    shape(what, x);
    rows(&WORDS, x)
}

fn rows(names: &[&str], x: &Tensor) -> Result<()> {
    for (name, row) in names.iter().zip(x.to_vec2::<f32>()?) {
        print!("    {name:<8}");
        for v in row {
            print!(" {v:>7.4}");
        }
        println!();
    }
    Ok(())
}
