//! The attribution graph of one prompt: which features of transcoders lead from its tokens to the next one (Ameisen et al. 2025).

mod file;
mod texts;

pub use file::{GraphFile, GraphLink, GraphMetadata, NodeKind, NodeRecord, PinnedParts};
pub use texts::FeatureText;

use super::features::{ByFeature, DictionarySummary, Explanations};
use crate::interventions::ALL_INTERVENTIONS;
use crate::observer::steps;
use crate::open::{NotFiniteResult, Opened, describe_not_finite};
use crate::provenance::RunProvenance;
use crate::studies::study::{Outcome, Run, Study};
use crate::texts::Content;
use anyhow::{Context, bail};
use candle_core::{Device, Tensor, WithDType};
use gpt2_circuits::attribution_graph::{AttributionGraph, GraphNode, LogitChoice, Pruning, ReplacedPass};
use gpt2_circuits::features::Features;
use gpt2_model::finite::all_finite;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use texts::{command, texts};

/// The options of an attribution graph.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The text, or its ids.
    pub prompt: Content,
    /// A transcoder for the MLP of each layer, in any order: folders, or `owner/name/FOLDER` on the Hub.
    pub dictionary: Vec<String>,
    /// The share of the nodes' influence that pruning keeps.
    pub node_threshold: f64,
    /// The share of the edges' influence that pruning keeps.
    pub edge_threshold: f64,
    /// The number of next tokens whose logits are nodes, at most.
    pub max_logits: usize,
    /// The probability that these tokens need to have together.
    pub logit_mass: f64,
    /// The number of nodes, before pruning, above which a text is refused.
    pub max_nodes: usize,
    /// Files with published explanations of the transcoders' features, each with its layer.
    pub explanations: Vec<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prompt: Content::default(),
            dictionary: vec![],
            node_threshold: 0.8,
            edge_threshold: 0.98,
            max_logits: 10,
            logit_mass: 0.95,
            max_nodes: 5000,
            explanations: vec![],
        }
    }
}

/// An attribution graph, pruned.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The model's name.
    pub model: String,
    /// The transcoders, by layer.
    pub dictionaries: Vec<DictionarySummary>,
    /// The share of tokens' influence in that of tokens and errors.
    pub replacement_score: f64,
    /// The share of incoming edges that do not come from errors, over nodes weighted by their influence.
    pub completeness_score: f64,
    /// The number of features that fire, over all tokens.
    pub active_features: usize,
    /// The number of nodes before pruning.
    pub nodes: usize,
    /// The beginning of a command that runs the model over these tokens: with `--dictionary` and `--ablate-feature`, it measures
    /// what a feature does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The nodes and edges that pruning keeps, in circuit-tracer's form.
    pub graph: GraphFile,
    /// The kept features in words, by layer and number.
    pub features: Vec<FeatureText>,
}

impl Study for Options {
    const NAME: &'static str = "graph";
    // Everything but what features, errors and tokens write is frozen as the model has it.
    const REFUSES: &'static [&'static str] = ALL_INTERVENTIONS;
    type Report = Report;

    /// The tensors are those of the whole graph, under circuit-tracer's names: `adjacency_matrix` (nodes, nodes), a row for each target;
    /// `active_features` (features, 3): layer, position, feature; `activation_values` (features); `input_tokens` (T); `logit_tokens` and
    /// `logit_probabilities` (logits).
    fn run(&self, run: &Run) -> anyhow::Result<Outcome<Report>> {
        let opened = run.opened;
        self.check(run)?;
        let (dictionaries, transcoders) = self.transcoders(run)?;
        let explanations = self.explanations(run, &dictionaries)?;
        let prompt = run.prompt(&self.prompt)?;
        let ids = opened.input_ids(&prompt.ids)?; // (1, T)
        let logits = LogitChoice { mass: self.logit_mass, most: self.max_logits };
        let option = opened.spelling.option("dictionary");
        let pass = ReplacedPass::run(&opened.model, &transcoders, &ids, logits).context(option)?;
        let nodes = pass.nodes().len();
        if nodes > self.max_nodes {
            let given = opened.spelling.given("max-nodes", self.max_nodes);
            bail!(
                "{given}: the graph of {} tokens has {nodes} nodes; take a shorter text, transcoders of which fewer features fire, or \
                 raise {} (memory grows with its square)",
                prompt.ids.len(),
                opened.spelling.option("max-nodes")
            );
        }
        let graph = pass.graph(&mut steps(run.observer, "nodes"))?;
        check_finite(run, &ids, &graph)?;
        let scores = graph.scores()?;
        let kept = graph.pruned(Pruning { nodes: self.node_threshold, edges: self.edge_threshold })?;
        let (active, values) = active_features(&graph)?;
        let kept_nodes =
            graph.nodes.iter().zip(&kept.nodes).filter_map(|(node, is_kept)| is_kept.then_some(node));
        let report = Report {
            provenance: RunProvenance::new(opened, &prompt.ids)?,
            model: opened.name.clone(),
            replacement_score: scores.replacement,
            completeness_score: scores.completeness,
            active_features: values.elem_count(),
            nodes,
            command: command(opened, &prompt.ids),
            graph: GraphFile::new(
                opened,
                &prompt,
                &graph,
                &kept,
                &dictionaries,
                &explanations,
                self.node_threshold,
            ),
            features: texts(kept_nodes, &transcoders, &explanations, opened)?,
            dictionaries,
        };
        let mut tensors = vec![];
        if run.wants_tensors {
            let logits = graph.nodes.iter().filter_map(GraphNode::as_logit);
            let (logit_tokens, probabilities): (Vec<u32>, Vec<f32>) = logits.unzip();
            let named = [
                ("adjacency_matrix", graph.edges),
                ("active_features", active),
                ("activation_values", values),
                ("input_tokens", ids.squeeze(0)?.to_device(&Device::Cpu)?),
                ("logit_tokens", of_all(logit_tokens)?),
                ("logit_probabilities", of_all(probabilities)?),
            ];
            tensors.extend(named.map(|(name, tensor)| (name.to_owned(), tensor)));
        }
        Ok(Outcome { report, tensors })
    }
}

impl Options {
    /// Refuses numbers out of range.
    fn check(&self, run: &Run) -> anyhow::Result<()> {
        let spelling = run.opened.spelling;
        let shares = [
            ("node-threshold", self.node_threshold),
            ("edge-threshold", self.edge_threshold),
            ("logit-mass", self.logit_mass),
        ];
        if let Some((name, given)) = shares.into_iter().find(|(_, share)| !(0.0..=1.0).contains(share)) {
            bail!("{}: expected a share from 0 to 1", spelling.given(name, given));
        }
        if self.max_logits == 0 {
            bail!("{}: expected at least 1", spelling.given("max-logits", 0));
        }
        Ok(())
    }

    /// The explanations of each layer's features.
    fn explanations(&self, run: &Run, dictionaries: &[DictionarySummary]) -> anyhow::Result<Vec<ByFeature>> {
        let found = Explanations::read(&self.explanations, run.opened.spelling, run.observer)?;
        found.by_layer(&dictionaries.iter().map(|one| one.features).collect::<Vec<_>>())
    }

    /// Opens the transcoders, by layer.
    fn transcoders(&self, run: &Run) -> anyhow::Result<(Vec<DictionarySummary>, Vec<Features>)> {
        let opened = run.opened;
        let named = self.dictionary.iter().map(|name| opened.dictionary(name, run.observer));
        let mut found = named.collect::<anyhow::Result<Vec<_>>>()?;
        found.extend(run.dictionaries.iter().cloned());
        if found.is_empty() {
            bail!(
                "{}: name a transcoder for the MLP of each layer; gpt2 train-features makes one with {}",
                opened.spelling.option("dictionary"),
                opened.spelling.option("writes")
            );
        }
        let config = opened.model.config();
        let mut all = vec![];
        for dictionary in found {
            let of_file = dictionary.found.checkpoint.config();
            of_file.remarks.iter().for_each(|remark| run.observer.note(remark));
            if !dictionary.dictionary.is_transcoder() {
                bail!(
                    "{}: rebuilds {}, which it reads; expected a transcoder, as gpt2 train-features makes with {}",
                    opened.spelling.given("dictionary", dictionary.found.checkpoint.name()),
                    of_file.hook,
                    opened.spelling.option("writes")
                );
            }
            let layer = of_file.hook.layer();
            all.push((layer, DictionarySummary::new(&dictionary), dictionary.features(config)?));
        }
        all.sort_by_key(|(layer, ..)| *layer);
        Ok(all.into_iter().map(|(_, summary, features)| (summary, features)).unzip())
    }
}

/// Refuses a graph with numbers that are not finite: scores and pruning compare them.
fn check_finite(run: &Run, ids: &Tensor, graph: &AttributionGraph) -> anyhow::Result<()> {
    let Opened { model, spelling, .. } = run.opened;
    if all_finite(&graph.edges)? {
        return Ok(());
    }
    match model.first_not_finite(ids, None)? {
        Some(found) => bail!(NotFiniteResult(describe_not_finite(&found, model, ids, None, *spelling))),
        None => bail!(NotFiniteResult(format!(
            "{}: the numbers of a transcoder are too large to compute with; are they damaged, or of another model?",
            spelling.option("dictionary")
        ))),
    }
}

fn of_all<T: WithDType>(values: Vec<T>) -> candle_core::Result<Tensor> {
    let count = values.len();
    Tensor::from_vec(values, count, &Device::Cpu)
}

/// The features that fire, (features, 3), and their activations, (features).
fn active_features(graph: &AttributionGraph) -> anyhow::Result<(Tensor, Tensor)> {
    let mut places: Vec<i64> = vec![];
    let mut values: Vec<f32> = vec![];
    for node in &graph.nodes {
        if let GraphNode::Feature { layer, position, feature, activation } = node {
            places.extend([i64::try_from(*layer)?, i64::try_from(*position)?, i64::from(*feature)]);
            values.push(*activation);
        }
    }
    Ok((of_all(places)?.reshape(((), 3))?, of_all(values)?))
}
