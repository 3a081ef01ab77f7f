//! A few statistics of each query's weights, for looking at all heads of a long text at once.

use super::eager;
use crate::attention::inputs::Chosen;
use crate::attention::mask::Mask;
use crate::attention::row_summary::{RowSummary, key_position};
use crate::attention::sdpa::Sdpa;
use candle_core::{D, DType, Device, Result, Tensor};

/// Describes the weights of each query in every head: seven tensors (B, H, T) instead of one (B, H, T, S).
///
/// The numbers describe the softmax, before any dropout, and have no gradient. They are 0 for a query that
/// sees no key. With sinks they are sums over weights that add up to less than 1.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Shannon entropy in nats, `-Σ w·ln w`: f32.
    pub entropy: Tensor,
    /// The mean distance from the query to the keys it weights, in tokens, `Σ w·|position - key|`: f32.
    pub mean_distance: Tensor,
    /// The weight on the query's own position, or 0 if there is no such key: f32.
    pub on_self: Tensor,
    /// The weight on the key just before it, or 0 if there is none: f32.
    pub on_previous: Tensor,
    /// The weight on the first key that is not padding: f32.
    pub on_first: Tensor,
    /// The largest weight: f32.
    pub max: Tensor,
    /// The key with the largest weight; the first if several share it: u32.
    pub max_position: Tensor,
}

/// The number of queries whose weights the eager path holds at a time.
const CHUNK: usize = 64;

impl Summary {
    /// The numbers of each row (B, H, T) as tensors.
    pub(super) fn from_rows(rows: &[RowSummary], b: usize, h: usize, t: usize) -> Result<Self> {
        let tensor = |number: fn(&RowSummary) -> f32| {
            Tensor::from_vec(rows.iter().map(number).collect::<Vec<_>>(), (b, h, t), &Device::Cpu)
        };
        let positions: Vec<u32> = rows.iter().map(|row| row.max_position).collect();
        Ok(Self {
            entropy: tensor(|row| row.entropy)?,
            mean_distance: tensor(|row| row.mean_distance)?,
            on_self: tensor(|row| row.on_self)?,
            on_previous: tensor(|row| row.on_previous)?,
            on_first: tensor(|row| row.on_first)?,
            max: tensor(|row| row.max)?,
            max_position: Tensor::from_vec(positions, (b, h, t), &Device::Cpu)?,
        })
    }

    /// The numbers of queries that see no key.
    pub(super) fn zeros(shape: (usize, usize, usize), device: &Device) -> Result<Self> {
        let zeros = |dtype| Tensor::zeros(shape, dtype, device);
        let [entropy, mean_distance, on_self, on_previous, on_first, max] = [DType::F32; 6].map(zeros);
        Self::from_fields([entropy, mean_distance, on_self, on_previous, on_first, max, zeros(DType::U32)])
    }

    /// The fields in their order, (B, H, T) each.
    fn from_fields(fields: [Result<Tensor>; 7]) -> Result<Self> {
        let [entropy, mean_distance, on_self, on_previous, on_first, max, max_position] = fields;
        Ok(Self {
            entropy: entropy?,
            mean_distance: mean_distance?,
            on_self: on_self?,
            on_previous: on_previous?,
            on_first: on_first?,
            max: max?,
            max_position: max_position?,
        })
    }

    /// The definition, in plain operations on the weights of [`CHUNK`] queries at a time.
    ///
    /// `q` (B, H, T, D), `k` (B, key heads, S, D)
    pub(super) fn eager(sdpa: &Sdpa, q: &Tensor, k: &Tensor, mask: Mask) -> Result<Self> {
        let (b, h, t, _) = q.dims4()?;
        let s = k.dim(2)?;
        let padding = mask.on_cpu(0)?;
        let first = Tensor::from_iter((0..b).map(|b| key_position(padding.first_key(b, s))), q.device())?; // (B)
        let mut chunks: [Vec<Tensor>; 7] = Default::default();
        for start in (0..t).step_by(CHUNK) {
            let queries: Vec<usize> = (start..t.min(start + CHUNK)).collect();
            let rows = Chosen { heads: None, queries: Some(queries) }.resolve(h, t)?;
            let weights = eager::Scores::new(sdpa, q, k, mask, &rows)?.softmax()?.detach(); // (B, H, chunk, S)
            let positions: Vec<f64> = rows.positions(s).collect();
            let numbers = of_weights(&weights, &positions, &first)?;
            chunks.iter_mut().zip(numbers).for_each(|(chunks, numbers)| chunks.push(numbers));
        }
        Self::from_fields(chunks.map(|chunks| Tensor::cat(&chunks, 2)))
    }
}

/// The fields of [`Summary`] in their order, (B, H, queries) each.
///
/// `weights` (B, H, queries, S), `first` (B) u32
fn of_weights(weights: &Tensor, positions: &[f64], first: &Tensor) -> Result<[Tensor; 7]> {
    let (b, h, t, s) = weights.dims4()?;
    let (weights, device) = (weights.to_dtype(DType::F32)?, weights.device());
    // 0·ln 0 is 0, its limit.
    let logs = weights.maximum(f32::MIN_POSITIVE)?.log()?;
    #[allow(clippy::cast_possible_truncation)] // there are fewer than 2^32 keys
    let distances =
        positions.iter().flat_map(|position| (0..s).map(move |key| (position - key as f64).abs() as f32));
    let distances = Tensor::from_iter(distances, device)?.reshape((t, s))?;
    let on =
        |key: &Tensor| weights.gather(&key.broadcast_as((b, h, t, 1))?.contiguous()?, D::Minus1)?.squeeze(3);
    // The weight on the key `by` before each query's position, or 0 if there is none.
    let back = |by: f64| {
        let there = |position: f64| (0.0..s as f64).contains(&(position - by));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // there are fewer than 2^32 keys
        let key = |&position: &f64| if there(position) { (position - by) as u32 } else { 0 };
        let keys = Tensor::from_iter(positions.iter().map(key), device)?.reshape((1, 1, t, 1))?;
        let there = positions.iter().map(|&position| f32::from(u8::from(there(position))));
        on(&keys)?.broadcast_mul(&Tensor::from_iter(there, device)?)
    };
    let first = first.reshape((b, 1, 1, 1))?;
    let entropy = (&weights * logs)?.sum(3)?.neg()?;
    // A GPU's maximum of NaN and a number is the number.
    let entropy = entropy.lt(0f32)?.where_cond(&entropy.zeros_like()?, &entropy)?;
    let nan_or_zero = (weights.sum(3)? * 0.0)?;
    Ok([
        entropy,
        weights.broadcast_mul(&distances)?.sum(3)?,
        back(0.0)?,
        back(1.0)?,
        on(&first)?,
        (weights.max(3)? + nan_or_zero)?,
        weights.argmax(3)?,
    ])
}
