//! Writes the entries of a page beside the weights: predictions, numbers of heads, the lens, features, circuits, further maps, value norms,
//! queries and keys.

use super::codes::encode;
use super::{HeadNumbers, NextToken, OfRun, PageWriter};
use crate::text::{visible_text, visible_token};
use base64::{Engine, prelude::BASE64_STANDARD};
use candle_core::{DType, Device, Result, Tensor};
use serde::Serialize;
use std::io::Write;

/// Vectors are whole numbers of 16 bits, and this stands for the largest value of a head.
const LARGEST: f32 = 32767.0;

#[derive(Serialize)]
struct NumbersEntry<'a> {
    name: String,
    meaning: String,
    signed: bool,
    values: &'a [f32],
}

#[derive(Serialize)]
struct LensEntry {
    run: usize,
    layer: usize,
    likely: Vec<(String, f32)>,
}

#[derive(Serialize)]
struct FeaturesEntry<'a> {
    run: usize,
    name: String,
    tokens: &'a [Vec<(u32, f32)>],
}

#[derive(Serialize)]
struct MapEntry {
    run: usize,
    name: String,
    meaning: String,
    levels: u16,
}

/// One head's numbers as base64 of little-endian bytes.
#[derive(Serialize)]
struct NormsEntry {
    run: usize,
    layer: usize,
    head: usize,
    norms: String,
}

#[derive(Serialize)]
struct VectorsEntry {
    run: usize,
    layer: usize,
    head: usize,
    scale: f32,
    width: usize,
    /// The values that 1 stands for among the codes of q and of k.
    units: [f32; 2],
    q: String,
    k: String,
}

impl<W: Write> PageWriter<W> {
    /// Predictions of another run than the first, whose predictions go to [`finish`](Self::finish).
    ///
    /// # Shapes
    /// `predictions` T, one per query
    ///
    /// # Errors
    /// When there is no such run, their number is wrong, or the page cannot be written to.
    pub fn predictions(&mut self, run: usize, predictions: &[NextToken]) -> Result<()> {
        self.check_run(run)?;
        if run == 0 {
            candle_core::bail!("page: give the first run's predictions to finish")
        }
        if predictions.len() != self.queries {
            candle_core::bail!("page: {} predictions for {} queries", predictions.len(), self.queries)
        }
        self.check_next(predictions)?;
        self.json("predictions", &OfRun { run, data: predictions })
    }

    /// A number of each head: the page's heads can be sorted and colored by it.
    ///
    /// # Errors
    /// When there is not one value per announced head, or the page cannot be written to.
    pub fn head_numbers(&mut self, numbers: &HeadNumbers) -> Result<()> {
        if numbers.values.len() != self.announced {
            candle_core::bail!(
                "page: {} values of {:?} for {} heads",
                numbers.values.len(),
                numbers.name,
                self.announced
            )
        }
        let entry = NumbersEntry {
            name: visible_text(&numbers.name),
            meaning: visible_text(&numbers.meaning),
            signed: numbers.signed,
            values: &numbers.values,
        };
        self.json("numbers", &entry)
    }

    /// The logit lens: what the model would predict if `layer` were its last block. Call it once for each block, in
    /// order, also for a block without a written head.
    ///
    /// # Shapes
    /// `likely` T: the most probable token after each query, and its probability
    ///
    /// # Errors
    /// When there is no such run, their number is wrong, or the page cannot be written to.
    pub fn lens(&mut self, run: usize, layer: usize, likely: &[(String, f32)]) -> Result<()> {
        self.check_run(run)?;
        if likely.len() != self.queries {
            candle_core::bail!(
                "page: layer {layer}'s lens has {} tokens for {} queries",
                likely.len(),
                self.queries
            )
        }
        let likely =
            likely.iter().map(|(token, p)| (visible_token(token), (p * 1e5).round() / 1e5)).collect();
        self.json("lens", &LensEntry { run, layer, likely })
    }

    /// Features of a dictionary that fire: the page lists those of the chosen token, and colors the text by one of them.
    ///
    /// # Shapes
    /// `tokens` S: of each key's token, the features with their activations, the strongest first
    ///
    /// # Errors
    /// When there is no such run, their number is wrong, an activation is not finite, or the page cannot be written to.
    pub fn features(&mut self, run: usize, name: &str, tokens: &[Vec<(u32, f32)>]) -> Result<()> {
        self.check_run(run)?;
        if tokens.len() != self.keys {
            candle_core::bail!("page: features of {} tokens for {} keys", tokens.len(), self.keys)
        }
        if let Some((feature, value)) = tokens.iter().flatten().find(|(_, value)| !value.is_finite()) {
            candle_core::bail!("page: feature {feature} has activation {value}")
        }
        self.json("features", &FeaturesEntry { run, name: visible_text(name), tokens })
    }

    /// The edges of a circuit, each from and to a part of the model as `gpt2 discover` writes them: `0.3` and `1.2.k`. The page draws
    /// those between heads, and lists those of the chosen head.
    ///
    /// # Errors
    /// When the page cannot be written to.
    pub fn circuit(&mut self, edges: &[(String, String)]) -> Result<()> {
        let shown: Vec<_> = edges.iter().map(|(from, to)| (visible_text(from), visible_text(to))).collect();
        self.json("circuit", &shown)
    }

    /// A map beside the heads, listed below them: attention rollout up to a block, or a mean of heads.
    /// With two runs, maps of the same name belong together, and both need the same.
    ///
    /// # Shapes
    /// `weights` (T, S) on any device and of any float dtype; query i has the keys 0 to S - T + i
    ///
    /// # Errors
    /// When there is no such run, the shape differs from the header, a weight is neither NaN nor between 0 and 1, or
    /// the page cannot be written to.
    pub fn map(&mut self, run: usize, name: &str, meaning: &str, weights: &Tensor) -> Result<()> {
        self.check_run(run)?;
        if weights.dims() != [self.queries, self.keys] {
            candle_core::bail!(
                "page: the map {name:?} has shape {:?} for {} queries and {} keys",
                weights.dims(),
                self.queries,
                self.keys
            )
        }
        let codes = encode(weights, self.levels, self.share(), self.is_whole)?;
        let name = visible_text(name);
        let meaning = visible_text(meaning);
        let levels = codes.levels;
        self.maps[run].push(name.clone());
        self.room = self.room.saturating_sub(codes.text.len());
        self.json("map", &MapEntry { run, name, meaning, levels })?;
        self.block("map-weights", "text/plain", &codes.text)
    }

    /// The norms of what each key contributes at weight 1, `‖v_j W_O‖`: the page can then show weight times norm.
    ///
    /// A head without them has only weights; norms of heads that are never written have no effect.
    ///
    /// # Shapes
    /// `norms` (H, S) on any device and of any float dtype; `heads` the indices of these H heads
    ///
    /// # Errors
    /// When there is no such run, the shape differs from the header, a norm is negative or not finite, or the page
    /// cannot be written to.
    pub fn value_norms(&mut self, run: usize, layer: usize, heads: &[usize], norms: &Tensor) -> Result<()> {
        self.check_run(run)?;
        if norms.dims() != [heads.len(), self.keys] {
            candle_core::bail!(
                "page: layer {layer}'s norms have shape {:?} for {} heads and {} keys",
                norms.dims(),
                heads.len(),
                self.keys
            )
        }
        let mut entries = Vec::with_capacity(heads.len());
        for (&head, norms) in heads.iter().zip(numbers(norms)?.chunks_exact(self.keys)) {
            if let Some(wrong) = norms.iter().find(|n| !n.is_finite() || **n < 0.0) {
                candle_core::bail!("page: {wrong} is not a norm, in layer {layer}, head {head}")
            }
            let bytes: Vec<u8> = norms.iter().flat_map(|n| n.to_le_bytes()).collect();
            entries.push(NormsEntry { run, layer, head, norms: BASE64_STANDARD.encode(bytes) });
        }
        self.json("norms", &entries)
    }

    /// The queries and keys of heads: the page then shows `q_d · k_d · scale` of a cell for each dimension d.
    ///
    /// They take 5.4 bytes of the page per pair of numbers, so leave them out when there are many: all heads of GPT-2
    /// small at 100 tokens take 5 MB. The page shows each product within `3.1e-5` of the head's largest `|q| · |k|`.
    /// Vectors of heads that are never written have no effect.
    ///
    /// # Shapes
    /// `q` (H, T, D), `k` (H, S, D) on any device and of any float dtype; `heads` the indices of these H heads;
    /// `scale` what multiplies q · k before the softmax, `1 / √D` as a rule
    ///
    /// # Errors
    /// When there is no such run, the shapes differ from the header, a number is not finite, or the page cannot be
    /// written to.
    pub fn vectors(
        &mut self,
        run: usize,
        layer: usize,
        heads: &[usize],
        q: &Tensor,
        k: &Tensor,
        scale: f32,
    ) -> Result<()> {
        self.check_run(run)?;
        let width = q.dims().last().copied().unwrap_or(0);
        let h = heads.len();
        let t = self.queries;
        let s = self.keys;
        if q.dims() != [h, t, width] || k.dims() != [h, s, width] || width == 0 {
            candle_core::bail!(
                "page: layer {layer}'s vectors have shapes {:?} and {:?} for {h} heads, {t} queries and {s} keys",
                q.dims(),
                k.dims()
            )
        }
        let q = numbers(q)?;
        let k = numbers(k)?;
        if !scale.is_finite() || q.iter().chain(&k).any(|x| !x.is_finite()) {
            candle_core::bail!("page: a query or key of layer {layer} is not finite")
        }
        let mut entries = Vec::with_capacity(h);
        for ((&head, q), k) in heads.iter().zip(q.chunks_exact(t * width)).zip(k.chunks_exact(s * width)) {
            let ((q_unit, q), (k_unit, k)) = (small(q), small(k));
            entries.push(VectorsEntry { run, layer, head, scale, width, units: [q_unit, k_unit], q, k });
        }
        self.json("vectors", &entries)
    }
}

fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

/// Numbers as whole numbers of 16 bits, and the value that 1 stands for.
#[allow(clippy::cast_possible_truncation)] // at most `LARGEST`
fn small(values: &[f32]) -> (f32, String) {
    let largest = values.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    let unit = if largest > 0.0 { largest / LARGEST } else { 1.0 };
    let code = |x: &f32| (x / unit).round().clamp(-LARGEST, LARGEST) as i16;
    let bytes: Vec<u8> = values.iter().flat_map(|x| code(x).to_le_bytes()).collect();
    (unit, BASE64_STANDARD.encode(bytes))
}
