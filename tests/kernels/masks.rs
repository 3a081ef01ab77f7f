//! Masks: some are refused, and hidden keys leave no trace, whatever their numbers are.

use crate::common::{Result, max_abs, test_device};
use crate::{distance, random};
use candle_core::{DType, Tensor, Var};
use candle_fused::Implementation::{Eager, Fused};
use candle_fused::attention::{Attended, Chosen, Hidden, KeyRanges, Mask, Sdpa, Wanted, Window};

/// Four masks that hide the same keys, the first ones, from all of T queries.
struct Hiding {
    padding: Tensor,
    hidden: Vec<Hidden>,
    first: Tensor,
    ranges: KeyRanges,
}

impl Hiding {
    fn new(t: usize, s: usize, keys: usize) -> Result<Self> {
        let padding = Tensor::from_iter((0..s).map(|key| u8::from(key >= keys)), &test_device())?;
        let places = (0..t).flat_map(|query| (0..keys).map(move |key| (query, key)));
        Ok(Self {
            padding: padding.reshape((1, s))?,
            hidden: places.map(|(query, key)| Hidden { head: None, query, key }).collect(),
            first: Tensor::full(u32::try_from(keys)?, (1, t), &test_device())?,
            ranges: KeyRanges::new(&[vec![vec![keys..s]; t]])?,
        })
    }

    fn masks(&self) -> [(&'static str, Mask<'_>); 4] {
        [
            ("padding", Mask { padding: Some(&self.padding), ..Mask::default() }),
            ("hidden", Mask { hidden: &self.hidden, ..Mask::default() }),
            ("first", Mask { first: Some(&self.first), ..Mask::default() }),
            ("ranges", Mask { ranges: Some(&self.ranges), ..Mask::default() }),
        ]
    }
}

/// `x` (1, H, S, D) with `number` in all of some rows.
fn with_rows(x: &Tensor, rows: std::ops::Range<usize>, number: f32) -> Result<Tensor> {
    let there = (0..x.dim(2)?).map(|row| u8::from(rows.contains(&row)));
    let there =
        Tensor::from_iter(there, x.device())?.reshape((1, 1, x.dim(2)?, 1))?.broadcast_as(x.shape())?;
    Ok(there.where_cond(&Tensor::full(number, x.shape(), x.device())?, x)?)
}

#[test]
fn hidden_keys_and_values_may_be_any_numbers() -> Result {
    let (s, keys) = (300, 7);
    let part = |name: &str, s: usize| random(1, name, 1., (1, 2, s, 8));
    let k = part("k", s)?;
    let v = part("v", s)?;
    for (t, implementation) in [(3, Fused), (60, Fused), (3, Eager), (60, Eager)] {
        let attention = Sdpa { window: Window::ALL, implementation, ..Sdpa::default() };
        let q = part("q", t)?;
        for (name, mask) in Hiding::new(t, s, keys)?.masks() {
            let expected = attention.forward(&q, &k, &v, mask)?;
            let without = attention.forward(
                &q,
                &k.narrow(2, keys, s - keys)?,
                &v.narrow(2, keys, s - keys)?,
                Mask::default(),
            )?;
            assert!(distance(&expected, &without)? < 1e-6, "{implementation:?}, {name}, T {t}");
            for number in [f32::NAN, f32::INFINITY] {
                let bad_k = with_rows(&k, 0..keys, number)?;
                let bad_v = with_rows(&v, 0..keys, number)?;
                for (k, v) in [(&bad_k, &v), (&k, &bad_v), (&bad_k, &bad_v)] {
                    let got = attention.forward(&q, k, v, mask)?;
                    let error = distance(&got, &expected)?;
                    assert!(error < 1e-6, "{implementation:?}, {name}, T {t}, {number}: {error}");
                }
            }
        }
    }
    Ok(())
}

/// A hidden value that is not finite has a weight of 0, and its gradient is 0.
#[test]
fn hidden_values_may_be_any_numbers_backward() -> Result {
    let (s, keys) = (70, 7);
    let part = |name: &str, s: usize| random(1, name, 1., (1, 2, s, 8));
    let k = part("k", s)?;
    let v = part("v", s)?;
    for (t, implementation) in [(3, Fused), (60, Fused), (3, Eager), (60, Eager)] {
        let attention = Sdpa { window: Window::ALL, implementation, ..Sdpa::default() };
        for (name, mask) in Hiding::new(t, s, keys)?.masks() {
            let gradients = |k: &Tensor, v: &Tensor| -> Result<[Tensor; 3]> {
                let [q, k, v] = [&part("q", t)?, k, v].map(Var::from_tensor);
                let q = q?;
                let k = k?;
                let v = v?;
                let all = attention.forward(&q, &k, &v, mask)?.sqr()?.sum_all()?.backward()?;
                let of = |x: &Var| all.get(x).cloned().ok_or("no gradient");
                Ok([of(&q)?, of(&k)?, of(&v)?])
            };
            // Padding hides keys, too.
            let with_nan = |x: &Tensor| with_rows(x, 0..keys, f32::NAN);
            let hidden_keys = if name == "padding" { with_nan(&k)? } else { k.clone() };
            let got = gradients(&hidden_keys, &with_nan(&v)?)?;
            for (got, expected) in got.iter().zip(gradients(&k, &v)?) {
                let error = distance(got, &expected)?;
                assert!(error < 1e-5, "{implementation:?}, {name}, T {t}: {error}");
            }
            assert!(max_abs(&got[2].narrow(2, 0, keys)?)? == 0.0, "{implementation:?}, {name}, T {t}");
        }
    }
    Ok(())
}

/// Also under a soft cap, whose slope is NaN there, and by the weights alone.
#[test]
fn padded_keys_may_be_any_numbers_backward() -> Result {
    let (s, keys) = (70, 7);
    let part = |name: &str, s: usize| random(1, name, 1., (1, 2, s, 8));
    let k = part("k", s)?;
    let v = part("v", s)?;
    let with_nan = with_rows(&k, 0..keys, f32::NAN)?;
    for (t, implementation) in [(3, Fused), (60, Fused), (3, Eager), (60, Eager)] {
        let attention = Sdpa { window: Window::ALL, softcap: Some(2.0), implementation, ..Sdpa::default() };
        let hiding = Hiding::new(t, s, keys)?;
        let mask = Mask { padding: Some(&hiding.padding), ..Mask::default() };
        let gradients = |k: &Tensor, of_weights: bool| -> Result<[Tensor; 2]> {
            let q = Var::from_tensor(&part("q", t)?)?;
            let k = Var::from_tensor(k)?;
            let result = if of_weights {
                attention.weights(&q, &k, mask, &Chosen::default())?
            } else {
                attention.forward(&q, &k, &v, mask)?
            };
            let all = result.sqr()?.sum_all()?.backward()?;
            let of = |x: &Var| all.get(x).cloned().ok_or("no gradient");
            Ok([of(&q)?, of(&k)?])
        };
        for of_weights in [false, true] {
            let got = gradients(&with_nan, of_weights)?;
            for (got, expected) in got.iter().zip(gradients(&k, of_weights)?) {
                let error = distance(got, &expected)?;
                assert!(error < 1e-5, "{implementation:?}, T {t}, of weights {of_weights}: {error}");
            }
        }
    }
    Ok(())
}

/// A query that sees nothing but keys whose scores are NaN shows it, in all that is computed of it.
#[test]
fn a_query_that_sees_only_nan_is_nan() -> Result {
    let s = 60;
    let part = |name: &str, s: usize| random(1, name, 1., (1, 2, s, 8));
    let k = with_rows(&part("k", s)?, 50..s, f32::NAN)?;
    let v = part("v", s)?;
    let all_nan =
        |x: &Tensor| -> Result<bool> { Ok(x.flatten_all()?.to_vec1::<f32>()?.iter().all(|x| x.is_nan())) };
    for (t, implementation) in [(3, Fused), (40, Fused), (3, Eager), (40, Eager)] {
        let attention = Sdpa { window: Window::ALL, implementation, ..Sdpa::default() };
        for (name, mask) in Hiding::new(t, s, 50)?.masks() {
            let wanted = Wanted { weights: &[Chosen::default()], summary: true, lse: true };
            let Attended { context, weights, summary, lse, .. } =
                attention.attend(&part("q", t)?, &k, &v, mask, wanted)?;
            let summary = summary.ok_or("a summary")?;
            let lse = lse.ok_or("log-sums")?;
            for (what, x) in [
                ("context", &context),
                ("log-sums", &lse),
                ("entropy", &summary.entropy),
                ("largest", &summary.max),
                ("weights", &weights[0].narrow(3, 50, 10)?),
            ] {
                assert!(all_nan(x)?, "{implementation:?}, {what}, {name}, T {t}");
            }
            assert!(max_abs(&weights[0].narrow(3, 0, 50)?)? == 0.0, "{implementation:?}, {name}, T {t}");
        }
    }
    Ok(())
}

/// Also where the window hides keys, or numbers of -inf that are added.
#[test]
fn weights_beside_nan_are_zero_where_nothing_is_seen() -> Result {
    let s = 60;
    let part = |name: &str, s: usize| random(1, name, 1., (1, 2, s, 8));
    let k = with_rows(&part("k", s)?, 53..54, f32::NAN)?;
    for t in [3, 40] {
        let q = part("q", t)?;
        let numbers = (0..t * s).map(|n| if n % 7 == 2 { f32::NEG_INFINITY } else { -0.5 });
        let added = Tensor::from_iter(numbers, &test_device())?.reshape((1, 1, t, s))?;
        for mask in [Mask::default(), Mask { added: Some(&added), ..Mask::default() }] {
            let weights = |implementation| -> Result<Vec<f32>> {
                let window = Window { left: Some(4), right: Some(20) };
                let attention = Sdpa { window, implementation, ..Sdpa::default() };
                Ok(attention.weights(&q, &k, mask, &Chosen::default())?.flatten_all()?.to_vec1()?)
            };
            let got = weights(Fused)?;
            let expected = weights(Eager)?;
            for (n, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let query = n / s % t;
                let key = n % s;
                let same = got.is_nan() == expected.is_nan() && (*got == 0.0) == (*expected == 0.0);
                assert!(same, "T {t}, query {query}, key {key}: {got} and {expected}");
            }
            assert!(got.contains(&0.0) && got.iter().any(|x| x.is_nan()));
        }
    }
    Ok(())
}

/// A query of whose keys all have the lowest finite score, which transformers adds to hide them, weighs all of them alike, and
/// no key that it does not see.
#[test]
fn keys_of_the_lowest_score_share_the_weight() -> Result {
    let t = 5;
    let x = random(1, "x", 1., (1, 2, t, 8))?;
    let added = Tensor::full(f32::MIN, (1, 1, t, t), &test_device())?;
    let mask = Mask { added: Some(&added), ..Mask::default() };
    for implementation in [Fused, Eager] {
        let attention = Sdpa { implementation, ..Sdpa::default() };
        let (_, weights) = attention.forward_with_weights(&x, &x, &x, mask)?;
        for (n, weight) in weights.flatten_all()?.to_vec1::<f32>()?.into_iter().enumerate() {
            let query = n / t % t;
            let key = n % t;
            let expected = if key <= query { 1.0 / (query + 1) as f32 } else { 0.0 };
            assert!(
                (weight - expected).abs() < 1e-6,
                "{implementation:?}, query {query}, key {key}: {weight}"
            );
        }
    }
    Ok(())
}

/// Two documents of a row are as two rows: the second begins in the middle of a tile of queries.
#[test]
fn documents_of_a_row_are_computed_as_if_alone() -> Result {
    let (s, second) = (200, 100);
    let x = random(1, "x", 1., (1, 2, s, 8))?;
    let first = (0..s).map(|i| if i < second { 0u32 } else { 100 });
    let first = Tensor::from_iter(first, &test_device())?.reshape((1, s))?;
    for implementation in [Fused, Eager] {
        let attention = Sdpa { implementation, ..Sdpa::default() };
        let both = attention.forward(&x, &x, &x, Mask { first: Some(&first), ..Mask::default() })?;
        for start in [0, second] {
            let one = x.narrow(2, start, second)?;
            let alone = attention.forward(&one, &one, &one, Mask::default())?;
            let error = distance(&both.narrow(1, start, second)?, &alone)?;
            assert!(error < 1e-6, "{implementation:?}, from {start} on: {error}");
        }
    }
    Ok(())
}

/// By the context, the weights and the scores alike.
#[test]
fn masks_that_do_not_fit_are_refused_by_name() -> Result {
    let q = random(1, "q", 1., (2, 3, 4, 8))?;
    let k = random(1, "k", 1., (2, 3, 5, 8))?;
    let attention = Sdpa::default();
    let messages = |mask: Mask| {
        [
            attention.forward(&q, &k, &k, mask).err(),
            attention.weights(&q, &k, mask, &Chosen::default()).err(),
            attention.scores(&q, &k, mask).err(),
        ]
        .map(|error| error.map(|error| error.to_string()))
    };
    let refused = |mask: Mask, says: &str| -> Result {
        for message in messages(mask) {
            let message = message.ok_or_else(|| format!("nothing says {says:?}"))?;
            assert!(message.contains(says), "{message:?} does not say {says:?}");
        }
        Ok(())
    };
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &test_device());
    for (shape, dtype) in
        [(&[2, 4][..], DType::U8), (&[1, 5], DType::U8), (&[2, 5, 1], DType::U8), (&[2, 5], DType::U32)]
    {
        let padding = zeros(shape, dtype)?;
        refused(Mask { padding: Some(&padding), ..Mask::default() }, "padding mask must be u8 [2, 5]")?;
    }
    for (shape, dtype) in [(&[2, 5][..], DType::U32), (&[1, 4], DType::U32), (&[2, 4], DType::U8)] {
        let first = zeros(shape, dtype)?;
        refused(Mask { first: Some(&first), ..Mask::default() }, "first keys must be u32 [2, 4]")?;
    }
    for (head, query, key) in [(Some(3), 0, 0), (None, 4, 0), (Some(0), 0, 5)] {
        let outside = [Hidden { head, query, key }];
        refused(Mask { hidden: &outside, ..Mask::default() }, "outside 3 heads, 4 queries and 5 keys")?;
    }
    for (shape, dtype) in [
        (&[3, 1, 4, 5][..], DType::F32),
        (&[1, 2, 4, 5], DType::F32),
        (&[1, 1, 2, 5], DType::F32),
        (&[1, 1, 4, 1], DType::F32),
        (&[4, 5], DType::F32),
        (&[1, 1, 4, 5], DType::U8),
    ] {
        let added = zeros(shape, dtype)?;
        refused(Mask { added: Some(&added), ..Mask::default() }, "floats [2 or 1, 3 or 1, 4 or 1, 5]")?;
    }
    let last = [Hidden { head: Some(2), query: 3, key: 4 }];
    assert_eq!(messages(Mask { hidden: &last, ..Mask::default() }), [None, None, None]);
    for shape in [[1, 1, 4, 5], [2, 1, 4, 5], [1, 3, 4, 5], [2, 3, 4, 5]] {
        let added = zeros(&shape, DType::F64)?;
        assert_eq!(messages(Mask { added: Some(&added), ..Mask::default() }), [None, None, None]);
    }
    Ok(())
}
