//! Documents of a prompt and a completion, packed into rows; only completions are learned.

use crate::error::{Result, TrainError};
use candle_core::{Device, Tensor};
use gpt2_model::training::{Documents, TrainingBatch};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::ops::Range;

/// A prompt and its completion as token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    ids: Vec<u32>,
    learn_from: usize,
}

impl Document {
    /// A document whose ids from `learn_from` on are learned, each from those before it.
    ///
    /// # Errors
    /// When nothing is learned, or the first id, which nothing precedes.
    pub fn new(ids: Vec<u32>, learn_from: usize) -> Result<Self> {
        if learn_from == 0 || learn_from >= ids.len() {
            let expected = "at least 1 and less than the number of ids";
            return Err(TrainError::option("learn_from", learn_from, expected));
        }
        Ok(Self { ids, learn_from })
    }

    /// All ids.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The ids that are learned.
    #[must_use]
    pub fn learned(&self) -> &[u32] {
        &self.ids[self.learn_from..]
    }

    /// The number of positions that it takes: one less than it has ids, and at most `window`.
    fn positions(&self, window: usize) -> usize {
        (self.ids.len() - 1).min(window)
    }

    /// The ids that fit into `window` positions. What is too long loses the beginning of its prompt, and then the end of
    /// its completion.
    fn within(&self, window: usize) -> Range<usize> {
        let most = window + 1;
        if self.ids.len() <= most {
            return 0..self.ids.len();
        }
        let start = (self.ids.len() - most).min(self.learn_from - 1);
        start..start + most
    }
}

/// The numbers that decide what a training batch holds: a resumed run sees the same data without saving any state for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchDraw {
    pub(crate) seed: u64,
    /// The batch's number in the run.
    pub(crate) batch: u64,
}

impl BatchDraw {
    /// The random numbers of this batch.
    pub(crate) fn rng(self) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(self.batch);
        rng
    }
}

/// The shape of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchSize {
    pub(crate) rows: usize,
    /// Tokens in each row.
    pub(crate) window: usize,
}

/// The documents in each row of a training batch, drawn until a row is full.
pub(crate) fn drawn(documents: &[Document], draw: BatchDraw, size: BatchSize) -> Vec<Vec<usize>> {
    let mut rng = draw.rng();
    let BatchSize { rows, window } = size;
    // What does not fit begins the next row, so that long documents are drawn as often as short ones.
    let mut held = None;
    let mut row = || {
        let mut row = vec![];
        let mut left = window;
        loop {
            let i = held.take().unwrap_or_else(|| rng.random_range(0..documents.len()));
            let positions = documents[i].positions(window);
            if positions > left {
                held = Some(i);
                return row;
            }
            left -= positions;
            row.push(i);
        }
    };
    (0..rows).map(|_| row()).collect()
}

/// All documents in order; a row ends where the next document does not fit.
pub(crate) fn in_order(documents: &[Document], window: usize) -> Vec<Vec<usize>> {
    let mut rows: Vec<Vec<usize>> = vec![];
    let mut left = 0;
    for (i, document) in documents.iter().enumerate() {
        let positions = document.positions(window);
        if let Some(row) = rows.last_mut().filter(|_| positions <= left) {
            row.push(i);
        } else {
            rows.push(vec![i]);
            left = window;
        }
        left -= positions;
    }
    rows
}

/// The batch of these rows. A position that no document takes is a document of one token, and is not learned.
pub(crate) fn packed(
    documents: &[Document],
    rows: &[Vec<usize>],
    window: usize,
    device: &Device,
) -> Result<TrainingBatch> {
    let number = |n: usize| u32::try_from(n).map_err(TrainError::other);
    let mut inputs = vec![];
    let mut targets = vec![];
    let mut starts = vec![];
    let mut learned = vec![];
    for (r, row) in rows.iter().enumerate() {
        let mut column = 0;
        for document in row.iter().map(|i| &documents[*i]) {
            let range = document.within(window);
            let ids = &document.ids[range.clone()];
            inputs.extend_from_slice(&ids[..ids.len() - 1]);
            targets.extend_from_slice(&ids[1..]);
            starts.resize(starts.len() + ids.len() - 1, number(column)?);
            // The target of a position is the id after it.
            let first = document.learn_from - range.start - 1;
            for i in first..ids.len() - 1 {
                learned.push(number(r * window + column + i)?);
            }
            column += ids.len() - 1;
        }
        for column in column..window {
            inputs.push(0);
            targets.push(0);
            starts.push(number(column)?);
        }
    }
    let shape = (rows.len(), window);
    Ok(TrainingBatch {
        input_ids: Tensor::from_vec(inputs, shape, device)?,
        targets: Tensor::from_vec(targets, shape, device)?,
        documents: Some(Documents {
            starts: Tensor::from_vec(starts, shape, device)?,
            learned: Tensor::new(learned, device)?,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(first: u32, len: usize, learn_from: usize) -> Document {
        Document::new((first..).take(len).collect(), learn_from).expect("a document")
    }

    #[test]
    fn documents_share_rows_and_only_completions_are_learned() -> Result<()> {
        let documents = [document(10, 4, 2), document(20, 3, 1), document(30, 9, 7), document(40, 9, 2)];
        let rows = in_order(&documents, 6);
        assert_eq!(rows, [vec![0, 1], vec![2], vec![3]]);
        let batch = packed(&documents, &rows, 6, &Device::Cpu)?;
        let parts = batch.documents.as_ref().expect("documents");
        assert_eq!(
            batch.input_ids.to_vec2::<u32>()?,
            [[10, 11, 12, 20, 21, 0], [32, 33, 34, 35, 36, 37], [41, 42, 43, 44, 45, 46]],
            "a long prompt loses its beginning, a long completion its end"
        );
        assert_eq!(batch.targets.to_vec2::<u32>()?[0], [11, 12, 13, 21, 22, 0]);
        assert_eq!(parts.starts.to_vec2::<u32>()?, [[0, 0, 0, 3, 3, 5], [0; 6], [0; 6]]);
        // 12, 13, 21, 22; 37, 38; 42 to 47.
        assert_eq!(parts.learned.to_vec1::<u32>()?, [1, 2, 3, 4, 10, 11, 12, 13, 14, 15, 16, 17]);
        // Two that fill a row to its end, and one more.
        let documents = [document(0, 4, 1), document(0, 4, 1), document(0, 2, 1)];
        assert_eq!(in_order(&documents, 6), [vec![0, 1], vec![2]]);
        assert!(in_order(&[], 6).is_empty());
        Ok(())
    }

    #[test]
    fn rows_are_drawn_by_the_seed_and_the_batchs_number() {
        let documents: Vec<Document> = (0..9).map(|i| document(0, 3 + i % 4, 1)).collect();
        let of =
            |seed, batch| drawn(&documents, BatchDraw { seed, batch }, BatchSize { rows: 5, window: 12 });
        assert_eq!(of(1, 2), of(1, 2));
        assert!(of(1, 2) != of(1, 3) && of(1, 2) != of(2, 2));
        // Half of the documents fill a row, and half a part of one: both are drawn alike.
        let two = [document(0, 13, 1), document(0, 2, 1)];
        let size = BatchSize { rows: 8, window: 12 };
        let counts = (0..200).flat_map(|batch| drawn(&two, BatchDraw { seed: 3, batch }, size)).flatten();
        let long = counts.clone().filter(|i| *i == 0).count();
        let part = long as f64 / counts.count() as f64;
        assert!((0.42..0.52).contains(&part), "{part}");
        for row in of(1, 2) {
            let taken: usize = row.iter().map(|i| documents[*i].positions(12)).sum();
            assert!((8..=12).contains(&taken), "{taken} of 12");
        }
    }

    #[test]
    fn a_document_of_which_nothing_is_learned_is_refused() {
        assert!(Document::new(vec![1, 2], 0).is_err() && Document::new(vec![1, 2], 2).is_err());
        assert_eq!(Document::new(vec![1, 2], 1).expect("fine").learned(), [2]);
    }
}
