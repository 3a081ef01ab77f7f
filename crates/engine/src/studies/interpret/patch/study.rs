//! Patching as a study: of one pair, or of many.

use super::agreement::agreement;
use super::many::PairsReport;
use super::one::PairReport;
use super::options::Options;
use crate::studies::interpret::measure::measured;
use crate::studies::study::{Outcome, Run, Study};
use anyhow::bail;
use serde::Serialize;

/// The shares of one pair, or their means over many.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Report {
    /// Of a pair by itself.
    One(Box<PairReport>),
    /// Of several pairs, or those of a file.
    Many(Box<PairsReport>),
}

impl Study for Options {
    const NAME: &'static str = "patch";
    // Streams are patched, too, and within a circuit no part reads one as a whole.
    const REFUSES: &'static [&'static str] = &["circuit"];
    type Report = Report;

    fn run(&self, run: &Run) -> anyhow::Result<Outcome<Report>> {
        let measured = measured(run, &self.pairs, self.metric, &self.positions)?;
        match (self.pairs.one(), &measured.pairs[..]) {
            (Some(texts), [pair]) => {
                let Outcome { report, tensors } = self.one(run, texts, pair, &measured)?;
                self.warn(run, report.heads.len(), report.correlation);
                Ok(Outcome { report: Report::One(Box::new(report)), tensors })
            }
            _ if self.by_position => {
                let option = run.opened.spelling.switch("by-position");
                bail!("{option}: positions of several pairs do not correspond; give one pair")
            }
            _ => {
                let report = self.many(run, measured)?;
                self.warn(run, report.heads.len(), report.correlation);
                Ok(Outcome::new(Report::Many(Box::new(report))))
            }
        }
    }
}

impl Options {
    /// Tells the reader of all numbers when the estimates mislead; the reader of a summary sees it among the results.
    fn warn(&self, run: &Run, heads: usize, correlation: Option<f64>) {
        let agreement = agreement(heads, correlation).filter(|text| text.starts_with("warning"));
        agreement.filter(|_| !self.summary).iter().for_each(|text| run.observer.note(text));
    }
}
