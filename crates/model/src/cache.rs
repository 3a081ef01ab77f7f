//! The cache of keys and values, with one allocation per layer.

use crate::Config;
use candle_core::{DType, Device, Result, Tensor, TensorId};
use candle_fused::attention::{HeadLayout, SCALE_BYTES, quantize_rows, widen_rows};

/// What a cache holds keys and values in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheDType {
    /// Numbers: f64, f32, f16 or bf16.
    Plain(DType),
    /// 8 bits a number, and one scale in f32 for each head and position (`candle_fused::attention::quantize_rows`), under a
    /// model in f32 on the CPU. llama.cpp's type of this name has a scale in f16 for each 32 numbers.
    Q8_0,
}

impl From<DType> for CacheDType {
    fn from(dtype: DType) -> Self {
        Self::Plain(dtype)
    }
}

impl CacheDType {
    /// The name in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plain(dtype) => dtype.as_str(),
            Self::Q8_0 => "q8_0",
        }
    }

    /// The bytes of a key or a value of D numbers.
    #[must_use]
    pub fn bytes_of(self, d: usize) -> usize {
        match self {
            Self::Plain(dtype) => d * dtype.size_in_bytes(),
            Self::Q8_0 => d + SCALE_BYTES,
        }
    }
}

/// Keys and values of all layers for up to `capacity` positions.
///
/// Each layer holds one tensor (B, 2·key heads, capacity, D), allocated once and written in place. A decoded token
/// costs its own row and no copy of the past, and each head's keys and values are read in memory order.
/// Writing in place keeps no gradient: a cache is for inference.
#[derive(Debug)]
pub struct KvCache {
    pub(crate) layers: Vec<LayerCache>,
    capacity: usize,
    len: usize,
    /// Whether a whole pass has left an encoder's keys in the layers.
    has_encoder: bool,
}

/// The cache of one layer, for a [`CausalSelfAttention`](crate::CausalSelfAttention) on its own.
#[derive(Debug)]
pub struct LayerCache {
    kv: Tensor, // (B, 2·key heads, capacity, D): keys, then values; (.., D + 4) in u8 if they are quantized
    len: usize,
    encoder: Option<EncoderKeys>,
}

/// The keys and values that cross-attention computes from an encoder's hidden states.
#[derive(Debug)]
struct EncoderKeys {
    hidden_states: TensorId,
    /// (B, H, S, D), or (B, H, S, D + 4) if it is quantized
    k: Tensor,
    /// As `k`
    v: Tensor,
}

impl KvCache {
    /// An empty cache for `batch` rows of up to `capacity` tokens. Its `dtype` may be f16 or bf16 under a model in f32: on the
    /// CPU, attention then reads half as many bytes of keys and values. [`CacheDType::Q8_0`] takes about a quarter.
    ///
    /// # Errors
    /// When `capacity` is above `config.n_positions`, the device cannot allocate it, or this dtype is not available there.
    pub fn new(
        config: &Config,
        batch: usize,
        capacity: usize,
        dtype: impl Into<CacheDType>,
        device: &Device,
    ) -> Result<Self> {
        let dtype = dtype.into();
        let layers = (0..config.n_layer)
            .map(|_| LayerCache::new(config, batch, capacity, dtype, device))
            .collect::<Result<_>>()?;
        Ok(Self { layers, capacity, len: 0, has_encoder: false })
    }

    /// S, the number of positions held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the cache is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of positions that fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets everything but keeps the memory.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// [`clear`](Self::clear) under `candle_nn`'s name.
    pub fn reset(&mut self) {
        self.clear();
    }

    /// [`len`](Self::len) under `candle_nn`'s name.
    #[must_use]
    pub fn current_seq_len(&self) -> usize {
        self.len()
    }

    /// Forgets all but the first `len` positions. Without any position left, an encoder's keys and values go as well.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.has_encoder &= self.len > 0;
        for layer in &mut self.layers {
            layer.truncate(self.len);
        }
    }

    /// A copy whose row i is row `rows[i]` of this cache, as a search over several texts needs. An encoder's keys are left out.
    ///
    /// # Errors
    /// When a row does not exist, or the device cannot allocate the copy.
    pub fn with_rows(&self, rows: &[u32]) -> Result<Self> {
        let copy = |layer: &LayerCache| {
            let batch = layer.kv.dim(0)?;
            if let Some(row) = rows.iter().find(|&&row| row as usize >= batch) {
                candle_core::bail!("KvCache: row {row} does not exist; the cache has rows 0 to {}", batch - 1)
            }
            let kv = layer.kv.index_select(&Tensor::new(rows, layer.kv.device())?, 0)?;
            Ok(LayerCache { kv, len: layer.len, encoder: None })
        };
        let layers = self.layers.iter().map(copy).collect::<Result<_>>()?;
        Ok(Self { layers, capacity: self.capacity, len: self.len, has_encoder: false })
    }

    pub(crate) fn check_room(&mut self, batch: usize, t: usize, n_layer: usize) -> Result<()> {
        // Drops what a failed forward pass left in some layers.
        self.truncate(self.len);
        if !self.has_encoder {
            self.layers.iter_mut().for_each(|layer| layer.encoder = None);
        }
        let held = self.layers.first().map_or(batch, |l| l.kv.dims()[0]);
        if held != batch || self.layers.len() != n_layer {
            candle_core::bail!(
                "KvCache: made for a batch of {held} and {} layers, got a batch of {batch} and {n_layer} layers",
                self.layers.len()
            )
        }
        check_fits(self.len, t, self.capacity)
    }

    pub(crate) fn advance(&mut self, t: usize) {
        self.len += t;
        self.has_encoder = self.layers.iter().any(|layer| layer.encoder.is_some());
    }
}

impl LayerCache {
    /// An empty cache of one layer for `batch` rows of up to `capacity` tokens.
    ///
    /// # Errors
    /// When `capacity` is above `config.n_positions`, the device cannot allocate it, or this dtype is not available there.
    pub fn new(
        config: &Config,
        batch: usize,
        capacity: usize,
        dtype: impl Into<CacheDType>,
        device: &Device,
    ) -> Result<Self> {
        if capacity > config.n_positions {
            candle_core::bail!(
                "KvCache: {capacity} positions requested, but the model has n_positions = {}",
                config.n_positions
            )
        }
        Self::with_heads(config.heads(), batch, capacity, dtype, device)
    }

    /// Like [`new`](Self::new), for heads of this layout.
    ///
    /// # Errors
    /// When the device cannot allocate it, or this dtype is not available there.
    pub fn with_heads(
        heads: HeadLayout,
        batch: usize,
        capacity: usize,
        dtype: impl Into<CacheDType>,
        device: &Device,
    ) -> Result<Self> {
        let (dtype, width) = match dtype.into() {
            CacheDType::Plain(dtype @ (DType::F64 | DType::F32 | DType::F16 | DType::BF16)) => {
                (dtype, heads.dim)
            }
            CacheDType::Q8_0 if device.is_cpu() => (DType::U8, CacheDType::Q8_0.bytes_of(heads.dim)),
            CacheDType::Q8_0 => candle_core::bail!("KvCache: q8_0 is for the CPU; on a GPU, use f16 or bf16"),
            CacheDType::Plain(dtype) => {
                candle_core::bail!("KvCache: expected f32, f16, bf16, f64 or q8_0, got {}", dtype.as_str())
            }
        };
        let shape = (batch, 2 * heads.key_heads, capacity, width);
        Ok(Self { kv: Tensor::zeros(shape, dtype, device)?, len: 0, encoder: None })
    }

    /// S, the number of positions held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the cache is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets everything but keeps the memory.
    pub fn reset(&mut self) {
        self.truncate(0);
    }

    /// `x` (.., D) as the cache holds it: contiguous, without a gradient.
    fn stored(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.detach();
        if self.kv.dtype() != DType::U8 {
            return x.to_dtype(self.kv.dtype())?.contiguous();
        }
        if x.dtype() != DType::F32 {
            candle_core::bail!(
                "KvCache: q8_0 is for a model in f32, got keys and values in {}",
                x.dtype().as_str()
            )
        }
        quantize_rows(&x).map_err(|e| e.context("KvCache in q8_0"))
    }

    fn truncate(&mut self, len: usize) {
        self.len = len;
        if len == 0 {
            self.encoder = None;
        }
    }

    /// [`len`](Self::len) under `candle_nn`'s name.
    #[must_use]
    pub fn current_seq_len(&self) -> usize {
        self.len()
    }

    /// Fails if the cache holds the keys of another encoder's hidden states than those of this pass.
    pub(crate) fn check_encoder(&self, hidden_states: Option<&Tensor>) -> Result<()> {
        let Some(EncoderKeys { hidden_states: held, .. }) = &self.encoder else { return Ok(()) };
        match hidden_states {
            Some(given) if given.id() == *held => Ok(()),
            Some(_) => candle_core::bail!(
                "KvCache: it holds the keys of other encoder hidden states; pass the same tensor with every token of a text, \
                 and clear the cache before the next text"
            ),
            None => candle_core::bail!(
                "KvCache: it holds an encoder's keys, but the pass has no encoder; pass its hidden states with every token"
            ),
        }
    }

    /// The keys and values of an encoder's hidden states as the cache holds them, from `make` (B, H, S, D) if it holds none yet.
    pub(crate) fn of_encoder(
        &mut self,
        hidden_states: &Tensor,
        make: impl FnOnce() -> Result<(Tensor, Tensor)>,
    ) -> Result<(Tensor, Tensor)> {
        self.check_encoder(Some(hidden_states))?;
        if let Some(EncoderKeys { k, v, .. }) = &self.encoder {
            return Ok((k.clone(), v.clone()));
        }
        let (k, v) = make()?;
        let (k, v) = (self.stored(&k)?, self.stored(&v)?);
        let encoder = EncoderKeys { hidden_states: hidden_states.id(), k: k.clone(), v: v.clone() };
        self.encoder = Some(encoder);
        Ok((k, v))
    }

    /// Writes the keys and values of T new positions and returns those of all S held.
    ///
    /// # Shapes
    /// `k`, `v` (B, key heads, T, D) -> views (B, key heads, S, D), or (B, key heads, S, D + 4) of quantized rows
    ///
    /// # Errors
    /// When there is no room for T more, a shape does not fit, or a number to quantize is not finite.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let heads = self.kv.dim(1)? / 2;
        if k.dims() != v.dims() || k.dim(1)? != heads {
            candle_core::bail!(
                "LayerCache: k and v must be of one shape with {heads} heads, got {:?} and {:?}",
                k.dims(),
                v.dims()
            )
        }
        self.append_packed(&Tensor::cat(&[k, v], 1)?)
    }

    /// Like [`append`](Self::append), for keys and values in one: `kv` (B, 2·key heads, T, D) -> k, v: views
    pub(crate) fn append_packed(&mut self, kv: &Tensor) -> Result<(Tensor, Tensor)> {
        let (capacity, t) = (self.kv.dim(2)?, kv.dim(2)?);
        check_fits(self.len, t, capacity)?;
        let kv = self.stored(kv)?;
        self.kv.slice_set(&kv, 2, self.len)?;
        self.len += t;
        split_kv(&self.kv.narrow(2, 0, self.len)?) // of (B, 2·key heads, S, D)
    }
}

/// Fails if the cache would grow beyond its capacity.
fn check_fits(held: usize, more: usize, capacity: usize) -> Result<()> {
    if held + more > capacity {
        candle_core::bail!(
            "KvCache: {held} positions are held and {more} more do not fit the capacity of {capacity}; \
             start a new cache or shorten the text"
        )
    }
    Ok(())
}

/// The numbers that a cache holds in `x`, in a model's dtype: (.., D)
pub(crate) fn numbers(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == DType::U8 { widen_rows(x)?.to_dtype(dtype) } else { x.to_dtype(dtype) }
}

/// Keys and values apart: (B, 2·key heads, S, D) -> two views (B, key heads, S, D)
pub(crate) fn split_kv(kv: &Tensor) -> Result<(Tensor, Tensor)> {
    let heads = kv.dim(1)? / 2;
    Ok((kv.narrow(1, 0, heads)?, kv.narrow(1, heads, heads)?))
}
