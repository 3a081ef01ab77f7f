//! Interventions as Python gives them.

use crate::array::Array;
use crate::error::Failed;
use anyhow::{Context, anyhow};
use gpt2_engine::interventions::{At, InterventionOptions, MeanTexts, OnHeads, Reads, Steer, VectorSource};
use gpt2_engine::texts::Content;
use gpt2_engine::{Opened, Silent};
use gpt2_model::hooks::{Intervention, Interventions, Place};
use pyo3::prelude::*;

/// Interventions as text, with what they need from other texts.
#[derive(Debug, Default, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct InterventionTexts {
    /// The kind of an intervention on heads, such as `scale`, and what follows it: `3.2=0.5`.
    heads: Vec<(String, String)>,
    /// `7:4`
    block: Vec<String>,
    /// `5.mlp@3`
    patch: Vec<String>,
    /// The ids of the other prompt.
    from_prompt: Option<Vec<u32>>,
    /// The ids of the texts over which means are taken.
    mean_of: Option<Vec<Vec<u32>>>,
    /// A layer, perhaps with a position, and a vector: `5@3`.
    add: Vec<(String, Py<Array>)>,
}

impl InterventionTexts {
    /// The interventions of a run, checked against the model and the texts that it reads.
    pub(crate) fn build(&self, opened: &Opened, reads: Reads) -> Result<Interventions, Failed> {
        Ok(self.options()?.build(opened, reads, &Silent)?.list)
    }

    /// The engine's options.
    pub(crate) fn options(&self) -> anyhow::Result<InterventionOptions> {
        let heads = self.heads.iter().map(|(option, text)| {
            let option = ON_HEADS.iter().find(|known| *known == option);
            let option = option.with_context(|| format!("there is no intervention {text:?} on heads"))?;
            OnHeads::parse(option, text).with_context(|| format!("{}: {text:?}", option.replace('-', "_")))
        });
        let block = self.block.iter().map(|text| {
            format!("block {text}").parse::<Intervention>().with_context(|| format!("block: {text:?}"))
        });
        let patch = self
            .patch
            .iter()
            .map(|text| text.parse::<At<Place>>().map_err(|error| anyhow!("patch: {text:?}: {error}")));
        let add = self.add.iter().map(|(text, vector)| {
            let at: At<usize> = text.parse().map_err(|_| {
                anyhow!("add: {text:?}: expected a layer, or a layer and a position, such as 5 or 5@3")
            })?;
            let vector = VectorSource::Numbers(vector.get().tensor().clone());
            anyhow::Ok(Steer { at, vector, text: text.clone() })
        });
        let means =
            |texts: &Vec<Vec<u32>>| MeanTexts::These(texts.iter().cloned().map(Content::Ids).collect());
        Ok(InterventionOptions {
            heads: heads.collect::<anyhow::Result<_>>()?,
            block: block.collect::<anyhow::Result<_>>()?,
            patch: patch.collect::<anyhow::Result<_>>()?,
            from_prompt: self.from_prompt.clone().map(Content::Ids),
            mean_of: self.mean_of.as_ref().map(means),
            add: add.collect::<anyhow::Result<_>>()?,
            ..InterventionOptions::default()
        })
    }
}

/// The options on heads.
const ON_HEADS: [&str; 4] = ["ablate", "mean-ablate", "scale", "attention-temperature"];

/// Rows of ids as the engine reads them.
pub(crate) fn slices(rows: &[Vec<u32>]) -> Vec<&[u32]> {
    rows.iter().map(Vec::as_slice).collect()
}
