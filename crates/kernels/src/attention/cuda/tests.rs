//! Compares the kernels, run in the emulator, with the eager path.

use super::gradients::gradients;
use super::plan::{Plan, Strides};
use crate::attention::{CausalMask, CausalSdpa};
use crate::cuda::emulator::{Emulator, bytes, tensor};
use crate::dispatch::{Dispatch, Implementation};
use crate::test_numbers::numbers;
use candle_core::{DType, Device, Result, Tensor, Var};

struct Case {
    dtype: DType,
    b: usize,
    h: usize,
    t: usize,
    s: usize,
    d: usize,
    padded: bool,
    multiprocessors: usize,
}

impl Case {
    /// The largest difference, relative to the largest value of the context.
    fn error(&self) -> Result<f64> {
        let &Self { dtype, b, h, t, s, d, .. } = self;
        let count = b * s * 3 * h * d;
        // Numbers between -2 and 2 with a period of 2^32: they give scores of a few units, with clear maxima.
        let random = (0..count).map(|i| {
            let x =
                u32::try_from(i).unwrap_or(0).wrapping_mul(2_654_435_769).rotate_left(9).wrapping_mul(40_503);
            f64::from(x ^ x >> 15) / f64::from(u32::MAX) * 4. - 2.
        });
        let packed = Tensor::from_iter(random, &Device::Cpu)?.reshape((b, s, 3, h, d))?.to_dtype(dtype)?;
        let part = |i| packed.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2); // (B, H, S, D)
        let (q, k, v) = (part(0)?.narrow(2, s - t, t)?, part(1)?, part(2)?);
        let padding: Vec<u8> =
            (0..b * s).map(|i| u8::from(!self.padded || (i % s >= (i / s) * s / b && i % 7 != 3))).collect();
        let padding = Tensor::from_vec(padding, (b, s), &Device::Cpu)?;
        let mask = CausalMask { padding: self.padded.then_some(&padding), ..Default::default() };
        let scale = 1. / (d as f64).sqrt();

        let wide = |x: &Tensor| x.to_dtype(DType::F64);
        let eager = CausalSdpa::new(scale, Dispatch::of(Implementation::Eager, &q));
        let expected = eager.forward(&wide(&q)?, &wide(&k)?, &wide(&v)?, mask)?;

        let Some(plan) = Plan::new(dtype, [q.layout(), k.layout(), v.layout()], scale, self.multiprocessors)
        else {
            candle_core::bail!("no plan")
        };
        let bytes = bytes(&packed)?;
        let from = |x: &Tensor| &bytes[x.layout().start_offset() * dtype.size_in_bytes()..];
        let padding = if self.padded { padding.flatten_all()?.to_vec1()? } else { vec![] };
        let out = expected.elem_count() * dtype.size_in_bytes();
        let out = run(&plan, [from(&q), from(&k), from(&v), &padding], out);
        let got = tensor(&out, dtype)?.reshape(expected.dims())?.to_dtype(DType::F64)?;
        let largest = |x: &Tensor| x.abs()?.max_all()?.to_scalar::<f64>();
        Ok(largest(&(got - &expected)?)? / largest(&expected)?)
    }

    /// Allows for f32 sums of up to 333 numbers, for weights rounded before they multiply v, and for a rounded result.
    fn tolerance(&self) -> f64 {
        match self.dtype {
            DType::F16 => 1.1 * 2f64.powi(-11),
            DType::BF16 => 1.1 * 2f64.powi(-8),
            _ => 1e-5,
        }
    }
}

/// Runs the plan's launches and returns `out`.
fn run(plan: &Plan, [q, k, v, padding]: [&[u8]; 4], out: usize) -> Vec<u8> {
    let Plan { shape, launches, partials } = plan;
    let mut emulator = Emulator::default();
    for (name, bytes, Strides { batch, head, position }) in
        [("q", q, shape.q), ("k", k, shape.k), ("v", v, shape.v)]
    {
        emulator.put(name, bytes);
        emulator.set(&format!("{name}.batch"), batch);
        emulator.set(&format!("{name}.head"), head);
        emulator.set(&format!("{name}.position"), position);
    }
    if !padding.is_empty() {
        emulator.put("padding", padding);
    }
    emulator.allocate("out", out);
    emulator.allocate("found", partials * 4);
    emulator.set("heads", shape.heads);
    emulator.set("queries", shape.queries);
    emulator.set("keys", shape.keys);
    emulator.set("split_keys", shape.split_keys);
    emulator.set("splits", shape.splits);
    emulator.set("scale", shape.scale);
    for (_, launch) in launches {
        emulator.launch(launch);
    }
    emulator.get("out")
}

/// Runs every kernel on prompts and chunks that end inside a tile, with one batch row, several rows, and padded rows.
fn check(dtype: DType) -> Result<()> {
    for d in [32, 64, 80, 96, 128] {
        for (b, h, t, s, padded, multiprocessors) in [
            (1, 1, 1, 1, false, 1),
            (2, 3, 1, 300, true, 1),
            (1, 2, 1, 333, false, 8),
            (1, 1, 2, 2, false, 1),
            (2, 2, 65, 65, true, 100),
            (1, 2, 33, 150, false, 100),
            (1, 1, 197, 197, false, 1),
            (2, 1, 130, 160, true, 1),
        ] {
            let case = Case { dtype, b, h, t, s, d, padded, multiprocessors };
            let (error, tolerance) = (case.error()?, case.tolerance());
            assert!(
                error <= tolerance,
                "{dtype:?}, D {d}, B {b}, T {t}, S {s}, {padded}: {error} > {tolerance}"
            );
        }
    }
    Ok(())
}

#[test]
fn f16_attention_emulated() -> Result<()> {
    check(DType::F16)
}

#[test]
fn bf16_attention_emulated() -> Result<()> {
    check(DType::BF16)
}

#[test]
fn f32_attention_emulated() -> Result<()> {
    check(DType::F32)
}

#[test]
fn what_has_no_kernel_has_no_plan() -> Result<()> {
    let plan = |x: &Tensor, scale| Plan::new(x.dtype(), [x.layout(); 3], scale, 100);
    let zeros = |dtype, d| Tensor::zeros((1, 2, 5, d), dtype, &Device::Cpu);
    let fits = zeros(DType::F16, 64)?;
    assert!(plan(&fits, 0.125).is_some());
    for (x, scale) in [
        (zeros(DType::F64, 64)?, 0.125),
        (zeros(DType::F16, 48)?, 0.125),
        (fits.clone(), -0.125),
        (fits.clone(), 0.),
        (fits.clone(), f64::NAN),
        (zeros(DType::F16, 65)?.narrow(3, 0, 64)?, 0.125), // rows of 130 bytes
        (zeros(DType::F16, 128)?.narrow(3, 4, 64)?, 0.125), // rows that start at the eighth byte
        (Tensor::zeros((1, 2, 64, 5), DType::F16, &Device::Cpu)?.transpose(2, 3)?, 0.125),
    ] {
        assert_eq!(plan(&x, scale), None, "{:?} {:?} {scale}", x.dtype(), x.layout());
    }
    Ok(())
}

#[test]
fn gradients_are_those_of_the_fused_kernel_on_the_cpu() -> Result<()> {
    let (q, k) = (numbers((2, 3, 4, 8), 1)?, numbers((2, 3, 6, 8), 1000)?);
    let (v, grad) = (numbers((2, 3, 6, 8), 2000)?, numbers((2, 4, 3, 8), 3000)?);
    let padding = Tensor::new(&[[0u8, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], &Device::Cpu)?;
    let got = gradients([&q, &k, &v], &grad, 0.4, Some(&padding))?;
    let (q, k, v) = (Var::from_tensor(&q)?, Var::from_tensor(&k)?, Var::from_tensor(&v)?);
    let mask = CausalMask { padding: Some(&padding), ..Default::default() };
    let context = CausalSdpa::new(0.4, Dispatch::of(Implementation::Fused, &q)).forward(&q, &k, &v, mask)?;
    let expected = (context * grad)?.sum_all()?.backward()?;
    for (got, of) in got.into_iter().zip([&q, &k, &v]) {
        let (Some(got), Some(expected)) = (got, expected.get(of)) else { candle_core::bail!("no gradient") };
        let error = (got - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(error < 1e-5, "{error}");
    }
    Ok(())
}
