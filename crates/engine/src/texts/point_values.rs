//! The windows of texts whose values are wanted, and their values.

use crate::open::Opened;
use crate::spelling::Spelling;
use anyhow::{Context, bail};
use candle_core::{Device, Tensor};
use gpt2_model::Config;
use gpt2_model::hooks::{Hooks, Point};

/// The length of the windows that a text is cut into, and the token before each.
#[derive(Debug, Clone, Copy)]
pub struct Windowing {
    /// The token that stands before each window, with `bos`.
    pub bos: Option<u32>,
    /// Tokens of a window at most, with that token.
    pub window: usize,
}

impl Windowing {
    /// Windows of at most `window` tokens, by default as many as the model reads; with `bos`, the model's first token stands before each.
    ///
    /// # Errors
    /// When a window is longer than the model reads, too short, or the model has no first token.
    pub fn new(config: &Config, bos: bool, window: Option<u32>, spelling: Spelling) -> anyhow::Result<Self> {
        let option = spelling.option("bos");
        let none = || format!("{option}: the model's config names no bos_token_id; leave {option} out");
        let bos = bos.then(|| config.bos_token_id.with_context(none)).transpose()?;
        let window = window.map_or(config.n_positions, |window| window as usize);
        let given = || spelling.given("window", window);
        if window > config.n_positions {
            bail!("{}: the model reads n_positions = {} tokens", given(), config.n_positions);
        }
        if window == 0 {
            bail!("{}: expected 1 token at least", given());
        }
        if bos.is_some() && window < 2 {
            bail!("{}: expected 2 at least, for the first token of {option} and another", given());
        }
        Ok(Self { bos, window })
    }

    /// The number of extra tokens at the start of each window: 1 with `bos`, else 0.
    #[must_use]
    pub fn added(self) -> usize {
        usize::from(self.bos.is_some())
    }

    /// The windows of a text, each with the token before it.
    pub fn cut(self, ids: &[u32]) -> impl Iterator<Item = Vec<u32>> {
        let windows = ids.chunks(self.window - self.added());
        windows.map(move |window| self.bos.into_iter().chain(window.iter().copied()).collect())
    }
}

/// The values at each point of each text, (tokens, ..) on the CPU. The pass ends at the last point.
///
/// # Errors
/// When the model fails, or a point is not its own.
pub fn values(
    opened: &Opened,
    points: &[Point],
    hooks: Option<&dyn Hooks>,
    texts: &[&[u32]],
) -> candle_core::Result<Vec<Vec<Tensor>>> {
    let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
    let filled = |text: &&[u32]| -> Vec<u32> {
        text.iter().copied().chain(std::iter::repeat_n(0, longest - text.len())).collect()
    };
    let rows: Vec<Vec<u32>> = texts.iter().map(filled).collect();
    let values = opened.model.values_at(&Tensor::new(rows, &opened.device)?, points, hooks)?;
    let of_point = |value: Tensor| {
        let value = value.to_device(&Device::Cpu)?;
        // What a text was filled up with comes behind it, and changes nothing before.
        texts.iter().enumerate().map(|(row, text)| value.get(row)?.narrow(0, 0, text.len())).collect()
    };
    values.into_iter().map(of_point).collect()
}
