//! [`WeightsByLayer`]: which attention weights a pass asks of each layer, and where they go.

use crate::ChosenWeights;
use candle_core::{Result, Tensor};
use candle_fused::attention::Chosen;

/// The weights that a pass returns, collected layer by layer.
pub(crate) struct WeightsByLayer<'a> {
    asked: &'a [ChosenWeights],
    /// Whether all weights of each layer are asked for besides.
    all: bool,
    found: Vec<Option<Tensor>>,
    of_all: Vec<Tensor>,
}

impl<'a> WeightsByLayer<'a> {
    pub(crate) fn new(asked: &'a [ChosenWeights], all: bool, layers: usize) -> Result<Self> {
        if let Some(beyond) = asked.iter().find(|chosen| chosen.layer >= layers) {
            candle_core::bail!("weights of layer {}: the model has layers 0 to {}", beyond.layer, layers - 1)
        }
        Ok(Self { asked, all, found: vec![None; asked.len()], of_all: vec![] })
    }

    fn places(&self, layer: usize) -> impl Iterator<Item = usize> {
        (0..self.asked.len()).filter(move |&n| self.asked[n].layer == layer)
    }

    /// What to ask of a layer.
    pub(crate) fn of_layer(&self, layer: usize) -> Vec<Chosen> {
        let chosen = self.places(layer).map(|n| self.asked[n].of.clone());
        chosen.chain(self.all.then(Chosen::default)).collect()
    }

    /// Takes what the layer returned.
    pub(crate) fn take(&mut self, layer: usize, mut weights: Vec<Tensor>) {
        let places: Vec<usize> = self.places(layer).collect();
        self.of_all.extend(weights.drain(places.len().min(weights.len())..));
        places.into_iter().zip(weights).for_each(|(n, found)| self.found[n] = Some(found));
    }

    /// All weights of each layer, and those asked for, in order.
    pub(crate) fn finish(self) -> (Vec<Tensor>, Vec<Tensor>) {
        (self.of_all, self.found.into_iter().flatten().collect())
    }
}
