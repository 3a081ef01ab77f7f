//! A cache of keys and values in 8 bits: what it holds is what attention reads, whatever the passes.

use crate::cache::in_chunks_of;
use crate::common::{Result, assert_close, reference, some_ids, test_device};
use crate::gradients::trainable;
use crate::models::{load, random_model};
use candle_core::{DType, Tensor};
use candle_fused::attention::{quantize_rows, widen_rows};
use gpt2_model::draft::{LookupDraft, ModelDraft};
use gpt2_model::hooks::{Point, Recorder, on};
use gpt2_model::mask::{left_padding, position_ids};
use gpt2_model::{
    CacheDType, Chosen, ChosenWeights, Config, Encoder, ForwardArgs, Generation, Gpt2LMHeadModel,
    Implementation, KvCache, LayerCache, Sampling, init,
};

const Q8: CacheDType = CacheDType::Q8_0;

fn cache(model: &Gpt2LMHeadModel, batch: usize, capacity: usize) -> candle_core::Result<KvCache> {
    KvCache::new(model.config(), batch, capacity, Q8, &test_device())
}

fn in_chunks(model: &Gpt2LMHeadModel, ids: &Tensor, chunks: &[usize]) -> Result<Tensor> {
    in_chunks_of(Q8, model, ids, chunks)
}

/// A pass without a cache whose hooks round keys and values as the cache does.
#[test]
fn a_pass_reads_what_the_cache_holds_and_nothing_else() -> Result {
    for implementation in [Implementation::Fused, Implementation::Eager] {
        let config =
            Config { attn_implementation: implementation, ..random_model(3, 8, 40)?.config().clone() };
        let model = Gpt2LMHeadModel::load(init::seeded(7, DType::F32, &test_device()), &config)?;
        let ids = Tensor::cat(&[some_ids(40, 1)?, some_ids(40, 2)?], 0)?;
        let points = (0..2).flat_map(|layer| [Point::K(layer), Point::V(layer)]);
        let rounded = on(points, |_, x| Ok(Some(widen_rows(&quantize_rows(x)?)?)));
        let args = ForwardArgs { hooks: Some(&rounded), ..Default::default() };
        let expected = model.forward(&ids, args)?.logits;
        assert_close("one pass", &in_chunks(&model, &ids, &[40])?, &expected, 1e-5);
        let plain = model.forward(&ids, ForwardArgs::default())?.logits;
        assert_close("plain", &expected, &plain, 0.02);
        let difference = (expected - plain)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(difference > 1e-4, "rounding changes nothing: {difference}");
    }
    Ok(())
}

/// The keys of one layer do not depend on attention, so no code can turn.
#[test]
fn a_prompt_and_steps_equal_steps_alone() -> Result {
    let config = Config { n_layer: 1, ..random_model(3, 8, 60)?.config().clone() };
    let one_layer = Gpt2LMHeadModel::load(init::seeded(7, DType::F32, &test_device()), &config)?;
    for (model, tolerance) in [(one_layer, 1e-5), (random_model(3, 8, 60)?, 5e-3)] {
        let ids = Tensor::cat(&[some_ids(60, 0)?, some_ids(60, 5)?], 0)?;
        let steps = in_chunks(&model, &ids, &[1; 60])?;
        for prompt in [2, 33, 59] {
            let chunks: Vec<usize> = [prompt].into_iter().chain(vec![1; 60 - prompt]).collect();
            assert_close(&format!("{prompt}"), &in_chunks(&model, &ids, &chunks)?, &steps, tolerance);
        }
        assert_close("chunks", &in_chunks(&model, &ids, &[7, 3, 30, 20])?, &steps, tolerance);
    }
    Ok(())
}

#[test]
fn going_back_copied_rows_and_a_cleared_cache_leave_no_trace() -> Result {
    let model = random_model(2, 8, 20)?;
    let a = some_ids(20, 0)?;
    let b = some_ids(20, 5)?;
    let run = |ids: &Tensor, start, len, cache: &mut KvCache| -> Result<Tensor> {
        let args = ForwardArgs { cache: Some(cache), ..Default::default() };
        Ok(model.forward(&ids.narrow(1, start, len)?, args)?.logits)
    };
    let values = |x: &Tensor| -> Result<Vec<f32>> { Ok(x.flatten_all()?.to_vec1()?) };
    let mut first = cache(&model, 2, 20)?;
    let both = Tensor::cat(&[&a, &b], 0)?;
    run(&both, 0, 9, &mut first)?;
    let mut swapped = first.with_rows(&[1, 0, 1])?;
    let expected = run(&both, 9, 4, &mut first)?;
    let got = run(&Tensor::cat(&[&b, &a, &b], 0)?, 9, 4, &mut swapped)?;
    for (i, of) in [(0, 1), (1, 0), (2, 1)] {
        assert_eq!(values(&got.narrow(0, i, 1)?)?, values(&expected.narrow(0, of, 1)?)?);
    }
    first.truncate(9);
    assert_eq!(values(&run(&both, 9, 4, &mut first)?)?, values(&expected)?);
    first.clear();
    run(&both, 0, 9, &mut first)?;
    assert_eq!(values(&run(&both, 9, 4, &mut first)?)?, values(&expected)?);
    Ok(())
}

#[test]
fn weights_summaries_and_hooks_work_over_the_cache() -> Result {
    let model = random_model(3, 8, 24)?;
    let ids = some_ids(24, 3)?;
    let weights = [ChosenWeights { layer: 1, of: Chosen { heads: Some(vec![1]), queries: None } }];
    for len in [1, 10] {
        let mut cache = cache(&model, 1, 24)?;
        let args = ForwardArgs { cache: Some(&mut cache), ..Default::default() };
        model.forward(&ids.narrow(1, 0, 14)?, args)?;
        let recorder = Recorder::new([Point::Pattern(1), Point::Scores(0)]);
        let same = on([Point::Pattern(1)], |_, x| Ok(Some(x.clone())));
        let part = ids.narrow(1, 14, len)?;
        let args = ForwardArgs {
            cache: Some(&mut cache),
            weights: &weights,
            output_summaries: true,
            hooks: Some(&recorder),
            ..Default::default()
        };
        let output = model.forward(&part, args)?;
        let pattern = recorder.value(Point::Pattern(1))?; // (B, H, T, S)
        assert_eq!(pattern.dims(), [1, 3, len, 14 + len]);
        assert_close("weights", &pattern.narrow(1, 1, 1)?, &output.transformer.weights[0], 1e-6);
        assert_eq!(output.transformer.summaries.len(), 2);
        // The same weights, put in place of the kernel's, over values from the cache.
        cache.truncate(14);
        let args = ForwardArgs { cache: Some(&mut cache), hooks: Some(&same), ..Default::default() };
        assert_close("replaced", &model.forward(&part, args)?.logits, &output.logits, 1e-5);
    }
    Ok(())
}

#[test]
fn a_padded_batch_gets_what_its_rows_get_alone() -> Result {
    let model = random_model(2, 8, 16)?;
    let rows: Vec<Tensor> = [9, 4].iter().map(|&t| some_ids(t, t)).collect::<Result<_>>()?;
    let ids = Tensor::cat(&[rows[0].clone(), rows[1].pad_with_zeros(1, 5, 0)?], 0)?;
    let mask = left_padding(&[9, 4], 9, &test_device())?;
    let positions = position_ids(&mask)?;
    let mut cache = cache(&model, 2, 9)?;
    let args = ForwardArgs {
        cache: Some(&mut cache),
        attention_mask: Some(&mask),
        position_ids: Some(&positions),
        last_logits_only: true,
        ..Default::default()
    };
    let logits = model.forward(&ids, args)?.logits; // (2, 1, V)
    for (i, row) in rows.iter().enumerate() {
        let t = row.dim(1)?;
        let alone = in_chunks(&model, row, &[t])?.narrow(1, t - 1, 1)?;
        assert_close(&format!("row {i}"), &logits.narrow(0, i, 1)?, &alone, 5e-3);
    }
    Ok(())
}

#[test]
fn generation_runs_and_a_draft_changes_no_token() -> Result {
    let model = random_model(3, 5, 60)?;
    for seed in 0..20u32 {
        let prompt = vec![seed % 7, 2, seed % 5, 2];
        let begun = || {
            Generation::new(&model, std::slice::from_ref(&prompt), Sampling::greedy(), 50)?
                .with_cache_dtype(Q8)
        };
        let text = |mut generation: Generation| -> Result<Vec<u32>> {
            for step in generation.by_ref() {
                step?;
            }
            Ok(generation.texts()[0].clone())
        };
        let plain = text(begun()?)?;
        assert_eq!(plain.len(), 54);
        assert_eq!(text(begun()?.with_draft(LookupDraft::default())?)?, plain);
        assert_eq!(text(begun()?.with_draft(ModelDraft::new(model.clone())?)?)?, plain);
    }
    let several = Generation::new(&model, &[vec![1, 2, 3], vec![4]], Sampling::greedy(), 9)?;
    let mut several = several.with_cache_dtype(Q8)?;
    several.by_ref().try_for_each(|step| step.map(drop))?;
    assert!(several.texts().iter().zip([12, 10]).all(|(text, len)| text.len() == len));
    Ok(())
}

#[test]
fn the_keys_of_an_encoder_are_quantized_too() -> Result {
    let expected = reference("cross")?;
    let model = load("cross", DType::F32)?;
    let ids = &expected["input_ids"];
    let encoder = Encoder {
        hidden_states: &expected["encoder_hidden_states"],
        attention_mask: Some(&expected["encoder_attention_mask"]),
    };
    let run = |dtype: CacheDType| -> Result<Tensor> {
        let mut cache = KvCache::new(model.config(), 2, 9, dtype, &test_device())?;
        let mut parts = vec![];
        let mut start = 0;
        for len in [4, 1, 3, 1] {
            let args = ForwardArgs { cache: Some(&mut cache), encoder: Some(encoder), ..Default::default() };
            parts.push(model.forward(&ids.narrow(1, start, len)?, args)?.logits);
            start += len;
        }
        Ok(Tensor::cat(&parts, 1)?)
    };
    assert_close("q8_0", &run(Q8)?, &expected["logits"], 0.02);
    assert_close("f32", &run(DType::F32.into())?, &expected["logits"], 1e-5);
    Ok(())
}

#[test]
fn names_sizes_and_what_is_refused() -> Result {
    assert_eq!((Q8.as_str(), Q8.bytes_of(64)), ("q8_0", 68));
    let half = CacheDType::from(DType::F16);
    assert_eq!((half.as_str(), half.bytes_of(64)), ("f16", 128));

    let model = random_model(2, 4, 8)?;
    let new = |dtype: DType| KvCache::new(model.config(), 1, 8, dtype, &test_device());
    let message = new(DType::U8).expect_err("no number").to_string();
    assert!(message.contains("q8_0, got u8"), "{message}");

    for dtype in [DType::F16, DType::F64] {
        let other = Gpt2LMHeadModel::load(init::seeded(7, dtype, &test_device()), model.config())?;
        let part = format!("in f32, got one in {}", dtype.as_str());
        let generation = Generation::new(&other, &[vec![1]], Sampling::greedy(), 2)?;
        let message = generation.with_cache_dtype(Q8).expect_err("no f32").to_string();
        assert!(message.contains(&part), "{message}");
        let mut cache = cache(&other, 1, 8)?;
        let args = ForwardArgs { cache: Some(&mut cache), ..Default::default() };
        let message = other.forward(&some_ids(3, 0)?, args).expect_err("no f32").to_string();
        assert!(message.contains("keys and values in"), "{message}");
    }

    let mut layer = LayerCache::new(model.config(), 1, 8, Q8, &test_device())?;
    let k = Tensor::new(&[f32::NAN, 1.0, 2.0, 3.0], &test_device())?.reshape((1, 1, 1, 4))?;
    let k = Tensor::cat(&[&k, &k.zeros_like()?], 1)?; // (B, H, T, D)
    let message = layer.append(&k, &k).expect_err("NaN").to_string();
    assert!(message.contains("q8_0") && message.contains("NaN or infinite"), "{message}");
    assert!(layer.is_empty());
    let (k, v) = layer.append(&k.zeros_like()?, &k.zeros_like()?)?;
    assert_eq!((k.dims(), v.dims(), k.dtype()), (&[1, 2, 1, 8][..], &[1, 2, 1, 8][..], DType::U8));

    let (_variables, learning) = trainable("odd", Implementation::Auto)?;
    let mut cache = cache(&learning, 1, 8)?;
    let args = ForwardArgs { cache: Some(&mut cache), ..Default::default() };
    let message = learning.forward(&some_ids(3, 0)?, args).expect_err("a gradient").to_string();
    assert!(message.contains("queries without a gradient"), "{message}");
    Ok(())
}
