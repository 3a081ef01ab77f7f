//! The corpus as windows, and which of them make a shard: the same for any number of processes.

use crate::open::Opened;
use crate::texts::{CorpusDocument, Windowing};
use anyhow::Context;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A window of a document, with the first token that `--bos` adds.
pub(super) struct TextWindow {
    pub(super) document: u32,
    /// The position of its first token in the document.
    pub(super) first: u32,
    pub(super) ids: Vec<u32>,
}

/// The windows of a shard.
pub(super) struct ShardTexts {
    pub(super) texts: Vec<TextWindow>,
    /// The number of extra tokens at the start of each window: 1 with `--bos`, else 0.
    pub(super) added: usize,
}

impl ShardTexts {
    pub(super) fn hash(&self) -> String {
        let mut hash = DefaultHasher::new();
        self.texts.iter().for_each(|text| (text.document, text.first, &text.ids).hash(&mut hash));
        format!("{:016x}", hash.finish())
    }

    pub(super) fn tokens(&self) -> usize {
        self.texts.iter().map(|text| text.ids.len() - self.added).sum()
    }
}

/// The windows and shards that are still to be recorded, and the number of documents so far.
pub(super) struct Pending {
    texts: VecDeque<TextWindow>,
    shards: VecDeque<ShardTexts>,
    shard_tokens: usize,
    windowing: Windowing,
    pub(super) documents: usize,
    pub(super) empty: usize,
}

impl Pending {
    pub(super) fn new(shard_tokens: usize, windowing: Windowing) -> Self {
        Self {
            texts: VecDeque::new(),
            shards: VecDeque::new(),
            shard_tokens,
            windowing,
            documents: 0,
            empty: 0,
        }
    }

    pub(super) fn add(&mut self, opened: &Opened, section: Vec<CorpusDocument>) -> anyhow::Result<()> {
        let length = self.windowing.window - self.windowing.added();
        for document in section {
            let ids = document.ids(opened)?;
            let number = u32::try_from(self.documents).context("more documents than a store can count")?;
            for (i, window) in self.windowing.cut(&ids).enumerate() {
                let first = u32::try_from(i * length).with_context(|| document.place())?;
                self.texts.push_back(TextWindow { document: number, first, ids: window });
            }
            self.documents += 1;
            self.empty += usize::from(ids.is_empty());
        }
        Ok(())
    }

    /// The next shards, one for each process; fewer at the end.
    pub(super) fn round(&mut self, ranks: usize, ended: bool) -> Option<Vec<ShardTexts>> {
        while self.shards.len() < ranks
            && let Some(shard) = self.take(ended)
        {
            self.shards.push_back(shard);
        }
        let is_ready = self.shards.len() == ranks || (ended && !self.shards.is_empty());
        is_ready.then(|| self.shards.drain(..).collect())
    }

    /// The windows of the next shard, if there are enough of them, or no more come.
    fn take(&mut self, ended: bool) -> Option<ShardTexts> {
        let added = self.windowing.added();
        let mut tokens = 0;
        let mut count = 0;
        for text in &self.texts {
            let more = text.ids.len() - added;
            if tokens + more > self.shard_tokens {
                break;
            }
            tokens += more;
            count += 1;
        }
        let is_full = count < self.texts.len();
        (count > 0 && (is_full || ended))
            .then(|| ShardTexts { texts: self.texts.drain(..count).collect(), added })
    }
}
