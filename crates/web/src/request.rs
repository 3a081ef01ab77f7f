//! A page's request to a model, and the answer.

use crate::token_path::{FollowedToken, TokenPath};
use gpt2_model::Sampling;
use serde::{Deserialize, Serialize};

/// A page's request: a text, and what to compute for it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PageRequest {
    /// The text, unless `ids` are given.
    pub text: String,
    /// The tokens of a text that the model continued, which its letters may not give back.
    pub ids: Vec<u32>,
    /// The number of tokens that are the prompt, from 1 to all of them; `None` if the model drew none.
    pub prompt: Option<usize>,
    /// Interventions, as on the command line without dashes: `ablate 0.3`, `block 3:1`.
    pub changes: Vec<String>,
    /// Whether to compare the run under interventions with the plain one.
    pub compare: bool,
    /// The settings to draw the next token with.
    pub draw: DrawSettings,
    /// The token whose way through the model is wanted.
    pub along: Option<FollowedToken>,
}

/// The settings to draw the next token with: see [`Sampling`]. The defaults are those of `gpt2 generate`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DrawSettings {
    /// Divides the logits, at least 0; 0 always takes the most probable token.
    pub temperature: f64,
    /// Keeps the k most probable tokens, at least 1.
    pub top_k: Option<usize>,
    /// Keeps the fewest tokens whose probabilities sum to p, above 0 and at most 1.
    pub top_p: Option<f64>,
    /// The seed: the same one draws the same text.
    pub seed: u64,
}

impl Default for DrawSettings {
    fn default() -> Self {
        let Sampling { temperature, top_p, seed, .. } = Sampling::default();
        Self { temperature, top_k: Some(40), top_p, seed }
    }
}

/// The answer to a page's request.
#[derive(Debug, Clone, Serialize)]
pub struct PageAnswer {
    /// The text's tokens.
    pub ids: Vec<u32>,
    /// The text: as it was given, or that of `ids`.
    pub text: String,
    /// Whether its last token is the end of a text.
    pub ends: bool,
    /// The characters that the vocabulary cannot spell, if there are any.
    pub left_out: Option<String>,
    /// The next token; none where the context is full.
    pub next: Option<Next>,
    /// The effect of the changes on the prediction after the text, if the plain run is compared.
    pub effect: Option<Effect>,
    /// The way of the requested token.
    pub way: Option<TokenPath>,
    /// The data for the page: a line for each block, as [`gpt2_view::PageWriter::data`] writes it.
    #[serde(skip)]
    pub page: String,
}

/// The effect of changes on a prediction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Effect {
    /// The token that the plain run finds most probable, as [`Next::token`].
    pub token: String,
    /// Its probability in the plain run.
    pub plain: f32,
    /// Its probability under the changes.
    pub changed: f32,
}

/// The next token, and what it was drawn from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Next {
    /// Its id.
    pub id: u32,
    /// Its text in a form that shows all of it: [`gpt2_view::visible_token`].
    pub token: String,
    /// The probability to draw it with.
    pub p: f64,
    /// Whether the text ends with it.
    pub is_end: bool,
    /// The most probable of the tokens that it was drawn from, and their probabilities among these.
    pub from: Vec<(String, f64)>,
    /// Its place in that list; none if it is not among the most probable.
    pub place: Option<usize>,
    /// The number of tokens it was drawn from.
    pub count: usize,
}

impl DrawSettings {
    pub(crate) fn sampling(self) -> anyhow::Result<Sampling> {
        let Self { temperature, top_k, top_p, seed } = self;
        let sampling = Sampling { temperature, top_k, top_p, seed, ..Sampling::default() };
        sampling.validate()?;
        Ok(sampling)
    }
}
