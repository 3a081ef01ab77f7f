//! Means for mean ablation that are computed beforehand: over the text itself, or over other texts.

use crate::gpt2::args_and_outputs::ForwardArgs;
use crate::gpt2::lm_head_model::Gpt2LMHeadModel;
use crate::hooks::{At, Hooks, Intervention, Interventions, KnockOut, Patch, Place, Point, Recorder, mean};
use candle_core::{Result, Tensor};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

impl Interventions {
    /// Replaces each mean ablation by a fixed mean, computed now in a run over `input_ids` (B, T) without padding.
    /// Passes with a cache need this.
    ///
    /// # Errors
    /// The errors of the model's forward pass.
    pub fn with_means_of(mut self, model: &Gpt2LMHeadModel, input_ids: &Tensor) -> Result<Self> {
        if !self.list.iter().any(|one| matches!(one, Intervention::MeanAblate(_))) {
            return Ok(self);
        }
        let means = Means { of: &self, t: input_ids.dim(1)?, found: RefCell::default() };
        model.transformer.forward(input_ids, ForwardArgs { hooks: Some(&means), ..Default::default() })?;
        for (i, mean) in means.found.into_inner() {
            if let Some(head) = self.list[i].head() {
                self.list[i] = Intervention::Replace(head, mean.flatten_all()?);
                self.fixed_means.insert(i);
            }
        }
        Ok(self)
    }
}

/// The positions over which a mean over several texts is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeanOver {
    /// All positions of all texts: one vector.
    AllPositions,
    /// Each position by itself, over texts of the same length: a vector for each position (Wang et al. 2022).
    EachPosition,
}

impl Interventions {
    /// Replaces each mean ablation by a fixed mean over other texts, each run on its own without interventions: the mean
    /// ablation of Wang et al. 2022, "Interpretability in the Wild".
    ///
    /// # Shapes
    /// `texts` (1, `T_i`) each
    ///
    /// # Errors
    /// When there is no text, for texts of different lengths under [`MeanOver::EachPosition`], and for the errors of the model's
    /// forward pass.
    pub fn with_means_over(
        mut self,
        model: &Gpt2LMHeadModel,
        texts: &[Tensor],
        over: MeanOver,
    ) -> Result<Self> {
        let is_mean = |one: &&mut Intervention| matches!(one, Intervention::MeanAblate(_));
        let layers: BTreeSet<usize> = self
            .list
            .iter_mut()
            .filter(is_mean)
            .filter_map(|one| one.head().map(|head| head.layer))
            .collect();
        if layers.is_empty() {
            return Ok(self);
        }
        let mut sums = BTreeMap::new(); // layer -> (1, 1 or T, H, D), in f32 or wider
        let mut count = 0;
        for ids in texts {
            let z = Recorder::new(layers.iter().map(|&layer| Point::Z(layer)));
            model.transformer.forward(ids, ForwardArgs { hooks: Some(&z), ..Default::default() })?;
            for &layer in &layers {
                let z = z.value(Point::Z(layer))?;
                let z = z.to_dtype(candle_fused::accumulator(z.dtype()))?;
                let sum = match over {
                    MeanOver::AllPositions => z.sum_keepdim(1)?,
                    MeanOver::EachPosition => z,
                };
                let sum = match sums.remove(&layer) {
                    Some(before) => (before + sum)?,
                    None => sum,
                };
                sums.insert(layer, sum);
            }
            count += if over == MeanOver::EachPosition { 1 } else { ids.dim(1)? };
        }
        if count == 0 {
            candle_core::bail!("mean ablation: no text to take the mean over")
        }
        for (i, one) in self.list.iter_mut().enumerate().filter(|(_, one)| is_mean(one)) {
            let Some(head) = one.head() else { continue };
            let Some(sum) = sums.get(&head.layer) else { continue };
            let mean = (sum / count as f64)?;
            self.fixed_means.insert(i);
            *one = match over {
                MeanOver::AllPositions => {
                    Intervention::Replace(head, mean.narrow(2, head.head, 1)?.flatten_all()?)
                }
                MeanOver::EachPosition => {
                    Intervention::Patch(Patch { place: Place::Head(head), position: None, from: mean })
                }
            };
        }
        Ok(self)
    }
}

/// A run under interventions that records the mean for each mean ablation when it comes to it.
struct Means<'a> {
    of: &'a Interventions,
    /// The text has positions 0..t so far; later positions come with generation.
    t: usize,
    /// The means, (1, 1, 1, D), by their index in the list.
    found: RefCell<BTreeMap<usize, Tensor>>,
}

impl Hooks for Means<'_> {
    fn wants(&self, point: Point) -> bool {
        self.of.wants(point)
    }

    fn at(&self, at: At, z: &Tensor) -> Result<Option<Tensor>> {
        self.of.change(at, z, |i, z| {
            if matches!(self.of.list[i], Intervention::MeanAblate(_)) {
                self.found.borrow_mut().insert(i, mean(z, at)?);
            }
            Ok(())
        })
    }

    fn knocked_out(&self, layer: usize) -> Vec<KnockOut> {
        self.of.knocked_out(layer).into_iter().filter(|pair| pair.query < self.t).collect()
    }
}
