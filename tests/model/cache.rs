//! A prompt in chunks and cached steps gives the same as one pass.

use crate::common::{Result, assert_close, reference, some_ids, test_device};
use crate::models::{load, random_model};
use candle_core::{DType, Tensor};
use candle_fused::Implementation;
use gpt2_model::hooks::{Hooks, Point, on};
use gpt2_model::mask::{left_padding, position_ids};
use gpt2_model::{CacheDType, Config, ForwardArgs, Gpt2LMHeadModel, KvCache, init};
use std::cell::Cell;

const TOLERANCE: f64 = 1e-5;

pub(crate) fn in_chunks(model: &Gpt2LMHeadModel, ids: &Tensor, chunks: &[usize]) -> Result<Tensor> {
    in_chunks_of(DType::F32, model, ids, chunks)
}

/// The logits of `ids` in chunks over a cache of this dtype.
pub(crate) fn in_chunks_of(
    dtype: impl Into<CacheDType>,
    model: &Gpt2LMHeadModel,
    ids: &Tensor,
    chunks: &[usize],
) -> Result<Tensor> {
    let (b, t) = ids.dims2()?;
    let mut cache = KvCache::new(model.config(), b, t, dtype, &test_device())?;
    let mut logits = vec![];
    let mut start = 0;
    for &len in chunks {
        let args = ForwardArgs { cache: Some(&mut cache), ..Default::default() };
        logits.push(model.forward(&ids.narrow(1, start, len)?, args)?.logits);
        start += len;
    }
    assert_eq!((start, cache.len()), (t, t));
    Ok(Tensor::cat(&logits, 1)?)
}

#[test]
fn chunks_of_any_size_equal_one_pass() -> Result {
    let model = random_model(3, 5, 24)?;
    let ids = Tensor::cat(&[some_ids(24, 0)?, some_ids(24, 5)?], 0)?; // (2, 24)
    let whole = model.forward(&ids, ForwardArgs::default())?.logits;
    for size in 1..=24 {
        let mut chunks = vec![size; 24 / size];
        if 24 % size > 0 {
            chunks.push(24 % size);
        }
        assert_close(&format!("chunks of {size}"), &in_chunks(&model, &ids, &chunks)?, &whole, TOLERANCE);
    }
    assert_close("uneven chunks", &in_chunks(&model, &ids, &[7, 1, 1, 10, 5])?, &whole, TOLERANCE);
    Ok(())
}

#[test]
fn cached_steps_equal_transformers_single_pass() -> Result {
    let model = load("odd", DType::F32)?;
    let expected = reference("odd")?;
    let chunks: Vec<usize> = [20].into_iter().chain([1; 57]).collect();
    let logits = in_chunks(&model, &expected["T77.input_ids"], &chunks)?;
    assert_close("T77", &logits, &expected["T77.logits"], TOLERANCE);
    Ok(())
}

#[test]
fn a_full_cache_is_an_error_that_says_so_and_keeps_what_it_holds() -> Result {
    let model = random_model(2, 4, 8)?;
    let config = model.config();
    let err = KvCache::new(config, 1, 9, DType::F32, &test_device()).expect_err("9 is above N").to_string();
    assert!(err.contains('9') && err.contains("n_positions = 8"), "{err}");

    let mut cache = KvCache::new(config, 1, 8, DType::F32, &test_device())?;
    let run = |ids: &Tensor, cache: &mut KvCache| {
        model.forward(ids, ForwardArgs { cache: Some(cache), ..Default::default() })
    };
    run(&some_ids(6, 0)?, &mut cache)?;
    let err = run(&some_ids(3, 0)?, &mut cache).expect_err("6 + 3 are above 8").to_string();
    assert!(err.contains("6 positions are held") && err.contains("capacity of 8"), "{err}");
    assert_eq!(cache.len(), 6);

    // The cached keys are still good: the next two tokens are those of one pass over eight.
    let ids = some_ids(8, 0)?;
    let rest = run(&ids.narrow(1, 6, 2)?, &mut cache)?.logits;
    let whole = model.forward(&ids, ForwardArgs::default())?.logits;
    assert_close("after the error", &rest, &whole.narrow(1, 6, 2)?, TOLERANCE);
    Ok(())
}

#[test]
fn a_failed_pass_leaves_no_trace_in_the_cache() -> Result {
    let model = random_model(2, 4, 8)?;
    let mut cache = KvCache::new(model.config(), 1, 8, DType::F32, &test_device())?;
    let ids = some_ids(8, 2)?;
    let mut run = |ids: &Tensor| {
        model.forward(ids, ForwardArgs { cache: Some(&mut cache), ..Default::default() }).map(|o| o.logits)
    };
    run(&ids.narrow(1, 0, 4)?)?;
    let beyond = Tensor::new(&[[1u32, 999]], &test_device())?;
    let err = run(&beyond).expect_err("no such id").to_string();
    assert!(err.contains("999") && err.contains("0..37"), "{err}");
    let rest = run(&ids.narrow(1, 4, 4)?)?;
    let whole = model.forward(&ids, ForwardArgs::default())?.logits;
    assert_close("after the error", &rest, &whole.narrow(1, 4, 4)?, TOLERANCE);
    Ok(())
}

#[test]
fn truncating_goes_back_in_the_text() -> Result {
    let model = random_model(2, 4, 8)?;
    let mut cache = KvCache::new(model.config(), 1, 8, DType::F32, &test_device())?;
    let ids = some_ids(8, 0)?;
    let other = some_ids(5, 9)?;
    let mut run = |ids: &Tensor, keep: Option<usize>| {
        if let Some(len) = keep {
            cache.truncate(len);
        }
        model.forward(ids, ForwardArgs { cache: Some(&mut cache), ..Default::default() }).map(|o| o.logits)
    };
    run(&ids, None)?;
    let got = run(&other, Some(3))?;
    let text = Tensor::cat(&[ids.narrow(1, 0, 3)?, other], 1)?;
    let whole = model.forward(&text, ForwardArgs::default())?.logits;
    assert_close("another ending", &got, &whole.narrow(1, 3, 5)?, TOLERANCE);
    Ok(())
}

/// If the last block only computes the last position, its result must equal the whole pass at that position: for
/// several prompts, with a cache, with padding, in f64 and with attention in plain operations.
#[test]
fn the_last_logits_alone_equal_those_of_the_whole_pass() -> Result {
    for (dtype, implementation) in [
        (DType::F32, Implementation::Fused),
        (DType::F32, Implementation::Eager),
        (DType::F64, Implementation::Eager),
    ] {
        let config =
            Config { attn_implementation: implementation, ..random_model(3, 5, 60)?.config().clone() };
        let model = Gpt2LMHeadModel::load(init::seeded(7, dtype, &test_device()), &config)?;
        for t in [1, 2, 5, 60] {
            let ids = Tensor::cat(&[some_ids(t, 0)?, some_ids(t, 5)?], 0)?; // (2, T)
            let mask = left_padding(&[t, t.div_ceil(2)], t, &test_device())?;
            let positions = position_ids(&mask)?;
            for attention_mask in [None, Some(&mask)] {
                let position_ids = attention_mask.map(|_| &positions);
                let args = || ForwardArgs { attention_mask, position_ids, ..Default::default() };
                let expected = model.forward(&ids, args())?.logits.narrow(1, t - 1, 1)?;
                let args = ForwardArgs { last_logits_only: true, ..args() };
                let what = format!("{dtype:?}, {implementation:?}, T {t}");
                assert_close(&what, &model.forward(&ids, args)?.logits, &expected, TOLERANCE);

                // The cache holds the whole prompt: a token after it sees all of it.
                if t < 60 && attention_mask.is_none() {
                    let next = Tensor::new(&[[3u32], [4]], &test_device())?;
                    let longer = model.forward(&Tensor::cat(&[&ids, &next], 1)?, ForwardArgs::default())?;
                    let mut cache = KvCache::new(&config, 2, t + 1, dtype, &test_device())?;
                    for part in [&ids, &next] {
                        let args = ForwardArgs {
                            cache: Some(&mut cache),
                            last_logits_only: true,
                            ..Default::default()
                        };
                        let logits = model.forward(part, args)?.logits;
                        if part.dim(1)? == 1 && cache.len() == t + 1 {
                            assert_close(&what, &logits, &longer.logits.narrow(1, t, 1)?, TOLERANCE);
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// A hook that reads a value keeps a GPU's kernels from joining what comes before and after it: of the residual stream, of the
/// keys and values that go into the cache, or of the embeddings.
#[test]
fn values_that_hooks_read_have_the_bits_of_a_pass_without_hooks() -> Result {
    let config = Config {
        n_embd: 64,
        n_head: 2,
        attn_implementation: Implementation::Fused,
        ..random_model(3, 5, 24)?.config().clone()
    };
    for dtype in [DType::F32, DType::F16] {
        let model = Gpt2LMHeadModel::load(init::seeded(3, dtype, &test_device()), &config)?;
        let ids = Tensor::cat(&[some_ids(12, 0)?, some_ids(12, 5)?], 0)?; // (2, 12)
        let run = |hooks: Option<&dyn Hooks>| -> Result<Tensor> {
            let mut cache = KvCache::new(model.config(), 2, 12, dtype, &test_device())?;
            let mut logits = vec![];
            for (start, len) in [(0, 7), (7, 1), (8, 3), (11, 1)] {
                let args = ForwardArgs { cache: Some(&mut cache), hooks, ..Default::default() };
                logits.push(model.forward(&ids.narrow(1, start, len)?, args)?.logits);
            }
            Ok(Tensor::cat(&logits, 1)?.to_dtype(DType::F32)?)
        };
        let alone = run(None)?.flatten_all()?.to_vec1::<f32>()?;
        for point in Point::of_model(config.n_layer) {
            let read = Cell::new(0);
            let hooks = on([point], |_, _| {
                read.set(read.get() + 1);
                Ok(None)
            });
            assert_eq!(run(Some(&hooks))?.flatten_all()?.to_vec1::<f32>()?, alone, "{dtype:?} {point}");
            assert_eq!(read.get(), 4, "{dtype:?} {point}");
        }
        // A replacement takes effect, although the norm of the value that it replaces was computed beside it.
        let norm = [Point::Ln2Scale(0), Point::Ln2Normalized(0)];
        let points = [Point::ResidMid(0), Point::MlpIn(0), Point::ResidPost(0), Point::ResidPre(1)];
        for point in points.into_iter().chain(norm).chain([Point::K(1), Point::Embed]) {
            let hooks = on([point], |_, x| (x * 0.5).map(Some));
            assert_ne!(run(Some(&hooks))?.flatten_all()?.to_vec1::<f32>()?, alone, "{dtype:?} {point}");
        }
    }
    Ok(())
}
