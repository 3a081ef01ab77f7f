//! Each row of a padded batch equals the row alone; a row with no visible key gives no NaN.

use crate::common::{Result, assert_close, some_ids};
use crate::models::random_model;
use candle_core::{DType, Device, IndexOp, Tensor};
use candle_fused::attention::{Mask, Sdpa};
use gpt2_model::mask::{left_padding, position_ids};
use gpt2_model::{ForwardArgs, KvCache};

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
    Ok((rows, Tensor::cat(&ids, 0)?, Tensor::new(mask, &Device::Cpu)?))
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
    let mut cache = KvCache::new(model.config(), 3, 9, DType::F32, &Device::Cpu)?;
    let mut last = None;
    for (start, len) in [(0, 5), (5, 3), (8, 1)] {
        let (mask, positions) = (mask.narrow(1, 0, start + len)?, positions.narrow(1, start, len)?);
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
    let q = Tensor::randn(0f32, 1., (b, h, t, d), &Device::Cpu)?;
    // Row 0 hides its first two keys, row 1 all of them.
    let padding = Tensor::new(&[[0u8, 0, 1, 1], [0, 0, 0, 0]], &Device::Cpu)?;
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
    let short = Tensor::ones((1, 3), DType::U8, &Device::Cpu)?;
    let float = Tensor::ones((1, 4), DType::F32, &Device::Cpu)?;
    for mask in [&short, &float] {
        let args = ForwardArgs { attention_mask: Some(mask), ..Default::default() };
        let err = model.forward(&ids, args).expect_err("does not fit").to_string();
        assert!(err.contains("attention_mask") && err.contains("[1, 4]"), "{err}");
    }
    let beyond = Tensor::new(&[[0u32, 1, 2, 8]], &Device::Cpu)?;
    let args = ForwardArgs { position_ids: Some(&beyond), ..Default::default() };
    let err = model.forward(&ids, args).expect_err("8 is N").to_string();
    assert!(err.contains("position 8") && err.contains("n_positions"), "{err}");
    Ok(())
}

#[test]
fn positions_count_visible_tokens() -> Result {
    let mask = left_padding(&[3, 1, 0], 3, &Device::Cpu)?;
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
    // A mask that covers the cache, too, and has any integer dtype.
    let mut cache = KvCache::new(model.config(), 3, 9, DType::F32, &Device::Cpu)?;
    let (first, positions) = (mask.narrow(1, 0, 8)?, position_ids(&mask)?.narrow(1, 0, 8)?);
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
    let empty = Tensor::zeros((3, 9), DType::U8, &Device::Cpu)?;
    model.forward(&ids, ForwardArgs { attention_mask: Some(&empty), ..Default::default() })?;
    Ok(())
}
