//! [`TrainingBatch`]: what a step learns from.

use candle_core::{Result, Tensor};

/// Input tokens, and the token that follows each.
#[derive(Debug, Clone)]
pub struct TrainingBatch {
    /// (B, T)
    pub input_ids: Tensor,
    /// (B, T)
    pub targets: Tensor,
    /// Where rows hold several documents, or not everything is learned.
    pub documents: Option<Documents>,
}

/// The documents of a batch.
#[derive(Debug, Clone)]
pub struct Documents {
    /// u32 (B, T): where the document of each position begins. Documents do not attend across each other.
    pub starts: Tensor,
    /// u32 (n): the targets to learn, as indexes into the B·T of the batch.
    pub learned: Tensor,
}

impl TrainingBatch {
    /// Rows of a text, of which every target is learned.
    #[must_use]
    pub fn new(input_ids: Tensor, targets: Tensor) -> Self {
        Self { input_ids, targets, documents: None }
    }

    /// The first position that each position attends to.
    pub(crate) fn starts(&self) -> Option<&Tensor> {
        self.documents.as_ref().map(|documents| &documents.starts)
    }

    /// The rows of `x` (B, T, C) whose targets are learned, and those targets.
    pub(crate) fn learned(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let Some(documents) = &self.documents else { return Ok((x.clone(), self.targets.clone())) };
        if documents.learned.elem_count() == 0 {
            candle_core::bail!("a batch of documents of which nothing is learned has no loss")
        }
        let rows = x.flatten(0, 1)?.index_select(&documents.learned, 0)?; // (n, C)
        Ok((rows, self.targets.flatten_all()?.index_select(&documents.learned, 0)?))
    }
}
