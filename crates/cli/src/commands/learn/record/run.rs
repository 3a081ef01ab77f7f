//! The passes over the windows of a shard, and the shard that they fill.

use super::recording::Recording;
use super::texts::{ShardTexts, TextWindow};
use crate::process::signals::Stop;
use anyhow::{Context, bail};
use candle_core::{DType, Device, Tensor};
use gpt2_engine::Opened;
use gpt2_engine::interventions::Reads;
use gpt2_engine::texts::values;
use gpt2_engine::texts::{DocumentWindow, batches, windows};
use gpt2_files::{Shard, StoreWriter};
use gpt2_model::finite::all_finite;
use gpt2_model::hooks::Hooks;
use gpt2_parallel::Group;
use indicatif::ProgressBar;

/// The metadata key of the hash of a shard's texts.
const HASH: &str = "texts";

/// Computes and writes shards, together with the other ranks.
pub(super) struct RecordRun<'a> {
    pub(super) group: &'a dyn Group,
    pub(super) opened: &'a Opened,
    pub(super) recording: &'a Recording<'a>,
    pub(super) writer: &'a StoreWriter,
    pub(super) stop: &'a Stop,
    pub(super) bar: &'a ProgressBar,
}

/// A shard that this rank computes: its batches, and the values of each point and window so far.
struct Filling<'a> {
    number: usize,
    shard: &'a ShardTexts,
    windows: Vec<DocumentWindow>,
    batches: Vec<Vec<usize>>,
    found: Vec<Vec<Option<Tensor>>>,
}

impl RecordRun<'_> {
    /// Computes the shards of a round, one on each rank, from shard `first` on; skips those that exist. Returns the
    /// number of tokens that all ranks have computed, or `None` if a rank was asked to stop. The ranks meet after every
    /// batch, so that none waits for long.
    pub(super) fn round(&self, first: usize, round: &[ShardTexts]) -> anyhow::Result<Option<usize>> {
        // Every rank knows how many batches the longest of these shards has.
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
            if self.group.any(self.stop.is_asked())? {
                return Ok(None);
            }
            self.bar.tick();
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
        Ok((!self.group.any(false)?).then_some(tokens))
    }

    /// A shard to compute; `None` if it exists.
    fn filling<'a>(&self, number: usize, shard: &'a ShardTexts) -> anyhow::Result<Option<Filling<'a>>> {
        if let Some(found) = self.writer.metadata(number) {
            if found.get(HASH) != Some(&shard.hash()) {
                bail!(
                    "shard {number} was recorded from other texts: the corpus has changed; name another folder with --out"
                );
            }
            return Ok(None);
        }
        let Recording { changes, points, .. } = self.recording;
        let lengths: Vec<usize> = shard.texts.iter().map(|text| text.ids.len()).collect();
        // Each text is a window, and has its place.
        let windows = windows(&lengths, usize::MAX, usize::MAX);
        let batches = batches(&windows, |a, b| changes.treat_alike(a, b));
        let found = vec![vec![None; windows.len()]; points.len()];
        Ok(Some(Filling { number, shard, windows, batches, found }))
    }

    /// Runs one batch of a shard's windows.
    fn batch(&self, filling: &mut Filling, step: usize) -> anyhow::Result<()> {
        let Recording { changes, points, store, .. } = self.recording;
        let Filling { shard, windows, batches, found, .. } = filling;
        let texts: Vec<&TextWindow> =
            batches[step].iter().map(|&i| &shard.texts[windows[i].document]).collect();
        let list = changes.of(Reads::Whole(&[&texts[0].ids]))?.list;
        let hooks = (!list.is_empty()).then_some(&list as &dyn Hooks);
        let ids: Vec<&[u32]> = texts.iter().map(|text| &text.ids[..]).collect();
        for (values, found) in values(self.opened, points, hooks, &ids)?.into_iter().zip(found) {
            for (value, (&i, text)) in values.into_iter().zip(batches[step].iter().zip(&texts)) {
                let own = value.narrow(0, shard.added, text.ids.len() - shard.added)?.to_dtype(*store)?;
                found[windows[i].document] = Some(own);
            }
        }
        Ok(())
    }

    fn write(&self, Filling { number, shard, found, .. }: Filling) -> anyhow::Result<()> {
        let mut values = vec![];
        for (name, found) in self.recording.names.iter().zip(found) {
            let all: Vec<Tensor> = found.into_iter().flatten().collect();
            let all = Tensor::cat(&all, 0)?;
            if !all_finite(&all)? {
                let half = self.recording.store == DType::F16;
                let remedy = if half { "; --store f32 holds larger numbers" } else { "" };
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
