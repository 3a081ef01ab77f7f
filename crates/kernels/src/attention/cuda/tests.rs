//! Compares the kernels, run in the emulator, with the eager path.

use super::plan::{BackwardPlan, KernelShape, Masks, Plan, Strides};
use crate::attention::heads::{HeadLayout, WeightDropout};
use crate::attention::mask::{Hidden, HiddenKeys, Mask};
use crate::attention::sdpa::Sdpa;
use crate::cpu::dispatch::Implementation;
use crate::gpu::emulator::{Emulator, bytes, difference};
use crate::gpu::launch_plan::GpuLimits;
use crate::pointwise::dropout::Dropout;
use candle_core::{DType, Device, Result, Tensor, Var};

/// The inputs of a kernel: the bytes of q, k and v, each from the start of its layout, and of a padding mask, if any.
struct KernelInputs<'a> {
    qkv: [&'a [u8]; 3],
    padding: &'a [u8],
    masks: Option<Masks>,
    hidden: &'a [Hidden],
    /// The compute capability, as a number.
    capability: u32,
}

impl KernelInputs<'_> {
    fn put(&self, shape: &KernelShape) -> Emulator {
        let mut emulator = Emulator::of(self.capability);
        let strides = [("q", shape.q), ("k", shape.k), ("v", shape.v)];
        for ((name, Strides { batch, head, position }), bytes) in strides.into_iter().zip(self.qkv) {
            emulator.put(name, bytes);
            emulator.set(&format!("{name}.batch"), batch);
            emulator.set(&format!("{name}.head"), head);
            emulator.set(&format!("{name}.position"), position);
        }
        if !self.padding.is_empty() {
            emulator.put("padding", self.padding);
        }
        emulator.set("heads", shape.heads);
        emulator.set("queries", shape.queries);
        emulator.set("keys", shape.keys);
        emulator.set("split_keys", shape.split_keys);
        emulator.set("splits", shape.splits);
        emulator.set("section", shape.section);
        emulator.set("scale", shape.scale);
        if let Some(masks) = &self.masks {
            for i in 0..2 {
                emulator.set(&format!("seed.{i}"), masks.seed[i]);
                emulator.set(&format!("stream.{i}"), masks.stream[i]);
            }
            emulator.set("threshold", masks.threshold);
            emulator.set("kept", masks.kept);
            emulator.set("first_head", masks.first_head);
            emulator.set("all_heads", masks.all_heads);
        }
        if !self.hidden.is_empty() {
            let (heads, queries) =
                (shape.heads.unsigned_abs() as usize, shape.queries.unsigned_abs() as usize);
            let (starts, keys) = HiddenKeys::new(self.hidden, heads).by_row(heads, queries);
            let bytes =
                |numbers: Vec<u32>| numbers.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<_>>();
            emulator.put("hidden_starts", &bytes(starts));
            emulator.put("hidden_keys", &bytes(keys));
        }
        emulator
    }

    /// Runs a forward pass: the `out` bytes of the context, and the logarithms of the sums unless it decodes.
    fn forward(&self, plan: &Plan, out: usize) -> [Vec<u8>; 2] {
        let mut emulator = self.put(&plan.shape);
        emulator.allocate("out", out);
        let rows = (plan.shape.queries * plan.launch.blocks.cast_signed()).unsigned_abs() as usize;
        emulator.allocate("log_sums", 4 * rows);
        if let Some((found, heads)) = plan.partials {
            emulator.allocate("found", 4 * found);
            emulator.put("finished", &vec![0; 4 * heads]);
        }
        emulator.launch(&plan.launch);
        if let Some((found, _)) = plan.partials {
            // A second step finds the counters as the first one did, and memory that nobody has written yet.
            emulator.allocate("out", out);
            emulator.allocate("found", 4 * found);
            emulator.launch(&plan.launch);
        }
        emulator.get(["out", "log_sums"])
    }

    /// Runs a backward pass: dq, dk and dv, for the bytes of the gradient of the context, of the context, and of the
    /// logarithms of the sums.
    fn backward(&self, plan: &BackwardPlan, [grad, out, log_sums]: [&[u8]; 3], width: usize) -> [Vec<u8>; 3] {
        let mut emulator = self.put(&plan.shape);
        emulator.put("grad", grad);
        emulator.put("out", out);
        emulator.put("log_sums", log_sums);
        emulator.allocate("deltas", log_sums.len());
        emulator.set("rows", log_sums.len() / 4);
        emulator.set("width", width);
        let keys =
            grad.len() / plan.shape.queries.unsigned_abs() as usize * plan.shape.keys.unsigned_abs() as usize;
        for (name, bytes) in [("dq", grad.len()), ("dk", keys), ("dv", keys)] {
            emulator.allocate(name, bytes);
        }
        for launch in [&plan.deltas, &plan.of_queries, &plan.of_keys] {
            emulator.launch(launch);
        }
        emulator.get(["dq", "dk", "dv"])
    }
}

const WIDTHS: [usize; 5] = [32, 64, 80, 96, 128];

/// A GPU with this number of multiprocessors, and otherwise like an H100.
fn gpu(multiprocessors: usize) -> GpuLimits {
    GpuLimits { multiprocessors, shared: 232_448, l2: 50 << 20, capability: 90 }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    dtype: DType,
    b: usize,
    h: usize,
    t: usize,
    s: usize,
    d: usize,
    padded: bool,
    /// Some keys are hidden, and some weights dropped.
    masked: bool,
    gpu: GpuLimits,
}

fn largest(x: &Tensor) -> Result<f64> {
    x.abs()?.max_all()?.to_scalar()
}

impl Case {
    /// Numbers between -2 and 2 with a period of 2^32: they give scores of a few units, with clear maxima.
    fn numbers(count: usize, salt: usize) -> Result<Tensor> {
        let random = (salt..salt + count).map(|i| {
            let x =
                u32::try_from(i).unwrap_or(0).wrapping_mul(2_654_435_769).rotate_left(9).wrapping_mul(40_503);
            f64::from(x ^ x >> 15) / f64::from(u32::MAX) * 4. - 2.
        });
        Tensor::from_iter(random, &Device::Cpu)
    }

    /// The layer has two more heads than are here, one before them and one after.
    fn heads(&self) -> HeadLayout {
        HeadLayout::all(self.h + 2, self.d).part(1, self.h).expect("heads in the middle")
    }

    fn dropout(&self) -> Result<Option<Dropout>> {
        self.masked.then(|| Dropout::new(0.2, 0x77_0000_0042, 3)).transpose()
    }

    fn hidden(&self) -> Vec<Hidden> {
        let past = self.s - self.t;
        let all = (0..if self.masked { self.t } else { 0 }).flat_map(|query| {
            let keys = (0..=past + query).filter(move |key| (query * 31 + key * 17) % 11 == 3);
            keys.map(move |key| Hidden { head: (key % 3).checked_sub(1), query, key })
        });
        all.filter(|x| x.head.is_none_or(|head| head < self.h)).collect()
    }

    /// The errors of the context, and of dq, dk and dv if they are `wanted`. Those of the context and of dv are relative
    /// to the largest expected value. dq and dk are sums of ds·k and ds·q, and ds is a difference of two numbers up to the
    /// largest dp, which cancel where a weight is close to 1: their errors are relative to one such term.
    fn errors(&self, wanted: bool) -> Result<Vec<f64>> {
        let &Self { dtype, b, h, t, s, d, .. } = self;
        let packed = Self::numbers(b * s * 3 * h * d, 0)?.reshape((b, s, 3, h, d))?;
        // Padding may hold anything: here scores far above all others.
        let visible = |i: usize| !self.padded || (i % s >= (i / s) * s / b && i % 7 != 3);
        let size = |i: usize| if !i.is_multiple_of(3) && !visible(i / 3) { 30.0 } else { 1.0 }; // of keys and values
        let sizes = Tensor::from_iter((0..3 * b * s).map(size), &Device::Cpu)?.reshape((b, s, 3, 1, 1))?;
        let packed = packed.broadcast_mul(&sizes)?.to_dtype(dtype)?;
        let part = |i| packed.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2); // (B, H, S, D)
        let q = part(0)?.narrow(2, s - t, t)?;
        let k = part(1)?;
        let v = part(2)?;
        let grad = Self::numbers(b * t * h * d, 1 << 20)?.reshape((b, t, h, d))?.to_dtype(dtype)?;
        let padding =
            Tensor::from_iter((0..b * s).map(|i| u8::from(visible(i))), &Device::Cpu)?.reshape((b, s))?;
        let hidden = self.hidden();
        let mask = Mask { padding: self.padded.then_some(&padding), hidden: &hidden, ..Mask::default() };
        let scale = 1. / (d as f64).sqrt();

        let wide = |x: &Tensor| Var::from_tensor(&x.to_dtype(DType::F64)?);
        let [wide_q, wide_k, wide_v] = [wide(&q)?, wide(&k)?, wide(&v)?];
        let eager = Sdpa {
            heads: Some(self.heads()),
            dropout: self.dropout()?,
            implementation: Implementation::Eager,
            ..Sdpa::default()
        };
        let expected = eager.forward(&wide_q, &wide_k, &wide_v, mask)?;

        let layouts = [q.layout(), k.layout(), v.layout()];
        let Some(plan) = Plan::new(dtype, layouts, scale, [self.masked, wanted], self.gpu) else {
            candle_core::bail!("no plan")
        };
        let all = bytes(&packed)?;
        let from = |x: &Tensor| &all[x.layout().start_offset() * dtype.size_in_bytes()..];
        let padding = if self.padded { padding.flatten_all()?.to_vec1()? } else { vec![] };
        let dropout = self.dropout()?.map(|dropout| WeightDropout::new(dropout, self.heads(), t, 0));
        let inputs = KernelInputs {
            qkv: [from(&q), from(&k), from(&v)],
            padding: &padding,
            masks: Masks::new(dropout.as_ref()),
            hidden: &hidden,
            capability: self.gpu.capability,
        };
        let [out, log_sums] = inputs.forward(&plan, expected.elem_count() * dtype.size_in_bytes());
        let mut errors = vec![difference(&out, &expected.detach(), dtype)? / largest(&expected)?];
        if wanted {
            let Some(plan) = BackwardPlan::new(dtype, layouts, scale, self.gpu) else {
                candle_core::bail!("no plan for the backward pass")
            };
            let log_sums = &log_sums[..b * h * t * 4];
            let got = inputs.backward(&plan, [&bytes(&grad)?, &out, log_sums], d);
            let grad = grad.to_dtype(DType::F64)?;
            let seen = Tensor::from_iter((0..b * s).map(|i| f64::from(u8::from(visible(i)))), &Device::Cpu)?;
            let seen = seen.reshape((b, 1, s, 1))?;
            let seen_k = wide_k.broadcast_mul(&seen)?;
            let seen_v = wide_v.broadcast_mul(&seen)?;
            let dp = grad.transpose(1, 2)?.contiguous()?.matmul(&seen_v.t()?.contiguous()?)?; // (B, H, T, S)
            let term = |x: &Tensor| Ok::<_, candle_core::Error>(Some(scale * largest(&dp)? * largest(x)?));
            let terms = [term(&seen_k)?, term(&wide_q)?, None];
            let expected = (expected * grad)?.sum_all()?.backward()?;
            for ((got, of), term) in got.iter().zip([&wide_q, &wide_k, &wide_v]).zip(terms) {
                let Some(expected) = expected.get(of) else { candle_core::bail!("no gradient") };
                let expected = expected.transpose(1, 2)?.contiguous()?; // (B, positions, H, D)
                let term = term.map_or_else(|| largest(&expected), Ok)?;
                errors.push(difference(got, &expected, dtype)? / term);
            }
        }
        Ok(errors)
    }

    /// Allows for f32 sums of up to 333 numbers, for weights rounded before they multiply v, and for a rounded result. A
    /// gradient also meets the rounded context and rounded ds; the largest error is 1.4 units of dv in f16, D 80.
    fn tolerance(&self, gradient: bool) -> f64 {
        let place = match self.dtype {
            DType::F16 => 2f64.powi(-11),
            DType::BF16 => 2f64.powi(-8),
            _ => return 1e-5,
        };
        let kept = if self.masked { 1.25 } else { 1.0 }; // what dropout scales weights by, and their rounding
        if gradient { 1.5 * place } else { 1.1 * kept * place }
    }

    #[allow(clippy::print_stdout)] // the errors, shown with --nocapture
    fn check(&self, gradients: bool) -> Result<()> {
        for (i, error) in self.errors(gradients)?.into_iter().enumerate() {
            let what = ["context", "dq", "dk", "dv"][i];
            let tolerance = self.tolerance(i > 0);
            println!("{what} {:?} D {}: {error:.2e} of {tolerance:.2e}", self.dtype, self.d);
            assert!(error <= tolerance, "{what} of {self:?}: {error} > {tolerance}");
        }
        Ok(())
    }
}

/// Runs every kernel on prompts and chunks that end inside a tile, with one batch row, several rows, and padded rows.
fn check(dtype: DType) -> Result<()> {
    for d in WIDTHS {
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
            let gpu = gpu(multiprocessors);
            Case { dtype, b, h, t, s, d, padded, masked: false, gpu }.check(false)?;
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

/// The backward kernels with and without masks, and the forward kernels with them: prompts and chunks that end inside a
/// tile, one query, more keys than queries, padded rows, and heads in sections.
fn check_gradients(dtype: DType) -> Result<()> {
    for d in WIDTHS {
        for (b, h, t, s, padded, masked) in [
            (1, 1, 1, 5, false, true),
            (1, 2, 1, 40, true, false),
            (1, 2, 3, 3, false, false),
            (2, 2, 70, 70, true, true),
            (1, 3, 70, 135, true, false),
            (1, 1, 130, 197, false, true),
        ] {
            let gpu = GpuLimits { l2: 0, ..gpu(2) }; // sections of two heads, or of all where there is one tile
            Case { dtype, b, h, t, s, d, padded, masked, gpu }.check(true)?;
        }
    }
    Ok(())
}

#[test]
fn f16_gradients_emulated() -> Result<()> {
    check_gradients(DType::F16)
}

#[test]
fn bf16_gradients_emulated() -> Result<()> {
    check_gradients(DType::BF16)
}

#[test]
fn f32_gradients_emulated() -> Result<()> {
    check_gradients(DType::F32)
}

/// A T4.
const T4: GpuLimits = GpuLimits { multiprocessors: 40, shared: 64 << 10, l2: 4 << 20, capability: 75 };

#[test]
fn attention_and_gradients_of_an_older_gpu_emulated() -> Result<()> {
    for (dtype, d, masked) in
        [(DType::F16, 32, false), (DType::F16, 64, false), (DType::F16, 96, true), (DType::F32, 32, true)]
    {
        Case { dtype, b: 1, h: 2, t: 70, s: 75, d, padded: true, masked, gpu: T4 }.check(true)?;
    }
    Ok(())
}

#[test]
fn what_has_no_kernel_has_no_plan() -> Result<()> {
    let plan = |x: &Tensor, scale| Plan::new(x.dtype(), [x.layout(); 3], scale, [false; 2], gpu(100));
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
fn an_older_gpu_has_the_kernels_that_fit_it() -> Result<()> {
    let plans = |dtype, d, gpu| -> Result<[bool; 2]> {
        let x = Tensor::zeros((8, 12, 500, d), dtype, &Device::Cpu)?;
        let layouts = [x.layout(); 3];
        let forward = Plan::new(dtype, layouts, 0.1, [false; 2], gpu).is_some();
        Ok([forward, BackwardPlan::new(dtype, layouts, 0.1, gpu).is_some()])
    };
    assert_eq!(plans(DType::F16, 64, T4)?, [true, true]);
    assert_eq!(plans(DType::F16, 128, T4)?, [true, false]); // the backward pass needs more shared memory
    assert_eq!(plans(DType::BF16, 64, T4)?, [false, false]);
    assert_eq!(plans(DType::F32, 128, T4)?, [false, false]);
    assert_eq!(plans(DType::F16, 64, GpuLimits { capability: 70, ..T4 })?, [false, false]);
    assert_eq!(plans(DType::F32, 128, gpu(132))?, [true, true]);
    Ok(())
}
