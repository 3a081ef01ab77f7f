//! What the examples share: random weights that two models can hold together, and their times.

pub mod gguf;
pub mod models;

// As candle-transformers calls it.
extern crate candle_core as candle;

use anyhow::{Result, ensure};
use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

/// A builder of weights that depend on their names alone. With `keep` it returns the same tensor to everyone who asks for a name,
/// so that two models share what they do not lay out for themselves.
pub fn random_weights(dtype: DType, keep: bool) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Weights { kept: Mutex::default(), keep }), dtype, Device::Cpu)
}

struct Weights {
    kept: Mutex<HashMap<String, Tensor>>,
    keep: bool,
}

impl SimpleBackend for Weights {
    /// Matrices that keep the size of what they multiply; norms near 1, biases near 0.
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let Ok(mut kept) = self.kept.lock() else {
            candle_core::bail!("a thread panicked while it made weights")
        };
        if let Some(tensor) = kept.get(name) {
            return Ok(tensor.clone());
        }
        let fan_in: usize = shape.dims().iter().skip(1).product();
        let (mean, deviation) = match shape.rank() {
            1 if name.ends_with(".weight") => (1., 0.1),
            1 => (0., 0.1),
            _ => (0., (fan_in as f64).powf(-0.5)),
        };
        let seed = name.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let tensor = (random(shape, seed, device)? * deviation)? + mean;
        let tensor = tensor?.to_dtype(dtype)?;
        if self.keep {
            kept.insert(name.to_string(), tensor.clone());
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        candle_core::bail!("{name}: random weights need a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

/// Uniform numbers with mean 0 and deviation 1, hashed from the seed and their index.
pub fn random(shape: impl Into<Shape>, seed: u64, device: &Device) -> candle_core::Result<Tensor> {
    let shape = shape.into();
    let number = |i: u64| {
        // SplitMix64 (Steele et al. 2014).
        let mut x = (i ^ seed << 36).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ x >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.
    };
    let deviation = 3f32.sqrt();
    let numbers: Vec<f32> = (0..shape.elem_count() as u64).map(|i| deviation * number(i)).collect();
    Tensor::from_vec(numbers, shape, device)
}

/// How long some runs took.
#[derive(Debug, Clone, Default)]
pub struct Times(Vec<f64>);

impl Times {
    /// One more run.
    pub fn add(&mut self, took: Duration) {
        self.0.push(1e3 * took.as_secs_f64());
        self.0.sort_by(f64::total_cmp);
    }

    /// The shortest, in ms.
    #[must_use]
    pub fn fastest(&self) -> f64 {
        self.0.first().copied().unwrap_or(f64::NAN)
    }

    /// The median, in ms.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// `max |a - b| / max |b|`; an error if one of them holds NaN or infinity.
pub fn relative_difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    let a = a.to_dtype(DType::F32)?;
    let b = b.to_dtype(DType::F32)?;
    let largest = |x: &Tensor| -> Result<f32> { Ok(x.abs()?.max_all()?.to_scalar()?) };
    let difference = (a - &b)?;
    ensure!(difference.sum_all()?.to_scalar::<f32>()?.is_finite(), "a result is not finite");
    Ok(largest(&difference)? / largest(&b)?)
}
