//! The options of circuits by weights.

use crate::texts::Answer;
use crate::words::Choices;
use gpt2_circuits::Composition;
use gpt2_model::hooks::Head;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// One head, or all.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// A head; without one, all heads and how they feed one another.
    pub head: Option<HeadName>,
    /// Tokens whose rows to list of one head instead of the largest entries.
    pub token: Vec<Answer>,
    /// The inputs of later heads to look at; all without any.
    pub composition: Vec<HeadInput>,
    /// The number of entries to list of one head.
    pub top: usize,
    /// Whether to leave out, of one head, tokens that training hardly saw.
    pub seen_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { head: None, token: vec![], composition: vec![], top: 10, seen_only: false }
    }
}

/// A head, as `LAYER.HEAD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HeadName(pub Head);

impl FromStr for HeadName {
    type Err = <Head as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl TryFrom<String> for HeadName {
    type Error = <Head as FromStr>::Err;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<HeadName> for String {
    fn from(HeadName(head): HeadName) -> Self {
        head.to_string()
    }
}

/// The input of a head that an earlier one feeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeadInput {
    /// Its queries.
    Q,
    /// Its keys.
    K,
    /// Its values.
    V,
}

/// Inputs of heads by name.
pub const HEAD_INPUTS: &Choices<HeadInput> = &[("q", HeadInput::Q), ("k", HeadInput::K), ("v", HeadInput::V)];

impl HeadInput {
    pub(super) fn composition(self) -> Composition {
        match self {
            Self::Q => Composition::Q,
            Self::K => Composition::K,
            Self::V => Composition::V,
        }
    }
}

/// `None` for the NaN of a head whose values are 0.
pub(super) fn known(score: f64) -> Option<f64> {
    Some(score).filter(|score| !score.is_nan())
}
