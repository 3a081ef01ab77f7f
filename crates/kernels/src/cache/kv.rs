//! [`KvCache`]: one layer's keys and values.

use super::dtype::CacheDType;
use super::row_cache::RowCache;
use candle_core::{Result, Tensor};

/// The keys and values of one layer, for a batch of texts of one length, in memory that is allocated once, at the first
/// [`append`](Self::append). On the CPU, room that nothing was written to takes no memory of a new cache, so that the
/// capacity can be all positions of a model. No gradient passes through a cache: train without one.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::attention::{Mask, Sdpa, Window};
/// use candle_fused::cache::KvCache;
///
/// # fn main() -> candle_core::Result<()> {
/// let new = |t: usize, heads: usize| Tensor::randn(0f32, 1., (1, heads, t, 64), &Device::Cpu);
/// let mut cache = KvCache::new(512, DType::F32);
/// let (k, v) = cache.append(&new(5, 2)?, &new(5, 2)?)?; // a prompt
/// let context = Sdpa::default().forward(&new(5, 8)?, &k, &v, Mask::default())?;
/// let (k, v) = cache.append(&new(1, 2)?, &new(1, 2)?)?; // a token
/// let context = Sdpa::default().forward(&new(1, 8)?, &k, &v, Mask::default())?;
/// assert_eq!((k.dims(), cache.len()), (&[1, 2, 6, 64][..], 6));
///
/// // Mistral's: a window of 4096 keys in room for twice as many, however long the text
/// let attention = Sdpa { window: Window::sliding(4096), ..Sdpa::default() };
/// let cache = KvCache::sliding(4096, 8192, DType::BF16)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct KvCache {
    capacity: usize,
    dtype: CacheDType,
    window: Option<usize>,
    /// The number of positions before the first that is held.
    forgotten: usize,
    /// Keys, and values.
    rows: Option<[RowCache; 2]>,
}

impl KvCache {
    /// An empty cache for up to `capacity` positions.
    #[must_use]
    pub fn new(capacity: usize, dtype: impl Into<CacheDType>) -> Self {
        Self { capacity, dtype: dtype.into(), window: None, forgotten: 0, rows: None }
    }

    /// An empty cache for texts of any length, whose queries see the last `window` keys, themselves among them
    /// ([`Window::sliding`](crate::attention::Window::sliding)). It holds up to `capacity` positions: with room for twice the window,
    /// the last keys move to its beginning once in a window of tokens.
    ///
    /// # Errors
    /// When the capacity is below the window, or the window is 0.
    pub fn sliding(window: usize, capacity: usize, dtype: impl Into<CacheDType>) -> Result<Self> {
        if window == 0 || capacity < window {
            candle_core::bail!(
                "cache: a window of {window} keys needs at least one, and a capacity of as many positions, got {capacity}"
            )
        }
        Ok(Self { window: Some(window), ..Self::new(capacity, dtype) })
    }

    /// S, the positions so far; the next token has this position.
    #[must_use]
    pub fn len(&self) -> usize {
        self.forgotten + self.held()
    }

    /// [`len`](Self::len) under `candle_nn`'s name.
    #[must_use]
    pub fn current_seq_len(&self) -> usize {
        self.len()
    }

    /// Whether the cache is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of positions that are held: all of them without a window.
    fn held(&self) -> usize {
        self.rows.as_ref().map_or(0, |[keys, _]| keys.len())
    }

    /// Writes the keys and values of T new positions, which are not views of this cache, and returns the keys and values of all S
    /// held: views, which see later writes. With a window, S counts the last positions only, and a chunk beyond the capacity gives copies.
    ///
    /// # Shapes
    /// `k` (B, key heads, T, D), `v` (B, key heads, T, Dv) -> (B, key heads, S, D), (B, key heads, S, Dv); (.., D + 4) and
    /// (.., Dv + 4) of quantized rows
    ///
    /// # Errors
    /// When the system does not give the memory, there is no room for T more, a shape does not fit, or a number to quantize is not
    /// finite; the cache is then as before.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let ((b, heads, t, d), (of_b, of_heads, of_t, dv)) = (k.dims4()?, v.dims4()?);
        if (b, heads, t) != (of_b, of_heads, of_t) {
            candle_core::bail!(
                "cache: keys and values must have as many texts, heads and positions, got {:?} and {:?}",
                k.dims(),
                v.dims()
            )
        }
        let new = |d| RowCache::new([b, heads, self.capacity, d], self.dtype, k.device());
        // An empty cache takes rows of other shapes, in other memory.
        let is_empty = self.is_empty();
        let sizes = [[b, heads, d], [b, heads, dv]];
        let fits = |rows: &[RowCache; 2]| {
            !is_empty || rows.iter().zip(sizes).all(|(rows, of)| rows.has(of, k.device()))
        };
        let (mut rows, is_first) = match self.rows.take().filter(fits) {
            Some(rows) => (rows, false),
            None => ([new(d)?, new(dv)?], true),
        };
        let appended = self.append_to(&mut rows, k, v);
        // What was refused does not settle the shapes.
        if appended.is_ok() || !is_first {
            self.rows = Some(rows);
        }
        appended
    }

    /// Appends to both, or to neither.
    fn append_to(&mut self, rows: &mut [RowCache; 2], k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let [keys, values] = rows;
        if k.dim(2)? == 0 {
            return Ok((keys.rows()?, values.rows()?));
        }
        let k = keys.to_append(k)?;
        let v = values.to_append(v)?;
        let held = keys.len();
        let t = k.dim(2)?;
        let Some(window) = self.window.filter(|_| t > self.capacity - held) else {
            return Ok((keys.write(&k)?, values.write(&v)?));
        };
        // The next query sees itself and those before it.
        let k = Slid::new(keys, &k, window - 1)?;
        let v = Slid::new(values, &v, window - 1)?;
        let appended = (k.write(keys)?, v.write(values)?);
        self.forgotten += held + t - keys.len();
        Ok(appended)
    }

    /// The keys of all positions held, (B, key heads, S, D): a view. `None` before the first [`append`](Self::append). With
    /// [`v`](Self::v), what cross-attention reads in each step after one `append`.
    ///
    /// # Errors
    /// Never for a cache that was made here.
    pub fn k(&self) -> Result<Option<Tensor>> {
        self.rows.as_ref().map(|[keys, _]| keys.rows()).transpose()
    }

    /// The values of all positions held, (B, key heads, S, Dv): a view.
    ///
    /// # Errors
    /// Never for a cache that was made here.
    pub fn v(&self) -> Result<Option<Tensor>> {
        self.rows.as_ref().map(|[_, values]| values.rows()).transpose()
    }

    /// Forgets all but the first `len` positions, and keeps the memory.
    ///
    /// # Errors
    /// When there are fewer, or a window has forgotten some that the next query would see.
    pub fn rewind(&mut self, len: usize) -> Result<()> {
        let forgets = |window: usize| (len + 1).saturating_sub(window) < self.forgotten;
        if len > self.len() || (len < self.len() && self.window.is_some_and(forgets)) {
            candle_core::bail!(
                "cache: it cannot go back to {len} positions: there are {}, of which the first {} are forgotten",
                self.len(),
                self.forgotten
            )
        }
        let held = len - self.forgotten;
        self.rows.iter_mut().flatten().for_each(|rows| rows.truncate(held));
        Ok(())
    }

    /// Forgets everything, and keeps the memory for rows of the same shapes. Others get memory of their own.
    pub fn reset(&mut self) {
        self.forgotten = 0;
        self.rows.iter_mut().flatten().for_each(|rows| rows.truncate(0));
    }

    /// A cache of the same keys and values that goes its own way from here on, with memory of its own.
    ///
    /// # Errors
    /// When the device cannot allocate it.
    pub fn fork(&self) -> Result<Self> {
        let rows = self.rows.as_ref().map(|[k, v]| Result::Ok([k.fork()?, v.fork()?])).transpose()?;
        Ok(Self { rows, ..*self })
    }
}

/// Copies the cache like [`fork`](KvCache::fork), for models that can be cloned.
///
/// # Panics
/// When a GPU has no memory for the copy.
impl Clone for KvCache {
    fn clone(&self) -> Self {
        self.fork().unwrap_or_else(|error| panic!("cache: no memory for a copy: {error}"))
    }
}

/// The rows of a window after new rows beyond the capacity.
struct Slid {
    /// The last rows held before, and the new ones: they may exceed the capacity.
    all: Tensor,
    /// The rows that the next query sees; `None` if the cache has room for `all`.
    next: Option<Tensor>,
}

impl Slid {
    /// For `x` (B, heads, T, D), where the next query sees the last `before` positions.
    fn new(rows: &RowCache, x: &Tensor, before: usize) -> Result<Self> {
        let all = Tensor::cat(&[&rows.last(before)?, x], 2)?;
        let count = all.dim(2)?;
        if count <= rows.capacity() {
            return Ok(Self { all, next: None });
        }
        let kept = before.min(count);
        let next = all.narrow(2, count - kept, kept)?;
        // Candle cannot copy a tensor without elements on a GPU.
        let next = if kept == 0 { next } else { next.force_contiguous()? };
        Ok(Self { all, next: Some(next) })
    }

    /// The rows that the new queries see.
    fn write(self, rows: &mut RowCache) -> Result<Tensor> {
        rows.truncate(0);
        let Some(next) = self.next else { return rows.write(&self.all) };
        if next.dim(2)? > 0 {
            rows.write(&next)?;
        }
        Ok(self.all)
    }
}
