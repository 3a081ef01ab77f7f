//! Five texts on attention, which are not part of this repository: every number that they print, their other claims,
//! and the variants that they build.

mod capital_of_france;
mod coding_attention;
mod coding_attention_numbers;
#[path = "../common/mod.rs"]
mod common;
mod conversions;
mod errors;
mod gpt_style_attention;
mod gradients;
mod masking;
mod mechanics;
mod theory_to_code;

use crate::common::{Result, data};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use std::collections::HashMap;

/// Four printed decimals allow half of the last one either way. The rest is for f32: another order of
/// summing changes values below 3 by some 1e-7.
const TOLERANCE: f64 = 5e-5 + 1e-6;

/// The numbers that a cell prints, and those of our types from the same input.
struct Printed {
    cell: &'static str,
    numbers: Vec<f64>,
    got: Vec<f64>,
}

impl Printed {
    fn new<const N: usize>(cell: &'static str, got: &Tensor, rows: &[[f64; N]]) -> Result<Self> {
        let got = got.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
        Ok(Self { cell, numbers: rows.as_flattened().to_vec(), got })
    }

    fn shape(cell: &'static str, got: &Tensor, shape: &[u32]) -> Self {
        let got = got.dims().iter().map(|&n| n as f64).collect();
        Self { cell, numbers: shape.iter().copied().map(f64::from).collect(), got }
    }

    /// The number of values that agree with ours.
    fn reproduced(&self) -> usize {
        // -inf equals itself, but has no distance from other numbers.
        let equal = |(a, b): (&f64, &f64)| a.total_cmp(b).is_eq() || (a - b).abs() <= TOLERANCE;
        self.numbers.iter().zip(&self.got).filter(|&pair| equal(pair)).count()
    }

    #[track_caller]
    fn check(&self) {
        assert_eq!(self.numbers.len(), self.got.len(), "{}: how many numbers", self.cell);
        assert_eq!(
            self.reproduced(),
            self.numbers.len(),
            "{}: printed {:?}, got {:?}",
            self.cell,
            self.numbers,
            self.got
        );
    }
}

/// The parameters that `scripts/make_seed_constants.py` stored.
fn stored() -> Result<HashMap<String, Tensor>> {
    Ok(candle_core::safetensors::load(data("seeds").join("parameters.safetensors"), &Device::Cpu)?)
}

/// The stored parameters as a checkpoint.
fn checkpoint() -> Result<VarBuilder<'static>> {
    Ok(VarBuilder::from_tensors(stored()?, DType::F32, &Device::Cpu))
}

/// "Your journey starts with one step": (6, 3).
fn words() -> Result<Tensor> {
    Ok(Tensor::new(&coding_attention_numbers::WORDS, &Device::Cpu)?)
}

/// The six words twice: (2, 6, 3).
fn batch() -> Result<Tensor> {
    Ok(Tensor::stack(&[words()?, words()?], 0)?)
}

/// Normally distributed numbers from a seed.
fn normal(seed: u64, shape: impl Into<candle_core::Shape>) -> Result<Tensor> {
    let init = candle_nn::Init::Randn { mean: 0., stdev: 1. };
    Ok(gpt2_model::init::seeded(seed, DType::F32, &Device::Cpu).get_with_hints(shape.into(), "x", init)?)
}

/// The docs of `gpt2_lessons` say how many numbers of each text the types reproduce; this checks them.
#[test]
fn the_docs_count_as_the_tests_do() -> Result {
    let docs = include_str!("../../crates/lessons/src/lib.rs");
    let mut rows = vec![("From theory to code", "GPT-2's block", theory_to_code::count()?)];
    rows.extend(
        coding_attention::counts()?.map(|(what, count)| ("Coding Attention Mechanisms", what, count)),
    );
    rows.push(("The capital of France", "matrices for each head", capital_of_france::count()?));
    for (text, mechanism, count) in rows {
        let start = format!("//! | {text} | {mechanism} |");
        let row = docs.lines().find(|line| line.starts_with(&start)).ok_or_else(|| format!("no {start}"))?;
        assert!(row.contains(&format!("| {count}")), "{row}\nshould say {count}");
    }
    Ok(())
}
