//! Dropout in the model: the same masks in every implementation, in both directions, and only in training.

use crate::common::{Result, relative_error, test_device};
use candle_core::{DType, Tensor};
use candle_fused::attention::{Mask, Sdpa};
use candle_fused::{Dropout, Implementation};
use candle_nn::VarMap;
use gpt2_model::training::{Training, cross_entropy};
use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init};

const TRAINING: Training = Training { seed: 3, step: 17 };

fn config(implementation: Implementation, rate: f64) -> Config {
    Config {
        n_layer: 2,
        n_head: 3,
        n_embd: 48,
        n_positions: 77,
        vocab_size: 101,
        attn_pdrop: rate,
        resid_pdrop: rate,
        embd_pdrop: rate,
        attn_implementation: implementation,
        ..Config::gpt2()
    }
}

fn model(config: &Config) -> Result<(VarMap, Gpt2LMHeadModel)> {
    let variables = VarMap::new();
    let vb = init::seeded_variables(5, &variables, DType::F32, &test_device());
    Ok((variables, Gpt2LMHeadModel::load(vb, config)?))
}

fn ids(b: u32, t: u32) -> Result<Tensor> {
    Ok(Tensor::from_iter((0..b * t).map(|i| i * 37 % 101), &test_device())?
        .reshape((b as usize, t as usize))?)
}

fn logits(config: &Config, training: Option<Training>) -> Result<Tensor> {
    let (_, model) = model(config)?;
    Ok(model.forward(&ids(2, 60)?, ForwardArgs { training, ..Default::default() })?.logits)
}

fn max_abs_diff(a: &Tensor, b: &Tensor) -> Result<f32> {
    Ok((a - b)?.abs()?.flatten_all()?.max(0)?.to_scalar()?)
}

#[test]
fn eager_and_fused_drop_the_same_numbers() -> Result {
    let [eager, fused] = [Implementation::Eager, Implementation::Fused].map(|implementation| {
        let config = config(implementation, 0.2);
        let (variables, model) = model(&config)?;
        let args = ForwardArgs { training: Some(TRAINING), ..Default::default() };
        let loss = cross_entropy(&model.forward(&ids(2, 60)?, args)?.logits, &ids(2, 60)?)?;
        let gradients = loss.backward()?;
        let data = variables.data().lock().map_err(|e| e.to_string())?;
        let mut named: Vec<_> =
            data.iter().map(|(name, v)| (name.clone(), gradients.get(v).cloned())).collect();
        named.sort_by(|a, b| a.0.cmp(&b.0));
        Result::Ok((loss.to_scalar::<f32>()?, named))
    });
    let ((eager_loss, eager), (fused_loss, fused)) = (eager?, fused?);
    assert!((eager_loss - fused_loss).abs() < 1e-5, "{eager_loss} {fused_loss}");
    for ((name, eager), (_, fused)) in eager.iter().zip(&fused) {
        let eager = eager.as_ref().ok_or("a gradient")?;
        let fused = fused.as_ref().ok_or("a gradient")?;
        let error = relative_error(fused, eager)?;
        assert!(error < 1e-5, "{name}: {error:e}");
    }
    Ok(())
}

/// The vectors that each of two equal blocks adds to a stream that is the same for both, under dropout.
fn added(config: &Config, biased: &str) -> Result<[Tensor; 2]> {
    let (variables, model) = model(config)?;
    {
        let data = variables.data().lock().map_err(|e| e.to_string())?;
        for (name, var) in data.iter().filter(|(name, _)| name.contains("h.")) {
            // Each block adds a constant: the value's bias, passed on by `c_proj`, or the bias of its own.
            let is_identity = name.ends_with("attn.c_proj.weight");
            let is_one = name.ends_with(biased);
            let value = match var.dims() {
                [n, _] if is_identity => Tensor::eye(*n, DType::F32, &test_device())?,
                dims if is_one => Tensor::ones(dims, DType::F32, &test_device())?,
                dims => Tensor::zeros(dims, DType::F32, &test_device())?,
            };
            var.set(&value)?;
        }
    }
    let args = ForwardArgs { training: Some(TRAINING), output_hidden_states: true, ..Default::default() };
    let states = model.forward(&ids(2, 60)?, args)?.transformer.hidden_states;
    // The last state is after `ln_f`; a third block, which is not compared, keeps the second one's before it.
    Ok([(&states[1] - &states[0])?, (&states[2] - &states[1])?])
}

/// Masks of different layers at the same place are independent: where all else is equal, they differ at about as many places as
/// two random ones do.
#[test]
fn each_layer_drops_numbers_of_its_own() -> Result {
    for implementation in [Implementation::Eager, Implementation::Fused] {
        let none = Config { n_layer: 3, ..config(implementation, 0.0) };
        for (what, config, biased) in [
            ("attention's weights", Config { attn_pdrop: 0.5, ..none.clone() }, "attn.c_attn.bias"),
            ("attention's output", Config { resid_pdrop: 0.5, ..none.clone() }, "attn.c_proj.bias"),
            ("the MLP's output", Config { resid_pdrop: 0.5, ..none.clone() }, "mlp.c_proj.bias"),
        ] {
            let [first, second] = added(&config, biased)?;
            let differ = (&first - &second)?.abs()?.gt(0.5f32 / 60.0)?.to_dtype(DType::F32)?.mean_all()?;
            let differ = differ.to_scalar::<f32>()?;
            // Half of the numbers of two masks of rate 0.5; sums of several weights differ more often.
            assert!(differ > 0.4, "{what}: the masks of two layers differ at {differ} of the places");
        }
    }
    Ok(())
}

#[test]
fn nothing_is_dropped_but_in_training() -> Result {
    for implementation in [Implementation::Eager, Implementation::Fused] {
        let with = logits(&config(implementation, 0.9), None)?;
        let without = logits(&config(implementation, 0.0), None)?;
        assert_eq!(with.to_vec3::<f32>()?, without.to_vec3::<f32>()?);
        let rate_0 = logits(&config(implementation, 0.0), Some(TRAINING))?;
        assert!(max_abs_diff(&rate_0, &without)? < 1e-5);
    }
    Ok(())
}

#[test]
fn each_rate_alone_changes_the_result_and_so_does_the_step() -> Result {
    let none = config(Implementation::Fused, 0.0);
    let plain = logits(&none, Some(TRAINING))?;
    for config in [
        Config { attn_pdrop: 0.3, ..none.clone() },
        Config { resid_pdrop: 0.3, ..none.clone() },
        Config { embd_pdrop: 0.3, ..none.clone() },
    ] {
        let dropped = logits(&config, Some(TRAINING))?;
        assert!(max_abs_diff(&dropped, &plain)? > 1e-3);
        let again = logits(&config, Some(TRAINING))?;
        assert_eq!(dropped.to_vec3::<f32>()?, again.to_vec3::<f32>()?);
        for other in [Training { step: 18, ..TRAINING }, Training { seed: 4, ..TRAINING }] {
            assert!(max_abs_diff(&logits(&config, Some(other))?, &dropped)? > 1e-3);
        }
    }
    Ok(())
}

/// The rate that a model is given later is the one it is built with.
#[test]
fn a_model_can_be_given_another_rate() -> Result {
    let none = config(Implementation::Auto, 0.0);
    let some = config(Implementation::Auto, 0.3);
    let given = model(&none)?.1.with_dropout(0.3);
    let rates = |config: &Config| [config.attn_pdrop, config.resid_pdrop, config.embd_pdrop];
    assert_eq!(rates(given.config()).map(f64::to_bits), rates(&some).map(f64::to_bits));
    let args = ForwardArgs { training: Some(TRAINING), ..Default::default() };
    let dropped = given.forward(&ids(2, 60)?, args)?.logits;
    assert!(max_abs_diff(&dropped, &logits(&some, Some(TRAINING))?)? <= 0.0);
    Ok(())
}

/// Normal numbers, (B, H, T, D) each.
fn random_qkv() -> Result<[Tensor; 3]> {
    let vb = init::seeded(1, DType::F32, &test_device());
    let normal = candle_nn::Init::Randn { mean: 0., stdev: 1. };
    let [q, k, v] = ["q", "k", "v"].map(|name| vb.get_with_hints((1, 2, 30, 8), name, normal));
    Ok([q?, k?, v?])
}

#[test]
fn the_expectation_of_attention_is_attention() -> Result {
    let [q, k, v] = random_qkv()?;
    let attention = Sdpa { scale: Some(0.4), ..Sdpa::default() };
    let expected = attention.forward(&q, &k, &v, Mask::default())?;
    let n = 4000;
    let mut sum = expected.zeros_like()?;
    for stream in 0..n {
        let dropping = Sdpa { dropout: Some(Dropout::new(0.5, 1, stream)?), ..attention.clone() };
        sum = (sum + dropping.forward(&q, &k, &v, Mask::default())?)?;
    }
    // At rate 0.5, a draw's deviation is at most the largest |v|, about 3.5; allow five deviations of the mean.
    let error = max_abs_diff(&(sum / n as f64)?, &expected)?;
    assert!(error < 5.0 * 3.5 / (n as f32).sqrt(), "{error}");
    Ok(())
}

#[test]
fn weights_that_are_handed_back_are_those_that_meet_the_values() -> Result {
    let config = config(Implementation::Fused, 0.2);
    let (_, model) = model(&config)?;
    let args = ForwardArgs { training: Some(TRAINING), output_attentions: true, ..Default::default() };
    let output = model.forward(&ids(2, 60)?, args)?;
    let fused = logits(&config, Some(TRAINING))?;
    assert!(max_abs_diff(&output.logits, &fused)? < 1e-4);
    let dropped =
        output.transformer.attentions[0].eq(0f32)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
    let seen = (2 * 3 * 60 * 61 / 2) as f32;
    let hidden = (2 * 3 * 60 * 59 / 2) as f32;
    assert!(((dropped - hidden) / seen - 0.2).abs() < 0.02, "{}", (dropped - hidden) / seen);
    Ok(())
}

#[test]
fn values_near_the_largest_meet_the_same_masks() -> Result {
    let [q, k, v] = random_qkv()?;
    let dropout = Some(Dropout::new(0.9, 1, 1)?);
    for size in [1.0, 1e33, 1e35, 5e36] {
        let v = (&v * size)?;
        let run = |implementation| {
            let attention = Sdpa { scale: Some(0.4), dropout, implementation, ..Sdpa::default() };
            attention.forward(&q, &k, &v, Mask::default())
        };
        let error = relative_error(&run(Implementation::Fused)?, &run(Implementation::Eager)?)?;
        assert!(error < 1e-5, "{size:e}: {error:e}");
    }
    Ok(())
}
