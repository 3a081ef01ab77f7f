//! The source of the values that a dictionary learns from.

use super::args::TrainFeaturesArgs;
use super::live::{LiveValues, Step};
use anyhow::{Context, bail};
use candle_core::{DType, Tensor};
use candle_fused::Implementation;
use gpt2_engine::DeviceChoice;
use gpt2_files::Store;
use gpt2_model::hooks::Point;

/// Sums of the squares of a batch's larger values may exceed f32.
const LARGEST: f64 = 1e15;

/// A store, or a model that reads a text.
pub(super) enum TrainingValues<'a> {
    Recorded { store: Store, name: String },
    Live(LiveValues<'a>),
}

impl TrainingValues<'_> {
    /// Opens the store that `gpt2 record` wrote.
    pub(super) fn recorded(args: &TrainFeaturesArgs) -> anyhow::Result<Self> {
        let store = Store::open(&args.source)?;
        if let Some(option) = of_a_text(args) {
            bail!("{option}: is for a text, and {} has values already; leave it out", args.source.display());
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
            Self::Recorded { name, .. } => {
                Ok((name, name.parse().with_context(|| format!("the store's {name}"))?))
            }
            Self::Live(live) => Ok((&live.name, live.point)),
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

    /// A batch by which to choose the first weights, the same on every rank.
    pub(super) fn sample(&self, args: &TrainFeaturesArgs) -> anyhow::Result<Tensor> {
        let mut steps = match self {
            Self::Recorded { store, name } => {
                let rows = args.batch as usize;
                let seed = args.model.run.seed;
                let first = store.shuffled(name, rows, seed)?.next().transpose()?;
                return Ok(first.context("the store is empty")?.flatten_from(1)?);
            }
            Self::Live(live) => live.steps(args, 1, |lane| lane == 0),
        };
        let first = steps.next().transpose()?.and_then(|step| step.into_iter().next());
        first.context("the text has no token")
    }

    /// An error of training, with the shard whose values are to blame for it, if there is one.
    pub(super) fn blamed(&self, error: anyhow::Error) -> anyhow::Error {
        let Self::Recorded { store, name } = self else { return error };
        let Some((shard, size)) = store.largest(name).filter(|(_, size)| *size > LARGEST) else {
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
    pub(super) fn steps<'a>(
        &'a self,
        args: &'a TrainFeaturesArgs,
        count: usize,
        mine: impl Fn(usize) -> bool + 'a,
    ) -> Box<dyn Iterator<Item = Step> + 'a> {
        match self {
            Self::Recorded { store, name } => Box::new(recorded_steps(args, store, name).take(count)),
            Self::Live(live) => live.steps(args, count, mine),
        }
    }
}

/// The store's rows in an order that the seed decides, another one in each epoch; heads are one row.
fn recorded_steps<'a>(
    args: &'a TrainFeaturesArgs,
    store: &'a Store,
    name: &'a str,
) -> impl Iterator<Item = Step> + 'a {
    let rows = args.batch as usize;
    let many = usize::from(args.accumulate);
    let seed = args.model.run.seed;
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

/// The first option that was given and is only for a text.
fn of_a_text(args: &TrainFeaturesArgs) -> Option<&'static str> {
    let TrainFeaturesArgs { text, model, .. } = args;
    let on_gpu = !matches!(model.run.device, DeviceChoice::Auto | DeviceChoice::Cpu);
    [
        ("--by", text.documents.by.is_some()),
        ("--field", text.documents.field.is_some()),
        ("--bos", text.bos),
        ("--window", text.window.is_some()),
        ("--model", model.model.is_some()),
        ("--dtype", model.dtype != DType::F32),
        ("--quantize", model.quantize.is_some()),
        ("--impl", model.implementation != Implementation::Auto),
        ("--adapter", !model.adapters.list.is_empty()),
        ("--device", on_gpu),
        ("--tf32", model.run.tf32),
        ("--revision", model.hub.revision.is_some()),
    ]
    .into_iter()
    .find_map(|(option, is_given)| is_given.then_some(option))
}
