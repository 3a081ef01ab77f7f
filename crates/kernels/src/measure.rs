//! The instruments of `gpt2 bench`: a device's clock, and the roofline of this machine's processor and memory, to compare a
//! kernel's speed with (Williams, Waterman, Patterson 2009). They are not part of this crate's interface; they live here
//! because they need the instruction sets of the kernels and the features for GPUs.

use crate::cpu::isa;
use candle_core::{Device, Result};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::hint::black_box;
use std::time::Instant;

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::{
    WrapErr,
    cudarc::driver::{CudaEvent, CudaStream, sys::CUevent_flags},
};

/// A running measurement.
///
/// On CUDA, the device first gets about 200 µs of other work, and starts the measurement after that: meanwhile, the host
/// submits what is measured, so the first 200 µs of submitting are not part of the result.
#[derive(Debug)]
pub struct Stopwatch {
    device: Device,
    start: Instant,
    #[cfg(feature = "cuda")]
    event: Option<(std::sync::Arc<CudaStream>, CudaEvent)>,
}

impl Stopwatch {
    /// Waits until the device has finished its pending work, then starts.
    ///
    /// # Errors
    /// When the device does not answer.
    pub fn start(device: &Device) -> Result<Self> {
        device.synchronize()?;
        Ok(Self {
            device: device.clone(),
            start: Instant::now(),
            #[cfg(feature = "cuda")]
            event: event(device)?,
        })
    }

    /// Waits until the device has finished all work submitted since the start, and returns the milliseconds.
    ///
    /// # Errors
    /// When the device does not answer.
    pub fn stop(self) -> Result<f64> {
        #[cfg(feature = "cuda")]
        if let Some((stream, start)) = &self.event {
            let end = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).w()?;
            return Ok(start.elapsed_ms(&end).w()?.into());
        }
        self.device.synchronize()?;
        Ok(self.start.elapsed().as_secs_f64() * 1e3)
    }

    /// The clock of a device: its own "events", or the wall "clock".
    #[must_use]
    pub fn kind(device: &Device) -> &'static str {
        if device.is_cuda() { "events" } else { "clock" }
    }
}

/// The bytes that the device writes before a measurement: 200 µs at 2.5 TB/s, and more than any cache holds.
#[cfg(feature = "cuda")]
const BEFORE: usize = 512 << 20;

/// An event that records when the device reaches it, after some other work.
#[cfg(feature = "cuda")]
fn event(device: &Device) -> Result<Option<(std::sync::Arc<CudaStream>, CudaEvent)>> {
    let Device::Cuda(cuda) = device else { return Ok(None) };
    // Freed in the order of the stream. A GPU without room for it gets no head start.
    let _ = candle_core::Tensor::zeros(BEFORE, candle_core::DType::U8, device);
    let stream = cuda.cuda_stream();
    let event = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).w()?;
    Ok(Some((stream, event)))
}

/// The bytes of a GPU's L2 cache, where we can ask for them.
///
/// # Errors
/// When the device does not answer.
#[cfg_attr(not(feature = "cuda"), allow(clippy::unnecessary_wraps))]
pub fn l2_bytes(device: &Device) -> Result<Option<usize>> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        return Ok(Some(crate::gpu::device::gpu_limits(device)?.l2));
    }
    let _ = device;
    Ok(None)
}

/// The best of this many rounds counts, because other programs can slow down some of them.
const ROUNDS: usize = 7;

fn best_of(work: impl Fn()) -> f64 {
    let seconds = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
}

/// f32 operations per second, in units of 10⁹, for fused multiply-adds that stay in registers, with all threads of the
/// current rayon pool busy. Each multiply-add counts as two.
#[must_use]
pub fn fma_gflops() -> f64 {
    const STEPS: usize = 4_000_000;
    let arch = isa::arch();
    gflops(|| {
        black_box(arch.dispatch(Multiply { steps: STEPS }));
        arch.dispatch(LaneCount) * ACCUMULATORS * STEPS * 2
    })
}

/// bf16 operations per second, in units of 10⁹, for products that stay in registers, with all threads of the current rayon
/// pool busy: of AMX's tiles, or of pairs with AVX512-BF16 or Arm's `bf16`. `None` if the kernels use neither; they then compute in f32.
#[must_use]
#[allow(unsafe_code)]
pub fn bf16_gflops() -> Option<f64> {
    #[cfg(amx)]
    if isa::Isa::current().has_tiles() {
        // SAFETY: `has_tiles` has looked.
        return Some(gflops(|| unsafe { crate::linear::product::amx::multiply(200_000) }));
    }
    #[cfg(any(target_arch = "aarch64", all(target_arch = "x86_64", feature = "x86-v4")))]
    if isa::Isa::current().has_pairs() {
        // SAFETY: `has_pairs` has looked for the instruction.
        return Some(gflops(|| unsafe { multiply_pairs(4_000_000) }));
    }
    None
}

/// The speed of something that returns its number of operations.
fn gflops(multiply: impl Fn() -> usize + Sync) -> f64 {
    let operations = multiply() * rayon::current_num_threads();
    let seconds = best_of(|| {
        rayon::broadcast(|_| multiply());
    });
    operations as f64 / seconds / 1e9
}

/// Multiplies pairs of bf16 numbers, `steps` times [`ACCUMULATORS`] vectors of them; returns the number of operations.
#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply_pairs(steps: usize) -> usize {
    use std::arch::x86_64::{__m512bh, _mm512_dpbf16_ps, _mm512_setzero_ps};
    let mut sums = [_mm512_setzero_ps(); ACCUMULATORS];
    let x: __m512bh = pulp::cast(black_box([1.0f32; 16]));
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, x, x);
        }
    }
    black_box(sums);
    steps * ACCUMULATORS * 4 * 16
}

/// Multiplies pairs of bf16 numbers on Arm, with 128-bit vectors.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,bf16")]
#[allow(unsafe_code)]
fn multiply_pairs(steps: usize) -> usize {
    use std::arch::aarch64::{vdupq_n_f32, vdupq_n_u16};
    let mut sums = [vdupq_n_f32(0.0); ACCUMULATORS];
    let x = vdupq_n_u16(black_box(0x3f80));
    for _ in 0..steps {
        for sum in &mut sums {
            // SAFETY: the caller has looked for `bf16`.
            *sum = unsafe { crate::cpu::neon::bfdot(*sum, x, x) };
        }
    }
    black_box(sums);
    steps * ACCUMULATORS * 4 * 4
}

/// Bytes read from memory per second, in units of 10⁹, by all threads of the current rayon pool. Takes 512 MB of
/// memory.
#[must_use]
pub fn read_gb_s() -> f64 {
    const FLOATS: usize = 128 << 20; // 512 MB: beyond every cache
    const CHUNK: usize = 1 << 18;
    let data = vec![1f32; FLOATS];
    let arch = isa::arch();
    let seconds = best_of(|| {
        black_box(data.par_chunks(CHUNK).map(|data| arch.dispatch(ReadAndSum { data })).sum::<f32>());
    });
    (FLOATS * size_of::<f32>()) as f64 / seconds / 1e9
}

/// The number of independent chains of multiply-adds: enough to keep two units with a latency of 4 to 6 busy, and
/// few enough for 16 registers.
const ACCUMULATORS: usize = 12;

struct LaneCount;
impl WithSimd for LaneCount {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        S::F32_LANES
    }
}

struct Multiply {
    steps: usize,
}

impl WithSimd for Multiply {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let mut sums = [simd.splat_f32s(black_box(1.0)); ACCUMULATORS];
        let a = simd.splat_f32s(black_box(0.5));
        let b = simd.splat_f32s(black_box(0.25));
        for _ in 0..self.steps {
            for sum in &mut sums {
                *sum = simd.mul_add_e_f32s(*sum, a, b);
            }
        }
        simd.reduce_sum_f32s(sums.into_iter().fold(b, |x, y| simd.add_f32s(x, y)))
    }
}

struct ReadAndSum<'a> {
    data: &'a [f32],
}

impl WithSimd for ReadAndSum<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let mut sums = [simd.splat_f32s(0.0); 8];
        for vectors in S::as_simd_f32s(self.data).0.as_chunks::<8>().0 {
            for (sum, x) in sums.iter_mut().zip(vectors) {
                *sum = simd.add_f32s(*sum, *x);
            }
        }
        simd.reduce_sum_f32s(sums.into_iter().fold(simd.splat_f32s(0.0), |x, y| simd.add_f32s(x, y)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_reads_every_number_of_whole_vectors() {
        let data: Vec<f32> = (0..1024).map(|i| (i % 7) as f32).collect();
        let sum = isa::arch().dispatch(ReadAndSum { data: &data });
        assert!((sum - data.iter().sum::<f32>()).abs() < 1e-3, "{sum}");
    }

    #[test]
    fn the_chains_run_every_step() {
        // x -> x/2 + 1/4 starts at 1 and halves the distance to its fixed point 1/2 in each step.
        let one = Multiply { steps: 1 };
        let four = Multiply { steps: 4 };
        let arch = isa::arch();
        let lanes = arch.dispatch(LaneCount) as f32;
        let value = |sum: f32| (sum / lanes - 0.25) / ACCUMULATORS as f32;
        assert!((value(arch.dispatch(one)) - 0.75).abs() < 1e-5);
        assert!((value(arch.dispatch(four)) - 0.53125).abs() < 1e-5);
    }
}
