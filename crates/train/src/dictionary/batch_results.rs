//! The results of a batch, and the bytes in which they travel between ranks.

use super::sparse::Code;

/// The results of a batch, before a step changes anything.
pub(super) struct BatchResults {
    pub(super) positions: usize,
    pub(super) unexplained: f32,
    pub(super) l0: f64,
    /// Whether each feature fired: 0 or 1.
    pub(super) fired: Vec<u8>,
}

impl BatchResults {
    /// Of a batch in which the features of `code` fire.
    pub(super) fn new(positions: usize, unexplained: f32, code: &Code, features: usize) -> Self {
        let mut fired = vec![0; features];
        for active in code.iter().flatten() {
            fired[active.feature as usize] = 1;
        }
        let count: usize = code.iter().map(Vec::len).sum();
        Self { positions, unexplained, l0: count as f64 / positions as f64, fired }
    }

    /// For how many positions each feature has been silent behind this batch, given that before it.
    pub(super) fn silent_after(&self, before: &[usize]) -> Vec<usize> {
        let silent = before.iter().zip(&self.fired);
        silent.map(|(&silent, &fired)| if fired > 0 { 0 } else { silent + self.positions }).collect()
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let numbers = [self.positions as f64, self.unexplained.into(), self.l0];
        [bytemuck::cast_slice(&numbers), &self.fired[..]].concat()
    }

    /// `None` for the bytes of a rank that had no batch.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, fired) = bytes.split_at_checked(3 * size_of::<f64>())?;
        let numbers: [f64; 3] = bytemuck::pod_read_unaligned(numbers);
        let [positions, unexplained, l0] = numbers;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // as they were written
        let (positions, unexplained) = (positions as usize, unexplained as f32);
        Some(Self { positions, unexplained, l0, fired: fired.to_vec() })
    }
}
