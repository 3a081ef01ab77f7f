//! What the weights of heads do by token, and how heads feed one another (Elhage et al. 2021).

mod one_head;
mod overview;

use super::run::{Outcome, Run, Study};
use crate::interventions::ALL_INTERVENTIONS;
use crate::texts::Answer;
use crate::words::Choices;
use anyhow::bail;
use gpt2_circuits::{Circuits, Composition};
use gpt2_model::hooks::Head;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

pub use one_head::{Direction, LinkTokens, OneHead, TokenLink};
pub use overview::{ComposedHeads, CopyingHead, Overview};

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
    /// How many entries to list of one head.
    pub top: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { head: None, token: vec![], composition: vec![], top: 10 }
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
    fn composition(self) -> Composition {
        match self {
            Self::Q => Composition::Q,
            Self::K => Composition::K,
            Self::V => Composition::V,
        }
    }
}

/// All heads, or one.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Report {
    /// Of all heads.
    All(Box<Overview>),
    /// Of one head.
    One(Box<OneHead>),
}

/// `None` for the NaN of a head whose values are 0.
fn known(score: f64) -> Option<f64> {
    Some(score).filter(|score| !score.is_nan())
}

impl Study for Options {
    const NAME: &'static str = "circuits";
    // It reads weights alone: nothing runs.
    const REFUSES: &'static [&'static str] = ALL_INTERVENTIONS;
    type Report = Report;

    /// Of all heads, the tensors `q`, `k` and `v` hold the compositions (L, H, L, H). Of one, `qk` and `ov` hold its tables of the
    /// tokens that the report names: see [`LinkTokens`].
    fn run(&self, run: &Run) -> anyhow::Result<Outcome<Report>> {
        let option = |name| run.opened.spelling.option(name);
        match self.head {
            None if !self.token.is_empty() => bail!("{}: give a head, too", option("token")),
            Some(_) if !self.composition.is_empty() => {
                bail!("{}: is for all heads; leave the head out", option("composition"))
            }
            _ => {}
        }
        let circuits = Circuits::new(&run.opened.model)?;
        match self.head {
            None => self.overview(run, &circuits),
            Some(HeadName(head)) => self.one_head(run, &circuits, head),
        }
    }
}
