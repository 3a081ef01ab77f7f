//! The passes over the windows of shards, and the shards that they fill.

use super::documents::Documents;
use super::options::{Options, StoredAs};
use super::plan::Plan;
use super::report::{Report, left};
use super::texts::{Pending, ShardTexts, TextWindow};
use crate::interventions::Reads;
use crate::observer::Stopped;
use crate::provenance::RunProvenance;
use crate::studies::study::Run;
use crate::texts::{DocumentWindow, batches, shared, values, windows};
use anyhow::{Context, bail};
use candle_core::{Device, Tensor};
use gpt2_files::{Shard, StoreWriter};
use gpt2_model::finite::all_finite;
use gpt2_model::hooks::Hooks;
use gpt2_parallel::{Fact, Group};
use std::time::Instant;

/// The metadata key of the hash of a shard's texts.
const HASH: &str = "texts";

/// A store that has begun: it computes and writes shards, together with the other processes of the group.
pub struct Recording<'a> {
    options: &'a Options,
    run: Run<'a>,
    group: &'a dyn Group,
    plan: Plan,
    provenance: RunProvenance,
    writer: StoreWriter,
}

/// A shard that this process computes: its batches, and the values of each point and window so far.
struct Filling<'a> {
    number: usize,
    shard: &'a ShardTexts,
    windows: Vec<DocumentWindow>,
    batches: Vec<Vec<usize>>,
    found: Vec<Vec<Option<Tensor>>>,
}

/// The bytes that were read when the shards so far were done, and those of all documents.
#[derive(Debug, Clone, Copy)]
struct BytesRead {
    done: u64,
    all: Option<u64>,
}

impl<'a> Recording<'a> {
    /// Checks the options, lets the processes of the group agree on them, and begins the folder.
    ///
    /// # Errors
    /// When an option does not fit the model, processes differ, or the folder holds other values.
    pub fn begin(options: &'a Options, run: &Run<'a>, group: &'a dyn Group) -> anyhow::Result<Self> {
        let Run { opened, interventions, .. } = *run;
        let plan = Plan::new(options, run)?;
        let provenance = RunProvenance::of_tokens(opened, plan.windowing.window)?;
        let provenance = provenance.under(&interventions.described());
        let facts = plan.facts(options, run, &provenance)?;
        agree(group, &facts)?;
        let writer = || StoreWriter::new(&options.out, plan.names.clone(), facts.clone());
        // One process makes the folder, and all of them see it.
        if group.rank() == 0 {
            writer()?;
        }
        group.any(false)?;
        let writer = writer()?;
        Ok(Self { options, run: *run, group, plan, provenance, writer })
    }
}

impl Recording<'_> {
    /// The facts that the store depends on.
    #[must_use]
    pub fn provenance(&self) -> &RunProvenance {
        &self.provenance
    }

    /// Records all documents, which the first process of the group alone has.
    ///
    /// # Errors
    /// When there is no document, a value is not finite, a file cannot be read or written, or the observer ends the work: with
    /// [`Stopped`] if it asks for that. Shards that are whole stay.
    pub fn run(self, mut documents: Option<Documents>) -> anyhow::Result<Report> {
        let leads = self.group.rank() == 0;
        let mut pending = Pending::new(self.options.shard_tokens as usize, self.plan.windowing);
        let mut bytes = BytesRead { done: 0, all: documents.as_ref().and_then(Documents::bytes) };
        // Of each shard; and how many of them this run has computed.
        let mut tokens: Vec<usize> = vec![];
        let mut fresh = 0;
        let started = Instant::now();
        let speed = |fresh: usize| fresh as f64 / started.elapsed().as_secs_f64();
        let mut ended = false;
        while !ended {
            let section = shared(self.group, documents.as_mut().map_or(Ok(vec![]), Documents::section)?)?;
            ended = section.is_empty();
            pending.add(self.run.opened, section)?;
            // A shard for each process at a time, so that none waits for another.
            while let Some(round) = pending.round(self.group.size(), ended) {
                fresh += self.round(tokens.len(), &round, bytes)?;
                tokens.extend(round.iter().map(ShardTexts::tokens));
                // The last byte is done when all shards are.
                let most = bytes.all.map_or(u64::MAX, |all| all.saturating_sub(1));
                bytes.done = documents.as_ref().map_or(0, Documents::read).min(most);
                self.tell(bytes)?;
                if fresh > 0 {
                    self.run.observer.figures(&format!("{:.0} tokens/s", speed(fresh)));
                }
            }
        }
        if let Some(all) = bytes.all {
            self.tell(BytesRead { done: all, ..bytes })?;
        }
        if pending.documents == 0 && leads {
            bail!("{}: holds no document", self.options.corpus.display());
        }
        self.group.any(false)?; // until all processes have written theirs
        let report = Report {
            provenance: self.provenance,
            folder: self.options.out.clone(),
            points: self.plan.names,
            documents: pending.documents,
            empty: pending.empty,
            tokens: tokens.iter().sum(),
            shards: tokens.len(),
            tokens_per_second: (fresh > 0).then(|| speed(fresh)),
        };
        if leads {
            self.writer.finish(tokens)?;
        }
        Ok(report)
    }

    fn tell(&self, bytes: BytesRead) -> candle_core::Result<()> {
        self.run.observer.step("bytes", bytes.done, bytes.all)
    }

    /// Computes the shards of a round, one on each process, from shard `first` on; skips those that exist. Returns the number of
    /// tokens that all processes have computed. They meet after every batch, so that none waits for long.
    fn round(&self, first: usize, round: &[ShardTexts], bytes: BytesRead) -> anyhow::Result<usize> {
        // Every process knows how many batches the longest of these shards has.
        let mut steps = 0;
        let mut tokens = 0;
        let mut own = None;
        for (rank, shard) in round.iter().enumerate() {
            let filling = self.filling(first + rank, shard)?;
            let Some(filling) = filling else { continue };
            steps = steps.max(filling.batches.len());
            tokens += shard.tokens();
            if rank == self.group.rank() {
                own = Some(filling);
            }
        }
        for step in 0..steps {
            if self.group.any(self.run.observer.is_asked_to_stop())? {
                let left = left(self.run.opened.spelling);
                return Err(Stopped(format!("stopped; {left}")).into());
            }
            self.tell(bytes)?;
            if let Some(filling) = &mut own
                && step < filling.batches.len()
            {
                self.batch(filling, step)?;
            }
        }
        if let Some(filling) = own {
            self.write(filling)?;
        }
        // Before the next round looks which shards are there.
        self.group.any(false)?;
        Ok(tokens)
    }

    /// A shard to compute; `None` if it exists.
    fn filling<'a>(&self, number: usize, shard: &'a ShardTexts) -> anyhow::Result<Option<Filling<'a>>> {
        if let Some(found) = self.writer.metadata(number) {
            if found.get(HASH) != Some(&shard.hash()) {
                let out = self.run.opened.spelling.option("out");
                bail!(
                    "shard {number} was recorded from other texts: the corpus has changed; name another folder with {out}"
                );
            }
            return Ok(None);
        }
        let lengths: Vec<usize> = shard.texts.iter().map(|text| text.ids.len()).collect();
        // Each text is a window, and has its place.
        let windows = windows(&lengths, usize::MAX, usize::MAX);
        let batches = batches(&windows, |a, b| self.run.interventions.treat_alike(a, b));
        let found = vec![vec![None; windows.len()]; self.plan.points.len()];
        Ok(Some(Filling { number, shard, windows, batches, found }))
    }

    /// Runs one batch of a shard's windows.
    fn batch(&self, filling: &mut Filling, step: usize) -> anyhow::Result<()> {
        let Filling { shard, windows, batches, found, .. } = filling;
        let texts: Vec<&TextWindow> =
            batches[step].iter().map(|&i| &shard.texts[windows[i].document]).collect();
        let list = self.run.interventions.of(Reads::Whole(&[&texts[0].ids]))?.list;
        let hooks = (!list.is_empty()).then_some(&list as &dyn Hooks);
        let ids: Vec<&[u32]> = texts.iter().map(|text| &text.ids[..]).collect();
        let dtype = self.options.store.dtype();
        for (values, found) in values(self.run.opened, &self.plan.points, hooks, &ids)?.into_iter().zip(found)
        {
            for (value, (&i, text)) in values.into_iter().zip(batches[step].iter().zip(&texts)) {
                let own = value.narrow(0, shard.added, text.ids.len() - shard.added)?.to_dtype(dtype)?;
                found[windows[i].document] = Some(own);
            }
        }
        Ok(())
    }

    fn write(&self, Filling { number, shard, found, .. }: Filling) -> anyhow::Result<()> {
        let mut values = vec![];
        for (name, found) in self.plan.names.iter().zip(found) {
            let all: Vec<Tensor> = found.into_iter().flatten().collect();
            let all = Tensor::cat(&all, 0)?;
            if !all_finite(&all)? {
                let larger = self.run.opened.spelling.given("store", "f32");
                let remedy = match self.options.store {
                    StoredAs::F16 => format!("; {larger} holds larger numbers"),
                    StoredAs::F32 => String::new(),
                };
                bail!("shard {number}: {name} holds NaN or infinity{remedy}");
            }
            values.push(all);
        }
        let of_tokens = |of: &dyn Fn(&TextWindow, usize) -> u32| {
            let all =
                shard.texts.iter().flat_map(|text| (shard.added..text.ids.len()).map(move |i| of(text, i)));
            let all: Vec<u32> = all.collect();
            let count = all.len();
            Tensor::from_vec(all, count, &Device::Cpu)
        };
        #[allow(clippy::cast_possible_truncation)] // within a window
        let position = |text: &TextWindow, i: usize| text.first + (i - shard.added) as u32;
        let filled = Shard {
            values,
            ids: of_tokens(&|text, i| text.ids[i])?,
            documents: of_tokens(&|text, _| text.document)?,
            positions: of_tokens(&position)?,
        };
        self.writer.add(number, &filled, &[(HASH, shard.hash())]).with_context(|| format!("shard {number}"))
    }
}

/// Refuses processes whose shards would differ.
fn agree(group: &dyn Group, facts: &serde_json::Value) -> anyhow::Result<()> {
    let fact = |(what, value): (&String, &serde_json::Value)| Fact {
        what: what.clone(),
        value: value.to_string(),
        remedy: "start every rank with the same command and the same model",
    };
    group.agree(|| anyhow::Ok(facts.as_object().into_iter().flatten().map(fact).collect()))
}
