//! Weights, layers and norms against plain operations in f64 and Candle's own, in what the models here do not use of them.

use crate::common::{Result, assert_close, test_device};
use crate::random;
use candle_core::{D, DType, Module, Tensor, Var};
use candle_fused::WeightLayout::{InOut, OutIn};
use candle_fused::nn::{self, Embedding, LayerNorm, Linear, RmsNorm, hold_weights_in};
use candle_fused::{BlockFormat, Dispatch, Epilogue, Implementation, Weight, WeightDType};
use candle_nn::{Conv1dConfig, LayerNormConfig, VarBuilder, VarMap};

fn numbers(name: &str, shape: &[usize]) -> Result<Tensor> {
    Ok(random(5, name, 1., shape)?)
}

fn wide(x: &Tensor) -> Result<Tensor> {
    Ok(x.to_dtype(DType::F64)?)
}

/// Fails unless the result is an error whose message has this part.
#[track_caller]
fn refused<T>(result: candle_core::Result<T>, part: &str) {
    let message = result.err().map(|error| error.to_string()).expect(part);
    assert!(message.contains(part), "{message:?} does not say {part:?}");
}

/// `x·W + b` in f64
fn product(x: &Tensor, w: &Tensor, b: &Tensor) -> Result<Tensor> {
    Ok(wide(x)?.matmul(&wide(w)?.contiguous()?)?.broadcast_add(&wide(b)?)?)
}

const DTYPES: [(DType, f64); 4] =
    [(DType::F32, 1e-6), (DType::F64, 1e-14), (DType::F16, 4e-3), (DType::BF16, 3e-2)];

#[test]
fn a_weight_is_frozen_where_it_has_memory_of_its_own_and_does_not_learn() -> Result {
    let w = numbers("w", &[6, 8])?;
    let frozen = |w: &Tensor| -> Result<bool> { Ok(Weight::new(w.clone(), InOut)?.is_frozen()) };
    for whole in [w.clone(), w.t()?, w.to_dtype(DType::BF16)?, w.narrow(0, 2, 3)?, w.narrow(0, 2, 3)?.t()?] {
        assert!(frozen(&whole)?, "{:?}", whole.layout());
    }
    let shared = w.narrow(0, 0, 1)?.broadcast_as((6, 8))?;
    for other in [w.narrow(1, 2, 3)?, shared, w.to_dtype(DType::F64)?, w.narrow(0, 0, 0)?] {
        assert!(!frozen(&other)?, "{:?}", other.layout());
    }
    let learns = Weight::new(Var::from_tensor(&w)?.as_tensor().clone(), InOut)?;
    assert!(!learns.is_frozen() && learns.is_variable());
    refused(Weight::new(w.flatten_all()?, InOut), "unexpected rank");
    Ok(())
}

#[test]
fn a_weight_is_its_clones_and_no_other() -> Result {
    let w = numbers("w", &[6, 8])?;
    let frozen = Weight::pack(&w, InOut)?;
    let plain = Weight::plain(w.clone(), InOut)?;
    let again = Weight::pack(&w, InOut)?;
    let copy = Weight::plain(w.copy()?, InOut)?;
    assert!(frozen.is(&frozen.clone()) && plain.is(&plain.clone()));
    for (a, b) in [(&frozen, &again), (&plain, &copy), (&frozen, &plain)] {
        assert!(!a.is(b) && !b.is(a));
    }
    assert!(plain.is_tensor(&w) && !copy.is_tensor(&w) && !frozen.is_tensor(&w));
    Ok(())
}

#[test]
fn some_columns_are_those_of_all_in_either_layout() -> Result {
    let x = numbers("x", &[5, 6])?;
    let w = numbers("w", &[6, 9])?;
    let b = numbers("b", &[9])?;
    let expected = product(&x, &w, &b)?;
    let turned = w.t()?.contiguous()?;
    for weight in [
        Weight::plain(w.clone(), InOut)?,
        Weight::plain(turned.clone(), OutIn)?,
        Weight::pack(&w, InOut)?,
        Weight::pack(&turned, OutIn)?,
    ] {
        for columns in [0..9, 0..1, 2..7, 8..9] {
            let got = weight.forward_columns(&x, Some(&b), columns.clone())?;
            let expected = expected.narrow(1, columns.start, columns.len())?;
            assert_close(&format!("{weight:?}, columns {columns:?}"), &got, &expected, 1e-6);
        }
        for none in [3..3, 8..10] {
            refused(weight.forward_columns(&x, Some(&b), none.clone()), &format!("columns {none:?} of 9"));
        }
    }
    Ok(())
}

/// A frozen layer's bias may learn beside the update; halves take other code.
#[test]
fn a_low_rank_update_leaves_its_bias_the_gradient() -> Result {
    let w = numbers("w", &[4, 6])?;
    let [x, bias] = [numbers("x", &[2, 4])?, numbers("bias", &[6])?].map(|x| Var::from_tensor(&x));
    let x = x?;
    let bias = bias?;
    let u = numbers("u", &[2, 3])?;
    let b = numbers("b", &[6, 3])?;
    let packed = Weight::pack(&w, InOut)?;
    let y = packed.forward_low_rank(&x, Some(&bias), &u, &b)?;
    let expected = (product(&x, &w, &bias)? + wide(&u)?.matmul(&wide(&b)?.t()?)?)?;
    assert_close("sum", &y, &expected, 1e-6);
    let gradients = y.sqr()?.sum_all()?.backward()?;
    let of = |x: &Var| gradients.get(x).ok_or("no gradient");
    assert_close("bias", of(&bias)?, &(expected.sum(0)? * 2.)?, 1e-5);
    assert_close("x", of(&x)?, &(expected.matmul(&wide(&w)?.t()?)? * 2.)?, 1e-5);

    let half = |x: &Tensor| x.to_dtype(DType::F16);
    let half_x = Var::from_tensor(&half(&x)?)?;
    let packed_half = Weight::pack(&half(&w)?, InOut)?;
    let y = packed_half.forward_low_rank(&half_x, Some(&half(&bias)?.detach()), &half(&u)?, &half(&b)?)?;
    assert_eq!(y.dtype(), DType::F16);
    assert_close("sum in f16", &y, &expected, 4e-3);

    let constant = bias.as_detached_tensor();
    refused(packed.forward_low_rank(&x, Some(&constant), &numbers("u", &[3, 3])?, &b), "low rank: u [3, 3]");
    refused(packed.forward_low_rank(&x, Some(&constant.narrow(0, 0, 5)?), &u, &b), "bias of [6], got [5]");
    Ok(())
}

/// Every dtype, few rows and many, and weights whose rows are not contiguous or only a part.
#[test]
fn products_read_every_layout_in_every_dtype() -> Result {
    for ((dtype, tolerance), rows) in DTYPES.into_iter().flat_map(|dtype| [(dtype, 2), (dtype, 20)]) {
        let of =
            |name: &str, shape: &[usize]| -> Result<Tensor> { Ok(numbers(name, shape)?.to_dtype(dtype)?) };
        let x = of("x", &[rows, 7])?;
        let w = of("w", &[7, 5])?;
        let b = of("b", &[5])?;
        let turned = w.t()?.contiguous()?;
        let dispatch = Dispatch::of(Implementation::Auto, &x);
        let linear = |w: &Tensor, b: &Tensor| candle_fused::linear(&x, w, Some(b), Epilogue::None, dispatch);
        let case = |what: &str| format!("{what}, {rows} rows in {dtype:?}");
        let some = w.narrow(1, 1, 3)?;
        let some_b = b.narrow(0, 1, 3)?;
        assert_close(&case("columns"), &linear(&some, &some_b)?, &product(&x, &some, &some_b)?, tolerance);
        if dtype == DType::BF16 {
            continue; // the rest is Candle's product, which has no bf16 on the CPU
        }
        let expected = product(&x, &w, &b)?;
        assert_close(&case("a transposed weight"), &linear(&turned.t()?, &b)?, &expected, tolerance);
        let expected = product(&x, &w, &b.zeros_like()?)?;
        for table in [turned.clone(), w.t()?] {
            let got = candle_fused::linear_transposed(&x, &table)?;
            assert_close(&case("a table"), &got, &expected, tolerance);
        }
        // A plain weight, as for training, in the same dtype as its activations.
        let got = Linear::from_weight(Weight::plain(turned, OutIn)?, Some(b.clone()))?.forward(&x)?;
        assert_eq!(got.dtype(), dtype);
        assert_close(&case("a plain layer"), &got, &product(&x, &w, &b)?, tolerance);
    }
    Ok(())
}

#[test]
fn layers_that_learn_in_halves_have_the_gradients_of_f64() -> Result {
    // Candle's product, of which the gradients consist, has no bf16 on the CPU.
    for (dtype, tolerance) in DTYPES.into_iter().filter(|(dtype, _)| *dtype != DType::BF16) {
        let of = |name: &str, shape: &[usize]| -> Result<Var> {
            Ok(Var::from_tensor(&numbers(name, shape)?.to_dtype(dtype)?)?)
        };
        let x = of("x", &[20, 7])?;
        let w = of("w", &[7, 5])?;
        let b = of("b", &[5])?;
        let dispatch = Dispatch::of(Implementation::Auto, &x);
        let y = candle_fused::linear(&x, &w, Some(&b), Epilogue::None, dispatch)?;
        let factors = numbers("factors", &[20, 5])?.to_dtype(dtype)?;
        let gradients = (y * &factors)?.sum_all()?.backward()?;
        let factors = wide(&factors)?;
        let expected = [factors.matmul(&wide(&w)?.t()?)?, wide(&x)?.t()?.matmul(&factors)?, factors.sum(0)?];
        for (name, (var, expected)) in
            ["x", "w", "b"].into_iter().zip([&x, &w, &b].into_iter().zip(&expected))
        {
            let got = gradients.get(var).ok_or("no gradient")?;
            assert_close(&format!("{name} in {dtype:?}"), got, expected, tolerance);
        }
    }
    Ok(())
}

#[test]
fn norms_made_here_are_candles() -> Result {
    use candle_nn::LayerNorm as Theirs;
    let x = numbers("x", &[3, 40])?;
    let w = numbers("w", &[40])?;
    let b = numbers("b", &[40])?;
    let near = |ours: &LayerNorm, theirs: &Theirs| -> Result {
        assert_close("norm", &ours.forward(&x)?, &theirs.forward(&x)?, 1e-5);
        assert!(ours.weight().dims() == [40] && ours.bias().is_some() == theirs.bias().is_some());
        assert_eq!(
            (ours.remove_mean(), ours.eps().to_bits()),
            (theirs.remove_mean(), theirs.eps().to_bits())
        );
        Ok(())
    };
    near(&LayerNorm::new(w.clone(), b.clone(), 0.1), &Theirs::new(w.clone(), b.clone(), 0.1))?;
    near(&LayerNorm::new_no_bias(w.clone(), 0.1), &Theirs::new_no_bias(w.clone(), 0.1))?;
    near(&LayerNorm::rms_norm(w.clone(), 0.1), &Theirs::rms_norm(w.clone(), 0.1))?;
    let rms = RmsNorm::new(w.clone(), 0.1);
    assert_close("RMS norm", &rms.forward(&x)?, &candle_nn::RmsNorm::new(w.clone(), 0.1).forward(&x)?, 1e-5);
    assert!(
        rms.weight().dims() == [40] && (rms.eps() - 0.1).abs() < 1e-12 && !rms.into_inner().remove_mean()
    );
    // RMS norm with a bias.
    let tensors = [("weight".to_owned(), w), ("bias".to_owned(), b)].into();
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &test_device());
    let config = LayerNormConfig { eps: 0.1, remove_mean: false, affine: true };
    near(&nn::layer_norm(40, config, vb.clone())?, &candle_nn::layer_norm(40, config, vb.clone())?)?;
    near(&nn::layer_norm_no_bias(40, 0.1, vb.clone())?, &candle_nn::layer_norm_no_bias(40, 0.1, vb)?)
}

#[test]
fn norms_of_halves_learn_and_take_a_weight_in_f32() -> Result {
    let (rows, width) = (40, 33);
    let norm = |x: &Tensor, w: &Tensor, b: Option<&Tensor>| match b {
        Some(b) => candle_fused::layer_norm(x, w, Some(b), 1e-5, Dispatch::of(Implementation::Auto, x)),
        None => candle_fused::rms_norm(x, w, 1e-5),
    };
    for (dtype, tolerance) in DTYPES {
        let [x, w, b] = [numbers("x", &[rows, width])?, numbers("w", &[width])?, numbers("b", &[width])?]
            .map(|x| x.to_dtype(dtype));
        let x = x?;
        let w = w?;
        let b = b?;
        for bias in [None, Some(&b)] {
            let run = |dtype: DType| -> Result<[Tensor; 2]> {
                let x = Var::from_tensor(&x.to_dtype(dtype)?)?;
                let bias = bias.map(|b| b.to_dtype(dtype)).transpose()?;
                let y = norm(&x, &w.to_dtype(dtype)?, bias.as_ref())?;
                let factors = numbers("factors", &[rows, width])?.to_dtype(dtype)?;
                let gradients = (&y * factors)?.sum_all()?.backward()?;
                Ok([y.detach(), gradients.get(&x).ok_or("no gradient")?.clone()])
            };
            for (got, expected) in run(dtype)?.iter().zip(&run(DType::F64)?) {
                assert_eq!(got.dtype(), dtype);
                // The plain operations in f64 are the same code.
                let tolerance = if dtype == DType::F64 { 0. } else { 3. * tolerance };
                assert_close(&format!("{dtype:?}"), got, expected, tolerance);
            }
            // A weight in another dtype than x.
            let mixed = norm(&x, &w.to_dtype(DType::F32)?, bias)?;
            assert_eq!(mixed.dtype(), dtype);
            let expected = norm(&wide(&x)?, &wide(&w)?, bias.map(wide).transpose()?.as_ref())?;
            assert_close("mixed", &mixed, &expected, tolerance);
        }
        let none = x.narrow(0, 0, 0)?;
        let empty = x.narrow(D::Minus1, 0, 0)?;
        assert_eq!(norm(&none, &w, Some(&b))?.dims(), none.dims());
        assert_eq!(norm(&empty, &w.narrow(0, 0, 0)?, None)?.dims(), empty.dims());
    }
    Ok(())
}

#[test]
fn what_cannot_be_frozen_is_loaded_as_it_is() -> Result {
    let q8_0 = WeightDType::Blocks(BlockFormat::Q8_0);
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, &test_device());
    let variable = hold_weights_in(q8_0, || nn::linear(64, 32, vb))?;
    assert!(variable.weight().is_variable());
    let wide = VarBuilder::zeros(DType::F64, &test_device());
    let wide = hold_weights_in(q8_0, || nn::linear(64, 32, wide))?;
    assert_eq!(wide.weight().dtype(), WeightDType::Plain(DType::F64));
    // The inner setting ends where it began.
    let vb = VarBuilder::zeros(DType::F32, &test_device());
    let half = WeightDType::Plain(DType::F16);
    let layers = hold_weights_in(half, || -> candle_core::Result<_> {
        let inner = hold_weights_in(q8_0, || nn::linear(64, 32, vb.pp("inner")))?;
        Ok([inner, nn::linear(64, 32, vb.pp("outer"))?])
    })?;
    assert_eq!(layers.map(|layer| layer.weight().dtype()), [q8_0, half]);
    refused(Embedding::new(numbers("table", &[5, 4])?, 3), "vectors of 3 numbers, got a table of [5, 4]");
    Ok(())
}

#[test]
fn block_formats_know_their_sizes() {
    // In memory, codes of 5 and 6 bits take 8, and so do scales and minima of 6.
    for (format, len, bytes, bits) in [
        (BlockFormat::Q4_0, 32, 18, 4.5),
        (BlockFormat::Q5_0, 32, 22, 8.5),
        (BlockFormat::Q8_0, 32, 34, 8.5),
        (BlockFormat::Q4K, 256, 144, 4. + 2. * 8. / 32. + 2. * 16. / 256.),
        (BlockFormat::Q5K, 256, 176, 8. + 2. * 8. / 32. + 2. * 16. / 256.),
        (BlockFormat::Q6K, 256, 210, 8. + 8. / 16. + 16. / 256.),
    ] {
        assert_eq!((format.block_len(), format.block_bytes()), (len, bytes));
        assert!((format.bits_in_memory() - bits).abs() < 1e-12, "{format}: {}", format.bits_in_memory());
        assert_eq!((format.bytes_of(0), format.bytes_of(3 * len)), (Some(0), Some(3 * bytes)));
        assert_eq!((format.bytes_of(len + 1), format.bytes_of(len / 2)), (None, None));
        assert_eq!(format.as_str().to_uppercase().parse::<BlockFormat>().expect("its name"), format);
        assert!(format.check_inputs(2 * len).is_ok());
        for inputs in [0, 1, len - 1, len + 1] {
            refused(
                format.check_inputs(inputs),
                &format!("blocks of {len} weights, which do not divide the {inputs}"),
            );
        }
    }
    // 34 bytes for 32 weights are more than there are numbers.
    assert_eq!(BlockFormat::Q8_0.bytes_of(usize::MAX / 32 * 32), None);
    refused("q9_0".parse::<BlockFormat>(), "expected one of q4_0, q5_0, q8_0, q4_K");
}

#[test]
fn a_single_number_beyond_f16_is_not_quantized() -> Result {
    let with = |x: f32| -> Result<Tensor> {
        let mut numbers = vec![0.5f32; 64 * 3];
        numbers[64 * 3 - 1] = x;
        Ok(Tensor::from_vec(numbers, (64, 3), &test_device())?)
    };
    let quantize = |weight: &Tensor| Weight::quantize(weight, InOut, BlockFormat::Q8_0);
    for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 65_505., -65_505.] {
        refused(quantize(&with(x)?), "not finite, or beyond ±65504");
    }
    for x in [65_504., -65_504.] {
        let back = quantize(&with(x)?)?.tensor()?.to_vec2::<f32>()?;
        assert!((back[63][2] / x - 1.).abs() < 1e-3, "{}", back[63][2]);
    }
    refused(quantize(Var::from_tensor(&with(1.)?)?.as_tensor()), "no gradient");
    refused(quantize(&with(1.)?.narrow(1, 0, 0)?), "expected elements");
    let read = |_: usize, _: &mut [u8]| Ok(());
    refused(Weight::read_blocks(BlockFormat::Q8_0, (0, 3), InOut, read), "the 0 inputs");
    refused(Weight::read_blocks(BlockFormat::Q8_0, (32, 0), InOut, read), "no outputs");
    Ok(())
}

/// Against Candle's own in f64, for kernels of one to five positions in all of its options.
#[test]
fn a_convolution_is_candles() -> Result {
    for (n_in, n_out, len, padding, stride, dilation, l) in [
        (3, 5, 1, 0, 1, 1, 7),
        (80, 16, 3, 1, 1, 1, 20),
        (16, 16, 3, 1, 2, 1, 20),
        (16, 16, 3, 1, 2, 1, 21),
        (4, 6, 5, 4, 3, 2, 13),
        (4, 6, 5, 0, 7, 1, 5),
        (2, 3, 2, 0, 1, 5, 6),
    ] {
        let config = Conv1dConfig { padding, stride, dilation, ..Conv1dConfig::default() };
        let (w, b, x) =
            (numbers("w", &[n_out, n_in, len])?, numbers("b", &[n_out])?, numbers("x", &[2, n_in, l])?);
        let candles = |x: &Tensor| -> Result<Tensor> {
            Ok(candle_nn::Conv1d::new(wide(&w)?, Some(wide(&b)?), config).forward(&wide(x)?)?)
        };
        for (dtype, tolerance) in DTYPES {
            let of = |x: &Tensor| x.to_dtype(dtype);
            let w = of(&w)?;
            let b = of(&b)?;
            let x = of(&x)?;
            let expected = candle_nn::Conv1d::new(wide(&w)?, Some(wide(&b)?), config).forward(&wide(&x)?)?;
            let got = nn::Conv1d::new(w, Some(b), config)?.forward(&x)?;
            assert_eq!(got.dtype(), dtype);
            assert_close(&format!("{config:?}, {dtype:?}"), &wide(&got)?, &expected, tolerance);
        }
        let conv = nn::Conv1d::new(w.clone(), Some(b.clone()), config)?;
        let residual = numbers("residual", candles(&x)?.dims())?;
        let got = conv.forward_with(&x, Epilogue::Residual(&residual))?;
        assert_close(
            &format!("{config:?}, residual"),
            &wide(&got)?,
            &(candles(&x)? + wide(&residual)?)?,
            1e-6,
        );
        // The gradient of x: each product of the sum, back to the position that it came from.
        let of_x = Var::from_tensor(&x)?;
        let of_w = Var::from_tensor(&w)?;
        let learns = nn::Conv1d::new(of_w.as_tensor().clone(), Some(b.clone()), config)?;
        let gradients = |conv: &nn::Conv1d| conv.forward(&of_x)?.mul(&residual)?.sum_all()?.backward();
        let numbers =
            |x: &Tensor| wide(x)?.to_vec3::<f64>().map_err(Into::<Box<dyn std::error::Error>>::into);
        let d_y = numbers(&residual)?;
        let weights = numbers(&w)?;
        let of = numbers(&x)?;
        let mut d_x = vec![0.0; x.elem_count()];
        let mut d_w = vec![0.0; w.elem_count()];
        for (n, d_y) in d_y.iter().flatten().enumerate() {
            for (window, d_y) in d_y.iter().enumerate() {
                for (i, taps) in weights[n % n_out].iter().enumerate() {
                    for (tap, weight) in taps.iter().enumerate() {
                        let position = window * stride + tap * dilation;
                        if (padding..padding + l).contains(&position) {
                            d_x[(n / n_out * n_in + i) * l + position - padding] += d_y * weight;
                            d_w[(n % n_out * n_in + i) * len + tap] +=
                                d_y * of[n / n_out][i][position - padding];
                        }
                    }
                }
            }
        }
        let close = |what: &str, got: Option<&Tensor>, expected: &[f64]| -> Result {
            let got = got.ok_or("no gradient")?;
            let expected = Tensor::from_slice(expected, got.dims(), &test_device())?;
            assert_close(&format!("{config:?}, {what}"), &wide(got)?, &expected, 1e-5);
            Ok(())
        };
        close("x under a packed weight", gradients(&conv)?.get(&of_x), &d_x)?;
        let both = gradients(&learns)?;
        close("x", both.get(&of_x), &d_x)?;
        close("weight", both.get(&of_w), &d_w)?;
    }
    Ok(())
}

#[test]
fn a_convolution_that_does_not_fit_is_refused() -> Result {
    let config = Conv1dConfig::default();
    let new = |bias: usize, config| {
        nn::Conv1d::new(numbers("w", &[4, 3, 5]).expect("w"), numbers("b", &[bias]).ok(), config)
    };
    refused(new(5, config), "4 outputs need a bias of [4], got [5]");
    refused(new(4, Conv1dConfig { stride: 0, ..config }), "stride 0");
    let conv = new(4, config)?;
    refused(
        conv.forward(&numbers("x", &[1, 3, 4])?),
        "x [1, 3, 4] is not (B, 3, L), where L and 0 of padding at each end hold a window of 5",
    );
    refused(conv.forward(&numbers("x", &[1, 2, 9])?), "x [1, 2, 9] is not (B, 3, L)");
    // In groups, it is Candle's.
    let groups = Conv1dConfig { groups: 2, padding: 1, ..config };
    let (w, x) = (numbers("w", &[4, 3, 3])?.t()?, numbers("x", &[1, 6, 9])?); // strided
    let expected = candle_nn::Conv1d::new(w.contiguous()?, None, groups).forward(&x)?;
    let conv = nn::Conv1d::new(w, None, groups)?;
    assert_close("groups", &conv.forward(&x)?, &expected, 1e-6);
    refused(conv.forward(&x.narrow(2, 0, 0)?), "x [1, 6, 0] is not (B, 6, L)");
    let vb = VarBuilder::zeros(DType::F32, &test_device());
    let conv = nn::conv1d(3, 4, 5, config, vb.clone())?;
    assert_eq!((conv.forward(&numbers("x", &[1, 3, 9])?)?.dims(), conv.config()), (&[1, 4, 5][..], &config));
    assert_eq!(
        nn::conv1d_no_bias(3, 4, 5, config, vb)?.forward(&numbers("x", &[2, 3, 5])?)?.dims(),
        [2, 4, 1]
    );
    Ok(())
}
