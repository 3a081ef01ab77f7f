//! Layer norm, what follows a product, and the loss.

use super::{DTYPES, assert_ours, device, difference, largest, numbers, rounding, wide};
use crate::common::Result;
use candle_core::{D, DType, Device, Tensor, Var};
use candle_fused::Implementation::{Eager, Fused};
use candle_fused::{Activation, Dispatch, Epilogue, explain, layer_norm, linear, linear_cross_entropy};

/// Numbers with a standard deviation of about 1.2 around a mean, different for each `salt`.
fn spread(shape: (usize, usize), mean: f64, dtype: DType, salt: usize) -> Result<Tensor> {
    Ok(numbers(shape.0 * shape.1, salt)?.affine(1., mean)?.reshape(shape)?.to_dtype(dtype)?)
}

/// Allows for f32 sums and, in f16 and bf16, one rounding.
fn tolerance(dtype: DType) -> f64 {
    if dtype == DType::F32 { 1e-6 } else { rounding(dtype) }
}

/// Rows that do not fill a block or a warp, and a mean that is large compared with the spread.
#[test]
fn layer_norm_on_the_device_is_the_definition() -> Result {
    let device = device();
    for (dtype, rows, width, mean) in
        DTYPES.into_iter().flat_map(|d| [(d, 1, 768, 0.), (d, 5, 32, 30.), (d, 9, 264, -3.), (d, 4, 8, 1.)])
    {
        let x = spread((rows, width), mean, dtype, 1)?;
        let weight = spread((1, width), 1., dtype, 100_000)?.squeeze(0)?;
        let bias = spread((1, width), 0., dtype, 200_000)?.squeeze(0)?;
        let centered = wide(&x)?.broadcast_sub(&wide(&x)?.mean_keepdim(D::Minus1)?)?;
        let deviation = (centered.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?.sqrt()?;
        let normal = centered.broadcast_div(&deviation)?;
        let expected = normal.broadcast_mul(&wide(&weight)?)?.broadcast_add(&wide(&bias)?)?;
        let [x, weight, bias] = [&x, &weight, &bias].map(|x| x.to_device(&device));
        let (x, weight, bias) = (x?, weight?, bias?);
        let dispatch = Dispatch::of(Fused, &x);
        let (got, explanation) = explain(|| layer_norm(&x, &weight, Some(&bias), 1e-5, dispatch))?;
        if !device.is_cpu() {
            assert_ours(&explanation, "layer_norm", &device);
        }
        let error = difference(&got, &expected)? / largest(&expected)?;
        assert!(error <= tolerance(dtype), "{dtype:?}, {rows} rows of {width}: {error:.1e}");
    }
    Ok(())
}

/// The weight is the identity, so that the product is x to the bit and all that is left is what follows it.
#[test]
fn what_follows_a_product_on_the_device_is_the_definition() -> Result {
    let device = device();
    for (dtype, rows, width) in
        DTYPES.into_iter().flat_map(|d| [(d, 1, 8), (d, 7, 40), (d, 3, 768), (d, 9, 40), (d, 11, 264)])
    {
        let x = spread((rows, width), 0., dtype, 1)?;
        let residual = spread((rows, width), 0., dtype, 100_000)?;
        let bias = spread((1, width), 0., dtype, 200_000)?.squeeze(0)?;
        let sum = wide(&x)?.broadcast_add(&wide(&bias)?)?;
        let onto = residual.to_device(&device)?;
        let gelu = Activation::GeluTanh;
        for (what, epilogue, expected) in [
            ("the bias", Epilogue::None, sum.clone()),
            ("bias and GELU", Epilogue::Activation(gelu), gelu.forward(&sum)?),
            ("bias and residual", Epilogue::Residual(&onto), (&sum + wide(&residual)?)?),
        ] {
            let x = x.to_device(&device)?;
            let weight = Tensor::eye(width, DType::F32, &Device::Cpu)?.to_dtype(dtype)?.to_device(&device)?;
            let dispatch = Dispatch::of(Fused, &x);
            let bias = bias.to_device(&device)?;
            let (got, explanation) = explain(|| linear(&x, &weight, Some(&bias), epilogue, dispatch))?;
            if !device.is_cpu() {
                assert_ours(&explanation, "linear", &device);
            }
            let error = difference(&got, &expected)? / largest(&expected)?;
            // The CPU rounds the product, then each step after it.
            let steps = if device.is_cpu() { 3. } else { 1. };
            assert!(
                error <= steps * tolerance(dtype),
                "{dtype:?}, {rows} rows of {width}, {what}: {error:.1e}"
            );
        }
    }
    Ok(())
}

/// A few rows, whose products are ours, more, whose products end in a pass of ours, and many, which cuBLASLt ends in f16 and bf16.
#[test]
fn linear_layers_on_the_device_are_the_definition() -> Result {
    let device = device();
    for (dtype, rows) in DTYPES.into_iter().flat_map(|dtype| [(dtype, 3), (dtype, 12), (dtype, 70)]) {
        let (n_in, n_out) = (96, 160);
        let x = spread((rows, n_in), 0., dtype, 1)?;
        let weight = spread((n_in, n_out), 0., DType::F64, 50_000)?.affine(0.06, 0.)?.to_dtype(dtype)?;
        let residual = spread((rows, n_out), 0., dtype, 100_000)?;
        let bias = spread((1, n_out), 0., dtype, 200_000)?.squeeze(0)?;
        let sum = wide(&x)?.matmul(&wide(&weight)?)?.broadcast_add(&wide(&bias)?)?;
        let onto = residual.to_device(&device)?;
        let gelu = Activation::GeluTanh;
        for (what, epilogue, expected) in [
            ("the bias", Epilogue::None, sum.clone()),
            ("bias and GELU", Epilogue::Activation(gelu), gelu.forward(&sum)?),
            ("bias and residual", Epilogue::Residual(&onto), (&sum + wide(&residual)?)?),
        ] {
            let x = x.to_device(&device)?;
            let dispatch = Dispatch::of(Fused, &x);
            let got =
                linear(&x, &weight.to_device(&device)?, Some(&bias.to_device(&device)?), epilogue, dispatch)?;
            let error = difference(&got, &expected)? / largest(&expected)?;
            // The product is rounded, and what follows it once or twice more.
            let tolerance = if dtype == DType::F32 { 1e-6 } else { 3. * rounding(dtype) };
            assert!(error <= tolerance, "{dtype:?}, {rows} rows, {what}: {error:.1e}");
        }
        assert!(difference(&onto, &wide(&residual)?)? <= 0.0, "{dtype:?}, {rows} rows: the residual changed");
    }
    Ok(())
}

/// A row shorter than a warp, one that does not fill the block, and one of several rounds, around a large mean. The table is
/// the identity, so that x are the logits to the bit and its gradient is theirs.
#[test]
fn cross_entropy_on_the_device_is_the_definition() -> Result {
    let device = device();
    for (dtype, rows, width, mean) in
        DTYPES.into_iter().flat_map(|d| [(d, 1, 5, 0.), (d, 3, 300, 60.), (d, 4, 1031, -7.)])
    {
        let logits = spread((rows, width), 0., DType::F64, 7)?.affine(4., mean)?.to_dtype(dtype)?;
        let targets: Vec<u32> =
            (0..rows).map(|i| u32::try_from(i * 131 % width)).collect::<std::result::Result<_, _>>()?;
        let log_weights = candle_nn::ops::log_softmax(&wide(&logits)?, D::Minus1)?;
        let of_targets = Tensor::from_slice(&targets, (rows, 1), &Device::Cpu)?;
        let loss: f64 = log_weights.gather(&of_targets, 1)?.neg()?.mean_all()?.to_scalar()?;
        let ones = Tensor::ones((rows, 1), DType::F64, &Device::Cpu)?;
        let onehot = log_weights.zeros_like()?.scatter_add(&of_targets, &ones, 1)?;
        let gradients = (log_weights.exp()? - onehot)?;
        let table = Tensor::eye(width, DType::F32, &Device::Cpu)?.to_dtype(dtype)?.to_device(&device)?;
        let x = Var::from_tensor(&logits.to_device(&device)?)?;
        let targets = Tensor::new(targets, &device)?;
        for wanted in [false, true] {
            let x_in = if wanted { x.as_tensor().clone() } else { x.as_detached_tensor() };
            let dispatch = Dispatch::of(if device.is_cpu() { Eager } else { Fused }, &x_in);
            let got = linear_cross_entropy(&x_in, &table, &targets, dispatch)?;
            let error = (wide(&got)?.to_scalar::<f64>()? - loss).abs();
            assert!(error < 1e-5, "{dtype:?} {rows} {width}: the loss is {error:.1e} off");
            if wanted {
                // The mean divides by the rows: a scale that is a rounding of its own.
                let got = loss_gradient(&got, &x)?.affine(rows as f64, 0.)?;
                let tolerance = if dtype == DType::F32 { 1e-6 } else { rounding(dtype) };
                let error = difference(&got, &gradients)?;
                assert!(error <= tolerance, "{dtype:?} {rows} {width}: the gradient is {error:.1e} off");
            }
        }
    }
    Ok(())
}

/// The gradient of x, in f64.
fn loss_gradient(loss: &Tensor, x: &Var) -> Result<Tensor> {
    Ok(wide(loss.backward()?.get(x).ok_or("no gradient")?)?)
}
