//! The trainer on a tiny model: which dropout masks a step draws, and what a validation measures.

use super::*;
use crate::data::batch;
use gpt2_model::ForwardArgs;
use gpt2_model::training::Training;
use std::borrow::Cow;

const WINDOW: usize = 4;

fn options(batch: u16) -> TrainOptions {
    TrainOptions { batch, ..TrainOptions::new(1000) }
}

fn trainer(options: TrainOptions, dropout: f64) -> Result<Trainer> {
    let config = Config {
        vocab_size: 7,
        n_positions: WINDOW,
        n_embd: 8,
        n_layer: 1,
        n_head: 2,
        // Large, so that the windows' losses differ.
        initializer_range: 0.5,
        attn_pdrop: dropout,
        resid_pdrop: dropout,
        embd_pdrop: dropout,
        ..Config::gpt2()
    };
    Trainer::new(&config, data(), options, &Device::Cpu)
}

/// Five windows for validation, and a few more tokens that do not fill one.
fn data() -> Dataset {
    let val = (0..23).map(|i| (i * i * 5 + i) % 7).collect();
    Dataset { train: vec![3; 20], val, documents: None }
}

impl Trainer {
    fn loss_of(&self, ids: &[u32], training: Option<Training>) -> Result<f64> {
        let batch = batch(&[Cow::Borrowed(&ids[..=WINDOW])], &self.device)?;
        let args = ForwardArgs { training, ..ForwardArgs::default() };
        Ok(self.model.loss(&batch, args)?.to_scalar::<f32>()?.into())
    }
}

#[track_caller]
fn assert_close(got: f64, expected: f64) {
    assert!((got - expected).abs() < 1e-5, "{got}, not {expected}");
}

#[test]
fn every_validation_window_weighs_the_same_in_batches_of_any_size() -> Result<()> {
    let data = data();
    for size in [1, 2, 3, 4, 5, 8] {
        let trainer = trainer(options(size), 0.0)?;
        let window = |i: usize| trainer.loss_of(&data.val[i * WINDOW..=(i + 1) * WINDOW], None);
        let windows = (0..5).map(window).collect::<Result<Vec<_>>>()?;
        let mean = windows.iter().sum::<f64>() / 5.0;
        assert!((windows[4] - mean).abs() > 0.1, "the last window weighs nothing: {windows:?}");
        assert_close(trainer.validation_loss()?, mean);
    }
    Ok(())
}

#[test]
fn nothing_is_dropped_in_validation() -> Result<()> {
    let data = data();
    let (with, without) = (trainer(options(2), 0.5)?, trainer(options(2), 0.0)?);
    let training = Some(Training { seed: 0, step: 0 });
    let (dropped, plain) = (with.loss_of(&data.val, training)?, without.loss_of(&data.val, training)?);
    assert!((dropped - plain).abs() > 1e-3, "dropout changes nothing: {dropped} {plain}");
    assert_close(with.validation_loss()?, without.validation_loss()?);
    Ok(())
}

/// All windows of the training part are the same, so that batches differ only in their dropout.
#[test]
fn every_batch_of_a_step_drops_other_numbers() -> Result<()> {
    let data = data();
    for recompute in [false, true] {
        let options = TrainOptions { accumulate: 2, seed: 5, recompute, ..options(1) };
        let mut trainer = trainer(options, 0.5)?;
        for step in 0..2 {
            let loss = |number| trainer.loss_of(&data.train, Some(Training { seed: 5, step: number }));
            let (first, second) = (loss(2 * step)?, loss(2 * step + 1)?);
            assert!((first - second).abs() > 1e-3, "{first} {second}");
            let mean = trainer.step()?.loss;
            assert_close(mean.into(), f64::midpoint(first, second));
        }
    }
    Ok(())
}
