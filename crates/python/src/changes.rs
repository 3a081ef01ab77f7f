//! Interventions as Python gives them.

use crate::array::Array;
use crate::dictionary::Dictionary;
use crate::error::Failed;
use crate::guard::Raised;
use crate::observer::PyObserver;
use anyhow::{Context, anyhow};
use gpt2_circuits::discovery::Edge;
use gpt2_engine::Opened;
use gpt2_engine::interventions::{
    Applied, At, CircuitChoice, DictionaryChoice, FeatureOption, InterventionOptions, MeanTexts, OnHeads,
    Reads, Steer, VectorSource,
};
use gpt2_engine::texts::Content;
use gpt2_model::hooks::{Activity, Intervention, Interventions, Place};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

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
    /// The file of a circuit.
    circuit: Option<PathBuf>,
    /// The edges of a circuit, as `from->to`.
    edges: Option<Vec<String>>,
    dictionary: Option<GivenDictionary>,
    /// A feature, perhaps with a position, `ablate`, `scale` or `set`, and a number.
    features: Vec<(String, String, f64)>,
}

/// A dictionary as Python gives it.
#[derive(Debug, FromPyObject)]
enum GivenDictionary {
    /// A folder, or a name on the Hub.
    Named(String),
    /// One that is in memory.
    Opened(Py<Dictionary>),
}

impl InterventionTexts {
    /// The interventions of a run, checked against the model and the texts that it reads.
    /// Their notes become warnings.
    pub(crate) fn build(
        &self,
        opened: &Opened,
        reads: Reads,
        raised: &Arc<Raised>,
    ) -> Result<Interventions, Failed> {
        Ok(self.applied(opened, reads, raised)?.list)
    }

    /// Like [`InterventionTexts::build`], with the interventions in words.
    pub(crate) fn applied(
        &self,
        opened: &Opened,
        reads: Reads,
        raised: &Arc<Raised>,
    ) -> Result<Applied, Failed> {
        let observer = PyObserver::new(raised, None);
        let applied = self.options()?.build(opened, reads, &observer)?;
        raised.note(observer.into_notes());
        Ok(applied)
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
            circuit: self.circuit()?,
            dictionary: self.dictionary.as_ref().map(dictionary),
            features: self.features.iter().map(feature).collect::<anyhow::Result<_>>()?,
        })
    }
}

impl InterventionTexts {
    fn circuit(&self) -> anyhow::Result<Option<CircuitChoice>> {
        match (&self.circuit, &self.edges) {
            (Some(path), _) => Ok(Some(CircuitChoice::File(path.clone()))),
            (None, Some(edges)) => Ok(Some(CircuitChoice::Edges(
                edges.iter().map(|text| edge(text)).collect::<anyhow::Result<_>>()?,
            ))),
            (None, None) => Ok(None),
        }
    }
}

/// An edge of a circuit, as `from->to`.
pub(crate) fn edge(text: &str) -> anyhow::Result<Edge> {
    text.parse().map_err(|error| anyhow!("circuit: {text:?}: {error}"))
}

/// A dictionary of features.
fn dictionary(given: &GivenDictionary) -> DictionaryChoice {
    match given {
        GivenDictionary::Named(name) => DictionaryChoice::Named(name.clone()),
        GivenDictionary::Opened(dictionary) => DictionaryChoice::Opened(Arc::clone(&dictionary.get().opened)),
    }
}

/// A change of a feature.
fn feature((at, kind, number): &(String, String, f64)) -> anyhow::Result<FeatureOption> {
    let place = at.parse().map_err(|_| {
        anyhow!("{kind}_feature: {at:?}: expected a feature, or a feature and a position, such as 12 or 12@3")
    })?;
    let to = match kind.as_str() {
        "ablate" => Activity::Times(0.0),
        "scale" => Activity::Times(*number),
        _ => Activity::Set(*number),
    };
    Ok(FeatureOption { at: place, to })
}

/// The options on heads.
const ON_HEADS: [&str; 4] = ["ablate", "mean-ablate", "scale", "attention-temperature"];

/// Rows of ids as the engine reads them.
pub(crate) fn slices(rows: &[Vec<u32>]) -> Vec<&[u32]> {
    rows.iter().map(Vec::as_slice).collect()
}
