//! The operations of a training step besides layers: losses, dropout, and the squares of gradients.

use crate::common::{Result, assert_close, has_empty_tensors, test_device};
use crate::random;
use candle_core::{D, DType, Tensor, Var};
use candle_fused::WeightLayout::{InOut, OutIn};
use candle_fused::adamw::{CHUNK, squares_of_chunks, sum_of_squares};
use candle_fused::{Dispatch, Dropout, Implementation, Weight, cross_entropies, cross_entropy};
use rand_philox::philox4x32_10;

fn numbers(name: &str, shape: &[usize]) -> Result<Tensor> {
    Ok(random(5, name, 1., shape)?)
}

/// The loss of each row, one number at a time.
fn by_definition(logits: &Tensor, targets: &[u32]) -> Result<Vec<f64>> {
    let rows = logits.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let loss = |(row, target): (Vec<f64>, &u32)| {
        row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[*target as usize]
    };
    Ok(rows.into_iter().zip(targets).map(loss).collect())
}

#[test]
fn losses_of_rows_are_the_definition_and_their_mean_is_the_loss() -> Result {
    for (rows, v) in [(1, 1), (5, 7), (9, 70)] {
        let ids: Vec<u32> = (0..).map(|i| i * 31 % v).take(rows).collect();
        let targets = Tensor::new(&ids[..], &test_device())?;
        let logits = (numbers("logits", &[v as usize, rows])?.t()? * 5.)?;
        let expected = by_definition(&logits, &ids)?;
        for dtype in [DType::F32, DType::F64] {
            let logits = logits.to_dtype(dtype)?;
            let got = cross_entropies(&logits, &targets)?;
            assert_eq!(got.len(), rows);
            for (got, expected) in got.iter().zip(&expected) {
                assert!((got - expected).abs() < 3e-6, "{dtype:?}: {got}, not {expected}");
            }
            let mean = cross_entropy(&logits, &targets)?.to_dtype(DType::F64)?.to_scalar::<f64>()?;
            assert!((mean - expected.iter().sum::<f64>() / rows as f64).abs() < 3e-6, "{dtype:?}");
        }
    }
    let logits = numbers("logits", &[2, 5])?;
    for (targets, logits) in [
        (Tensor::new(&[0u32, 5], &test_device())?, logits.clone()),
        (Tensor::new(&[-1i64, 0], &test_device())?, logits.clone()),
        (Tensor::new(&[0u32], &test_device())?, logits.clone()),
        (Tensor::new(&[0f32, 1.], &test_device())?, logits.clone()),
        (Tensor::new(&[0u32], &test_device())?.narrow(0, 0, 0)?, logits.narrow(0, 0, 0)?),
    ] {
        assert!(cross_entropies(&logits, &targets).is_err() && cross_entropy(&logits, &targets).is_err());
    }
    Ok(())
}

/// Plain and frozen, in either layout, in f32 and f16, with and without a gradient.
#[test]
fn the_loss_of_a_weight_is_that_of_its_logits() -> Result {
    let (rows, c, v) = (9, 32, 70);
    let ids: Vec<u32> = (0..9).map(|i| i * 31 % 70).collect();
    let targets = Tensor::new(&ids[..], &test_device())?;
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 5e-3)] {
        let of =
            |name: &str, shape: &[usize]| -> Result<Tensor> { Ok(numbers(name, shape)?.to_dtype(dtype)?) };
        let x = Var::from_tensor(&of("x", &[rows, c])?)?;
        let table = of("table", &[v, c])?;
        let wide = table.to_dtype(DType::F64)?;
        let logits = x.as_detached_tensor().to_dtype(DType::F64)?.matmul(&wide.t()?)?;
        let expected = by_definition(&logits, &ids)?.iter().sum::<f64>() / rows as f64;
        let expected = Tensor::new(expected, &test_device())?;
        // softmax - onehot, over the rows, times the table
        let softmax = candle_nn::ops::softmax(&logits, D::Minus1)?;
        let onehot = Tensor::from_iter(
            ids.iter().flat_map(|id| (0..70).map(move |j| f64::from(u8::from(*id == j)))),
            &test_device(),
        )?;
        let slopes = ((softmax - onehot.reshape((rows, v))?)? / rows as f64)?;
        let gradient = slopes.matmul(&wide)?;
        let turned = table.t()?.contiguous()?;
        for weight in [
            Weight::plain(table.clone(), OutIn)?,
            Weight::plain(turned.clone(), InOut)?,
            Weight::pack(&table, OutIn)?,
            Weight::pack(&turned, InOut)?,
        ] {
            let loss = weight.cross_entropy(&x, &targets)?;
            assert_close(&format!("{weight:?}"), &loss, &expected, tolerance);
            let gradients = loss.backward()?;
            let of_x = gradients.get(&x).ok_or("no gradient")?;
            assert_close(&format!("gradient of {weight:?}"), of_x, &gradient, 2. * tolerance);
            let constant = weight.cross_entropy(&x.as_detached_tensor(), &targets)?;
            assert_close(&format!("{weight:?} without a gradient"), &constant, &expected, tolerance);
        }
    }
    let none = numbers("x", &[1, c])?.narrow(0, 0, 0)?;
    let table = numbers("table", &[v, c])?;
    let targets = Tensor::zeros(0, DType::U32, &test_device())?;
    let dispatch = Dispatch::of(Implementation::Auto, &none);
    assert!(candle_fused::linear_cross_entropy(&none, &table, &targets, dispatch).is_err());
    let weight = Weight::pack(&table, OutIn)?;
    assert!(weight.cross_entropy(&none, &targets).is_err());
    let refused = weight.cross_entropy(Var::from_tensor(&none)?.as_tensor(), &targets);
    assert!(refused.expect_err("no rows").to_string().contains("must be f32 rows"));
    Ok(())
}

/// An element stays if its word of Philox4x32-10, under the seed at (column / 4, row, stream), is not below the rate.
#[test]
#[allow(clippy::cast_possible_truncation)] // halves of words
fn dropout_is_decided_by_philox_alone() -> Result {
    let halves = |x: u64| [x as u32, (x >> 32) as u32];
    for (rate, seed, stream) in
        [(0.3, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210), (0.5, 1 << 32, 5), (0.9, 7, 1 << 32)]
    {
        let dropout = Dropout::new(rate, seed, stream)?;
        assert!((dropout.rate() - rate).abs() < 1e-12);
        for shape in [vec![2, 3, 13], vec![50, 1], vec![4, 4], vec![2, 1100], vec![9], vec![]] {
            let columns = shape.last().copied().unwrap_or(1);
            let x = Tensor::ones(shape.clone(), DType::F32, &test_device())?;
            for (n, x) in dropout.apply(&x)?.flatten_all()?.to_vec1::<f32>()?.into_iter().enumerate() {
                let (row, column) = (n / columns, n % columns);
                let [low, high] = halves(stream);
                let words = philox4x32_10([column as u32 / 4, row as u32, low, high], halves(seed));
                let dropped = f64::from(words[column % 4]) < rate * 2f64.powi(32);
                let expected = if dropped { 0. } else { 1. / (1. - rate) };
                assert!((f64::from(x) - expected).abs() < 1e-6, "{shape:?}, row {row}, column {column}");
            }
        }
        for nothing in [vec![3, 0], vec![0, 5], vec![0]].into_iter().filter(|_| has_empty_tensors()) {
            let x = Tensor::ones(nothing.clone(), DType::F32, &test_device())?;
            assert_eq!(dropout.apply(&x)?.dims(), nothing);
        }
    }
    Ok(())
}

#[test]
fn squares_are_summed_over_chunks_in_f64() -> Result {
    let x = numbers("x", &[3, CHUNK / 2 + 5])?;
    let values: Vec<f64> = x.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
    let sum = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>();
    let near = |got: f64, expected: f64| {
        assert!((got - expected).abs() <= 1e-12 * expected, "{got}, not {expected}");
    };
    // A view, and dtypes that no kernel reads.
    for x in [x.clone(), x.t()?.contiguous()?.t()?, x.to_dtype(DType::F64)?] {
        let chunks = squares_of_chunks(&x)?;
        assert_eq!(chunks.len(), values.len().div_ceil(CHUNK));
        values.chunks(CHUNK).zip(&chunks).for_each(|(chunk, got)| near(*got, sum(chunk)));
        near(sum_of_squares(&x)?, sum(&values));
    }
    for length in [1, CHUNK] {
        let part = x.flatten_all()?.narrow(0, 0, length)?.to_dtype(DType::F64)?;
        assert_eq!(squares_of_chunks(&part)?.len(), 1);
        near(sum_of_squares(&part)?, sum(&values[..length]));
    }
    let half = x.to_dtype(DType::BF16)?;
    let rounded: Vec<f64> = half.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
    near(sum_of_squares(&half)?, sum(&rounded));
    Ok(())
}
