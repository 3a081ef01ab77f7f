//! GPT-2's `bias` buffer: the causal triangle.

use candle_core::{Device, Result, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

/// The eager path keeps a triangle up to this side (256 MiB); of a longer one it makes just the rows that it reads.
const KEPT: usize = 1 << 14;
/// The longest side of a triangle: 4 GiB.
const LONGEST: usize = 1 << 16;

/// The u8 lower triangle (1, 1, n, n), 1 = visible.
///
/// # Errors
/// When n is above 65536, or the device cannot hold the triangle.
pub fn causal_bias(n: usize, device: &Device) -> Result<Tensor> {
    if n > LONGEST {
        candle_core::bail!(
            "a causal triangle of {n} positions takes {n}² bytes, expected at most {LONGEST} positions"
        )
    }
    let mut tril = vec![0u8; n * n];
    for (i, row) in tril.chunks_exact_mut(n.max(1)).enumerate() {
        row[..=i].fill(1);
    }
    Tensor::from_vec(tril, (1, 1, n, n), device)
}

/// The triangle for up to N positions, made on first use. Clones share it.
///
/// Only the eager path reads it: a model that never takes that path never holds N² bytes for it.
///
/// ```
/// use candle_core::Device;
/// use candle_fused::attention::CausalBias;
///
/// # fn main() -> candle_core::Result<()> {
/// let bias = CausalBias::new(3, &Device::Cpu);
/// assert_eq!(bias.tensor()?.dims(), [1, 1, 3, 3]);
/// assert_eq!(bias.tensor()?.flatten_all()?.to_vec1::<u8>()?, [1, 0, 0, 1, 1, 0, 1, 1, 1]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CausalBias {
    n: usize,
    device: Device,
    made: Arc<Mutex<Option<Tensor>>>,
}

impl CausalBias {
    /// The triangle of `n` positions on `device`.
    #[must_use]
    pub fn new(n: usize, device: &Device) -> Self {
        Self { n, device: device.clone(), made: Arc::default() }
    }

    /// N, the positions on each side.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.n
    }

    /// Whether the triangle is small enough to keep when a caller needs only a few of its rows.
    pub(super) fn is_worth_keeping(&self) -> bool {
        self.n <= KEPT
    }

    /// u8 (1, 1, N, N), 1 = visible.
    ///
    /// # Errors
    /// When N is above 65536, or the device cannot hold the triangle.
    pub fn tensor(&self) -> Result<Tensor> {
        // Under the lock, so that no second thread makes another.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tensor) = &*made {
            return Ok(tensor.clone());
        }
        let tensor = causal_bias(self.n, &self.device)?;
        *made = Some(tensor.clone());
        Ok(tensor)
    }
}
