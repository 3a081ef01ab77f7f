//! The source of the values that a dictionary learns from.

use super::live::{LiveValues, Step};
use super::options::{Options, TrainingRun, ValueNames};
use crate::open::Opened;
use crate::spelling::Spelling;
use crate::studies::learn::record::Documents;
use anyhow::{Context, bail};
use candle_core::Tensor;
use gpt2_files::Store;
use gpt2_model::hooks::Point;

/// Sums of the squares of a batch's larger values may exceed f32.
const LARGEST: f64 = 1e15;

/// A store, or a model that reads a text.
pub enum TrainingValues<'a> {
    /// The values of a store, and the name of the one to learn from.
    Recorded {
        /// The store.
        store: Store,
        /// The value's name, and the name of the one that a transcoder predicts.
        names: ValueNames,
    },
    /// A model that reads a text.
    Live(LiveValues<'a>),
}

impl<'a> TrainingValues<'a> {
    /// Opens a store. `for_a_model` is an option about a model that was given, which is refused.
    ///
    /// # Errors
    /// When the store is damaged or lacks the value, or an option is for a text.
    pub fn recorded(
        options: &Options,
        for_a_model: Option<String>,
        spelling: Spelling,
    ) -> anyhow::Result<Self> {
        options.check_sizes(spelling)?;
        options.check_transcoder(spelling)?;
        let store = Store::open(&options.source)?;
        if let Some(option) = of_a_text(options, spelling).or(for_a_model) {
            let source = options.source.display();
            bail!("{option}: is for a text, and {source} has values already; leave it out");
        }
        let names = &store.index().values;
        let point = spelling.option("point");
        let writes = options.writes.clone();
        if let Some(name) = writes.as_ref().filter(|name| !names.contains(*name)) {
            bail!(
                "{}: the store has {}; record both values, or learn from a text",
                spelling.given("writes", name),
                names.join(", ")
            );
        }
        let name = match (&options.point, &names[..]) {
            (Some(name), _) if names.contains(name) => name.clone(),
            (Some(name), _) => bail!("{point} {name}: the store has {}", names.join(", ")),
            (None, [only]) => only.clone(),
            (None, _) => bail!("the store has {}; choose one with {point}", names.join(", ")),
        };
        Ok(Self::Recorded { store, names: ValueNames { point: name, writes } })
    }

    /// Reads a text, of which the first process alone has the documents.
    ///
    /// # Errors
    /// When the text is too short, the point is not one value, or an option does not fit the model.
    pub fn live(
        options: &Options,
        opened: &'a Opened,
        documents: Option<Documents>,
        run: &TrainingRun,
    ) -> anyhow::Result<Self> {
        options.check_sizes(run.spelling)?;
        options.check_transcoder(run.spelling)?;
        Ok(Self::Live(LiveValues::read(options, opened, documents, run)?))
    }

    /// The name of the value to read, and its point.
    pub(super) fn point(&self) -> anyhow::Result<(&str, Point)> {
        named(&self.names().point)
    }

    /// The name of the value that a transcoder predicts, and its point.
    pub(super) fn writes(&self) -> anyhow::Result<Option<(&str, Point)>> {
        self.names().writes.as_deref().map(named).transpose()
    }

    fn names(&self) -> &ValueNames {
        match self {
            Self::Recorded { names, .. } => names,
            Self::Live(live) => &live.names,
        }
    }

    pub(super) fn tokens(&self) -> usize {
        match self {
            Self::Recorded { store, .. } => store.tokens(),
            Self::Live(live) => live.tokens(),
        }
    }

    /// The settings that the values depend on.
    pub(super) fn facts(&self) -> &serde_json::Value {
        match self {
            Self::Recorded { store, .. } => &store.index().facts,
            Self::Live(live) => &live.facts,
        }
    }

    /// The width of the value to read.
    pub(super) fn width(&self) -> anyhow::Result<usize> {
        match self {
            Self::Recorded { store, names } => {
                let first = store.shuffled(&names.point, 1, 0)?.next().transpose()?;
                Ok(first.context("the store is empty")?.elem_count())
            }
            Self::Live(live) => live.width(),
        }
    }

    /// A batch by which to choose the first weights, the same on every rank.
    pub(super) fn sample(&self, options: &Options, seed: u64) -> anyhow::Result<Tensor> {
        let mut steps = match self {
            Self::Recorded { store, names } => {
                let first = pairs(store, names, options.batch as usize, seed)?.next().transpose()?;
                return first.context("the store is empty");
            }
            Self::Live(live) => live.steps(options, seed, 1, |lane| lane == 0),
        };
        let first = steps.next().transpose()?.and_then(|step| step.into_iter().next());
        first.context("the text has no token")
    }

    /// An error of training, with the shard whose values are to blame for it, if there is one.
    pub(super) fn blamed(&self, error: anyhow::Error) -> anyhow::Error {
        let Self::Recorded { store, names } = self else { return error };
        let mut largest = names.all().filter_map(|name| Some((name, store.largest(name)?)));
        let Some((name, (shard, size))) = largest.find(|(_, (_, size))| *size > LARGEST) else {
            return error;
        };
        let reason = if size.is_finite() {
            format!("holds values up to {size:.1e} of {name}, whose squares are too large to learn from")
        } else {
            format!("holds NaN or infinity at {name}, from which nothing can be learned")
        };
        error.context(format!("{}: {reason}; were they recorded from a sound model?", shard.display()))
    }

    /// At most `count` steps; a model computes the batches at the places for which `mine` is true.
    pub(super) fn steps<'b>(
        &'b self,
        options: &'b Options,
        seed: u64,
        count: usize,
        mine: impl Fn(usize) -> bool + 'b,
    ) -> Box<dyn Iterator<Item = Step> + 'b> {
        match self {
            Self::Recorded { store, names } => {
                Box::new(recorded_steps(options, seed, store, names).take(count))
            }
            Self::Live(live) => live.steps(options, seed, count, mine),
        }
    }
}

fn named(name: &str) -> anyhow::Result<(&str, Point)> {
    Ok((name, name.parse().with_context(|| name.to_owned())?))
}

/// Batches of the store's rows, `rows` at a time: the value to read, and beside it the one to predict, if there is one.
fn pairs<'a>(
    store: &'a Store,
    names: &'a ValueNames,
    rows: usize,
    seed: u64,
) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Tensor>> + 'a> {
    // The seed decides the order, which is that of both.
    let all = names.all().map(|name| store.shuffled(name, rows, seed));
    let mut all = all.collect::<candle_core::Result<Vec<_>>>()?;
    Ok(std::iter::from_fn(move || {
        let parts = all.iter_mut().map(Iterator::next).collect::<Option<Vec<_>>>()?;
        let rows = parts.into_iter().map(|part| part?.flatten_from(1));
        let rows = rows.collect::<candle_core::Result<Vec<_>>>();
        Some(rows.and_then(|rows| Tensor::cat(&rows, 1)).map_err(Into::into))
    }))
}

/// The store's rows in an order that the seed decides, another one in each epoch; heads are one row.
fn recorded_steps<'a>(
    options: &'a Options,
    seed: u64,
    store: &'a Store,
    names: &'a ValueNames,
) -> impl Iterator<Item = Step> + 'a {
    let rows = options.batch as usize;
    let many = usize::from(options.accumulate);
    let shuffled = move |epoch| pairs(store, names, rows, seed.wrapping_add(epoch));
    let mut epochs = (0..u64::from(options.epochs)).map(shuffled);
    let mut batches = None;
    std::iter::from_fn(move || {
        let mut next = || -> anyhow::Result<Option<Vec<Tensor>>> {
            loop {
                let Some(of_epoch) = &mut batches else {
                    let Some(next) = epochs.next() else { return Ok(None) };
                    batches = Some(next?);
                    continue;
                };
                let step = of_epoch.take(many).collect::<anyhow::Result<Vec<Tensor>>>()?;
                if step.len() == many && step.iter().all(|batch| batch.dims()[0] == rows) {
                    return Ok(Some(step));
                }
                // What is left of an epoch is too little for a step.
                batches = None;
            }
        };
        next().transpose()
    })
}

/// The first option that was given and is only for a text.
fn of_a_text(options: &Options, spelling: Spelling) -> Option<String> {
    let Options { by, field, bos, window, .. } = options;
    [("by", by.is_some()), ("field", field.is_some()), ("bos", *bos), ("window", window.is_some())]
        .into_iter()
        .find_map(|(option, is_given)| is_given.then(|| spelling.option(option)))
}
