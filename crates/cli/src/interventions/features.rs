//! The features that `--ablate-feature`, `--scale-feature` and `--set-feature` change.

use super::args::InterventionArgs;
use crate::model::session::Session;
use anyhow::bail;
use gpt2_engine::At;
use gpt2_model::hooks::{Activity, FeatureChange, FeatureSite, Intervention};
use std::hash::Hasher;
use std::sync::Arc;

impl InterventionArgs {
    /// The changed features, and what their activations become.
    pub(crate) fn features(&self) -> impl Iterator<Item = (At<u32>, Activity)> {
        let ablated = self.ablate_feature.iter().map(|at| (*at, Activity::Times(0.0)));
        let scaled = self.scale_feature.iter().map(|(at, factor)| (*at, Activity::Times(*factor)));
        ablated.chain(scaled).chain(self.set_feature.iter().map(|(at, to)| (*at, Activity::Set(*to))))
    }

    /// The changes of features, with the dictionary read.
    pub(crate) fn feature_changes(&self, session: &Session) -> anyhow::Result<Vec<Intervention>> {
        let all: Vec<(At<u32>, Activity)> = self.features().collect();
        let Some(source) = self.dictionary.as_ref().filter(|_| !all.is_empty()) else { return Ok(vec![]) };
        for (i, (one, _)) in all.iter().enumerate() {
            let meets = |(other, _): &(At<u32>, Activity)| {
                let apart = one.position.zip(other.position).is_some_and(|(a, b)| a != b);
                one.place == other.place && !apart
            };
            if all[..i].iter().any(meets) {
                bail!(
                    "feature {}: is changed twice at one position; leave one of the changes out",
                    one.place
                );
            }
        }
        let opened = session.dictionary(source)?;
        let config = opened.found.checkpoint.config();
        let dictionary = Arc::clone(&opened.dictionary);
        let site = Arc::new(FeatureSite::new(dictionary, config.hook, config.hook_out));
        let change = |(At { place: feature, position }, to)| {
            Intervention::Feature(FeatureChange { site: Arc::clone(&site), feature, to, position })
        };
        Ok(all.into_iter().map(change).collect())
    }

    /// Hashes the dictionary, if a feature of it is changed.
    pub(crate) fn hash_dictionary(&self, session: &Session, hasher: &mut impl Hasher) -> anyhow::Result<()> {
        match self.dictionary.as_ref().filter(|_| self.features().next().is_some()) {
            Some(source) => session.dictionary(source)?.hash(hasher),
            None => Ok(()),
        }
    }
}
