//! What is trainable gets a gradient, and it is PyTorch's.

use crate::common::{Result, assert_close, data, reference};
use candle_core::{DType, Device, Var};
use candle_nn::{VarBuilder, VarMap};
use gpt2_loader::{Checkpoint, Source};
use gpt2_model::training::{cross_entropy, decay_groups};
use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init};

/// The model of a case with every parameter a variable.
fn trainable(case: &str) -> Result<(VarMap, Gpt2LMHeadModel)> {
    let checkpoint = Checkpoint::open(&Source::directory(data(case)).open()?)?;
    let variables = VarMap::new();
    for (name, tensor) in checkpoint.load_model(DType::F32, &Device::Cpu)?.named_parameters() {
        let mut held = variables.data().lock().map_err(|e| e.to_string())?;
        held.insert(name, Var::from_tensor(&tensor)?);
    }
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let model = Gpt2LMHeadModel::load(vb, checkpoint.config())?;
    Ok((variables, model))
}

#[test]
fn every_parameter_gets_pytorchs_gradient() -> Result {
    let (variables, model) = trainable("gradients")?;
    let expected = reference("gradients")?;
    let ids = &expected["input_ids"]; // (2, 7)
    let logits = model.forward(&ids.narrow(1, 0, 6)?, ForwardArgs::default())?.logits;
    let loss = cross_entropy(&logits, &ids.narrow(1, 1, 6)?.contiguous()?)?;
    assert_close("loss", &loss, &expected["loss"], 1e-5);

    let gradients = loss.backward()?;
    let held = variables.data().lock().map_err(|e| e.to_string())?;
    assert_eq!(held.len(), expected.keys().filter(|k| k.starts_with("grad.")).count());
    for (name, var) in held.iter() {
        let gradient = gradients.get(var).ok_or_else(|| format!("{name} has no gradient"))?;
        assert_close(name, gradient, &expected[&format!("grad.{name}")], 1e-4);
    }
    Ok(())
}

#[test]
fn decay_takes_matrices_and_leaves_biases_and_norms() -> Result {
    let config = Config { n_layer: 1, n_head: 2, n_embd: 4, n_positions: 5, vocab_size: 6, ..Config::gpt2() };
    let variables = VarMap::new();
    let vb = init::seeded_variables(0, &variables, DType::F32, &Device::Cpu);
    Gpt2LMHeadModel::load(vb, &config)?;
    let (decayed, plain) = decay_groups(&variables)?;
    // wte, wpe and four Conv1D weights; four Conv1D biases and three layer norms of two.
    assert_eq!((decayed.len(), plain.len()), (6, 10));
    assert!(decayed.iter().all(|v| v.rank() == 2) && plain.iter().all(|v| v.rank() == 1));
    Ok(())
}

#[test]
fn initial_weights_have_gpt2s_deviations_and_follow_the_seed() -> Result {
    let config =
        Config { n_layer: 8, n_head: 4, n_embd: 128, n_positions: 64, vocab_size: 300, ..Config::gpt2() };
    let model = |seed| Gpt2LMHeadModel::load(init::seeded(seed, DType::F32, &Device::Cpu), &config);
    let deviation = |x: &candle_core::Tensor| -> Result<f64> {
        let x = x.to_dtype(DType::F64)?.flatten_all()?;
        Ok((x.sqr()?.mean_all()?.to_scalar::<f64>()? - x.mean_all()?.to_scalar::<f64>()?.powi(2)).sqrt())
    };
    let a = model(1)?;
    let block = &a.transformer.h[3];
    for (name, tensor, expected) in [
        ("wte", &a.transformer.wte, 0.02),
        ("c_attn", &block.attn.c_attn.weight, 0.02),
        ("c_proj", &block.attn.c_proj.weight, 0.02 / 4.0), // sqrt(2 * 8 layers) = 4
        ("mlp.c_proj", &block.mlp.c_proj.weight, 0.02 / 4.0),
    ] {
        let found = deviation(tensor)?;
        // Four standard errors of a deviation from 16384 draws or more.
        assert!((found / expected - 1.0).abs() < 4.0 / (2.0 * 16384f64).sqrt(), "{name}: {found}");
    }
    let values = |m: &Gpt2LMHeadModel| m.transformer.h[3].attn.c_attn.weight.flatten_all()?.to_vec1::<f32>();
    assert_eq!(values(&a)?, values(&model(1)?)?);
    assert_ne!(values(&a)?, values(&model(2)?)?);
    assert_ne!(values(&a)?, a.transformer.h[4].attn.c_attn.weight.flatten_all()?.to_vec1::<f32>()?);
    Ok(())
}
