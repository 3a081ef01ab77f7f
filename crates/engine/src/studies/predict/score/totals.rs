//! The totals of a corpus.

use super::lines::DocumentTotals;
use super::section::Reading;
use crate::provenance::RunProvenance;
use crate::texts::{Corpus, CorpusDocument};
use serde::Serialize;

/// The most documents that a table lists.
const ROWS: usize = 20;

/// The totals of all documents.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The facts that they depend on.
    pub provenance: RunProvenance,
    /// The tokens of a window.
    pub window: usize,
    /// The tokens by which a window moves on.
    pub stride: usize,
    /// Whether the model's first token comes before each document.
    pub bos: bool,
    /// The number of documents.
    pub documents: usize,
    /// The number of documents without a token.
    pub empty: usize,
    /// The number of files in the corpus's folder whose names end otherwise than those of documents.
    pub other_files: usize,
    /// The extension of documents' file names.
    #[serde(skip)]
    pub extension: &'static str,
    /// The first documents, one more than a table shows.
    #[serde(skip)]
    pub first: Vec<ScoredPlace>,
    /// The number of tokens.
    pub tokens: usize,
    /// The number of tokens that were predicted.
    pub predicted: usize,
    #[serde(skip)]
    pub(super) surprise: f64,
    /// Nats a token; none if no token was predicted.
    pub loss: Option<f64>,
    /// exp of the loss.
    pub perplexity: Option<f64>,
    /// The number of documents that this run scored, without those of an earlier one.
    #[serde(skip)]
    pub fresh: usize,
    /// The time that they took.
    #[serde(skip)]
    pub seconds: f64,
}

/// A document's place, and its numbers.
#[derive(Debug, Clone)]
pub struct ScoredPlace {
    /// The file, and perhaps the line.
    pub place: String,
    /// The numbers.
    pub totals: DocumentTotals,
}

impl Report {
    pub(super) fn new(provenance: RunProvenance, reading: &Reading, corpus: Option<&Corpus>) -> Self {
        let &Reading { context: window, stride, bos, .. } = reading;
        Self {
            provenance,
            window,
            stride,
            bos: bos.is_some(),
            documents: 0,
            empty: 0,
            other_files: corpus.map_or(0, |corpus| corpus.other_files),
            extension: corpus.map_or("", Corpus::extension),
            first: vec![],
            tokens: 0,
            predicted: 0,
            surprise: 0.0,
            loss: None,
            perplexity: None,
            fresh: 0,
            seconds: 0.0,
        }
    }

    pub(super) fn add(&mut self, document: &CorpusDocument, totals: DocumentTotals) {
        if self.documents <= ROWS {
            self.first.push(ScoredPlace { place: document.place(), totals });
        }
        self.documents += 1;
        self.empty += usize::from(totals.tokens == 0);
        self.tokens += totals.tokens;
        self.predicted += totals.predicted;
        self.surprise += totals.loss * totals.predicted as f64;
    }

    /// The documents of a table: all, if they are few, and several.
    #[must_use]
    pub fn table(&self) -> Option<&[ScoredPlace]> {
        (2..=ROWS).contains(&self.documents).then_some(&self.first)
    }
}
