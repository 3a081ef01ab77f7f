//! `flash` and `cpu_flash`: the functions that Candle's authors know give what theirs give, and what theirs refuse.

use crate::common::{Result, test_device};
use crate::{distance, random};
use candle_core::{DType, Tensor, Var};
use candle_fused::Implementation::{Eager, Fused};
use candle_fused::attention::{Chosen, Lengths, Mask, Sdpa, Wanted, Window};
use candle_fused::cpu_flash::{self, AttnMask};
use candle_fused::{Dropout, flash};
use candle_nn::attention as theirs;
use std::sync::Arc;

fn numbers(shape: &[usize], name: &str) -> Result<Tensor> {
    Ok(random(3, name, 1., shape)?)
}

/// q (B, T, H, D), k and v (B, S, key heads, D)
fn qkv(b: usize, (t, s): (usize, usize), (h, key_heads): (usize, usize), d: usize) -> Result<[Tensor; 3]> {
    Ok([
        numbers(&[b, t, h, d], "q")?,
        numbers(&[b, s, key_heads, d], "k")?,
        numbers(&[b, s, key_heads, d], "v")?,
    ])
}

/// Whether all numbers are equal, or 0.
fn same(a: &Tensor, b: &Tensor) -> Result<bool> {
    let numbers = |x: &Tensor| x.flatten_all()?.to_vec1::<f32>();
    Ok(a.dims() == b.dims() && numbers(a)? == numbers(b)?)
}

fn is_zero(x: &Tensor) -> Result<bool> {
    same(x, &x.zeros_like()?)
}

#[test]
fn cpu_flash_gives_what_candle_nn_gives() -> Result {
    let scale = 0.3;
    for (t, s) in [(1, 33), (40, 40), (7, 33), (3, 50)] {
        let [q, k, v] = qkv(1, (t, s), (6, 2), 20)?;
        let bias = numbers(&[t, s], "mask")?;
        let masks = [AttnMask::None, AttnMask::causal_with_offset(s - t), AttnMask::Mask(bias.clone())];
        for (n, mask) in masks.into_iter().enumerate() {
            for max_bias in [None, Some(8.0)] {
                if n == 0 && max_bias.is_some() {
                    continue; // theirs ignores it
                }
                for softcap in [None, Some(2.0)] {
                    if n == 1 && t == 1 && softcap.is_some() && max_bias.is_none() {
                        continue; // theirs takes a max_bias of 0 for slopes of 1
                    }
                    let ours =
                        cpu_flash::flash_attn::<f32>(&q, &k, &v, scale, mask.clone(), max_bias, softcap)?;
                    let expected =
                        theirs::flash_attn::<f32>(&q, &k, &v, scale, mask.clone(), max_bias, softcap)?;
                    let error = distance(&ours, &expected)?;
                    assert!(error < 5e-6, "mask {n}, T {t}, S {s}, {max_bias:?}, {softcap:?}: {error}");
                }
            }
        }
        let [q, k, v] = qkv(3, (t, s), (6, 2), 20)?;
        for (mask, max_bias) in
            [(AttnMask::None, Some(8.0)), (AttnMask::causal_with_offset(s - t), Some(4.0))]
        {
            let ours = cpu_flash::flash_attn::<f32>(&q, &k, &v, scale, mask.clone(), max_bias, None)?;
            let expected = theirs::flash_attn::<f32>(&q, &k, &v, scale, mask, max_bias, None)?;
            let error = distance(&ours, &expected)?;
            assert!(error < 5e-6, "three rows, T {t}, S {s}: {error}");
        }
    }
    Ok(())
}

/// Several rows with masks, soft caps and bf16, which `candle_nn` refuses: each row gets the result that it has alone.
#[test]
fn cpu_flash_computes_rows_that_candle_nn_refuses() -> Result {
    let [q, k, v] = qkv(2, (9, 21), (4, 4), 16)?;
    let mask = AttnMask::Mask(numbers(&[2, 9, 21], "masks")?);
    let all = cpu_flash::flash_attn::<f32>(&q, &k, &v, 0.25, mask.clone(), None, Some(3.0))?;
    assert!(theirs::flash_attn::<f32>(&q, &k, &v, 0.25, mask.clone(), None, Some(3.0)).is_err());
    let AttnMask::Mask(masks) = mask else { return Err("a mask".into()) };
    for b in 0..2 {
        let [q, k, v] = [&q, &k, &v].map(|x| x.narrow(0, b, 1));
        let mask = AttnMask::Mask(masks.narrow(0, b, 1)?.squeeze(0)?);
        let one = theirs::flash_attn::<f32>(&q?, &k?, &v?, 0.25, mask, None, Some(3.0))?;
        assert!(distance(&all.narrow(0, b, 1)?, &one)? < 5e-6);
    }
    let half = |x: &Tensor| x.to_dtype(DType::BF16);
    let q = half(&q)?;
    let k = half(&k)?;
    let v = half(&v)?;
    let got = cpu_flash::flash_attn::<half::bf16>(&q, &k, &v, 0.25, AttnMask::None, None, None)?;
    assert_eq!(got.dtype(), DType::BF16);
    let wide = |x: &Tensor| x.to_dtype(DType::F32);
    let expected =
        cpu_flash::flash_attn::<f32>(&wide(&q)?, &wide(&k)?, &wide(&v)?, 0.25, AttnMask::None, None, None)?;
    assert!(distance(&got, &expected)? < 0.01); // half a unit in the last place of 2
    Ok(())
}

#[test]
fn an_offset_counts_from_the_first_key() -> Result {
    let [q, k, v] = qkv(1, (4, 20), (2, 2), 8)?;
    for offset in [3, 16, 18, 40] {
        let mask = AttnMask::causal_with_offset(offset);
        let ours = cpu_flash::flash_attn::<f32>(&q, &k, &v, 0.3, mask.clone(), None, None)?;
        let expected = theirs::flash_attn::<f32>(&q, &k, &v, 0.3, mask, None, None)?;
        assert!(distance(&ours, &expected)? < 5e-6, "{offset}");
    }
    Ok(())
}

/// A bias or a soft cap of 0 is none.
#[test]
fn zero_is_no_bias_and_no_cap() -> Result {
    let [q, k, v] = qkv(1, (4, 20), (2, 2), 8)?;
    for mask in [AttnMask::None, AttnMask::causal_with_offset(16), AttnMask::Mask(numbers(&[4, 20], "m")?)] {
        let run = |max_bias, softcap| {
            cpu_flash::flash_attn::<f32>(&q, &k, &v, 0.3, mask.clone(), max_bias, softcap)
        };
        let plain = run(None, None)?;
        for (max_bias, softcap) in [(Some(0.0), None), (None, Some(0.0)), (Some(0.0), Some(0.0))] {
            assert!(same(&run(max_bias, softcap)?, &plain)?, "{max_bias:?}, {softcap:?}");
        }
    }
    Ok(())
}

#[test]
fn packed_sequences_give_what_candle_nn_gives() -> Result {
    let of_q = vec![5u32, 0, 17, 1, 40];
    let of_k = vec![9u32, 3, 17, 6, 40];
    let (all_q, all_k) = (63, 75);
    let (q, k, v) =
        (numbers(&[all_q, 6, 12], "q")?, numbers(&[all_k, 3, 12], "k")?, numbers(&[all_k, 3, 12], "v")?);
    let tensor = |x: &[u32]| Tensor::new(x, &test_device());
    let seqlens_q = tensor(&of_q)?;
    let seqlens_k = tensor(&of_k)?;
    let slopes = Tensor::new(&[0.5f32, 0.3, 0.2, 0.1, 0.05, 0.], &test_device())?;
    let starts = |lengths: &[u32]| {
        let ends = lengths.iter().scan(0, |end, n| {
            *end += n;
            Some(*end)
        });
        tensor(&[0].into_iter().chain(ends).collect::<Vec<u32>>())
    };
    let starts_q = starts(&of_q)?;
    let starts_k = starts(&of_k)?;
    for causal in [false, true] {
        for slopes in [None, Some(&slopes)] {
            for window in [(None, None), (Some(4), Some(0)), (Some(6), Some(3)), (Some(2), None)] {
                if causal && window.1.is_some_and(|right| right > 0) {
                    continue;
                }
                let (left, right) = window;
                let ours = cpu_flash::flash_attn_varlen_cpu(
                    &q, &k, &v, slopes, &seqlens_q, &seqlens_k, 40, 40, 0.3, causal, left, right,
                )?;
                let expected = theirs::flash_attn_varlen_cpu(
                    &q, &k, &v, slopes, &seqlens_q, &seqlens_k, 40, 40, 0.3, causal, left, right,
                )?;
                let error = distance(&ours, &expected)?;
                assert!(error < 5e-6, "causal {causal}, {window:?}: {error}");
                // The same by starts instead of lengths.
                let right = if causal { Some(0) } else { window.1.or(window.0.map(|_| 0)) };
                let by_starts = match slopes {
                    Some(slopes) => flash::flash_attn_varlen_alibi_windowed(
                        &q, &k, &v, slopes, &starts_q, &starts_k, 40, 40, 0.3, window.0, right,
                    )?,
                    None => flash::flash_attn_varlen_windowed(
                        &q, &k, &v, &starts_q, &starts_k, 40, 40, 0.3, window.0, right,
                    )?,
                };
                assert!(same(&by_starts, &ours)?);
            }
        }
    }
    Ok(())
}

/// `flash` takes (B, S, H, D) and gives it back; everything else is [`Sdpa`]'s.
#[test]
fn flash_gives_what_sdpa_gives() -> Result {
    let [q, k, v] = qkv(2, (9, 14), (4, 2), 8)?;
    let slopes = Tensor::new(&[0.5f32, 0.3, 0.2, 0.1], &test_device())?;
    let scale = Some(f64::from(0.3f32));
    let sdpa = |window| Sdpa { scale, window, implementation: Eager, ..Sdpa::default() };
    let numbers: Arc<[f32]> = slopes.to_vec1()?.into();
    let with_slopes = |window| Sdpa { slopes: Some(numbers.clone()), ..sdpa(window) };
    let window = Window { left: Some(3), right: Some(1) };
    for (got, attention) in [
        (flash::flash_attn(&q, &k, &v, 0.3, true)?, sdpa(Window::CAUSAL)),
        (flash::flash_attn(&q, &k, &v, 0.3, false)?, sdpa(Window::ALL)),
        (flash::flash_attn_windowed(&q, &k, &v, 0.3, Some(3), Some(1))?, sdpa(window)),
        (flash::flash_attn_alibi(&q, &k, &v, &slopes, 0.3, true)?, with_slopes(Window::CAUSAL)),
        (flash::flash_attn_alibi_windowed(&q, &k, &v, &slopes, 0.3, Some(3), Some(1))?, with_slopes(window)),
        (
            flash::flash_attn_alibi_windowed_softcap(&q, &k, &v, None, 0.3, Some(3), Some(1), 2.0)?,
            Sdpa { softcap: Some(2.0), ..sdpa(window) },
        ),
    ] {
        let [q, k, v] = [&q, &k, &v].map(|x| x.transpose(1, 2));
        let expected = attention.forward(&q?, &k?, &v?, Mask::default())?; // (B, T, H, D)
        assert!(distance(&got, &expected)? < 5e-6, "{attention:?}");
    }
    Ok(())
}

#[test]
fn queries_before_the_first_key_get_zeros_and_no_gradient() -> Result {
    let [q, k, v] = qkv(1, (7, 3), (2, 1), 8)?;
    let q = Var::from_tensor(&q)?;
    let context = flash::flash_attn(&q, &k, &v, 0.3, true)?;
    assert_eq!(context.dims(), [1, 7, 2, 8]);
    assert!(is_zero(&context.narrow(1, 0, 4)?)?);
    let alone = flash::flash_attn(&q.narrow(1, 4, 3)?, &k, &v, 0.3, true)?;
    assert!(distance(&context.narrow(1, 4, 3)?, &alone)? < 1e-6); // few queries take other code
    let gradients = context.sqr()?.sum_all()?.backward()?;
    let dq = gradients.get(&q).ok_or("no gradient")?;
    assert!(is_zero(&dq.narrow(1, 0, 4)?)?);
    assert!(dq.narrow(1, 4, 3)?.abs()?.max_all()?.to_scalar::<f32>()? > 0.0);
    Ok(())
}

/// Each sequence as alone: context, gradients, weights and summary; and what dropout drops differs between equal sequences.
#[test]
fn packed_sequences_are_computed_as_if_alone() -> Result {
    let lengths = [30, 1, 30];
    let x = numbers(&[1, 4, 10], "x")?.broadcast_as((30, 4, 10))?;
    let more = numbers(&[31, 4, 10], "y")?;
    let all = Tensor::cat(&[&more.narrow(0, 0, 30)?, &x.narrow(0, 0, 1)?, &more.narrow(0, 0, 30)?], 0)?;
    let all = Var::from_tensor(&all)?;
    for implementation in [Fused, Eager] {
        let attention = Sdpa { scale: Some(0.3), implementation, ..Sdpa::default() };
        let wanted = Wanted { weights: &[Chosen::default()], summary: true, ..Wanted::default() };
        let packed = attention.attend_varlen(&all, &all, &all, &Lengths::of_both(&lengths), wanted)?;
        let mut first = 0;
        for (one, len) in packed.iter().zip(lengths) {
            let alone = all.narrow(0, first, len)?.transpose(0, 1)?.unsqueeze(0)?; // (1, H, len, D)
            let alone = attention.attend(&alone, &alone, &alone, Mask::default(), wanted)?;
            assert!(same(&one.context, &alone.context)?);
            assert!(same(&one.weights[0], &alone.weights[0])?);
            let entropy =
                |x: &candle_fused::attention::Attended| x.summary.as_ref().map(|s| s.entropy.clone());
            let got = entropy(one).ok_or("a summary")?;
            let expected = entropy(&alone).ok_or("a summary")?;
            assert!(same(&got, &expected)?);
            first += len;
        }
        let whole = attention.forward_varlen(&all, &all, &all, &Lengths::of_both(&lengths))?;
        let gradients = whole.narrow(0, 0, 30)?.sqr()?.sum_all()?.backward()?;
        let gradient = gradients.get(&all).ok_or("no gradient")?;
        assert!(gradient.narrow(0, 0, 30)?.abs()?.max_all()?.to_scalar::<f32>()? > 0.0);
        assert!(is_zero(&gradient.narrow(0, 30, 31)?)?);
        // The first and the last sequence are equal; their weights are dropped elsewhere.
        let dropping = Sdpa { dropout: Some(Dropout::new(0.5, 1, 1)?), ..attention };
        let packed = dropping.attend_varlen(&all, &all, &all, &Lengths::of_both(&lengths), wanted)?;
        assert!(distance(&packed[0].context, &packed[2].context)? > 0.1);
        let product =
            Sdpa::context(&packed[2].weights[0], &all.narrow(0, 31, 30)?.transpose(0, 1)?.unsqueeze(0)?)?;
        assert!(
            distance(&product, &packed[2].context)? < 1e-5,
            "the weights are not those that multiplied v"
        );
    }
    Ok(())
}

#[test]
fn queries_without_keys_and_sequences_without_queries_have_their_place() -> Result {
    let q = numbers(&[2, 3, 4, 8], "q")?;
    let none = Tensor::zeros((2, 1, 0, 8), DType::F32, &test_device())?;
    for implementation in [Fused, Eager] {
        let attention = Sdpa { window: Window::ALL, implementation, ..Sdpa::default() };
        let wanted = Wanted { weights: &[Chosen::default()], summary: true, ..Wanted::default() };
        let attended = attention.attend(&q, &none, &none, Mask::default(), wanted)?;
        assert_eq!(
            (attended.context.dims(), attended.weights[0].dims()),
            (&[2, 4, 3, 8][..], &[2, 3, 4, 0][..])
        );
        assert!(is_zero(&attended.context)? && is_zero(&attended.summary.ok_or("a summary")?.entropy)?);
        let q = numbers(&[5, 3, 8], "q")?;
        let k = numbers(&[9, 3, 8], "k")?;
        let lengths = Lengths::new(&[2, 0, 3], &[0, 4, 5])?;
        let packed = attention.attend_varlen(&q, &k, &k, &lengths, Wanted::default())?;
        let shapes: Vec<&[usize]> = packed.iter().map(|one| one.context.dims()).collect();
        assert_eq!(shapes, [[1, 2, 3, 8], [1, 0, 3, 8], [1, 3, 3, 8]]);
        let whole = attention.forward_varlen(&q, &k, &k, &lengths)?;
        assert!(is_zero(&whole.narrow(0, 0, 2)?)? && !is_zero(&whole.narrow(0, 2, 3)?)?);
    }
    Ok(())
}

#[test]
fn no_sequence_is_refused() -> Result {
    assert_eq!(Lengths::from_starts(&[0], &[0])?, Lengths::of_both(&[]));
    let none = Tensor::zeros((0, 3, 8), DType::F32, &test_device())?;
    let message = Sdpa::default().forward_varlen(&none, &none, &none, &Lengths::of_both(&[]));
    let message = message.err().ok_or("no sequence")?.to_string();
    assert!(message.contains("no sequence"), "{message}");
    Ok(())
}

#[test]
fn what_cannot_be_honored_is_refused() -> Result {
    let [q, k, v] = qkv(1, (1, 5), (3, 3), 8)?;
    let [_, k2, v2] = qkv(1, (1, 5), (2, 2), 8)?;
    let slopes = Var::from_tensor(&Tensor::new(&[0.5f32, 0.25, 0.125], &test_device())?)?;
    let tensor = |x: &[u32]| Tensor::new(x, &test_device());
    let flat = |x: &Tensor| x.squeeze(0);
    let attn = |q: &Tensor, mask| cpu_flash::flash_attn::<f32>(q, &k, &v, 0.3, mask, None, None);
    let window = |left, right| {
        let q = flat(&q)?;
        let k = flat(&k)?;
        let v = flat(&v)?;
        let of_q = tensor(&[1])?;
        let of_k = tensor(&[5])?;
        cpu_flash::flash_attn_varlen_cpu(&q, &k, &v, None, &of_q, &of_k, 1, 5, 0.3, false, left, right)
    };
    let starts = |q_starts: &[u32], k_starts: &[u32], most| {
        let q = flat(&q)?;
        let k = flat(&k)?;
        let v = flat(&v)?;
        flash::flash_attn_varlen(&q, &k, &v, &tensor(q_starts)?, &tensor(k_starts)?, 1, most, 0.3, false)
    };
    for (result, says) in [
        (flash::flash_attn(&q, &k2, &v2, 0.3, true), "a number of key heads that divides 3"),
        (flash::flash_attn(&q, &k, &v2, 0.3, true), "[1, 2, 5, 8]"),
        (flash::flash_attn_alibi(&q, &k, &v, &slopes, 0.3, true), "detach them"),
        (
            flash::flash_attn_alibi(&q, &k, &v, &Tensor::new(&[0.5f32], &test_device())?, 0.3, true),
            "1 slopes for 3 heads",
        ),
        (
            flash::flash_attn_alibi_windowed_softcap(&q, &k, &v, None, 0.3, None, None, 1e-35),
            "between 1e-30 and 1e30",
        ),
        (attn(&q, AttnMask::causal()), "hides 4 of 5 keys"),
        (attn(&q, AttnMask::causal()), "pass 4 to see all"),
        (attn(&q, AttnMask::Mask(numbers(&[2, 5], "m")?)), "[1 or 1, 3 or 1, 1 or 1, 5]"),
        (attn(&q.to_dtype(DType::F64)?, AttnMask::None), "q is F64"),
        (
            cpu_flash::flash_attn::<f32>(&q, &k, &v, 0.3, AttnMask::causal_with_offset(9), Some(8.0), None),
            "under ALiBi",
        ),
        (window(None, Some(2)), "without window_left"),
        (starts(&[0, 1], &[0, 5], 4), "a sequence of 5 keys, but max_seqlen is 4"),
        (starts(&[0, 1], &[0, 4], 5), "1 queries and 4 keys in all"),
        (starts(&[0, 1], &[0, 2, 5], 5), "lengths of 1 sequences of queries and of 2"),
        (starts(&[1, 0], &[0, 5], 5), "begin with 0"),
        (starts(&[1, 2], &[0, 5], 5), "begin with 0"),
        (starts(&[0, 1, 0], &[0, 5, 5], 5), "never fall"),
        (starts(&[0, 1, 1], &[0, 6, 5], 5), "never fall"),
        (starts(&[0, 1, 1], &[0, 1, 5], 3), "a sequence of 4 keys, but max_seqlen is 3"),
        (starts(&[0], &[0], 0), "0 queries and 0 keys in all"),
        (starts(&[], &[], 5), "begin with 0"),
        (flash::flash_attn(&q.narrow(2, 0, 0)?, &k, &v, 0.3, true), "no query"),
    ] {
        let message = result.err().ok_or(says)?.to_string();
        assert!(message.contains(says), "{message:?} does not say {says:?}");
    }
    Ok(())
}
