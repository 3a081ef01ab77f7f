use super::forward::Forward;
use super::heads::Heads;
use super::problem::Problem;
use super::summary::RowSummary;
use crate::Dropout;
use crate::attention::drop_weights::WeightDropout;
use crate::attention::heads::HeadLayout;
use crate::attention::mask::CpuMask;
use crate::isa;
use crate::test_numbers::values;
use candle_core::{Layout, Result};
use pulp::{Simd, WithSimd};
use std::mem::MaybeUninit;

/// The context, followed by the numbers of the summaries.
fn run_on<S: Simd>(problem: &Problem<f32>, simd: S) -> Vec<f32> {
    run(problem, |run| run.with_simd(simd))
}

fn run(problem: &Problem<f32>, dispatch: impl Fn(Forward<f32>)) -> Vec<f32> {
    let mut out = vec![MaybeUninit::new(f32::NAN); problem.q.dims.iter().product()];
    let mut log_sums = vec![0.0; out.len() / problem.q.dims[3]];
    let mut found = vec![RowSummary::default(); log_sums.len()];
    dispatch(Forward { problem, out: &mut out, log_sums: &mut log_sums, summaries: Some(&mut found) });
    // A distance sums over up to 200 tokens.
    let numbers = found.iter().flat_map(|row| {
        [row.entropy, row.mean_distance / 200.0, row.on_self, row.on_previous, row.on_first, row.max]
    });
    // SAFETY: initialised above, and again by `Forward`.
    out.into_iter().map(|x| unsafe { x.assume_init() }).chain(numbers).collect()
}

/// AVX2's vectors, and portable ones of 1, 4, 8 and 16 numbers, split the same sums into different blocks.
#[test]
fn other_vectors_compute_what_this_processors_do() -> Result<()> {
    for (d, t, s) in [(1, 5, 5), (7, 50, 60), (33, 97, 200), (64, 3, 130)] {
        let (b, h) = (2, 3);
        let (q, k, v) = (values(b * h * t * d, 1), values(b * h * s * d, 2), values(b * h * s * d, 3));
        let (q_layout, k_layout) = (Layout::contiguous((b, h, t, d)), Layout::contiguous((b, h, s, d)));
        let padding = Some((0..b * s).map(|i| u8::from(i % 3 != 0)).collect());
        let mask = CpuMask { padding, ..CpuMask::default() };
        let problem = Problem {
            q: Heads::new(&q, &q_layout)?,
            k: Heads::new(&k, &k_layout)?,
            v: Heads::new(&v, &k_layout)?,
            scale: 1.5,
            mask: &mask,
            dropout: Some(WeightDropout::new(Dropout::new(0.2, 1, 2)?, HeadLayout::all(h, d), t)),
        };
        let expected = run(&problem, |run| isa::arch().dispatch(run));
        assert!(expected.iter().any(|x| *x != 0.0));
        let mut others = vec![
            run_on(&problem, pulp::Scalar),
            run_on(&problem, pulp::Scalar128b),
            run_on(&problem, pulp::Scalar256b),
            run_on(&problem, pulp::Scalar512b),
        ];
        #[cfg(target_arch = "x86_64")]
        others.extend(pulp::x86::V3::try_new().map(|avx2| run_on(&problem, avx2)));
        for got in others {
            for (a, b) in got.iter().zip(&expected) {
                // The largest error seen is 3e-6: dropout scales up the weights that it keeps.
                assert!((a - b).abs() <= 4e-6, "D {d}, T {t}, S {s}: {a} {b}");
            }
        }
    }
    Ok(())
}
