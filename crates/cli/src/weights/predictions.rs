//! The model's predictions after each position, for a page.

use super::subject::Subject;
use crate::values::highest;
use candle_core::{DType, Device, Module, Tensor};
use gpt2_view::NextToken;
use rayon::prelude::*;

/// How many next tokens the page shows for each position.
const LIKELY: usize = 5;
/// How many positions' logits to hold at a time.
const CHUNK: usize = 64;

/// The model's predictions after the last positions, from their inputs of the output projection, (rows, C). A prediction
/// after the last of them is compared with `last`, the token that came, if there is one.
pub(crate) fn predictions(
    subject: &Subject,
    hidden: &Tensor,
    last: Option<u32>,
) -> anyhow::Result<Vec<NextToken>> {
    let Subject { session, ids, .. } = subject;
    let (t, first) = (hidden.dim(0)?, ids.len() - hidden.dim(0)?);
    let mut all = Vec::with_capacity(t);
    for from in (0..t).step_by(CHUNK) {
        let rows = hidden.narrow(0, from, CHUNK.min(t - from))?; // (rows, C)
        let logits = session.model.lm_head.forward(&rows)?; // (rows, V)
        let logits = logits.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
        subject.check_finite([&logits])?;
        let logits = logits.to_vec2::<f32>()?;
        let likely: Vec<_> = logits
            .par_iter()
            .enumerate()
            .map(|(i, row)| most_likely(row, ids.get(first + from + i + 1).copied().or(last)))
            .collect();
        all.extend(likely.into_iter().map(|(likely, actual)| {
            let (ids, probabilities): (Vec<u32>, Vec<f32>) = likely.into_iter().unzip();
            NextToken { likely: session.labels(&ids).into_iter().zip(probabilities).collect(), actual }
        }));
    }
    Ok(all)
}

/// The most probable ids, and the probability of the token that really follows; empty if the logits are not finite.
#[allow(clippy::cast_possible_truncation)] // f32 is what is shown
pub(super) fn most_likely(logits: &[f32], actual: Option<u32>) -> (Vec<(u32, f32)>, Option<f32>) {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total: f64 = logits.iter().map(|&l| (f64::from(l) - largest).exp()).sum();
    if !total.is_finite() {
        return (vec![], None);
    }
    let probability = |id: u32| ((f64::from(logits[id as usize]) - largest).exp() / total) as f32;
    (highest(logits, LIKELY).into_iter().map(|id| (id, probability(id))).collect(), actual.map(probability))
}
