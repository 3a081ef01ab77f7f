//! The result of a pass for the choice of the next tokens: all logits, or what the GPU has found among them.

use super::sampling::Sampler;
use candle_core::{DType, Result, Tensor};
use candle_fused::{FoundTokens, TokenSearch};

/// The result of a pass for each of its rows.
pub(super) enum Outcome {
    All(Vec<Vec<f32>>),
    /// The GPU still has the logits, f32 (B, V), for a row whose choice takes all.
    Found {
        found: Vec<FoundTokens>,
        logits: Tensor,
    },
}

impl Outcome {
    /// The tokens that a GPU finds in `logits` f32 (B, V). `words` are those of all rows that the search reads.
    pub(super) fn found(search: &TokenSearch, logits: Tensor, words: &[u32]) -> Result<Self> {
        let (rows, vocabulary) = logits.dims2()?;
        let device = logits.device();
        let shape = (rows, search.row_words(vocabulary));
        let words = if words.is_empty() { None } else { Some(Tensor::from_slice(words, shape, device)?) };
        let found = Tensor::zeros((rows, search.words(vocabulary)), DType::U32, device)?;
        search.find(&logits, words.as_ref(), &found)?;
        Ok(Self::Found { found: search.read(&found)?, logits })
    }

    /// The next token of a row after its text.
    pub(super) fn choose(&mut self, row: usize, sampler: &Sampler, text: &[u32]) -> Result<u32> {
        match self {
            Self::All(logits) => sampler.choose(&mut logits[row], text),
            Self::Found { found, logits } => {
                match sampler.choose_found(&found[row], logits.dim(1)?, text)? {
                    Some(token) => Ok(token),
                    None => sampler.choose(&mut logits.get(row)?.to_vec1()?, text),
                }
            }
        }
    }
}
