//! Processed models: the same predictions for every layout of heads, TransformerLens' values, and metrics of whole texts with gradients
//! against differences.

use crate::common::{Result, data, relative_error, test_device};
use crate::models::load;
use candle_core::{D, DType, Tensor};
use candle_nn::ops::log_softmax;
use gpt2_model::analysis::{
    BackwardHooks, Divergence, FunctionMetric, GradientFunction, Loss, Metric, batch_gradients,
};
use gpt2_model::hooks::{Point, on};
use gpt2_model::linear::{BlockFormat, Weight, WeightLayout};
use gpt2_model::lora::{Adapter, Update};
use gpt2_model::training::TrainingBatch;
use gpt2_model::{Chosen, ChosenWeights, Config, ForwardArgs, Gpt2LMHeadModel, KvCache, LmHead, Start, init};
use std::sync::Arc;

fn logits(model: &Gpt2LMHeadModel, ids: &Tensor) -> Result<Tensor> {
    Ok(model.forward(ids, ForwardArgs::default())?.logits)
}

/// `tests/data` has ids below 31 in each of these cases.
fn some_ids() -> Result<Tensor> {
    Ok(Tensor::new(&[[3u32, 1, 4, 1, 5, 9], [26, 5, 3, 5, 8, 9]], &test_device())?)
}

#[test]
fn no_probability_changes_in_any_layout() -> Result {
    for case in ["odd", "bigcode", "bigcode_heads", "untied", "inner", "no_scale", "inverse_layer", "relu"] {
        // f64 loses 1e-15 at each step; f32 1e-7, over a few hundred sums.
        for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 3e-5)] {
            let model = load(case, dtype)?;
            let processed = model.processed()?;
            let [plain, other] = [logits(&model, &some_ids()?)?, logits(&processed, &some_ids()?)?];
            let off = relative_error(&log_softmax(&other, D::Minus1)?, &log_softmax(&plain, D::Minus1)?)?;
            assert!(off < tolerance, "{case} in {dtype:?}: {off:e}");
            let mean = other.mean(D::Minus1)?.abs()?.max_all()?.to_dtype(DType::F64)?.to_scalar::<f64>()?;
            assert!(mean < tolerance * 10.0, "{case}: logits are not centered, {mean:e}");
            for block in &processed.transformer.h {
                for head in block.attn.head_weights()? {
                    let v = head.v_bias.abs()?.max_all()?.to_dtype(DType::F64)?.to_scalar::<f64>()?;
                    assert!(v.abs() <= 0.0, "{case}: a value bias is left");
                }
            }
        }
    }
    let error = load("cross", DType::F32)?.processed().expect_err("cross-attention").to_string();
    assert!(error.contains("cross-attention"), "{error}");
    Ok(())
}

#[test]
fn the_values_are_those_of_hooked_transformer() -> Result {
    let expected =
        candle_core::safetensors::load(data("circuits").join("processed.safetensors"), &test_device())?;
    let model = load("circuits/model", DType::F64)?.processed()?;
    let names = ["hook_resid_post", "attn.hook_v", "attn.hook_z", "hook_attn_out", "mlp.hook_post"];
    for layer in 0..3 {
        for name in names.map(|name| format!("blocks.{layer}.{name}")) {
            let point: Point = name.parse()?;
            let found = model.values_at(&expected["ids"], &[point], None)?.remove(0);
            let off = relative_error(&found, &expected[&name].reshape(found.shape())?)?;
            assert!(off < 1e-12, "{name}: {off:e}");
        }
    }
    let off = relative_error(&logits(&model, &expected["ids"])?, &expected["logits"])?;
    assert!(off < 1e-12, "logits: {off:e}");
    Ok(())
}

#[test]
fn the_bias_of_the_head_counts_in_the_loss_and_among_the_parameters() -> Result {
    let model = load("odd", DType::F32)?;
    let processed = model.processed()?;
    let ids = some_ids()?;
    let batch = TrainingBatch::new(ids.narrow(1, 0, 5)?, ids.narrow(1, 1, 5)?);
    let [plain, other] = [&model, &processed].map(|model| model.loss(&batch, ForwardArgs::default()));
    let off = (plain?.to_scalar::<f32>()? - other?.to_scalar::<f32>()?).abs();
    assert!(off < 1e-5, "{off:e}"); // f32
    let names: Vec<String> = processed.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert!(names.contains(&"lm_head.bias".to_owned()), "{names:?}");
    // No checkpoint of GPT-2 has it.
    assert!(processed.check_layers().is_err());
    let again = processed.processed()?;
    let off = relative_error(&logits(&again, &ids)?, &logits(&processed, &ids)?)?;
    assert!(off < 1e-5, "processing twice changes {off:e}");
    Ok(())
}

#[test]
fn the_bias_of_the_head_stays_when_its_weight_changes() -> Result {
    let model = load("odd", DType::F32)?.processed()?;
    let ids = some_ids()?;
    let bias = model.lm_head.bias().ok_or("a bias")?.clone();
    assert!(bias.abs()?.max_all()?.to_scalar::<f32>()? > 1e-3, "the bias is too small to miss");
    let table = model.lm_head.weight()?; // (V, C)
    let (v, c) = table.dims2()?;
    let a = Tensor::arange(0f32, 2.0 * c as f32, &test_device())?.reshape((2, c))?.sin()?;
    let b = Tensor::arange(0f32, 2.0 * v as f32, &test_device())?.reshape((v, 2))?.cos()?;
    let update = Update::new(a.clone(), b.clone(), 0.5, 0.0)?;
    let other = (&table + (b.matmul(&a)? * 0.5)?)?;
    let updated = Adapter { updates: [("lm_head".to_owned(), update)].into(), ..Adapter::default() };
    let replaced = [("lm_head.weight".to_owned(), other.clone())].into();
    let replaced = Adapter { replaced, ..Adapter::default() };
    let hidden = model.forward(&ids, ForwardArgs::default())?.transformer.last_hidden_state; // (B, T, C)
    let expected = hidden.broadcast_matmul(&other.t()?)?.broadcast_add(&bias)?;
    for adapter in [updated, replaced] {
        let adapted = model.clone().with_adapter("one", &adapter, 1.0)?;
        let off = relative_error(&logits(&adapted, &ids)?, &expected)?;
        assert!(off < 1e-5, "{off:e}"); // f32
    }
    Ok(())
}

#[test]
fn the_bias_of_the_head_stays_when_the_model_is_quantized() -> Result {
    let config =
        Config { vocab_size: 40, n_positions: 8, n_embd: 32, n_layer: 1, n_head: 2, ..Config::gpt2() };
    let plain = Gpt2LMHeadModel::load(init::seeded(3, DType::F32, &test_device()), &config)?;
    let bias = Tensor::arange(0f32, 40.0, &test_device())?;
    let mut biased = plain.clone();
    let weight = Weight::new(plain.lm_head.weight()?, WeightLayout::OutIn)?;
    biased.lm_head = LmHead::with_bias(weight, bias.clone())?;
    let ids = some_ids()?;
    let expected = logits(&plain.quantize(BlockFormat::Q8_0)?, &ids)?.broadcast_add(&bias)?;
    let off = relative_error(&logits(&biased.quantize(BlockFormat::Q8_0)?, &ids)?, &expected)?;
    assert!(off < 1e-6, "{off:e}"); // f32
    Ok(())
}

/// The metric's gradient at a point, in the direction of `by`, and the same by central differences.
fn slopes(model: &Gpt2LMHeadModel, ids: &Tensor, metric: &Metric, by: &Tensor) -> Result<(f64, f64)> {
    let point = Point::ResidMid(1);
    let found = batch_gradients(model, ids, ForwardArgs::default(), metric, &[point])?;
    let slope = (&found.at[0].1 * by)?.sum_all()?.to_scalar::<f64>()?;
    let at = |step: f64| -> Result<f64> {
        let moved = on([point], |_, value| Ok(Some((value + (by * step)?)?)));
        let args = ForwardArgs { hooks: Some(&moved), ..ForwardArgs::default() };
        Ok(batch_gradients(model, ids, args, metric, &[])?.metric.iter().sum())
    };
    let step = 1e-5;
    Ok((slope, (at(step)? - at(-step)?) / (2.0 * step)))
}

#[test]
fn gradients_of_every_metric_are_those_of_differences() -> Result {
    let model = load("odd", DType::F64)?;
    let ids = some_ids()?;
    let other = logits(&model, &Tensor::new(&[[7u32, 7, 7, 7, 7, 7]], &test_device())?)?;
    let texts = ids.to_vec2::<u32>()?;
    let own = |logits: &Tensor| Ok((logits.sqr()?.sum_all()?.to_scalar::<f64>()?, (logits * 2.0)?));
    let metrics = [
        Metric::LogProb(3),
        Metric::probability(3),
        Metric::difference(3, 4),
        Metric::At(vec![1, 4], Box::new(Metric::probability(3))),
        Metric::OfText(Arc::new(Loss { texts })),
        Metric::OfText(Arc::new(Divergence::from(&other)?)),
        Metric::OfText(Arc::new(Divergence::from(&other.narrow(1, 5, 1)?)?)),
        Metric::OfText(Arc::new(FunctionMetric::of_each(own))),
        Metric::OfText(Arc::new(FunctionMetric::of_all(own))),
    ];
    let by = Tensor::arange(0f64, 2.0 * 6.0 * 48.0, &test_device())?.reshape((2, 6, 48))?.sin()?;
    for metric in &metrics {
        let (slope, expected) = slopes(&model, &ids, metric, &by)?;
        // Central differences of step 1e-5 in f64 lose about 1e-10 to the cube of the step and 1e-11 to rounding.
        assert!((slope - expected).abs() < 1e-6 * expected.abs().max(1e-3), "{metric:?}: {slope} {expected}");
        assert!(expected.abs() > 1e-9, "{metric:?} is flat");
    }
    Ok(())
}

#[test]
fn a_divergence_ignores_what_is_impossible() -> Result {
    let reference = Tensor::new(&[[[0f64, f64::NEG_INFINITY, 0.0]]], &test_device())?;
    let run = Tensor::new(&[[[1f64, f64::NEG_INFINITY, 1.0]]], &test_device())?;
    let found = Metric::OfText(Arc::new(Divergence::from(&reference)?)).of_texts(&run)?.to_vec1::<f64>()?;
    assert!(found[0].abs() < 1e-15, "{found:?}");
    Ok(())
}

#[test]
fn metrics_that_do_not_fit_are_refused() -> Result {
    let logits = Tensor::zeros((1, 3, 5), DType::F64, &test_device())?;
    let refused = |metric: Metric| metric.of_texts(&logits).expect_err("refused").to_string();
    let at = |positions: &[usize]| Metric::At(positions.to_vec(), Box::new(Metric::Logit(1)));
    assert!(refused(at(&[3])).contains("position 3 of a text of 3 tokens"));
    assert!(at(&[]).check(5).is_err());
    assert!(Metric::At(vec![1], Box::new(at(&[1]))).check(5).is_err());
    let loss = |text: &[u32]| Metric::OfText(Arc::new(Loss { texts: vec![text.to_vec()] }));
    for text in [&[1u32][..], &[1, 2, 3, 4], &[1, 5]] {
        assert!(refused(loss(text)).contains("expected 2 to 3, below 5"));
    }
    let other = Tensor::zeros((1, 2, 5), DType::F64, &test_device())?;
    assert!(
        refused(Metric::OfText(Arc::new(Divergence::from(&other)?))).contains("the reference has logits")
    );
    let wrong = FunctionMetric::of_each(|logits: &Tensor| Ok((0.0, logits.narrow(1, 0, 1)?)));
    assert!(refused(Metric::OfText(Arc::new(wrong))).contains("expected the logits' shape"));
    Ok(())
}

#[test]
fn backward_hooks_pass_on_what_they_return() -> Result {
    let model = load("odd", DType::F64)?;
    let ids = some_ids()?;
    let metric = Metric::difference(3, 4);
    let gradient = |functions: Vec<(Point, GradientFunction)>| -> Result<Tensor> {
        let hooks = BackwardHooks::new(functions);
        let args = ForwardArgs { hooks: Some(&hooks), ..ForwardArgs::default() };
        Ok(batch_gradients(&model, &ids, args, &metric, &[Point::ResidPre(0)])?.at.remove(0).1)
    };
    let plain = gradient(vec![])?;
    let read: GradientFunction = Arc::new(|_| Ok(None));
    let twice: GradientFunction = Arc::new(|gradient| Ok(Some((gradient * 2.0)?)));
    let at = Point::ResidMid(1);
    assert!(relative_error(&gradient(vec![(at, read)])?, &plain)? < 1e-14);
    let changed = gradient(vec![(at, Arc::clone(&twice)), (at, twice)])?;
    assert!(relative_error(&changed, &(plain * 4.0)?)? < 1e-14);
    Ok(())
}

#[test]
fn a_pass_may_begin_at_a_later_block() -> Result {
    let model = load("odd", DType::F32)?;
    let ids = some_ids()?;
    let whole = logits(&model, &ids)?.flatten_all()?.to_vec1::<f32>()?;
    for layer in 0..=2 {
        let point = if layer == 2 { Point::ResidPost(1) } else { Point::ResidPre(layer) };
        let stream = model.values_at(&ids, &[point], None)?.remove(0);
        let args = |stream| ForwardArgs { start: Some(Start { layer, stream }), ..ForwardArgs::default() };
        let found = model.forward(&ids, args(&stream))?.logits.flatten_all()?.to_vec1::<f32>()?;
        assert_eq!(found, whole, "from block {layer}");
        assert!(model.forward(&ids, args(&stream.narrow(1, 0, 3)?)).is_err());
    }
    let stream = model.values_at(&ids, &[Point::ResidPre(0)], None)?.remove(0);
    let args = ForwardArgs { start: Some(Start { layer: 3, stream: &stream }), ..ForwardArgs::default() };
    let error = model.forward(&ids, args).expect_err("no such block").to_string();
    assert!(error.contains("the model has 2 blocks"), "{error}");
    // The blocks below give neither keys to a cache nor weights.
    let later = || ForwardArgs { start: Some(Start { layer: 1, stream: &stream }), ..ForwardArgs::default() };
    let mut cache = KvCache::new(model.config(), ids.dim(0)?, ids.dim(1)?, DType::F32, &test_device())?;
    let error = model.forward(&ids, ForwardArgs { cache: Some(&mut cache), ..later() }).expect_err("a cache");
    assert!(error.to_string().contains("cannot fill the cache"), "{error}");
    let weights = [ChosenWeights { layer: 0, of: Chosen::default() }];
    let error = model.forward(&ids, ForwardArgs { weights: &weights, ..later() }).expect_err("lower weights");
    assert!(error.to_string().contains("without the weights of layer 0"), "{error}");
    Ok(())
}
