//! Operations that a GPU does in one pass: a residual and the layer norm of the sum, a product that goes into a cache, and the
//! embeddings of tokens and positions. The CPU has none of these kernels, and says so.

use super::{DTYPES, assert_ours, device, difference, largest, numbers, rounding, wide};
use crate::common::Result;
use candle_core::{D, DType, Device, Tensor};
use candle_fused::Implementation::Fused;
use candle_fused::cache::RowCache;
use candle_fused::{Dispatch, Epilogue, Weight, WeightLayout, explain, layer_norm};

/// Numbers (rows, width) on the device, from element `offset` of their memory on.
pub(super) fn shifted(rows: usize, width: usize, dtype: DType, salt: usize, offset: usize) -> Result<Tensor> {
    let all = numbers(offset + rows * width, salt)?.to_dtype(dtype)?.to_device(&device())?;
    Ok(all.narrow(0, offset, rows * width)?.reshape((rows, width))?)
}

pub(super) fn row(width: usize, dtype: DType, salt: usize, offset: usize) -> Result<Tensor> {
    Ok(shifted(1, width, dtype, salt, offset)?.squeeze(0)?)
}

/// A weight on the device, in (in, out).
pub(super) fn weight(tensor: &Tensor) -> Result<Weight> {
    let weight = Weight::plain(tensor.to_device(&device())?, WeightLayout::InOut)?;
    Ok(weight.with_implementation(Fused))
}

/// The weight that makes the product x itself.
fn identity(width: usize, dtype: DType) -> Result<Weight> {
    weight(&Tensor::eye(width, DType::F32, &Device::Cpu)?.to_dtype(dtype)?)
}

pub(super) fn equal(got: &Tensor, expected: &Tensor) -> Result<bool> {
    Ok(got.dims() == expected.dims() && difference(got, &wide(expected)?)? <= 0.0)
}

/// The layer norm of each row in f64.
pub(super) fn norm_of(x: &Tensor, [scale, shift]: [&Tensor; 2]) -> Result<Tensor> {
    let centered = wide(x)?.broadcast_sub(&wide(x)?.mean_keepdim(D::Minus1)?)?;
    let deviation = (centered.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?.sqrt()?;
    Ok(centered.broadcast_div(&deviation)?.broadcast_mul(&wide(scale)?)?.broadcast_add(&wide(shift)?)?)
}

/// Allows for f32 sums and, in f16 and bf16, one rounding.
pub(super) fn tolerance(dtype: DType) -> f64 {
    if dtype == DType::F32 { 1e-6 } else { rounding(dtype) }
}

/// Rows that do not fill a block or a warp, and tensors that begin anywhere in their memory.
#[test]
fn a_residual_and_the_norm_of_the_sum_are_the_definition() -> Result {
    let device = device();
    for (dtype, rows, width, offset) in
        DTYPES.into_iter().flat_map(|d| [(d, 10, 768, 0), (d, 13, 32, 1), (d, 9, 264, 3), (d, 17, 8, 5)])
    {
        let case = format!("{dtype:?}, {rows} rows of {width} from {offset} on");
        let x = shifted(rows, width, dtype, 1, offset)?;
        let residual = shifted(rows, width, dtype, 100_000, offset)?;
        let bias = row(width, dtype, 200_000, offset)?;
        let scale = row(width, dtype, 300_000, offset)?;
        let shift = row(width, dtype, 400_000, offset)?;
        let weight = identity(width, dtype)?;
        let (joined, explanation) =
            explain(|| weight.forward_and_norm(&x, Some(&bias), &residual, [&scale, &shift], 1e-5))?;
        let Some((sum, normed)) = joined else {
            assert!(device.is_cpu(), "{case}: no kernel");
            continue;
        };
        assert_ours(&explanation, "linear", &device);
        let expected = (wide(&x)? + wide(&residual)?)?.broadcast_add(&wide(&bias)?)?;
        let error = difference(&sum, &expected)? / largest(&expected)?;
        assert!(error <= tolerance(dtype), "{case}, the sum: {error:.1e}");
        let expected = norm_of(&sum, [&scale, &shift])?;
        let error = difference(&normed, &expected)? / largest(&expected)?;
        assert!(error <= tolerance(dtype), "{case}, its norm: {error:.1e}");
        // The bits of the two operations one after the other.
        let sum_alone = weight.forward(&x, Some(&bias), Epilogue::Residual(&residual))?;
        let dispatch = Dispatch::of(Fused, &x);
        let normed_alone = layer_norm(&sum_alone, &scale, Some(&shift), 1e-5, dispatch)?;
        assert!(equal(&sum, &sum_alone)? && equal(&normed, &normed_alone)?, "{case}: other bits");
    }
    Ok(())
}

/// A NaN stays in its row.
#[test]
fn rows_beside_nan_are_normalized() -> Result {
    let device = device();
    for dtype in DTYPES {
        let rows = 12;
        let width = 40;
        let numbers = shifted(rows, width, dtype, 1, 0)?;
        let nan = Tensor::new(f64::NAN, &device)?.to_dtype(dtype)?.broadcast_as((1, width))?;
        let x = Tensor::cat(&[&numbers.narrow(0, 0, 2)?, &nan, &numbers.narrow(0, 3, 9)?], 0)?;
        let residual = shifted(rows, width, dtype, 100_000, 0)?;
        let one = row(width, dtype, 200_000, 0)?;
        let norm = [&one, &one];
        let weight = weight(&Tensor::zeros((width, width), dtype, &Device::Cpu)?)?;
        // Of a product with zeros, the row of the NaN alone is NaN.
        let of = |x: &Tensor| weight.forward_and_norm(x, Some(&one), &residual, norm, 1e-5);
        let (Some((sum, normed)), Some((sound_sum, sound_normed))) = (of(&x)?, of(&numbers)?) else {
            assert!(device.is_cpu(), "{dtype:?}: no kernel");
            continue;
        };
        for (got, sound) in [(sum, sound_sum), (normed, sound_normed)] {
            for (first, count) in [(0, 2), (3, 9)] {
                assert!(equal(&got.narrow(0, first, count)?, &sound.narrow(0, first, count)?)?, "{dtype:?}");
            }
            let row = wide(&got.narrow(0, 2, 1)?)?.flatten_all()?.to_vec1::<f64>()?;
            assert!(row.iter().all(|x| x.is_nan()), "{dtype:?}: {row:?}");
        }
    }
    Ok(())
}

/// Prompts and tokens, several texts, heads that share keys, a bias that begins anywhere: queries, keys and values of the
/// definition, and the bits of a product that is copied into a cache.
#[test]
fn a_product_that_goes_into_a_cache_is_the_definition() -> Result {
    let device = device();
    for (dtype, b, queries, heads, d, offset) in DTYPES.into_iter().flat_map(|dtype| {
        [(dtype, 1, 2, 4, 64, 0), (dtype, 3, 3, 2, 8, 1), (dtype, 2, 1, 2, 40, 3), (dtype, 2, 0, 2, 16, 0)]
    }) {
        let case = format!("{dtype:?}, {b} texts, {queries} heads over {heads} of keys and values, {d} wide");
        let n_in = 24;
        let width = (queries + heads) * d;
        let numbers = numbers(n_in * width, 50_000)?.affine(0.2, 0.)?.to_dtype(dtype)?;
        let weight = weight(&numbers.reshape((n_in, width))?)?;
        let bias = row(width, dtype, 200_000, offset)?;
        let mut joined = RowCache::new([b, heads, 11, d], dtype, &device)?;
        let mut apart = RowCache::new([b, heads, 11, d], dtype, &device)?;
        for (i, t) in [5, 1, 3, 1].into_iter().enumerate() {
            let x = shifted(b * t, n_in, dtype, 1000 * i, 0)?.reshape((b, t, n_in))?;
            let (appended, explanation) = explain(|| joined.append_product(&weight, Some(&bias), &x))?;
            let Some((q, rows)) = appended else {
                assert!(device.is_cpu() && joined.is_empty(), "{case}: no kernel");
                return Ok(());
            };
            assert_ours(&explanation, "linear", &device);
            let product = weight.forward(&x, Some(&bias), Epilogue::None)?;
            let product = product.reshape((b, t, queries + heads, d))?;
            let held = apart.append(&product.narrow(2, queries, heads)?.transpose(1, 2)?)?;
            assert_eq!(joined.len(), apart.len());
            assert!(equal(&rows, &held)?, "{case}: other rows");
            assert_eq!(q.dims(), [b, t, queries, d]);
            if queries > 0 {
                assert!(equal(&q, &product.narrow(2, 0, queries)?)?, "{case}: other queries");
            }
            let expected = wide(&x)?.flatten_to(1)?.matmul(&wide(&weight.tensor()?)?)?;
            let expected = expected.broadcast_add(&wide(&bias)?)?.reshape((b, t, queries + heads, d))?;
            let new = rows.narrow(2, joined.len() - t, t)?.transpose(1, 2)?;
            let error = difference(&new, &expected.narrow(2, queries, heads)?)? / largest(&expected)?;
            // The product is rounded, and then the sum with the bias.
            let rounded = if dtype == DType::F32 { 1e-6 } else { 2. * rounding(dtype) };
            assert!(error <= rounded, "{case}: {error:.1e}");
        }
        // What does not fit changes nothing.
        let x = shifted(2 * b, n_in, dtype, 9, 0)?.reshape((b, 2, n_in))?;
        assert!(joined.append_product(&weight, Some(&bias), &x)?.is_none(), "{case}: no room");
        assert!(equal(&joined.rows()?, &apart.rows()?)?, "{case}: rows changed");
        joined.truncate(4);
        assert!(equal(&joined.rows()?, &apart.rows()?.narrow(2, 0, 4)?)?, "{case}: after going back");
    }
    Ok(())
}

/// Positions in a row, those of a list for all texts and of a list for each, and tables that begin anywhere.
#[test]
fn embeddings_and_positions_are_the_definition() -> Result {
    let device = device();
    let v = 50;
    let n = 20;
    for (dtype, b, t, c, first, offset) in DTYPES
        .into_iter()
        .flat_map(|d| [(d, 1, 1, 768, 19, 0), (d, 3, 5, 8, 4, 1), (d, 2, 7, 264, 0, 3), (d, 1, 20, 40, 0, 0)])
    {
        let case = format!("{dtype:?}, {b} texts of {t}, {c} wide, from {first} and {offset}");
        let table = shifted(v, c, dtype, 1, offset)?;
        let weight = Weight::plain(table.clone(), WeightLayout::OutIn)?.with_implementation(Fused);
        let positions = shifted(n, c, dtype, 100_000, offset)?;
        let some = |step: usize, below: u32, rows: usize| -> Result<Tensor> {
            let all: Vec<u32> = (3..).step_by(step).map(|i: u32| i % below).take(rows * t).collect();
            Ok(Tensor::from_vec(all, (rows, t), &Device::Cpu)?)
        };
        let ids = some(31, 50, b)?;
        let list = |rows| some(7, 20, rows);
        for list in [None, Some(list(1)?), Some(list(b)?)] {
            let on_device = list.as_ref().map(|list| list.to_device(&device)).transpose()?;
            let got = weight.columns_and_positions(
                &ids.to_device(&device)?,
                &positions,
                first,
                on_device.as_ref(),
            )?;
            let Some(got) = got else {
                assert!(device.is_cpu(), "{case}: no kernel");
                continue;
            };
            let places = match &list {
                None => wide(&positions)?.narrow(0, first, t)?.unsqueeze(0)?,
                Some(list) => {
                    wide(&positions)?.index_select(&list.flatten_all()?, 0)?.reshape((list.dim(0)?, t, c))?
                }
            };
            let tokens = wide(&table)?.index_select(&ids.flatten_all()?, 0)?.reshape((b, t, c))?;
            // The one rounding of the sum.
            let expected = tokens.broadcast_add(&places)?.to_dtype(dtype)?;
            assert!(equal(&got, &expected)?, "{case}, {list:?}");
        }
    }
    Ok(())
}

/// A row that a table does not have is NaN, and no other.
#[test]
fn ids_and_positions_beyond_the_tables_are_nan() -> Result {
    let device = device();
    let weight = Weight::plain(shifted(5, 16, DType::F32, 1, 0)?, WeightLayout::OutIn)?;
    let weight = weight.with_implementation(Fused);
    let positions = shifted(4, 16, DType::F32, 1000, 0)?;
    let ids = Tensor::new(&[[0u32, 5, 4, u32::MAX, 1]], &device)?;
    let Some(got) = weight.columns_and_positions(&ids, &positions, 0, None)? else {
        assert!(device.is_cpu());
        return Ok(());
    };
    let rows = wide(&got.squeeze(0)?)?.to_vec2::<f64>()?;
    for (i, row) in rows.iter().enumerate() {
        let is_nan = [1, 3, 4].contains(&i);
        assert!(row.iter().all(|x| x.is_nan() == is_nan), "row {i}: {row:?}");
    }
    Ok(())
}
