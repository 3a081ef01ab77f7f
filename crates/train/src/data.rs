//! The text as token ids, in two parts: training and validation.

use crate::documents::{Document, drawn, in_order, packed};
use crate::error::{Result, TrainError};
use crate::repeats::Repeats;
use candle_core::{Device, Tensor};
use gpt2_model::training::TrainingBatch;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::borrow::Cow;

/// A text, or documents, as token ids, the last part held back for validation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dataset {
    /// The ids that are learned.
    pub(crate) train: Vec<u32>,
    /// The ids that validation predicts.
    pub(crate) val: Vec<u32>,
    /// The documents of both parts, if it is not one text.
    pub(crate) documents: Option<[Vec<Document>; 2]>,
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
        Ok(Self { train: ids, val, documents: None })
    }

    /// Documents of prompts and completions, of which the last `val_fraction`, at least one, is held back.
    ///
    /// # Errors
    /// When `val_fraction` is not between 0 and 1, or there are fewer than two documents.
    pub fn of_documents(mut documents: Vec<Document>, val_fraction: f64) -> Result<Self> {
        if documents.len() < 2 {
            let (option, value) = ("documents", documents.len().to_string());
            return Err(TrainError::Option {
                option,
                value,
                expected: "at least 2: one to learn, one for validation",
            });
        }
        #[allow(clippy::cast_possible_truncation)] // a number of documents
        let places = Self::split((0..documents.len() as u32).collect(), val_fraction)?;
        let val = documents.split_off(places.train.len().clamp(1, documents.len() - 1));
        let learned =
            |documents: &[Document]| documents.iter().flat_map(Document::learned).copied().collect();
        Ok(Self { train: learned(&documents), val: learned(&val), documents: Some([documents, val]) })
    }

    /// Refuses data that a model with `vocab_size` tokens cannot learn in windows of `window` tokens.
    ///
    /// # Errors
    /// When a token is not in the model's vocabulary, or a part is too short for one window and the token after it.
    pub fn check(&self, window: usize, vocab_size: usize) -> Result<()> {
        if let Some(documents) = &self.documents {
            let mut ids = documents.iter().flatten().flat_map(Document::ids);
            return match ids.find(|id| **id as usize >= vocab_size) {
                Some(&id) => Err(TrainError::Vocabulary { id, vocab_size }),
                None => Ok(()),
            };
        }
        if let Some(&id) = self.train.iter().chain(&self.val).find(|id| **id as usize >= vocab_size) {
            return Err(TrainError::Vocabulary { id, vocab_size });
        }
        let (train, validation) = (self.train.len(), self.val.len());
        if train <= window || validation <= window {
            return Err(TrainError::TooShort { train, validation, window });
        }
        Ok(())
    }

    /// The training ids; of documents, those that are learned.
    #[must_use]
    pub fn train(&self) -> &[u32] {
        &self.train
    }

    /// The ids held back for validation; of documents, those that are predicted.
    #[must_use]
    pub fn validation(&self) -> &[u32] {
        &self.val
    }

    /// A fingerprint of the data: FNV-1a over the ids of both parts and the position of the split.
    pub(crate) fn fingerprint(&self) -> u64 {
        let parted = u32::try_from(self.train.len()).unwrap_or(u32::MAX);
        let lengths = |document: &Document| [document.ids().len(), document.learned().len()];
        let documents = || self.documents.iter().flatten().flatten();
        #[allow(clippy::cast_possible_truncation)] // a fingerprint
        let lengths: Vec<u32> = documents().flat_map(lengths).map(|n| n as u32).collect();
        let prompts = documents().flat_map(Document::ids);
        let ids = self.train.iter().chain(&self.val).chain([&parted]).chain(&lengths).chain(prompts);
        ids.fold(0xcbf2_9ce4_8422_2325, |hash, id| (hash ^ u64::from(*id)).wrapping_mul(0x0100_0000_01b3))
    }

    /// A training batch: rows of the text, or of documents. It depends only on the seed and the batch's number, so that a
    /// resumed run sees the same data without saving any state for it.
    pub(crate) fn training_batch(
        &self,
        (seed, number): (u64, u64),
        rows: usize,
        window: usize,
        repeats: Repeats,
        device: &Device,
    ) -> Result<TrainingBatch> {
        if let Some([documents, _]) = &self.documents {
            return packed(documents, &drawn(documents, (seed, number), rows, window), window, device);
        }
        let (inputs, targets) = batch(&self.rows(seed, number, rows, window, repeats), device)?;
        Ok(TrainingBatch::new(inputs, targets))
    }

    /// The batches of the validation part, of so many rows, each with the number of its targets that count: consecutive
    /// windows, or all documents.
    pub(crate) fn validation_batches(&self, rows: usize, window: usize) -> Vec<ValidationBatch<'_>> {
        if let Some([_, documents]) = &self.documents {
            let all = in_order(documents, window);
            return all
                .chunks(rows)
                .map(|rows| ValidationBatch::Documents(documents, rows.to_vec()))
                .collect();
        }
        let starts = (0..self.val.len() - window).step_by(window);
        let windows: Vec<_> = starts.map(|start| Cow::Borrowed(&self.val[start..=start + window])).collect();
        windows.chunks(rows).map(|rows| ValidationBatch::Windows(rows.to_vec())).collect()
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

/// A batch of the validation part.
pub(crate) enum ValidationBatch<'a> {
    /// Windows of a text and the token after each.
    Windows(Vec<Cow<'a, [u32]>>),
    /// The documents, and which of them each row has.
    Documents(&'a [Document], Vec<Vec<usize>>),
}

impl ValidationBatch<'_> {
    /// The batch, and the number of targets that count.
    pub(crate) fn load(&self, window: usize, device: &Device) -> Result<(TrainingBatch, usize)> {
        match self {
            Self::Windows(rows) => {
                let (inputs, targets) = batch(rows, device)?;
                Ok((TrainingBatch::new(inputs, targets), rows.len() * window))
            }
            Self::Documents(documents, rows) => {
                let batch = packed(documents, rows, window, device)?;
                let learned = batch.documents.as_ref().map_or(0, |documents| documents.learned.elem_count());
                Ok((batch, learned))
            }
        }
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
        let data = Dataset { train: vec![0, 1, 0], val: vec![0, 1, 1, 3], documents: None };
        let expected = -(3.0 / 7.0f64 * (2.0 / 7.0) * (2.0 / 7.0) * (1.0 / 7.0)).ln() / 4.0;
        let loss = data.unigram_loss(4);
        assert!((loss - expected).abs() < 1e-12, "{loss}, not {expected}");
    }
}
