//! The fused kernels against the eager operations, which define them.

mod caches;
mod codes;
#[path = "../common/mod.rs"]
mod common;
mod dropped;
mod explained;
mod extras;
mod features;
mod fused;
mod fused_backward;
mod inputs;
mod latent;
mod layers;
mod masks;
mod merging;
mod on_device;
mod paged;
mod ranges;
mod schedules;
mod shared_keys;
mod signatures;
mod sinks;
mod steps;
mod weights;

use candle_core::{DType, Shape, Tensor};
use candle_fused::attention::widen_rows;
use common::{Result, largest, max_abs, test_device};

/// q (B, H, T, D), k and v (B, H, S, D) as strided views of one packed projection (B, S, 3, H, D), as `c_attn` returns it; q
/// cut to the last T positions.
fn packed_views(packed: &Tensor, t: usize) -> candle_core::Result<[Tensor; 3]> {
    let part = |i| packed.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2);
    let q = part(0)?;
    Ok([q.narrow(2, q.dim(2)? - t, t)?, part(1)?, part(2)?])
}

/// Normally distributed numbers in f32, the same for each seed, name and shape.
fn random(seed: u64, name: &str, stdev: f64, shape: impl Into<Shape>) -> candle_core::Result<Tensor> {
    let vb = gpt2_model::init::seeded(seed, DType::F32, &test_device());
    vb.get_with_hints(shape.into(), name, candle_nn::Init::Randn { mean: 0., stdev })
}

/// The largest difference.
fn distance(a: &Tensor, b: &Tensor) -> Result<f32> {
    assert_eq!(a.dims(), b.dims());
    max_abs(&(a.to_dtype(DType::F32)? - b.to_dtype(DType::F32)?)?)
}

/// The largest difference, relative to the largest value.
fn relative_error(got: &[f64], expected: &[f64]) -> f64 {
    let scale = expected.iter().fold(1e-30, |a: f64, x| a.max(x.abs()));
    largest(got.iter().zip(expected).map(|(a, b)| (a - b).abs())) / scale
}

/// Computes the numbers on one thread and on several: they are the same to the bit.
fn same_on_any_number_of_threads(numbers: impl Fn() -> Result<Vec<f64>> + Sync) -> Result {
    let bits = |threads: usize| -> Result<Vec<u64>> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        let numbers = pool.install(|| numbers().map_err(|e| e.to_string()))?;
        Ok(numbers.into_iter().map(f64::to_bits).collect())
    };
    let one = bits(1)?;
    for threads in [2, 7, 64] {
        assert_eq!(bits(threads)?, one, "{threads} threads");
    }
    Ok(())
}

/// The numbers as f32, to the bit; 8-bit rows widened.
fn bits(x: &Tensor) -> Result<Vec<u32>> {
    let x = if x.dtype() == DType::U8 { widen_rows(x)? } else { x.to_dtype(DType::F32)? };
    Ok(x.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
}

/// Numbers for schedules, the same for each seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}
