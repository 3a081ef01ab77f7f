//! Dropout on the weights: which row of the mask belongs to which query, and how far the rows go.

use crate::common::{Result, max_abs, test_device};
use crate::random;
use candle_core::{DType, Tensor};
use candle_fused::Dropout;
use candle_fused::Implementation::{Eager, Fused};
use candle_fused::attention::{Chosen, HeadLayout, Lengths, Mask, Sdpa, Wanted, Window};

fn assert_equal(what: &str, got: &Tensor, expected: &Tensor) -> Result {
    assert_eq!(got.dims(), expected.dims(), "{what}");
    let error = max_abs(&(got - expected)?)?;
    assert!(error < 1e-5, "{what}: {error}");
    Ok(())
}

/// Rows of the mask, (rows, S): 0 or the factor of what stays.
fn mask_rows(dropout: Dropout, first: usize, rows: usize, s: usize) -> Result<Tensor> {
    let ones = Tensor::ones((first + rows, s), DType::F32, &test_device())?;
    Ok(dropout.apply(&ones)?.narrow(0, first, rows)?)
}

/// Row `(b·H + h)·T + i` belongs to query i of head h of batch row b, with H and h counted over the layer.
#[test]
fn each_query_has_its_row_of_the_mask() -> Result {
    let (b, h, t, s) = (2, 3, 6, 9);
    let q = random(1, "q", 1., (b, h, t, 8))?;
    let k = random(1, "k", 1., (b, h, s, 8))?;
    let v = random(1, "v", 1., (b, h, s, 8))?;
    let dropout = Dropout::new(0.5, 3, 4)?;
    for implementation in [Fused, Eager] {
        let all = Sdpa { implementation, ..Sdpa::default() };
        let plain = all.weights(&q, &k, Mask::default(), &Chosen::default())?;
        for (heads, first, total) in [(None, 0, h), (Some(HeadLayout::all(8, 8).part(4, h)?), 4, 8)] {
            let rows = |b: usize| mask_rows(dropout, (b * total + first) * t, h * t, s);
            let mask = Tensor::stack(&[rows(0)?, rows(1)?], 0)?.reshape((b, h, t, s))?;
            let expected = (&plain * mask)?;
            let dropping = Sdpa { heads, dropout: Some(dropout), ..all.clone() };
            let (context, weights) = dropping.forward_with_weights(&q, &k, &v, Mask::default())?;
            assert_equal("weights", &weights, &expected)?;
            let alone = dropping.weights(&q, &k, Mask::default(), &Chosen::default())?;
            assert_equal("weights alone", &alone, &expected)?;
            assert_equal("context", &context, &Sdpa::context(&expected, &v)?)?;
        }
    }
    Ok(())
}

/// The rows of a sequence follow those of the sequences before it.
#[test]
fn each_sequence_has_its_rows_of_the_mask() -> Result {
    let h = 3;
    let lengths = [5, 2, 6];
    let x = random(1, "x", 1., (13, h, 8))?;
    let dropout = Dropout::new(0.5, 3, 4)?;
    for implementation in [Fused, Eager] {
        let attention =
            Sdpa { window: Window::ALL, dropout: Some(dropout), implementation, ..Sdpa::default() };
        let wanted = Wanted { weights: &[Chosen::default()], ..Wanted::default() };
        let packed = attention.attend_varlen(&x, &x, &x, &Lengths::of_both(&lengths), wanted)?;
        let mut first = 0;
        for (one, len) in packed.iter().zip(lengths) {
            let part = x.narrow(0, first, len)?.transpose(0, 1)?.unsqueeze(0)?; // (1, H, len, D)
            let plain = Sdpa { dropout: None, ..attention.clone() };
            let plain = plain.weights(&part, &part, Mask::default(), &Chosen::default())?;
            let mask = mask_rows(dropout, first * h, h * len, len)?.reshape((1, h, len, len))?;
            let expected = (plain * mask)?;
            assert_equal("weights", &one.weights[0], &expected)?;
            assert_equal("context", &one.context, &Sdpa::context(&expected, &part)?)?;
            first += len;
        }
    }
    Ok(())
}

/// A mask has 2^32 rows. A call on few heads of a large layer may need more.
#[test]
fn more_rows_than_the_mask_has_are_refused() -> Result {
    let run = |total: usize, (b, t): (usize, usize), rate: Option<f64>| -> Result<String> {
        let q = random(1, "q", 1., (b, 2, t, 1))?;
        let attention = Sdpa {
            heads: Some(HeadLayout::all(total, 1).part(0, 2)?),
            dropout: rate.map(|rate| Dropout::new(rate, 1, 2)).transpose()?,
            ..Sdpa::default()
        };
        let error = attention.forward(&q, &q, &q, Mask::default()).err();
        Ok(error.map(|error| error.to_string()).unwrap_or_default())
    };
    let most = u32::MAX as usize;
    for (total, sizes, rows) in
        [(1 << 31, (1, 3), "6442450944"), (1 << 31, (2, 1), "4294967296"), (most + 1, (1, 1), "4294967296")]
    {
        let message = run(total, sizes, Some(0.5))?;
        assert!(message.contains(&format!("dropout on {rows} rows")), "{message:?}");
        for nothing in [None, Some(0.0)] {
            assert_eq!(run(total, sizes, nothing)?, "");
        }
    }
    assert_eq!(run(most, (1, 1), Some(0.5))?, "");
    // The rows of earlier sequences count.
    let x = random(1, "x", 1., (4, 2, 1))?;
    let attention = Sdpa {
        heads: Some(HeadLayout::all(1 << 30, 1).part(0, 2)?),
        dropout: Some(Dropout::new(0.5, 1, 2)?),
        ..Sdpa::default()
    };
    let message =
        attention.forward_varlen(&x, &x, &x, &Lengths::of_both(&[2, 2])).err().ok_or("2^32 rows")?;
    assert!(message.to_string().contains("dropout on 4294967296 rows"), "{message}");
    let x = x.narrow(0, 0, 3)?;
    assert!(attention.forward_varlen(&x, &x, &x, &Lengths::of_both(&[2, 1])).is_ok());
    Ok(())
}

/// Weights that stay under a rate of 0.99 count a hundredfold, and the sums of a tile must not overflow. The first keys have
/// low scores; all others, under the maximum of these, have weights of nearly 2^8.
#[test]
fn large_values_under_a_high_rate_do_not_overflow() -> Result {
    let (t, s) = (96, 1920);
    let large = f32::MAX / (2 * s) as f32 / 130.0;
    let v = Tensor::full(large, (1, 1, s, 1), &test_device())?;
    let k = Tensor::from_iter((0..s).map(|key| if key < 192 { 0f32 } else { 7.9 }), &test_device())?;
    let q = Tensor::ones((1, 1, t, 1), DType::F32, &test_device())?;
    let k = k.reshape((1, 1, s, 1))?;
    let run = |dtype, implementation| -> Result<Vec<f64>> {
        let attention = Sdpa {
            scale: Some(std::f64::consts::LN_2),
            window: Window::ALL,
            dropout: Some(Dropout::new(0.99, 5, 6)?),
            implementation,
            ..Sdpa::default()
        };
        let [q, k, v] = [&q, &k, &v].map(|x| x.to_dtype(dtype));
        let context = attention.forward(&q?, &k?, &v?, Mask::default())?;
        Ok((context.to_dtype(DType::F64)? / f64::from(large))?.flatten_all()?.to_vec1()?)
    };
    for (got, expected) in run(DType::F32, Fused)?.iter().zip(run(DType::F64, Eager)?) {
        assert!((got - expected).abs() <= 1e-4 * expected.max(1.0), "{got}, not {expected}");
    }
    Ok(())
}
