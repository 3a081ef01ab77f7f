//! The scores of documents: losses, and the summaries of heads.

use crate::texts::DocumentWindow;
use gpt2_model::analysis::Surprises;
use gpt2_view::{HeadSummary, QueryNumbers};
use serde::Serialize;
use serde_json::{Map, Value};

/// Numbers of a head: entropy, mean distance, on self, on previous, on first, uniform.
pub(super) const NUMBERS: usize = 6;

/// The contribution of a window to the scores of its document, which processes exchange as bytes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WindowScores {
    /// Nats.
    pub(super) surprise: f64,
    /// The number of predicted tokens.
    pub(super) predicted: usize,
    /// The number of queries that the summaries average over.
    pub(super) queries: usize,
    /// The numbers of each head, layer after layer; empty without summaries.
    pub(super) heads: Vec<[f32; NUMBERS]>,
}

impl WindowScores {
    /// The scores of a window that is row `row` of a batch.
    pub(super) fn new(window: &DocumentWindow, row: usize, surprises: &Surprises) -> anyhow::Result<Self> {
        let length = window.tokens.len();
        let context = window.context;
        // Nothing predicts the first token of the first window.
        let nats = &surprises.nats[row][context.saturating_sub(1)..];
        let mut heads = vec![];
        for layer in &surprises.summaries {
            let numbers = |tensor: &candle_core::Tensor| tensor.get(row)?.to_vec2::<f32>();
            let all = [
                numbers(&layer.entropy)?,
                numbers(&layer.mean_distance)?,
                numbers(&layer.on_self)?,
                numbers(&layer.on_previous)?,
                numbers(&layer.on_first)?,
            ];
            for head in 0..all[0].len() {
                let [entropy, mean_distance, on_self, on_previous, on_first] =
                    all.each_ref().map(|kind| &kind[head][context..length]);
                let numbers = QueryNumbers { entropy, mean_distance, on_self, on_previous, on_first };
                let of = HeadSummary::of_queries(context, numbers)?;
                heads.push([
                    of.entropy,
                    of.mean_distance,
                    of.on_self,
                    of.on_previous,
                    of.on_first,
                    of.uniform,
                ]);
            }
        }
        // The summary leaves out a query that sees one key, unless there is no other.
        let queries = if context == 0 { (length - 1).max(1) } else { length - context };
        let surprise = nats.iter().sum();
        Ok(Self { surprise, predicted: nats.len(), queries, heads })
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.surprise.to_le_bytes().to_vec();
        bytes.extend((self.predicted as u64).to_le_bytes());
        bytes.extend((self.queries as u64).to_le_bytes());
        bytes.extend(self.heads.iter().flatten().flat_map(|number| number.to_le_bytes()));
        bytes
    }

    /// Reads the first part of `bytes`, with the numbers of `heads` heads.
    pub(super) fn take(bytes: &mut &[u8], heads: usize) -> Option<Self> {
        let mut word = || bytes.split_off(..8)?.try_into().ok();
        let surprise = word()?;
        let predicted = word()?;
        let queries = word()?;
        let numbers = bytes.split_off(..heads * NUMBERS * 4)?.as_chunks::<4>().0;
        let numbers: Vec<f32> = numbers.iter().map(|number| f32::from_le_bytes(*number)).collect();
        Some(Self {
            surprise: f64::from_le_bytes(surprise),
            predicted: usize::try_from(u64::from_le_bytes(predicted)).ok()?,
            queries: usize::try_from(u64::from_le_bytes(queries)).ok()?,
            heads: numbers.as_chunks().0.to_vec(),
        })
    }
}

/// The line of a document.
#[derive(Debug, Serialize)]
pub(super) struct Row<'a> {
    pub(super) file: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<u64>,
    /// The other fields of a line of JSON.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) input: &'a Map<String, Value>,
    /// Of the text, in UTF-8.
    pub(super) bytes: usize,
    /// Of the text, so that a resumed run sees whether it has changed.
    pub(super) hash: String,
    pub(super) tokens: usize,
    pub(super) predicted: usize,
    /// Nats a token; none if no token was predicted.
    pub(super) loss: Option<f64>,
    pub(super) perplexity: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) layers: Vec<Vec<HeadAverages>>,
}

/// The attention of a head, averaged over the queries of a document.
#[derive(Debug, Serialize)]
pub(super) struct HeadAverages {
    entropy: f32,
    mean_distance: f32,
    on_self: f32,
    on_previous: f32,
    on_first: f32,
    uniform: f32,
}

/// The summaries of each layer's heads, from the parts of a document.
pub(super) fn layers(parts: &[WindowScores], heads_a_layer: usize) -> Vec<Vec<HeadAverages>> {
    let Some(first) = parts.first() else { return vec![] };
    let queries: usize = parts.iter().map(|part| part.queries).sum();
    let head = |i: usize| {
        let [entropy, mean_distance, on_self, on_previous, on_first, uniform] = std::array::from_fn(|n| {
            let weighted = |part: &WindowScores| f64::from(part.heads[i][n]) * part.queries as f64;
            let mean = parts.iter().map(weighted).sum::<f64>() / queries as f64;
            #[allow(clippy::cast_possible_truncation)] // the precision of the numbers
            let mean = mean as f32;
            mean
        });
        HeadAverages { entropy, mean_distance, on_self, on_previous, on_first, uniform }
    };
    let all: Vec<usize> = (0..first.heads.len()).collect();
    all.chunks(heads_a_layer).map(|layer| layer.iter().map(|&i| head(i)).collect()).collect()
}
