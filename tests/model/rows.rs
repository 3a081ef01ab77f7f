//! Rows of a batch: each padded row, and each of several documents in a row, is as if it were alone.

use crate::common::{Result, assert_close, some_ids, test_device};
use crate::models::random_model;
use candle_core::{DType, IndexOp, Tensor};
use candle_fused::Implementation;
use candle_fused::attention::{Mask, Sdpa};
use gpt2_model::lora::{Adapter, LoraOptions};
use gpt2_model::mask::{left_padding, position_ids};
use gpt2_model::training::{Documents, TrainingBatch};
use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, KvCache, init};

const TOLERANCE: f64 = 1e-5;

/// Rows of 9, 4 and 1 tokens, padded with token 0 to 9: ids and u8 mask, (3, 9).
fn batch(left: bool) -> Result<(Vec<Tensor>, Tensor, Tensor)> {
    let rows: Vec<Tensor> = [9, 4, 1].iter().map(|&t| some_ids(t, t)).collect::<Result<_>>()?;
    let mut ids = vec![];
    for row in &rows {
        let side = (if left { 9 - row.dim(1)? } else { 0 }, if left { 0 } else { 9 - row.dim(1)? });
        ids.push(row.pad_with_zeros(1, side.0, side.1)?);
    }
    let mask: Vec<Vec<u8>> = [9usize, 4, 1]
        .iter()
        .map(|&t| (0..9).map(|j| u8::from(if left { j >= 9 - t } else { j < t })).collect())
        .collect();
    Ok((rows, Tensor::cat(&ids, 0)?, Tensor::new(mask, &test_device())?))
}

#[test]
fn each_row_of_a_padded_batch_equals_the_row_alone() -> Result {
    let model = random_model(3, 5, 16)?;
    for left in [true, false] {
        let (rows, ids, mask) = batch(left)?;
        let positions = position_ids(&mask)?;
        let args =
            ForwardArgs { attention_mask: Some(&mask), position_ids: Some(&positions), ..Default::default() };
        let logits = model.forward(&ids, args)?.logits;
        assert!(!logits.sum_all()?.to_scalar::<f32>()?.is_nan());
        for (i, row) in rows.iter().enumerate() {
            let t = row.dim(1)?;
            let alone = model.forward(row, ForwardArgs::default())?.logits;
            let got = logits.i(i..=i)?.narrow(1, if left { 9 - t } else { 0 }, t)?;
            assert_close(&format!("row {i}, left {left}"), &got, &alone, TOLERANCE);
        }
    }
    Ok(())
}

#[test]
fn a_padded_batch_with_a_cache_equals_the_rows_alone() -> Result {
    let model = random_model(2, 4, 16)?;
    let (rows, ids, mask) = batch(true)?;
    let positions = position_ids(&mask)?;
    let mut cache = KvCache::new(model.config(), 3, 9, DType::F32, &test_device())?;
    let mut last = None;
    for (start, len) in [(0, 5), (5, 3), (8, 1)] {
        let mask = mask.narrow(1, 0, start + len)?;
        let positions = positions.narrow(1, start, len)?;
        let args = ForwardArgs {
            cache: Some(&mut cache),
            attention_mask: Some(&mask),
            position_ids: Some(&positions),
            ..Default::default()
        };
        last = Some(model.forward(&ids.narrow(1, start, len)?, args)?.logits);
    }
    let last = last.ok_or("no chunk ran")?;
    for (i, row) in rows.iter().enumerate() {
        let alone = model.forward(row, ForwardArgs { last_logits_only: true, ..Default::default() })?.logits;
        assert_close(&format!("row {i}"), &last.i(i..=i)?, &alone, TOLERANCE);
    }
    Ok(())
}

#[test]
fn a_query_that_sees_no_key_gives_zeros() -> Result {
    let (b, h, t, d) = (2, 2, 4, 3);
    let q = Tensor::randn(0f32, 1., (b, h, t, d), &test_device())?;
    // Row 0 hides its first two keys, row 1 all of them.
    let padding = Tensor::new(&[[0u8, 0, 1, 1], [0, 0, 0, 0]], &test_device())?;
    let mask = Mask { padding: Some(&padding), ..Default::default() };
    let (context, weights) =
        Sdpa { scale: Some(1.0), ..Sdpa::default() }.forward_with_weights(&q, &q, &q, mask)?;
    let sums = weights.sum(3)?.to_vec3::<f32>()?; // (B, H, T)
    for (i, sum) in sums[0][0].iter().enumerate() {
        let expected = if i < 2 { 0.0 } else { 1.0 };
        assert!((sum - expected).abs() < 1e-6, "query {i}: weights sum to {sum}");
    }
    let largest = |x: &Tensor| x.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>();
    assert!(largest(&context.i((0, 0..2))?)? == 0.0 && largest(&context.i(1)?)? == 0.0);
    assert!(largest(&context.i((0, 2..))?)? > 0.0);
    Ok(())
}

#[test]
fn masks_and_positions_that_do_not_fit_are_refused_by_name() -> Result {
    let model = random_model(2, 4, 8)?;
    let ids = some_ids(4, 0)?;
    let short = Tensor::ones((1, 3), DType::U8, &test_device())?;
    let float = Tensor::ones((1, 4), DType::F32, &test_device())?;
    for mask in [&short, &float] {
        let args = ForwardArgs { attention_mask: Some(mask), ..Default::default() };
        let err = model.forward(&ids, args).expect_err("does not fit").to_string();
        assert!(err.contains("attention_mask") && err.contains("[1, 4]"), "{err}");
    }
    let beyond = Tensor::new(&[[0u32, 1, 2, 8]], &test_device())?;
    let args = ForwardArgs { position_ids: Some(&beyond), ..Default::default() };
    let err = model.forward(&ids, args).expect_err("8 is N").to_string();
    assert!(err.contains("position 8") && err.contains("n_positions"), "{err}");
    Ok(())
}

#[test]
fn positions_count_visible_tokens() -> Result {
    let mask = left_padding(&[3, 1, 0], 3, &test_device())?;
    assert_eq!(mask.to_vec2::<u8>()?, [[1, 1, 1], [0, 0, 1], [0, 0, 0]]);
    assert_eq!(position_ids(&mask)?.to_vec2::<u32>()?, [[0, 1, 2], [0, 0, 0], [0, 0, 0]]);
    Ok(())
}

/// There, transformers' `forward` takes columns for positions and gives other numbers than for the row alone.
#[test]
fn padding_before_a_token_without_position_ids_is_refused_by_name() -> Result {
    let model = random_model(2, 4, 16)?;
    let (_, ids, mask) = batch(true)?;
    let refused = |ids: &Tensor, mask: &Tensor, cache: Option<&mut KvCache>| {
        let args = ForwardArgs { attention_mask: Some(mask), cache, ..Default::default() };
        let err = model.forward(ids, args).expect_err("no positions").to_string();
        assert!(
            err.contains("row 1 has padding before a visible token") && err.contains("mask::position_ids"),
            "{err}"
        );
    };
    refused(&ids, &mask, None);
    // A mask that also covers the cache, in any integer dtype.
    let mut cache = KvCache::new(model.config(), 3, 9, DType::F32, &test_device())?;
    let first = mask.narrow(1, 0, 8)?;
    let positions = position_ids(&mask)?.narrow(1, 0, 8)?;
    let args = ForwardArgs {
        attention_mask: Some(&first),
        position_ids: Some(&positions),
        cache: Some(&mut cache),
        ..Default::default()
    };
    model.forward(&ids.narrow(1, 0, 8)?, args)?;
    refused(&ids.narrow(1, 8, 1)?, &mask.to_dtype(DType::I64)?, Some(&mut cache));
    // Padding between tokens, as when continuing prompts that are padded on the right.
    let between = mask.ones_like()?.slice_assign(&[1..2, 4..6], &mask.narrow(0, 1, 1)?.narrow(1, 0, 2)?)?;
    refused(&ids, &between, None);
    // With padding on the right, columns are positions; a row of only padding has none.
    let (_, ids, mask) = batch(false)?;
    model.forward(&ids, ForwardArgs { attention_mask: Some(&mask), ..Default::default() })?;
    let empty = Tensor::zeros((3, 9), DType::U8, &test_device())?;
    model.forward(&ids, ForwardArgs { attention_mask: Some(&empty), ..Default::default() })?;
    Ok(())
}

const LENGTHS: [usize; 4] = [5, 1, 9, 4];

/// Two rows of the same documents, the second in the reverse order, and where the document of each position begins.
fn packed() -> Result<(Tensor, Tensor, Vec<Vec<Tensor>>)> {
    let documents: Vec<Tensor> =
        LENGTHS.iter().enumerate().map(|(i, len)| some_ids(*len, i)).collect::<Result<_>>()?;
    let rows = [documents.clone(), documents.into_iter().rev().collect()];
    let mut starts: Vec<u32> = vec![];
    for row in &rows {
        let mut start = 0;
        for document in row {
            let len = document.dim(1)?;
            starts.extend(vec![u32::try_from(start)?; len]);
            start += len;
        }
    }
    let cat = |row: &Vec<Tensor>| Tensor::cat(row, 1);
    let ids = Tensor::cat(&[cat(&rows[0])?, cat(&rows[1])?], 0)?; // (2, 19)
    let starts = Tensor::from_vec(starts, ids.dims(), &test_device())?;
    Ok((ids, starts, rows.to_vec()))
}

#[test]
fn documents_in_a_row_give_what_each_gives_alone() -> Result {
    let model = random_model(3, 8, 24)?;
    let (ids, starts, rows) = packed()?;
    for (implementation, dtype, tolerance) in [
        (Implementation::Eager, DType::F32, 1e-5),
        (Implementation::Fused, DType::F32, 1e-5),
        (Implementation::Fused, DType::BF16, 10. * 2f64.powi(-8)),
    ] {
        let config = Config { attn_implementation: implementation, ..model.config().clone() };
        let model = Gpt2LMHeadModel::load(init::seeded(7, dtype, &test_device()), &config)?;
        let run = |ids: &Tensor, document_starts: Option<&Tensor>| -> Result<_> {
            let args = ForwardArgs {
                document_starts,
                output_attentions: true,
                output_summaries: true,
                ..Default::default()
            };
            Ok(model.forward(ids, args)?)
        };
        let whole = run(&ids, Some(&starts))?;
        for (b, row) in rows.iter().enumerate() {
            let mut start = 0;
            for document in row {
                let len = document.dim(1)?;
                let alone = run(document, None)?;
                let part = |x: &Tensor| x.narrow(0, b, 1)?.narrow(1, start, len);
                let what = format!("{implementation:?} {dtype:?}, row {b}, from {start}");
                assert_close(&what, &part(&whole.logits)?, &alone.logits, tolerance);
                let weights = whole.transformer.attentions[1].narrow(0, b, 1)?.narrow(2, start, len)?;
                let of_others = weights.narrow(3, 0, start)?;
                if start > 0 {
                    assert_eq!(of_others.abs()?.max_all()?.to_scalar::<f32>()?.to_bits(), 0, "{what}");
                }
                assert_close(
                    &what,
                    &weights.narrow(3, start, len)?,
                    &alone.transformer.attentions[1],
                    tolerance,
                );
                start += len;
            }
        }
    }
    let mut cache = KvCache::new(model.config(), 2, 19, DType::F32, &test_device())?;
    let args = ForwardArgs { document_starts: Some(&starts), cache: Some(&mut cache), ..Default::default() };
    assert!(model.forward(&ids, args).is_err(), "a cache");
    let late = (&starts + 1.0)?;
    let args = ForwardArgs { document_starts: Some(&late), ..Default::default() };
    assert!(model.forward(&ids, args).expect_err("late").to_string().contains("start of its document"));
    Ok(())
}

/// The loss over what is learned, and the gradients of an adapter, are those of the documents one by one.
#[test]
fn the_loss_of_packed_documents_is_that_of_each_alone() -> Result {
    let model = random_model(3, 8, 24)?;
    let (ids, starts, rows) = packed()?;
    let options = LoraOptions { target_modules: vec!["c_attn".into(), "c_fc".into()], ..LoraOptions::new(3) };
    let adapter = Adapter::new(model.config(), &options, 1, &test_device())?;
    let model = model.with_adapter("default", &adapter, 1.0)?;
    // Of each document, the second half is learned: the token after each position but the last.
    let mut learned = vec![];
    let mut sum = None::<Tensor>;
    let mut count = 0;
    for (b, row) in rows.iter().enumerate() {
        let mut start = 0;
        for document in row {
            let len = document.dim(1)?;
            for i in len / 2..len.saturating_sub(1) {
                learned.push(u32::try_from(b * 19 + start + i)?);
                let args = ForwardArgs::default();
                let logits = model.forward(document, args)?.logits.narrow(1, i, 1)?;
                let target = document.narrow(1, i + 1, 1)?;
                let loss = gpt2_model::training::cross_entropy(&logits, &target)?;
                sum = Some(sum.map_or_else(|| Ok(loss.clone()), |sum| sum + &loss)?);
                count += 1;
            }
            start += len;
        }
    }
    let expected = (sum.ok_or("losses")? / f64::from(count))?;
    let targets = Tensor::cat(&[ids.narrow(1, 1, 18)?, ids.narrow(1, 0, 1)?], 1)?;
    let learned = Tensor::new(learned, &test_device())?;
    let batch = TrainingBatch { input_ids: ids, targets, documents: Some(Documents { starts, learned }) };
    let loss = model.loss(&batch, ForwardArgs::default())?;
    assert_close("loss", &loss, &expected, 1e-5);
    let of_batch = loss.backward()?;
    let alone = expected.backward()?;
    let (again, recomputed) = model.recomputed_gradients_of(&batch, None)?;
    let loss = loss.to_scalar::<f32>()?;
    // A GPU has other kernels for passes that need no gradient.
    let allowed = if test_device().is_cpu() { 0.0 } else { 1e-6 * loss };
    assert!((again - loss).abs() <= allowed, "{again}, not {loss}");
    for update in adapter.updates.values() {
        let b = update.b();
        let expected = alone.get(b).ok_or("alone")?;
        assert_close("gradient", of_batch.get(b).ok_or("packed")?, expected, 1e-4);
        assert_close("recomputed", recomputed.get(b).ok_or("recomputed")?, expected, 1e-4);
    }
    Ok(())
}
