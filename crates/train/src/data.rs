//! The text as token ids, in two parts, training and validation, and the batches that are drawn from them.

use crate::documents::{BatchDraw, BatchSize, Document, drawn, in_order, packed};
use crate::error::{Result, TrainError};
use candle_core::{Device, Tensor};
use gpt2_model::training::TrainingBatch;
use rand::Rng;
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
            return Err(TrainError::option("val_fraction", val_fraction, "a number between 0 and 1"));
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a part of a length
        let train_len = ids.len() - (ids.len() as f64 * val_fraction) as usize;
        let val = ids.split_off(train_len);
        Ok(Self { train: ids, val, documents: None })
    }

    /// Two texts: one to learn, and one for validation.
    #[must_use]
    pub fn new(train: Vec<u32>, validation: Vec<u32>) -> Self {
        Self { train, val: validation, documents: None }
    }

    /// Documents of prompts and completions. Holds back the last `val_fraction` of them, but at least one.
    ///
    /// # Errors
    /// When `val_fraction` is not between 0 and 1, or there are fewer than two documents.
    pub fn from_documents(mut documents: Vec<Document>, val_fraction: f64) -> Result<Self> {
        if documents.len() < 2 {
            let expected = "at least 2: one to learn, one for validation";
            return Err(TrainError::option("documents", documents.len(), expected));
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
        let train = self.train.len();
        let validation = self.val.len();
        if train <= window || validation <= window {
            return Err(TrainError::TooShort { train, validation, window });
        }
        Ok(())
    }

    /// The positions that one epoch has in windows of this many tokens: those of the training text; of documents, those of the rows
    /// that all of them fill.
    #[must_use]
    pub fn positions(&self, window: usize) -> usize {
        match &self.documents {
            Some([documents, _]) => in_order(documents, window).len() * window,
            None => self.train.len(),
        }
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
        draw: BatchDraw,
        size: BatchSize,
        repeats: Repeats,
        device: &Device,
    ) -> Result<TrainingBatch> {
        if let Some([documents, _]) = &self.documents {
            return packed(documents, &drawn(documents, draw, size), size.window, device);
        }
        Ok(batch(&self.rows(draw, size, repeats), device)?)
    }

    /// The batches of the validation part: consecutive windows, or all documents.
    pub(crate) fn validation_batches(&self, size: BatchSize) -> Vec<ValidationBatch<'_>> {
        let BatchSize { rows, window } = size;
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

    /// The rows of a training batch: `window` tokens each and the one after them.
    fn rows(&self, draw: BatchDraw, size: BatchSize, repeats: Repeats) -> Vec<Cow<'_, [u32]>> {
        let mut rng = draw.rng();
        let BatchSize { rows, window } = size;
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
            Self::Windows(rows) => Ok((batch(rows, device)?, rows.len() * window)),
            Self::Documents(documents, rows) => {
                let batch = packed(documents, rows, window, device)?;
                let learned = batch.documents.as_ref().map_or(0, |documents| documents.learned.elem_count());
                Ok((batch, learned))
            }
        }
    }
}

/// Input tokens, and the token that follows each, from rows of T + 1 tokens.
pub(crate) fn batch(rows: &[Cow<'_, [u32]>], device: &Device) -> candle_core::Result<TrainingBatch> {
    let t = rows.first().map_or(0, |row| row.len() - 1);
    let tensor = |shift: usize| {
        let flat: Vec<u32> = rows.iter().flat_map(|row| &row[shift..shift + t]).copied().collect();
        Tensor::from_vec(flat, (rows.len(), t), device)
    };
    Ok(TrainingBatch::new(tensor(0)?, tensor(1)?))
}

/// The tokens of the shortest span: one to recognize, and one to predict.
const SHORTEST: f64 = 2.0;
/// The probability that a span is new rather than a copy of an earlier one.
const NEW: f64 = 0.25;

/// Training rows that only a model which looks back can predict: random tokens whose spans come again.
///
/// In a text there is little to gain from finding an earlier copy of the present token, so small models do not learn it.
/// In these rows nothing else helps, and the heads that do it appear: one that attends to the previous token, and
/// induction heads, which attend to what followed the present token before (Olsson et al. 2022, "In-context Learning
/// and Induction Heads").
#[derive(Debug, Clone, Copy)]
pub(crate) struct Repeats {
    /// The probability of each row.
    pub(crate) fraction: f64,
    pub(crate) vocab_size: usize,
}

impl Repeats {
    /// `len` tokens: spans of random ones, most of them copies of an earlier span of the row, in random order. If one
    /// span came again and again, a model could as well compare what stood two or three tokens back.
    /// The spans have 2 tokens to a quarter of the row, short ones more often. `None` for a row of the text.
    pub(crate) fn row(&self, len: usize, rng: &mut impl Rng) -> Option<Vec<u32>> {
        // Draw nothing if no rows are wanted: a run without repeats sees the same text as ever.
        if self.fraction == 0.0 || !rng.random_bool(self.fraction) {
            return None;
        }
        let longest = (len as f64 / 4.0).max(SHORTEST);
        let mut spans: Vec<Vec<u32>> = vec![];
        let mut row = vec![];
        while row.len() < len {
            if spans.is_empty() || rng.random_bool(NEW) {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // between the two
                let span = rng.random_range(SHORTEST.ln()..=longest.ln()).exp().round() as usize;
                #[allow(clippy::cast_possible_truncation)] // ids are u32
                spans.push((0..span).map(|_| rng.random_range(0..self.vocab_size) as u32).collect());
                row.extend(spans.last().into_iter().flatten());
            } else {
                row.extend(&spans[rng.random_range(0..spans.len())]);
            }
        }
        row.truncate(len);
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

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

    /// In a vocabulary so large that no token occurs twice by chance, a token that has occurred before tells what follows
    /// in most places, and the other tokens tell nothing.
    #[test]
    fn most_tokens_follow_what_they_followed_before() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let repeats = Repeats { fraction: 1.0, vocab_size: 1 << 30 };
        let (mut known, mut right) = (0, 0);
        for _ in 0..50 {
            let row = repeats.row(257, &mut rng).unwrap();
            assert_eq!(row.len(), 257);
            for i in 1..256 {
                if let Some(copy) = row[..i].iter().rposition(|id| *id == row[i]) {
                    known += 1;
                    right += usize::from(row[copy + 1] == row[i + 1]);
                }
            }
        }
        let (known, right) = (f64::from(known) / (50.0 * 255.0), right as f64 / f64::from(known));
        assert!((0.5..0.9).contains(&known), "{known} of the tokens have occurred before");
        // The end of a span tells nothing, and spans have 62 / ln 32 = 18 tokens on average.
        assert!((0.92..0.98).contains(&right), "{right} of those are followed by the same");
    }

    #[test]
    fn the_fraction_is_that_of_the_rows() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut count = |fraction| {
            let repeats = Repeats { fraction, vocab_size: 10 };
            (0..1000).filter(|_| repeats.row(9, &mut rng).is_some()).count()
        };
        assert_eq!((count(0.0), count(1.0)), (0, 1000));
        // Five standard deviations of 1000 draws.
        assert!((230..=370).contains(&count(0.3)));
    }

    #[test]
    fn at_least_one_document_is_learned_and_one_held_back() -> Result<()> {
        let document = |first: u32| Document::new(vec![first, first + 1, first + 2], 2);
        let split = |count: u32, part: f64| {
            let all = (0..count).map(|i| document(10 * i)).collect::<Result<_>>()?;
            Dataset::from_documents(all, part)
        };
        for (count, part, learned) in
            [(2, 0.0, 1), (2, 0.5, 1), (2, 1.0, 1), (10, 0.0, 9), (10, 0.3, 7), (10, 1.0, 1)]
        {
            let data = split(count, part)?;
            // The last id of each.
            let all: Vec<u32> = (0..count).map(|i| 10 * i + 2).collect();
            assert_eq!((data.train(), data.validation()), all.split_at(learned), "{count} {part}");
            assert!(data.check(1, 10 * count as usize).is_ok());
            let least = all[all.len() - 1] as usize;
            assert!(
                matches!(data.check(1, least), Err(TrainError::Vocabulary { id, .. }) if id as usize == least)
            );
        }
        assert!(split(1, 0.5).is_err() && split(0, 0.5).is_err());
        for part in [-0.1, 1.1, f64::NAN] {
            assert!(split(3, part).is_err() && Dataset::split(vec![1, 2, 3], part).is_err(), "{part}");
        }
        let text = Dataset::split(vec![5, 3, 5, 4], 0.5)?;
        assert!(text.check(1, 6).is_ok() && text.check(1, 5).is_err(), "there are tokens 0 to 4");
        let text = Dataset::split(vec![3, 3, 4, 5], 0.5)?;
        assert!(text.check(1, 5).is_err(), "of the part for validation");
        Ok(())
    }

    #[test]
    fn an_epoch_has_the_positions_of_a_text_or_of_rows_of_documents() -> Result<()> {
        assert_eq!(Dataset::new((0..7).collect(), vec![1]).positions(3), 7);
        // Three of two positions each: two fill a row of five, one begins another.
        let document = || Document::new(vec![1, 2, 3], 1);
        let data = Dataset::from_documents(vec![document()?, document()?, document()?, document()?], 0.25)?;
        assert_eq!(data.positions(5), 10);
        Ok(())
    }

    #[test]
    fn the_fingerprint_is_fnv_1a_and_tells_data_apart() -> Result<()> {
        // Without data there is only the position of the split: the published value of a single byte 0.
        assert_eq!(Dataset::default().fingerprint(), 0xaf63_bd4c_8601_b7df);
        let documents = |parts: &[(&[u32], usize)]| {
            let all = parts.iter().map(|(ids, from)| Document::new(ids.to_vec(), *from));
            Ok::<_, TrainError>(Dataset::from_documents(all.collect::<Result<_>>()?, 0.5)?.fingerprint())
        };
        let found = [
            Dataset::split(vec![1, 2, 3, 4], 0.5)?.fingerprint(),
            Dataset::split(vec![1, 2, 3, 4], 0.25)?.fingerprint(),
            Dataset::split(vec![2, 1, 3, 4], 0.5)?.fingerprint(),
            documents(&[(&[1, 2, 3], 1), (&[4, 5, 6], 1)])?,
            documents(&[(&[1, 2, 3], 2), (&[4, 5, 6], 1)])?,
            documents(&[(&[9, 2, 3], 1), (&[4, 5, 6], 1)])?,
            documents(&[(&[1, 2, 3], 1), (&[9, 5, 6], 1)])?,
        ];
        for (i, one) in found.iter().enumerate() {
            assert!(!found[..i].contains(one), "{i}");
        }
        Ok(())
    }
}
