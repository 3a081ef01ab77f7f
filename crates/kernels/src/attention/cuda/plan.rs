//! Plans an attention: which kernels to launch, over how many blocks, with how much shared memory. A plan holds
//! only numbers, so the tests can run it without a GPU.
//!
//! Some of the structs go to the kernels, in C's layout: `cuda/tiles.cuh` and `cuda/masks.cuh` have the same ones.

use crate::attention::heads::WeightDropout;
use crate::gpu::launch_plan::{GpuLimits, Launch, dtype_name};
use candle_core::{DType, Layout};

/// Strides of a tensor (B, H, positions, D), in elements. D is contiguous.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Strides {
    pub(super) batch: i64,
    pub(super) head: i64,
    pub(super) position: i64,
}

impl Strides {
    /// `None` if D is not contiguous, or if a row does not start at a multiple of `unit` elements.
    fn new(layout: &Layout, unit: usize) -> Option<Self> {
        let &[batch, head, position, 1] = layout.stride() else { return None };
        let aligned = [batch, head, position, layout.start_offset()].iter().all(|x| x % unit == 0);
        let stride = |x: usize| x.try_into().ok();
        aligned.then_some(())?;
        Some(Self { batch: stride(batch)?, head: stride(head)?, position: stride(position)? })
    }
}

/// The sizes and strides of q (B, H, T, D) and of k and v (B, H, S, D).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct KernelShape {
    pub(super) q: Strides,
    pub(super) k: Strides,
    pub(super) v: Strides,
    pub(super) heads: i32,
    pub(super) queries: i32,
    pub(super) keys: i32,
    /// For decoding: blocks per head.
    pub(super) splits: i32,
    /// The number of heads that run all their tiles before the next heads start.
    pub(super) section: i32,
    /// The scale of the scores, times log2(e).
    pub(super) scale: f32,
}

const _: () = assert!(size_of::<KernelShape>() == 96 && std::mem::offset_of!(KernelShape, heads) == 72);

/// Keys hidden from single queries, and dropout.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Masks {
    /// Addresses in the GPU's memory, or 0.
    pub(super) hidden_starts: u64,
    pub(super) hidden_keys: u64,
    pub(super) seed: [u32; 2],
    pub(super) stream: [u32; 2],
    pub(super) threshold: u32,
    pub(super) kept: f32,
    pub(super) first_head: i32,
    pub(super) all_heads: i32,
}

const _: () = assert!(size_of::<Masks>() == 48 && std::mem::offset_of!(Masks, threshold) == 32);

impl Masks {
    /// Nothing hidden, and this dropout. `None` if the layer has more heads than a kernel can count.
    pub(super) fn new(dropout: Option<&WeightDropout>) -> Option<Self> {
        let none = Self {
            hidden_starts: 0,
            hidden_keys: 0,
            seed: [0; 2],
            stream: [0; 2],
            threshold: 0,
            kept: 1.0,
            first_head: 0,
            all_heads: 0,
        };
        let Some(dropout) = dropout else { return Some(none) };
        let words = dropout.words();
        let heads = dropout.heads();
        Some(Self {
            seed: words.key,
            stream: words.stream,
            threshold: words.threshold,
            kept: words.kept,
            first_head: heads.first.try_into().ok()?,
            all_heads: heads.total.try_into().ok()?,
            ..none
        })
    }
}

/// The arguments of a kernel, in this order, with the shape after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelArguments {
    /// q, k, v, padding, out, logarithms of the sums
    Attention,
    /// The arguments of `Attention`, and the masks after the shape.
    Masked,
    /// q, k, v, padding, number of keys before the query's, out, partial results, finished blocks
    Decode,
}

/// The launch of a forward pass.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) shape: KernelShape,
    pub(super) task: KernelArguments,
    pub(super) launch: Launch,
    /// For decoding in several splits: the number of f32s of their partial results, and of heads.
    pub(super) partials: Option<(usize, usize)>,
}

/// The launches of a backward pass.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BackwardPlan {
    pub(super) shape: KernelShape,
    /// grad, out, deltas; then the rows of D, T, H and D
    pub(super) deltas: Launch,
    /// q, k, v, padding, grad, logarithms of the sums, deltas, dq; then the shape and the masks
    pub(super) of_queries: Launch,
    /// The same, with dk and dv instead of dq.
    pub(super) of_keys: Launch,
}

/// The head widths that have kernels.
const WIDTHS: [usize; 5] = [32, 64, 80, 96, 128];
/// Threads per block in all kernels of attention.
const THREADS: u32 = 128;
/// Rows of D per block in `delta.cu`.
const DELTA_ROWS: usize = 16;
/// The fewest keys per block in decoding, as in `decode.cu`.
const MIN_SPLIT_KEYS: usize = 64;
/// A tile in f32.
struct F32Tile {
    /// The rows of the block itself.
    own: usize,
    /// The rows of the other side, keys or queries, that it reads at a time.
    others: usize,
    /// The length of a row of weights in shared memory.
    weight_row: usize,
}

const F32_TILE: F32Tile = F32Tile { own: 64, others: 32, weight_row: 36 };

/// The inputs of an attention as numbers.
struct Sizes {
    name: &'static str,
    size: usize,
    scale: f32,
    strides: [Strides; 3],
    b: usize,
    h: usize,
    t: usize,
    s: usize,
    d: usize,
}

impl Sizes {
    /// `None` if no kernel fits: for another width or dtype, for rows that are not aligned to 16 bytes, or for a scale
    /// that is not positive (the kernels find the largest score before they scale it).
    fn new(dtype: DType, [q, k, v]: [&Layout; 3], scale: f64, gpu: GpuLimits) -> Option<Self> {
        let (&[b, h, t, d], &[_, _, s, _]) = (q.dims(), k.dims()) else { return None };
        let name = dtype_name(dtype).filter(|_| gpu.has_kernels_for(dtype))?;
        #[allow(clippy::cast_possible_truncation)] // the scale of f32 scores
        let scale = (scale * std::f64::consts::LOG2_E) as f32;
        let size = dtype.size_in_bytes();
        let strides = |layout| Strides::new(layout, 16 / size);
        let fits = WIDTHS.contains(&d) && scale > 0.0 && scale.is_finite();
        fits.then_some(Self {
            name,
            size,
            scale,
            strides: [strides(q)?, strides(k)?, strides(v)?],
            b,
            h,
            t,
            s,
            d,
        })
    }

    /// The shape for a kernel that runs `tiles` blocks a head.
    fn shape(&self, tiles: usize, splits: usize, gpu: GpuLimits) -> Option<KernelShape> {
        // As many heads together as leave half of the L2 cache to other data, but enough for two blocks on each
        // multiprocessor.
        let cached = gpu.l2 / 2 / (2 * self.s * self.d * self.size).max(1);
        let section =
            cached.max((2 * gpu.multiprocessors).div_ceil(tiles.max(1))).clamp(1, (self.b * self.h).max(1));
        let [q, k, v] = self.strides;
        Some(KernelShape {
            q,
            k,
            v,
            heads: self.h.try_into().ok()?,
            queries: self.t.try_into().ok()?,
            keys: self.s.try_into().ok()?,
            splits: splits.try_into().ok()?,
            section: section.try_into().ok()?,
            scale: self.scale,
        })
    }

    /// The rows of the other side, keys or queries, that a kernel with tensor cores reads at a time.
    fn others(&self) -> usize {
        if self.d <= 64 { 64 } else { 32 }
    }
}

impl Plan {
    /// The kernel for q (B, H, T, D) against k and v (B, H, S, D), which knows hidden keys and dropout if it is
    /// `masked` and leaves what a backward pass needs if it is `tracked`; or `None` if no kernel fits.
    pub(super) fn new(
        dtype: DType,
        qkv: [&Layout; 3],
        scale: f64,
        [masked, tracked]: [bool; 2],
        gpu: GpuLimits,
    ) -> Option<Self> {
        let sizes = Sizes::new(dtype, qkv, scale, gpu)?;
        let &Sizes { name, size, b, h, t, s, d, .. } = &sizes;
        if t == 1 && !masked && !tracked {
            // About two blocks for each multiprocessor. The kernel divides the keys that are there among them.
            let splits = (2 * gpu.multiprocessors).div_ceil(b * h).clamp(1, s.div_ceil(MIN_SPLIT_KEYS));
            let lanes = (d * size / 16).next_power_of_two();
            let shared = THREADS as usize / lanes * (2 + d) * 4; // one partial result for each group of lanes
            let launch = Launch::new(format!("decode_{name}_d{d}"), b * h * splits, THREADS, shared)?;
            let partials = (splits > 1).then_some((b * h * splits * (2 + d), b * h));
            let shape = sizes.shape(1, splits, gpu)?;
            return Some(Self { shape, task: KernelArguments::Decode, launch, partials });
        }
        let bits = |queries: usize, keys: usize| if masked { 2 * queries * keys / 8 } else { 0 };
        let (queries, shared) = if dtype == DType::F32 {
            let F32Tile { own, others, weight_row } = F32_TILE;
            let rows = (own + 2 * others) * (d + 4); // q, k and v
            (own, (rows + own * weight_row) * size + bits(own, others))
        } else {
            let enough = b * h * t.div_ceil(128) >= gpu.multiprocessors;
            let queries = if enough && d < 128 && !masked { 128 } else { 64 };
            let keys = sizes.others();
            // q, and two buffers each of k and v
            (queries, (queries + 4 * keys) * (d + 8) * size + bits(queries, keys))
        };
        let (task, kernel) = if masked {
            (KernelArguments::Masked, format!("attention_masked_{name}_d{d}"))
        } else {
            (KernelArguments::Attention, format!("attention_{name}_d{d}_q{queries}"))
        };
        let tiles = t.div_ceil(queries);
        let launch = Launch::new(kernel, b * h * tiles, THREADS, shared).filter(|_| shared <= gpu.shared)?;
        Some(Self { shape: sizes.shape(tiles, 1, gpu)?, task, launch, partials: None })
    }
}

impl BackwardPlan {
    /// The kernels for the gradients of q (B, H, T, D), k and v (B, H, S, D), or `None` if none fit.
    pub(super) fn new(dtype: DType, qkv: [&Layout; 3], scale: f64, gpu: GpuLimits) -> Option<Self> {
        let sizes = Sizes::new(dtype, qkv, scale, gpu)?;
        let &Sizes { name, size, b, h, t, s, d, .. } = &sizes;
        let own = 64;
        let others = match dtype {
            DType::F32 => F32_TILE.others,
            _ if gpu.capability < 80 => 32,
            _ => sizes.others(),
        };
        // Tiles of (rows of D, numbers, bits) for kernels whose block meets `queries` and `keys`.
        let shared = |queries: usize, keys: usize| {
            let rows = if dtype == DType::F32 {
                let weight_row = F32_TILE.weight_row;
                ((2 * own + 2 * others) * (d + 4) + 2 * own * weight_row) * 4 + 2 * queries * 4
            } else {
                (2 * own + 4 * others) * (d + 8) * size + 4 * queries * 4
            };
            rows + 2 * queries * keys / 8
        };
        let launch = |of: &str, positions: usize, shared: usize| {
            let blocks = b * h * positions.div_ceil(own);
            let launch = Launch::new(format!("gradient_of_{of}_{name}_d{d}"), blocks, THREADS, shared);
            launch.filter(|_| shared <= gpu.shared)
        };
        Some(Self {
            shape: sizes.shape(t.div_ceil(own), 1, gpu)?,
            deltas: Launch::new(format!("delta_{name}"), (b * t * h).div_ceil(DELTA_ROWS), THREADS, 0)?,
            of_queries: launch("queries", t, shared(own, others))?,
            of_keys: launch("keys", s, shared(others, own))?,
        })
    }
}
