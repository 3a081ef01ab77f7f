//! Words beside a graph: tokens and explanations of its features, and a command that checks an edge.

use super::super::features::{ByFeature, Promoted, promoted_by};
use crate::open::Opened;
use candle_core::DType;
use gpt2_circuits::Circuits;
use gpt2_circuits::attribution_graph::GraphNode;
use gpt2_circuits::features::Features;
use gpt2_view::shell_word;
use serde::Serialize;
use std::collections::BTreeSet;

/// The promoted tokens of a feature on either side.
const TOKENS: usize = 5;

/// A feature of a graph in words.
#[derive(Debug, Clone, Serialize)]
pub struct FeatureText {
    /// The transcoder's layer.
    pub layer: usize,
    /// The feature.
    pub feature: u32,
    /// Its published explanations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub explanations: Vec<String>,
    /// The tokens that it makes likelier and less likely by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promoted: Option<Promoted>,
}

/// The features among some nodes, by layer and number.
pub(super) fn texts<'a>(
    nodes: impl Iterator<Item = &'a GraphNode>,
    transcoders: &[Features],
    explanations: &[ByFeature],
    opened: &Opened,
) -> anyhow::Result<Vec<FeatureText>> {
    let mut by_layer = vec![BTreeSet::new(); transcoders.len()];
    for node in nodes {
        if let GraphNode::Feature { layer, feature, .. } = node {
            by_layer[*layer].insert(*feature);
        }
    }
    let circuits = Circuits::new(&opened.model)?;
    let mut all = vec![];
    for (layer, chosen) in by_layer.into_iter().enumerate() {
        let chosen: Vec<u32> = chosen.into_iter().collect();
        let promoted = promoted_by(&transcoders[layer], &chosen, TOKENS, &circuits, opened)?;
        let known = explanations.get(layer);
        let text = |(feature, promoted): (u32, Option<Promoted>)| FeatureText {
            layer,
            feature,
            explanations: known.and_then(|known| known.get(&feature)).cloned().unwrap_or_default(),
            promoted,
        };
        all.extend(chosen.into_iter().zip(promoted).map(text));
    }
    Ok(all)
}

/// The beginning of a command that runs the model over these tokens; `None` for a model that a command does not find.
pub(super) fn command(opened: &Opened, ids: &[u32]) -> Option<String> {
    let ids = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let mut words = vec!["gpt2".to_owned(), "forward".to_owned(), "--ids".to_owned(), ids];
    let files = opened.files.as_ref()?;
    if !opened.adapters.is_empty() || !opened.formats.is_empty() {
        return None;
    }
    if files.name != gpt2_web::DEMO.name {
        let (name, commit) = match &files.commit {
            Some(commit) => (files.name.split('@').next().unwrap_or_default(), Some(commit)),
            None => (files.name.as_str(), None),
        };
        words.extend(["--model".to_owned(), shell_word(name)]);
        words.extend(commit.into_iter().flat_map(|commit| ["--revision".to_owned(), commit.clone()]));
    }
    words.extend(opened.processed.then(|| "--processed".to_owned()));
    if opened.model.dtype() != DType::F32 {
        words.extend(["--dtype".to_owned(), opened.model.dtype().as_str().to_owned()]);
    }
    Some(words.join(" "))
}
