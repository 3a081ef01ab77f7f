//! A dictionary at its hook points in the model, and the tokens that its features promote.

use super::explanations::{ByFeature, Explanations};
use crate::interventions::DictionaryChoice;
use crate::open::{Label, Opened, OpenedDictionary};
use crate::studies::study::Run;
use crate::texts::{Content, single_token};
use anyhow::bail;
use candle_core::Tensor;
use gpt2_circuits::features::Features;
use gpt2_circuits::{Circuits, PromotedTokens};
use gpt2_loader::DictionaryOrigin;
use gpt2_view::visible_text;
use serde::Serialize;
use std::fmt::{self, Display};
use std::path::PathBuf;
use std::sync::Arc;

/// A dictionary's name and origin, and the values that it reads and predicts.
#[derive(Debug, Clone, Serialize)]
pub struct DictionarySummary {
    /// The folder, or the repository on the Hub with the folder in it.
    pub name: String,
    /// The commit and the hash of the weights, on the Hub.
    #[serde(flatten)]
    pub origin: Option<DictionaryOrigin>,
    /// `SAELens`' name of the rule by which it selects features.
    pub architecture: String,
    /// The value that it reads.
    pub hook: String,
    /// The value that a transcoder predicts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook_out: Option<String>,
    /// The number of features.
    pub features: usize,
}

impl DictionarySummary {
    /// The facts of a dictionary.
    #[must_use]
    pub fn new(opened: &OpenedDictionary) -> Self {
        let checkpoint = &opened.found.checkpoint;
        let config = checkpoint.config();
        Self {
            name: checkpoint.name().to_string(),
            origin: checkpoint.origin().cloned(),
            architecture: config.architecture.to_string(),
            hook: config.hook.to_string(),
            hook_out: (config.hook_out != config.hook).then(|| config.hook_out.to_string()),
            features: opened.dictionary.features(),
        }
    }
}

impl Display for DictionarySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, architecture, hook, hook_out, features, .. } = self;
        write!(f, "{}: {architecture}, {features} features of {hook}", visible_text(name))?;
        hook_out.iter().try_for_each(|hook_out| write!(f, ", predicts {hook_out}"))
    }
}

/// Tokens with the change of their logits per unit of the feature's activation. The scales of `ln_f` and of a
/// normalizing dictionary are left out.
#[derive(Debug, Clone, Serialize)]
pub struct Promoted {
    /// The tokens that it makes likelier, most first.
    pub likelier: Vec<(Label, f64)>,
    /// The tokens that it makes less likely, most first.
    pub less_likely: Vec<(Label, f64)>,
}

/// A dictionary at its hook points in a model.
#[derive(Debug)]
pub(super) struct PlacedDictionary {
    pub(super) opened: Arc<OpenedDictionary>,
    pub(super) about: DictionarySummary,
    pub(super) features: Features,
}

impl PlacedDictionary {
    /// Opens a dictionary by its name, or else that of the interventions; notes what its settings leave in doubt.
    pub(super) fn open(name: Option<&str>, run: &Run) -> anyhow::Result<Self> {
        let Run { opened, interventions, observer, .. } = run;
        let dictionary = match (name, &interventions.options().dictionary) {
            (Some(name), _) => opened.dictionary(name, *observer)?,
            (None, Some(DictionaryChoice::Named(name))) => opened.dictionary(name, *observer)?,
            (None, Some(DictionaryChoice::Opened(dictionary))) => Arc::clone(dictionary),
            (None, None) => bail!("features needs {}", opened.spelling.option("dictionary")),
        };
        dictionary.found.checkpoint.config().remarks.iter().for_each(|remark| observer.note(remark));
        let features = dictionary.features(opened.model.config())?;
        Ok(Self { about: DictionarySummary::new(&dictionary), opened: dictionary, features })
    }

    /// Whether its texts began with the end-of-text token.
    pub(super) fn prepends_bos(&self) -> bool {
        self.opened.found.checkpoint.config().prepend_bos
    }

    /// The explanations in some files.
    pub(super) fn explanations(&self, files: &[PathBuf], run: &Run) -> anyhow::Result<ByFeature> {
        let found = Explanations::read(files, run.opened.spelling, run.observer)?;
        found.of_dictionary(self.features.dictionary().features(), self.opened.found.checkpoint.config().hook)
    }

    /// The tokens of [`promoted_by`]; refuses features that the dictionary does not have.
    pub(super) fn promoted(
        &self,
        chosen: &[u32],
        top_k: usize,
        opened: &Opened,
    ) -> anyhow::Result<Vec<Option<Promoted>>> {
        let count = self.features.dictionary().features();
        if let Some(feature) = chosen.iter().find(|&&feature| feature as usize >= count) {
            let given = opened.spelling.given("feature", feature);
            bail!("{given}: the dictionary has features 0 to {}", count - 1);
        }
        if chosen.is_empty() {
            return Ok(vec![]);
        }
        promoted_by(&self.features, chosen, top_k, &Circuits::new(&opened.model)?, opened)
    }
}

/// The `top_k` tokens that each of some features makes likelier and less likely; none where its direction is not in the stream.
pub(in super::super) fn promoted_by(
    features: &Features,
    chosen: &[u32],
    top_k: usize,
    circuits: &Circuits,
    opened: &Opened,
) -> anyhow::Result<Vec<Option<Promoted>>> {
    let directions = chosen.iter().map(|&feature| features.direction(&opened.model, feature));
    let directions = directions.collect::<candle_core::Result<Option<Vec<Tensor>>>>()?;
    let Some(directions) = directions.filter(|all| !all.is_empty()) else {
        return Ok(vec![None; chosen.len()]);
    };
    let labels = |found: Vec<(u32, f64)>| -> Vec<(Label, f64)> {
        found.into_iter().map(|(id, logit)| (opened.label(id), logit)).collect()
    };
    let promoted = |PromotedTokens { likelier, less_likely }| {
        Some(Promoted { likelier: labels(likelier), less_likely: labels(less_likely) })
    };
    let found = circuits.promoted_by_each(&Tensor::stack(&directions, 0)?, top_k)?;
    Ok(found.into_iter().map(promoted).collect())
}

/// The token that an option names, as text or as its id alone.
pub(super) fn token(run: &Run, option: &str, content: &Content) -> anyhow::Result<u32> {
    let option = run.opened.spelling.option(option);
    let v = run.opened.model.config().vocab_size;
    match content {
        Content::Text(text) => single_token(run.opened, &option, text, run.observer),
        Content::Ids(ids) => match ids[..] {
            [id] if (id as usize) < v => Ok(id),
            [id] => bail!("{option}: there is no token {id}; the vocabulary has {v}"),
            _ => bail!("{option}: expected one token, got {}", ids.len()),
        },
    }
}
