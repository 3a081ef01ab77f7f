//! Attention over keys and values in pages, which a table lists: PagedAttention of Kwon et al. 2023.

use super::attend::Attended;
use super::choice::AttentionCode;
use crate::attention::cpu::CpuAttention;
use crate::attention::inputs::{Inputs, Wanted};
use crate::attention::key_ranges::KeyRanges;
use crate::attention::mask::Mask;
use crate::attention::quantized_rows::{check_whole, extra};
use crate::attention::scores::ScoreRules;
use crate::attention::sdpa::Sdpa;
use crate::attention::window::Window;
use crate::cpu::explain::note;
use candle_core::{DType, Layout, Result, Tensor};

/// The keys and values of one sequence: pages of two pools, which many sequences share.
///
/// Position `i` of the sequence is row `i % page size` of page `table[i / page size]`. On the CPU, kernels read pages in place, in
/// the dtypes that [`Sdpa::forward`] reads in place, and compute the same bits as for the same keys one after another. Everything
/// else (gradients, other dtypes, plain operations, GPUs) gathers a sequence's pages first; chosen weights gather its keys.
/// [`PagedCache`](crate::cache::PagedCache) hands out pages.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::attention::{Mask, Pages, Sdpa};
///
/// # fn main() -> candle_core::Result<()> {
/// let pool = Tensor::randn(0f32, 1., (10, 32, 2, 64), &Device::Cpu)?; // 10 pages of 32 positions
/// let pages = Pages { k: &pool, v: &pool, table: &[7, 0, 3], len: 70 };
/// let q = Tensor::randn(0f32, 1., (1, 8, 1, 64), &Device::Cpu)?; // the query of position 69
/// let context = Sdpa::default().forward_paged(&q, pages, Mask::default())?;
/// assert_eq!(context.dims(), [1, 1, 8, 64]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Pages<'a> {
    /// (pages, page size, key heads, D), with any strides; (.., D + 4) if its rows are [quantized](crate::attention::quantize_rows).
    pub k: &'a Tensor,
    /// (pages, page size, key heads, Dv), with any strides; (.., Dv + 4) if its rows are quantized.
    pub v: &'a Tensor,
    /// The sequence's pages in order. Pages beyond its last position are not read.
    pub table: &'a [u32],
    /// S, the positions of the sequence.
    pub len: usize,
}

impl Pages<'_> {
    /// The pages that hold a position; fails if the pools or the table cannot hold the sequence.
    fn used(&self) -> Result<&[u32]> {
        let (pages, size, heads, _) = self.k.dims4()?;
        if self.v.dims4()? != (pages, size, heads, self.v.dim(3)?) {
            candle_core::bail!(
                "attention: pools of keys and values must be (pages, page size, key heads, width) alike, got k {:?} and v {:?}",
                self.k.dims(),
                self.v.dims()
            )
        }
        let used = if size == 0 { None } else { self.table.get(..self.len.div_ceil(size)) };
        let Some(used) = used else {
            candle_core::bail!(
                "attention: {} positions do not fit a table of {} pages of {size} positions each",
                self.len,
                self.table.len()
            )
        };
        if let Some(page) = used.iter().find(|&&page| page as usize >= pages) {
            candle_core::bail!(
                "attention: page {page} of a sequence is not among the {pages} pages of the pool"
            )
        }
        Ok(used)
    }

    /// Describes a call with these pages like one whose keys and values lie one after another.
    fn inputs(&self, q: &Tensor, mask: Mask) -> Result<Inputs> {
        let in_a_row = |pool: &Tensor| {
            let (_, _, heads, width) = pool.dims4()?;
            Result::Ok(Layout::contiguous((1, heads, self.len, width)))
        };
        Ok(Inputs {
            layouts: [q.layout().clone(), in_a_row(self.k)?, in_a_row(self.v)?],
            ..Inputs::from_tensors(q, self.k, self.v, mask)
        })
    }

    /// Keys and values one after another: (1, key heads, S, D) and (1, key heads, S, Dv), with gradients.
    ///
    /// # Errors
    /// When the table does not fit the pools or the length.
    pub fn gather(&self) -> Result<[Tensor; 2]> {
        Ok([self.gather_from(self.k)?, self.gather_from(self.v)?])
    }

    fn gather_from(&self, pool: &Tensor) -> Result<Tensor> {
        let used = self.used()?;
        if pool.dtype() == DType::U8 {
            check_whole(pool.layout())?;
        }
        let pages = if used.is_empty() {
            pool.narrow(0, 0, 0)?
        } else if pool.is_contiguous() {
            pool.index_select(&Tensor::new(used, pool.device())?, 0)?
        } else {
            let page = |page: &u32| pool.narrow(0, *page as usize, 1);
            Tensor::cat(&used.iter().map(page).collect::<Result<Vec<_>>>()?, 0)?
        };
        let rows = pages.flatten(0, 1)?; // (positions, key heads, D)
        rows.narrow(0, 0, self.len)?.transpose(0, 1)?.unsqueeze(0)
    }
}

impl Sdpa {
    /// [`forward`](Self::forward) over keys and values in pages.
    ///
    /// # Shapes
    /// `q` (1, H, T, D) -> (1, T, H, Dv)
    ///
    /// # Errors
    /// When [`forward`](Self::forward) refuses such inputs, or the table does not fit the pools or the length.
    pub fn forward_paged(&self, q: &Tensor, pages: Pages, mask: Mask) -> Result<Tensor> {
        Ok(self.attend_paged(q, pages, mask, Wanted::default())?.context)
    }

    /// [`attend`](Self::attend) over keys and values in pages. Chosen weights cost a copy of the sequence's keys.
    ///
    /// # Shapes
    /// `q` (1, H, T, D) -> see [`Attended`]
    ///
    /// # Errors
    /// When [`attend`](Self::attend) refuses such inputs, or the table does not fit the pools or the length.
    pub fn attend_paged(&self, q: &Tensor, pages: Pages, mask: Mask, wanted: Wanted) -> Result<Attended> {
        self.attend_paged_after(q, pages, mask, wanted, 0)
    }

    /// [`attend_paged`](Self::attend_paged), where the first rows of dropout's mask belong to other sequences.
    pub(super) fn attend_paged_after(
        &self,
        q: &Tensor,
        pages: Pages,
        mask: Mask,
        wanted: Wanted,
        rows_before: usize,
    ) -> Result<Attended> {
        let table = pages.used()?;
        let inputs = pages.inputs(q, mask)?;
        self.check(&inputs, mask)?;
        let [of_q, of_k, of_v] = inputs.dtypes;
        let learns = inputs.gradient || inputs.added_gradient || self.learns_sinks();
        let in_place = inputs.has_narrow_keys() || (of_q == of_k && of_q == of_v);
        if learns || !in_place || !self.has_cpu_kernel(&inputs) {
            let [k, v] = pages.gather()?;
            return self.attend_after(q, &k, &v, mask, wanted, rows_before);
        }
        let dropout = self.checked_dropout(q, rows_before)?;
        note(|| self.explained(&inputs, mask, &AttentionCode::Cpu, true));
        let rules = ScoreRules::new(self, mask, q, pages.len)?;
        let op = CpuAttention::new(rules, dropout, wanted).in_pages(table);
        let attended = self.run(op, [q, pages.k, pages.v], mask)?;
        if wanted.weights.is_empty() {
            return Ok(attended);
        }
        let k = pages.gather_from(pages.k)?;
        let of = |chosen| self.weights_under(q, &k, mask, chosen, dropout.as_ref());
        Ok(Attended { weights: wanted.weights.iter().map(of).collect::<Result<_>>()?, ..attended })
    }

    /// [`forward_varlen`](Self::forward_varlen) over sequences in pages: sequence n has the next `queries[n]` queries and the keys
    /// of `pages[n]`. The sequences run one after another, each on all threads.
    ///
    /// # Shapes
    /// `q` (all queries, H, D) -> (all queries, H, Dv)
    ///
    /// # Errors
    /// When the shapes do not fit each other or the lengths, or a table its pools.
    pub fn forward_varlen_paged(&self, q: &Tensor, queries: &[usize], pages: &[Pages]) -> Result<Tensor> {
        self.forward_varlen_paged_in(q, queries, pages, &[])
    }

    /// [`forward_varlen_paged`](Self::forward_varlen_paged), where sequence n sees what `ranges[n]` lists instead of the window, if there
    /// is such a list.
    pub(crate) fn forward_varlen_paged_in(
        &self,
        q: &Tensor,
        queries: &[usize],
        pages: &[Pages],
        ranges: &[Option<KeyRanges>],
    ) -> Result<Tensor> {
        let (all, heads, _) = q.dims3()?;
        let sum = queries.iter().fold(0usize, |sum, n| sum.saturating_add(*n));
        let (true, [first_pages, ..]) = (queries.len() == pages.len() && sum == all, pages) else {
            candle_core::bail!(
                "attention: {sum} queries of {} sequences, but q {:?} and the pages of {}",
                queries.len(),
                q.dims(),
                pages.len()
            )
        };
        let everywhere = Sdpa { window: Window::ALL, ..self.clone() };
        let mut contexts = vec![];
        let mut first = 0;
        for (n, (&t, &pages)) in queries.iter().zip(pages).enumerate().filter(|(_, (t, _))| **t > 0) {
            let part = q.narrow(0, first, t)?.transpose(0, 1)?.unsqueeze(0)?; // (1, H, T, D)
            let ranges = ranges.get(n).and_then(Option::as_ref);
            let sdpa = if ranges.is_some() { &everywhere } else { self };
            let mask = Mask { ranges, ..Mask::default() };
            let before = first * self.layer_heads(heads);
            let attended = sdpa.attend_paged_after(&part, pages, mask, Wanted::default(), before)?;
            contexts.push(attended.context.squeeze(0)?); // (T, H, Dv)
            first += t;
        }
        if contexts.is_empty() {
            let width = first_pages.v.dim(3)?.saturating_sub(extra(first_pages.v.dtype()));
            return Tensor::zeros((0, heads, width), q.dtype(), q.device());
        }
        Tensor::cat(&contexts, 0)
    }
}
