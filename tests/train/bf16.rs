//! Training with products in bf16, which are rounded to 8 bits of mantissa; all sums are in f32.

use crate::common::Result;
use candle_core::{DType, Device, Tensor};
use candle_fused::Isa;
use candle_nn::VarMap;
use gpt2_model::training::TrainingBatch;
use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init};
use gpt2_train::{Dataset, TrainDType, TrainError, TrainOptions, Trainer};
use std::ops::ControlFlow;

fn config() -> Config {
    Config {
        vocab_size: 40,
        n_positions: 16,
        n_embd: 32,
        n_layer: 2,
        n_head: 2,
        attn_pdrop: 0.0,
        resid_pdrop: 0.0,
        embd_pdrop: 0.0,
        ..Config::gpt2()
    }
}

fn variables(seed: u64) -> Result<Gpt2LMHeadModel> {
    let vb = init::seeded_variables(seed, &VarMap::new(), DType::F32, &Device::Cpu);
    Ok(Gpt2LMHeadModel::load(vb, &config())?)
}

fn trainer(train_dtype: TrainDType) -> gpt2_train::Result<Trainer> {
    let data = Dataset::split((0..2000).map(|i| i * 3 % 40).collect(), 0.1)?;
    let mut options = TrainOptions::new(30);
    options.batch = 4;
    options.lr = 0.01;
    options.warmup = 2;
    options.train_dtype = train_dtype;
    Trainer::new(&config(), data, options, &Device::Cpu)
}

/// The losses of a whole run on some threads, and the bits of the weights after it.
fn run(train_dtype: TrainDType, threads: usize) -> Result<(Vec<f32>, Vec<Vec<u32>>)> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let trainer = pool.install(|| {
        let mut trainer = trainer(train_dtype)?;
        trainer.run(|_, _| Ok(ControlFlow::Continue(())))?;
        Ok::<_, TrainError>(trainer)
    })?;
    let mut weights = vec![];
    for (_, var) in trainer.model().named_variables()? {
        weights.push(var.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect());
    }
    Ok((trainer.history().training().to_vec(), weights))
}

/// Whether this processor has such products; if not, they are refused by name.
#[allow(clippy::print_stderr)] // a skipped test says so
fn refused() -> bool {
    if Isa::current().has_bf16_products() {
        return false;
    }
    let message = trainer(TrainDType::Bf16).err().map(|error| error.to_string()).unwrap_or_default();
    eprintln!("SKIPPED: {} has no products of bf16", Isa::current().as_str());
    assert!(message.contains("AMX") && message.contains(Isa::current().as_str()), "{message}");
    true
}

#[test]
fn gradients_differ_from_those_in_f32_by_the_rounding_of_factors() -> Result {
    if refused() {
        return Ok(());
    }
    let ids = |salt: u32| {
        Tensor::from_iter((0..32).map(|i| (i * 7 + i * i + salt) % 40), &Device::Cpu)?.reshape((2, 16))
    };
    let batch = TrainingBatch::new(ids(1)?, ids(2)?);
    let plain = variables(3)?;
    let rounded = variables(3)?.with_bf16_products()?;
    let gradients = |model: &Gpt2LMHeadModel| -> Result<(f32, Vec<(String, Tensor)>)> {
        let loss = model.loss(&batch, ForwardArgs::default())?;
        let store = loss.backward()?;
        let of = |(name, var): (String, candle_core::Var)| {
            let gradient = store.get(&var).ok_or_else(|| format!("{name} has no gradient"))?;
            Ok((name, gradient.clone()))
        };
        Ok((loss.to_scalar()?, model.named_variables()?.into_iter().map(of).collect::<Result<_>>()?))
    };
    let (loss, expected) = gradients(&plain)?;
    let (rounded_loss, got) = gradients(&rounded)?;
    // A bf16 is off by up to 1/512 of itself; errors of many factors mostly cancel.
    assert!((loss - rounded_loss).abs() < 2e-3 * loss && loss.to_bits() != rounded_loss.to_bits());
    for ((name, got), (_, expected)) in got.iter().zip(&expected) {
        let norm = |x: &Tensor| x.sqr()?.sum_all()?.to_scalar::<f32>();
        let error = (norm(&(got - expected)?)? / norm(expected)?).sqrt();
        assert!(error < 0.02, "{name}: {error}");
    }
    // The blocks' backward passes round the same factors when they run again.
    let (again, store) = rounded.recomputed_gradients_of(&batch, None)?;
    assert_eq!(again.to_bits(), rounded_loss.to_bits());
    for ((name, var), (_, expected)) in rounded.named_variables()?.into_iter().zip(&got) {
        let gradient = store.get(&var).ok_or_else(|| format!("{name} has no gradient"))?;
        let difference = (gradient - expected)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
        assert!(difference < 1e-6, "{name}: {difference}"); // sums in another order
    }
    Ok(())
}

#[test]
fn a_run_learns_as_in_f32_and_has_the_same_bits_on_any_number_of_threads() -> Result {
    if refused() {
        return Ok(());
    }
    let (plain, weights) = run(TrainDType::F32, 2)?;
    let (losses, on_one) = run(TrainDType::Bf16, 1)?;
    let (_, on_three) = run(TrainDType::Bf16, 3)?;
    assert_eq!(on_one, on_three);
    assert_ne!(on_one, weights);
    let last = |losses: &[f32]| losses[losses.len() - 5..].iter().sum::<f32>() / 5.0;
    assert!(last(&plain) < 0.8 * plain[0], "{plain:?}");
    assert!((last(&losses) / last(&plain) - 1.0).abs() < 0.05, "{losses:?} {plain:?}");
    Ok(())
}

#[test]
fn a_state_resumes_with_its_own_dtype_alone() -> Result {
    if refused() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    trainer(TrainDType::F32)?.save_state(&state)?;
    let message =
        trainer(TrainDType::Bf16)?.resume(&state).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(message.contains("train_dtype"), "{message}");
    Ok(())
}

#[test]
fn frozen_weights_are_refused() -> Result {
    if refused() {
        return Ok(());
    }
    let model = Gpt2LMHeadModel::load(init::seeded(3, DType::F32, &Device::Cpu), &config())?;
    let message = model.with_bf16_products().err().map(|error| error.to_string()).unwrap_or_default();
    assert!(message.contains("plain weights"), "{message}");
    Ok(())
}
