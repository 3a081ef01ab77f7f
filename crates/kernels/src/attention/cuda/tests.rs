//! The kernels' own source, compiled for the CPU and run thread by thread (`kernels/emulation.hpp`), against the eager path:
//! what can be shown of them where there is no GPU.

use super::plan::{Plan, Strides};
use crate::attention::{CausalAttention, CausalMask, Implementation};
use candle_core::{DType, Device, Result, Tensor};
use half::{bf16, f16};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The emulator with all kernels, compiled once.
fn emulator() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let program = Path::new(env!("OUT_DIR")).join("emulate-cuda");
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        let done = Command::new(&compiler)
            .current_dir(folder)
            .args("-std=c++17 -O1 -rdynamic -Wall -Wno-unknown-pragmas -x c++".split(' '))
            .args(["attention.cu", "attention_f32.cu", "decode.cu", "emulate.cpp", "-ldl", "-o"])
            .arg(&program)
            .status();
        let remedy = "install a C++ compiler (apt-get install g++) or name one in CXX";
        assert!(done.is_ok_and(|status| status.success()), "`{compiler}` compiles no kernels: {remedy}");
        program
    })
}

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
    /// The largest difference beside the largest value of the context.
    fn error(&self) -> Result<f64> {
        let &Self { dtype, b, h, t, s, d, .. } = self;
        let count = b * s * 3 * h * d;
        // Numbers between -2 and 2 that repeat after 2^32: scores of a few units, with clear maxima.
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
        let eager = CausalAttention::new(scale).with_implementation(Implementation::Eager);
        let expected = eager.forward(&wide(&q)?, &wide(&k)?, &wide(&v)?, mask)?;

        let Some(plan) = Plan::new(dtype, [q.layout(), k.layout(), v.layout()], scale, self.multiprocessors)
        else {
            candle_core::bail!("no plan")
        };
        let bytes = bytes(&packed)?;
        let from = |x: &Tensor| &bytes[x.layout().start_offset() * dtype.size_in_bytes()..];
        let padding = if self.padded { padding.flatten_all()?.to_vec1()? } else { vec![] };
        let out = run(
            &plan,
            [from(&q), from(&k), from(&v), &padding],
            expected.elem_count() * dtype.size_in_bytes(),
        )?;
        let got = from_bytes(&out, dtype)?.reshape(expected.dims())?.to_dtype(DType::F64)?;
        let largest = |x: &Tensor| x.abs()?.max_all()?.to_scalar::<f64>();
        Ok(largest(&(got - &expected)?)? / largest(&expected)?)
    }

    /// f32 sums of up to 333 numbers; weights that are rounded before they meet v, and a result that is.
    fn tolerance(&self) -> f64 {
        match self.dtype {
            DType::F16 => 1.1 * 2f64.powi(-11),
            DType::BF16 => 1.1 * 2f64.powi(-8),
            _ => 1e-5,
        }
    }
}

/// What the plan's launches leave in `out`.
fn run(plan: &Plan, [q, k, v, padding]: [&[u8]; 4], out: usize) -> Result<Vec<u8>> {
    let Plan { shape, launches, found } = plan;
    let strides = |s: &Strides| [s.batch, s.head, s.position];
    let sizes = [q.len(), k.len(), v.len(), padding.len(), out, found * 4].map(|x| x.to_string());
    let strides = [&shape.q, &shape.k, &shape.v].map(strides).concat();
    let numbers = [shape.heads, shape.queries, shape.keys, shape.split_keys, shape.splits];
    let mut emulator = Command::new(emulator())
        .args(sizes)
        .args(strides.iter().map(ToString::to_string))
        .args(numbers.map(|x| x.to_string()))
        .arg(shape.scale.to_string())
        .args(launches.iter().flat_map(|launch| {
            let numbers = [launch.blocks, launch.threads, launch.shared].map(|x| x.to_string());
            std::iter::once(launch.kernel.clone()).chain(numbers)
        }))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = emulator.stdin.take().ok_or_else(|| candle_core::Error::msg("a pipe"))?;
    // One that ends early says why by itself.
    let _ = [q, k, v, padding].iter().try_for_each(|part| input.write_all(part));
    drop(input);
    let output = emulator.wait_with_output()?;
    assert!(output.status.success(), "{launches:?}: {}", output.status);
    Ok(output.stdout)
}

fn bytes(x: &Tensor) -> Result<Vec<u8>> {
    let x = x.flatten_all()?;
    Ok(match x.dtype() {
        DType::F16 => x.to_vec1::<f16>()?.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        DType::BF16 => x.to_vec1::<bf16>()?.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        _ => x.to_vec1::<f32>()?.iter().flat_map(|x| x.to_ne_bytes()).collect(),
    })
}

fn from_bytes(bytes: &[u8], dtype: DType) -> Result<Tensor> {
    Tensor::from_raw_buffer(bytes, dtype, &[bytes.len() / dtype.size_in_bytes()], &Device::Cpu)
}

/// Every kernel, for prompts and chunks that end within tiles, with one batch row, several, and padded ones.
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
fn f16_on_tensor_cores() -> Result<()> {
    check(DType::F16)
}

#[test]
fn bf16_on_tensor_cores() -> Result<()> {
    check(DType::BF16)
}

#[test]
fn f32_on_multiply_adds() -> Result<()> {
    check(DType::F32)
}
