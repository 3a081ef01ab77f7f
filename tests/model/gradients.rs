//! Every trainable parameter gets a gradient, which equals PyTorch's.

use crate::common::{Result, assert_close, data, reference, test_device};
use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use gpt2_loader::{Checkpoint, Source};
use gpt2_model::Implementation;
use gpt2_model::mask::position_ids;
use gpt2_model::training::{
    GradientCheck, Training, TrainingBatch, add_gradients, check_gradients, cross_entropy, variables_of,
};
use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init};
use gpt2_train::{AdamW, AdamWParams};
use std::collections::HashMap;

/// The model of a case with every parameter a variable.
pub(crate) fn trainable(
    case: &str,
    attn_implementation: Implementation,
) -> Result<(VarMap, Gpt2LMHeadModel)> {
    let checkpoint = Checkpoint::open(&Source::directory(data(case)).open()?)?;
    let variables = VarMap::new();
    for (name, values) in checkpoint.load_model(DType::F32, &test_device())?.named_parameters() {
        let mut held = variables.data().lock().map_err(|e| e.to_string())?;
        held.insert(name, Var::from_tensor(&values.tensor()?)?);
    }
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &test_device());
    let config = Config { attn_implementation, ..checkpoint.config().clone() };
    let model = Gpt2LMHeadModel::load(vb, &config)?;
    Ok((variables, model))
}

/// Compares each variable's gradient with the expected `grad.NAME`.
pub(crate) fn assert_gradients(
    what: &str,
    variables: &VarMap,
    gradients: &GradStore,
    expected: &HashMap<String, Tensor>,
) -> Result {
    let held = variables.data().lock().map_err(|e| e.to_string())?;
    assert_eq!(held.len(), expected.keys().filter(|k| k.starts_with("grad.")).count());
    for (name, var) in held.iter() {
        let gradient = gradients.get(var).ok_or_else(|| format!("{what}: {name} has no gradient"))?;
        assert_close(&format!("{what}, {name}"), gradient, &expected[&format!("grad.{name}")], 1e-4);
    }
    Ok(())
}

#[test]
fn every_parameter_gets_pytorchs_gradient() -> Result {
    let expected = reference("gradients")?;
    let ids = &expected["input_ids"]; // (2, 7)
    let inputs = ids.narrow(1, 0, 6)?;
    let targets = ids.narrow(1, 1, 6)?.contiguous()?;
    for implementation in [Implementation::Eager, Implementation::Fused] {
        let (variables, model) = trainable("gradients", implementation)?;
        let logits = model.forward(&inputs, ForwardArgs::default())?.logits;
        let batch = TrainingBatch::new(inputs.clone(), targets.clone());
        let ways = [
            ("loss of the logits", cross_entropy(&logits, &targets)?),
            ("loss without logits", model.loss(&batch, ForwardArgs::default())?),
        ];
        for (way, loss) in ways {
            let what = format!("{implementation:?}, {way}");
            assert_close(&what, &loss, &expected["loss"], 1e-5);
            assert_gradients(&what, &variables, &loss.backward()?, &expected)?;
        }
    }
    Ok(())
}

#[test]
fn every_parameter_gets_pytorchs_gradient_with_padding_on_either_side() -> Result {
    let expected = reference("gradients")?;
    let padded =
        expected.iter().filter_map(|(name, x)| Some((name.strip_prefix("padded.")?.into(), x.clone())));
    let padded: HashMap<String, Tensor> = padded.collect();
    let (ids, mask) = (&expected["padded.input_ids"], &expected["padded.attention_mask"]); // (3, 9)
    // The rows of the logits whose token and next token are both visible, and those next tokens.
    let flat_ids = ids.flatten_all()?.to_vec1::<i64>()?;
    let seen = mask.flatten_all()?.to_vec1::<i64>()?;
    let both = |i: &u32| i % 9 != 8 && (*i..=i + 1).all(|i| seen[i as usize] == 1);
    let rows: Vec<u32> = (0..3 * 9 - 1).filter(both).collect();
    assert_eq!(rows.len(), 8 + 4 + 5);
    let targets = Tensor::from_iter(rows.iter().map(|&i| flat_ids[i as usize + 1]), &test_device())?;
    let rows = Tensor::new(rows, &test_device())?;
    for implementation in [Implementation::Eager, Implementation::Fused] {
        let (variables, model) = trainable("gradients", implementation)?;
        let positions = position_ids(mask)?;
        let args =
            ForwardArgs { attention_mask: Some(mask), position_ids: Some(&positions), ..Default::default() };
        let logits = model.forward(ids, args)?.logits.flatten_to(1)?.index_select(&rows, 0)?;
        let loss = candle_fused::cross_entropy(&logits, &targets)?;
        let what = format!("{implementation:?}, padded");
        assert_close(&what, &loss, &expected["padded.loss"], 1e-5);
        assert_gradients(&what, &variables, &loss.backward()?, &padded)?;
    }
    Ok(())
}

#[test]
fn decay_takes_matrices_and_leaves_biases_and_norms() -> Result {
    let config = Config { n_layer: 1, n_head: 2, n_embd: 4, n_positions: 5, vocab_size: 6, ..Config::gpt2() };
    let variables = VarMap::new();
    let vb = init::seeded_variables(0, &variables, DType::F32, &test_device());
    Gpt2LMHeadModel::load(vb, &config)?;
    let values = |variables: &VarMap| -> Result<Vec<(usize, String, Vec<f32>)>> {
        let held = variables.data().lock().map_err(|e| e.to_string())?;
        let mut list = vec![];
        for (name, var) in held.iter() {
            list.push((var.rank(), name.clone(), var.flatten_all()?.to_vec1()?));
        }
        list.sort_by(|a, b| a.1.cmp(&b.1));
        Ok(list)
    };
    let before = values(&variables)?;
    // Gradients of 0, so that only decay changes a parameter.
    let mut loss = Tensor::zeros((), DType::F32, &test_device())?;
    for var in variables.all_vars() {
        loss = (loss + (var.as_tensor() - var.as_tensor())?.sum_all()?)?;
    }
    let params = AdamWParams { weight_decay: 0.1, ..AdamWParams::default() };
    AdamW::new(variables_of(&variables)?, params)?.step(&loss.backward()?, 0.5, 1.0)?;
    let mut decayed = 0;
    for ((rank, name, before), (_, _, after)) in before.iter().zip(&values(&variables)?) {
        let factor = if *rank == 2 { 1.0 - 0.5 * 0.1 } else { 1.0 };
        decayed += usize::from(*rank == 2);
        for (a, b) in after.iter().zip(before) {
            assert!((a - b * factor).abs() <= 1e-6 * b.abs(), "{name}: {b} became {a}");
        }
    }
    assert_eq!((decayed, before.len()), (6, 16)); // wte, wpe and four Conv1D weights
    Ok(())
}

#[test]
fn four_batches_summed_are_one_of_four_rows() -> Result {
    let (variables, model) = trainable("gradients", Implementation::Fused)?;
    let ids = Tensor::from_iter((0..4 * 9u32).map(|i| i * 7 % 29), &test_device())?.reshape((4, 9))?;
    let gradients = |rows: &Tensor| -> Result<GradStore> {
        let inputs = rows.narrow(1, 0, 8)?;
        let targets = rows.narrow(1, 1, 8)?.contiguous()?;
        let logits = model.forward(&inputs, ForwardArgs::default())?.logits;
        Ok(cross_entropy(&logits, &targets)?.backward()?)
    };
    let whole = gradients(&ids)?;
    let mut sum = gradients(&ids.narrow(0, 0, 1)?)?;
    for row in 1..4 {
        add_gradients(&mut sum, gradients(&ids.narrow(0, row, 1)?)?, &model.named_variables()?)?;
    }
    for var in variables.all_vars() {
        let sum = sum.get(&var).ok_or("a gradient")?;
        let whole = whole.get(&var).ok_or("a gradient")?;
        assert_close("a gradient", &(sum / 4.0)?, whole, 1e-5);
    }
    Ok(())
}

#[test]
fn blocks_that_are_run_again_have_the_same_gradients() -> Result {
    let config =
        Config { n_layer: 3, n_head: 3, n_embd: 33, n_positions: 20, vocab_size: 50, ..Config::gpt2() };
    let variables = VarMap::new();
    let vb = init::seeded_variables(0, &variables, DType::F32, &test_device());
    let model = Gpt2LMHeadModel::load(vb, &config)?;
    let ids = Tensor::from_iter((0..2 * 20u32).map(|i| i * 7 % 50), &test_device())?.reshape((2, 20))?;
    let inputs = ids.narrow(1, 0, 19)?;
    let targets = ids.narrow(1, 1, 19)?.contiguous()?;
    for training in [None, Some(Training { seed: 1, step: 2 })] {
        let logits = model.forward(&inputs, ForwardArgs { training, ..Default::default() })?.logits;
        let loss = cross_entropy(&logits, &targets)?;
        let expected = loss.backward()?;
        let (again, gradients) = model.recomputed_gradients(&inputs, &targets, training)?;
        assert!((again - loss.to_scalar::<f32>()?).abs() < 1e-6, "{again}");
        let held = variables.data().lock().map_err(|e| e.to_string())?;
        for (name, var) in held.iter() {
            let (got, expected) =
                (gradients.get(var).ok_or("a gradient")?, expected.get(var).ok_or("a gradient")?);
            assert_close(name, got, expected, 1e-5);
        }
    }
    Ok(())
}

#[test]
fn the_whole_model_learns_in_training() -> Result {
    for implementation in [Implementation::Eager, Implementation::Fused] {
        let config = Config {
            n_layer: 2,
            n_head: 3,
            n_embd: 33,
            n_positions: 20,
            vocab_size: 50,
            attn_implementation: implementation,
            ..Config::gpt2()
        };
        let variables = VarMap::new();
        let vb = init::seeded_variables(0, &variables, DType::F32, &test_device());
        let model = Gpt2LMHeadModel::load(vb, &config)?;
        let ids = Tensor::from_iter((0..2 * 20u32).map(|i| i * 7 % 50), &test_device())?.reshape((2, 20))?;
        let training = Some(Training { seed: 1, step: 2 });
        let output = model.forward(&ids, ForwardArgs { training, ..Default::default() })?;
        let check = check_gradients(&variables_of(&variables)?, &cross_entropy(&output.logits, &ids)?)?;
        assert!(check.is_clean(), "{implementation:?}: {check:?}");
    }
    Ok(())
}

#[test]
fn a_variable_that_learns_nothing_is_named() -> Result {
    let variables = VarMap::new();
    let normal = candle_nn::Init::Randn { mean: 0., stdev: 1. };
    for name in ["used", "unused", "zero", "wild"] {
        variables.get((2, 2), name, normal, DType::F32, &test_device())?;
    }
    let held = variables.data().lock().map_err(|e| e.to_string())?;
    let wild = (held["wild"].as_tensor() * f64::INFINITY)?;
    let loss =
        (held["used"].sqr()? + (held["zero"].as_tensor() - held["zero"].as_tensor())? + wild)?.sum_all()?;
    drop(held);
    let check = check_gradients(&variables_of(&variables)?, &loss)?;
    assert_eq!(check.missing, ["unused"]);
    assert_eq!(check.zero, ["zero"]);
    assert_eq!(check.not_finite, ["wild"]);
    let GradientCheck { missing, zero, not_finite } = check;
    for one in [
        GradientCheck { missing, ..GradientCheck::default() },
        GradientCheck { zero, ..GradientCheck::default() },
        GradientCheck { not_finite, ..GradientCheck::default() },
    ] {
        assert!(!one.is_clean(), "{one:?}");
    }
    Ok(())
}

#[test]
fn initial_weights_have_gpt2s_deviations_and_follow_the_seed() -> Result {
    let config =
        Config { n_layer: 8, n_head: 4, n_embd: 128, n_positions: 64, vocab_size: 300, ..Config::gpt2() };
    let model = |seed| Gpt2LMHeadModel::load(init::seeded(seed, DType::F32, &test_device()), &config);
    let deviation = |x: &candle_core::Tensor| -> Result<f64> {
        let x = x.to_dtype(DType::F64)?.flatten_all()?;
        Ok((x.sqr()?.mean_all()?.to_scalar::<f64>()? - x.mean_all()?.to_scalar::<f64>()?.powi(2)).sqrt())
    };
    let a = model(1)?;
    let block = &a.transformer.h[3];
    for (name, tensor, expected) in [
        ("wte", &a.transformer.wte.weight()?, 0.02),
        ("c_attn", &block.attn.c_attn.weight()?, 0.02),
        ("c_proj", &block.attn.c_proj.weight()?, 0.02 / 4.0), // sqrt(2 * 8 layers) = 4
        ("mlp.c_proj", &block.mlp.c_proj.weight()?, 0.02 / 4.0),
    ] {
        let found = deviation(tensor)?;
        // Four standard errors of a deviation from 16384 draws or more.
        assert!((found / expected - 1.0).abs() < 4.0 / (2.0 * 16384f64).sqrt(), "{name}: {found}");
    }
    let values =
        |m: &Gpt2LMHeadModel| m.transformer.h[3].attn.c_attn.weight()?.flatten_all()?.to_vec1::<f32>();
    assert_eq!(values(&a)?, values(&model(1)?)?);
    assert_ne!(values(&a)?, values(&model(2)?)?);
    assert_ne!(values(&a)?, a.transformer.h[4].attn.c_attn.weight()?.flatten_all()?.to_vec1::<f32>()?);
    Ok(())
}
