//! GPT-2's initial weights from a seed: normal 0.02, residual projections scaled by `1/sqrt(2L)`.
//!
//! Candle's CPU generator cannot be seeded, so the numbers come from ChaCha8, a counter-based generator.
//! Each tensor has its own stream, chosen by its name, so neither the loading order nor another tensor's
//! size changes its numbers.

use crate::config::Config;
use candle_core::{DType, Device, Result, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder, VarMap};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal, Uniform};

/// A builder that creates random weights as constants: for inference, benchmarks and tests.
#[must_use]
pub fn seeded(seed: u64, dtype: DType, device: &Device) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Seeded { seed, variables: None }), dtype, device.clone())
}

/// A builder that creates random weights as variables and keeps them in `variables`: for training.
#[must_use]
pub fn seeded_variables(seed: u64, variables: &VarMap, dtype: DType, device: &Device) -> VarBuilder<'static> {
    let backend = Seeded { seed, variables: Some(variables.clone()) };
    VarBuilder::from_backend(Box::new(backend), dtype, device.clone())
}

/// Initial position embeddings (N, C) made of sinusoids (Vaswani et al. 2017, §3.5) with standard
/// deviation `initializer_range`, instead of GPT-2's random ones.
///
/// Neighboring positions then differ in the same way everywhere, so a small model trained on little
/// text can find relative positions (above all the previous token) without learning each of N
/// vectors separately.
///
/// # Errors
/// When the device cannot allocate them.
pub fn sinusoids(config: &Config, dtype: DType, device: &Device) -> Result<Tensor> {
    let (n, c) = (config.n_positions, config.n_embd);
    // A sine's mean square is 1/2.
    let amplitude = config.initializer_range * std::f64::consts::SQRT_2;
    let value = |position: usize, column: usize| {
        let angle = position as f64 / 10_000f64.powf((column / 2 * 2) as f64 / c as f64);
        amplitude * if column.is_multiple_of(2) { angle.sin() } else { angle.cos() }
    };
    let values: Vec<f64> = (0..n).flat_map(|i| (0..c).map(move |j| value(i, j))).collect();
    Tensor::from_vec(values, (n, c), device)?.to_dtype(dtype)
}

struct Seeded {
    seed: u64,
    variables: Option<VarMap>,
}

impl SimpleBackend for Seeded {
    fn get(&self, shape: Shape, name: &str, init: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        let Some(variables) = &self.variables else {
            return draw(self.seed, name, &shape, init, dtype, device);
        };
        let Ok(mut held) = variables.data().lock() else {
            candle_core::bail!("the variables' lock is poisoned: a thread panicked while it held them")
        };
        if let Some(var) = held.get(name) {
            if var.shape() != &shape {
                candle_core::bail!("{name}: expected shape {:?}, the variable has {:?}", shape, var.shape())
            }
            return Ok(var.as_tensor().clone());
        }
        let var = Var::from_tensor(&draw(self.seed, name, &shape, init, dtype, device)?)?;
        held.insert(name.to_string(), var.clone());
        Ok(var.as_tensor().clone())
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name}: random weights need a shape, use `get`")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        false // nothing is stored: every tensor is created on request
    }
}

fn draw(seed: u64, name: &str, shape: &Shape, init: Init, dtype: DType, device: &Device) -> Result<Tensor> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(fnv1a(name));
    let n = shape.elem_count();
    let values: Vec<f32> = match init {
        #[allow(clippy::cast_possible_truncation)] // 0 and 1 in practice
        Init::Const(value) => vec![value as f32; n],
        Init::Randn { mean, stdev } => sample(Normal::new(mean, stdev), &mut rng, n)?,
        Init::Uniform { lo, up } => sample(Uniform::new(lo, up), &mut rng, n)?,
        Init::Kaiming { .. } => candle_core::bail!("{name}: GPT-2 has no Kaiming initialization"),
    };
    Tensor::from_vec(values, shape, device)?.to_dtype(dtype)
}

fn sample<D, E>(distribution: std::result::Result<D, E>, rng: &mut ChaCha8Rng, n: usize) -> Result<Vec<f32>>
where
    D: Distribution<f64>,
    E: std::error::Error + Send + Sync + 'static,
{
    let distribution = distribution.map_err(candle_core::Error::wrap)?;
    #[allow(clippy::cast_possible_truncation)] // the weights are f32
    Ok(distribution.sample_iter(rng).take(n).map(|x| x as f32).collect())
}

/// FNV-1a of the name: a fixed, portable choice of stream.
fn fnv1a(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vaswani et al. 2017, §3.5, computed by hand: `sin` and `cos` of `p / 10000^(2i / C)`.
    #[test]
    fn positions_begin_as_sinusoids() -> Result<()> {
        let config =
            Config { n_positions: 600, n_embd: 4, n_head: 1, initializer_range: 0.5, ..Config::gpt2() };
        let rows = sinusoids(&config, DType::F64, &Device::Cpu)?.to_vec2::<f64>()?;
        let amplitude = 0.5 * 2f64.sqrt();
        for p in [0, 1, 599] {
            let fast = p as f64;
            let slow = p as f64 / 100.0;
            let expected = [fast.sin(), fast.cos(), slow.sin(), slow.cos()].map(|x| x * amplitude);
            for (got, expected) in rows[p].iter().zip(expected) {
                assert!((got - expected).abs() < 1e-12, "position {p}: {got}, not {expected}");
            }
        }
        Ok(())
    }

    #[test]
    fn streams_are_fnv_1a_of_the_names() {
        // Values that its authors publish.
        assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_variable_that_is_asked_for_again_is_the_same() -> Result<()> {
        let variables = VarMap::new();
        let vb = seeded_variables(1, &variables, DType::F32, &Device::Cpu);
        let normal = Init::Randn { mean: 0., stdev: 1. };
        let first = vb.get_with_hints((2, 3), "x", normal)?;
        assert_eq!(vb.get_with_hints((2, 3), "x", normal)?.id(), first.id());
        let error = vb.get_with_hints((3, 2), "x", normal).expect_err("another shape").to_string();
        assert!(error.contains("x: expected shape [3, 2], the variable has [2, 3]"), "{error}");
        assert_eq!(variables.all_vars().len(), 1);
        let constant = seeded(1, DType::F32, &Device::Cpu).get_with_hints((2, 3), "x", normal)?;
        assert_eq!(constant.to_vec2::<f32>()?, first.to_vec2::<f32>()?);
        assert!(!constant.is_variable() && first.is_variable());
        Ok(())
    }
}
