//! The way of one token through the model: what each stage of one block computes for it, by one head.

use gpt2_model::config::QkvOrder;
use gpt2_model::hooks::{Point, Recorder};
use gpt2_model::{CausalSelfAttention, Config, HeadLayout};
use serde::{Deserialize, Serialize};

/// Which token to follow, and through which head. All count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Along {
    /// The block.
    pub layer: usize,
    /// The head of its attention.
    pub head: usize,
    /// The token's position; the last one if there is none, or the text is shorter.
    pub token: Option<usize>,
}

/// The way of a token.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Way {
    /// Its position.
    pub token: usize,
    /// The stages, in the order of [`STAGES`].
    pub stages: Vec<Stage>,
}

/// What a stage computes for the token.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stage {
    /// Its name: one of [`STAGES`].
    pub name: &'static str,
    /// The shape of the whole tensor, of all tokens.
    pub shape: Vec<usize>,
    /// Where TransformerLens finds it; empty if it has no name there.
    pub point: String,
    /// The token's part. For a score that the triangle hides, -inf, which is null in JSON.
    pub values: Vec<f32>,
    /// What each value belongs to, where that is a token.
    pub tokens: Vec<String>,
    /// Of all heads' values, those of the chosen head: from, and up to.
    pub own: Option<(usize, usize)>,
    /// Of queries, keys and values: the columns of `c_attn` that compute them, from and up to.
    pub columns: Option<(usize, usize)>,
    /// Of scores: what the products are multiplied by.
    pub scale: Option<f64>,
}

/// The stages, in the order of the forward pass.
pub const STAGES: [&str; 21] = [
    "wte",
    "wpe",
    "resid_pre",
    "ln_1",
    "q",
    "k",
    "v",
    "scores",
    "pattern",
    "z",
    "result",
    "merged",
    "attn_out",
    "resid_mid",
    "ln_2",
    "mlp_post",
    "mlp_out",
    "resid_post",
    "ln_f",
    "logits",
    "probabilities",
];

/// The most probable tokens after the one that is followed.
pub(crate) struct Likely {
    /// With their logits.
    pub(crate) logits: Vec<(String, f32)>,
    /// With the probabilities to draw them with.
    pub(crate) probabilities: Vec<(String, f32)>,
    /// How many tokens there are.
    pub(crate) vocabulary: usize,
}

/// What the values of a stage are, within the tensor of its point.
enum Part {
    /// A row of (1, T, C).
    Row,
    /// A head's row of (1, T, H, D).
    Head,
    /// All heads' rows of (1, T, H, D), one after another.
    Merged,
    /// A row of a head's map, (1, H, T, S).
    Map,
}

impl Along {
    /// What the stages read while the model runs.
    pub(crate) fn recorder(along: Option<&Self>) -> Recorder {
        Recorder::new(along.iter().flat_map(|along| along.points()).map(|(_, point, _)| point))
    }

    /// The stages that hooks see: all but the last two.
    fn points(&self) -> Vec<(&'static str, Point, Part)> {
        let l = self.layer;
        let points = [
            (Point::Embed, Part::Row),
            (Point::PosEmbed, Part::Row),
            (Point::ResidPre(l), Part::Row),
            (Point::Ln1(l), Part::Row),
            (Point::Q(l), Part::Head),
            (Point::K(l), Part::Head),
            (Point::V(l), Part::Head),
            (Point::Scores(l), Part::Map),
            (Point::Pattern(l), Part::Map),
            (Point::Z(l), Part::Head),
            (Point::Result(l), Part::Head),
            (Point::Z(l), Part::Merged),
            (Point::AttnOut(l), Part::Row),
            (Point::ResidMid(l), Part::Row),
            (Point::Ln2(l), Part::Row),
            (Point::MlpPost(l), Part::Row),
            (Point::MlpOut(l), Part::Row),
            (Point::ResidPost(l), Part::Row),
            (Point::LnFinal, Part::Row),
        ];
        STAGES.into_iter().zip(points).map(|(name, (point, part))| (name, point, part)).collect()
    }

    /// The token's position in a text of some tokens, at least one.
    pub(crate) fn token(&self, tokens: usize) -> usize {
        self.token.unwrap_or(tokens).min(tokens - 1)
    }

    /// Refuses what the model does not have.
    pub(crate) fn check(&self, config: &Config) -> anyhow::Result<()> {
        let limits = [("layer", self.layer, config.n_layer), ("head", self.head, config.n_head)];
        match limits.iter().find(|(_, at, count)| at >= count) {
            Some((what, at, count)) => anyhow::bail!("there is no {what} {at}: they are 0 to {}", count - 1),
            None => Ok(()),
        }
    }

    /// The way, from what `recorder` has read. `tokens` are those of the text.
    pub(crate) fn way(
        &self,
        attention: &CausalSelfAttention,
        recorder: &Recorder,
        tokens: &[String],
        next: Likely,
    ) -> candle_core::Result<Way> {
        let token = self.token(tokens.len());
        let mut stages = vec![];
        for (name, point, part) in self.points() {
            let value = recorder.value(point)?.squeeze(0)?;
            let mut shape = value.dims().to_vec();
            let row = match part {
                Part::Row => value.get(token)?,
                Part::Head => value.get(token)?.get(self.head_of(&shape))?,
                Part::Merged => value.get(token)?.flatten_all()?,
                Part::Map => value.get(self.head)?.get(token)?,
            };
            let own = match part {
                Part::Merged => Some((self.head * shape[2], (self.head + 1) * shape[2])),
                _ => None,
            };
            if let Part::Merged = part {
                shape = vec![shape[0], shape[1] * shape[2]];
            }
            let tokens = if let Part::Map = part { tokens.to_vec() } else { vec![] };
            let point = if own.is_none() { point.to_string() } else { String::new() };
            let columns = self.columns(name, attention);
            let scale = (name == "scores").then(|| attention.scale());
            stages.push(Stage { name, shape, point, values: row.to_vec1()?, tokens, own, columns, scale });
        }
        let shape = vec![tokens.len(), next.vocabulary];
        let ends = [(Point::Logits.to_string(), next.logits), (String::new(), next.probabilities)];
        for (name, (point, listed)) in STAGES[stages.len()..].iter().zip(ends) {
            let (tokens, values) = listed.into_iter().unzip();
            let shape = shape.clone();
            stages.push(Stage { name, shape, point, values, tokens, own: None, columns: None, scale: None });
        }
        Ok(Way { token, stages })
    }

    /// The head of keys or values that this head of queries reads, in (T, heads, D).
    fn head_of(&self, shape: &[usize]) -> usize {
        self.head.min(shape[1] - 1)
    }

    /// The columns of `c_attn` that compute the queries, keys or values of the head.
    fn columns(&self, name: &str, attention: &CausalSelfAttention) -> Option<(usize, usize)> {
        let part = ["q", "k", "v"].iter().position(|part| *part == name)?;
        let HeadLayout { heads, key_heads, dim, .. } = attention.heads();
        let key_head = self.head.min(key_heads - 1);
        let at = match attention.qkv_order() {
            QkvOrder::HeadByHead => 3 * self.head + part,
            QkvOrder::SideBySide => [self.head, heads + key_head, heads + key_heads + key_head][part],
        };
        Some((at * dim, (at + 1) * dim))
    }
}
