use super::Weight;
use super::WeightLayout::{InOut, OutIn};
use super::linear_cross_entropy::ROWS;
use crate::cpu::dispatch::{Dispatch, Implementation};
use crate::cpu::test_numbers::{error, numbers, wide};
use crate::linear::linear;
use crate::linear::quantized::format::BlockFormat;
use crate::pointwise::activation::Activation;
use crate::pointwise::epilogue::Epilogue;
use candle_core::{D, DType, Device, Result, Tensor, Var};

const GELU_TANH: Epilogue = Epilogue::Activation(Activation::GeluTanh);

#[test]
fn each_epilogue_is_what_f64_gives_in_each_dtype() -> Result<()> {
    for (dtype, rounding) in [(DType::F32, 1e-6), (DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))]
    {
        for (rows, k, n) in [(0, 4, 3), (1, 768, 65), (6, 33, 17), (7, 300, 1), (15, 64, 64), (40, 257, 130)]
        {
            let of = |shape: &[usize], salt| numbers(shape, salt)?.to_dtype(dtype);
            let x = of(&[rows, k], 1)?;
            let w = of(&[k, n], 2)?;
            let b = of(&[n], 3)?;
            let residual = of(&[rows, n], 4)?;
            let plain = wide(&x)?.matmul(&wide(&w)?)?.broadcast_add(&wide(&b)?)?;
            // x and the weight are views that are not contiguous.
            let x = x.t()?.contiguous()?.t()?;
            let packed = Weight::pack(&w.t()?.contiguous()?.t()?, InOut)?;
            let case = format!("{dtype:?}, {rows} x {k} x {n}");
            for (epilogue, expected) in [
                (Epilogue::None, plain.clone()),
                (GELU_TANH, Activation::GeluTanh.forward(&plain)?),
                (Epilogue::Activation(Activation::Gelu), plain.gelu_erf()?),
                (Epilogue::Activation(Activation::Silu), plain.silu()?),
                (Epilogue::Activation(Activation::Relu), plain.relu()?),
                (Epilogue::Gated(Activation::Silu, &residual), (&plain * wide(&residual)?.silu()?)?),
                (Epilogue::Gated(Activation::GeluTanh, &residual), (&plain * wide(&residual)?.gelu()?)?),
                (Epilogue::Residual(&residual), (&plain + wide(&residual)?)?),
            ] {
                let got = packed.forward(&x, Some(&b), epilogue)?;
                assert_eq!(got.dtype(), dtype);
                let off = error(&got, &expected)?;
                assert!(off <= 1.01 * rounding, "{case}, {epilogue:?}: {off:e}");
            }
        }
    }
    Ok(())
}

#[test]
fn x_can_be_its_own_residual() -> Result<()> {
    let x = numbers((9, 20), 1)?;
    let w = numbers((20, 20), 2)?;
    let got = Weight::pack(&w, InOut)?.forward(&x, None, Epilogue::Residual(&x))?;
    assert!(error(&got, &(wide(&x)? + wide(&x)?.matmul(&wide(&w)?)?)?)? < 1e-6);
    Ok(())
}

#[test]
fn some_columns_are_those_of_all() -> Result<()> {
    let x = numbers((5, 30), 1)?;
    let w = numbers((30, 200), 2)?;
    let b = numbers(200, 3)?;
    let packed = Weight::pack(&w, InOut)?;
    let all = packed.forward(&x, Some(&b), Epilogue::None)?;
    for columns in [0..200, 1..200, 63..65, 64..70, 65..199, 128..200] {
        let got = packed.forward_columns(&x, Some(&b), columns.clone())?;
        let expected = all.narrow(1, columns.start, columns.len())?;
        assert_eq!(got.to_vec2::<f32>()?, expected.to_vec2::<f32>()?, "{columns:?}");
        let var = Var::from_tensor(&x)?;
        let gradients =
            packed.forward_columns(&var, Some(&b), columns.clone())?.sqr()?.sum_all()?.backward()?;
        let part = w.narrow(1, columns.start, columns.len())?.contiguous()?;
        let expected = (wide(&expected)? * 2.0)?.matmul(&wide(&part)?.t()?)?;
        assert!(error(gradients.get(&var).expect("a gradient"), &expected)? < 1e-5, "{columns:?}");
    }
    let beyond = packed.forward_columns(&x, None, 100..201).expect_err("there are 200").to_string();
    assert!(beyond.contains("100..201") && beyond.contains("200"), "{beyond}");
    Ok(())
}

/// Whichever of x, bias and residual learns gets the gradient of a plain layer.
#[test]
fn gradients_are_those_of_a_plain_weight() -> Result<()> {
    let x = numbers((2, 3, 6), 1)?;
    let w = numbers((6, 5), 2)?;
    let b = numbers(5, 3)?;
    let r = numbers((2, 3, 5), 4)?;
    let packed = Weight::pack(&w, InOut)?;
    for learns in 0..3 {
        let var = Var::from_tensor([&x, &b, &r][learns])?;
        let pick = |i: usize, constant: &Tensor| {
            if i == learns { var.as_tensor().clone() } else { constant.clone() }
        };
        let x = pick(0, &x);
        let b = pick(1, &b);
        let r = pick(2, &r);
        for epilogue in
            [Epilogue::None, GELU_TANH, Epilogue::Residual(&r), Epilogue::Gated(Activation::Silu, &r)]
        {
            if learns == 2 && epilogue.join().is_none() {
                continue;
            }
            let plain = linear(&x, &w, Some(&b), epilogue, Dispatch::of(Implementation::Auto, &x))?;
            let got = packed.forward(&x, Some(&b), epilogue)?;
            assert!(error(&got, &wide(&plain)?)? < 1e-6);
            let of = |y: Tensor| -> Result<Tensor> {
                Ok(y.sqr()?.sum_all()?.backward()?.get(&var).expect("a gradient").clone())
            };
            assert!(error(&of(got)?, &wide(&of(plain)?)?)? < 1e-5, "{learns}, {epilogue:?}");
        }
    }
    Ok(())
}

#[test]
fn a_table_gives_its_rows_and_itself_back() -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let table = numbers((50, 7), 1)?.to_dtype(dtype)?; // (V, C)
        let packed = Weight::pack(&table, OutIn)?;
        let same = |got: &Tensor, expected: &Tensor| -> Result<()> {
            assert_eq!(got.dtype(), dtype);
            assert_eq!(wide(got)?.to_vec2::<f64>()?, wide(expected)?.to_vec2::<f64>()?);
            Ok(())
        };
        let ids = Tensor::new(&[3u32, 49, 0, 3], &Device::Cpu)?;
        same(&packed.columns(&ids)?, &table.index_select(&ids, 0)?)?;
        same(&packed.tensor()?, &table)?;
        same(&packed.in_out()?, &table.t()?)?;
        let error =
            packed.columns(&Tensor::new(&[50u32], &Device::Cpu)?).expect_err("there are 50").to_string();
        assert!(error.contains("50"), "{error}");
    }
    Ok(())
}

#[test]
fn columns_are_vectors_of_the_table_however_it_lies() -> Result<()> {
    let table = numbers((50, 32), 1)?; // (V, C)
    let ids = Tensor::new(&[3i64, 49, 0], &Device::Cpu)?;
    let expected = table.index_select(&ids, 0)?.to_vec2::<f32>()?;
    let turned = table.t()?.contiguous()?;
    for weight in [
        Weight::plain(table.clone(), OutIn)?,
        Weight::plain(turned.t()?, OutIn)?,
        Weight::plain(turned.clone(), InOut)?,
        Weight::plain(table.t()?, InOut)?,
        Weight::pack(&table, OutIn)?,
        Weight::pack(&turned, InOut)?,
    ] {
        assert_eq!(weight.columns(&ids)?.to_vec2::<f32>()?, expected, "{weight:?}");
        assert!(weight.columns(&ids.to_dtype(DType::F32)?).is_err(), "{weight:?}");
    }
    let packed = Weight::pack(&table, OutIn)?;
    for outside in [50i64, -1, 1 << 32] {
        let error = packed.columns(&Tensor::new(&[outside], &Device::Cpu)?).expect_err("outside").to_string();
        assert!(error.contains(&outside.to_string()), "{error}");
    }
    Ok(())
}

#[test]
fn nan_and_infinity_stay_in_their_rows() -> Result<()> {
    // An odd depth and a few columns, so that there are zeros beside the numbers; and whole tiles.
    for (dtype, depth) in [(DType::F32, 5), (DType::F16, 5), (DType::BF16, 5), (DType::BF16, 64)] {
        let mut data = numbers((20, depth), 1)?.to_vec2::<f32>()?;
        (data[3][4], data[16][1], data[17][0]) = (f32::NAN, f32::INFINITY, f32::INFINITY);
        let x = Tensor::new(data, &Device::Cpu)?.to_dtype(dtype)?;
        let ones = Tensor::ones((depth, 3), dtype, &Device::Cpu)?;
        let y = Weight::pack(&ones, InOut)?.forward(&x, None, Epilogue::None)?;
        for (i, row) in y.to_dtype(DType::F32)?.to_vec2::<f32>()?.iter().enumerate() {
            let expected: fn(&f32) -> bool = match i {
                3 => |x| x.is_nan(),
                16 | 17 => |x| *x == f32::INFINITY,
                _ => |x| x.is_finite(),
            };
            assert!(row.iter().all(expected), "{dtype:?}, depth {depth}, row {i}: {row:?}");
        }
    }
    Ok(())
}

#[test]
fn what_cannot_be_packed_or_multiplied_is_refused() -> Result<()> {
    let weight = numbers((4, 3), 1)?;
    let says = |result: Result<Weight>, part: &str| {
        let message = result.expect_err(part).to_string();
        assert!(message.contains(part), "{message}");
    };
    says(Weight::pack(&Tensor::zeros((0, 3), DType::F32, &Device::Cpu)?, InOut), "elements");
    says(Weight::pack(&weight.to_dtype(DType::F64)?, InOut), "F64");
    says(Weight::pack(&weight.flatten_all()?, InOut), "unexpected rank");
    says(Weight::pack(Var::from_tensor(&weight)?.as_tensor(), InOut), "no gradient");
    let packed = Weight::pack(&weight, InOut)?;
    let x = numbers((2, 4), 2)?;
    let bias = numbers(4, 3)?;
    let error = packed.forward(&x, Some(&bias), Epilogue::None).expect_err("4 is not 3").to_string();
    assert!(error.contains("[3]") && error.contains("[4]"), "{error}");
    let half = x.to_dtype(DType::F16)?;
    let error = packed.forward(&half, None, Epilogue::None).expect_err("f16 is not f32").to_string();
    assert!(error.contains("f32") && error.contains("f16"), "{error}");
    let error = packed.forward(&x.narrow(D::Minus1, 0, 3)?, None, Epilogue::None).expect_err("3 is not 4");
    assert!(error.to_string().contains("4 inputs"), "{error}");
    Ok(())
}

/// Frozen weights of every kind, with the plain weight that each stands for.
fn every_kind(weight: &Tensor) -> Result<Vec<(Weight, Tensor)>> {
    let mut kinds = vec![];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let rounded = weight.to_dtype(dtype)?;
        kinds.push((Weight::pack(&rounded, InOut)?, rounded.to_dtype(DType::F32)?));
    }
    let quantized = Weight::quantize(weight, InOut, BlockFormat::Q8_0)?;
    let plain = quantized.in_out()?;
    kinds.push((quantized, plain));
    Ok(kinds)
}

/// Halves that multiply f32 give what the widened weight gives, to the bit, forward and backward.
#[test]
fn halves_have_the_bits_of_the_weight_widened_to_f32() -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        for (rows, k, n) in [(1, 768, 65), (3, 33, 200), (15, 300, 64), (40, 257, 130)] {
            let weight = numbers((k, n), 2)?.to_dtype(dtype)?;
            let b = numbers(n, 3)?;
            let r = numbers((rows, n), 4)?;
            let half = Weight::pack(&weight, InOut)?;
            let wide = Weight::pack(&weight.to_dtype(DType::F32)?, InOut)?;
            let x = Var::from_tensor(&numbers((rows, k), 1)?)?;
            for x in [x.as_tensor().clone(), x.as_detached_tensor()] {
                for epilogue in
                    [Epilogue::None, GELU_TANH, Epilogue::Residual(&r), Epilogue::Gated(Activation::Silu, &r)]
                {
                    let [half, wide] = [&half, &wide].map(|w| w.forward(&x, Some(&b), epilogue));
                    let half = half?;
                    let wide = wide?;
                    assert_eq!(
                        half.to_vec2::<f32>()?,
                        wide.to_vec2::<f32>()?,
                        "{dtype:?}, {rows} x {k} x {n}"
                    );
                    if x.track_op() {
                        let of = |y: Tensor| -> Result<Vec<Vec<f32>>> {
                            y.sqr()?.sum_all()?.backward()?.get(&x).expect("a gradient").to_vec2()
                        };
                        assert_eq!(of(half)?, of(wide)?, "the gradient, {dtype:?}, {rows} x {k} x {n}");
                    }
                }
            }
        }
    }
    Ok(())
}

/// The sum of the layer and its update, forward and backward, for every kind of weight, plain ones as well.
#[test]
fn a_low_rank_update_is_the_sum_of_its_parts() -> Result<()> {
    for (rows, n_in, n_out, rank) in [(1, 32, 5, 1), (9, 64, 70, 3), (40, 32, 130, 8)] {
        let weight = numbers((n_in, n_out), 1)?;
        let bias = numbers(n_out, 2)?;
        let [x, u, b] =
            [(rows, n_in), (rows, rank), (n_out, rank)].map(|shape| Var::from_tensor(&numbers(shape, 3)?));
        let x = x?;
        let u = u?;
        let b = b?;
        let factors = numbers((rows, n_out), 7)?; // so that outputs weigh differently
        let mut kinds = every_kind(&weight)?;
        kinds.push((Weight::plain(weight.clone(), InOut)?, weight));
        for (weight, _) in &kinds {
            let added = u.matmul(&b.t()?)?;
            let expected = (weight.forward(&x, Some(&bias), Epilogue::None)? + added)?;
            let got = weight.forward_low_rank(&x, Some(&bias), &u, &b)?;
            assert!(error(&got, &wide(&expected)?)? < 1e-5, "{weight:?}");
            let [got, expected] = [got, expected].map(|y| (y * &factors)?.sum_all()?.backward());
            let got = got?;
            let expected = expected?;
            for var in [&x, &u, &b] {
                let [got, expected] = [&got, &expected].map(|all| all.get(var).expect("a gradient"));
                assert!(error(got, &wide(expected)?)? < 1e-5, "{weight:?}");
            }
        }
    }
    let packed = Weight::pack(&numbers((4, 6), 1)?, InOut)?;
    let x = Var::from_tensor(&numbers((2, 4), 1)?)?;
    let u = numbers((2, 3), 1)?;
    let b = numbers((5, 3), 1)?;
    assert!(packed.forward_low_rank(&x, None, &u, &b).is_err(), "B has 5 rows for 6 outputs");
    Ok(())
}

/// Against the plain table's loss and gradients, over more rows than a chunk has.
#[test]
fn cross_entropies_are_those_of_the_plain_table() -> Result<()> {
    for rows in [1, 7, ROWS, ROWS + 9] {
        let x = Var::from_tensor(&numbers((rows, 32), 2)?)?;
        #[allow(clippy::cast_possible_truncation)] // 521
        let ids = (0..rows as u32).map(|i| i * 7 % 70);
        let targets = Tensor::from_iter(ids, &Device::Cpu)?;
        for (weight, plain) in every_kind(&numbers((70, 32), 1)?.t()?)? {
            // 8 bits for a row of x change the loss by 6e-4 and the gradient by 2.2e-3 of their sizes, measured.
            let tolerance = if weight.is_quantized() { 4e-3 } else { 1e-5 };
            let result = |weight: &Weight| -> Result<(Tensor, Tensor)> {
                let loss = (weight.cross_entropy(&x, &targets)? * 3.0)?;
                let gradient = loss.backward()?.get(&x).expect("a gradient").clone();
                Ok((loss.detach(), gradient))
            };
            let (loss, gradient) = result(&weight)?;
            let (expected_loss, expected_gradient) = result(&Weight::plain(plain, InOut)?)?;
            assert!(error(&loss, &wide(&expected_loss)?)? < tolerance, "{weight:?}, {rows} rows");
            assert!(error(&gradient, &wide(&expected_gradient)?)? < tolerance, "{weight:?}, {rows} rows");
            let constant = weight.cross_entropy(&x.as_detached_tensor(), &targets)?;
            assert!(!constant.track_op() && error(&(constant * 3.0)?, &wide(&loss)?)? < 1e-5);
        }
    }
    let packed = Weight::pack(&numbers((4, 3), 1)?, InOut)?;
    let beyond = Tensor::new(&[0u32, 3], &Device::Cpu)?;
    let more = Tensor::zeros(3, DType::U32, &Device::Cpu)?;
    for x in [numbers((2, 4), 2)?, Var::from_tensor(&numbers((2, 4), 2)?)?.as_tensor().clone()] {
        let error = packed.cross_entropy(&x, &beyond).expect_err("3 of 3").to_string();
        assert!(error.contains('3'), "{error}");
        let error = packed.cross_entropy(&x, &more).expect_err("one too many").to_string();
        assert!(error.contains("2 rows"), "{error}");
        assert!(packed.cross_entropy(&numbers((2, 5), 2)?, &beyond).is_err());
        let learns = Var::from_tensor(&numbers((2, 5), 2)?)?;
        let error = packed.cross_entropy(&learns, &beyond).expect_err("5 wide").to_string();
        assert!(error.contains("[2, 5]") && error.contains("rows of"), "{error}");
    }
    Ok(())
}

#[test]
fn a_quantized_weight_multiplies_and_has_a_gradient() -> Result<()> {
    let weight = numbers((96, 40), 7)?;
    let x = numbers((5, 96), 3)?;
    let quantized = Weight::quantize(&weight, InOut, BlockFormat::Q8_0)?;
    let y = quantized.forward(&x, None, Epilogue::None)?;
    let some = quantized.forward_columns(&x, None, 19..33)?;
    assert_eq!(some.to_vec2::<f32>()?, y.narrow(1, 19, 14)?.to_vec2::<f32>()?);
    assert!(error(&y, &wide(&x.matmul(&weight)?)?)? < 0.02);
    let x = Var::from_tensor(&x)?;
    let gradients = quantized.forward(&x, None, GELU_TANH)?.sum_all()?.backward()?;
    let plain = x.matmul(&quantized.in_out()?)?;
    let plain = Activation::GeluTanh.forward(&plain)?.sum_all()?.backward()?;
    assert!(error(gradients.get(&x).expect("one"), &wide(plain.get(&x).expect("one"))?)? < 0.03);
    Ok(())
}

#[test]
fn what_cannot_be_quantized_is_refused() -> Result<()> {
    let weight = |shape: (usize, usize)| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    let refused = |weight: Result<Tensor>, format, part: &str| {
        let message =
            Weight::quantize(&weight.expect("zeros"), InOut, format).expect_err("refused").to_string();
        assert!(message.contains(part), "{message}");
    };
    refused(weight((48, 3)), BlockFormat::Q8_0, "48");
    refused(weight((128, 3)), BlockFormat::Q4K, "256");
    refused(weight((32, 3)).and_then(|w| w / 0.0), BlockFormat::Q8_0, "not finite");
    let read = |_: usize, _: &mut [u8]| Ok(());
    assert!(Weight::read_blocks(BlockFormat::Q8_0, (33, 1), InOut, read).is_err());
    assert!(Weight::read_blocks(BlockFormat::Q8_0, (32, 0), InOut, read).is_err());
    let layer = Weight::quantize(&weight((32, 3))?, InOut, BlockFormat::Q8_0)?;
    let half = weight((1, 32))?.to_dtype(DType::F16)?;
    let error = layer.forward(&half, None, Epilogue::None).expect_err("refused").to_string();
    assert!(error.contains("q8_0") && error.contains("f32") && error.contains("f16"), "{error}");
    Ok(())
}
