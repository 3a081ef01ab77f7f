//! Values that the model computes while a dictionary learns from them.
//!
//! The windows of the text come in an order that the seed decides, another one in each epoch. A step has a batch of each lane, and the
//! lanes share the windows out: lane n gets every window whose place in the order is n modulo the number of lanes. A lane mixes the
//! tokens of many windows. So a batch depends on its lane alone, and any rank can compute it.

use super::options::{Options, TrainingRun, ValueNames};
use crate::open::Opened;
use crate::provenance::RunProvenance;
use crate::studies::learn::record::Documents;
use crate::studies::study::PointName;
use crate::texts::{Windowing, batches, shared, values, windows};
use anyhow::{Context, bail};
use candle_core::{Device, Tensor};
use gpt2_model::finite::all_finite;
use gpt2_model::hooks::Point;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The number of batches, over all lanes together, whose tokens are mixed at a time; at least two for each lane.
const MIXED: usize = 16;

/// The batches of a step, (tokens, d) each. A batch that another rank computes may be an empty tensor.
pub(super) type Step = anyhow::Result<Vec<Tensor>>;

/// A model, and the windows of a text that it reads.
pub struct LiveValues<'a> {
    opened: &'a Opened,
    pub(super) names: ValueNames,
    /// The point of each name.
    points: Vec<Point>,
    windows: Vec<Vec<u32>>,
    /// The number of extra tokens at the start of each window: 1 with `bos`, else 0.
    added: usize,
    pub(super) facts: serde_json::Value,
}

impl<'a> LiveValues<'a> {
    /// Reads the documents, which the first process alone has.
    pub(super) fn read(
        options: &Options,
        opened: &'a Opened,
        mut documents: Option<Documents>,
        run: &TrainingRun,
    ) -> anyhow::Result<Self> {
        let TrainingRun { group, spelling, observer, .. } = run;
        let config = opened.model.config();
        let point_option = spelling.option("point");
        let name = options.point.as_deref().with_context(|| format!("a text needs {point_option}"))?;
        let (name, point) = one_point(&point_option, name, config.n_layer)?;
        let written = options.writes.as_deref();
        let written = written.map(|name| one_point(&spelling.option("writes"), name, config.n_layer));
        let (writes, out) = written.transpose()?.unzip();
        let names = ValueNames { point: name, writes };
        let points: Vec<Point> = std::iter::once(point).chain(out).collect();
        let windowing = Windowing::new(config, options.bos, options.window, *spelling)?;
        let bytes = documents.as_ref().and_then(Documents::bytes);
        let mut all = vec![];
        let mut hash = DefaultHasher::new();
        loop {
            let section = shared(&***group, documents.as_mut().map_or(Ok(vec![]), Documents::section)?)?;
            if section.is_empty() {
                break;
            }
            for document in section {
                let ids = document.ids(opened)?;
                ids.hash(&mut hash);
                all.extend(windowing.cut(&ids));
            }
            observer.step("bytes", documents.as_ref().map_or(0, Documents::read), bytes)?;
        }
        if all.is_empty() {
            bail!("{}: holds no token", options.source.display());
        }
        let lanes = usize::from(options.accumulate);
        if all.len() < lanes {
            let given = spelling.given("accumulate", lanes);
            bail!(
                "{}: has {} windows, expected one for each of {given} at least; give more text, or a smaller {}",
                options.source.display(),
                all.len(),
                spelling.option("window")
            );
        }
        let facts = json!({
            "provenance": RunProvenance::of_tokens(opened, windowing.window)?,
            "by": options.unit(*spelling)?,
            "points": names.all().collect::<Vec<_>>(),
            "window": windowing.window,
            "bos": options.bos,
            "text": format!("{:016x}", hash.finish()),
            "fingerprint": opened.model.fingerprint()?.to_string(),
            "isa": candle_fused::Isa::current().as_str(),
        });
        Ok(Self { opened, names, points, windows: all, added: windowing.added(), facts })
    }

    /// The width of the value to read.
    pub(super) fn width(&self) -> anyhow::Result<usize> {
        let width = self.points.first().and_then(|point| point.width(self.opened.model.config()));
        width.with_context(|| format!("{}: is no vector for each token", self.names.point))
    }

    pub(super) fn tokens(&self) -> usize {
        self.windows.iter().map(|window| window.len() - self.added).sum()
    }

    /// `count` steps, with the batches of the lanes for which `mine` is true.
    pub(super) fn steps<'b>(
        &'b self,
        options: &Options,
        seed: u64,
        count: usize,
        mine: impl Fn(usize) -> bool,
    ) -> Box<dyn Iterator<Item = Step> + 'b> {
        let all = usize::from(options.accumulate);
        let rows = options.batch as usize;
        let lane =
            |number| mine(number).then(|| Lane::new(self, LanePlace { number, all, rows, seed }, count));
        let mut lanes: Vec<Option<Lane>> = (0..all).map(lane).collect();
        let mut next = |lane: &mut Option<Lane>| match lane {
            Some(lane) => lane.next(),
            None => Ok(Tensor::zeros((0, 0), candle_core::DType::F32, &Device::Cpu)?),
        };
        Box::new((0..count).map(move |_| lanes.iter_mut().map(&mut next).collect()))
    }

    /// The values of windows, (tokens, d) together.
    fn values(&self, chosen: &[usize]) -> anyhow::Result<Vec<Tensor>> {
        let lengths: Vec<usize> = chosen.iter().map(|&i| self.windows[i].len()).collect();
        let places = windows(&lengths, usize::MAX, usize::MAX);
        let mut found: Vec<Option<Tensor>> = vec![None; chosen.len()];
        for batch in batches(&places, |_, _| true) {
            let texts: Vec<&[u32]> = batch.iter().map(|&i| &self.windows[chosen[i]][..]).collect();
            let of_points = values(self.opened, &self.points, None, &texts)?;
            for (place, &i) in batch.iter().enumerate() {
                let own = |of_point: &Vec<Tensor>| {
                    let value = &of_point[place];
                    value.narrow(0, self.added, value.dim(0)? - self.added)?.flatten_from(1)
                };
                let own = of_points.iter().map(own).collect::<candle_core::Result<Vec<_>>>()?;
                for (value, name) in own.iter().zip(self.names.all()) {
                    if !all_finite(value)? {
                        bail!("{name} holds NaN or infinity, from which nothing can be learned");
                    }
                }
                found[i] = Some(Tensor::cat(&own, 1)?);
            }
        }
        Ok(found.into_iter().flatten().collect())
    }
}

/// The one point that an option names.
fn one_point(option: &str, name: &str, layers: usize) -> anyhow::Result<(String, Point)> {
    let name: PointName = name.parse().map_err(anyhow::Error::msg)?;
    let mut points = PointName::all(option, &[name], layers)?;
    match points.pop() {
        Some(point) if points.is_empty() => Ok(point),
        _ => bail!("{option}: a dictionary learns from one value; name one layer"),
    }
}

/// A lane's number among all lanes, its batch size and its seed.
#[derive(Debug, Clone, Copy)]
struct LanePlace {
    number: usize,
    all: usize,
    /// Tokens of a batch.
    rows: usize,
    seed: u64,
}

/// Mixes every `place.all`-th window of the order into batches.
struct Lane<'a, 'b> {
    live: &'b LiveValues<'a>,
    place: LanePlace,
    /// The epoch that comes next.
    epoch: u64,
    /// The windows of this epoch that are left, the next one last.
    windows: Vec<usize>,
    /// Shuffled tokens that are in no batch yet: (tokens, d).
    waiting: Option<Tensor>,
    /// The number of batches still to come.
    left: usize,
    rng: ChaCha8Rng,
}

impl<'a, 'b> Lane<'a, 'b> {
    fn new(live: &'b LiveValues<'a>, place: LanePlace, batches: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(place.seed);
        // Stream 0 orders the windows.
        rng.set_stream(1 + place.number as u64);
        Self { live, place, epoch: 0, windows: vec![], waiting: None, left: batches, rng }
    }

    fn next(&mut self) -> anyhow::Result<Tensor> {
        let rows = self.place.rows;
        let mut count = self.waiting.as_ref().map_or(Ok(0), |waiting| waiting.dim(0))?;
        if count < rows {
            let mut chosen = vec![];
            let mixed = MIXED.div_ceil(self.place.all).max(2).min(self.left);
            while count < mixed * rows {
                let window = self.next_window();
                count += self.live.windows[window].len() - self.live.added;
                chosen.push(window);
            }
            let mut all: Vec<Tensor> = self.waiting.take().into_iter().collect();
            all.extend(self.live.values(&chosen)?);
            let mut order: Vec<u32> = (0..u32::try_from(count)?).collect();
            order.shuffle(&mut self.rng);
            self.waiting = Some(Tensor::cat(&all, 0)?.index_select(&Tensor::new(order, &Device::Cpu)?, 0)?);
        }
        self.left = self.left.saturating_sub(1);
        let waiting = self.waiting.take().context("no token waits")?;
        self.waiting = (count > rows).then(|| waiting.narrow(0, rows, count - rows)).transpose()?;
        Ok(waiting.narrow(0, 0, rows)?)
    }

    fn next_window(&mut self) -> usize {
        loop {
            if let Some(window) = self.windows.pop() {
                return window;
            }
            let mut rng = ChaCha8Rng::seed_from_u64(self.place.seed.wrapping_add(self.epoch));
            let mut order: Vec<usize> = (0..self.live.windows.len()).collect();
            order.shuffle(&mut rng);
            self.windows = order.into_iter().skip(self.place.number).step_by(self.place.all).collect();
            self.windows.reverse();
            self.epoch += 1;
        }
    }
}
