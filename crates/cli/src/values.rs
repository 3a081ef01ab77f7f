//! Values on the command line that clap cannot parse by itself, counts in words, and heads' numbers.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use gpt2_model::Config;
use gpt2_model::hooks::Head;

/// Parses one of a few names.
pub(crate) fn one_of<T: Copy + Send + Sync>(
    choices: &'static [(&str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(choices.iter().map(|(name, _)| *name)).try_map(|text| {
        let is_named = |name: &str| name.eq_ignore_ascii_case(&text);
        choices.iter().find(|(name, _)| is_named(name)).map(|(_, value)| *value).ok_or("not one of the names")
    })
}

fn number(s: &str, fits: impl Fn(f64) -> bool, expected: &str) -> Result<f64, String> {
    s.parse().ok().filter(|x| fits(*x)).ok_or_else(|| format!("expected {expected}"))
}

pub(crate) fn at_least_0(s: &str) -> Result<f64, String> {
    number(s, |x| x >= 0.0 && x.is_finite(), "a finite number of at least 0")
}

pub(crate) fn above_0(s: &str) -> Result<f64, String> {
    number(s, |x| x > 0.0 && x.is_finite(), "a finite number above 0")
}

pub(crate) fn fraction(s: &str) -> Result<f64, String> {
    number(s, |x| x > 0.0 && x < 1.0, "a number between 0 and 1")
}

pub(crate) fn below_1(s: &str) -> Result<f64, String> {
    number(s, |x| (0.0..1.0).contains(&x), "a number of at least 0 and below 1")
}

pub(crate) fn part(s: &str) -> Result<f64, String> {
    number(s, |x| x > 0.0 && x <= 1.0, "a number above 0 and at most 1")
}

pub(crate) fn share(s: &str) -> Result<f64, String> {
    number(s, |x| (0.0..=1.0).contains(&x), "a number from 0 to 1")
}

/// The time that some tokens took: `0.85 s, 35.3 tokens/s`, or only milliseconds below a tenth of a second.
pub(crate) fn pace(tokens: usize, seconds: f64) -> String {
    if seconds < 0.1 {
        return format!("{:.1} ms", 1e3 * seconds);
    }
    format!("{seconds:.2} s, {:.1} tokens/s", tokens as f64 / seconds)
}

/// `3` or `0-3`, including both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexRange {
    pub(crate) first: usize,
    pub(crate) last: usize,
}

impl std::str::FromStr for IndexRange {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let number = |s: &str| {
            s.trim().parse::<usize>().map_err(|_| format!("`{s}` is not a number; expected N or N-M"))
        };
        let (first, last) = match s.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(s)?, number(s)?),
        };
        if first > last {
            return Err(format!("the range {s} is backwards"));
        }
        Ok(Self { first, last })
    }
}

/// The indices below `count` that `ranges` name, in order and once each; all of them if there is no range.
pub(crate) fn select(what: &str, ranges: &[IndexRange], count: usize) -> anyhow::Result<Vec<usize>> {
    if ranges.is_empty() {
        return Ok((0..count).collect());
    }
    if let Some(range) = ranges.iter().find(|r| r.last >= count) {
        anyhow::bail!("there is no {what} {}: this model's {what}s are 0 to {}", range.last, count - 1);
    }
    Ok((0..count).filter(|&i| ranges.iter().any(|r| (r.first..=r.last).contains(&i))).collect())
}

/// `3` or `0-3` in each chosen layer, or `2.3`, a head with its layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadRange {
    InEach(IndexRange),
    Named(Head),
}

impl std::str::FromStr for HeadRange {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if !s.contains('.') {
            return s.parse().map(Self::InEach);
        }
        let expected = || format!("`{s}` is not a head; expected H, H-H or LAYER.HEAD, such as 3.0");
        s.parse().map(Self::Named).map_err(|_| expected())
    }
}

/// The chosen layers and the chosen heads of each; all of them if nothing is chosen.
pub(crate) fn select_heads(
    layers: &[IndexRange],
    heads: &[HeadRange],
    config: &Config,
) -> anyhow::Result<(Vec<usize>, Vec<usize>)> {
    let mut in_each = vec![];
    let mut named = vec![];
    for range in heads {
        match range {
            HeadRange::InEach(range) => in_each.push(*range),
            HeadRange::Named(head) => named.push((head.layer, head.head)),
        }
    }
    let Some((layer, head)) = named.first() else {
        return Ok((select("layer", layers, config.n_layer)?, select("head", &in_each, config.n_head)?));
    };
    if !(layers.is_empty() && in_each.is_empty()) {
        anyhow::bail!(
            "--head {layer}.{head}: this already names a layer: drop --layer, and write every other head as LAYER.HEAD"
        );
    }
    named.sort_unstable();
    named.dedup();
    let only = |index: usize| IndexRange { first: index, last: index };
    let of_layers: Vec<_> = named.iter().map(|(layer, _)| only(*layer)).collect();
    let of_heads: Vec<_> = named.iter().map(|(_, head)| only(*head)).collect();
    let chosen = (select("layer", &of_layers, config.n_layer)?, select("head", &of_heads, config.n_head)?);
    if chosen.0.len() * chosen.1.len() != named.len() {
        let names: Vec<String> = named.iter().map(|(layer, head)| format!("{layer}.{head}")).collect();
        anyhow::bail!(
            "--head {}: each layer shows the same heads; choose heads of one layer, or the same of several (--layer 1,3 --head 0,2 \
             is four heads)",
            names.join(",")
        );
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_milliseconds_alone_below_a_tenth_of_a_second() {
        assert_eq!(pace(20, 0.05), "50.0 ms");
        assert_eq!(pace(20, 0.1), "0.10 s, 200.0 tokens/s");
        assert_eq!(pace(20, 2.0), "2.00 s, 10.0 tokens/s");
    }
}
