//! The inputs that attention accepts (dtypes that differ, tensors without numbers, a single key) and refuses, and the
//! description of a call.

use crate::common::{Result, has_empty_tensors, max_abs, test_device};
use crate::{distance, random};
use candle_core::{DType, Module, Tensor, Var};
use candle_fused::Implementation::{Eager, Fused};
use candle_fused::attention::{
    CausalBias, Chosen, HeadLayout, Hidden, Inputs, KeyRanges, Mask, Sdpa, Wanted, Window, causal_bias,
};
use candle_fused::nn::LayerNorm;
use candle_fused::rms_norm;

#[test]
fn a_call_is_described_with_and_without_its_tensors() -> Result {
    let q = random(1, "q", 1., (2, 4, 3, 8))?;
    let k = random(1, "k", 1., (2, 2, 5, 8))?;
    let alone = Inputs::new(&test_device(), DType::F32, HeadLayout::grouped(4, 2, 8), 2, 3, 5);
    let plain = Inputs::from_tensors(&q, &k, &k, Mask::default());
    assert_eq!(format!("{plain:?}"), format!("{alone:?}"));
    let flags = |x: &Inputs| [x.padding, x.hidden, x.first, x.ranges, x.added, x.added_gradient, x.gradient];
    assert_eq!(flags(&plain), [false; 7]);
    let padding = Tensor::ones((2, 5), DType::U8, &test_device())?;
    let first = Tensor::zeros((2, 3), DType::U32, &test_device())?;
    let (added, learned) =
        (random(1, "added", 1., (1, 1, 3, 5))?, Var::zeros((1, 1, 3, 5), DType::F32, &test_device())?);
    let hidden = [Hidden { head: None, query: 0, key: 0 }];
    let ranges = KeyRanges::new(&[vec![vec![0..5]; 3]])?;
    let none = Mask::default();
    for (mask, there) in [
        (Mask { padding: Some(&padding), ..none }, &[0][..]),
        (Mask { hidden: &hidden, ..none }, &[1]),
        (Mask { first: Some(&first), ..none }, &[2]),
        (Mask { ranges: Some(&ranges), ..none }, &[3]),
        (Mask { added: Some(&added), ..none }, &[4]),
        (Mask { added: Some(&learned), ..none }, &[4, 5]),
    ] {
        let expected: Vec<bool> = (0..7).map(|n| there.contains(&n)).collect();
        assert_eq!(flags(&Inputs::from_tensors(&q, &k, &k, mask)).to_vec(), expected, "{mask:?}");
    }
    let learned = Var::from_tensor(&k)?;
    assert!(Inputs::from_tensors(&q, &k, &learned, none).gradient);
    Ok(())
}

/// In mixed dtypes, keys and values are converted to the dtype of the queries, forward and backward.
#[test]
fn keys_and_values_of_other_dtypes_are_converted() -> Result {
    use DType::{BF16, F16, F32, F64};
    let [q, k, v] = ["q", "k", "v"].map(|name| random(1, name, 1., (1, 2, 6, 8)));
    let q = q?;
    let k = k?;
    let v = v?;
    for [of_q, of_k, of_v] in [
        [F32, F16, F16],
        [F32, F16, BF16],
        [F32, F16, F32],
        [F32, F32, F16],
        [F32, F64, F64],
        [F16, BF16, BF16],
        [F16, F32, F32],
        [BF16, F16, F16],
    ] {
        for learned in [false, true] {
            let run = |[of_k, of_v]: [DType; 2], rounded: [DType; 2]| -> Result<Vec<Tensor>> {
                let q = Var::from_tensor(&q.to_dtype(of_q)?)?;
                let k = k.to_dtype(rounded[0])?.to_dtype(of_k)?;
                let v = v.to_dtype(rounded[1])?.to_dtype(of_v)?;
                let attention = Sdpa::default();
                if !learned {
                    return Ok(vec![attention.forward(&q.as_detached_tensor(), &k, &v, Mask::default())?]);
                }
                let context = attention.forward(&q, &k, &v, Mask::default())?;
                let gradients = context.to_dtype(F32)?.sqr()?.sum_all()?.backward()?;
                let gradient = gradients.get(&q).ok_or("no gradient")?.clone();
                Ok(vec![context, gradient])
            };
            let got = run([of_k, of_v], [of_k, of_v])?;
            for (got, expected) in got.iter().zip(run([of_q; 2], [of_k, of_v])?) {
                assert_eq!(got.dtype(), of_q);
                let error = distance(got, &expected)?;
                assert!(error < 1e-5, "{of_q:?}, {of_k:?}, {of_v:?}: {error}");
            }
        }
    }
    Ok(())
}

/// Every score is then 0.
#[test]
fn heads_without_width_weigh_all_keys_alike() -> Result {
    let q = Tensor::zeros((1, 2, 3, 0), DType::F32, &test_device())?;
    let k = random(1, "v", 1., (1, 2, 4, 8))?;
    let attention = Sdpa { scale: Some(1.0), window: Window::ALL, ..Sdpa::default() };
    let none = k.narrow(3, 0, 0)?;
    assert_eq!(attention.code_for(&Inputs::from_tensors(&q, &none, &k, Mask::default()))?, Eager);
    let context = attention.forward(&q, &none, &k, Mask::default())?; // (1, 3, 2, 8)
    let mean = k.mean_keepdim(2)?.transpose(1, 2)?.broadcast_as((1, 3, 2, 8))?;
    assert!(distance(&context, &mean)? < 1e-6);
    Ok(())
}

#[test]
fn values_without_columns_and_batches_without_rows_give_nothing() -> Result {
    for implementation in [Fused, Eager] {
        let attention = Sdpa { implementation, ..Sdpa::default() };
        for (b, dv) in [(2, 0), (0, 8), (0, 0)] {
            let q = Tensor::zeros((b, 2, 3, 8), DType::F32, &test_device())?;
            let v = Tensor::zeros((b, 2, 3, dv), DType::F32, &test_device())?;
            let inputs = Inputs::from_tensors(&q, &q, &v, Mask::default());
            assert_eq!(attention.code_for(&inputs)?, Eager);
            let context = attention.forward(&q, &q, &v, Mask::default())?;
            assert_eq!(context.dims(), [b, 3, 2, dv], "{implementation:?}");
        }
    }
    Ok(())
}

/// Of weights alone, as of weights beside a context.
#[test]
fn without_keys_there_are_no_weights() -> Result {
    let q = random(1, "q", 1., (1, 2, 3, 8))?;
    let k = Tensor::zeros((1, 2, 0, 8), DType::F32, &test_device())?;
    let ranges = KeyRanges::new(&[vec![vec![]; 3]])?;
    for implementation in [Fused, Eager] {
        let attention = Sdpa { implementation, ..Sdpa::default() };
        for mask in [Mask::default(), Mask { ranges: Some(&ranges), ..Mask::default() }] {
            let (context, weights) = attention.forward_with_weights(&q, &k, &k, mask)?;
            assert_eq!((context.dims(), weights.dims()), (&[1, 3, 2, 8][..], &[1, 2, 3, 0][..]));
        }
    }
    Ok(())
}

/// The only key has all the weight, and the queries before it are 1, 2, .. tokens away.
#[test]
fn a_single_key_has_all_the_weight() -> Result {
    let v = random(1, "v", 1., (1, 2, 1, 8))?;
    for t in [1, 2, 3, 30] {
        let q = random(1, "q", 1., (1, 2, t, 8))?;
        for implementation in [Fused, Eager] {
            let attention = Sdpa { window: Window::ALL, implementation, ..Sdpa::default() };
            let wanted = Wanted { weights: &[Chosen::default()], summary: true, ..Wanted::default() };
            let attended = attention.attend(&q, &v, &v, Mask::default(), wanted)?;
            let expected = v.broadcast_as((1, 2, t, 8))?.transpose(1, 2)?;
            assert!(distance(&attended.context, &expected)? < 1e-6);
            let summary = attended.summary.ok_or("a summary")?;
            let numbers = |number: fn(usize, usize) -> f32| {
                Tensor::from_iter((0..2 * t).map(|n| number(n % t, t)), &test_device())?.reshape((1, 2, t))
            };
            let last = |i: usize, t: usize| if i + 1 == t { 1.0 } else { 0.0 };
            for (what, got, expected) in [
                ("weights", &attended.weights[0].squeeze(3)?, numbers(|_, _| 1.0)?),
                ("entropy", &summary.entropy, numbers(|_, _| 0.0)?),
                ("distance", &summary.mean_distance, numbers(|i, t| (t - 1 - i) as f32)?),
                ("on self", &summary.on_self, numbers(last)?),
                ("on previous", &summary.on_previous, numbers(|_, _| 0.0)?),
                ("on first", &summary.on_first, numbers(|_, _| 1.0)?),
                ("largest", &summary.max, numbers(|_, _| 1.0)?),
                ("its place", &summary.max_position.to_dtype(DType::F32)?, numbers(|_, _| 0.0)?),
            ] {
                assert!(distance(got, &expected)? < 1e-5, "{what}, T {t}, {implementation:?}");
            }
            // Hidden from the last query of one head.
            let hidden = [Hidden { head: Some(1), query: t - 1, key: 0 }];
            let got = attention.forward(&q, &v, &v, Mask { hidden: &hidden, ..Mask::default() })?;
            let zero = got.narrow(1, t - 1, 1)?.narrow(2, 1, 1)?;
            assert!(max_abs(&zero)? == 0.0, "T {t}, {implementation:?}");
            let seen = Tensor::cat(&[got.narrow(1, 0, t - 1)?.narrow(2, 1, 1)?, got.narrow(2, 0, 1)?], 1)?;
            let expected =
                Tensor::cat(&[expected.narrow(1, 0, t - 1)?.narrow(2, 1, 1)?, expected.narrow(2, 0, 1)?], 1)?;
            assert!(distance(&seen, &expected)? < 1e-6, "T {t}, {implementation:?}");
        }
    }
    Ok(())
}

/// The triangle is the causal rule of queries from the first key on. Other windows and queries before it do without.
#[test]
fn a_bias_changes_nothing() -> Result {
    let x = random(1, "x", 1., (1, 2, 9, 8))?;
    for (window, t, s) in [
        (Window::CAUSAL, 9, 9),
        (Window::CAUSAL, 9, 4),
        (Window::sliding(3), 9, 9),
        (Window::ALL, 9, 9),
        (Window { left: Some(1), right: Some(2) }, 5, 9),
    ] {
        let q = x.narrow(2, 9 - t, t)?;
        let k = x.narrow(2, 0, s)?;
        for implementation in [Fused, Eager] {
            let without = Sdpa { window, implementation, ..Sdpa::default() };
            let with = Sdpa { bias: Some(CausalBias::new(s + 1, &test_device())), ..without.clone() };
            let expected = without.forward(&q, &k, &k, Mask::default())?;
            let error = distance(&with.forward(&q, &k, &k, Mask::default())?, &expected)?;
            assert!(error < 1e-6, "{window:?}, T {t}, S {s}, {implementation:?}: {error}");
        }
    }
    let triangle = |n| -> Result<Vec<u8>> { Ok(causal_bias(n, &test_device())?.flatten_all()?.to_vec1()?) };
    assert_eq!(triangle(1)?, [1]);
    assert_eq!(triangle(2)?, [1, 0, 1, 1]);
    if has_empty_tensors() {
        assert_eq!(causal_bias(0, &test_device())?.dims(), [1, 1, 0, 0]);
    }
    let message = causal_bias(65_537, &test_device()).err().ok_or("4 GiB")?.to_string();
    assert!(message.contains("65537") && message.contains("at most 65536"), "{message}");
    Ok(())
}

#[test]
fn options_that_are_not_finite_are_refused_by_name() -> Result {
    let q = Tensor::ones((1, 2, 3, 8), DType::F32, &test_device())?;
    let says = |result: candle_core::Result<Tensor>, part: &str| {
        let message = result.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    };
    for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let scaled = Sdpa { scale: Some(number.into()), ..Sdpa::default() };
        says(scaled.forward(&q, &q, &q, Mask::default()), "attention: a scale of");
        says(scaled.weights(&q, &q, Mask::default(), &Chosen::default()), "is not a finite f32");
        says(scaled.scores(&q, &q, Mask::default()), "pass None for 1 / sqrt(8)");
        let sloped = Sdpa { slopes: Some([0.5, number].into()), ..Sdpa::default() };
        says(sloped.forward(&q, &q, &q, Mask::default()), "the slope of head 1 is");
        let one = Tensor::ones(8, DType::F32, &test_device())?;
        says(rms_norm(&q, &one, number.into()), "rms_norm: eps is");
        let norm = LayerNorm::new(one.clone(), one.clone(), number.into());
        says(norm.forward(&q), "layer_norm: eps is");
    }
    // It is 0 or infinite in f32.
    let huge = Sdpa { scale: Some(1e300), ..Sdpa::default() };
    says(huge.forward(&q, &q, &q, Mask::default()), "a scale of 1e300");
    says(
        rms_norm(&q, &Tensor::ones(8, DType::F32, &test_device())?, -1e-6),
        "expected a finite number of at least 0",
    );
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_by_name() -> Result {
    let zeros = |shape: [usize; 4]| {
        let some = Tensor::zeros(&shape.map(|n| n.max(1)), DType::F32, &test_device())?;
        some.narrow(1, 0, shape[1])
    };
    let q = zeros([2, 4, 3, 8])?;
    let attention = Sdpa::default();
    for (k, v) in [
        ([1, 2, 5, 8], [2, 2, 5, 8]),
        ([2, 2, 5, 7], [2, 2, 5, 8]),
        ([2, 3, 5, 8], [2, 3, 5, 8]),
        ([2, 0, 5, 8], [2, 0, 5, 8]),
        ([2, 2, 5, 8], [1, 2, 5, 8]),
        ([2, 2, 5, 8], [2, 4, 5, 8]),
        ([2, 2, 5, 8], [2, 2, 4, 8]),
    ] {
        let message = attention.forward(&q, &zeros(k)?, &zeros(v)?, Mask::default()).err();
        let message = message.ok_or_else(|| format!("{k:?}, {v:?}"))?.to_string();
        for part in ["k of shape [2, key heads, S, 8]", "v of [2, key heads, S, Dv]", "divides 4"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(message.contains(&format!("got k {k:?}, v {v:?}")), "{message}");
    }
    let k = zeros([2, 3, 5, 8])?;
    let codes = Tensor::zeros((2, 3, 5, 12), DType::U8, &test_device())?;
    for message in [
        attention.weights(&q, &k, Mask::default(), &Chosen::default()).err(),
        attention.scores(&q, &k, Mask::default()).err(),
    ] {
        assert!(message.ok_or("three heads of keys")?.to_string().contains("divides 4"));
    }
    let message = attention.forward(&q, &codes, &codes, Mask::default()).err().ok_or("codes")?.to_string();
    assert!(message.contains("S, 12]") && message.contains("S, Dv + 4]"), "{message}");
    for none in [q.narrow(1, 0, 0)?, q.narrow(2, 0, 0)?] {
        let k = zeros([2, none.dim(1)?, 5, 8])?;
        let message = attention.forward(&none, &k, &k, Mask::default()).err().ok_or("no query")?.to_string();
        assert!(message.contains("no query"), "{message}");
    }
    let weights = zeros([2, 4, 3, 5])?;
    for heads in [0, 3] {
        let message = Sdpa::context(&weights, &zeros([2, heads, 5, 8])?).err().ok_or("values")?.to_string();
        assert!(message.contains("[2, 4, 3, 5] do not fit values"), "{message}");
    }
    Ok(())
}

/// Heads of queries that no head of keys serves are refused by attention; their layout is only a description.
#[test]
fn layouts_with_odd_numbers_of_key_heads_can_be_made_and_cut() -> Result {
    assert_eq!(HeadLayout::grouped(4, 4, 8), HeadLayout::all(4, 8));
    assert!(HeadLayout::grouped(4, 0, 8).part(1, 1).is_ok());
    assert!(HeadLayout::grouped(2, 4, 8).part(1, 1).is_ok());
    assert_eq!(HeadLayout::grouped(1, 1, 8).part(0, 1)?.key_heads, 1);
    Ok(())
}
