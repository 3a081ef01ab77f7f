//! Products of a few rows with what stands around them, in one launch of ours. The CPU has no such kernel, and says so.

use super::joined::{equal, norm_of, row, shifted, tolerance, weight};
use super::{DTYPES, device, difference, largest, numbers, rounding, wide};
use crate::common::Result;
use candle_core::{DType, Device, Tensor};
use candle_fused::Implementation::Fused;
use candle_fused::cache::RowCache;
use candle_fused::{
    Activation, Dispatch, Epilogue, Explanation, InputNorm, Weight, explain, layer_norm, linear,
};

/// Fails unless each linear layer was one launch with its product.
#[track_caller]
fn assert_one_launch(explanation: &Explanation) {
    let linear: Vec<_> = explanation.0.iter().filter(|one| one.operation == "linear").collect();
    let ours = |code: &str| code == "fused, on the GPU, with the product";
    assert!(!linear.is_empty() && linear.iter().all(|one| ours(&one.code)), "{explanation}");
}

/// Numbers (depth, width) whose products with numbers around 1 are of a few units.
fn factors(depth: usize, width: usize, dtype: DType) -> Result<Tensor> {
    let scale = 1. / (depth as f64).sqrt();
    Ok(numbers(depth * width, 50_000)?.affine(scale, 0.)?.reshape((depth, width))?.to_dtype(dtype)?)
}

/// Rows and depths that fill no block and no warp, more than lie in shared memory at once, blocks of each width, and tensors that
/// begin anywhere.
#[test]
fn products_of_a_few_rows_are_the_definition() -> Result {
    let device = device();
    for (dtype, rows, depth, width, offset) in DTYPES.into_iter().flat_map(|d| {
        [
            (d, 1, 8, 8, 0),
            (d, 2, 24, 40, 1),
            (d, 1, 768, 264, 3),
            (d, 8, 1040, 72, 0),
            (d, 5, 2200, 24, 5),
            (d, 1, 8200, 16, 0),
            (d, 3, 40, 2304, 0),
            (d, 1, 48, 3072, 1),
        ]
    }) {
        let case = format!("{dtype:?}, {rows} rows, {depth} to {width}, from {offset} on");
        let x = shifted(rows, depth, dtype, 1, offset)?;
        let bias = row(width, dtype, 200_000, offset)?;
        let residual = shifted(rows, width, dtype, 100_000, offset)?;
        let scale = row(depth, dtype, 300_000, offset)?;
        let shift = row(depth, dtype, 400_000, offset)?;
        let weight = weight(&factors(depth, width, dtype)?)?;
        let gelu = Activation::GeluTanh;
        for norm in [None, Some(InputNorm { weight: &scale, bias: &shift, eps: 1e-5 })] {
            let read = if norm.is_some() { norm_of(&x, [&scale, &shift])? } else { wide(&x)? };
            let sum = read.matmul(&wide(&weight.tensor()?)?)?.broadcast_add(&wide(&bias)?)?;
            for (what, epilogue, expected) in [
                ("the bias", Epilogue::None, sum.clone()),
                ("bias and GELU", Epilogue::Activation(gelu), gelu.forward(&sum)?),
                ("bias and residual", Epilogue::Residual(&residual), (&sum + wide(&residual)?)?),
            ] {
                let run = |x: &Tensor, epilogue| match norm {
                    None => weight.forward(x, Some(&bias), epilogue).map(Some),
                    Some(norm) => weight.forward_normed(x, norm, Some(&bias), epilogue),
                };
                let (got, explanation) = explain(|| run(&x, epilogue))?;
                if device.is_cpu() {
                    assert_eq!(got.is_none(), norm.is_some(), "{case}, {what}");
                    continue;
                }
                assert_one_launch(&explanation);
                let got = got.ok_or("no kernel")?;
                let error = difference(&got, &expected)? / largest(&expected)?;
                let tolerance = if dtype == DType::F32 { 2e-6 } else { 2. * tolerance(dtype) };
                assert!(error <= tolerance, "{case}, {what}, norm {}: {error:.1e}", norm.is_some());
                // A row has the bits that it has alone, and after a norm those of the norm and the product apart.
                if let Some(norm) = norm {
                    let dispatch = Dispatch::of(Fused, &x);
                    let normed = layer_norm(&x, norm.weight, Some(norm.bias), norm.eps, dispatch)?;
                    let apart = weight.forward(&normed, Some(&bias), epilogue)?;
                    assert!(equal(&got, &apart)?, "{case}, {what}: other bits than apart");
                }
                if let Epilogue::Residual(_) = epilogue {
                    continue;
                }
                let last = run(&x.narrow(0, rows - 1, 1)?, epilogue)?.ok_or("no kernel")?;
                assert!(equal(&last, &wide(&got.narrow(0, rows - 1, 1)?)?)?, "{case}, {what}: other bits");
            }
        }
    }
    Ok(())
}

/// NaN and infinity stay in their row or column, also where threads have no row of the weight left.
#[test]
fn a_few_rows_beside_nan_and_infinity_are_sound() -> Result {
    let device = device();
    for dtype in DTYPES {
        let (rows, depth, width) = (6, 40, 48);
        let x = shifted(rows, depth, dtype, 1, 0)?;
        let nan = Tensor::new(f64::NAN, &device)?.to_dtype(dtype)?.broadcast_as((1, depth))?;
        let beside = Tensor::cat(&[&x.narrow(0, 0, 2)?, &nan, &x.narrow(0, 3, 3)?], 0)?;
        let bias = row(width, dtype, 200_000, 0)?;
        let ones = Tensor::ones(depth, dtype, &device)?;
        let norm = InputNorm { weight: &ones, bias: &ones, eps: 1e-5 };
        let factors = wide(&factors(depth, width, dtype)?)?;
        let sound = weight(&factors.to_dtype(dtype)?)?;
        for norm in [None, Some(norm)] {
            let of = |weight: &Weight, x: &Tensor| match norm {
                None => weight.forward(x, Some(&bias), Epilogue::None).map(Some),
                Some(norm) => weight.forward_normed(x, norm, Some(&bias), Epilogue::None),
            };
            let (Some(got), Some(expected)) = (of(&sound, &beside)?, of(&sound, &x)?) else {
                assert!(device.is_cpu());
                continue;
            };
            for (first, count) in [(0, 2), (3, 3)] {
                let of = |y: &Tensor| y.narrow(0, first, count);
                assert!(equal(&of(&got)?, &wide(&of(&expected)?)?)?, "{dtype:?}: another row changed");
            }
            let row = wide(&got.narrow(0, 2, 1)?)?.flatten_all()?.to_vec1::<f64>()?;
            assert!(row.iter().all(|x| x.is_nan()), "{dtype:?}: {row:?}");
            // An infinite weight of the first input shows in its column, as infinity.
            let mut infinite = factors.to_vec2::<f64>()?;
            infinite[0][3] = f64::INFINITY;
            let infinite = weight(&Tensor::new(infinite, &Device::Cpu)?.to_dtype(dtype)?)?;
            let got = of(&infinite, &x)?.map(|got| wide(&got)?.to_vec2::<f64>()).transpose()?;
            let expected = wide(&expected)?.to_vec2::<f64>()?;
            for (got, expected) in got.unwrap_or_default().iter().zip(&expected) {
                for (column, (got, expected)) in got.iter().zip(expected).enumerate() {
                    let sound = if column == 3 { got.is_infinite() } else { (got - expected).abs() <= 0. };
                    assert!(sound, "{dtype:?}, column {column}: {got}, {expected}");
                }
            }
        }
    }
    Ok(())
}

/// The layer norm, the product and the cache in one launch: the bits of the product by itself, and the definition.
#[test]
fn a_normed_product_that_goes_into_a_cache_is_the_definition() -> Result {
    let device = device();
    for (dtype, b, queries, heads, d, steps) in DTYPES.into_iter().flat_map(|dtype| {
        [
            (dtype, 1, 2, 4, 64, [5, 1, 3, 1]),
            (dtype, 4, 3, 2, 8, [2, 1, 1, 2]),
            (dtype, 8, 1, 2, 40, [1, 1, 1, 1]),
        ]
    }) {
        let case = format!("{dtype:?}, {b} texts, {queries} heads over {heads} of keys and values, {d} wide");
        let (n_in, width) = (48, (queries + heads) * d);
        let weight = weight(&factors(n_in, width, dtype)?)?;
        let bias = row(width, dtype, 200_000, 1)?;
        let scale = row(n_in, dtype, 300_000, 3)?;
        let shift = row(n_in, dtype, 400_000, 0)?;
        let norm = InputNorm { weight: &scale, bias: &shift, eps: 1e-5 };
        let mut cache = RowCache::new([b, heads, 11, d], dtype, &device)?;
        for (i, t) in steps.into_iter().enumerate() {
            let x = shifted(b * t, n_in, dtype, 1000 * i, 0)?.reshape((b, t, n_in))?;
            let append = || cache.append_normed_product(&weight, Some(&bias), &x, norm);
            let (appended, explanation) = explain(append)?;
            let Some((q, rows)) = appended else {
                assert!(device.is_cpu() && cache.is_empty(), "{case}: no kernel");
                return Ok(());
            };
            assert_one_launch(&explanation);
            assert_eq!((q.dims(), rows.dims()), (&[b, t, queries, d][..], &[b, heads, cache.len(), d][..]));
            let alone = weight.forward_normed(&x, norm, Some(&bias), Epilogue::None)?.ok_or("no kernel")?;
            let alone = wide(&alone.reshape((b, t, queries + heads, d))?)?;
            let new = rows.narrow(2, cache.len() - t, t)?.transpose(1, 2)?;
            assert!(equal(&q, &alone.narrow(2, 0, queries)?)?, "{case}: other queries");
            assert!(equal(&new, &alone.narrow(2, queries, heads)?)?, "{case}: other rows");
            let read = norm_of(&x.flatten_to(1)?, [&scale, &shift])?;
            let expected = read.matmul(&wide(&weight.tensor()?)?)?.broadcast_add(&wide(&bias)?)?;
            let expected = expected.reshape((b, t, queries + heads, d))?;
            let error = difference(&new, &expected.narrow(2, queries, heads)?)? / largest(&expected)?;
            // The norm is rounded, and then the sum.
            assert!(error <= 2. * tolerance(dtype), "{case}: {error:.1e}");
        }
        // What does not fit changes nothing.
        let x = shifted(b * 8, n_in, dtype, 9, 0)?.reshape((b, 8, n_in))?;
        let before = wide(&cache.rows()?)?;
        assert!(cache.append_normed_product(&weight, Some(&bias), &x, norm)?.is_none(), "{case}: no room");
        assert!(equal(&cache.rows()?, &before)?, "{case}: rows changed");
    }
    Ok(())
}

/// More rows, rows of parts of 16 bytes, and weights that are views or begin anywhere have no kernel; they are computed as ever.
#[test]
fn what_has_no_kernel_for_a_few_rows_is_computed_apart() -> Result {
    let device = device();
    for dtype in DTYPES {
        let sizes = [(9, 24, 40), (3, 25, 40), (3, 24, 42)];
        let plain = sizes.map(|(rows, depth, width)| (rows, factors(depth, width, dtype)));
        let wider = factors(24, 48, dtype)?.to_device(&device)?.narrow(1, 8, 40)?;
        let later = shifted(24, 40, dtype, 50_000, 1)?.affine(0.2, 0.)?;
        let later = Tensor::cat(&[later.flatten_all()?, row(7, dtype, 1, 0)?], 0)?.narrow(0, 3, 960)?;
        let views = [(3, Ok(wider)), (3, later.reshape((24, 40)).map_err(Into::into))];
        for (rows, factors) in plain.into_iter().chain(views) {
            let factors = factors?.to_device(&device)?;
            let (depth, width) = factors.dims2()?;
            let case = format!("{dtype:?}, {rows} rows, {depth} to {width}");
            let x = shifted(rows, depth, dtype, 1, 0)?;
            let bias = row(width, dtype, 200_000, 0)?;
            let dispatch = Dispatch::of(Fused, &x);
            let run = || linear(&x, &factors, Some(&bias), Epilogue::None, dispatch);
            let (got, explanation) = explain(run)?;
            assert!(explanation.0.iter().all(|one| !one.code.ends_with("with the product")), "{case}");
            let expected = wide(&x)?.matmul(&wide(&factors)?)?.broadcast_add(&wide(&bias)?)?;
            let error = difference(&got, &expected)? / largest(&expected)?;
            let tolerance = if dtype == DType::F32 { 1e-6 } else { 2. * rounding(dtype) };
            assert!(error <= tolerance, "{case}: {error:.1e}");
        }
        // A weight that learns, or a norm that does not fit.
        let weight = weight(&factors(24, 40, dtype)?)?;
        let bias = row(40, dtype, 200_000, 0)?;
        let x = shifted(3, 24, dtype, 1, 0)?;
        let one = row(24, dtype, 1, 0)?;
        let learns = candle_core::Var::from_tensor(&one)?;
        let norm = InputNorm { weight: learns.as_tensor(), bias: &one, eps: 1e-5 };
        assert!(weight.forward_normed(&x, norm, Some(&bias), Epilogue::None)?.is_none());
        let norm = InputNorm { weight: &bias, bias: &one, eps: 1e-5 };
        if !device.is_cpu() {
            assert!(weight.forward_normed(&x, norm, Some(&bias), Epilogue::None).is_err());
        }
    }
    Ok(())
}
