//! The forward pass: which thread computes which queries, and in what order.

use super::attention_weights::SummaryOfRow;
use super::blocks::{Blocks, FEW_QUERIES, QUERIES};
use super::decode::{AddSpan, Span, SpanRows, SpanScratch};
use super::pack::{PackSizes, PackedHead};
use super::pass_inputs::{PassInputs, SharedOutput};
use super::tile::{QueryTile, TileScratch, TileTask};
use super::views::HeadAt;
use crate::attention::heads::Query;
use crate::cpu::spinning_threads;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// With this many heads per thread, the last heads to finish are a small part of the whole.
const HEADS_PER_THREAD: usize = 4;

/// Splits the numbers below `count` into runs for `threads` threads, which take one after another. A run is half of a thread's share of
/// what is left: the last ones are short, so that threads end together.
fn shrinking_runs(count: usize, threads: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = vec![];
    let mut first = 0;
    while first < count {
        let end = first + (count - first).div_ceil(2 * threads);
        runs.push(first..end);
        first = end;
    }
    runs
}

/// A forward pass over all queries: [`CpuAttention`](super::CpuAttention)'s work. It writes every row of `out`, which is
/// for this pass alone.
pub(super) struct Forward<'a> {
    pub(super) problem: &'a PassInputs<'a>,
    pub(super) out: &'a SharedOutput<'a>,
}

impl WithSimd for Forward<'_> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        let [batch, key_heads, ..] = self.problem.k.dims;
        let [_, _, t, _] = self.problem.context_dims();
        if t <= FEW_QUERIES {
            self.by_spans(simd);
            if self.out.summarizes() {
                self.summarize(simd);
            }
        } else if batch * key_heads >= HEADS_PER_THREAD * rayon::current_num_threads() {
            self.by_key_heads(simd);
        } else {
            self.by_tiles(simd);
        }
    }
}

/// A thread's memory, which its next task reuses.
struct ThreadMemory {
    scratch: TileScratch,
    packed: PackedHead,
}

impl Forward<'_> {
    /// For few queries, whose keys are read in place: a task is some spans of keys that follow each other, so that a thread reads
    /// memory in order.
    #[inline(always)]
    fn by_spans<S: Simd>(&self, simd: S) {
        let queries = Span::queries(self.problem);
        let spans = Span::count(self.problem);
        let runs = shrinking_runs(queries.len() * spans, rayon::current_num_threads());
        let found = spinning_threads::map(runs.len(), |task| {
            let mut rows = SpanRows::default();
            let mut scratch = SpanScratch::default();
            for n in runs[task].clone() {
                let span = Span::new(self.problem, queries[n / spans].clone(), n % spans);
                simd.vectorize(AddSpan { span, rows: &mut rows, scratch: &mut scratch });
            }
            rows
        });
        let mut rows = SpanRows::default();
        for some in &found {
            rows.append(some);
        }
        let mut first = 0;
        for query in &queries {
            let heads = query.heads.len();
            for (n, h) in query.heads.clone().enumerate() {
                let (sum, context) = rows.merge((0..spans).map(|span| first + span * heads + n));
                let query = Query { b: query.b, h, i: query.i };
                let (log_sum, share) = sum.finish(self.problem, h);
                // SAFETY: each query is written once.
                unsafe { self.out.write(query, &context, share, log_sum) };
            }
            first += spans * heads;
        }
    }

    /// Writes the summary of every row.
    #[inline(always)]
    fn summarize<S: Simd>(&self, simd: S) {
        let [_, _, t, _] = self.problem.context_dims();
        let heads = self.problem.heads().into_iter();
        let rows = heads.flat_map(|head| (0..t).map(move |i| head.query(i)));
        // SAFETY: each query is written once.
        rows.collect::<Vec<_>>().into_par_iter().for_each(|query| unsafe {
            self.out.write_summary(query, || simd.vectorize(SummaryOfRow { problem: self.problem, query }));
        });
    }

    /// For enough heads of keys to go round: a task is one of them with all heads that share it, packed into memory that its
    /// worker reuses.
    #[inline(always)]
    fn by_key_heads<S: Simd>(&self, simd: S) {
        let heads = self.heads();
        let group = self.problem.group();
        let tiles = self.tiles();
        self.share_out::<S>(heads.len() / group, |task, worker| {
            self.pack(simd, task, &mut worker.packed);
            // All heads take a tile in turn, so that the keys they share are still in the cache.
            for tile in 0..tiles {
                for head in &heads[task * group..(task + 1) * group] {
                    self.tile(simd, &worker.packed, *head, tile, &mut worker.scratch);
                }
            }
        });
    }

    /// For few heads of keys: a task is a tile of a head, whose keys are packed beforehand.
    #[inline(always)]
    fn by_tiles<S: Simd>(&self, simd: S) {
        let heads = self.heads();
        let group = self.problem.group();
        let tiles = self.tiles();
        let pack = |n| {
            let mut packed = PackedHead::default();
            self.pack(simd, n, &mut packed);
            packed
        };
        let packed: Vec<PackedHead> = (0..heads.len() / group).into_par_iter().map(pack).collect();
        self.share_out::<S>(tiles * heads.len(), |task, worker| {
            // The last tiles of a head see the most keys, so they run first: no thread is left
            // with one at the end.
            let head = task % heads.len();
            let tile = tiles - 1 - task / heads.len();
            self.tile(simd, &packed[head / group], heads[head], tile, &mut worker.scratch);
        });
    }

    /// All heads, in the order in which they share heads of keys.
    fn heads(&self) -> Vec<HeadAt> {
        let heads = self.problem.heads();
        let [batch, key_heads, ..] = self.problem.k.dims;
        assert!(heads.len() == batch * key_heads * self.problem.group()); // `out` is written head by head
        heads
    }

    /// The number of tiles of a head.
    fn tiles(&self) -> usize {
        let [_, _, t, _] = self.problem.context_dims();
        t.div_ceil(QUERIES)
    }

    /// Dv, padded to whole vectors.
    fn width<S: Simd>(&self) -> usize {
        let [_, _, _, dv] = self.problem.context_dims();
        dv.next_multiple_of(S::F32_LANES)
    }

    /// Packs the n-th head of keys and values of the batch.
    #[inline(always)]
    fn pack<S: Simd>(&self, simd: S, n: usize, packed: &mut PackedHead) {
        let PassInputs { k, v, .. } = self.problem;
        let [_, key_heads, ..] = k.dims;
        let head = HeadAt { b: n / key_heads, h: n % key_heads };
        let blocks = Blocks::of::<S>();
        let sizes = PackSizes {
            panel: blocks.panel::<S>(),
            width: self.width::<S>(),
            columns: blocks.columns::<S>(),
        };
        // Dropout scales up the weights that it keeps.
        #[allow(clippy::cast_possible_truncation)] // a factor on f32 weights
        let largest_weight = self.problem.dropout.map_or(1.0, |dropout| dropout.kept() as f32);
        packed.pack(simd, [k, v], head, sizes, largest_weight);
    }

    /// Computes tile `tile` of a head.
    #[inline(always)]
    fn tile<S: Simd>(
        &self,
        simd: S,
        packed: &PackedHead,
        head: HeadAt,
        tile: usize,
        scratch: &mut TileScratch,
    ) {
        let [_, _, t, _] = self.problem.context_dims();
        let first = tile * QUERIES;
        let rows = QUERIES.min(t - first);
        let width = self.width::<S>();
        let tile = QueryTile { problem: self.problem, packed, head, first, rows, width, out: self.out };
        simd.vectorize(TileTask { tile, scratch });
    }

    /// Calls `task` with each number below `tasks` on all threads: whichever is done takes the next number.
    #[inline(always)]
    fn share_out<S: Simd>(&self, tasks: usize, task: impl Fn(usize, &mut ThreadMemory) + Sync) {
        let d = self.problem.q.dims[3];
        let width = self.width::<S>();
        let threads = rayon::current_num_threads();
        let next = AtomicUsize::new(0);
        (0..threads.min(tasks)).into_par_iter().with_max_len(1).for_each(|_| {
            let mut worker =
                ThreadMemory { scratch: TileScratch::new(d, width), packed: PackedHead::default() };
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= tasks {
                    return;
                }
                task(n, &mut worker);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::cpu::pass_inputs::LogSum;
    use crate::attention::cpu::views::{Elements, Heads};
    use crate::attention::heads::{HeadLayout, WeightDropout};
    use crate::attention::mask::Mask;
    use crate::attention::quantized_rows::{quantize_rows, widen_rows};
    use crate::attention::row_summary::RowSummary;
    use crate::attention::scores::ScoreRules;
    use crate::attention::sdpa::Sdpa;
    use crate::attention::window::Window;
    use crate::cpu::isa;
    use crate::cpu::test_numbers::{numbers, values};
    use crate::pointwise::dropout::Dropout;
    use candle_core::{Layout, Result, Tensor};
    use std::mem::MaybeUninit;

    /// The context, followed by the numbers of the summaries.
    fn run_on<S: Simd>(problem: &PassInputs, simd: S) -> Vec<f32> {
        run(problem, |run| run.with_simd(simd))
    }

    /// Runs the pass on the processor's own vectors, and on portable ones of 1, 4, 8 and 16 numbers.
    fn run_on_others(problem: &PassInputs) -> Vec<Vec<f32>> {
        let mut others = vec![
            run_on(problem, pulp::Scalar),
            run_on(problem, pulp::Scalar128b),
            run_on(problem, pulp::Scalar256b),
            run_on(problem, pulp::Scalar512b),
        ];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("f16c") {
            others.extend(pulp::x86::V3::try_new().map(|avx2| run_on(problem, avx2)));
        }
        #[cfg(target_arch = "aarch64")]
        others.extend(pulp::aarch64::Neon::try_new().map(|neon| run_on(problem, neon)));
        others
    }

    fn run(problem: &PassInputs, dispatch: impl Fn(Forward)) -> Vec<f32> {
        let [b, h, t, dv] = problem.context_dims();
        let mut out = vec![MaybeUninit::new(f32::NAN); b * h * t * dv];
        let mut log_sums = vec![LogSum::default(); b * h * t];
        let mut found = vec![RowSummary::default(); log_sums.len()];
        let shared = SharedOutput::new(problem, &mut out, &mut log_sums, Some(&mut found));
        dispatch(Forward { problem, out: &shared });
        // A distance sums over up to 200 tokens.
        let numbers = found.iter().flat_map(|row| {
            [row.entropy, row.mean_distance / 200.0, row.on_self, row.on_previous, row.on_first, row.max]
        });
        // SAFETY: initialized above, and again by `Forward`.
        out.into_iter().map(|x| unsafe { x.assume_init() }).chain(numbers).collect()
    }

    /// They split the same sums into different blocks.
    #[test]
    fn other_vectors_compute_what_this_processors_do() -> Result<()> {
        let plain = Sdpa { scale: Some(1.5), ..Sdpa::default() };
        let all = |window| Sdpa {
            window,
            softcap: Some(3.0),
            slopes: Some([0.5, 0.1, 0.0].into()),
            ..plain.clone()
        };
        for (d, dv, t, s, sdpa) in [
            (1, 1, 5, 5, plain.clone()),
            (7, 7, 50, 60, plain.clone()),
            (33, 33, 97, 200, plain.clone()),
            (64, 64, 3, 130, plain.clone()),
            (33, 20, 97, 200, all(Window::sliding(40))),
            (20, 33, 60, 250, all(Window::ALL)),
            (20, 33, 4, 250, all(Window { left: Some(90), right: Some(3) })),
        ] {
            let (b, h, key_heads) = (2, 3, 1);
            let q = numbers((b, h, t, d), 1)?;
            let k = values(b * key_heads * s * d, 2);
            let v = values(b * key_heads * s * dv, 3);
            let of_keys = |d: usize| Layout::contiguous((b, key_heads, s, d));
            let padding: Vec<u8> = (0..b * s).map(|i| u8::from(i % 3 != 0)).collect();
            let padding = Tensor::from_vec(padding, (b, s), q.device())?;
            let mask = Mask { padding: Some(&padding), ..Mask::default() };
            let rules = ScoreRules::new(&sdpa, mask, &q, s)?;
            let of_q: Vec<f32> = q.flatten_all()?.to_vec1()?;
            let problem = PassInputs {
                q: Heads::new(Elements::F32(&of_q), q.layout())?,
                k: Heads::new(Elements::F32(&k), &of_keys(d))?,
                v: Heads::new(Elements::F32(&v), &of_keys(dv))?,
                rules: &rules,
                dropout: Some(WeightDropout::new(Dropout::new(0.2, 1, 2)?, HeadLayout::all(h, d), t, 0)),
            };
            let expected = run(&problem, |run| isa::arch().dispatch(run));
            assert!(expected.iter().any(|x| *x != 0.0));
            for got in run_on_others(&problem) {
                for (a, b) in got.iter().zip(&expected) {
                    // The largest error seen is 3e-6: dropout scales up the weights that it keeps.
                    assert!((a - b).abs() <= 4e-6, "D {d}, T {t}, S {s}: {a} {b}");
                }
            }
        }
        Ok(())
    }

    /// Rows of codes are widened by each instruction set's own code.
    #[test]
    fn other_vectors_read_quantized_keys() -> Result<()> {
        for (d, t, s) in [(1, 5, 5), (7, 50, 60), (33, 97, 200), (64, 3, 130)] {
            let (b, h, key_heads) = (2, 4, 2);
            let q = numbers((b, h, t, d), 1)?;
            let [k, v] = [2, 3].map(|salt| quantize_rows(&numbers((b, key_heads, s, d), salt)?));
            let k = k?;
            let v = v?;
            let rules = ScoreRules::new(&Sdpa::default(), Mask::default(), &q, s)?;
            let of_q: Vec<f32> = q.flatten_all()?.to_vec1()?;
            let q = Heads::new(Elements::F32(&of_q), q.layout())?;
            let [wide_k, wide_v] = [widen_rows(&k)?, widen_rows(&v)?];
            let (codes_k, codes_v): (Vec<u8>, Vec<u8>) =
                (k.flatten_all()?.to_vec1()?, v.flatten_all()?.to_vec1()?);
            let (of_k, of_v): (Vec<f32>, Vec<f32>) =
                (wide_k.flatten_all()?.to_vec1()?, wide_v.flatten_all()?.to_vec1()?);
            let rules = &rules;
            let dropout = None;
            let of_codes = |x, like: &Tensor| Heads::new(Elements::Codes(x), like.layout());
            let k = of_codes(&codes_k, &k)?;
            let v = of_codes(&codes_v, &v)?;
            let problem = PassInputs { q, k, v, rules, dropout };
            let of_numbers = |x, like: &Tensor| Heads::new(Elements::F32(x), like.layout());
            let k = of_numbers(&of_k, &wide_k)?;
            let v = of_numbers(&of_v, &wide_v)?;
            let expected = run(&PassInputs { q, k, v, rules, dropout }, |run| isa::arch().dispatch(run));
            let mut all = run_on_others(&problem);
            all.push(run(&problem, |run| isa::arch().dispatch(run)));
            for got in all {
                for (a, b) in got.iter().zip(&expected) {
                    assert!((a - b).abs() <= 4e-6, "D {d}, T {t}, S {s}: {a} {b}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn runs_cover_all_numbers_in_order_and_shrink() {
        for threads in [1, 2, 7, 64] {
            for count in [0, 1, 2, 24, 1000] {
                let runs = shrinking_runs(count, threads);
                assert!(runs.iter().cloned().flatten().eq(0..count), "{count} for {threads}: {runs:?}");
                assert!(
                    runs.iter().all(|run| !run.is_empty()) && runs.is_sorted_by(|a, b| a.len() >= b.len())
                );
            }
        }
    }
}
