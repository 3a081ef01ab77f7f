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

impl dyn Group + '_ {
    /// Compares facts with those of rank 0. Every rank learns of the first difference.
    ///
    /// # Errors
    /// When a rank differs; the error names the rank, the fact and both values.
    pub fn agree(&self, facts: &[Fact]) -> Result<()> {
        for Fact { what, value, remedy } in facts {
            let values = self.gather_bytes(value.as_bytes())?;
            let text = |rank: usize| String::from_utf8_lossy(&values[rank]).into_owned();
            if let Some(rank) = (1..values.len()).find(|rank| values[*rank] != values[0]) {
                return Err(Error::Differs {
                    rank,
                    what: what.clone(),
                    expected: text(0),
                    theirs: text(rank),
                    remedy: (*remedy).into(),
                });
            }
        }
        Ok(())
    }
}
