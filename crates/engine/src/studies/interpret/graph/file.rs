//! An attribution graph as circuit-tracer 0.5 writes it, for its page and for Neuronpedia. Names and their meanings are theirs.

use super::super::features::{ByFeature, DictionarySummary};
use crate::open::Opened;
use crate::texts::Prompt;
use gpt2_circuits::attribution_graph::{AttributionGraph, GraphNode, KeptPart};
use gpt2_view::without_folders;
use serde::Serialize;

/// The version of circuit-tracer's form.
const SCHEMA: u32 = 1;
/// Letters of a name that is made of the prompt, at most.
const SLUG: usize = 40;

/// The whole file.
#[derive(Debug, Serialize)]
pub struct GraphFile {
    /// The prompt and the settings.
    pub metadata: GraphMetadata,
    /// The page's state: nothing is chosen yet.
    #[serde(rename = "qParams")]
    pub q_params: PinnedParts,
    /// The nodes.
    pub nodes: Vec<NodeRecord>,
    /// The edges.
    pub links: Vec<GraphLink>,
}

/// The prompt and the settings.
#[derive(Debug, Serialize)]
pub struct GraphMetadata {
    /// A name for addresses, made of the prompt.
    pub slug: String,
    /// The model.
    pub scan: String,
    /// The transcoders, by layer.
    pub transcoder_list: Vec<String>,
    /// The tokens.
    pub prompt_tokens: Vec<String>,
    /// The text.
    pub prompt: String,
    /// The share of the nodes' influence that was kept.
    pub node_threshold: f64,
    /// The version of this form.
    pub schema_version: u32,
}

/// The page's state.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PinnedParts {
    /// Nodes that were pinned.
    pub pinned_ids: Vec<String>,
    /// Groups of nodes.
    pub supernodes: Vec<Vec<String>>,
    /// The links to show.
    pub link_type: String,
    /// The node that was clicked.
    pub clicked_id: String,
    /// Places of pinned nodes.
    #[serde(rename = "sg_pos")]
    pub sg_pos: String,
}

/// `feature_type`: the kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum NodeKind {
    /// A transcoder's feature; the page knows no other name for one of a single layer.
    #[serde(rename = "cross layer transcoder")]
    Feature,
    /// The part that a transcoder misses.
    #[serde(rename = "mlp reconstruction error")]
    Error,
    /// A token's embedding.
    #[serde(rename = "embedding")]
    Token,
    /// A next token's logit.
    #[serde(rename = "logit")]
    Logit,
}

/// A node.
#[derive(Debug, Clone, Serialize)]
pub struct NodeRecord {
    /// Its name in links.
    pub node_id: String,
    /// Of a feature, its layer and number as one (Cantor's pairing); of a logit, the token; of an embedding, the position; else -1.
    pub feature: i64,
    /// The layer; `E` of an embedding.
    pub layer: String,
    /// The position.
    pub ctx_idx: usize,
    /// Its kind.
    pub feature_type: NodeKind,
    /// The probability of a logit's token.
    pub token_prob: f32,
    /// Whether it is the most probable logit.
    pub is_target_logit: bool,
    /// Always 0.
    pub run_idx: u32,
    /// Always 0.
    pub reverse_ctx_idx: u32,
    /// Its name in the page.
    #[serde(rename = "jsNodeId")]
    pub js_node_id: String,
    /// A text for people: a feature's explanation, or what a logit is of.
    pub clerp: String,
    /// The share of all influence that this node and all stronger ones have together; none for logits.
    pub influence: Option<f64>,
    /// A feature's activation.
    pub activation: Option<f32>,
}

/// An edge: what the source adds to the target.
#[derive(Debug, Clone, Serialize)]
pub struct GraphLink {
    /// The node that writes.
    pub source: String,
    /// The node that reads.
    pub target: String,
    /// The sum that it adds to the target's value.
    pub weight: f32,
}

impl GraphFile {
    /// The file of the kept part of a graph.
    pub(super) fn new(
        opened: &Opened,
        prompt: &Prompt,
        graph: &AttributionGraph,
        kept: &KeptPart,
        dictionaries: &[DictionarySummary],
        explanations: &[ByFeature],
        node_threshold: f64,
    ) -> Self {
        let layers = opened.model.config().n_layer;
        let text = opened.labels(&prompt.ids).concat();
        let first_logit = graph.nodes.iter().position(|node| matches!(node, GraphNode::Logit { .. }));
        let record = |place: usize| {
            let influence = kept.cumulative[place];
            match graph.nodes[place] {
                GraphNode::Logit { token, probability } => {
                    let position = prompt.ids.len() - 1;
                    let text = opened.labels(&[token]).concat();
                    NodeRecord::logit(
                        token,
                        &text,
                        probability,
                        position,
                        layers + 1,
                        first_logit == Some(place),
                    )
                }
                GraphNode::Token { position } => NodeRecord::token(prompt.ids[position], position, influence),
                GraphNode::Error { layer, position } => NodeRecord::error(layer, position, influence),
                GraphNode::Feature { layer, position, feature, activation } => {
                    let clerp = explanations.get(layer).and_then(|known| known.get(&feature)?.first());
                    NodeRecord {
                        clerp: clerp.cloned().unwrap_or_default(),
                        ..NodeRecord::feature(layer, position, feature, activation, influence)
                    }
                }
            }
        };
        let records: Vec<NodeRecord> = (0..graph.nodes.len()).map(record).collect();
        let link = |&(target, source, weight): &(usize, usize, f32)| GraphLink {
            source: records[source].node_id.clone(),
            target: records[target].node_id.clone(),
            weight,
        };
        let links = kept.edges.iter().map(link).collect();
        let metadata = GraphMetadata {
            slug: slug(&text),
            scan: opened.title(),
            transcoder_list: dictionaries.iter().map(|one| without_folders(&one.name)).collect(),
            prompt_tokens: prompt.tokens.clone(),
            prompt: text,
            node_threshold,
            schema_version: SCHEMA,
        };
        let q_params = PinnedParts { link_type: "both".to_owned(), ..PinnedParts::default() };
        let nodes = records.into_iter().zip(&kept.nodes).filter(|(_, kept)| **kept);
        Self { metadata, q_params, nodes: nodes.map(|(record, _)| record).collect(), links }
    }
}

impl NodeRecord {
    fn new(node_id: String, js_node_id: String, feature_type: NodeKind, position: usize) -> Self {
        Self {
            node_id,
            feature: -1,
            layer: String::new(),
            ctx_idx: position,
            feature_type,
            token_prob: 0.0,
            is_target_logit: false,
            run_idx: 0,
            reverse_ctx_idx: 0,
            js_node_id,
            clerp: String::new(),
            influence: None,
            activation: None,
        }
    }

    fn feature(layer: usize, position: usize, feature: u32, activation: f32, influence: f64) -> Self {
        Self {
            feature: cantor(layer as u64, feature.into()),
            layer: layer.to_string(),
            influence: Some(influence),
            activation: Some(activation),
            ..Self::new(
                format!("{layer}_{feature}_{position}"),
                format!("{layer}_{feature}-0"),
                NodeKind::Feature,
                position,
            )
        }
    }

    fn error(layer: usize, position: usize, influence: f64) -> Self {
        // circuit-tracer's 0_LAYER_POSITION is also the name of layer 0's feature LAYER.
        let name = format!("error_{layer}_{position}");
        Self {
            layer: layer.to_string(),
            influence: Some(influence),
            ..Self::new(name.clone(), format!("{name}-0"), NodeKind::Error, position)
        }
    }

    fn token(id: u32, position: usize, influence: f64) -> Self {
        Self {
            feature: i64::try_from(position).unwrap_or(-1),
            layer: "E".to_owned(),
            influence: Some(influence),
            ..Self::new(format!("E_{id}_{position}"), format!("E_{id}-{position}"), NodeKind::Token, position)
        }
    }

    fn logit(id: u32, text: &str, probability: f32, position: usize, layer: usize, is_first: bool) -> Self {
        Self {
            feature: id.into(),
            layer: layer.to_string(),
            token_prob: probability,
            is_target_logit: is_first,
            clerp: format!("Output \"{text}\" (p={probability:.3})"),
            ..Self::new(
                format!("{layer}_{id}_{position}"),
                format!("L_{id}-{position}"),
                NodeKind::Logit,
                position,
            )
        }
    }
}

/// Cantor's pairing: one number for two.
fn cantor(x: u64, y: u64) -> i64 {
    i64::try_from((x + y) * (x + y + 1) / 2 + y).unwrap_or(-1)
}

/// A name for addresses: letters and digits of a text, with hyphens between words.
fn slug(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let joined = words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-");
    let short: String = joined.chars().take(SLUG).collect();
    if short.is_empty() { "graph".to_owned() } else { short.trim_end_matches('-').to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of circuit-tracer 0.5's `_cantor_pairing`.
    #[test]
    fn layers_and_features_are_one_number_as_in_circuit_tracer() {
        assert_eq!([cantor(0, 0), cantor(1, 0), cantor(0, 1), cantor(3, 713)], [0, 1, 2, 257_399]);
        assert_eq!(slug(" \"To be, or NOT\" …"), "to-be-or-not");
        assert_eq!(slug("…"), "graph");
    }
}
