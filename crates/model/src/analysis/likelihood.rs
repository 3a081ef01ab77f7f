//! Measures how probable a model finds continuations of texts.

use super::predictions::LOGITS_ROWS;
use super::readout::Readout;
use crate::gpt2::args_and_outputs::ForwardArgs;
use crate::gpt2::lm_head_model::Gpt2LMHeadModel;
use crate::hooks::Hooks;
use candle_core::{D, Result, Tensor};

/// A text of which the last tokens are to be predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PredictedEnd<'a> {
    /// The tokens of the text.
    pub ids: &'a [u32],
    /// The number of tokens at its end that are predicted, each from all tokens before it: fewer than the text has.
    pub predicted: usize,
}

impl<'a> PredictedEnd<'a> {
    /// The tokens that the model reads: all but the last.
    #[must_use]
    pub fn read(&self) -> &'a [u32] {
        &self.ids[..self.ids.len().saturating_sub(1)]
    }
}

/// The probability of a continuation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Likelihood {
    /// The sum of ln p over its tokens, in nats; NaN if a logit is.
    pub log_prob: f64,
    /// Whether each of its tokens is the most probable one; of equals, the one with the lowest id counts as that.
    pub is_greedy: bool,
}

/// Runs the model over texts of different lengths together, as [`surprises`](super::surprises) does, and sums what it says of their
/// ends. The last token of a text is predicted and not read, so a text may have one token more than the context.
///
/// # Errors
/// When there is no text, one is too long or holds an id of V or above, one predicts its first token or none, and for errors from
/// hooks.
pub fn likelihoods(
    model: &Gpt2LMHeadModel,
    texts: &[PredictedEnd],
    hooks: Option<&dyn Hooks>,
) -> Result<Vec<Likelihood>> {
    let Some(longest) = texts.iter().map(|text| text.ids.len()).max() else {
        candle_core::bail!("likelihoods: expected one text at least")
    };
    if let Some(text) = texts.iter().find(|text| text.predicted == 0 || text.predicted >= text.ids.len()) {
        candle_core::bail!(
            "likelihoods: {} of {} tokens predicted; expected one at least, and one before it",
            text.predicted,
            text.ids.len()
        )
    }
    let device = model.device();
    let read = |text: &PredictedEnd| -> Vec<u32> {
        text.read().iter().copied().chain(std::iter::repeat_n(0, longest - text.ids.len())).collect()
    };
    let input = Tensor::new(texts.iter().map(read).collect::<Vec<_>>(), device)?; // (B, T)
    let args = ForwardArgs { hooks, ..ForwardArgs::default() };
    let readout = Readout::of(model, &input, args)?;
    let values = readout.values(); // (B, T, C or V)
    let ends = texts
        .iter()
        .enumerate()
        .map(|(row, text)| values.get(row)?.narrow(0, text.ids.len() - 1 - text.predicted, text.predicted));
    let rows = Tensor::cat(&ends.collect::<Result<Vec<_>>>()?, 0)?; // (predicted, C or V)
    let targets: Vec<u32> =
        texts.iter().flat_map(|text| &text.ids[text.ids.len() - text.predicted..]).copied().collect();
    let targets = Tensor::new(targets, device)?;
    let mut nats = Vec::with_capacity(targets.elem_count());
    let mut best = Vec::with_capacity(targets.elem_count());
    for first in (0..targets.elem_count()).step_by(LOGITS_ROWS) {
        let count = LOGITS_ROWS.min(targets.elem_count() - first);
        let logits = readout.logits_of(&rows.narrow(0, first, count)?)?; // (count, V)
        nats.extend(candle_fused::cross_entropies(&logits, &targets.narrow(0, first, count)?)?);
        best.extend(logits.argmax(D::Minus1)?.to_vec1::<u32>()?);
    }
    let targets = targets.to_vec1::<u32>()?;
    let mut start = 0;
    let sum = |text: &PredictedEnd| {
        let tokens = start..start + text.predicted;
        start = tokens.end;
        let log_prob = -nats[tokens.clone()].iter().sum::<f64>();
        Likelihood { log_prob, is_greedy: targets[tokens.clone()] == best[tokens] }
    };
    Ok(texts.iter().map(sum).collect())
}
