use super::forward::Forward;
use super::heads::Heads;
use super::log_sum::LogSum;
use super::problem::Problem;
use super::summary::RowSummary;
use crate::Dropout;
use crate::attention::drop_weights::WeightDropout;
use crate::attention::heads::HeadLayout;
use crate::attention::mask::Mask;
use crate::attention::scores::{ScoreRules, Scoring};
use crate::attention::window::Window;
use crate::isa;
use crate::test_numbers::{numbers, values};
use candle_core::{Layout, Result, Tensor};
use pulp::{Simd, WithSimd};
use std::mem::MaybeUninit;

/// The context, followed by the numbers of the summaries.
fn run_on<S: Simd>(problem: &Problem<f32>, simd: S) -> Vec<f32> {
    run(problem, |run| run.with_simd(simd))
}

fn run(problem: &Problem<f32>, dispatch: impl Fn(Forward<f32>)) -> Vec<f32> {
    let [b, h, t, dv] = problem.context_dims();
    let mut out = vec![MaybeUninit::new(f32::NAN); b * h * t * dv];
    let mut log_sums = vec![LogSum::default(); b * h * t];
    let mut found = vec![RowSummary::default(); log_sums.len()];
    dispatch(Forward { problem, out: &mut out, log_sums: &mut log_sums, summaries: Some(&mut found) });
    // A distance sums over up to 200 tokens.
    let numbers = found.iter().flat_map(|row| {
        [row.entropy, row.mean_distance / 200.0, row.on_self, row.on_previous, row.on_first, row.max]
    });
    // SAFETY: initialized above, and again by `Forward`.
    out.into_iter().map(|x| unsafe { x.assume_init() }).chain(numbers).collect()
}

/// AVX2's vectors, and portable ones of 1, 4, 8 and 16 numbers, split the same sums into different blocks.
#[test]
fn other_vectors_compute_what_this_processors_do() -> Result<()> {
    let (plain, all) = (Scoring::causal(1.5), |window| Scoring {
        window,
        softcap: Some(3.0),
        slopes: Some([0.5, 0.1, 0.0].into()),
        ..Scoring::causal(1.5)
    });
    for (d, dv, t, s, scoring) in [
        (1, 1, 5, 5, plain.clone()),
        (7, 7, 50, 60, plain.clone()),
        (33, 33, 97, 200, plain.clone()),
        (64, 64, 3, 130, plain),
        (33, 20, 97, 200, all(Window::sliding(40))),
        (20, 33, 60, 250, all(Window::ALL)),
        (20, 33, 4, 250, all(Window { left: Some(90), right: Some(3) })),
    ] {
        let (b, h, key_heads) = (2, 3, 1);
        let q = numbers((b, h, t, d), 1)?;
        let (k, v) = (values(b * key_heads * s * d, 2), values(b * key_heads * s * dv, 3));
        let of_keys = |d: usize| Layout::contiguous((b, key_heads, s, d));
        let padding: Vec<u8> = (0..b * s).map(|i| u8::from(i % 3 != 0)).collect();
        let padding = Tensor::from_vec(padding, (b, s), q.device())?;
        let mask = Mask { padding: Some(&padding), ..Mask::default() };
        let rules = ScoreRules::new(&scoring, mask, &q, s)?;
        let of_q: Vec<f32> = q.flatten_all()?.to_vec1()?;
        let problem = Problem {
            q: Heads::new(&of_q, q.layout())?,
            k: Heads::new(&k, &of_keys(d))?,
            v: Heads::new(&v, &of_keys(dv))?,
            rules: &rules,
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
