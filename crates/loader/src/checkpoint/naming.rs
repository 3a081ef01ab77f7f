//! The model's names for a file's tensors: which of several dictionaries holds them, and the prefix that a wrapper put before them.

use crate::stored::names::without_prefix;
use crate::stored::{Stored, TensorInfo};
use gpt2_model::parameters::{PREFIX, Parameter};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The keys under which programs save a model's weights, the likeliest first.
const KEYS: [&str; 5] = ["", "state_dict", "model_state_dict", "model", "module"];

/// Tensors under the model's names.
#[derive(Debug, Default)]
pub(super) struct NamedTensors {
    pub(super) tensors: BTreeMap<String, Stored>,
    /// Tensors whose name another one has, too.
    pub(super) duplicates: Vec<TensorInfo>,
    /// The keys that lead to the dictionary in a pickle; empty for the outermost.
    pub(super) key: String,
    /// The keys of other dictionaries that hold as much of the model.
    pub(super) other_keys: Vec<String>,
    /// The prefix before all names of the model's, beside [`PREFIX`]; empty for none.
    pub(super) wrapper: String,
}

impl NamedTensors {
    /// Tensors whose names are the model's already.
    pub(super) fn already(tensors: Vec<(String, Stored)>) -> Self {
        let mut named = Self::default();
        for (name, tensor) in tensors {
            named.add(name, tensor);
        }
        named
    }

    fn add(&mut self, name: String, tensor: Stored) {
        if let Some(twin) = self.tensors.insert(name, tensor) {
            self.duplicates.push(twin.info);
        }
    }
}

/// The number of of the model's parameters a dictionary holds under a prefix: by name and size, and by name.
type Score = (usize, usize);

/// Finds the model among dictionaries of tensors.
///
/// # Errors
/// The prefixes, or the keys, of several models that fit equally well.
pub(super) fn find(
    dicts: Vec<(String, Vec<Stored>)>,
    parameters: &[Parameter],
) -> Result<NamedTensors, Vec<String>> {
    let by_name: BTreeMap<&str, &Parameter> = parameters.iter().map(|p| (p.name.as_str(), p)).collect();
    let mut best: Option<(Score, Reverse<usize>, usize, Vec<String>)> = None;
    let mut scores = vec![];
    for (place, (key, tensors)) in dicts.iter().enumerate() {
        let (score, wrappers) = wrappers(tensors, &by_name);
        scores.push((score, key.clone()));
        let rank = Reverse(rank_of(key));
        if best.as_ref().is_none_or(|(most, first, ..)| (score, rank) > (*most, *first)) {
            best = Some((score, rank, place, wrappers));
        }
    }
    let Some((most, _, place, wrappers)) = best else { return Ok(NamedTensors::default()) };
    if wrappers.len() > 1 {
        return Err(wrappers);
    }
    let Some((key, tensors)) = dicts.into_iter().nth(place) else { return Ok(NamedTensors::default()) };
    let is_whole = 2 * most.1 > parameters.len(); // a few names that fit are chance
    let is_other = |(score, other): &(Score, String)| is_whole && *score == most && *other != key;
    let other_keys: Vec<String> = scores.into_iter().filter(is_other).map(|(_, key)| key).collect();
    // Of keys that no program is known to use for the one model, none is likelier.
    if rank_of(&key) == KEYS.len() && !other_keys.is_empty() {
        return Err([vec![key], other_keys].concat());
    }
    let wrapper = wrappers.into_iter().next().unwrap_or_default();
    let mut named = NamedTensors { key, other_keys, wrapper: wrapper.clone(), ..NamedTensors::default() };
    let (inside, outside): (Vec<_>, Vec<_>) =
        tensors.into_iter().partition(|tensor| tensor.info.name.starts_with(&wrapper));
    for tensor in inside {
        named.add(without_prefix(&tensor.info.name[wrapper.len()..]).to_string(), tensor);
    }
    for tensor in outside {
        // As `lm_head.weight` beside `gpt2.wte.weight`; one that is inside as well is another model's.
        let name = without_prefix(&tensor.info.name);
        let name =
            if named.tensors.contains_key(name) { format!("beside {wrapper}: {name}") } else { name.into() };
        named.add(name, tensor);
    }
    Ok(named)
}

/// The place of a key in [`KEYS`]; their number for any other.
fn rank_of(key: &str) -> usize {
    KEYS.iter().position(|known| *known == key).unwrap_or(KEYS.len())
}

/// The prefix under which the most parameters are found; several if as many of them are found under each.
fn wrappers(tensors: &[Stored], parameters: &BTreeMap<&str, &Parameter>) -> (Score, Vec<String>) {
    let mut scores: BTreeMap<&str, Score> = BTreeMap::new();
    for tensor in tensors {
        let name = tensor.info.name.as_str();
        let starts = [0].into_iter().chain(name.match_indices('.').map(|(at, _)| at + 1));
        for start in starts {
            let (before, rest) = name.split_at(start);
            let Some(parameter) = parameters.get(rest) else { continue };
            // The prefix of a head's model is not a wrapper's.
            let whole =
                before == PREFIX || before.strip_suffix(PREFIX).is_some_and(|more| more.ends_with('.'));
            let wrapper = if whole { &before[..before.len() - PREFIX.len()] } else { before };
            let score = scores.entry(wrapper).or_default();
            score.0 += usize::from(is_as_large(&tensor.info.shape, &parameter.shape));
            score.1 += 1;
        }
    }
    let most = scores.values().copied().max().unwrap_or_default();
    let found: Vec<String> =
        scores.into_iter().filter(|(_, score)| *score == most).map(|(name, _)| name.to_string()).collect();
    // A few names that fit are chance; then the names are what they are.
    match &found[..] {
        // transformers' own names before any wrapper's.
        [first, _, ..] if first.is_empty() => (most, vec![String::new()]),
        [_, _, ..] if 2 * most.1 > parameters.len() => (most, found),
        [one] if most.1 > 1 || one.is_empty() => (most, found),
        _ => (most, vec![String::new()]),
    }
}

/// Whether a shape is the expected one, or its transpose.
fn is_as_large(shape: &[usize], expected: &[usize]) -> bool {
    shape == expected || shape.iter().rev().eq(expected)
}
