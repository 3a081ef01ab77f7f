//! Our code on the device that `GPT2_TEST_DEVICE` names (the CPU unless it does), against the definition in f64 on the CPU.
//! Attention's forward pass asserts that the code for that device ran, and layer norm that a GPU's did; of a backward pass, only
//! the values are compared.

use crate::common::{Result, relative_error};
use crate::device::device;
use crate::{packed_views, random};
use candle_core::{DType, Device, Tensor, Var};
use candle_fused::attention::{Mask, Sdpa};
use candle_fused::{Dispatch, Explained, Explanation, Implementation, explain, layer_norm};

/// The widths of a head that our kernels for CUDA take; the CPU takes any.
const WIDTHS: [usize; 5] = [32, 64, 80, 96, 128];
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Rounding the result once, the weights before they multiply v, and of gradients the context and ds: 2.5 units of the last
/// place of the dtype. In f32, sums of up to 150 numbers.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2.5 * 2f64.powi(-11),
        DType::BF16 => 2.5 * 2f64.powi(-8),
        _ => 2e-5,
    }
}

/// Fails unless the code for this device ran, and no plain operations in its place.
fn assert_ours(explanation: &Explanation, device: &Device) {
    let ran = |one: &Explained| match device {
        Device::Cpu => one.code.starts_with("fused"),
        _ => one.code == "fused, on the GPU",
    };
    let attention: Vec<_> = explanation.0.iter().filter(|one| one.operation == "attention").collect();
    assert!(!attention.is_empty() && attention.iter().all(|one| ran(one)), "{explanation}");
}

fn sdpa(implementation: Implementation, d: usize) -> Sdpa {
    Sdpa { scale: Some(1. / (d as f64).sqrt()), implementation, ..Sdpa::default() }
}

/// Prompts, a chunk after a cache, and one decoded token, in one row and in rows with padding.
const SHAPES: [(usize, usize, usize, usize, bool); 5] = [
    (1, 2, 5, 5, false),
    (2, 2, 70, 70, true),
    (1, 3, 33, 150, false),
    (2, 2, 1, 97, true),
    (1, 1, 1, 1, false),
];

#[test]
fn attention_on_the_device_is_the_definition() -> Result {
    let device = device()?;
    for (dtype, d) in DTYPES.into_iter().flat_map(|dtype| WIDTHS.map(|d| (dtype, d))) {
        for (b, h, t, s, padded) in SHAPES {
            let packed = random(7, "x", 1., (b, s, 3, h, d))?.to_dtype(dtype)?;
            let rows = (0..b * s).map(|i| u8::from(!padded || i % s >= (i / s) * 3));
            let padding = Tensor::from_iter(rows, &Device::Cpu)?.reshape((b, s))?;
            let [q, k, v] = packed_views(&packed.to_dtype(DType::F64)?, t)?;
            let mask = Mask { padding: padded.then_some(&padding), ..Mask::default() };
            let expected = sdpa(Implementation::Eager, d).forward(&q, &k, &v, mask)?;

            let [q, k, v] = packed_views(&packed.to_device(&device)?, t)?;
            let padding = padding.to_device(&device)?;
            let mask = Mask { padding: padded.then_some(&padding), ..Mask::default() };
            let (got, explanation) = explain(|| sdpa(Implementation::Fused, d).forward(&q, &k, &v, mask))?;
            assert_ours(&explanation, &device);
            let error = relative_error(&got.to_device(&Device::Cpu)?.to_dtype(DType::F64)?, &expected)?;
            assert!(error <= tolerance(dtype), "{dtype:?} D {d} T {t} S {s}: {error:.1e}");
        }
    }
    Ok(())
}

#[test]
fn gradients_on_the_device_are_those_of_the_definition() -> Result {
    let device = device()?;
    for (dtype, d) in DTYPES.into_iter().flat_map(|dtype| WIDTHS.map(|d| (dtype, d))) {
        let (b, h, t) = (2, 2, 70);
        let packed = random(11, "x", 1., (b, t, 3, h, d))?.to_dtype(dtype)?;
        let weights = random(12, "w", 1., (b, t, h, d))?.to_dtype(dtype)?;
        let gradient = |device: &Device, dtype: DType, implementation| -> Result<(Tensor, Explanation)> {
            let packed = Var::from_tensor(&packed.to_device(device)?.to_dtype(dtype)?)?;
            let [q, k, v] = packed_views(packed.as_tensor(), t)?;
            let (out, explanation) =
                explain(|| sdpa(implementation, d).forward(&q, &k, &v, Mask::default()))?;
            let loss = (out * weights.to_device(device)?.to_dtype(dtype)?)?.sum_all()?;
            let gradients = loss.backward()?;
            let gradient = gradients.get(&packed).ok_or("no gradient")?;
            Ok((gradient.to_device(&Device::Cpu)?.to_dtype(DType::F64)?, explanation))
        };
        let (expected, _) = gradient(&Device::Cpu, DType::F64, Implementation::Eager)?;
        let (got, explanation) = gradient(&device, dtype, Implementation::Fused)?;
        assert_ours(&explanation, &device);
        let error = relative_error(&got, &expected)?;
        // dq and dk are sums of differences that cancel: the largest error is 3 units of the last place.
        assert!(error <= 2. * tolerance(dtype), "{dtype:?} D {d}: {error:.1e}");
    }
    Ok(())
}

#[test]
fn layer_norm_on_the_device_is_the_definition() -> Result {
    let device = device()?;
    for (dtype, width) in DTYPES.into_iter().flat_map(|dtype| [32, 264, 768].map(|width| (dtype, width))) {
        let parts = [("x", 9), ("weight", 1), ("bias", 1)];
        let [x, weight, bias] = parts.map(|(name, rows)| random(5, name, 1., (rows, width))?.to_dtype(dtype));
        let x = x?;
        let weight = weight?.squeeze(0)?;
        let bias = bias?.squeeze(0)?;
        let run = |device: &Device, dtype: DType, implementation: Implementation| {
            let on = |x: &Tensor| x.to_device(device)?.to_dtype(dtype);
            let x = on(&x)?;
            layer_norm(&x, &on(&weight)?, Some(&on(&bias)?), 1e-5, Dispatch::of(implementation, &x))
        };
        let expected = run(&Device::Cpu, DType::F64, Implementation::Eager)?;
        let (got, explanation) = explain(|| run(&device, dtype, Implementation::Fused))?;
        assert!(
            device.is_cpu() || explanation.0.iter().any(|one| one.code == "fused, on the GPU"),
            "{explanation}"
        );
        let error = relative_error(&got.to_device(&Device::Cpu)?.to_dtype(DType::F64)?, &expected)?;
        assert!(error <= tolerance(dtype), "{dtype:?} of {width}: {error:.1e}");
    }
    Ok(())
}
