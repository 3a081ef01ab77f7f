//! Plans an attention: which kernels to launch, over how many blocks, with how much shared memory. A plan holds
//! only numbers, so the tests can run it without a GPU.

use crate::cuda::{Launch, dtype_name};
use candle_core::{DType, Layout};

/// Strides of a tensor (B, H, positions, D), in elements. D is contiguous. `device.cuh` has the same struct.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Strides {
    pub(super) batch: i64,
    pub(super) head: i64,
    pub(super) position: i64,
}

/// The sizes and strides of q (B, H, T, D) and of k and v (B, H, S, D) that a kernel gets. `device.cuh`
/// has the same struct.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shape {
    pub(super) q: Strides,
    pub(super) k: Strides,
    pub(super) v: Strides,
    pub(super) heads: i32,
    pub(super) queries: i32,
    pub(super) keys: i32,
    /// For decoding: keys per block, and blocks per head.
    pub(super) split_keys: i32,
    pub(super) splits: i32,
    /// The scale of the scores, times log2(e).
    pub(super) scale: f32,
}

const _: () = assert!(size_of::<Shape>() == 96 && std::mem::offset_of!(Shape, heads) == 72);

/// Which arguments a kernel takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// q, k, v, padding, out, shape
    Attention,
    /// q, k, v, padding, out, partials, shape
    Decode,
    /// partials, out, shape
    Merge,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) launches: Vec<(Task, Launch)>,
    /// The number of f32s that one launch passes on to the next.
    pub(super) partials: usize,
}

/// The head widths that have kernels.
const WIDTHS: [usize; 5] = [32, 64, 80, 96, 128];
/// Threads per block in `attention*.cu` and `decode.cu`.
const THREADS: u32 = 128;
/// The fewest keys per block in decoding: with fewer, merging takes longer than decoding.
const MIN_SPLIT_KEYS: usize = 64;

impl Plan {
    /// The kernels for q (B, H, T, D) against k and v (B, H, S, D), or `None` if no kernel fits: for another width or
    /// dtype, for rows that are not aligned to 16 bytes, or for a scale that is not positive (the kernels find the
    /// largest score before they scale it).
    pub(super) fn new(
        dtype: DType,
        [q, k, v]: [&Layout; 3],
        scale: f64,
        multiprocessors: usize,
    ) -> Option<Self> {
        let (&[b, h, t, d], &[_, _, s, _]) = (q.dims(), k.dims()) else { return None };
        let name = dtype_name(dtype)?;
        #[allow(clippy::cast_possible_truncation)] // the scale of f32 scores
        let base_2_scale = (scale * std::f64::consts::LOG2_E) as f32;
        if !WIDTHS.contains(&d) || base_2_scale <= 0.0 || !base_2_scale.is_finite() {
            return None;
        }
        let size = dtype.size_in_bytes();
        let strides = |layout| strides(layout, 16 / size);
        let shape = |split_keys: usize, splits: usize| {
            Some(Shape {
                q: strides(q)?,
                k: strides(k)?,
                v: strides(v)?,
                heads: h.try_into().ok()?,
                queries: t.try_into().ok()?,
                keys: s.try_into().ok()?,
                split_keys: split_keys.try_into().ok()?,
                splits: splits.try_into().ok()?,
                scale: base_2_scale,
            })
        };
        if t == 1 {
            // About two blocks for each multiprocessor.
            let wanted = (2 * multiprocessors).div_ceil(b * h).clamp(1, s.div_ceil(MIN_SPLIT_KEYS));
            let split_keys = s.div_ceil(wanted);
            let splits = s.div_ceil(split_keys);
            let lanes = (d * size / 16).next_power_of_two();
            let shared = THREADS as usize / lanes * (2 + d) * 4; // one partial result for each group of lanes
            let decode = Launch::new(format!("decode_{name}_d{d}"), b * h * splits, THREADS, shared)?;
            let mut launches = vec![(Task::Decode, decode)];
            if splits > 1 {
                let threads = d.try_into().ok()?;
                let merge = Launch::new(format!("merge_{name}_d{d}"), b * h, threads, 0)?;
                launches.push((Task::Merge, merge));
            }
            let partials = if splits > 1 { b * h * splits * (2 + d) } else { 0 };
            return Some(Self { shape: shape(split_keys, splits)?, launches, partials });
        }

        let (queries, shared) = if dtype == DType::F32 {
            (64, (64 * (d + 4) + 2 * 32 * (d + 4) + 64 * (32 + 4)) * size) // q, k and v, weights
        } else {
            let enough = b * h * t.div_ceil(128) >= multiprocessors;
            let queries = if enough && d < 128 { 128 } else { 64 };
            let keys = if d <= 64 { 64 } else { 32 };
            (queries, (queries + 4 * keys) * (d + 8) * size) // q, and two buffers each of k and v
        };
        let kernel = format!("attention_{name}_d{d}_q{queries}");
        let launch = Launch::new(kernel, b * h * t.div_ceil(queries), THREADS, shared)?;
        Some(Self { shape: shape(s, 1)?, launches: vec![(Task::Attention, launch)], partials: 0 })
    }
}

/// The strides, if D is contiguous and every row starts at a multiple of `unit` elements.
fn strides(layout: &Layout, unit: usize) -> Option<Strides> {
    let &[batch, head, position, 1] = layout.stride() else { return None };
    let aligned = [batch, head, position, layout.start_offset()].iter().all(|x| x % unit == 0);
    let stride = |x: usize| x.try_into().ok();
    aligned.then_some(())?;
    Some(Strides { batch: stride(batch)?, head: stride(head)?, position: stride(position)? })
}
