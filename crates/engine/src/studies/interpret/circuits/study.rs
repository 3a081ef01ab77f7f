//! Circuits by weights as a study: of all heads, or of one.

use super::one_head::OneHead;
use super::options::{HeadName, Options};
use super::overview::Overview;
use crate::interventions::ALL_INTERVENTIONS;
use crate::studies::study::{Outcome, Run, Study};
use anyhow::bail;
use gpt2_circuits::Circuits;
use serde::Serialize;

/// All heads, or one.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Report {
    /// Of all heads.
    All(Box<Overview>),
    /// Of one head.
    One(Box<OneHead>),
}

impl Study for Options {
    const NAME: &'static str = "circuits";
    // It reads weights alone: nothing runs.
    const REFUSES: &'static [&'static str] = ALL_INTERVENTIONS;
    type Report = Report;

    /// Of all heads, the tensors `q`, `k` and `v` hold the compositions (L, H, L, H). Of one, `qk` and `ov` hold its tables of the
    /// tokens that the report names: see [`LinkTokens`](super::LinkTokens).
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
            None => {
                let Outcome { report, tensors } = self.overview(run, &circuits)?;
                Ok(Outcome { report: Report::All(Box::new(report)), tensors })
            }
            Some(HeadName(head)) => {
                let Outcome { report, tensors } = self.one_head(run, &circuits, head)?;
                Ok(Outcome { report: Report::One(Box::new(report)), tensors })
            }
        }
    }
}
