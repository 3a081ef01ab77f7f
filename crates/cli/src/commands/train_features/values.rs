//! Where the values come from that a dictionary learns from.

use super::args::TrainFeaturesArgs;
use super::live::{Live, Step};
use anyhow::{Context, bail};
use candle_core::Tensor;
use gpt2_files::Store;
use gpt2_model::hooks::Point;

/// A store, or a model that reads a text.
pub(super) enum Values<'a> {
    Recorded { store: Store, name: String },
    Live(Live<'a>),
}

impl Values<'_> {
    /// Those of a store.
    pub(super) fn recorded(args: &TrainFeaturesArgs) -> anyhow::Result<Self> {
        let store = Store::open(&args.source)?;
        let text = &args.text;
        for (option, is_given) in [
            ("--model", args.model.model.is_some()),
            ("--by", text.by.is_some()),
            ("--field", text.field.is_some()),
            ("--bos", text.bos),
            ("--window", text.window.is_some()),
        ] {
            if is_given {
                bail!(
                    "{option}: is for a text, and {} has values already; leave it out",
                    args.source.display()
                );
            }
        }
        let names = &store.index().values;
        let name = match (&args.point, &names[..]) {
            (Some(name), _) if names.contains(name) => name.clone(),
            (Some(name), _) => bail!("--point {name}: the store has {}", names.join(", ")),
            (None, [only]) => only.clone(),
            (None, _) => bail!("the store has {}; choose one with --point", names.join(", ")),
        };
        Ok(Self::Recorded { store, name })
    }

    /// The value's name, and its point.
    pub(super) fn point(&self) -> anyhow::Result<(&str, Point)> {
        match self {
            Self::Recorded { store: _, name } => Ok((name, name.parse()?)),
            Self::Live(live) => Ok((&live.name, live.point)),
        }
    }

    /// How many tokens there are.
    pub(super) fn tokens(&self) -> usize {
        match self {
            Self::Recorded { store, .. } => store.tokens(),
            Self::Live(live) => live.tokens(),
        }
    }

    /// What the values depend on.
    pub(super) fn facts(&self) -> &serde_json::Value {
        match self {
            Self::Recorded { store, .. } => &store.index().facts,
            Self::Live(live) => &live.facts,
        }
    }

    /// The first batch, which every rank computes.
    pub(super) fn sample(&self, args: &TrainFeaturesArgs) -> anyhow::Result<Tensor> {
        let mut steps = match self {
            Self::Recorded { store, name } => {
                let (rows, seed) = (args.batch as usize, args.model.run.seed);
                let first = store.shuffled(name, rows, seed)?.next().transpose()?;
                return Ok(first.context("the store is empty")?.flatten_from(1)?);
            }
            Self::Live(live) => live.steps(args, |lane| lane == 0),
        };
        let first = steps.next().transpose()?.and_then(|step| step.into_iter().next());
        first.context("the text has no token")
    }

    /// The steps, of which there may be more than one needs; a rank computes the batches in the places that are `mine`.
    pub(super) fn steps<'a>(
        &'a self,
        args: &'a TrainFeaturesArgs,
        mine: impl Fn(usize) -> bool + 'a,
    ) -> Box<dyn Iterator<Item = Step> + 'a> {
        match self {
            Self::Recorded { store, name } => Box::new(recorded_steps(args, store, name)),
            Self::Live(live) => live.steps(args, mine),
        }
    }
}

/// The store's rows in an order that the seed decides, another one in each epoch; heads are one row.
fn recorded_steps<'a>(
    args: &'a TrainFeaturesArgs,
    store: &'a Store,
    name: &'a str,
) -> impl Iterator<Item = Step> + 'a {
    let (rows, many, seed) = (args.batch as usize, usize::from(args.accumulate), args.model.run.seed);
    let shuffled = move |epoch| store.shuffled(name, rows, seed.wrapping_add(epoch));
    let mut epochs = (0..u64::from(args.epochs)).map(shuffled);
    let mut batches = None;
    std::iter::from_fn(move || {
        let mut next = || -> anyhow::Result<Option<Vec<Tensor>>> {
            loop {
                let Some(of_epoch) = &mut batches else {
                    let Some(next) = epochs.next() else { return Ok(None) };
                    batches = Some(next?);
                    continue;
                };
                let step = of_epoch.take(many).map(|batch| batch?.flatten_from(1));
                let step = step.collect::<candle_core::Result<Vec<_>>>()?;
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
