//! Weights on demand and summaries from the fused kernel, compared with the eager definition.

use crate::common::{Result, cases, max_abs, some_padding, test_device};
use crate::{packed_views, random, same_on_any_number_of_threads};
use candle_core::{D, DType, Tensor, Var};
use candle_fused::Dropout;
use candle_fused::Implementation::{self, Eager, Fused};
use candle_fused::attention::{Attended, Chosen, Hidden, Mask, Sdpa, Summary, Wanted};
use gpt2_view::{HeadSummary, QueryNumbers, summarize};
use proptest::prelude::*;

/// q, k and v as views of one packed projection, as `c_attn` returns them.
struct Case {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    padding: Option<Tensor>,
    hidden: Vec<Hidden>,
    dropout: Option<Dropout>,
}

impl Case {
    fn random((b, h, d): (usize, usize, usize), (t, s): (usize, usize), seed: u64) -> Result<Self> {
        Self::of(&random(seed, "x", 1.2, (b, s, 3, h, d))?, t)
    }

    /// Random numbers and T queries, at most S and sometimes few; with padding and hidden keys if wanted.
    fn masked(
        (b, h, d): (usize, usize, usize),
        (t, s): (usize, usize),
        seed: usize,
        padded: bool,
        hidden: bool,
    ) -> Result<Self> {
        let t = if seed.is_multiple_of(4) { t.min(s).min(5) } else { t.min(s) };
        let mut case = Self::random((b, h, d), (t, s), seed as u64)?;
        if padded {
            case.padding = Some(Tensor::new(some_padding(b, s, seed as u64), &test_device())?);
        }
        if hidden {
            case.hide(seed)?;
        }
        Ok(case)
    }

    /// `packed` (B, S, 3, H, D)
    fn of(packed: &Tensor, t: usize) -> Result<Self> {
        let [q, k, v] = packed_views(packed, t)?;
        Ok(Self { q, k, v, padding: None, hidden: vec![], dropout: None })
    }

    fn cast(&self, dtype: DType) -> Result<Self> {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|x| x.to_dtype(dtype));
        let padding = self.padding.clone();
        let hidden = self.hidden.clone();
        Ok(Self { q: q?, k: k?, v: v?, padding, hidden, dropout: self.dropout })
    }

    fn run(&self, implementation: Implementation, wanted: Wanted) -> candle_core::Result<Attended> {
        let mask = Mask { padding: self.padding.as_ref(), hidden: &self.hidden, ..Mask::default() };
        let attention = Sdpa { dropout: self.dropout, implementation, ..Sdpa::default() };
        attention.attend(&self.q, &self.k, &self.v, mask, wanted)
    }

    fn weights(&self, implementation: Implementation, chosen: Chosen) -> candle_core::Result<Tensor> {
        Ok(self.run(implementation, Wanted { weights: &[chosen], ..Wanted::default() })?.weights.remove(0))
    }

    fn summary(&self, implementation: Implementation) -> Result<Summary> {
        let attended =
            self.run(implementation, Wanted { weights: &[], summary: true, ..Wanted::default() })?;
        Ok(attended.summary.ok_or("it was asked for")?)
    }

    /// Hides some keys from some queries, including all keys of one query.
    fn hide(&mut self, seed: usize) -> Result {
        let ((_, h, t, _), s) = (self.q.dims4()?, self.k.dim(2)?);
        self.hidden = (0..6)
            .map(|i| Hidden {
                head: (i % 2 == 0).then_some((seed + i) % h),
                query: (seed * 5 + i * 31) % t,
                key: (seed * 3 + i * i * 7) % s,
            })
            .chain((0..s).map(|key| Hidden { head: Some(h - 1), query: t / 2, key }))
            .collect();
        Ok(())
    }
}

/// Some indices below `count` in random order, or all.
fn some_indices(count: usize, seed: usize) -> Option<Vec<usize>> {
    (!seed.is_multiple_of(3))
        .then(|| (0..=seed % 5).map(|i| (seed * 7 + i * (seed % 4 + 1)) % count).collect())
}

/// Every number of two summaries side by side, with its name.
fn numbers<'a>(a: &'a Summary, b: &'a Summary) -> [(&'static str, &'a Tensor, &'a Tensor); 6] {
    [
        ("entropy", &a.entropy, &b.entropy),
        ("mean distance", &a.mean_distance, &b.mean_distance),
        ("on self", &a.on_self, &b.on_self),
        ("on previous", &a.on_previous, &b.on_previous),
        ("on first", &a.on_first, &b.on_first),
        ("max", &a.max, &b.max),
    ]
}

/// The weight at `positions`, (B, H, T).
fn at(weights: &Tensor, positions: &Tensor) -> Result<Tensor> {
    Ok(weights.contiguous()?.gather(&positions.unsqueeze(3)?.contiguous()?, D::Minus1)?.squeeze(3)?)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(96)))]

    #[test]
    fn chosen_weights_equal_the_definitions(b in 1usize..4, h in 1usize..6, d in 1usize..70, s in 1usize..301,
                                            t in 1usize..301, seed in 0usize..100_000, padded: bool,
                                            hidden: bool) {
        let check = || -> Result {
            let case = Case::masked((b, h, d), (t, s), seed, padded, hidden)?;
            let t = case.q.dim(2)?;
            let chosen = Chosen { heads: some_indices(h, seed), queries: some_indices(t, seed / 3) };
            let expected = case.cast(DType::F64)?.weights(Eager, Chosen::default())?;
            let pick = |x: &Tensor, dim, indices: &Option<Vec<usize>>| -> Result<Tensor> {
                let Some(indices) = indices else { return Ok(x.clone()) };
                let indices: Vec<u32> = indices.iter().map(|&i| u32::try_from(i)).collect::<std::result::Result<_, _>>()?;
                Ok(x.contiguous()?.index_select(&Tensor::new(indices, &test_device())?, dim)?)
            };
            let expected = pick(&pick(&expected, 1, &chosen.heads)?, 2, &chosen.queries)?;
            for implementation in [Fused, Eager] {
                let got = case.weights(implementation, chosen.clone())?;
                assert_eq!((got.dims(), got.dtype()), (expected.dims(), DType::F32));
                let error = max_abs(&(got.to_dtype(DType::F64)? - &expected)?)?;
                assert!(error <= 1e-6, "{implementation:?}: {error:e}");
            }
            for dtype in [DType::F16, DType::BF16] {
                // Both sides round the inputs.
                let half = case.cast(dtype)?;
                let got = half.weights(Fused, chosen.clone())?;
                let exact = half.cast(DType::F64)?;
                let error = max_abs(&(got.to_dtype(DType::F64)? - exact.weights(Eager, chosen.clone())?)?)?;
                assert!(got.dtype() == DType::F32 && error <= 1e-6, "{dtype:?}: {error:e}");
            }
            Ok(())
        };
        check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }

    #[test]
    fn summaries_equal_those_of_the_weights(b in 1usize..4, h in 1usize..5, d in 1usize..70, s in 1usize..301,
                                            t in 1usize..301, seed in 0usize..100_000, padded: bool,
                                            hidden: bool, huge: bool) {
        let check = || -> Result {
            let mut case = Case::masked((b, h, d), (t, s), seed, padded, hidden)?;
            let t = case.q.dim(2)?;
            if huge {
                case.v = (case.v * 1e38)?; // rows are computed one by one
            }
            let weights = case.weights(Eager, Chosen::default())?;
            let expected = case.summary(Eager)?;
            for dtype in [DType::F32, DType::F16] {
                let case = case.cast(dtype)?;
                if dtype == DType::F16 && huge {
                    continue;
                }
                let (got, expected, weights) = match dtype {
                    DType::F32 => (case.summary(Fused)?, &expected, weights.clone()),
                    _ => (case.summary(Fused)?, &case.summary(Eager)?, case.weights(Eager, Chosen::default())?),
                };
                for (name, got, expected) in numbers(&got, expected) {
                    assert_eq!((got.dims(), got.dtype()), (&[b, h, t][..], DType::F32));
                    let error = max_abs(&(got - expected)?)?;
                    let tolerance = match name {
                        "mean distance" => 2e-6 * s as f32,
                        // Up to 5.7 nats; 4.6e-6 was measured over some thousand cases.
                        "entropy" => 8e-6,
                        _ => 4e-6,
                    };
                    assert!(error <= tolerance, "{name}: {error:e}");
                }
                // If two weights are nearly equal, either may be the largest.
                let error = max_abs(&(at(&weights, &got.max_position)? - &expected.max)?)?;
                assert!(error <= 1e-6, "position of the maximum: {error:e}");
                if !padded && dtype == DType::F32 {
                    view_agrees(&got, &weights)?;
                }
            }
            Ok(())
        };
        check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }
}

/// From a summary, `gpt2_view` computes the same as from the weights (B, H, T, S).
fn view_agrees(summary: &Summary, weights: &Tensor) -> Result {
    let (_, h, t, s) = weights.dims4()?;
    let column = |x: &Tensor, head: usize| -> Result<Vec<f32>> { Ok(x.get(0)?.get(head)?.to_vec1()?) };
    for (head, expected) in summarize(&weights.get(0)?)?.into_iter().enumerate().take(h) {
        let numbers = QueryNumbers {
            entropy: &column(&summary.entropy, head)?,
            mean_distance: &column(&summary.mean_distance, head)?,
            on_self: &column(&summary.on_self, head)?,
            on_previous: &column(&summary.on_previous, head)?,
            on_first: &column(&summary.on_first, head)?,
        };
        let got = HeadSummary::of_queries(s - t, numbers)?;
        let fields = |x: HeadSummary| [x.entropy, x.on_self, x.on_previous, x.on_first, x.uniform];
        for (a, b) in fields(got).into_iter().zip(fields(expected)) {
            assert!((a - b).abs() <= 4e-6, "{got:?} is not {expected:?}");
        }
        assert!((got.mean_distance - expected.mean_distance).abs() <= 2e-6 * s as f32);
    }
    Ok(())
}

/// A row of a left-padded batch has the same summary as the text alone: its first token is the first visible one.
#[test]
fn a_padded_row_has_the_summary_of_the_row_alone() -> Result {
    let mut case = Case::random((1, 3, 8), (40, 40), 1)?;
    let alone = Case::of_last(&case, 30)?.summary(Fused)?;
    let padding: Vec<u8> = (0..40).map(|j| u8::from(j >= 10)).collect();
    case.padding = Some(Tensor::from_vec(padding, (1, 40), &test_device())?);
    for implementation in [Fused, Eager] {
        let padded = case.summary(implementation)?;
        for (name, got, expected) in numbers(&padded, &alone) {
            let error = max_abs(&(got.narrow(2, 10, 30)? - expected)?)?;
            assert!(error <= 1e-5, "{implementation:?}, {name}: {error:e}");
            assert!(max_abs(&got.narrow(2, 0, 10)?)? == 0.0, "{name}: a query that sees nothing");
        }
        let shifted = padded.max_position.narrow(2, 10, 30)?.to_dtype(DType::F32)?.affine(1.0, -10.0)?;
        assert!(max_abs(&(shifted - alone.max_position.to_dtype(DType::F32)?)?)? == 0.0);
    }
    Ok(())
}

impl Case {
    /// Only the last `n` positions.
    fn of_last(&self, n: usize) -> Result<Self> {
        let last = |x: &Tensor| x.narrow(2, x.dim(2)? - n, n);
        let q = last(&self.q)?;
        let k = last(&self.k)?;
        let v = last(&self.v)?;
        Ok(Self { q, k, v, padding: None, hidden: vec![], dropout: None })
    }
}

/// Scores of 1e4 and a maximum that keeps rising: one key takes all, and every sum stays correct.
#[test]
fn summaries_hold_for_extreme_scores() -> Result {
    let mut case = Case::random((1, 2, 16), (700, 700), 3)?;
    let ramp: Vec<f32> = (0..700).map(|j| 1.0 + j as f32 * 0.5).collect();
    case.k = case.k.broadcast_mul(&Tensor::from_vec(ramp, (1, 1, 700, 1), &test_device())?)?;
    let got = case.summary(Fused)?;
    let weights = case.weights(Fused, Chosen::default())?;
    let expected = case.summary(Eager)?;
    for (name, got, expected) in numbers(&got, &expected) {
        // Scores are known to 1e3 · 2^-24, and so are the weights, which spread over few keys.
        let tolerance = if name == "mean distance" { 0.2 } else { 1e-3 };
        let error = max_abs(&(got - expected)?)?;
        assert!(error <= tolerance, "{name}: {error:e}");
    }
    assert!(max_abs(&(at(&weights, &got.max_position)? - &got.max)?)? <= 1e-3);
    Ok(())
}

/// Asking for weights changes no bit of the context.
#[test]
fn asking_changes_nothing() -> Result {
    for t in [2, 90] {
        let case = Case::random((2, 3, 20), (t, 90), 5)?;
        let plain = case.run(Fused, Wanted::default())?.context.flatten_all()?.to_vec1::<f32>()?;
        let wanted = Wanted { weights: &[Chosen::default()], summary: true, ..Wanted::default() };
        assert_eq!(case.run(Fused, wanted)?.context.flatten_all()?.to_vec1::<f32>()?, plain);
    }
    Ok(())
}

/// Knocked-out keys are hidden in the fused kernel as in the definition, forward and backward.
#[test]
fn hidden_keys_are_hidden_forward_and_backward() -> Result {
    for t in [3, 60] {
        let mut case = Case::random((2, 3, 9), (t, 60), 8)?;
        let before = case.run(Fused, Wanted::default())?.context;
        case.hide(4)?;
        let expected = case.cast(DType::F64)?.run(Eager, Wanted::default())?.context;
        let got = case.run(Fused, Wanted::default())?.context.to_dtype(DType::F64)?;
        assert!(max_abs(&(&got - expected)?)? < 5e-6);
        assert!(max_abs(&(got - before.to_dtype(DType::F64)?)?)? > 0.1, "nothing was hidden");
    }
    let gradient = |implementation, dtype| -> Result<Tensor> {
        let packed = Var::from_tensor(&random(2, "x", 1.2, (1, 50, 3, 2, 8))?.to_dtype(dtype)?)?;
        let mut case = Case::of(&packed, 50)?;
        case.hide(4)?;
        let context = case.run(implementation, Wanted::default())?.context;
        let gradients = context.sqr()?.sum_all()?.backward()?;
        Ok(gradients.get(&packed).ok_or("no gradient")?.to_dtype(DType::F64)?)
    };
    let got = gradient(Fused, DType::F32)?;
    let expected = gradient(Eager, DType::F64)?;
    let error = max_abs(&(got - &expected)?)? / max_abs(&expected)?;
    assert!(error < 5e-6, "{error:e}");
    Ok(())
}

/// A gradient flows through chosen weights, with and without dropout, to q and k.
#[test]
fn chosen_weights_are_differentiable() -> Result {
    for (dropout, few) in [(0.0, false), (0.0, true), (0.3, false)] {
        let queries = if few { vec![7, 3] } else { vec![30, 31, 2, 9, 10, 11, 40] };
        let gradient = |implementation, dtype| -> Result<Tensor> {
            let packed = Var::from_tensor(&random(2, "x", 1.2, (2, 50, 3, 3, 8))?.to_dtype(dtype)?)?;
            let mut case = Case::of(&packed, 45)?;
            case.dropout = (dropout > 0.0).then(|| Dropout::new(dropout, 1, 2)).transpose()?;
            let chosen = Chosen { heads: Some(vec![2, 0]), queries: Some(queries.clone()) };
            let weights = case.weights(implementation, chosen)?;
            let gradients = weights.sqr()?.sum_all()?.backward()?;
            Ok(gradients.get(&packed).ok_or("no gradient")?.to_dtype(DType::F64)?)
        };
        let got = gradient(Fused, DType::F32)?;
        let expected = gradient(Eager, DType::F64)?;
        let error = max_abs(&(got - &expected)?)? / max_abs(&expected)?;
        assert!(error < 5e-6, "dropout {dropout}: {error:e}");
        assert!(max_abs(&expected)? > 0.0);
    }
    Ok(())
}

#[test]
fn heads_and_queries_that_are_not_there_are_refused_by_name() -> Result {
    let case = Case::random((1, 3, 4), (5, 9), 1)?;
    let refused = |chosen: Chosen| case.weights(Fused, chosen).expect_err("not there").to_string();
    let err = refused(Chosen { heads: Some(vec![0, 3]), queries: None });
    assert!(err.contains("head 3") && err.contains("0 to 2"), "{err}");
    let err = refused(Chosen { heads: None, queries: Some(vec![5]) });
    assert!(err.contains("query 5") && err.contains("0 to 4"), "{err}");
    let err = refused(Chosen { heads: Some(vec![]), queries: None });
    assert!(err.contains("no head"), "{err}");
    let outside = Hidden { head: None, query: 5, key: 0 };
    let case = Case { hidden: vec![outside], ..case };
    let err = case.run(Fused, Wanted::default()).expect_err("not there").to_string();
    assert!(err.contains("query: 5") && err.contains("5 queries"), "{err}");
    Ok(())
}

#[test]
fn weights_and_summaries_do_not_depend_on_the_number_of_threads() -> Result {
    let case = Case::random((2, 3, 20), (130, 150), 11)?;
    same_on_any_number_of_threads(|| {
        let found =
            case.run(Fused, Wanted { weights: &[Chosen::default()], summary: true, ..Wanted::default() })?;
        let summary = found.summary.ok_or("it was asked for")?;
        let all = [&found.weights[0], &summary.entropy, &summary.max].map(Tensor::flatten_all);
        let all = all.into_iter().collect::<candle_core::Result<Vec<_>>>()?;
        Ok(Tensor::cat(&all, 0)?.to_dtype(DType::F64)?.to_vec1()?)
    })
}

/// Asking for some rows and a summary takes no memory for the rest: a separate process runs this, and its peak counts.
#[cfg(target_os = "linux")]
#[test]
fn asking_for_rows_takes_memory_for_those_rows() -> Result {
    let args = ["--exact", "weights::peak_of_asking", "--ignored", "--nocapture", "--test-threads", "1"];
    let output = std::process::Command::new(std::env::current_exe()?).args(args).output()?;
    let text = String::from_utf8(output.stdout)?;
    let line = text.lines().find_map(|line| line.split_once("grew by ")).ok_or(text.clone())?;
    let grown: usize = line.1.trim_end_matches(" kB").parse()?;
    assert!(grown < 40_000, "{grown} kB; all weights would be 268,000");
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by the test above, in a process of its own"]
#[allow(clippy::print_stdout)]
fn peak_of_asking() -> Result {
    let peak = || -> Result<usize> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    let t = 8192;
    let case = Case::random((1, 1, 8), (t, t), 1)?;
    case.run(Fused, Wanted::default())?;
    let before = peak()?;
    let rows = Chosen { heads: Some(vec![0]), queries: Some((0..100).map(|i| i * 80).collect()) };
    case.run(Fused, Wanted { weights: &[rows], summary: true, ..Wanted::default() })?;
    println!("grew by {} kB", peak()? - before);
    Ok(())
}

/// A NaN score turns its row into NaN, except for keys that the row cannot see; on every path to the weights.
#[test]
fn hidden_keys_have_no_weight_beside_one_that_is_not_a_number() -> Result {
    for t in [2, 50] {
        let mut case = Case::random((2, 1, 8), (t, 50), 3)?;
        case.hide(4)?;
        let nan =
            Tensor::from_iter((0..50).map(|key| if key == 3 { f32::NAN } else { 1.0 }), &test_device())?;
        case.k = case.k.broadcast_mul(&nan.reshape((1, 1, 50, 1))?)?;
        let kinds = |implementation| -> Result<Vec<u8>> {
            let weights = case.weights(implementation, Chosen::default())?.flatten_all()?.to_vec1::<f32>()?;
            let kind = |w: f32| if w.is_nan() { 2 } else { u8::from(w > 0.0) };
            Ok(weights.into_iter().map(kind).collect())
        };
        let expected = kinds(Eager)?;
        assert!(expected.contains(&2) && expected.contains(&0), "T {t}");
        assert!(kinds(Fused)? == expected, "T {t}: another row or key");
        let entropy = |implementation| -> Result<Vec<bool>> {
            let entropy = case.summary(implementation)?.entropy.flatten_all()?.to_vec1::<f32>()?;
            Ok(entropy.into_iter().map(f32::is_nan).collect())
        };
        assert_eq!(entropy(Fused)?, entropy(Eager)?, "T {t}");
    }
    Ok(())
}

/// Among equal weights, the first key counts as the largest, on every path to a summary.
#[test]
fn the_first_of_equal_weights_is_the_largest() -> Result {
    for t in [2, 90] {
        let mut case = Case::random((1, 2, 8), (t, 400), 3)?;
        case.q = case.q.zeros_like()?;
        for implementation in [Fused, Eager] {
            let positions = case.summary(implementation)?.max_position.flatten_all()?.to_vec1::<u32>()?;
            assert!(positions.iter().all(|&key| key == 0), "{implementation:?}, T {t}: {positions:?}");
        }
    }
    Ok(())
}
