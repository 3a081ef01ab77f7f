//! All heads: which copy, and which feed which.

use super::options::{HEAD_INPUTS, Options, known};
use crate::observer::steps;
use crate::provenance::RunProvenance;
use crate::studies::study::{Outcome, Run};
use gpt2_circuits::Circuits;
use gpt2_model::hooks::Head;
use serde::Serialize;

/// All heads, and how they feed one another.
#[derive(Debug, Serialize)]
pub struct Overview {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The heads, layer by layer.
    pub heads: Vec<CopyingHead>,
    /// The composition scores of pairs of heads, largest first.
    pub compositions: Vec<ComposedHeads>,
}

/// A head, and how much it copies.
#[derive(Debug, Serialize)]
pub struct CopyingHead {
    /// Its layer.
    pub layer: usize,
    /// Its number in the layer.
    pub head: usize,
    /// The sum of the eigenvalues of OV by token divided by the sum of their sizes, -1 to 1.
    pub copying: Option<f64>,
}

/// Two heads, and how strongly the first feeds the second.
#[derive(Debug, Serialize)]
pub struct ComposedHeads {
    /// The input of the later head: `q`, `k` or `v`.
    pub reads: &'static str,
    /// The earlier head.
    pub from: String,
    /// The later head.
    pub to: String,
    /// The composition score.
    pub score: f64,
}

impl Options {
    pub(super) fn overview(&self, run: &Run, circuits: &Circuits) -> anyhow::Result<Outcome<Overview>> {
        let provenance = RunProvenance::of_weights(run.opened)?;
        let mut heads = vec![];
        for layer in 0..circuits.layers() {
            for head in 0..circuits.heads(layer) {
                let copying = known(circuits.copying_score(Head { layer, head })?);
                heads.push(CopyingHead { layer, head, copying });
            }
        }
        let mut compositions = vec![];
        let mut tensors = vec![];
        let count = heads.len();
        let name = |i: usize| format!("{}.{}", heads[i].layer, heads[i].head);
        for &(reads, input) in HEAD_INPUTS {
            if !self.composition.is_empty() && !self.composition.contains(&input) {
                continue;
            }
            let mut progress = steps(run.observer, "pairs of layers");
            let scores = circuits.composition(input.composition(), &mut progress)?; // (L, H, L, H)
            for (i, score) in scores.flatten_all()?.to_vec1::<f64>()?.into_iter().enumerate() {
                if score > 0.0 {
                    compositions.push(ComposedHeads {
                        reads,
                        from: name(i / count),
                        to: name(i % count),
                        score,
                    });
                }
            }
            tensors.push((reads.to_owned(), scores));
        }
        compositions.sort_by(|a, b| b.score.total_cmp(&a.score));
        Ok(Outcome { report: Overview { provenance, heads, compositions }, tensors })
    }
}
