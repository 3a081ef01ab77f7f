//! How surprising each token of many texts is, in one pass.

use crate::{ForwardArgs, Gpt2LMHeadModel};
use candle_core::{Module, Result, Tensor};
use candle_fused::attention::Summary;

/// The surprise of the tokens of some texts.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Surprises {
    /// For each text, `-ln p` of each token but the first, given those before it: T - 1 numbers in nats.
    pub nats: Vec<Vec<f64>>,
    /// If asked for, L summaries of the attention weights, (B, H, longest T). Entries past a text's end are
    /// padding.
    pub summaries: Vec<Summary>,
}

/// So many logits rows at a time, so that they never all lie in memory.
const ROWS: usize = 256;

/// Runs the model over texts of different lengths together: shorter ones are filled up at their end, which no token of
/// theirs sees. It takes least time if they have about the same length.
///
/// # Errors
/// When there is no text, or one is empty, longer than N, or holds an id of V or above.
pub fn surprises(model: &Gpt2LMHeadModel, texts: &[&[u32]], with_summaries: bool) -> Result<Surprises> {
    let longest = texts.iter().map(|ids| ids.len()).max().unwrap_or(0);
    if texts.iter().any(|ids| ids.is_empty()) || longest == 0 {
        candle_core::bail!("surprises: expected texts of at least one token each")
    }
    let device = model.transformer.wte.device();
    let filled =
        |ids: &&[u32]| ids.iter().copied().chain(std::iter::repeat_n(0, longest - ids.len())).collect();
    let rows: Vec<Vec<u32>> = texts.iter().map(filled).collect();
    let input = Tensor::new(rows, device)?; // (B, T)
    let args = ForwardArgs { output_summaries: with_summaries, ..ForwardArgs::default() };
    let output = model.transformer.forward(&input, args)?;
    let parts = texts.iter().enumerate().filter(|(_, ids)| ids.len() > 1);
    let hidden =
        parts.clone().map(|(row, ids)| output.last_hidden_state.get(row)?.narrow(0, 0, ids.len() - 1));
    let hidden = hidden.collect::<Result<Vec<_>>>()?;
    let targets: Vec<u32> = parts.flat_map(|(_, ids)| &ids[1..]).copied().collect();
    let mut all = Vec::with_capacity(targets.len());
    if !hidden.is_empty() {
        let (hidden, targets) = (Tensor::cat(&hidden, 0)?, Tensor::new(targets, device)?); // (rows, C), (rows)
        for first in (0..targets.elem_count()).step_by(ROWS) {
            let count = ROWS.min(targets.elem_count() - first);
            let logits = model.lm_head.forward(&hidden.narrow(0, first, count)?)?; // (count, V)
            let logits = logits.to_dtype(candle_fused::accumulator(logits.dtype()))?;
            all.extend(candle_fused::cross_entropies(&logits, &targets.narrow(0, first, count)?)?);
        }
    }
    let mut rest = all.into_iter();
    let nats = texts.iter().map(|ids| rest.by_ref().take(ids.len() - 1).collect()).collect();
    Ok(Surprises { nats, summaries: output.summaries })
}
