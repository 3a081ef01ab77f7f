//! The way of one token through the model: what each stage of one block computes for it, by one head.

use gpt2_model::config::Activation;
use gpt2_model::hooks::{Point, Recorder};
use gpt2_model::{Block, Config};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The token to follow, and the head to follow it through. All indices count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FollowedToken {
    /// The block.
    pub layer: usize,
    /// The head of its attention.
    pub head: usize,
    /// The token's position; the last one if there is none, or the text is shorter.
    pub token: Option<usize>,
}

/// The way of a token.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenPath {
    /// Its position.
    pub token: usize,
    /// The MLP's activation function.
    pub activation: Activation,
    /// The stages, in the order of [`STAGES`].
    pub stages: Vec<Stage>,
}

/// The values that a stage computes for the token.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Stage {
    /// Its name: one of [`STAGES`].
    pub name: &'static str,
    /// The shape of the whole tensor, of all tokens.
    pub shape: Vec<usize>,
    /// Its name in TransformerLens.
    pub point: Option<String>,
    /// The token's part; of scores and weights, those of the tokens that it sees. The score of a link that is cut is -inf, which is
    /// null in JSON.
    pub values: Vec<f32>,
    /// The next tokens, in the stages that list them.
    pub tokens: Vec<String>,
    /// The chosen head's part of `values`, in the stage that has all heads'.
    pub own: Option<Range<usize>>,
    /// The columns of `c_attn` that compute the query, the key or the value.
    pub columns: Option<Range<usize>>,
    /// The factor of the products of queries and keys, in the stage of scores.
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
pub(crate) struct LikelyTokens {
    /// With their logits.
    pub(crate) logits: Vec<(String, f32)>,
    /// With the probabilities to draw them with.
    pub(crate) probabilities: Vec<(String, f32)>,
    /// The number of tokens in the vocabulary.
    pub(crate) vocabulary: usize,
}

/// The part of a point's tensor that a stage shows.
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

impl FollowedToken {
    /// A recorder of the values that the stages show; it records nothing without a token to follow.
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

    /// The way through a block, from what `recorder` has read in a text of some tokens.
    pub(crate) fn path(
        &self,
        block: &Block,
        activation: Activation,
        recorder: &Recorder,
        tokens: usize,
        next: LikelyTokens,
    ) -> candle_core::Result<TokenPath> {
        let token = self.token(tokens);
        let [q, k, v] = block.attn.columns(self.head);
        let mut stages = vec![];
        for (name, point, part) in self.points() {
            let value = recorder.value(point)?.squeeze(0)?;
            let mut stage = Stage { name, shape: value.dims().to_vec(), ..Stage::default() };
            let row = match part {
                Part::Row => value.get(token)?,
                Part::Head => value.get(token)?.get(self.head.min(stage.shape[1] - 1))?,
                Part::Merged => value.get(token)?.flatten_all()?,
                Part::Map => value.get(self.head)?.get(token)?.narrow(0, 0, token + 1)?,
            };
            stage.values = row.to_vec1()?;
            stage.point = Some(point.to_string());
            if let Part::Merged = part {
                let [tokens, heads, dim] = stage.shape[..] else { candle_core::bail!("{point}: (T, H, D)") };
                (stage.shape, stage.point) = (vec![tokens, heads * dim], None);
                stage.own = Some(self.head * dim..(self.head + 1) * dim);
            }
            match name {
                "q" => stage.columns = Some(q.clone()),
                "k" => stage.columns = Some(k.clone()),
                "v" => stage.columns = Some(v.clone()),
                "scores" => stage.scale = Some(block.attn.scale()),
                _ => {}
            }
            stages.push(stage);
        }
        let ends = [(Some(Point::Logits.to_string()), next.logits), (None, next.probabilities)];
        for (name, (point, listed)) in STAGES[stages.len()..].iter().zip(ends) {
            let (tokens_of, values) = listed.into_iter().unzip();
            let shape = vec![tokens, next.vocabulary];
            stages.push(Stage { name, shape, point, values, tokens: tokens_of, ..Stage::default() });
        }
        Ok(TokenPath { token, activation, stages })
    }
}
