//! Rows of q, k and v in memory, of any dtype, with any strides or in pages, read as f32.

use super::row_steps::FetchFirst;
use super::rows::{self, CHUNK, EvenRows, RowElement, RowStep};
use crate::attention::heads::Query;
use crate::attention::quantized_rows::{self, SCALE_BYTES};
use crate::cpu::cpu_op::CpuInput;
use crate::cpu::element::Element;
use candle_core::{CpuStorage, Layout, Result};
use half::{bf16, f16};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// A head of a row of the batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadAt {
    pub(super) b: usize,
    pub(super) h: usize,
}

impl HeadAt {
    /// Query `i` of the head.
    #[inline(always)]
    pub(super) fn query(self, i: usize) -> Query {
        Query { b: self.b, h: self.h, i }
    }
}

/// The elements of a tensor.
#[derive(Clone, Copy)]
pub(super) enum Elements<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    BF16(&'a [bf16]),
    /// Rows of codes, each with its scale.
    Codes(&'a [u8]),
}

impl<'a> Elements<'a> {
    fn of(storage: &'a CpuStorage) -> Result<Self> {
        Ok(match storage {
            CpuStorage::F32(numbers) => Self::F32(numbers),
            CpuStorage::F16(numbers) => Self::F16(numbers),
            CpuStorage::BF16(numbers) => Self::BF16(numbers),
            CpuStorage::U8(codes) => Self::Codes(codes),
            _ => candle_core::bail!("attention: expected f32, f16, bf16 or codes in 8 bits"),
        })
    }

    fn len(self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::F16(x) => x.len(),
            Self::BF16(x) => x.len(),
            Self::Codes(x) => x.len(),
        }
    }

    /// The number of elements that a row holds besides its numbers: the bytes of a scale after codes, otherwise none.
    fn extra(self) -> usize {
        if matches!(self, Self::Codes(_)) { SCALE_BYTES } else { 0 }
    }
}

/// A tensor (B, H, T, D) with any strides; (B, H, T, D + 4) in memory if its rows are codes. Or the pages of a sequence: T is then
/// the sequence's length.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a> {
    elements: Elements<'a>,
    offset: usize,
    strides: [usize; 4],
    pub(super) dims: [usize; 4],
    pages: Option<InPages<'a>>,
}

/// The pages that hold the rows of a sequence.
#[derive(Clone, Copy)]
struct InPages<'a> {
    table: &'a [u32],
    /// Positions in a page.
    size: u32,
    /// From one page to the next, in elements.
    stride: usize,
}

impl<'a> Heads<'a> {
    pub(super) fn of(CpuInput { storage, layout }: CpuInput<'a>) -> Result<Self> {
        Self::new(Elements::of(storage)?, layout)
    }

    /// # Errors
    /// When the layout is not of rank 4 or reaches beyond `elements`.
    pub(super) fn new(elements: Elements<'a>, layout: &Layout) -> Result<Self> {
        let (b, h, t, width) = layout.shape().dims4()?;
        let stored = [b, h, t, width];
        let dims = [b, h, t, width.saturating_sub(elements.extra())];
        let mut strides = [0; 4];
        strides.copy_from_slice(layout.stride());
        let offset = layout.start_offset();
        let end = stored
            .iter()
            .zip(&strides)
            .try_fold(offset, |end, (n, stride)| end.checked_add(n.saturating_sub(1).checked_mul(*stride)?));
        // A dimension of stride 0 can make the count arbitrarily large.
        let count = stored.iter().try_fold(1usize, |count, n| count.checked_mul(*n));
        if dims.contains(&0) || end.is_none_or(|end| end >= elements.len()) || count.is_none() {
            candle_core::bail!(
                "attention: a layout of {stored:?} with strides {strides:?} is outside its data"
            )
        }
        if matches!(elements, Elements::Codes(_)) {
            quantized_rows::check_whole(layout)?;
        }
        Ok(Self { elements, offset, strides, dims, pages: None })
    }

    /// The `len` rows of a sequence in the pages of `table`: from a pool (pages, page size, H, D) to (1, H, len, D).
    pub(super) fn in_pages(pool: CpuInput<'a>, table: &'a [u32], len: usize) -> Result<Self> {
        let pool = Self::of(pool)?;
        let ([stride, position, head, number], [pages, size, h, d]) = (pool.strides, pool.dims);
        let used =
            table.get(..len.div_ceil(size)).filter(|used| used.iter().all(|page| (*page as usize) < pages));
        let (Some(table @ [_, ..]), Ok(_), Ok(size)) = (used, u32::try_from(len), u32::try_from(size)) else {
            candle_core::bail!(
                "attention: {len} positions are not in pages {table:?} of {pages}, {size} positions each"
            )
        };
        Ok(Self {
            strides: [0, head, position, number],
            dims: [1, h, len, d],
            pages: Some(InPages { table, size, stride }),
            ..pool
        })
    }

    /// The first element of row `i` of a head.
    #[inline(always)]
    fn start(&self, head: HeadAt, i: usize) -> usize {
        let [of_row, of_head, of_position, _] = self.strides;
        let in_heads = match self.pages {
            None => head.b * of_row + i * of_position,
            #[allow(clippy::cast_possible_truncation)] // `in_pages` has checked the length
            Some(InPages { table, size, stride }) => {
                let page = i as u32 / size;
                let position = i as u32 % size;
                table[page as usize] as usize * stride + position as usize * of_position
            }
        };
        self.offset + in_heads + head.h * of_head
    }

    /// Whether the numbers of a row lie side by side, so that steps read them in place.
    fn in_rows(&self) -> bool {
        self.strides[3] == 1
    }

    /// Fetches the first of the rows that are read next, if steps read them in place.
    #[inline(always)]
    pub(super) fn fetch_first<S: Simd>(&self, simd: S, head: HeadAt, next: &[Range<usize>]) {
        if let Some(rows) = next.first().filter(|_| self.in_rows()) {
            self.take(simd, head, rows.clone(), &mut FetchFirst::default());
        }
    }

    /// Runs a step on some rows of a head, in order, as many at a time as lie at one distance from each other.
    #[inline(always)]
    pub(super) fn take<S: Simd>(&self, simd: S, head: HeadAt, rows: Range<usize>, step: &mut impl RowStep) {
        match self.elements {
            Elements::F32(x) => self.take_from(simd, x, head, rows, step),
            Elements::F16(x) => self.take_from(simd, x, head, rows, step),
            Elements::BF16(x) => self.take_from(simd, x, head, rows, step),
            Elements::Codes(x) => self.take_from(simd, x, head, rows, step),
        }
    }

    #[inline(always)]
    fn take_from<S: Simd, E: RowElement>(
        &self,
        simd: S,
        elements: &[E],
        head: HeadAt,
        rows: Range<usize>,
        step: &mut impl RowStep,
    ) {
        let d = self.dims[3];
        let [_, _, stride, within] = self.strides;
        let mut side_by_side = vec![];
        let mut first = rows.start;
        while first < rows.end {
            let most = match self.pages {
                _ if within != 1 => CHUNK,
                None => rows.len(),
                Some(InPages { size, .. }) => size as usize - first % size as usize,
            };
            let count = most.min(rows.end - first);
            let start = self.start(head, first);
            if within == 1 {
                let more = if self.pages.is_some() { 0 } else { self.dims[2] - first - count };
                rows::run(simd, step, EvenRows::new(&elements[start..], stride, count, d, more), first);
            } else {
                let row = d + E::EXTRA;
                side_by_side.clear();
                for i in first..first + count {
                    let start = self.start(head, i);
                    side_by_side.extend((0..row).map(|c| elements[start + c * within]));
                }
                rows::run(simd, step, EvenRows::new(&side_by_side, row, count, d, 0), first);
            }
            first += count;
        }
    }

    /// Row `i` of a head as f32: borrowed in place if memory holds it that way, otherwise copied into `scratch` (D).
    #[inline(always)]
    pub(super) fn row<'b, S: Simd>(
        &self,
        simd: S,
        head: HeadAt,
        i: usize,
        scratch: &'b mut [f32],
    ) -> &'b [f32]
    where
        'a: 'b,
    {
        let start = self.start(head, i);
        let stride = self.strides[3];
        let d = self.dims[3];
        if let (Elements::F32(numbers), 1) = (self.elements, stride) {
            return &numbers[start..start + d];
        }
        let out = &mut scratch[..d];
        simd.vectorize(WidenRow { elements: self.elements, start, stride, out: &mut *out });
        out
    }
}

/// Writes the row from element `start` on, whose elements lie `stride` apart, as f32. A function of its own: each place that
/// reads rows would otherwise hold the code for all dtypes.
struct WidenRow<'a> {
    elements: Elements<'a>,
    start: usize,
    stride: usize,
    out: &'a mut [f32],
}

impl WithSimd for WidenRow<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { elements, start, stride, out } = self;
        match elements {
            Elements::F32(x) => widen(&x[start..], stride, out),
            Elements::F16(x) => widen(&x[start..], stride, out),
            Elements::BF16(x) => widen(&x[start..], stride, out),
            Elements::Codes(x) if stride == 1 => {
                quantized_rows::widen(&x[start..start + out.len() + SCALE_BYTES], out);
            }
            Elements::Codes(x) => {
                let at = |i: usize| x[start + i * stride];
                let scale = std::array::from_fn(|i| at(out.len() + i));
                for (c, number) in out.iter_mut().enumerate() {
                    *number = quantized_rows::number(at(c), scale);
                }
            }
        }
    }
}

#[inline(always)]
fn widen<E: Element>(row: &[E], stride: usize, out: &mut [f32]) {
    if stride == 1 {
        return E::widen(&row[..out.len()], out);
    }
    for (c, number) in out.iter_mut().enumerate() {
        *number = row[c * stride].to_f32();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each layout with the numbers that it reaches, and with one less.
    #[test]
    fn a_layout_stays_inside_its_data() {
        let data = [0f32; 200];
        let of = |data, layout: &Layout| Heads::new(Elements::F32(data), layout);
        for (dims, strides, offset, reach) in [
            ([2, 3, 4, 5], [60, 20, 5, 1], 0, 120),
            ([2, 3, 4, 5], [60, 20, 5, 1], 10, 130),
            ([1, 1, 4, 5], [0, 0, 10, 2], 1, 1 + 3 * 10 + 4 * 2 + 1),
            ([9, 3, 4, 5], [0, 20, 5, 1], 0, 60),
            ([1, 1, 1, 1], [7, 7, 7, 7], 199, 200),
        ] {
            let layout = Layout::new(dims.to_vec().into(), strides.to_vec(), offset);
            assert!(of(&data[..reach], &layout).is_ok_and(|heads| heads.dims == dims), "{layout:?}");
            assert!(of(&data[..reach - 1], &layout).is_err(), "{layout:?}");
        }
        for (dims, strides, offset) in [
            ([2, 3, 0, 5], [0; 4], 0),
            ([0, 3, 4, 5], [0; 4], 0),
            ([1, 1, 1, 1], [1; 4], 201),
            ([1 << 32, 1 << 32, 1, 1], [0; 4], 0), // more rows than can be counted
            ([1, 1, 5, 8], [0, 0, 1 << 62, 1], 0), // a distance whose sum wraps to 0
        ] {
            let layout = Layout::new(dims.to_vec().into(), strides.to_vec(), offset);
            assert!(of(&data, &layout).is_err(), "{layout:?}");
        }
        assert!(of(&data, &Layout::contiguous((4, 5))).is_err());
    }

    #[test]
    fn a_row_of_codes_has_room_for_its_scale() {
        let data = [0u8; 10];
        let heads = |width: usize| Heads::new(Elements::Codes(&data), &Layout::contiguous((1, 1, 2, width)));
        assert!(heads(5).is_ok_and(|heads| heads.dims == [1, 1, 2, 1]));
        assert!(heads(4).is_err() && heads(6).is_err());
    }
}
