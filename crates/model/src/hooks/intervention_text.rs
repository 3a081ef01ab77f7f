//! Heads, places and interventions as text, parsed and printed in the same form: `5.1`, `5.mlp`, `scale 3.2=0.5`,
//! `block 3.2/7:4`.

use super::features::{Activity, FeatureChange};
use super::hook::KnockOut;
use super::intervention::{Head, Intervention, Patch, Place};
use super::point::ParseError;
use std::fmt;
use std::str::FromStr;

const HEAD: ParseError = ParseError("LAYER.HEAD, such as 5.1");
const SCALE: ParseError = ParseError("LAYER.HEAD=FACTOR, such as 3.2=0.5");
const BLOCK: ParseError =
    ParseError("QUERY:KEY, such as 7:4, 3/7:4 in layer 3, 3.2/7:4 in its head 2, or *.2/7:4 in every head 2");
const TEMPERATURE: ParseError = ParseError("LAYER.HEAD=TEMPERATURE above 0, such as 3.2=0.5");
const PLACE: ParseError = ParseError(
    "LAYER.HEAD, LAYER for the residual stream before its block, LAYER.attn or LAYER.mlp, such as 5.1, 5, 5.attn or 5.mlp",
);
const KIND: ParseError = ParseError("ablate, mean-ablate, scale, temperature or block, then its value");

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

impl fmt::Display for Place {
    /// `5.1` for a head, `5` for the stream before block 5, `5.attn` and `5.mlp` for what its halves add.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(head) => head.fmt(f),
            Self::Stream(layer) => layer.fmt(f),
            Self::Attention(layer) => write!(f, "{layer}.attn"),
            Self::Mlp(layer) => write!(f, "{layer}.mlp"),
        }
    }
}

impl FromStr for Place {
    type Err = ParseError;

    /// `L.H`, `L`, `L.attn` or `L.mlp`
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let layer = |s| index(s).ok_or(PLACE);
        match s.split_once('.') {
            None => Ok(Self::Stream(layer(s)?)),
            Some((before, "attn")) => Ok(Self::Attention(layer(before)?)),
            Some((before, "mlp")) => Ok(Self::Mlp(layer(before)?)),
            Some(_) => Ok(Self::Head(s.parse().map_err(|_| PLACE)?)),
        }
    }
}

/// `ablate 5.1`, `mean-ablate 5.1`, `scale 3.2=0.5`, `temperature 3.2=0.5` and `block 3.2/7:4`, which [`Intervention`]'s
/// `FromStr` parses; also `replace 5.1`, `patch 5.1@3`, `add 5@3` and names of hooks, which cannot be parsed because text cannot hold their
/// tensors.
impl fmt::Display for Intervention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroAblate(head) => write!(f, "ablate {head}"),
            Self::MeanAblate(head) => write!(f, "mean-ablate {head}"),
            Self::Replace(head, _) => write!(f, "replace {head}"),
            Self::Scale(head, factor) => write!(f, "scale {head}={factor}"),
            Self::Temperature(head, temperature) => write!(f, "temperature {head}={temperature}"),
            Self::Patch(Patch { place, position, .. }) => {
                write!(f, "patch {place}")?;
                position.map_or(Ok(()), |position| write!(f, "@{position}"))
            }
            Self::Add { layer, position, .. } => {
                write!(f, "add {layer}")?;
                position.map_or(Ok(()), |position| write!(f, "@{position}"))
            }
            Self::Feature(FeatureChange { site, feature, to, position }) => {
                let point = site.hook();
                let at = position.map_or_else(String::new, |position| format!("@{position}"));
                match to {
                    Activity::Times(0.0) => write!(f, "ablate-feature {feature}{at} of {point}"),
                    Activity::Times(factor) => write!(f, "scale-feature {feature}{at}={factor} of {point}"),
                    Activity::Set(to) => write!(f, "set-feature {feature}{at}={to} of {point}"),
                }
            }
            Self::Custom(custom) => f.write_str(&custom.name),
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

    /// `ablate L.H`, `mean-ablate L.H`, `scale L.H=FACTOR`, `temperature L.H=T`, or `block QUERY:KEY`, `block L/QUERY:KEY`,
    /// `block L.H/QUERY:KEY`, `block *.H/QUERY:KEY` for one head in every layer.
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let (what, value) = s.split_once(' ').unwrap_or((s, ""));
        match what {
            "ablate" => Ok(Self::ZeroAblate(value.parse()?)),
            "mean-ablate" => Ok(Self::MeanAblate(value.parse()?)),
            "scale" => {
                let (head, factor) = head_and_number(value).ok_or(SCALE)?;
                Ok(Self::Scale(head, factor))
            }
            "temperature" => {
                let (head, t) = head_and_number(value).filter(|(_, t)| *t > 0.0).ok_or(TEMPERATURE)?;
                Ok(Self::Temperature(head, t))
            }
            "block" => block(value).ok_or(BLOCK),
            _ => Err(KIND),
        }
    }
}

/// `3.2=0.5`
fn head_and_number(s: &str) -> Option<(Head, f64)> {
    let (head, number) = s.split_once('=')?;
    let number = number.trim().parse().ok().filter(|x: &f64| x.is_finite())?;
    Some((head.parse().ok()?, number))
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
            "temperature 1.2=0.25",
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
    fn places_are_heads_streams_and_what_their_halves_add() -> Result<(), ParseError> {
        for text in ["5.1", "5", "5.attn", "0.mlp"] {
            assert_eq!(text.parse::<Place>()?.to_string(), text);
        }
        for text in ["", "5.", ".1", "5.1.2", "5.attention", "-1", "mlp"] {
            let message = text.parse::<Place>().expect_err("no place").to_string();
            assert!(message.contains("5.mlp"), "{text:?}: {message}");
        }
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
            ("temperature 1.2=0", "above 0"),
            ("temperature 1.2=-1", "above 0"),
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
