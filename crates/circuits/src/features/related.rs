//! The neighbors of a feature: features of like directions, and the heads that read its direction.

use super::run::Features;
use crate::circuits::{f64_of, folded};
use candle_core::{D, Result, Tensor};
use gpt2_model::Gpt2LMHeadModel;
use gpt2_model::hooks::Point;

/// The rows of `W_dec` to compare at a time.
const ROWS: usize = 256;

/// A feature whose direction is like another's.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct RelatedFeature {
    /// The feature.
    pub feature: u32,
    /// The cosine of the angle between their rows of `W_dec`.
    pub cosine: f64,
}

/// A head, and the share of a feature's direction that it reads: `‖dᵀ·W‖ / (‖d‖·‖W‖)` with Frobenius' norm of `W`, as Elhage et al. 2021 ("A
/// Mathematical Framework for Transformer Circuits") measure composition. A random direction has about `1 / √C`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ReadingHead {
    /// The layer.
    pub layer: usize,
    /// The head.
    pub head: usize,
    /// With the head's weights of queries, keys and values.
    pub reads: [f64; 3],
}

impl Features {
    /// For each of some features, the `count` others whose directions are most like its own or its opposite, the nearest first.
    ///
    /// # Errors
    /// When there is no such feature, or the device fails.
    pub fn related(&self, features: &[u32], count: usize) -> Result<Vec<Vec<RelatedFeature>>> {
        let rows = self.dictionary.w_dec();
        let norms = rows.sqr()?.sum_keepdim(1)?.sqrt()?.maximum(f32::MIN_POSITIVE)?;
        let rows = rows.broadcast_div(&norms)?; // (features, d out)
        let mut found = Vec::with_capacity(features.len());
        let mut others: Vec<RelatedFeature> = vec![];
        for features in features.chunks(ROWS) {
            let chosen = rows.index_select(&Tensor::new(features, rows.device())?, 0)?;
            let cosines = chosen.matmul(&rows.t()?)?;
            for (&feature, cosines) in features.iter().zip(cosines.to_vec2::<f32>()?) {
                let of = |(feature, cosine): (u32, f32)| RelatedFeature { feature, cosine: cosine.into() };
                others.clear();
                others.extend((0u32..).zip(cosines).filter(|(other, _)| *other != feature).map(of));
                let nearer = |a: &RelatedFeature, b: &RelatedFeature| {
                    b.cosine.abs().total_cmp(&a.cosine.abs()).then(a.feature.cmp(&b.feature))
                };
                if count < others.len() {
                    others.select_nth_unstable_by(count, nearer);
                    others.truncate(count);
                }
                others.sort_by(nearer);
                found.push(others.as_slice().into());
            }
        }
        Ok(found)
    }

    /// For each of some features, the `count` heads behind the rebuilt value that read most of its direction, by queries, keys or
    /// values. The layer norm between them counts as a part of their weights: its γ, and that it takes off the mean. Empty where the
    /// direction is not in the stream.
    ///
    /// # Errors
    /// When there is no such feature, or a layer cannot produce a dense weight.
    pub fn readers(
        &self,
        model: &Gpt2LMHeadModel,
        features: &[u32],
        count: usize,
    ) -> Result<Vec<Vec<ReadingHead>>> {
        let mut directions = vec![];
        for &feature in features {
            match self.direction(model, feature)? {
                Some(direction) => directions.push(direction),
                None => return Ok(vec![vec![]; features.len()]),
            }
        }
        let mut found = vec![vec![]; features.len()];
        if directions.is_empty() {
            return Ok(found);
        }
        let directions = Tensor::stack(&directions, 0)?; // (n, C)
        let directions = f64_of(&directions)?;
        let norms = directions.sqr()?.sum_keepdim(1)?.sqrt()?.maximum(f64::MIN_POSITIVE)?;
        let directions = directions.broadcast_div(&norms)?;
        for (layer, block) in model.transformer.h.iter().enumerate().skip(first_reader(self.hook_out)) {
            for (head, weights) in block.attn.head_weights()?.iter().enumerate() {
                let share = |weight: &Tensor| -> Result<Vec<f64>> {
                    let weight = folded(weight, &block.ln_1)?; // (C, D)
                    let whole = weight.sqr()?.sum_all()?.sqrt()?.maximum(f64::MIN_POSITIVE)?;
                    directions
                        .matmul(&weight)?
                        .sqr()?
                        .sum(D::Minus1)?
                        .sqrt()?
                        .broadcast_div(&whole)?
                        .to_vec1()
                };
                let [q, k, v] = [share(&weights.q)?, share(&weights.k)?, share(&weights.v)?];
                for (n, found) in found.iter_mut().enumerate() {
                    found.push(ReadingHead { layer, head, reads: [q[n], k[n], v[n]] });
                }
            }
        }
        for heads in &mut found {
            let most = |head: &ReadingHead| head.reads.iter().copied().fold(0.0, f64::max);
            heads.sort_by(|a, b| most(b).total_cmp(&most(a)).then((a.layer, a.head).cmp(&(b.layer, b.head))));
            heads.truncate(count);
            heads.shrink_to_fit();
        }
        Ok(found)
    }
}

/// The first layer whose attention reads what is written at a point.
fn first_reader(point: Point) -> usize {
    match point {
        Point::ResidPre(layer) => layer,
        point => point.layer().map_or(0, |layer| layer + 1),
    }
}
