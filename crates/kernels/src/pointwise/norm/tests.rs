use super::{layer_norm, rms_norm};
use crate::cpu::dispatch::{Dispatch, Implementation};
use crate::cpu::test_numbers::{error, numbers, wide};
use candle_core::{DType, Device, Result, Tensor, Var};

#[test]
fn keeps_its_digits_when_the_mean_is_large() -> Result<()> {
    // A spread of 1 around a mean of 4096: in f32 the one-pass variance is off by whole units.
    let x = Tensor::new(&[[4095f32, 4097., 4095., 4097.]], &Device::Cpu)?;
    let one = Tensor::new(&[1f32, 1., 1., 1.], &Device::Cpu)?;
    let y = layer_norm(&x, &one, Some(&one.zeros_like()?), 0., Dispatch::of(Implementation::Auto, &x))?
        .to_vec2::<f32>()?;
    assert_eq!(y, [[-1., 1., -1., 1.]]);
    Ok(())
}

/// Compares with f64, which runs in plain operations with their own gradients.
#[test]
fn values_and_gradients_are_those_of_f64() -> Result<()> {
    // An epsilon of 0.5 is as large as the variance, so that a wrong epsilon shows.
    let all = [1, 5, 16, 33, 100, 768].map(|width| (width, 1e-5));
    for (width, eps) in all.into_iter().chain([(1, 0.5), (33, 0.5)]) {
        for kind in ["layer norm", "without bias", "RMS norm"] {
            let numbers = |n: usize, salt: u32| -> Vec<f64> {
                let hash = |i: u32| i.wrapping_mul(2_654_435_761) >> 8; // 24 bits
                (salt..).take(n).map(|i| f64::from(hash(i)) / 8_388_608. - 0.7).collect()
            };
            let run = |dtype| -> Result<Vec<Vec<f64>>> {
                let var = |n, salt, shape: Vec<usize>| {
                    let numbers = Tensor::from_vec(numbers(n, salt), shape, &Device::Cpu)?;
                    Var::from_tensor(&numbers.to_dtype(dtype)?)
                };
                let x = var(6 * width, 1, vec![2, 3, width])?;
                let w = var(width, 2, vec![width])?;
                let b = var(width, 3, vec![width])?;
                let bias = (kind == "layer norm").then_some(b.as_tensor());
                let y = match kind {
                    "RMS norm" => rms_norm(&x, &w, eps)?,
                    _ => layer_norm(&x, &w, bias, eps, Dispatch::of(Implementation::Auto, &x))?,
                };
                let factors = Tensor::arange(0f64, 6. * width as f64, &Device::Cpu)?.sin()?;
                let weighted = (&y * factors.to_dtype(dtype)?.reshape(y.shape())?)?;
                let grads = weighted.sum_all()?.backward()?;
                let mut all = vec![y];
                for v in [&x, &w].into_iter().chain(bias.map(|_| &b)) {
                    all.push(grads.get(v).expect("a gradient").clone());
                }
                all.iter().map(|t| t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()).collect()
            };
            // A row of one number has no spread: its gradient is 0 up to rounding errors, times 1 / sqrt(eps).
            let floor = if width == 1 { 1.0 } else { 1e-30 };
            for (i, (got, expected)) in run(DType::F32)?.iter().zip(&run(DType::F64)?).enumerate() {
                let largest = expected.iter().fold(floor, |a: f64, x| a.max(x.abs()));
                for (a, b) in got.iter().zip(expected) {
                    assert!(
                        (a - b).abs() <= 3e-6 * largest,
                        "{kind}, width {width}, eps {eps}, part {i}: {a}, not {b}"
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn halves_are_computed_in_f32_and_rounded_once() -> Result<()> {
    for (dtype, rounding) in [(DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))] {
        for (rows, width) in [(1, 7), (3, 33), (20, 768)] {
            let half = |shape: &[usize], salt| numbers(shape, salt)?.to_dtype(dtype);
            let x = half(&[rows, width], 1)?;
            let w = half(&[width], 2)?;
            let b = half(&[width], 3)?;
            let layer = |x: &Tensor, w: &Tensor, b: &Tensor| {
                layer_norm(x, w, Some(b), 1e-5, Dispatch::of(Implementation::Auto, x))
            };
            let wide_x = wide(&x)?;
            let wide_w = wide(&w)?;
            for (got, expected) in [
                (layer(&x, &w, &b)?, layer(&wide_x, &wide_w, &wide(&b)?)?),
                (rms_norm(&x, &w, 1e-5)?, rms_norm(&wide_x, &wide_w, 1e-5)?),
            ] {
                assert_eq!(got.dtype(), dtype);
                let error = error(&got, &expected)?;
                assert!(error <= 1.01 * rounding, "{dtype:?}, {rows} x {width}: {error:e}");
            }
        }
    }
    Ok(())
}

#[test]
fn nan_stays_in_its_row() -> Result<()> {
    let x = Tensor::new(&[[f32::NAN, 1., 2.], [1., 2., 3.]], &Device::Cpu)?;
    let one = Tensor::ones(3, DType::F32, &Device::Cpu)?;
    let y =
        layer_norm(&x, &one, Some(&one), 1e-5, Dispatch::of(Implementation::Auto, &x))?.to_vec2::<f32>()?;
    assert!(y[0].iter().all(|x| x.is_nan()) && y[1].iter().all(|x| x.is_finite()), "{y:?}");
    Ok(())
}

#[test]
fn refuses_a_weight_of_another_width() -> Result<()> {
    let x = Tensor::zeros((2, 4), DType::F32, &Device::Cpu)?;
    let w = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    let err = layer_norm(&x, &w, Some(&w), 1e-5, Dispatch::of(Implementation::Auto, &x))
        .expect_err("3 is not 4")
        .to_string();
    assert!(err.contains("[2, 4]") && err.contains("[3]"), "{err}");
    Ok(())
}
