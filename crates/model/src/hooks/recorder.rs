//! Hooks that record the values they see: of one pass, or of a text that a cache splits into several.

use super::hook::{At, Hooks};
use super::point::Point;
use candle_core::{Result, Tensor};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Records the values at some points, from the latest pass.
#[derive(Debug, Default)]
pub struct Recorder {
    points: Vec<Point>,
    found: RefCell<Vec<(Point, Tensor)>>,
}

impl Recorder {
    /// A recorder for `points`.
    #[must_use]
    pub fn new(points: impl IntoIterator<Item = Point>) -> Self {
        Self { points: points.into_iter().collect(), found: RefCell::default() }
    }

    /// The value at a point.
    ///
    /// # Errors
    /// When no pass has reached the point.
    pub fn value(&self, point: Point) -> Result<Tensor> {
        match self.found.borrow().iter().find(|(at, _)| *at == point) {
            Some((_, value)) => Ok(value.clone()),
            None => candle_core::bail!("Recorder: nothing was recorded at {point}"),
        }
    }
}

impl Hooks for Recorder {
    fn wants(&self, point: Point) -> bool {
        self.points.contains(&point)
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        let mut found = self.found.borrow_mut();
        found.retain(|(point, _)| *point != at.point);
        found.push((at.point, value.clone()));
        Ok(None)
    }
}

/// Collects the attention weights of some layers over several passes with a cache, one row per query: the prompt's rows in the
/// first pass, then one for each generated token.
///
/// ```
/// use candle_core::{DType, Device};
/// use gpt2_model::hooks::WeightRows;
/// use gpt2_model::{Config, Generation, Gpt2LMHeadModel, Sampling, init};
///
/// # fn main() -> candle_core::Result<()> {
/// # let config = Config { n_layer: 2, n_head: 2, n_embd: 8, n_positions: 16, vocab_size: 11, ..Config::gpt2() };
/// # let model = Gpt2LMHeadModel::load(init::seeded(1, DType::F32, &Device::Cpu), &config)?;
/// let rows = WeightRows::new([0, 1]);
/// let mut generation = Generation::new(&model, &[vec![3, 1, 4]], Sampling::greedy(), 5)?.with_hooks(&rows);
/// generation.by_ref().try_for_each(|step| step.map(drop))?;
/// // 3 tokens of the prompt and 4 new ones; nothing has read the fifth.
/// assert_eq!(rows.weights(1, 0, 7)?.dims(), [2, 7, 7]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct WeightRows {
    layers: Vec<usize>,
    /// The weights by layer, (B, H, T, S) for each pass.
    found: RefCell<BTreeMap<usize, Vec<Tensor>>>,
}

impl WeightRows {
    /// A collector for `layers`.
    #[must_use]
    pub fn new(layers: impl IntoIterator<Item = usize>) -> Self {
        Self { layers: layers.into_iter().collect(), found: RefCell::default() }
    }

    /// The weights of one row of the batch, of the last `t` positions: its own tokens, if the batch was padded on the left.
    ///
    /// # Shapes
    /// -> (H, `t`, `t`) in f32 or wider, with 0 above the diagonal
    ///
    /// # Errors
    /// When no pass has reached the layer, it was not asked for, or fewer positions were seen.
    pub fn weights(&self, layer: usize, row: usize, t: usize) -> Result<Tensor> {
        let found = self.found.borrow();
        let passes = found.get(&layer).map(Vec::as_slice).unwrap_or_default();
        let Some(s) = passes.last().map(|last| last.dim(3)).transpose()?.filter(|&s| s >= t && t > 0) else {
            candle_core::bail!(
                "weights of layer {layer}: {t} positions were not all seen, or the layer was not asked for"
            )
        };
        let rows = passes.iter().map(|pass| {
            let pass = pass.narrow(0, row, 1)?.squeeze(0)?; // (H, T, S so far)
            pass.pad_with_zeros(2, 0, s - pass.dim(2)?)
        });
        let all = Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 1)?; // (H, S, S)
        all.narrow(1, s - t, t)?.narrow(2, s - t, t)?.contiguous()
    }
}

impl Hooks for WeightRows {
    fn wants(&self, point: Point) -> bool {
        matches!(point, Point::Pattern(layer) if self.layers.contains(&layer))
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        if let Point::Pattern(layer) = at.point {
            let mut found = self.found.borrow_mut();
            let passes = found.entry(layer).or_default();
            if at.past == 0 {
                passes.clear(); // a new text
            }
            passes.push(value.clone());
        }
        Ok(None)
    }
}
