//! A head and two positions by their text.

use gpt2_model::hooks::{Head, Intervention, KnockOut};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A head and two positions: `L.H/QUERY:KEY`, as in `3.2/7:4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HeadPair {
    /// The head.
    pub head: Head,
    /// The position that attends.
    pub query: usize,
    /// The position that is attended to.
    pub key: usize,
}

impl FromStr for HeadPair {
    type Err = String;

    /// Parses `L.H/QUERY:KEY`, as `block` takes it for one head.
    fn from_str(s: &str) -> Result<Self, String> {
        let parsed = format!("block {s}").parse::<Intervention>();
        match parsed {
            Ok(Intervention::KnockOut(Some(layer), KnockOut { head: Some(head), query, key })) => {
                Ok(Self { head: Head { layer, head }, query, key })
            }
            _ => Err("expected LAYER.HEAD/QUERY:KEY, such as 3.2/7:4".into()),
        }
    }
}

impl TryFrom<String> for HeadPair {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for HeadPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { head, query, key } = self;
        write!(f, "{head}/{query}:{key}")
    }
}

impl From<HeadPair> for String {
    fn from(pair: HeadPair) -> Self {
        pair.to_string()
    }
}
