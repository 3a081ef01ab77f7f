//! Changes of a dictionary's features.

use super::options::{At, DictionaryChoice, FeatureOption, InterventionOptions};
use crate::observer::Observer;
use crate::open::{Opened, OpenedDictionary};
use anyhow::bail;
use gpt2_model::hooks::{FeatureChange, Intervention};
use std::hash::Hasher;
use std::sync::Arc;

/// Changes of features, and the name of their dictionary.
pub(super) struct FeatureChanges {
    pub(super) list: Vec<Intervention>,
    pub(super) dictionary: String,
}

impl InterventionOptions {
    /// The changes of features, with the dictionary read; `None` without any.
    pub(super) fn feature_changes(
        &self,
        opened: &Opened,
        observer: &dyn Observer,
    ) -> anyhow::Result<Option<FeatureChanges>> {
        let all = &self.features;
        let Some(dictionary) = self.changed_dictionary(opened, observer)? else { return Ok(None) };
        for (i, FeatureOption { at: one, .. }) in all.iter().enumerate() {
            let meets = |FeatureOption { at: other, .. }: &FeatureOption| {
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
        let site = Arc::new(dictionary.site());
        let change = |FeatureOption { at: At { place: feature, position }, to }: &FeatureOption| {
            Intervention::Feature(FeatureChange {
                site: Arc::clone(&site),
                feature: *feature,
                to: *to,
                position: *position,
            })
        };
        let list = all.iter().map(change).collect();
        Ok(Some(FeatureChanges { list, dictionary: dictionary.found.checkpoint.name().to_string() }))
    }

    /// Hashes the dictionary, if a feature of it is changed.
    pub(super) fn hash_dictionary(
        &self,
        opened: &Opened,
        hasher: &mut impl Hasher,
        observer: &dyn Observer,
    ) -> anyhow::Result<()> {
        self.changed_dictionary(opened, observer)?.map_or(Ok(()), |dictionary| dictionary.hash(hasher))
    }

    /// The dictionary, if a feature of it is changed.
    fn changed_dictionary(
        &self,
        opened: &Opened,
        observer: &dyn Observer,
    ) -> anyhow::Result<Option<Arc<OpenedDictionary>>> {
        match &self.dictionary {
            _ if self.features.is_empty() => Ok(None),
            Some(DictionaryChoice::Named(source)) => opened.dictionary(source, observer).map(Some),
            Some(DictionaryChoice::Opened(dictionary)) => Ok(Some(Arc::clone(dictionary))),
            None => bail!(
                "a feature is changed, but no dictionary is named; give {}",
                opened.spelling.option("dictionary")
            ),
        }
    }
}
