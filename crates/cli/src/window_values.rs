//! The values of texts that run together.

use crate::session::Session;
use candle_core::{Device, Tensor};
use gpt2_model::hooks::{Hooks, Point};

/// The values at each point of each text, (tokens, ..) on the CPU. The pass ends at the last point.
pub(crate) fn values(
    session: &Session,
    points: &[Point],
    hooks: Option<&dyn Hooks>,
    texts: &[&[u32]],
) -> candle_core::Result<Vec<Vec<Tensor>>> {
    let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
    let filled = |text: &&[u32]| -> Vec<u32> {
        text.iter().copied().chain(std::iter::repeat_n(0, longest - text.len())).collect()
    };
    let rows: Vec<Vec<u32>> = texts.iter().map(filled).collect();
    let values = session.model.values_at(&Tensor::new(rows, &session.device)?, points, hooks)?;
    let of_point = |value: Tensor| {
        let value = value.to_device(&Device::Cpu)?;
        // What a text was filled up with comes behind it, and changes nothing before.
        texts.iter().enumerate().map(|(row, text)| value.get(row)?.narrow(0, 0, text.len())).collect()
    };
    values.into_iter().map(of_point).collect()
}
