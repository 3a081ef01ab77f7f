//! A quantized model does all that a plain one does.

use crate::cache::in_chunks;
use crate::common::{Result, assert_close, some_ids, test_device};
use candle_core::{DType, Tensor};
use gpt2_model::hooks::{Head, Intervention, Interventions, Point, Recorder};
use gpt2_model::linear::{BlockFormat, Linear, LinearLayer, Weight, WeightDType, WeightLayout};
use gpt2_model::{
    Chosen, ChosenWeights, Config, ForwardArgs, Generation, Gpt2LMHeadModel, KvCache, Sampling, init,
};

/// A model whose widths blocks of 32 divide, and the same quantized.
fn models() -> Result<(Gpt2LMHeadModel, Gpt2LMHeadModel)> {
    let config = Config {
        vocab_size: 37,
        n_positions: 24,
        n_embd: 64,
        n_layer: 2,
        n_head: 2,
        initializer_range: 0.1,
        ..Config::gpt2()
    };
    let model = Gpt2LMHeadModel::load(init::seeded(7, DType::F32, &test_device()), &config)?;
    Ok((model.clone(), model.quantize(BlockFormat::Q8_0)?))
}

fn logits(model: &Gpt2LMHeadModel, ids: &Tensor) -> Result<Tensor> {
    Ok(model.forward(ids, ForwardArgs::default())?.logits)
}

fn bits(x: &Tensor) -> Result<Vec<u32>> {
    Ok(x.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
}

#[test]
fn logits_are_close_and_the_table_stays_tied() -> Result {
    let (plain, quantized) = models()?;
    let ids = some_ids(24, 0)?;
    assert_close("logits", &logits(&quantized, &ids)?, &logits(&plain, &ids)?, 0.05);
    assert!(quantized.is_tied());
    let kinds: Vec<bool> = quantized
        .named_parameters()
        .iter()
        .map(|(_, values)| matches!(values.dtype(), WeightDType::Blocks(_)))
        .collect();
    assert_eq!(kinds.iter().filter(|quantized| **quantized).count(), 2 * 4 + 1);
    assert_eq!(quantized.named_parameters().len(), plain.named_parameters().len());
    assert!(quantized.named_variables()?.is_empty());
    Ok(())
}

/// With the attention of one pass, decoding gives the bits of a pass over all tokens: each row is quantized by itself.
#[test]
fn a_token_alone_has_the_logits_of_a_batch() -> Result {
    let (_, quantized) = models()?;
    let ids = some_ids(24, 0)?;
    let both = Tensor::cat(&[&ids, &some_ids(24, 5)?], 0)?;
    let alone = logits(&quantized, &ids)?;
    let in_batch = logits(&quantized, &both)?.narrow(0, 0, 1)?;
    assert_eq!(bits(&alone)?, bits(&in_batch)?);
    // Attention rounds in another order, which can turn a code.
    assert_close("steps", &in_chunks(&quantized, &ids, &[1; 24])?, &alone, 0.02);
    Ok(())
}

#[test]
fn weights_summaries_hooks_and_interventions_work() -> Result {
    let (plain, quantized) = models()?;
    let ids = some_ids(12, 3)?;
    let weights = [ChosenWeights { layer: 1, of: Chosen { heads: Some(vec![1]), queries: None } }];
    let args = || ForwardArgs { weights: &weights, output_summaries: true, ..Default::default() };
    let a = plain.forward(&ids, args())?;
    let b = quantized.forward(&ids, args())?;
    assert_close("weights", &b.transformer.weights[0], &a.transformer.weights[0], 0.05);
    assert_eq!(b.transformer.summaries.len(), 2);

    let recorder = Recorder::new([Point::Pattern(1)]);
    quantized.forward(&ids, ForwardArgs { hooks: Some(&recorder), ..Default::default() })?;
    let pattern = recorder.value(Point::Pattern(1))?.narrow(1, 1, 1)?;
    assert_close("pattern", &pattern, &b.transformer.weights[0], 1e-6);

    let ablate =
        Interventions::new([Intervention::ZeroAblate(Head { layer: 0, head: 1 })], quantized.config())?;
    let changed = quantized.forward(&ids, ForwardArgs { hooks: Some(&ablate), ..Default::default() })?.logits;
    assert_ne!(bits(&changed)?, bits(&b.logits)?);
    Ok(())
}

#[test]
fn generation_runs_with_a_cache_in_halves() -> Result {
    let (_, quantized) = models()?;
    let run = |dtype: Option<DType>| -> Result<Vec<u32>> {
        let mut generation = Generation::new(&quantized, &[vec![1, 2, 3]], Sampling::greedy(), 12)?;
        if let Some(dtype) = dtype {
            generation = generation.with_cache_dtype(dtype)?;
        }
        for step in generation.by_ref() {
            step?;
        }
        Ok(generation.texts()[0].clone())
    };
    let plain = run(None)?;
    assert_eq!((plain.len(), run(Some(DType::F32))?), (15, plain.clone()));
    for dtype in [DType::F16, DType::BF16] {
        assert_eq!(run(Some(dtype))?.len(), 15);
    }
    Ok(())
}

/// A cache in halves rounds keys and values and nothing else.
#[test]
fn a_cache_in_halves_is_read_in_place() -> Result {
    let (plain, _) = models()?;
    let ids = some_ids(24, 1)?;
    let expected = logits(&plain, &ids)?;
    for (dtype, tolerance) in [(DType::F16, 2e-3), (DType::BF16, 2e-2)] {
        for size in [1, 5, 24] {
            let mut cache = KvCache::new(plain.config(), 1, 24, dtype, &test_device())?;
            let mut parts = vec![];
            for start in (0..24).step_by(size) {
                let args =
                    ForwardArgs { cache: Some(&mut cache), output_summaries: true, ..Default::default() };
                let ids = ids.narrow(1, start, size.min(24 - start))?;
                parts.push(plain.forward(&ids, args)?.logits);
            }
            let got = Tensor::cat(&parts, 1)?;
            assert_eq!(got.dtype(), DType::F32);
            assert_close(&format!("{dtype:?}, {size} at a time"), &got, &expected, tolerance);
        }
    }
    Ok(())
}

#[test]
fn a_layer_of_another_shape_is_refused() -> Result {
    let weight = Tensor::zeros((64, 32), DType::F32, &test_device())?;
    let weight = Weight::quantize(&weight, WeightLayout::InOut, BlockFormat::Q4_0)?;
    let bias = |n: usize| Tensor::zeros(n, DType::F32, &test_device());
    assert!(Linear::new(weight.clone(), Some(bias(33)?)).is_err());
    let layer = Linear::new(weight, Some(bias(32)?))?;
    assert_eq!(layer.shape(), (64, 32));
    let (plain, _) = models()?;
    assert!(plain.transformer.h[0].attn.c_proj.with_layer(layer).is_err());
    let narrow = crate::models::load("odd", DType::F32)?;
    let error = narrow.quantize(BlockFormat::Q8_0).expect_err("48 inputs").to_string();
    assert!(error.contains("48"), "{error}");
    Ok(())
}
