//! The cache of keys and values, with one allocation per layer.

use crate::config::Config;
use crate::gpt2::layers::conv1d::Conv1D;
use crate::gpt2::layers::layer_norm::LayerInput;
use candle_core::{DType, Device, Result, Tensor, TensorId};
use candle_fused::attention::{HeadLayout, widen_rows};
pub use candle_fused::cache::CacheDType;
use candle_fused::cache::RowCache;

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
    /// (B, 2·key heads, S, D): keys, then values
    kv: RowCache,
    encoder: Option<EncoderKeys>,
}

/// The keys and values that cross-attention computes from an encoder's hidden states.
#[derive(Debug)]
struct EncoderKeys {
    hidden_states: TensorId,
    /// (B, H, S, D), or (B, H, S, D + 4) if it is quantized
    k: Tensor,
    /// (B, H, S, D), or (B, H, S, D + 4) if it is quantized
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
            let kv = layer.kv.with_texts(rows).map_err(|e| e.context("KvCache: rows of the copy"))?;
            Result::Ok(LayerCache { kv, encoder: None })
        };
        let layers = self.layers.iter().map(copy).collect::<Result<_>>()?;
        Ok(Self { layers, capacity: self.capacity, len: self.len, has_encoder: false })
    }

    /// B, the number of rows.
    pub(crate) fn batch(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.kv.batch())
    }

    /// An empty cache of as many layers and the same heads and dtype.
    ///
    /// # Errors
    /// When the device cannot allocate it.
    pub(crate) fn like(&self, batch: usize, capacity: usize) -> Result<Self> {
        let new = |layer: &LayerCache| {
            Result::Ok(LayerCache { kv: layer.kv.like(batch, capacity)?, encoder: None })
        };
        let layers = self.layers.iter().map(new).collect::<Result<_>>()?;
        Ok(Self { layers, capacity, len: 0, has_encoder: false })
    }

    /// Forgets everything, and has room for other rows: layer by layer, so that only one layer is there twice.
    ///
    /// # Errors
    /// When the device cannot allocate a layer; some layers may then have changed.
    pub(crate) fn renew(&mut self, batch: usize, capacity: usize) -> Result<()> {
        self.clear();
        for layer in &mut self.layers {
            layer.kv = layer.kv.like(batch, capacity)?;
        }
        self.capacity = capacity;
        Ok(())
    }

    /// Keeps `rows`, adds those of `others`, and moves all to end at position `len`, see [`RowCache::joined`]: layer by layer, so that of
    /// the result only one layer is there beside this cache and the others.
    ///
    /// # Errors
    /// When the device cannot allocate a layer, or a shape does not fit; some layers may then have changed.
    pub(crate) fn join(
        &mut self,
        rows: &[u32],
        others: Vec<Self>,
        len: usize,
        capacity: usize,
    ) -> Result<()> {
        let mut others: Vec<_> = others.into_iter().map(|other| other.layers.into_iter()).collect();
        for layer in &mut self.layers {
            let others: Vec<LayerCache> = others.iter_mut().filter_map(Iterator::next).collect();
            let parts: Vec<&RowCache> = others.iter().map(|other| &other.kv).collect();
            layer.kv = layer
                .kv
                .joined(rows, &parts, len, capacity)
                .map_err(|e| e.context("KvCache: rows that join"))?;
        }
        self.capacity = capacity;
        self.len = len;
        Ok(())
    }

    /// The memory of the first layer; `None` without layers. Layers get other memory together.
    pub(crate) fn memory(&self) -> Option<TensorId> {
        self.layers.first().map(|layer| layer.kv.memory())
    }

    /// The dtype of the keys and values; `None` without layers.
    pub(crate) fn dtype(&self) -> Option<CacheDType> {
        self.layers.first().map(|layer| layer.kv.dtype())
    }

    /// Lets the GPU read in `past`, u32 (1), how many positions are held, see [`RowCache::follow`].
    pub(crate) fn follow(&mut self, past: &Tensor) {
        self.layers.iter_mut().for_each(|layer| layer.kv.follow(past));
        self.len = self.capacity.saturating_sub(1);
    }

    /// Ends [`follow`](Self::follow), with `len` positions held.
    pub(crate) fn settle(&mut self, len: usize) {
        self.layers.iter_mut().for_each(|layer| layer.kv.settle(len));
        self.len = len;
    }

    pub(crate) fn check_room(&mut self, batch: usize, t: usize, n_layer: usize) -> Result<()> {
        // Drops what a failed forward pass left in some layers.
        self.truncate(self.len);
        if !self.has_encoder {
            self.layers.iter_mut().for_each(|layer| layer.encoder = None);
        }
        let held = self.layers.first().map_or(batch, |layer| layer.kv.batch());
        if held != batch || self.layers.len() != n_layer {
            candle_core::bail!(
                "KvCache: made for a batch of {held} and {} layers, got a batch of {batch} and {n_layer} layers",
                self.layers.len()
            )
        }
        if self.len + t > self.capacity {
            candle_core::bail!(
                "KvCache: {} positions are held and {t} more do not fit the capacity of {}; start a new cache or shorten the text",
                self.len,
                self.capacity
            )
        }
        Ok(())
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
        let kv = RowCache::new([batch, 2 * heads.key_heads, capacity, heads.dim], dtype, device)?;
        Ok(Self { kv, encoder: None })
    }

    /// S, the number of positions held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kv.len()
    }

    /// Whether the cache is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kv.is_empty()
    }

    /// Forgets everything but keeps the memory.
    pub fn reset(&mut self) {
        self.truncate(0);
    }

    fn truncate(&mut self, len: usize) {
        self.kv.truncate(len);
        if len == 0 {
            self.encoder = None;
        }
    }

    /// [`len`](Self::len) under `candle_nn`'s name.
    #[must_use]
    pub fn current_seq_len(&self) -> usize {
        self.len()
    }

    /// The number of positions that the GPU reads, if only it knows.
    pub(crate) fn past(&self) -> Option<&Tensor> {
        self.kv.past()
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
        let held = self.kv.dtype();
        let k = held.rows(&k)?;
        let v = held.rows(&v)?;
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
        let heads = self.kv.heads() / 2;
        let (b, _, _, d) = k.dims4()?;
        if k.dims() != v.dims() || k.dim(1)? != heads || b != self.kv.batch() || d != self.kv.width() {
            candle_core::bail!(
                "LayerCache: k and v must be of one shape [{}, {heads}, T, {}], got {:?} and {:?}",
                self.kv.batch(),
                self.kv.width(),
                k.dims(),
                v.dims()
            )
        }
        self.append_packed(&Tensor::cat(&[k, v], 1)?)
    }

    /// The heads of `x·W + b` by one kernel that also appends their keys and values: (B, T, C) -> q (B, T, H, D), and k, v of all S
    /// held: views; `None` if no kernel does that.
    pub(crate) fn append_product(
        &mut self,
        c_attn: &Conv1D,
        input: &mut LayerInput,
    ) -> Result<Option<(Tensor, Tensor, Tensor)>> {
        let Some((q, kv)) = c_attn.run_into(&mut self.kv, input)? else { return Ok(None) };
        let (k, v) = split_kv(&kv)?;
        Ok(Some((q, k, v)))
    }

    /// Like [`append`](Self::append), for keys and values in one: `kv` (B, 2·key heads, T, D) -> k, v: views
    pub(crate) fn append_packed(&mut self, kv: &Tensor) -> Result<(Tensor, Tensor)> {
        split_kv(&self.kv.append(kv)?) // of (B, 2·key heads, S, D)
    }
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
