//! Context parallelism: each rank has a part of the positions of one long text.
//!
//! A rank keeps queries, keys and values of its positions, and collects the keys and values of all (Grattafiori et al.
//! 2024, "The Llama 3 Herd of Models", §3.3.2), which are small beside what attention computes from them. A late query
//! sees more keys than an early one, so each rank has two runs of positions, one from the front and one from the back:
//! all ranks then have the same work. No softmax is merged: a rank computes whole rows, with the numbers of one process.

use crate::group::Group;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use candle_fused::attention::{Mask, Sdpa};
use std::ops::Range;
use std::sync::Arc;

/// Attention whose positions are shared out over the ranks of a group.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::attention::Sdpa;
/// use gpt2_parallel::{Alone, ContextParallel};
/// use std::sync::Arc;
///
/// # fn main() -> candle_core::Result<()> {
/// let parallel = ContextParallel::new(Arc::new(Alone)); // or what gpt2_parallel::join returns
/// let x = Tensor::randn(0f32, 1., (1, 3, 10, 4), &Device::Cpu)?; // (B, H, T, D)
/// let mine = parallel.split(&x, 2)?; // this rank's positions
/// let context = parallel.forward(&Sdpa::default(), &mine, &mine, &mine)?; // (B, this rank's positions, H, D)
/// assert_eq!(parallel.join(&context, 1)?.dims(), [1, 10, 3, 4]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ContextParallel {
    group: Arc<dyn Group>,
}

impl ContextParallel {
    /// Context parallelism over this group.
    #[must_use]
    pub fn new(group: Arc<dyn Group>) -> Self {
        Self { group }
    }

    /// This process.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// The positions of a rank among `t`: a run from the front and one from the back.
    ///
    /// # Errors
    /// When there are fewer positions than runs.
    pub fn positions(&self, rank: usize, t: usize) -> Result<[Range<usize>; 2]> {
        let runs = 2 * self.group.size();
        if t < runs {
            candle_core::bail!("context parallelism: {t} positions for {runs} runs; use fewer ranks")
        }
        let run = |i: usize| t * i / runs..t * (i + 1) / runs;
        Ok([run(rank), run(runs - 1 - rank)])
    }

    /// This rank's positions of a tensor that every rank has whole.
    ///
    /// # Shapes
    /// `x` with T entries in dimension `dim` -> the same with this rank's
    ///
    /// # Errors
    /// When there are fewer positions than runs.
    pub fn split(&self, x: &Tensor, dim: usize) -> Result<Tensor> {
        let runs = self.positions(self.group.rank(), x.dim(dim)?)?;
        let [front, back] = runs.map(|run| x.narrow(dim, run.start, run.len()));
        Tensor::cat(&[front?, back?], dim)
    }

    /// The whole of a tensor whose positions the ranks share. Differentiable: a rank's gradient is the sum of those
    /// of all ranks, in rank order. The backward pass must also run on every rank.
    ///
    /// # Shapes
    /// `mine` with this rank's positions in dimension `dim`, f32 on the CPU -> the same with T
    ///
    /// # Errors
    /// When the tensor has another dtype or device, or a rank does not answer.
    pub fn join(&self, mine: &Tensor, dim: usize) -> Result<Tensor> {
        let t = self.total(mine.dim(dim)?)?;
        let runs = (0..self.group.size()).map(|rank| self.positions(rank, t)).collect::<Result<_>>()?;
        mine.contiguous()?.apply_op1(JoinPositions { group: Arc::clone(&self.group), runs, dim, t })
    }

    /// Attention of this rank's queries over the keys and values of all. Differentiable; the backward pass must also run on
    /// every rank.
    ///
    /// With [`Window::CAUSAL`](candle_fused::attention::Window::CAUSAL), the context is that of one process, bit for bit, and so is
    /// the gradient of q, if each run has five positions or more
    /// (for fewer, the kernel runs other code, the same as in decoding). Those of k and v are sums over all
    /// queries: each rank adds its own, then the ranks' sums are added in rank order. They differ from those of one process
    /// in their last bits, and lie nearer to the exact sums, because each is shorter.
    ///
    /// # Shapes
    /// `q`, `k`, `v` (B, H, this rank's positions, D), f32 on the CPU -> (B, this rank's positions, H, D)
    ///
    /// # Errors
    /// When the shapes do not fit each other or the ranks, for attention with dropout or with a window that is not causal, and
    /// when a rank does not answer.
    pub fn forward(&self, attention: &Sdpa, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        if attention.dropout.is_some_and(|dropout| dropout.rate() > 0.0) {
            candle_core::bail!(
                "context parallelism: dropout would draw another mask than one process; leave it out"
            )
        }
        if !attention.window.is_causal() {
            candle_core::bail!(
                "context parallelism: {:?} lets a query see later keys; use a causal one",
                attention.window
            )
        }
        let mine = q.dim(2)?;
        let of_k = k.dim(2)?;
        let of_v = v.dim(2)?;
        if (of_k, of_v) != (mine, mine) {
            candle_core::bail!(
                "context parallelism: q has {mine} positions, k {of_k} and v {of_v}; expected as many of each"
            )
        }
        let (keys, values) = (self.join(k, 2)?, self.join(v, 2)?); // (B, H, T, D)
        let runs = self.positions(self.group.rank(), keys.dim(2)?)?;
        let mut start = 0;
        let context = runs.map(|run| {
            let q = q.narrow(2, start, run.len())?;
            start += run.len();
            // Query i of a run sees the keys up to its own position: attention aligns the last query with the last key.
            let seen = |x: &Tensor| x.narrow(2, 0, run.end);
            attention.forward(&q, &seen(&keys)?, &seen(&values)?, Mask::default()) // (B, run, H, D)
        });
        let [front, back] = context;
        Tensor::cat(&[front?, back?], 1)
    }

    /// The positions of all ranks together; refuses a rank that has others than its share.
    fn total(&self, mine: usize) -> Result<usize> {
        let all = self.group.gather_one(mine).map_err(candle_core::Error::wrap)?;
        let t = all.iter().sum();
        for (rank, &found) in all.iter().enumerate() {
            let expected: usize = self.positions(rank, t)?.iter().map(ExactSizeIterator::len).sum();
            if found != expected {
                candle_core::bail!(
                    "context parallelism: rank {rank} has {found} of {t} positions, expected {expected}; take those that \
                     `split` gives"
                )
            }
        }
        Ok(t)
    }
}

/// Collects the positions of all ranks.
struct JoinPositions {
    group: Arc<dyn Group>,
    /// The positions of each rank.
    runs: Vec<[Range<usize>; 2]>,
    dim: usize,
    t: usize,
}

impl JoinPositions {
    /// The length of each rank's part of a tensor of `rows` times T times `width` numbers.
    fn lengths(&self, rows: usize, width: usize) -> Vec<usize> {
        self.runs.iter().map(|runs| rows * width * (runs[0].len() + runs[1].len())).collect()
    }

    /// Calls `copy` with each stretch of a rank's numbers and its place in the whole.
    fn stretches(
        &self,
        rank: usize,
        (rows, width): (usize, usize),
        mut copy: impl FnMut(Range<usize>, Range<usize>),
    ) {
        let mut start = 0;
        for row in 0..rows {
            for run in &self.runs[rank] {
                let first = (row * self.t + run.start) * width;
                let length = run.len() * width;
                copy(start..start + length, first..first + length);
                start += length;
            }
        }
    }

    /// The sum over the ranks of their gradients at this rank's positions.
    fn summed(&self, gradient: &[f32], (rows, width): (usize, usize)) -> Result<Vec<f32>> {
        let lengths = self.lengths(rows, width);
        let mut parts = vec![0f32; gradient.len()];
        let mut start = 0;
        for (to, length) in lengths.iter().enumerate() {
            let part = &mut parts[start..start + length];
            self.stretches(to, (rows, width), |at, from| part[at].copy_from_slice(&gradient[from]));
            start += length;
        }
        self.group.sum_own_part(&parts, &lengths).map_err(candle_core::Error::wrap)
    }
}

impl CustomOp1 for JoinPositions {
    fn name(&self) -> &'static str {
        "context-parallel-join"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (CpuStorage::F32(values), Some((start, end))) = (storage, layout.contiguous_offsets()) else {
            candle_core::bail!(
                "context parallelism: expected contiguous f32, got {:?}; convert it first",
                candle_core::backend::BackendStorage::dtype(storage)
            )
        };
        let dims = layout.dims();
        let rows = dims[..self.dim].iter().product();
        let width = dims[self.dim + 1..].iter().product();
        let lengths = self.lengths(rows, width);
        let bytes: Vec<usize> = lengths.iter().map(|length| 4 * length).collect();
        let mut all = vec![0f32; lengths.iter().sum()];
        let mine = bytemuck::cast_slice(&values[start..end]);
        self.group
            .all_gather(mine, bytemuck::cast_slice_mut(&mut all), &bytes)
            .map_err(candle_core::Error::wrap)?;
        let mut whole = vec![0f32; all.len()];
        let mut rest = &all[..];
        for (rank, length) in lengths.iter().enumerate() {
            let (part, after) = rest.split_at(*length);
            self.stretches(rank, (rows, width), |at, to| whole[to].copy_from_slice(&part[at]));
            rest = after;
        }
        let mut dims = dims.to_vec();
        dims[self.dim] = self.t;
        Ok((CpuStorage::F32(whole), dims.into()))
    }

    fn bwd(&self, mine: &Tensor, whole: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let dims = whole.dims();
        let sizes = (dims[..self.dim].iter().product(), dims[self.dim + 1..].iter().product());
        let gradient = gradient.contiguous()?.flatten_all()?.to_vec1::<f32>()?;
        Ok(Some(Tensor::from_vec(self.summed(&gradient, sizes)?, mine.dims(), mine.device())?))
    }
}
