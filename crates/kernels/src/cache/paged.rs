//! [`PagedCache`]: many sequences in one pool of pages.

use super::dtype::CacheDType;
use crate::attention::heads::HeadLayout;
use crate::attention::run::paged::Pages;
use candle_core::{Device, Result, Tensor};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// A sequence in a [`PagedCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u64);

/// The keys and values of all layers for many sequences of different lengths, in pools of pages that are allocated once: a sequence takes as
/// many pages as it needs, and sequences with a common beginning share its pages (Kwon et al. 2023, "Efficient Memory Management for Large
/// Language Model Serving with PagedAttention").
///
/// One step of a model: [`grow`](Self::grow) makes room for the new positions of each sequence, in every layer at once; each layer
/// [`write`](Self::write)s its keys and values, and attends to the [`pages`](Self::pages).
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::attention::{HeadLayout, Sdpa};
/// use candle_fused::cache::PagedCache;
///
/// # fn main() -> candle_core::Result<()> {
/// let new = |t: usize, heads: usize| Tensor::randn(0f32, 1., (t, heads, 64), &Device::Cpu);
/// let heads = HeadLayout::grouped(8, 2, 64);
/// let mut cache = PagedCache::new(1, heads, 100, 16, DType::F32, &Device::Cpu)?; // 1 layer, 100 pages of 16 positions
/// let a = cache.add();
/// cache.grow(a, 40)?; // a prompt
/// cache.write(0, a, &new(40, 2)?, &new(40, 2)?)?;
/// let b = cache.fork(a)?; // another sequence that begins with it, in the same pages
/// for sequence in [a, b] {
///     cache.grow(sequence, 1)?;
///     cache.write(0, sequence, &new(1, 2)?, &new(1, 2)?)?;
/// }
/// // A token of each sequence
/// let pages = [cache.pages(0, a)?, cache.pages(0, b)?];
/// let context = Sdpa::default().forward_varlen_paged(&new(2, 8)?, &[1, 1], &pages)?;
/// assert_eq!((context.dims(), cache.free_pages()), (&[2, 8, 64][..], 96));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PagedCache {
    /// Keys and values of each layer: (pages, page size, key heads, D); (.., D + 4) in u8 if they are quantized
    layers: Vec<[Tensor; 2]>,
    page_size: usize,
    dtype: CacheDType,
    /// The number of sequences that hold each page.
    users: Vec<u32>,
    /// The pages that no sequence has.
    free: Vec<u32>,
    sequences: BTreeMap<SequenceId, Sequence>,
}

/// The pages of a sequence, and its positions in them.
#[derive(Debug, Clone, Default)]
struct Sequence {
    table: Vec<u32>,
    /// The positions in the table, from the first of its first page on.
    held: usize,
    /// The positions before those, which are forgotten: whole pages.
    forgotten: usize,
    /// The length when the last of them were forgotten: queries before it may have seen them.
    forgotten_at: usize,
}

impl PagedCache {
    /// A cache without sequences: for each of `layers` layers, `pages` pages of `page_size` positions. Small pages waste less at the end of
    /// each sequence; 16 and 32 are usual.
    ///
    /// # Errors
    /// When there is no page, or a page has no position, the device cannot allocate them, or this dtype is not available there.
    pub fn new(
        layers: usize,
        heads: HeadLayout,
        pages: usize,
        page_size: usize,
        dtype: impl Into<CacheDType>,
        device: &Device,
    ) -> Result<Self> {
        let dtype = dtype.into();
        let (true, Ok(count)) = (page_size > 0 && pages > 0, u32::try_from(pages)) else {
            candle_core::bail!(
                "cache: expected at least one page, and one position in each, got {pages} pages of {page_size}"
            )
        };
        let pool = || dtype.zeros([pages, page_size, heads.key_heads, heads.dim], device);
        let layers = (0..layers).map(|_| Ok([pool()?, pool()?])).collect::<Result<_>>()?;
        let free = (0..count).rev().collect();
        Ok(Self { layers, page_size, dtype, users: vec![0; pages], free, sequences: BTreeMap::new() })
    }

    /// The positions of a page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// The number of pages of the pool.
    #[must_use]
    pub fn total_pages(&self) -> usize {
        self.users.len()
    }

    /// The number of pages that no sequence holds.
    #[must_use]
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// S, the positions of a sequence so far; its next token has this position.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn len(&self, sequence: SequenceId) -> Result<usize> {
        let sequence = self.sequence(sequence)?;
        Ok(sequence.forgotten + sequence.held)
    }

    /// Begins an empty sequence.
    pub fn add(&mut self) -> SequenceId {
        self.insert(Sequence::default())
    }

    /// Begins a sequence with all that another one has so far, in the same pages. Either may go on: a page that both have is copied for
    /// the first that grows into it.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        let sequence = self.sequence(sequence)?.clone();
        sequence.table.iter().for_each(|&page| self.users[page as usize] += 1);
        Ok(self.insert(sequence))
    }

    /// Ends a sequence.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn remove(&mut self, sequence: SequenceId) -> Result<()> {
        let Some(removed) = self.sequences.remove(&sequence) else { return Err(unknown(sequence)) };
        self.release(&removed.table);
        Ok(())
    }

    /// Makes room for `t` more positions of a sequence in every layer, which [`write`](Self::write) then fills.
    ///
    /// # Errors
    /// When there is no such sequence, or there are not enough free pages; nothing is changed then.
    pub fn grow(&mut self, id: SequenceId, t: usize) -> Result<()> {
        let size = self.page_size;
        let sequence = self.sequence(id)?;
        let Some(held) = sequence.held.checked_add(t) else {
            candle_core::bail!("cache: {t} more positions than {} are too many", sequence.held)
        };
        // The page that the new positions begin in, if other sequences have it, too: it is copied.
        let at = sequence.held / size;
        let begun = sequence.table.get(at).copied().filter(|_| t > 0);
        let shared = begun.filter(|&page| self.users[page as usize] > 1);
        let more = held.div_ceil(size).saturating_sub(sequence.table.len());
        let needed = more + usize::from(shared.is_some());
        let Some(left) = self.free.len().checked_sub(needed) else {
            candle_core::bail!(
                "cache: {t} more positions of a sequence with {} need {needed} pages of {size} positions, and {} of {} are free; \
                 remove a sequence, or make the cache larger",
                sequence.forgotten + sequence.held,
                self.free.len(),
                self.users.len()
            )
        };
        let copy = shared.zip(self.free.last().copied());
        if let Some((from, to)) = copy {
            for pool in self.layers.iter().flatten() {
                let page = pool.narrow(0, from as usize, 1)?.force_contiguous()?;
                pool.slice_set(&page, 0, to as usize)?;
            }
            self.release(&[from]); // others still have it, so it does not become free
        }
        let mut new = self.free.split_off(left);
        for &page in &new {
            self.users[page as usize] = 1;
        }
        let sequence = self.sequence_mut(id)?;
        if copy.is_some() {
            sequence.table.truncate(at);
            new.reverse(); // the copy first
        }
        sequence.table.extend(new);
        sequence.held = held;
        Ok(())
    }

    /// Writes a layer's keys and values of the last T positions of a sequence, which [`grow`](Self::grow) has made since the last
    /// [`fork`](Self::fork).
    ///
    /// # Shapes
    /// `k`, `v` (T, key heads, D)
    ///
    /// # Errors
    /// When there is no such layer or sequence, the shapes do not fit, the sequence has fewer positions, another sequence
    /// shares them, or a number to quantize is not finite; nothing is written then.
    pub fn write(&self, layer: usize, sequence: SequenceId, k: &Tensor, v: &Tensor) -> Result<()> {
        let sequence = self.sequence(sequence)?;
        let pools = self.layer(layer)?;
        let t = k.dim(0)?;
        if t == 0 && v.dim(0)? == 0 {
            return Ok(());
        }
        let size = self.page_size;
        let rows = [self.dtype.rows(k)?, self.dtype.rows(v)?];
        for (rows, pool) in rows.iter().zip(pools) {
            let (_, _, heads, width) = pool.dims4()?;
            let fits = rows.dims() == [t, heads, width] && rows.device().same_device(pool.device());
            if !fits || t > sequence.held {
                candle_core::bail!(
                    "cache: keys and values of up to {} positions in {heads} heads must be (T, {heads}, D) alike, as wide as those of \
                     the cache and on its device, got {:?} and {:?}",
                    sequence.held,
                    k.dims(),
                    v.dims()
                )
            }
        }
        let first = (sequence.held - t) / size;
        let written = &sequence.table[first..];
        if written.iter().any(|&page| self.users[page as usize] > 1) {
            candle_core::bail!(
                "cache: other sequences share the last {t} positions of this one; grow it before each write, and fork it after"
            )
        }
        for (rows, pool) in rows.iter().zip(pools) {
            let pool = pool.flatten(0, 1)?; // (positions, key heads, D), the same memory
            let mut done = 0;
            while done < t {
                let position = sequence.held - t + done;
                let page = sequence.table[position / size] as usize;
                let row = position % size;
                let part = (size - row).min(t - done);
                pool.slice_set(&rows.narrow(0, done, part)?, 0, page * size + row)?;
                done += part;
            }
        }
        Ok(())
    }

    /// A layer's keys and values of a sequence, for [`Sdpa::forward_varlen_paged`](crate::attention::Sdpa::forward_varlen_paged).
    /// Positions that were made with [`grow`](Self::grow) and not yet written hold what was there before.
    ///
    /// # Errors
    /// When there is no such layer or sequence.
    pub fn pages(&self, layer: usize, sequence: SequenceId) -> Result<Pages<'_>> {
        let sequence = self.sequence(sequence)?;
        let [k, v] = self.layer(layer)?;
        Ok(Pages { k, v, table: &sequence.table, len: sequence.held })
    }

    /// Takes back all but the first `len` positions of a sequence, and frees the pages behind them.
    ///
    /// # Errors
    /// When there is no such sequence, or it has fewer positions, or had more when its first ones were forgotten: its next query may
    /// see those.
    pub fn rewind(&mut self, id: SequenceId, len: usize) -> Result<()> {
        let size = self.page_size;
        let sequence = self.sequence_mut(id)?;
        let held = len.checked_sub(sequence.forgotten).filter(|held| *held <= sequence.held);
        let Some(held) = held.filter(|_| len >= sequence.forgotten_at) else {
            candle_core::bail!(
                "cache: a sequence cannot go back to {len} positions: there are {}, and the first {} were forgotten when there were {}",
                sequence.forgotten + sequence.held,
                sequence.forgotten,
                sequence.forgotten_at
            )
        };
        sequence.held = held;
        let pages = sequence.table.split_off(held.div_ceil(size));
        self.release(&pages);
        Ok(())
    }

    /// Frees the pages of a sequence that hold only positions before `position`, which no later query sees: for
    /// [windows](crate::attention::Window::sliding), which count from the end. The sequence cannot go back from there.
    ///
    /// # Errors
    /// When there is no such sequence, or it has fewer positions.
    pub fn forget_before(&mut self, id: SequenceId, position: usize) -> Result<()> {
        let size = self.page_size;
        let sequence = self.sequence_mut(id)?;
        let len = sequence.forgotten + sequence.held;
        if position > len {
            candle_core::bail!("cache: a sequence of {len} positions has none before {position}")
        }
        let pages = position.saturating_sub(sequence.forgotten) / size;
        if pages > 0 {
            sequence.forgotten_at = len;
        }
        sequence.forgotten += pages * size;
        sequence.held -= pages * size;
        let pages: Vec<u32> = sequence.table.drain(..pages).collect();
        self.release(&pages);
        Ok(())
    }

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        /// A number for each sequence of the process: no cache mistakes another's sequence for its own.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = SequenceId(NEXT.fetch_add(1, Ordering::Relaxed));
        self.sequences.insert(id, sequence);
        id
    }

    /// Takes pages from a sequence.
    fn release(&mut self, pages: &[u32]) {
        for &page in pages {
            let users = &mut self.users[page as usize];
            *users -= 1;
            if *users == 0 {
                self.free.push(page);
            }
        }
    }

    fn sequence(&self, id: SequenceId) -> Result<&Sequence> {
        self.sequences.get(&id).ok_or_else(|| unknown(id))
    }

    fn sequence_mut(&mut self, id: SequenceId) -> Result<&mut Sequence> {
        self.sequences.get_mut(&id).ok_or_else(|| unknown(id))
    }

    fn layer(&self, layer: usize) -> Result<&[Tensor; 2]> {
        match self.layers.get(layer) {
            Some(pools) => Ok(pools),
            None => candle_core::bail!("cache: there is no layer {layer}; there are {}", self.layers.len()),
        }
    }
}

fn unknown(id: SequenceId) -> candle_core::Error {
    candle_core::Error::msg(format!("cache: {id:?} is not a sequence of this cache, or was removed")).bt()
}
