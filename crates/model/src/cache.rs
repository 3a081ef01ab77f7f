//! The cache of keys and values, with one allocation per layer.

use crate::Config;
use candle_core::{DType, Device, Result, Tensor};
use gpt2_kernels::attention::{HeadLayout, packed_part};

/// Keys and values of all layers for up to `capacity` positions.
///
/// Each layer holds one tensor (B, 2, H, capacity, D), allocated once and written in place. A decoded token
/// costs its own row and no copy of the past, and each head's keys and values are read in memory order.
/// Writing in place keeps no gradient: a cache is for inference.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<LayerCache>,
    capacity: usize,
    len: usize,
}

/// The cache of one layer, for a [`CausalSelfAttention`](crate::CausalSelfAttention) on its own.
#[derive(Debug)]
pub struct LayerCache {
    kv: Tensor, // (B, 2, H, capacity, D)
    len: usize,
}

impl KvCache {
    /// An empty cache for `batch` rows of up to `capacity` tokens. Its `dtype` may be f16 or bf16 under a model in f32: on the
    /// CPU, attention then reads half as many bytes of keys and values.
    ///
    /// # Errors
    /// When `capacity` is above `config.n_positions`, or the device cannot allocate it.
    pub fn new(
        config: &Config,
        batch: usize,
        capacity: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let layers = (0..config.n_layer)
            .map(|_| LayerCache::new(config, batch, capacity, dtype, device))
            .collect::<Result<_>>()?;
        Ok(Self { layers, capacity, len: 0 })
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

    /// Forgets all but the first `len` positions.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        for layer in &mut self.layers {
            layer.len = self.len;
        }
    }

    pub(crate) fn check_room(&mut self, batch: usize, t: usize, n_layer: usize) -> Result<()> {
        self.truncate(self.len); // drops what a failed forward pass left in some layers
        let held = self.layers.first().map_or(batch, |l| l.kv.dims()[0]);
        if held != batch || self.layers.len() != n_layer {
            candle_core::bail!(
                "KvCache: made for a batch of {held} and {} layers, got a batch of {batch} and {n_layer} layers",
                self.layers.len()
            )
        }
        check_fits(self.len, t, self.capacity)
    }

    pub(crate) fn layer_mut(&mut self, layer_idx: usize) -> Option<&mut LayerCache> {
        self.layers.get_mut(layer_idx)
    }

    pub(crate) fn advance(&mut self, t: usize) {
        self.len += t;
    }
}

impl LayerCache {
    /// An empty cache of one layer for `batch` rows of up to `capacity` tokens.
    ///
    /// # Errors
    /// When `capacity` is above `config.n_positions`, or the device cannot allocate it.
    pub fn new(
        config: &Config,
        batch: usize,
        capacity: usize,
        dtype: DType,
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
    /// When the device cannot allocate it.
    pub fn with_heads(
        heads: HeadLayout,
        batch: usize,
        capacity: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let shape = (batch, 2, heads.heads, capacity, heads.dim);
        Ok(Self { kv: Tensor::zeros(shape, dtype, device)?, len: 0 })
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
        self.len = 0;
    }

    /// [`len`](Self::len) under `candle_nn`'s name.
    #[must_use]
    pub fn current_seq_len(&self) -> usize {
        self.len()
    }

    /// Writes the keys and values of T new positions and returns those of all S held.
    ///
    /// # Shapes
    /// `k`, `v` (B, H, T, D) -> views (B, H, S, D)
    ///
    /// # Errors
    /// When there is no room for T more, or a shape does not fit.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        self.write(&Tensor::stack(&[k, v], 1)?)
    }

    /// Like [`append`](Self::append), for keys and values side by side.
    ///
    /// `kv` (B, T, 2, H, D) -> k, v: views (B, H, S, D)
    pub(crate) fn append_packed(&mut self, kv: &Tensor) -> Result<(Tensor, Tensor)> {
        self.write(&kv.permute((0, 2, 3, 1, 4))?) // (B, 2, H, T, D)
    }

    /// `kv` (B, 2, H, T, D) -> k, v: views (B, H, S, D)
    fn write(&mut self, kv: &Tensor) -> Result<(Tensor, Tensor)> {
        let (capacity, t) = (self.kv.dim(3)?, kv.dim(3)?);
        check_fits(self.len, t, capacity)?;
        let kv = kv.to_dtype(self.kv.dtype())?.contiguous()?;
        self.kv.slice_set(&kv, 3, self.len)?;
        self.len += t;
        let held = self.kv.narrow(3, 0, self.len)?; // (B, 2, H, S, D)
        Ok((held.narrow(1, 0, 1)?.squeeze(1)?, held.narrow(1, 1, 1)?.squeeze(1)?))
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

/// k and v from a packed pair, with the head axis moved to the front: (B, S, 2, H, D) -> two views (B, H, S, D).
pub(crate) fn split_kv(kv: &Tensor) -> Result<(Tensor, Tensor)> {
    Ok((packed_part(kv, 0)?, packed_part(kv, 1)?))
}
