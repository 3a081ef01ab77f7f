//! The forward pass: which thread computes which queries, and in what order.

use super::blocks::{Blocks, FEW_QUERIES, QUERIES};
use super::pack::{PackSizes, PackedHead};
use super::problem::{Problem, SharedOutput};
use super::read::HeadAt;
use super::rows::{Partial, Span};
use super::tile::{QueryTile, Scratch, TileTask};
use super::weights::SummaryOfRow;
use crate::attention::heads::Query;
use crate::team;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// With this many heads per thread, the last heads to finish are a small part of the whole.
const HEADS_PER_THREAD: usize = 4;

/// A forward pass over all queries: [`CpuAttention`](super::CpuAttention)'s work. It writes every row of `out`, which is
/// for this pass alone.
pub(super) struct Forward<'a> {
    pub(super) problem: &'a Problem<'a>,
    pub(super) out: &'a SharedOutput<'a>,
}

impl WithSimd for Forward<'_> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        let d = self.problem.q.dims[3];
        let [_, _, t, dv] = self.problem.context_dims();
        let out = self.out;
        if t <= FEW_QUERIES {
            let queries = Span::queries(self.problem);
            let spans = Span::count(self.problem);
            let partials: Vec<Vec<Partial>> = team::map(queries.len() * spans, |task| {
                simd.vectorize(Span::new(self.problem, queries[task / spans].clone(), task % spans))
            });
            for (query, spans) in queries.iter().zip(partials.chunks_exact(spans)) {
                for (n, h) in query.heads.clone().enumerate() {
                    let row = Partial::merge(spans, n);
                    let query = Query { b: query.b, h, i: query.i };
                    let (log_sum, share) = row.finish(self.problem, h);
                    // SAFETY: each query is written once.
                    unsafe { out.write(query, &row.context, share, log_sum) };
                }
            }
            if out.summarizes() {
                let heads = self.problem.heads().into_iter();
                let rows = heads.flat_map(|head| (0..t).map(move |i| head.query(i)));
                // SAFETY: each query is written once.
                rows.collect::<Vec<_>>().into_par_iter().for_each(|query| unsafe {
                    out.write_summary(query, || {
                        simd.vectorize(SummaryOfRow { problem: self.problem, query })
                    });
                });
            }
            return;
        }
        let heads = self.problem.heads();
        let [batch, key_heads, ..] = self.problem.k.dims;
        let group = self.problem.group();
        assert!(heads.len() == batch * key_heads * group); // `out` is written head by head
        let width = dv.next_multiple_of(S::F32_LANES);
        let blocks = Blocks::of::<S>();
        let sizes = PackSizes { panel: blocks.panel::<S>(), width, columns: blocks.columns::<S>() };
        let Problem { k, v, .. } = self.problem;
        // Dropout scales up the weights that it keeps.
        #[allow(clippy::cast_possible_truncation)] // a factor on f32 weights
        let largest_weight = self.problem.dropout.map_or(1.0, |dropout| dropout.kept() as f32);
        let threads = rayon::current_num_threads();
        // If there are enough heads of keys to go round, each task is one with all heads that share it, packed into
        // memory that its worker reuses. Otherwise each task is a tile of a head, whose keys were packed beforehand.
        let whole_heads = batch * key_heads >= HEADS_PER_THREAD * threads;
        let of_keys = |n: usize| HeadAt { b: n / key_heads, h: n % key_heads };
        let packed: Vec<PackedHead> = if whole_heads {
            vec![]
        } else {
            let pack = |n| {
                let mut packed = PackedHead::default();
                packed.pack(simd, [k, v], of_keys(n), sizes, largest_weight);
                packed
            };
            (0..batch * key_heads).into_par_iter().map(pack).collect()
        };
        let tiles = t.div_ceil(QUERIES);
        let tasks = if whole_heads { batch * key_heads } else { tiles * heads.len() };
        let next = AtomicUsize::new(0);
        (0..threads.min(tasks)).into_par_iter().with_max_len(1).for_each(|_| {
            let mut scratch = Scratch::new(d, width);
            let mut own = PackedHead::default();
            let mut run = |packed: &PackedHead, head, tile| {
                let problem = self.problem;
                let first = tile * QUERIES;
                let rows = QUERIES.min(t - first);
                let tile = QueryTile { problem, packed, head, first, rows, width, out };
                simd.vectorize(TileTask { tile, scratch: &mut scratch });
            };
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    return;
                }
                if whole_heads {
                    own.pack(simd, [k, v], of_keys(task), sizes, largest_weight);
                    // All heads take a tile in turn, so that the keys they share are still in the cache.
                    for tile in 0..tiles {
                        heads[task * group..(task + 1) * group]
                            .iter()
                            .for_each(|head| run(&own, *head, tile));
                    }
                } else {
                    // The last tiles of a head see the most keys, so they run first: no thread is left
                    // with one at the end.
                    let head = task % heads.len();
                    run(&packed[head / group], heads[head], tiles - 1 - task / heads.len());
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::LogSum;
    use super::super::read::{Elements, Heads};
    use super::*;
    use crate::attention::heads::{HeadLayout, WeightDropout};
    use crate::attention::scores::ScoreRules;
    use crate::attention::summary::RowSummary;
    use crate::attention::{Mask, Sdpa, Window, quantize_rows, widen_rows};
    use crate::dropout::Dropout;
    use crate::isa;
    use crate::test_numbers::{numbers, values};
    use candle_core::{Layout, Result, Tensor};
    use std::mem::MaybeUninit;

    /// The context, followed by the numbers of the summaries.
    fn run_on<S: Simd>(problem: &Problem, simd: S) -> Vec<f32> {
        run(problem, |run| run.with_simd(simd))
    }

    /// Runs the pass on the processor's own vectors, and on portable ones of 1, 4, 8 and 16 numbers.
    fn run_on_others(problem: &Problem) -> Vec<Vec<f32>> {
        let mut others = vec![
            run_on(problem, pulp::Scalar),
            run_on(problem, pulp::Scalar128b),
            run_on(problem, pulp::Scalar256b),
            run_on(problem, pulp::Scalar512b),
        ];
        #[cfg(target_arch = "x86_64")]
        others.extend(pulp::x86::V3::try_new().map(|avx2| run_on(problem, avx2)));
        #[cfg(target_arch = "aarch64")]
        others.extend(pulp::aarch64::Neon::try_new().map(|neon| run_on(problem, neon)));
        others
    }

    fn run(problem: &Problem, dispatch: impl Fn(Forward)) -> Vec<f32> {
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
            let problem = Problem {
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
            let problem = Problem { q, k, v, rules, dropout };
            let of_numbers = |x, like: &Tensor| Heads::new(Elements::F32(x), like.layout());
            let k = of_numbers(&of_k, &wide_k)?;
            let v = of_numbers(&of_v, &wide_v)?;
            let expected = run(&Problem { q, k, v, rules, dropout }, |run| isa::arch().dispatch(run));
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
}
