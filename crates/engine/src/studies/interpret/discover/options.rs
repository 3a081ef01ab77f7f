//! The options of circuit discovery.

use crate::studies::interpret::measure::MetricName;
use crate::texts::PairsInput;
use crate::words::Choices;
use gpt2_circuits::discovery::Replacement;
use serde::{Deserialize, Serialize};

/// The options of circuit discovery.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The pairs of texts.
    pub pairs: PairsInput,
    /// The metric; by default that of the answers.
    pub metric: Option<MetricName>,
    /// The positions over which the metric of the answers is averaged, instead of the last.
    pub positions: Vec<usize>,
    /// The number of runs between the texts over which gradients are taken; with 0, they are those of the clean run.
    pub steps: usize,
    /// The path from the corrupted to the clean text in these runs.
    pub integrate: Integral,
    /// Whether attention is computed again for each edge into queries and keys (`AtP*`, Kramár et al. 2024).
    pub qk_fix: bool,
    /// The order in which edges are chosen.
    pub choose: EdgeChoice,
    /// The values that stand in for the other edges.
    #[serde(with = "ReplacementName")]
    pub replace: Replacement,
    /// The number of edges to choose; without a number, as many as reach `faithfulness`.
    pub edges: Option<usize>,
    /// The faithfulness to look for.
    pub faithfulness: f64,
    /// The number of circuits of random edges beside each circuit.
    pub random: usize,
    /// Whether to run the circuit without each of its heads and MLPs, too.
    pub minimal: bool,
}

/// The path from the corrupted to the clean text along which gradients are integrated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Integral {
    /// The embeddings of the tokens.
    #[default]
    Inputs,
    /// The contributions of the embeddings, the heads of a layer and an MLP, one after the other.
    Activations,
}

/// The order in which edges are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EdgeChoice {
    /// From the logits on, each time the best edge into the circuit.
    #[default]
    Greedy,
    /// The best of all.
    Rank,
}

/// Serde's names of replacements.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Replacement", rename_all = "lowercase")]
enum ReplacementName {
    Corrupted,
    Mean,
    Zero,
}

/// Integrals by name.
pub const INTEGRALS: &Choices<Integral> =
    &[("inputs", Integral::Inputs), ("activations", Integral::Activations)];
/// Orders of choosing edges by name.
pub const CHOICES: &Choices<EdgeChoice> = &[("greedy", EdgeChoice::Greedy), ("rank", EdgeChoice::Rank)];
/// Replacements by name.
pub const REPLACEMENTS: &Choices<Replacement> =
    &[("corrupted", Replacement::Corrupted), ("mean", Replacement::Mean), ("zero", Replacement::Zero)];

impl Default for Options {
    fn default() -> Self {
        Self {
            pairs: PairsInput::default(),
            metric: None,
            positions: vec![],
            steps: 5,
            integrate: Integral::default(),
            qk_fix: false,
            choose: EdgeChoice::default(),
            replace: Replacement::default(),
            edges: None,
            faithfulness: 0.9,
            random: 3,
            minimal: false,
        }
    }
}
