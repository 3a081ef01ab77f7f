//! Do all ranks do the same work?

use crate::error::{Error, Result};
use crate::group::Group;

/// Something that must be the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// What it is, such as "version of gpt2".
    pub what: String,
    /// Its value on this rank.
    pub value: String,
    /// What to do where ranks differ.
    pub remedy: &'static str,
}

/// Parts the names and values of facts in a message; both are text without control characters.
const SEPARATOR: &str = "\u{1e}";

impl dyn Group + '_ {
    /// Compares facts with those of rank 0. Every rank learns of the first difference.
    ///
    /// # Errors
    /// When a rank differs; the error names the rank, the fact and both values.
    pub fn agree(&self, facts: &[Fact]) -> Result<()> {
        let named =
            facts.iter().flat_map(|fact| [fact.what.as_str(), SEPARATOR, fact.value.as_str(), SEPARATOR]);
        let all = self.gather_bytes(named.collect::<String>().as_bytes())?;
        let all: Vec<String> = all.iter().map(|facts| String::from_utf8_lossy(facts).into_owned()).collect();
        let Some(rank) = (1..all.len()).find(|rank| all[*rank] != all[0]) else { return Ok(()) };
        let parts = |rank: usize| all[rank].split(SEPARATOR).collect::<Vec<_>>();
        let (first, theirs) = (parts(0), parts(rank));
        let differs = first.iter().zip(&theirs).position(|(a, b)| a != b);
        // Names stand at even places, values at odd ones. Without a differing value, one list is longer.
        let value = differs.filter(|at| at % 2 == 1);
        let of = |parts: &[&str]| {
            value.map_or_else(|| format!("{} facts", parts.len() / 2), |at| parts[at].to_owned())
        };
        let fact = value.and_then(|at| facts.iter().find(|fact| fact.what == first[at - 1]));
        Err(Error::Differs {
            rank,
            what: fact.map_or_else(|| "list of settings".into(), |fact| fact.what.clone()),
            expected: of(&first),
            theirs: of(&theirs),
            remedy: fact.map_or("run the same program on every rank", |fact| fact.remedy).into(),
        })
    }
}
