//! All studies, by name.

use super::interpret::{attention, circuits, discover, features, graph, heads, lens, pairs, patch};
use super::predict::{eval, forward, generate};
use super::study::{Outcome, Run, Study};
use crate::interventions::InterventionOptions;
use crate::spelling::Spelling;
use anyhow::{Context, anyhow, bail};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

/// All studies, in the order of the command's help.
pub const STUDIES: &[Entry] = &[
    Entry::of::<attention::Options>(),
    Entry::of::<attention::EffectOptions>(),
    Entry::of::<attention::RolloutOptions>(),
    Entry::of::<forward::Options>(),
    Entry::of::<generate::Options>(),
    Entry::of::<eval::Options>(),
    Entry::of::<lens::Options>(),
    Entry::of::<heads::Options>(),
    Entry::of::<patch::Options>(),
    Entry::of::<patch::PathOptions>(),
    Entry::of::<discover::Options>(),
    Entry::of::<discover::EdgeScoreOptions>(),
    Entry::of::<pairs::Options>(),
    Entry::of::<circuits::Options>(),
    Entry::of::<features::Options>(),
    Entry::of::<features::StoreOptions>(),
    Entry::of::<graph::Options>(),
];

/// Both faces' names of what takes interventions, and the interventions that it refuses.
const TAKERS: &[(&str, &[&str])] = &[
    (forward::Options::NAME, forward::Options::REFUSES),
    (attention::Options::NAME, attention::Options::REFUSES),
    (lens::Options::NAME, lens::Options::REFUSES),
    (patch::Options::NAME, patch::Options::REFUSES),
    (heads::Options::NAME, heads::Options::REFUSES),
    (generate::Options::NAME, generate::Options::REFUSES),
    (discover::Options::NAME, discover::Options::REFUSES),
    (features::Options::NAME, features::Options::REFUSES),
    (eval::Options::NAME, eval::Options::REFUSES),
    ("score", &[]),
    ("record", &[]),
];

/// Refuses interventions that have no meaning in a study.
///
/// # Errors
/// When one of the study's [`Study::REFUSES`] was given.
pub fn check_interventions<S: Study>(
    options: &InterventionOptions,
    spelling: Spelling,
) -> anyhow::Result<()> {
    let given = options.given();
    let Some(refused) = given.iter().find(|option| S::REFUSES.contains(option)) else { return Ok(()) };
    bail!("{}: is not for {}; it works in {}", spelling.option(refused), S::NAME, takers(refused))
}

/// The names of what takes an intervention, such as `forward, attention and score`.
#[must_use]
pub fn takers(intervention: &str) -> String {
    let names: Vec<&str> = TAKERS
        .iter()
        .filter(|(_, refuses)| !refuses.contains(&intervention))
        .map(|(name, _)| *name)
        .collect();
    match &names[..] {
        [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// A study whose types are not known: its options are a JSON object, its report is a JSON text.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The study's name.
    pub name: &'static str,
    /// The interventions that it refuses.
    pub refuses: &'static [&'static str],
    defaults: fn() -> anyhow::Result<Value>,
    run: fn(&Run, Value) -> anyhow::Result<Outcome<String>>,
}

impl Entry {
    /// The entry of a study.
    #[must_use]
    pub const fn of<S: Study>() -> Self {
        Self { name: S::NAME, refuses: S::REFUSES, defaults: defaults::<S>, run: run::<S> }
    }

    /// The entry of the study of this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(name: &str) -> anyhow::Result<&'static Self> {
        STUDIES.iter().find(|entry| entry.name == name).with_context(|| format!("no study {name:?}"))
    }

    /// All options with their defaults, as an object.
    ///
    /// # Errors
    /// When a default is no JSON.
    pub fn defaults(&self) -> anyhow::Result<Value> {
        (self.defaults)()
    }

    /// Runs the study with options from an object; those that it lacks have their defaults.
    ///
    /// # Errors
    /// When an option is unknown or of another type, and as for [`Study::run`].
    pub fn run(&self, run: &Run, options: Value) -> anyhow::Result<Outcome<String>> {
        (self.run)(run, options)
    }
}

fn defaults<S: Study>() -> anyhow::Result<Value> {
    Ok(serde_json::to_value(S::default())?)
}

/// Reads options; an error names the one that is wrong.
///
/// # Errors
/// When one is unknown or of another type.
pub fn named<T: DeserializeOwned>(options: Value) -> anyhow::Result<T> {
    serde_path_to_error::deserialize(options).map_err(|error| match error.path().iter().next() {
        Some(Segment::Map { .. }) => anyhow!("{}: {}", error.path(), error.inner()),
        _ => anyhow!("{}", error.inner()),
    })
}

fn run<S: Study>(run: &Run, options: Value) -> anyhow::Result<Outcome<String>> {
    let options: S = named(options).with_context(|| format!("the options of {}", S::NAME))?;
    check_interventions::<S>(run.interventions.options(), run.opened.spelling)?;
    let Outcome { report, tensors } = options.run(run)?;
    // A text, since serde_json's values would widen f32: 0.1 would become 0.10000000149011612.
    Ok(Outcome { report: serde_json::to_string(&report)?, tensors })
}
