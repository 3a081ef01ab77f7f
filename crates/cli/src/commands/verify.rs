//! `gpt2 verify`: every way in which this build computes attention and logits on this device, against plain
//! operations on the CPU.

use super::bench::implementation_of;
use crate::args::VerifyArgs;
use crate::output;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::Init;
use gpt2_kernels::Implementation::{self, Eager, Fused};
use gpt2_kernels::attention::{CausalAttention, CausalMask};
use gpt2_kernels::{layer_norm, linear, linear_gelu, linear_onto};
use gpt2_loader::Checkpoint;
use gpt2_model::mask::{left_padding, position_ids};
use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, KvCache, init};
use gpt2_view::{Align, Table, visible_text};
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;

#[derive(Serialize)]
struct Report {
    model: String,
    device: String,
    threads: usize,
    seed: u64,
    passed: bool,
    checks: Vec<Check>,
}

/// One path. The error is the largest difference beside the largest value.
#[derive(Serialize)]
struct Check {
    what: &'static str,
    case: String,
    #[serde(rename = "impl")]
    implementation: &'static str,
    dtype: &'static str,
    error: f64,
    tolerance: f64,
    passed: bool,
}

pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let device = args.run.device.open()?;
    let files = crate::session::files(args.model.as_deref(), &args.hub)?;
    let checkpoint = Checkpoint::open(&files)?;
    let mut verify = Verify { device, seed: args.run.seed, checks: vec![] };
    verify.attention()?;
    verify.layers()?;
    verify.model(&checkpoint)?;

    let report = Report {
        model: checkpoint.name().to_string(),
        device: format!("{:?}", verify.device.location()).to_lowercase(),
        threads: rayon::current_num_threads(),
        seed: args.run.seed,
        passed: verify.checks.iter().all(|check| check.passed),
        checks: verify.checks,
    };
    output::report(args.json, &report, print)?;
    Ok(if report.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What one rounding to the dtype may change of a number, beside its size.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

struct Verify {
    device: Device,
    seed: u64,
    checks: Vec<Check>,
}

/// What is checked of attention: T queries at the end of S keys, B rows, D, and whether keys are hidden.
const ATTENTION: [(usize, usize, usize, usize, bool); 14] = [
    (1, 1, 1, 64, false),
    (1, 1, 1000, 64, false),
    (2, 3, 300, 80, false),
    (1, 128, 128, 64, false),
    (2, 200, 200, 33, true),
    (1, 300, 1000, 64, false),
    (1, 500, 500, 128, false),
    (1, 1024, 1024, 64, false),
    (2, 1, 400, 64, true),
    (2, 200, 200, 64, true),
    // As many tiles as the largest GPU has multiprocessors: other kernels than those of a few tiles.
    (32, 129, 129, 32, false),
    (32, 129, 129, 64, false),
    (32, 129, 129, 80, false),
    (32, 129, 129, 96, false),
];
const HEADS: usize = 3;

/// q, k, v (B, H, S, D) as views of one packed tensor, q cut to the last T.
fn parts(packed: &Tensor, t: usize) -> candle_core::Result<[Tensor; 3]> {
    let part = |i| packed.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2);
    let s = packed.dim(1)?;
    Ok([part(0)?.narrow(2, s - t, t)?, part(1)?, part(2)?])
}

impl Verify {
    fn attention(&mut self) -> anyhow::Result<()> {
        for (b, t, s, d, padded) in ATTENTION {
            let vb = init::seeded(self.seed, DType::F32, &Device::Cpu);
            let normal = Init::Randn { mean: 0., stdev: 1.3 };
            let packed = vb.get_with_hints((b, s, 3, HEADS, d), "qkv", normal)?;
            let grad = vb.get_with_hints((b, t, HEADS, d), "grad", normal)?.to_dtype(DType::F64)?;
            let lengths: Vec<usize> = (0..b).map(|i| s - i * s / 3).collect();
            let padding = padded.then(|| left_padding(&lengths, s, &Device::Cpu)).transpose()?;
            let case = format!("B {b}, T {t}, S {s}, D {d}{}", if padded { ", padded" } else { "" });
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                let rounded = packed.to_dtype(dtype)?;
                let run = |dtype, device: &Device, implementation: Implementation| {
                    let packed = Var::from_tensor(&rounded.to_dtype(dtype)?.to_device(device)?)?;
                    let padding = padding.as_ref().map(|p| p.to_device(device)).transpose()?;
                    let mask = CausalMask { padding: padding.as_ref(), ..Default::default() };
                    let attention =
                        CausalAttention::new(1. / (d as f64).sqrt()).with_implementation(implementation);
                    // Some kernels compute what is not trained alone.
                    let [q, k, v] = parts(&packed.as_detached_tensor(), t)?;
                    let ran = attention.runs(&q, &k, &v, mask)?;
                    let context = attention.forward(&q, &k, &v, mask)?;
                    let (weighted, _) = attention.forward_with_weights(&q, &k, &v, mask)?;

                    let [q, k, v] = parts(&packed, t)?;
                    let trained = attention.forward(&q, &k, &v, mask)?;
                    let wide = trained.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
                    let gradients = (wide * &grad)?.sum_all()?.backward()?;
                    let Some(gradient) = gradients.get(&packed) else {
                        anyhow::bail!("attention has no gradient on this path")
                    };
                    Ok((context, gradient.clone(), weighted, ran))
                };
                let (context, gradient, ..) = run(DType::F64, &Device::Cpu, Eager)?;
                // f32 sums of up to 1024 numbers; a half's result is rounded once, its gradient three times.
                let (value, slope) = if dtype == DType::F32 {
                    (1e-5, 1e-5)
                } else {
                    (1.1 * rounding(dtype), 4. * rounding(dtype))
                };
                for implementation in [Fused, Eager] {
                    let (got, got_gradient, weighted, ran) =
                        run(dtype, &self.device.clone(), implementation)?;
                    if ran != implementation {
                        continue; // no kernel for this: it would be the eager path once more
                    }
                    self.check("attention", &case, (implementation, dtype), (&got, &context), value)?;
                    let gradients = (&got_gradient, &gradient);
                    self.check("its gradient", &case, (implementation, dtype), gradients, slope)?;
                    let weighted = (&weighted, &context);
                    self.check("with weights", &case, (implementation, dtype), weighted, value)?;
                }
            }
        }
        Ok(())
    }

    /// Layer norm and linear layers, which on the CPU have no other implementation than ours.
    fn layers(&mut self) -> anyhow::Result<()> {
        let (rows, n_in, n_out) = (37, 256, 768);
        let vb = init::seeded(self.seed, DType::F32, &Device::Cpu);
        let normal = |shape: &[usize], name: &str, mean, stdev| {
            vb.get_with_hints(shape, name, Init::Randn { mean, stdev })
        };
        let x = normal(&[rows, n_in], "x", 0.5, 1.)?;
        let weight = normal(&[n_in, n_out], "weight", 0., 0.06)?;
        let bias = normal(&[n_out], "bias", 0., 1.)?;
        let residual = normal(&[rows, n_out], "residual", 0., 1.)?;
        let scale = normal(&[n_in], "scale", 1., 0.5)?;
        let shift = normal(&[n_in], "shift", 0., 0.5)?;
        let case = format!("{rows} rows, {n_in} to {n_out}");
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let run =
                |wide, device: &Device, implementation: Implementation| -> anyhow::Result<[Tensor; 4]> {
                    let to = |x: &Tensor| x.to_dtype(dtype)?.to_dtype(wide)?.to_device(device);
                    let (x, weight, bias, residual) = (to(&x)?, to(&weight)?, to(&bias)?, to(&residual)?);
                    Ok([
                        layer_norm(&x, &to(&scale)?, &to(&shift)?, 1e-5, implementation)?,
                        linear(&x, &weight, &bias, implementation)?,
                        linear_gelu(&x, &weight, &bias, implementation)?,
                        linear_onto(&residual, &x, &weight, &bias, implementation)?,
                    ])
                };
            let expected = run(DType::F64, &Device::Cpu, Eager)?;
            let device = self.device.clone();
            let all: &[Implementation] = if device.is_cpu() { &[Fused] } else { &[Fused, Eager] };
            for &implementation in all {
                let got = run(dtype, &device, implementation)?;
                // A half's product is rounded, and what follows it once or twice more.
                let tolerance = if dtype == DType::F32 { 1e-5 } else { 3. * rounding(dtype) };
                for (i, what) in
                    ["layer norm", "linear", "linear, gelu", "linear, onto"].into_iter().enumerate()
                {
                    let pair = (&got[i], &expected[i]);
                    self.check(what, &case, (implementation, dtype), pair, tolerance)?;
                }
            }
        }
        Ok(())
    }

    /// Logits of the checkpoint's model, each path against one pass in eager f64 on the CPU: there, every
    /// operation is Candle's own.
    fn model(&mut self, checkpoint: &Checkpoint) -> anyhow::Result<()> {
        let load = |dtype, device: &Device, implementation| -> anyhow::Result<Gpt2LMHeadModel> {
            let config = Config { attn_implementation: implementation, ..checkpoint.config().clone() };
            Ok(Gpt2LMHeadModel::load(checkpoint.var_builder(dtype, device)?, &config)?)
        };
        let config = checkpoint.config();
        let t = config.n_positions.min(256);
        let count = u32::try_from(config.vocab_size)?;
        let ids: Vec<u32> = (0..u32::try_from(t)?).map(|i| i.wrapping_mul(7919) % count).collect();
        let ids = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?; // (1, T)
        let reference = load(DType::F64, &Device::Cpu, Eager)?;
        let expected = reference.forward(&ids, ForwardArgs::default())?.logits;
        drop(reference);

        let device = self.device.clone();
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for implementation in [Fused, Eager] {
                let config = Config { attn_implementation: implementation, ..checkpoint.config().clone() };
                if implementation_of(&config, 2, dtype, &device)? != implementation {
                    continue; // no kernel for this: it would be the eager path once more
                }
                let model = load(dtype, &device, implementation)?;
                let ids = ids.to_device(&device)?;
                // Rounding the weights and every activation of each block adds up in a half.
                let tolerance = if dtype == DType::F32 { 3e-5 } else { 16. * rounding(dtype) };
                let mut check = |what, case: String, logits: Tensor, expected: &Tensor| {
                    self.check(what, &case, (implementation, dtype), (&logits, expected), tolerance)
                };
                let prompt = model.forward(&ids, ForwardArgs::default())?.logits;
                check("prompt", format!("T {t}"), prompt, &expected)?;
                let last = ForwardArgs { last_logits_only: true, ..Default::default() };
                let last = model.forward(&ids, last)?.logits;
                check("last logits", format!("T {t}"), last, &expected.narrow(1, t - 1, 1)?)?;
                for (what, size) in [("chunks", 7), ("decode", 1)] {
                    let logits = in_chunks(&model, &ids, size)?;
                    check(what, format!("{t} tokens, {size} at a time"), logits, &expected)?;
                }
                let logits = padded(&model, &ids)?;
                check(
                    "padded",
                    format!("half of T {t}, beside it"),
                    logits,
                    &expected.narrow(1, 0, t.div_ceil(2))?,
                )?;
            }
        }
        Ok(())
    }

    fn check(
        &mut self,
        what: &'static str,
        case: &str,
        (implementation, dtype): (Implementation, DType),
        (got, expected): (&Tensor, &Tensor),
        tolerance: f64,
    ) -> anyhow::Result<()> {
        let error = relative_error(got, expected)?;
        self.checks.push(Check {
            what,
            case: case.to_string(),
            implementation: if implementation == Fused { "fused" } else { "eager" },
            dtype: dtype.as_str(),
            error,
            tolerance,
            passed: error <= tolerance, // NaN is not
        });
        Ok(())
    }
}

/// The logits of all positions, read `size` at a time through a cache.
fn in_chunks(model: &Gpt2LMHeadModel, ids: &Tensor, size: usize) -> anyhow::Result<Tensor> {
    let t = ids.dim(1)?;
    let mut cache = KvCache::new(model.config(), 1, t, model.transformer.dtype(), ids.device())?;
    let mut logits = vec![];
    for start in (0..t).step_by(size) {
        let args = ForwardArgs { cache: Some(&mut cache), ..Default::default() };
        logits.push(model.forward(&ids.narrow(1, start, size.min(t - start))?, args)?.logits);
    }
    Ok(Tensor::cat(&logits, 1)?)
}

/// The logits of the first half of the tokens, padded on the left beside a row of all of them.
fn padded(model: &Gpt2LMHeadModel, ids: &Tensor) -> anyhow::Result<Tensor> {
    let t = ids.dim(1)?;
    let half = t.div_ceil(2);
    let short = Tensor::cat(&[&ids.narrow(1, 0, t - half)?, &ids.narrow(1, 0, half)?], 1)?;
    let mask = left_padding(&[t, half], t, ids.device())?;
    let positions = position_ids(&mask)?;
    let args =
        ForwardArgs { attention_mask: Some(&mask), position_ids: Some(&positions), ..Default::default() };
    let logits = model.forward(&Tensor::cat(&[ids, &short], 0)?, args)?.logits;
    Ok(logits.narrow(0, 1, 1)?.narrow(1, t - half, half)?)
}

/// `max |got - expected| / max |expected|`; NaN where either holds one.
fn relative_error(got: &Tensor, expected: &Tensor) -> anyhow::Result<f64> {
    let flat = |x: &Tensor| -> anyhow::Result<Vec<f64>> {
        Ok(x.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?)
    };
    if got.dims() != expected.dims() {
        anyhow::bail!("a path gives {:?} in place of {:?}", got.dims(), expected.dims())
    }
    let (got, expected) = (flat(got)?, flat(expected)?);
    let largest = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(0.0, |a: f64, x| if a.is_nan() || x.is_nan() { f64::NAN } else { a.max(x.abs()) })
    };
    let difference = largest(&mut got.iter().zip(&expected).map(|(a, b)| a - b));
    Ok(difference / largest(&mut expected.iter().copied()).max(f64::MIN_POSITIVE))
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let Report { model, device, threads, checks, .. } = report;
    writeln!(out, "{}, {device}, {threads} threads", visible_text(model))?;
    writeln!(
        out,
        "against plain operations in f64 on the CPU; error = largest difference / largest value\n"
    )?;
    let mut table = Table::new(&[
        ("path", Align::Left),
        ("case", Align::Left),
        ("impl", Align::Left),
        ("dtype", Align::Left),
        ("error", Align::Right),
        ("tolerance", Align::Right),
        ("", Align::Left),
    ]);
    for check in checks {
        table.row(vec![
            check.what.into(),
            check.case.clone(),
            check.implementation.into(),
            check.dtype.into(),
            format!("{:.1e}", check.error),
            format!("{:.1e}", check.tolerance),
            if check.passed { "ok" } else { "FAILED" }.into(),
        ]);
    }
    writeln!(out, "{}", table.render())?;
    let failed = checks.iter().filter(|check| !check.passed).count();
    writeln!(out, "{} of {} paths within their tolerance", checks.len() - failed, checks.len())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_relative_and_nan_is_never_within_a_tolerance() -> anyhow::Result<()> {
        let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu);
        let expected = tensor(&[1., -4., 2.])?;
        assert!((relative_error(&tensor(&[1., -4., 3.])?, &expected)? - 0.25).abs() < 1e-12);
        let mut verify = Verify { device: Device::Cpu, seed: 0, checks: vec![] };
        for got in [[1., -4., 2.], [1., -4., 3.], [f32::NAN, -4., 2.]] {
            verify.check("a path", "", (Fused, DType::F32), (&tensor(&got)?, &expected), 0.1)?;
        }
        assert_eq!(verify.checks.iter().map(|check| check.passed).collect::<Vec<_>>(), [true, false, false]);
        Ok(())
    }
}
