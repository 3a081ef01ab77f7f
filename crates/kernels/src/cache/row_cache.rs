//! [`RowCache`]: keys or values, appended in place.

use super::dtype::CacheDType;
use crate::gpu::append_at::AppendAt;
use crate::linear::weight::Weight;
use crate::pointwise::norm::input::InputNorm;
use candle_core::{Device, Result, Tensor, TensorId};

/// The rows of some heads for up to `capacity` positions, in one tensor (B, heads, capacity, D) that is allocated once: a new token
/// costs its own row and no copy of the past, and each head's rows are read in memory order.
#[derive(Debug)]
pub struct RowCache {
    /// (B, heads, capacity, D); (.., D + 4) in u8 if its rows are quantized
    rows: Tensor,
    dtype: CacheDType,
    /// D
    width: usize,
    len: usize,
    /// u32 (1): the number of positions for the GPU to read, see [`follow`](Self::follow)
    past: Option<Tensor>,
}

impl RowCache {
    /// An empty cache of these sizes: B texts, heads in each, the capacity, and D numbers in a row.
    ///
    /// # Errors
    /// When the device cannot allocate it, or this dtype is not available there.
    pub fn new(sizes: [usize; 4], dtype: impl Into<CacheDType>, device: &Device) -> Result<Self> {
        let dtype = dtype.into();
        Ok(Self { rows: dtype.zeros(sizes, device)?, dtype, width: sizes[3], len: 0, past: None })
    }

    /// S, the positions held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Names the memory of the rows: a copy has another.
    #[must_use]
    pub fn memory(&self) -> TensorId {
        self.rows.id()
    }

    /// Whether no position is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The positions that can be held.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.rows.dims()[2]
    }

    /// B, the number of texts.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.rows.dims()[0]
    }

    /// The number of heads of each text.
    #[must_use]
    pub fn heads(&self) -> usize {
        self.rows.dims()[1]
    }

    /// D, the numbers of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The number format of the rows.
    #[must_use]
    pub fn dtype(&self) -> CacheDType {
        self.dtype
    }

    /// Lets the GPU read in `past` how many positions are held, so that one launch fits all lengths: for a [`CudaGraph`] that appends a
    /// position at each launch. For the host the cache looks full but for one position, until [`settle`](Self::settle). Only
    /// [`append_product`](Self::append_product) and [`append_normed_product`](Self::append_normed_product) append to it then, and only
    /// [`Sdpa::forward_at`] reads it rightly. What has no room is left out.
    ///
    /// # Shapes
    /// `past` u32 (1), on the cache's GPU
    ///
    /// [`CudaGraph`]: crate::CudaGraph
    /// [`Sdpa::forward_at`]: crate::attention::Sdpa::forward_at
    pub fn follow(&mut self, past: &Tensor) {
        self.past = Some(past.clone());
        self.len = self.capacity().saturating_sub(1);
    }

    /// Ends [`follow`](Self::follow): `len` positions are held, or as many as there is room for.
    pub fn settle(&mut self, len: usize) {
        self.past = None;
        self.len = len.min(self.capacity());
    }

    /// The number of positions that the GPU reads, between [`follow`](Self::follow) and [`settle`](Self::settle).
    #[must_use]
    pub fn past(&self) -> Option<&Tensor> {
        self.past.as_ref()
    }

    /// Writes the rows of T new positions and returns the rows of all S held. Earlier views see later writes.
    ///
    /// # Shapes
    /// `x` (B, heads, T, D) -> a view (B, heads, S, D), or (B, heads, S, D + 4) of quantized rows
    ///
    /// # Errors
    /// When there is no room for T more, the shape does not fit, or a number to quantize is not finite; the cache is then as before.
    pub fn append(&mut self, x: &Tensor) -> Result<Tensor> {
        let x = self.to_append(x)?;
        self.write(&x)
    }

    /// `x` (B, heads, T, D) as this cache holds it.
    pub(super) fn to_append(&self, x: &Tensor) -> Result<Tensor> {
        let rows = self.dtype.rows(x)?;
        let ((b, heads, _, width), (of_b, of_heads, _, of_width)) = (rows.dims4()?, self.rows.dims4()?);
        if (b, heads, width) != (of_b, of_heads, of_width) || !x.device().same_device(self.rows.device()) {
            candle_core::bail!(
                "cache: rows {:?} on {:?} do not fit a cache of {} (B, heads, capacity, width) {:?} on {:?}",
                x.dims(),
                x.device().location(),
                self.dtype.as_str(),
                self.rows.dims(),
                self.rows.device().location()
            )
        }
        Ok(rows)
    }

    /// Whether it is for rows of B texts, these heads and D numbers on this device.
    pub(super) fn has(&self, [b, heads, d]: [usize; 3], device: &Device) -> bool {
        (self.batch(), self.heads(), self.width) == (b, heads, d) && self.rows.device().same_device(device)
    }

    /// Appends what [`to_append`](Self::to_append) made.
    pub(super) fn write(&mut self, x: &Tensor) -> Result<Tensor> {
        let t = x.dim(2)?;
        let capacity = self.capacity();
        if self.past.is_some() {
            candle_core::bail!(
                "cache: the GPU alone knows how many positions it holds, and no kernel appends these rows there; such a cache \
                 needs fused attention, the dtype of the rows, and a plain weight of its own with a bias"
            )
        }
        if t > capacity - self.len {
            candle_core::bail!(
                "cache: {} positions are held and {t} more do not fit the capacity of {capacity}; start a new cache or shorten \
                 the text",
                self.len
            )
        }
        self.rows.slice_set(x, 2, self.len)?;
        self.len += t;
        self.rows()
    }

    /// Appends the last columns of `x·W + bias`, which are the rows of this cache's heads side by side, in the pass that adds the bias;
    /// returns the columns before, as heads, and the rows of all S held. `None` where no kernel does that: only on CUDA, not with
    /// [`Implementation::Eager`](crate::Implementation::Eager), without a gradient, for shapes that fit, in the dtype of `x`.
    ///
    /// # Shapes
    /// `x` (B, T, in), `bias` (out) -> (B, T, out / D - heads, D), and a view (B, heads, S, D)
    ///
    /// # Errors
    /// When the product fails; the cache is then as before.
    pub fn append_product(
        &mut self,
        weight: &Weight,
        bias: Option<&Tensor>,
        x: &Tensor,
    ) -> Result<Option<(Tensor, Tensor)>> {
        self.append_by(weight, bias, x, None)
    }

    /// [`append_product`](Self::append_product) of the layer norm of `x` by `norm`, in one launch: `None` also for more than 8 rows of
    /// `x`.
    ///
    /// # Shapes
    /// `x` (B, T, in), a norm's weight and bias (in), `bias` (out) -> (B, T, out / D - heads, D), and a view (B, heads, S, D)
    ///
    /// # Errors
    /// When the norm does not fit `x`, or the product fails; the cache is then as before.
    pub fn append_normed_product(
        &mut self,
        weight: &Weight,
        bias: Option<&Tensor>,
        x: &Tensor,
        norm: InputNorm,
    ) -> Result<Option<(Tensor, Tensor)>> {
        self.append_by(weight, bias, x, Some(norm))
    }

    fn append_by(
        &mut self,
        weight: &Weight,
        bias: Option<&Tensor>,
        x: &Tensor,
        norm: Option<InputNorm>,
    ) -> Result<Option<(Tensor, Tensor)>> {
        let [b, t, _] = *x.dims() else { return Ok(None) };
        let heads = weight.shape().1 / self.width.max(1);
        let fits = b == self.batch()
            && t <= self.capacity() - self.len
            && heads >= self.heads()
            && heads * self.width == weight.shape().1
            && self.dtype == CacheDType::Plain(x.dtype());
        if !fits {
            return Ok(None);
        }
        let at = AppendAt { past: self.len, on_gpu: self.past.as_ref() };
        let Some(y) = weight.forward_into(x, bias, norm, &self.rows, at)? else { return Ok(None) };
        self.len += t;
        let before = y.reshape((b, t, heads, self.width))?.narrow(2, 0, heads - self.heads())?;
        Ok(Some((before, self.rows()?)))
    }

    /// The rows of all positions held: a view (B, heads, S, D), or (.., D + 4) of quantized rows.
    ///
    /// # Errors
    /// Never for a cache that was made here.
    pub fn rows(&self) -> Result<Tensor> {
        self.rows.narrow(2, 0, self.len)
    }

    /// The rows of the last `count` positions held, or of all if there are fewer: a view.
    pub(super) fn last(&self, count: usize) -> Result<Tensor> {
        let count = count.min(self.len);
        self.rows.narrow(2, self.len - count, count)
    }

    /// Forgets all but the first `len` positions, and keeps the memory.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// A cache of the same rows that goes its own way from here on, with memory of its own.
    ///
    /// # Errors
    /// When the device cannot allocate it.
    pub fn fork(&self) -> Result<Self> {
        self.of_rows(&self.rows()?)
    }

    /// An empty cache for other texts, with the same heads, width and dtype.
    ///
    /// # Errors
    /// When the device cannot allocate it.
    pub fn like(&self, batch: usize, capacity: usize) -> Result<Self> {
        Self::new([batch, self.heads(), capacity, self.width], self.dtype, self.rows.device())
    }

    /// A cache like this one that holds these rows, (B', heads, S, D), or (.., D + 4) of quantized rows, in memory of its own.
    fn of_rows(&self, rows: &Tensor) -> Result<Self> {
        let copy = self.like(rows.dim(0)?, self.capacity())?;
        if self.len > 0 {
            copy.rows.slice_set(&rows.contiguous()?, 2, 0)?;
        }
        Ok(Self { len: self.len, ..copy })
    }

    /// A cache of some `texts` of this one and, after these, all texts of `others`. All end at position `len`: of longer ones it has
    /// the last positions, and zeros stand before shorter ones, for a mask to hide.
    ///
    /// # Errors
    /// When a text does not exist, heads, widths, dtypes or devices differ, `len` is above `capacity`, or the device cannot allocate it.
    pub fn joined(&self, texts: &[u32], others: &[&Self], len: usize, capacity: usize) -> Result<Self> {
        let batch = texts.len() + others.iter().map(|other| other.batch()).sum::<usize>();
        if len > capacity {
            candle_core::bail!("cache: {len} positions do not fit a capacity of {capacity}")
        }
        let mut joined = self.like(batch, capacity)?;
        let mut next = 0;
        let mut put = |rows: Tensor| -> Result<()> {
            let [count, _, positions, _] = *rows.dims() else { return Ok(()) };
            if count > 0 && positions > 0 {
                let place = joined.rows.narrow(0, next, count)?;
                place.slice_set(&rows.contiguous()?, 2, len - positions)?;
            }
            next += count;
            Ok(())
        };
        let last = self.last(len)?;
        for &text in texts {
            if text as usize >= self.batch() {
                candle_core::bail!("cache: text {text} does not exist; there are {}", self.batch())
            }
            put(last.narrow(0, text as usize, 1)?)?;
        }
        for other in others {
            put(other.last(len)?)?;
        }
        joined.len = len;
        Ok(joined)
    }

    /// A copy whose text i is text `texts[i]` of this cache, as a search over several texts needs.
    ///
    /// # Errors
    /// When a text does not exist, or the device cannot allocate the copy.
    pub fn with_texts(&self, texts: &[u32]) -> Result<Self> {
        if let Some(text) = texts.iter().find(|&&text| text as usize >= self.batch()) {
            candle_core::bail!("cache: text {text} does not exist; there are {}", self.batch())
        }
        let texts = Tensor::new(texts, self.rows.device())?;
        self.of_rows(&self.rows()?.contiguous()?.index_select(&texts, 0)?)
    }
}
