//! The text as token ids, in two parts: training and validation.

use crate::error::{Result, TrainError};
use crate::repeats::Repeats;
use candle_core::{Device, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::borrow::Cow;

/// A text as token ids, the last part held back for validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    pub(crate) train: Vec<u32>,
    pub(crate) val: Vec<u32>,
}

impl Dataset {
    /// Holds back the last `val_fraction` of the ids.
    ///
    /// # Errors
    /// When `val_fraction` is not between 0 and 1.
    pub fn split(mut ids: Vec<u32>, val_fraction: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&val_fraction) {
            let (option, value) = ("val_fraction", val_fraction.to_string());
            return Err(TrainError::Option { option, value, expected: "a number between 0 and 1" });
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a part of a length
        let train_len = ids.len() - (ids.len() as f64 * val_fraction) as usize;
        let val = ids.split_off(train_len);
        Ok(Self { train: ids, val })
    }

    /// Refuses data that a model with `vocab_size` tokens cannot learn in windows of `window` tokens.
    ///
    /// # Errors
    /// When a token is not in the model's vocabulary, or a part is too short for one window and the token after it.
    pub fn check(&self, window: usize, vocab_size: usize) -> Result<()> {
        if let Some(&id) = self.train.iter().chain(&self.val).find(|id| **id as usize >= vocab_size) {
            return Err(TrainError::Vocabulary { id, vocab_size });
        }
        let (train, validation) = (self.train.len(), self.val.len());
        if train <= window || validation <= window {
            return Err(TrainError::TooShort { train, validation, window });
        }
        Ok(())
    }

    /// The training ids.
    #[must_use]
    pub fn train(&self) -> &[u32] {
        &self.train
    }

    /// The ids held back for validation.
    #[must_use]
    pub fn validation(&self) -> &[u32] {
        &self.val
    }

    /// A fingerprint of the data: FNV-1a over the ids of both parts and the position of the split.
    pub(crate) fn fingerprint(&self) -> u64 {
        let parted = u32::try_from(self.train.len()).unwrap_or(u32::MAX);
        let ids = self.train.iter().chain(&self.val).chain([&parted]);
        ids.fold(0xcbf2_9ce4_8422_2325, |hash, id| (hash ^ u64::from(*id)).wrapping_mul(0x0100_0000_01b3))
    }

    /// The rows of a training batch, `window` tokens each and the one after them. They depend only on the seed and the
    /// batch's number, so that a resumed run sees the same data without saving any state for it.
    pub(crate) fn rows(
        &self,
        seed: u64,
        batch: u64,
        rows: usize,
        window: usize,
        repeats: Repeats,
    ) -> Vec<Cow<'_, [u32]>> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(batch);
        let starts: Vec<usize> = (0..rows).map(|_| rng.random_range(0..self.train.len() - window)).collect();
        let row = |start| match repeats.row(window + 1, &mut rng) {
            Some(repeated) => Cow::Owned(repeated),
            None => Cow::Borrowed(&self.train[start..=start + window]),
        };
        starts.into_iter().map(row).collect()
    }

    /// The validation loss of a model that knows only how often each token occurs in the training part
    /// (add-one smoothing): a model that uses context has to beat this.
    ///
    /// # Panics
    /// When a token is not below `vocab_size`; [`check`](Self::check) refuses such data.
    #[must_use]
    pub fn unigram_loss(&self, vocab_size: usize) -> f64 {
        let mut counts = vec![1u64; vocab_size];
        for &id in &self.train {
            counts[id as usize] += 1;
        }
        let total = (self.train.len() + vocab_size) as f64;
        let nats = |id: &u32| -(counts[*id as usize] as f64 / total).ln();
        self.val.iter().map(nats).sum::<f64>() / self.val.len() as f64
    }
}

/// Input tokens, and the token that follows each: two tensors (B, T), from rows of T + 1 tokens.
pub(crate) fn batch(rows: &[Cow<'_, [u32]>], device: &Device) -> candle_core::Result<(Tensor, Tensor)> {
    let t = rows.first().map_or(0, |row| row.len() - 1);
    let tensor = |shift: usize| {
        let flat: Vec<u32> = rows.iter().flat_map(|row| &row[shift..shift + t]).copied().collect();
        Tensor::from_vec(flat, (rows.len(), t), device)
    };
    Ok((tensor(0)?, tensor(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each window is followed by the token that its last position predicts.
    #[test]
    fn each_part_needs_a_token_more_than_a_window() {
        let split = |tokens: usize| {
            let data = Dataset::split(vec![0; tokens], 0.5)?;
            data.check(4, 1).map(|()| data)
        };
        assert!(split(10).is_ok_and(|data| data.train.len() == 5 && data.val.len() == 5));
        assert!(split(9).is_err(), "5 and 4");
        assert!(split(8).is_err(), "4 and 4");
    }

    #[test]
    fn the_unigram_loss_is_that_of_counts_with_one_more_of_each_token() {
        // Counts 2, 1, 0, 0 and one more of each: 3, 2, 1 and 1 of 7.
        let data = Dataset { train: vec![0, 1, 0], val: vec![0, 1, 1, 3] };
        let expected = -(3.0 / 7.0f64 * (2.0 / 7.0) * (2.0 / 7.0) * (1.0 / 7.0)).ln() / 4.0;
        let loss = data.unigram_loss(4);
        assert!((loss - expected).abs() < 1e-12, "{loss}, not {expected}");
    }
}
