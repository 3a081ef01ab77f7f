//! [`Features`]: a dictionary at its places in a model, and the features that fire there.

use candle_core::{DType, Device, Result, Tensor};
use gpt2_model::analysis::{Metric, gradients, surprises};
use gpt2_model::dictionary::{ActiveFeature, Dictionary, SparseActivations};
use gpt2_model::hooks::{At, Chain, Hooks, Point};
use gpt2_model::{Block, Config, Gpt2LMHeadModel};
use std::cell::RefCell;

/// A dictionary and the places in a model that it belongs to.
#[derive(Debug, Clone)]
pub struct Features {
    pub(crate) dictionary: Dictionary,
    pub(crate) hook: Point,
    pub(crate) hook_out: Point,
}

/// A text's values, and the features in them.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FeatureRun {
    /// The features that fire; rows are positions.
    pub code: SparseActivations,
    /// The value that the dictionary should have rebuilt, (positions, d out) in f32.
    pub target: Tensor,
    /// The dictionary's reconstruction, in the same shape.
    pub rebuilt: Tensor,
}

/// The mean loss of a text's tokens in nats, in three runs; two of them replace the value that a dictionary rebuilds.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Losses {
    /// The loss with the value as it is.
    pub clean: f64,
    /// The loss with the dictionary's reconstruction.
    pub rebuilt: f64,
    /// The loss with zeros.
    pub zeroed: f64,
}

/// A feature's effect on a prediction.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct FeatureAttribution {
    /// The position, counted from 0.
    pub position: usize,
    /// The feature and its activation there.
    pub fired: ActiveFeature,
    /// The metric that would be lost without the feature, to first order.
    pub effect: f64,
}

/// Replaces the value by the dictionary's reconstruction, or by zeros.
struct Replaced<'a> {
    of: &'a Features,
    by_zeros: bool,
    /// The value that the dictionary read.
    read: RefCell<Option<Tensor>>,
}

impl Hooks for Replaced<'_> {
    fn wants(&self, point: Point) -> bool {
        point == self.of.hook || point == self.of.hook_out
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        if at.point == self.of.hook {
            *self.read.borrow_mut() = Some(rows(value)?);
        }
        if at.point != self.of.hook_out {
            return Ok(None);
        }
        if self.by_zeros {
            return value.zeros_like().map(Some);
        }
        let read = self.read.borrow();
        let Some(read) = read.as_ref() else {
            candle_core::bail!(
                "{} comes after {}, which is predicted from it",
                self.of.hook,
                self.of.hook_out
            )
        };
        let rebuilt = self.of.dictionary.decode(&self.of.dictionary.encode(read)?, read)?;
        rebuilt.reshape(value.dims())?.to_dtype(value.dtype())?.to_device(value.device()).map(Some)
    }
}

/// A value as rows for a dictionary, (positions, width): the heads of a position are one row.
pub(super) fn rows(value: &Tensor) -> Result<Tensor> {
    let positions = value.dim(0)? * value.dim(1)?;
    value.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.reshape((positions, ()))
}

impl Features {
    /// A dictionary that reads `hook` and rebuilds `hook_out`, the same value but for transcoders.
    ///
    /// # Errors
    /// When the model has no such layer, or a value there has another width than the dictionary, or none for each position.
    pub fn new(dictionary: &Dictionary, hook: Point, hook_out: Point, config: &Config) -> Result<Self> {
        hook.check_width(dictionary.d(), config)?;
        hook_out.check_width(dictionary.d_out(), config)?;
        Ok(Self { dictionary: dictionary.clone(), hook, hook_out })
    }

    /// The dictionary.
    #[must_use]
    pub fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    /// The value that the dictionary reads.
    #[must_use]
    pub fn hook(&self) -> Point {
        self.hook
    }

    /// The value that it rebuilds.
    #[must_use]
    pub fn hook_out(&self) -> Point {
        self.hook_out
    }

    /// Runs the model over texts, no further than the dictionary's values. `hooks` come first at each point.
    ///
    /// # Shapes
    /// `input_ids` (B, T); rows are the positions of the first text, then those of the second, and so on
    ///
    /// # Errors
    /// Returns the errors of [`Gpt2LMHeadModel::values_at`].
    pub fn run(
        &self,
        model: &Gpt2LMHeadModel,
        input_ids: &Tensor,
        hooks: Option<&dyn Hooks>,
    ) -> Result<FeatureRun> {
        let found = model.values_at(input_ids, &[self.hook, self.hook_out], hooks)?;
        let read = rows(&found[0])?;
        let target = rows(&found[1])?;
        let code = self.dictionary.encode(&read)?;
        let rebuilt = self.dictionary.decode(&code, &read)?;
        Ok(FeatureRun { code, target, rebuilt })
    }

    /// The mean loss of a text's tokens, with the value as it is, rebuilt, and zeroed.
    ///
    /// # Shapes
    /// `ids` of at least two tokens
    ///
    /// # Errors
    /// When the text is shorter or longer than the model takes, or a hook fails.
    pub fn losses(&self, model: &Gpt2LMHeadModel, ids: &[u32], hooks: Option<&dyn Hooks>) -> Result<Losses> {
        if ids.len() < 2 {
            candle_core::bail!("a loss needs a text of at least two tokens, got {}", ids.len())
        }
        let loss = |by_zeros: Option<bool>| -> Result<f64> {
            let replaced = by_zeros.map(|by_zeros| Replaced { of: self, by_zeros, read: RefCell::default() });
            let all: Vec<&dyn Hooks> =
                hooks.into_iter().chain(replaced.as_ref().map(|replaced| replaced as &dyn Hooks)).collect();
            let found = surprises(model, &[ids], false, Some(&Chain(&all)))?;
            Ok(found.nats.iter().flatten().sum::<f64>() / (ids.len() - 1) as f64)
        };
        Ok(Losses { clean: loss(None)?, rebuilt: loss(Some(false))?, zeroed: loss(Some(true))? })
    }

    /// The effect on the metric of a text's last position of each feature that fires, to first order: the feature's
    /// contribution to the value times the metric's gradient there (attribution patching against zero; Marks et al.
    /// 2024, "Sparse Feature Circuits"). The largest effects of either sign come first.
    ///
    /// # Shapes
    /// `input_ids` (1, T)
    ///
    /// # Errors
    /// Returns the errors of [`gradients`].
    pub fn attribution(
        &self,
        model: &Gpt2LMHeadModel,
        input_ids: &Tensor,
        metric: &Metric,
        hooks: Option<&dyn Hooks>,
    ) -> Result<Vec<FeatureAttribution>> {
        let code = self.run(model, input_ids, hooks)?.code;
        let found = gradients(model, input_ids, metric, &[self.hook_out], hooks)?;
        let gradient = rows(&found[0].1)?.to_vec2::<f32>()?; // (T, d out)
        let w_dec = self.dictionary.w_dec();
        let mut all = vec![];
        for (position, fired) in code.iter().enumerate() {
            let ids: Vec<u32> = fired.iter().map(|one| one.feature).collect();
            if ids.is_empty() {
                continue;
            }
            let directions = w_dec.index_select(&Tensor::new(ids, &Device::Cpu)?, 0)?.to_vec2::<f32>()?;
            for (one, direction) in fired.iter().zip(&directions) {
                let slope: f64 = direction
                    .iter()
                    .zip(&gradient[position])
                    .map(|(x, g)| f64::from(*x) * f64::from(*g))
                    .sum();
                let factor = self.dictionary.factor(&code, position, one.feature);
                let effect = f64::from(one.value) * f64::from(factor) * slope;
                all.push(FeatureAttribution { position, fired: *one, effect });
            }
        }
        let place = |one: &FeatureAttribution| (one.position, one.fired.feature);
        all.sort_by(|a, b| b.effect.abs().total_cmp(&a.effect.abs()).then(place(a).cmp(&place(b))));
        Ok(all)
    }

    /// A feature's contribution to the residual stream per unit of its activation, (C) in f32:
    /// [`Dictionary::direction`], multiplied by the weights that lead from the rebuilt value into the stream, if it is
    /// not in the stream itself. `None` if the rebuilt value does not go into the stream by one product.
    ///
    /// # Errors
    /// When there is no such feature, or a layer cannot produce a dense weight.
    pub fn direction(&self, model: &Gpt2LMHeadModel, feature: u32) -> Result<Option<Tensor>> {
        let row = self.dictionary.direction(feature)?; // (d out)
        let through = |layer: usize, weight: fn(&Block) -> Result<Tensor>| -> Result<Tensor> {
            let weight =
                weight(&model.transformer.h[layer])?.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
            row.unsqueeze(0)?.matmul(&weight)?.squeeze(0)
        };
        match self.hook_out {
            Point::Z(layer) => through(layer, |block| block.attn.c_proj.weight()).map(Some),
            Point::MlpPost(layer) => through(layer, |block| block.mlp.c_proj.weight()).map(Some),
            Point::Embed
            | Point::PosEmbed
            | Point::ResidPre(_)
            | Point::ResidMid(_)
            | Point::ResidPost(_)
            | Point::AttnOut(_)
            | Point::MlpOut(_) => Ok(Some(row)),
            _ => Ok(None),
        }
    }
}

impl FeatureRun {
    /// The share of the value's variance around its mean that the dictionary explains, over all positions: 1 at best.
    /// `None` if the value is the same at all of them.
    ///
    /// # Errors
    /// When the device fails.
    pub fn explained_variance(&self) -> Result<Option<f64>> {
        let sum = |x: &Tensor| x.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>();
        let target = self.target.to_dtype(DType::F64)?;
        let all = sum(&target.broadcast_sub(&target.mean_keepdim(0)?)?)?;
        let missed = sum(&(&self.target - &self.rebuilt)?)?;
        Ok((all > 0.0).then(|| 1.0 - missed / all))
    }
}

impl Losses {
    /// The share of the loss that zeros would cost and that what is rebuilt keeps: 1 at best. `None` if zeros cost nothing.
    #[must_use]
    pub fn recovered(&self) -> Option<f64> {
        let share = (self.zeroed - self.rebuilt) / (self.zeroed - self.clean);
        share.is_finite().then_some(share)
    }
}
