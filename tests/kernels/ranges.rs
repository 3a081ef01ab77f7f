//! Ranges of keys for each query, against the same keys hidden by -inf in the definition.

use crate::common::{Result, cases, test_device};
use crate::{random, relative_error, same_on_any_number_of_threads};
use candle_core::{DType, Tensor, Var};
use candle_fused::Implementation::{self, Eager, Fused};
use candle_fused::attention::{Chosen, Inputs, KeyRanges, Mask, Sdpa, Wanted, Window};
use proptest::prelude::*;
use std::ops::Range;

type Lists = Vec<Vec<Vec<Range<usize>>>>;

#[derive(Debug, Clone)]
struct Case {
    sizes: (usize, usize, usize, usize),
    t: usize,
    s: usize,
    window: Window,
    /// (B or 1) x T
    lists: Lists,
    /// Whether something is added as well, and learned.
    added: bool,
    seed: u64,
}

impl Case {
    /// The keys that ranges hide, as numbers to add to the scores: (B or 1, 1, T, S)
    fn hidden(&self) -> Result<Tensor> {
        let mut numbers = vec![];
        for ranges in self.lists.iter().flatten() {
            let sees = |key: &usize| ranges.iter().any(|range| range.contains(key));
            numbers.extend((0..self.s).map(|key| if sees(&key) { 0f32 } else { f32::NEG_INFINITY }));
        }
        Ok(Tensor::from_vec(numbers, (self.lists.len(), 1, self.t, self.s), &test_device())?)
    }

    /// Context, weights, log-sums, summary and gradients; with ranges, or with what they hide added instead.
    fn run(&self, dtype: DType, implementation: Implementation, by_ranges: bool) -> Result<Vec<Vec<f64>>> {
        let (b, key_heads, group, d) = self.sizes;
        let variable = |name: &str, shape: [usize; 4]| -> Result<Var> {
            Ok(Var::from_tensor(&random(self.seed, name, 1., shape.to_vec())?.to_dtype(dtype)?)?)
        };
        let q = variable("q", [b, key_heads * group, self.t, d])?;
        let k = variable("k", [b, key_heads, self.s, d])?;
        let v = variable("v", [b, key_heads, self.s, d])?;
        let learned = variable("added", [1, 1, self.t, self.s])?;
        let ranges = KeyRanges::new(&self.lists)?;
        let added = match (by_ranges, self.added) {
            (true, false) => None,
            (true, true) => Some(learned.as_tensor().clone()),
            (false, false) => Some(self.hidden()?),
            (false, true) => Some(learned.broadcast_add(&self.hidden()?.to_dtype(dtype)?)?),
        };
        let mask = Mask { ranges: by_ranges.then_some(&ranges), added: added.as_ref(), ..Mask::default() };
        let attention = Sdpa { window: self.window, implementation, ..Sdpa::default() };
        assert_eq!(attention.code_for(&Inputs::from_tensors(&q, &k, &v, mask))?, implementation);
        let wanted = Wanted { weights: &[Chosen::default()], summary: true, lse: true };
        let attended = attention.attend(&q, &k, &v, mask, wanted)?;
        let flat = |x: &Tensor| -> Result<Vec<f64>> { Ok(x.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?) };
        let gradients = attended.context.sqr()?.sum_all()?.backward()?;
        let of = |x: &Var| gradients.get(x).map_or_else(|| flat(&x.zeros_like()?), flat);
        let summary = attended.summary.ok_or("a summary")?;
        let lse = flat(&attended.lse.ok_or("log-sums")?)?;
        let lse = lse.into_iter().map(|x| if x == f64::NEG_INFINITY { -1e3 } else { x }).collect();
        Ok(vec![
            flat(&attended.context)?,
            flat(&attended.weights[0])?,
            lse,
            flat(&summary.entropy)?,
            flat(&summary.mean_distance)?,
            of(&q)?,
            of(&k)?,
            of(&v)?,
            of(&learned)?,
        ])
    }

    fn check(&self) -> Result {
        let expected = self.run(DType::F64, Eager, false)?;
        for (dtype, implementation, tolerance) in [(DType::F64, Eager, 1e-13), (DType::F32, Fused, 1e-5)] {
            let all = self.run(dtype, implementation, true)?;
            for (n, (got, expected)) in all.iter().zip(&expected).enumerate() {
                let largest = expected.iter().fold(1e-30, |a: f64, x| a.max(x.abs()));
                let error = relative_error(got, expected) * largest.min(1.0);
                assert!(error < tolerance, "number {n} by {implementation:?} of {self:?}: {error}");
            }
        }
        Ok(())
    }
}

prop_compose! {
    fn any_case()(b in 1usize..3, key_heads in 1usize..3, group in 1usize..3, d in 1usize..40,
                  (t, s) in prop_oneof![(1usize..5, 1usize..1300), (5usize..100, 1usize..500)],
                  shared in any::<bool>(), causal in any::<bool>(), added in any::<bool>(), seed in 0u64..100_000)
                 (lists in prop::collection::vec(prop::collection::vec(prop::collection::vec((0..s, 0..=s), 0..4), t..=t),
                                                 if shared { 1 } else { b }),
                  t in Just(t), s in Just(s), sizes in Just((b, key_heads, group, d)), causal in Just(causal), added in Just(added),
                  seed in Just(seed)) -> Case {
        let range = |(a, b): (usize, usize)| a.min(b)..b.min(a + 60).max(a.min(b));
        let lists = lists.into_iter().map(|row| row.into_iter().map(|x| x.into_iter().map(range).collect()).collect());
        let window = if causal { Window::CAUSAL } else { Window::ALL };
        Case { sizes, t, s, window, lists: lists.collect(), added, seed }
    }
}

/// A prefix of 40 keys for all, and documents of 50 positions.
fn documents() -> Case {
    let lists = vec![(0..200).map(|i| vec![0..40, (40 + i - i % 50)..(41 + i)]).collect()];
    Case { sizes: (2, 2, 2, 16), t: 200, s: 240, window: Window::ALL, lists, added: true, seed: 4 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(32)))]

    #[test]
    fn any_ranges_follow_the_definition(case in any_case()) {
        case.check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }
}

#[test]
fn a_shared_prefix_and_documents_follow_the_definition() -> Result {
    documents().check()?;
    same_on_any_number_of_threads(|| Ok(documents().run(DType::F32, Fused, true)?.concat()))
}

/// Ranges at both ends of the keys, and a single key.
#[test]
fn ranges_far_apart_and_of_one_key_follow_the_definition() -> Result {
    for (t, s, lists) in [
        (30, 500, vec![vec![vec![0..10, 450..460]; 30]]),
        (3, 1500, vec![vec![vec![0..10, 1450..1460]; 3]]), // no key of the second span is visible
        (3, 1, vec![vec![vec![0..1], vec![], vec![0..1]]]),
        (9, 1, vec![vec![vec![vec![0..1], vec![], vec![0..1]]; 3].concat()]),
    ] {
        let case = Case { sizes: (1, 1, 2, 8), t, s, window: Window::ALL, lists, added: false, seed: 1 };
        case.check()?;
    }
    Ok(())
}

/// Keys that nobody sees may be NaN, whether their whole block is skipped or they share it with others.
#[test]
fn keys_that_nobody_sees_are_hidden_whatever_they_are() -> Result {
    let part = |name: &str, s: usize| random(1, name, 1., (1, 2, s, 8));
    let nan = Tensor::full(f32::NAN, (1, 2, 300, 8), &test_device())?;
    let x = Tensor::cat(&[&part("before", 180)?, &nan, &part("after", 120)?], 2)?;
    let v = part("v", 600)?;
    for t in [30, 3] {
        let ranges = KeyRanges::new(&[vec![vec![0..180, 480..600]; t]])?;
        let mask = Mask { ranges: Some(&ranges), ..Mask::default() };
        let attention = Sdpa { window: Window::ALL, ..Sdpa::default() };
        let context = attention.forward(&part("q", t)?, &x, &v, mask)?;
        assert!(context.sum_all()?.to_scalar::<f32>()?.is_finite(), "T {t}");
    }
    Ok(())
}

#[test]
fn ranges_that_do_not_fit_are_refused() -> Result {
    let q = random(1, "q", 1., (2, 2, 3, 8))?;
    let lists =
        |rows: usize, queries: usize, end: usize| KeyRanges::new(&vec![vec![vec![0..end]; queries]; rows]);
    let one_too_long = KeyRanges::new(&[vec![vec![0..1], vec![0..2, 3..4], vec![1..2]]])?;
    for ranges in [lists(3, 3, 2)?, lists(1, 2, 2)?, lists(2, 3, 4)?, one_too_long] {
        let mask = Mask { ranges: Some(&ranges), ..Mask::default() };
        let message = Sdpa::default().forward(&q, &q, &q, mask).expect_err("they do not fit").to_string();
        assert!(message.contains("3 queries in 2 rows or 1, up to key 3"), "{message}");
    }
    assert!(KeyRanges::new(&[]).is_err() && KeyRanges::new(&[vec![], vec![vec![]]]).is_err());
    assert_eq!(KeyRanges::new(&[vec![vec![4..6, 0..2, 2..4, 9..9]]])?, lists(1, 1, 6)?);
    Ok(())
}
