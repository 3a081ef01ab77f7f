//! Models for tests: those of the reference data, and one with random weights.

#![allow(dead_code)] // each package uses a part of it

use crate::common::{Result, data, test_device};
use candle_core::DType;
use gpt2_loader::{Checkpoint, Source};
use gpt2_model::{Config, Gpt2LMHeadModel, init};

/// The model of a case.
pub(crate) fn load(case: &str, dtype: DType) -> Result<Gpt2LMHeadModel> {
    let checkpoint = Checkpoint::open(&Source::directory(data(case)).open()?)?;
    Ok(checkpoint.load_model(dtype, &test_device())?)
}

/// A model with random weights whose deviations are large enough that attention is not uniform.
pub(crate) fn random_model(n_head: usize, head_dim: usize, n_positions: usize) -> Result<Gpt2LMHeadModel> {
    let config = Config {
        vocab_size: 37,
        n_positions,
        n_embd: n_head * head_dim,
        n_layer: 2,
        n_head,
        initializer_range: 0.3,
        ..Config::gpt2()
    };
    Ok(Gpt2LMHeadModel::load(init::seeded(7, DType::F32, &test_device()), &config)?)
}
