//! Heads and interventions as text, parsed and printed in the same form: `5.1`, `scale 3.2=0.5`, `block 3.2/7:4`.

use super::hook::KnockOut;
use super::interventions::{Head, Intervention};
use std::fmt;
use std::str::FromStr;

/// The text is not a head or an intervention; the error says which form was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError(&'static str);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.0)
    }
}

impl std::error::Error for ParseError {}

const HEAD: ParseError = ParseError("LAYER.HEAD, such as 5.1");
const SCALE: ParseError = ParseError("LAYER.HEAD=FACTOR, such as 3.2=0.5");
const BLOCK: ParseError =
    ParseError("QUERY:KEY, such as 7:4, 3/7:4 in layer 3, 3.2/7:4 in its head 2, or *.2/7:4 in every head 2");
const KIND: ParseError = ParseError("ablate, mean-ablate, scale or block, then its value");

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.layer, self.head)
    }
}

impl FromStr for Head {
    type Err = ParseError;

    /// `LAYER.HEAD`, both counted from 0.
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let parts = s.split_once('.').and_then(|(layer, head)| Some((index(layer)?, index(head)?)));
        let (layer, head) = parts.ok_or(HEAD)?;
        Ok(Self { layer, head })
    }
}

/// `ablate 5.1`, `mean-ablate 5.1`, `scale 3.2=0.5` and `block 3.2/7:4`, which [`Intervention`]'s `FromStr` parses;
/// also `replace 5.1` and `patch 5.1`, which cannot be parsed because text cannot hold their tensors.
impl fmt::Display for Intervention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroAblate(head) => write!(f, "ablate {head}"),
            Self::MeanAblate(head) => write!(f, "mean-ablate {head}"),
            Self::Replace(head, _) => write!(f, "replace {head}"),
            Self::Scale(head, factor) => write!(f, "scale {head}={factor}"),
            Self::Patch(head, _) => write!(f, "patch {head}"),
            Self::KnockOut(layer, KnockOut { head, query, key }) => {
                f.write_str("block ")?;
                match (layer, head) {
                    (None, None) => {}
                    (Some(layer), None) => write!(f, "{layer}/")?,
                    (Some(layer), Some(head)) => write!(f, "{layer}.{head}/")?,
                    (None, Some(head)) => write!(f, "*.{head}/")?,
                }
                write!(f, "{query}:{key}")
            }
        }
    }
}

impl FromStr for Intervention {
    type Err = ParseError;

    /// `ablate L.H`, `mean-ablate L.H`, `scale L.H=FACTOR`, or `block QUERY:KEY`, `block L/QUERY:KEY`,
    /// `block L.H/QUERY:KEY`, `block *.H/QUERY:KEY` for one head in every layer.
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let (what, value) = s.split_once(' ').unwrap_or((s, ""));
        match what {
            "ablate" => Ok(Self::ZeroAblate(value.parse()?)),
            "mean-ablate" => Ok(Self::MeanAblate(value.parse()?)),
            "scale" => scale(value).ok_or(SCALE),
            "block" => block(value).ok_or(BLOCK),
            _ => Err(KIND),
        }
    }
}

/// `3.2=0.5`
fn scale(s: &str) -> Option<Intervention> {
    let (head, factor) = s.split_once('=')?;
    let factor = factor.trim().parse().ok().filter(|x: &f64| x.is_finite())?;
    Some(Intervention::Scale(head.parse().ok()?, factor))
}

/// `7:4`, `3/7:4`, `3.2/7:4` or `*.2/7:4`
fn block(s: &str) -> Option<Intervention> {
    let (place, pair) = match s.split_once('/') {
        Some((place, pair)) => (Some(place), pair),
        None => (None, s),
    };
    let (layer, head) = match place.map(|place| (place, place.split_once('.'))) {
        None => (None, None),
        Some((_, Some((layer, head)))) => {
            let layer = if layer.trim() == "*" { None } else { Some(index(layer)?) };
            (layer, Some(index(head)?))
        }
        Some((layer, None)) => (Some(index(layer)?), None),
    };
    let (query, key) = pair.split_once(':')?;
    Some(Intervention::KnockOut(layer, KnockOut { head, query: index(query)?, key: index(key)? }))
}

fn index(s: &str) -> Option<usize> {
    s.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() -> Result<(), ParseError> {
        for text in [
            "ablate 0.1",
            "mean-ablate 11.0",
            "scale 1.2=0.5",
            "scale 1.2=-3",
            "block 7:4",
            "block 3/7:4",
            "block 3.2/7:4",
            "block *.2/7:4",
        ] {
            assert_eq!(text.parse::<Intervention>()?.to_string(), text);
        }
        let block: Intervention = "block 3.2/7:4".parse()?;
        let expected = KnockOut { head: Some(2), query: 7, key: 4 };
        assert!(matches!(block, Intervention::KnockOut(Some(3), pair) if pair == expected), "{block:?}");
        Ok(())
    }

    #[test]
    fn what_is_no_intervention_is_refused_with_the_form_that_is_expected() {
        for (text, expected) in [
            ("", "expected ablate"),
            ("ablate", "LAYER.HEAD"),
            ("ablate 1", "LAYER.HEAD"),
            ("ablate 1.2.3", "LAYER.HEAD"),
            ("ablate -1.2", "LAYER.HEAD"),
            ("scale 1.2", "LAYER.HEAD=FACTOR"),
            ("scale 1.2=nan", "LAYER.HEAD=FACTOR"),
            ("scale 1.2=1e999", "LAYER.HEAD=FACTOR"),
            ("block 7", "QUERY:KEY"),
            ("block 1.2.3/7:4", "QUERY:KEY"),
            ("block */7:4", "QUERY:KEY"),
            ("block 7:99999999999999999999", "QUERY:KEY"),
        ] {
            let message = text.parse::<Intervention>().err().map(|e| e.to_string()).unwrap_or_default();
            assert!(message.contains(expected), "{text:?}: {message:?}");
        }
    }
}
