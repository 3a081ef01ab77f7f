//! The passes over the windows of a shard, and the shard that they fill.

use super::Recording;
use super::texts::{ShardTexts, Text};
use crate::changes::Reads;
use crate::progress::Stop;
use crate::session::Session;
use crate::windows::{Window, batches, windows};
use anyhow::{Context, bail};
use candle_core::{DType, Device, Tensor};
use gpt2_files::{Shard, StoreWriter};
use gpt2_model::hooks::Hooks;
use gpt2_parallel::Group;
use indicatif::ProgressBar;

/// The metadata of a shard that tells texts apart.
const HASH: &str = "texts";

/// What writes shards.
pub(super) struct Run<'a> {
    pub(super) group: &'a dyn Group,
    pub(super) session: &'a Session,
    pub(super) recording: &'a Recording<'a>,
    pub(super) writer: &'a StoreWriter,
    pub(super) stop: &'a Stop,
    pub(super) bar: &'a ProgressBar,
}

impl Run<'_> {
    /// Writes this rank's shard of a round that begins with shard `first`; false if this process is alone and was asked to stop.
    pub(super) fn round(&self, first: usize, round: &[ShardTexts]) -> anyhow::Result<bool> {
        match round.get(self.group.rank()) {
            Some(shard) => self.shard(first + self.group.rank(), shard),
            None => Ok(true),
        }
    }

    fn shard(&self, number: usize, shard: &ShardTexts) -> anyhow::Result<bool> {
        let hash = shard.hash();
        if let Some(found) = self.writer.metadata(number) {
            if found.get(HASH) != Some(&hash) {
                bail!(
                    "shard {number} was recorded from other texts: the corpus has changed; name another folder with --out"
                );
            }
            return Ok(true);
        }
        let Some(values) = self.values(shard)? else { return Ok(false) };
        let of_tokens = |of: &dyn Fn(&Text, usize) -> u32| {
            let all =
                shard.texts.iter().flat_map(|text| (shard.added..text.ids.len()).map(move |i| of(text, i)));
            let all: Vec<u32> = all.collect();
            let count = all.len();
            Tensor::from_vec(all, count, &Device::Cpu)
        };
        #[allow(clippy::cast_possible_truncation)] // within a window
        let position = |text: &Text, i: usize| text.first + (i - shard.added) as u32;
        let shard = Shard {
            values,
            ids: of_tokens(&|text, i| text.ids[i])?,
            documents: of_tokens(&|text, _| text.document)?,
            positions: of_tokens(&position)?,
        };
        let remedy =
            if self.recording.store == DType::F16 { "; --store f32 holds larger numbers" } else { "" };
        self.writer
            .add(number, &shard, &[(HASH, hash)])
            .with_context(|| format!("shard {number}{remedy}"))?;
        Ok(true)
    }

    /// The values of all tokens of a shard, in order, on the CPU; `None` if it was asked to stop.
    fn values(&self, shard: &ShardTexts) -> anyhow::Result<Option<Vec<Tensor>>> {
        let Recording { changes, points, store, .. } = self.recording;
        let lengths: Vec<usize> = shard.texts.iter().map(|text| text.ids.len()).collect();
        let windows: Vec<Window> = windows(&lengths, usize::MAX, usize::MAX);
        // Of each window and point, (tokens, ..).
        let mut found: Vec<Vec<Tensor>> = vec![vec![]; windows.len()];
        for batch in batches(&windows, |a, b| changes.treat_alike(a, b)) {
            if self.stop.is_asked() && self.group.size() == 1 {
                return Ok(None);
            }
            self.bar.tick();
            let longest = batch.iter().map(|&i| lengths[i]).max().unwrap_or(0);
            let filled = |&i: &usize| {
                let ids = &shard.texts[windows[i].document].ids;
                ids.iter().copied().chain(std::iter::repeat_n(0, longest - ids.len())).collect::<Vec<u32>>()
            };
            let rows: Vec<Vec<u32>> = batch.iter().map(filled).collect();
            let list = changes.of(Reads::Whole(&shard.texts[windows[batch[0]].document].ids))?.list;
            let hooks = (!list.is_empty()).then_some(&list as &dyn Hooks);
            let input = Tensor::new(rows, &self.session.device)?;
            for value in self.session.model.values_at(&input, points, hooks)? {
                let value = value.to_device(&Device::Cpu)?.to_dtype(*store)?;
                for (row, &i) in batch.iter().enumerate() {
                    // What a text was filled up with comes behind it, and changes nothing before.
                    let own = value.get(row)?.narrow(0, shard.added, lengths[i] - shard.added)?;
                    found[windows[i].document].push(own);
                }
            }
        }
        let all = (0..points.len()).map(|point| {
            let of_point: Vec<&Tensor> = found.iter().map(|of_window| &of_window[point]).collect();
            Tensor::cat(&of_point, 0)
        });
        Ok(Some(all.collect::<candle_core::Result<_>>()?))
    }
}
