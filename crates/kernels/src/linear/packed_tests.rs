use super::{PackedWeight, linear};
use crate::dispatch::{Dispatch, Implementation};
use crate::epilogue::Epilogue;
use crate::gelu;
use crate::test_numbers::numbers;
use candle_core::{D, DType, Device, Result, Tensor, Var};

fn wide(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(DType::F64)
}

/// The largest difference, relative to the largest expected value.
fn error(got: &Tensor, expected: &Tensor) -> Result<f64> {
    assert_eq!(got.dims(), expected.dims());
    if expected.elem_count() == 0 {
        return Ok(0.0);
    }
    let difference = (wide(got)? - expected)?.abs()?.max_all()?.to_scalar::<f64>()?;
    Ok(difference / expected.abs()?.max_all()?.to_scalar::<f64>()?.max(1e-30))
}

#[test]
fn each_epilogue_is_what_f64_gives_in_each_dtype() -> Result<()> {
    for (dtype, rounding) in [(DType::F32, 1e-6), (DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))]
    {
        for (rows, k, n) in [(0, 4, 3), (1, 768, 65), (6, 33, 17), (7, 300, 1), (15, 64, 64), (40, 257, 130)]
        {
            let of = |shape: &[usize], salt| numbers(shape, salt)?.to_dtype(dtype);
            let (x, w, b) = (of(&[rows, k], 1)?, of(&[k, n], 2)?, of(&[n], 3)?);
            let residual = of(&[rows, n], 4)?;
            let plain = wide(&x)?.matmul(&wide(&w)?)?.broadcast_add(&wide(&b)?)?;
            // x and the weight are views that are not contiguous.
            let x = x.t()?.contiguous()?.t()?;
            let packed = PackedWeight::new(&w.t()?.contiguous()?.t()?)?;
            let case = format!("{dtype:?}, {rows} x {k} x {n}");
            for (epilogue, expected) in [
                (Epilogue::None, plain.clone()),
                (Epilogue::Gelu, gelu(&plain)?),
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
    let (x, w) = (numbers((9, 20), 1)?, numbers((20, 20), 2)?);
    let got = PackedWeight::new(&w)?.forward(&x, None, Epilogue::Residual(&x))?;
    assert!(error(&got, &(wide(&x)? + wide(&x)?.matmul(&wide(&w)?)?)?)? < 1e-6);
    Ok(())
}

#[test]
fn some_columns_are_those_of_all() -> Result<()> {
    let (x, w, b) = (numbers((5, 30), 1)?, numbers((30, 200), 2)?, numbers(200, 3)?);
    let packed = PackedWeight::new(&w)?;
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
    let (x, w) = (numbers((2, 3, 6), 1)?, numbers((6, 5), 2)?);
    let (b, r) = (numbers(5, 3)?, numbers((2, 3, 5), 4)?);
    let packed = PackedWeight::new(&w)?;
    for learns in 0..3 {
        let var = Var::from_tensor([&x, &b, &r][learns])?;
        let pick = |i: usize, constant: &Tensor| {
            if i == learns { var.as_tensor().clone() } else { constant.clone() }
        };
        let (x, b, r) = (pick(0, &x), pick(1, &b), pick(2, &r));
        for epilogue in [Epilogue::None, Epilogue::Gelu, Epilogue::Residual(&r)] {
            if learns == 2 && !matches!(epilogue, Epilogue::Residual(_)) {
                continue;
            }
            let plain = linear(&x, &w, &b, epilogue, Dispatch::of(Implementation::Auto, &x))?;
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
        let packed = PackedWeight::new(&table.t()?)?;
        let same = |got: &Tensor, expected: &Tensor| -> Result<()> {
            assert_eq!(got.dtype(), dtype);
            assert_eq!(wide(got)?.to_vec2::<f64>()?, wide(expected)?.to_vec2::<f64>()?);
            Ok(())
        };
        let ids = Tensor::new(&[3u32, 49, 0, 3], &Device::Cpu)?;
        same(&packed.columns(&ids)?, &table.index_select(&ids, 0)?)?;
        same(&packed.to_transposed()?, &table)?;
        same(&packed.to_tensor()?, &table.t()?)?;
        let error =
            packed.columns(&Tensor::new(&[50u32], &Device::Cpu)?).expect_err("there are 50").to_string();
        assert!(error.contains("50"), "{error}");
    }
    Ok(())
}

#[test]
fn nan_and_infinity_stay_in_their_rows() -> Result<()> {
    // An odd depth and a few columns, so that there are zeros beside the numbers; and whole tiles.
    for (dtype, depth) in [(DType::F32, 5), (DType::F16, 5), (DType::BF16, 5), (DType::BF16, 64)] {
        let mut data = numbers((20, depth), 1)?.to_vec2::<f32>()?;
        (data[3][4], data[17][0]) = (f32::NAN, f32::INFINITY);
        let x = Tensor::new(data, &Device::Cpu)?.to_dtype(dtype)?;
        let ones = Tensor::ones((depth, 3), dtype, &Device::Cpu)?;
        let y = PackedWeight::new(&ones)?.forward(&x, None, Epilogue::None)?;
        for (i, row) in y.to_dtype(DType::F32)?.to_vec2::<f32>()?.iter().enumerate() {
            let expected: fn(&f32) -> bool = match i {
                3 => |x| x.is_nan(),
                17 => |x| *x == f32::INFINITY,
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
    let says = |result: Result<PackedWeight>, part: &str| {
        let message = result.expect_err(part).to_string();
        assert!(message.contains(part), "{message}");
    };
    says(PackedWeight::new(&Tensor::zeros((0, 3), DType::F32, &Device::Cpu)?), "no elements");
    says(PackedWeight::new(&weight.to_dtype(DType::F64)?), "F64");
    says(PackedWeight::new(&weight.flatten_all()?), "unexpected rank");
    says(PackedWeight::new(Var::from_tensor(&weight)?.as_tensor()), "no gradient");
    let packed = PackedWeight::new(&weight)?;
    let x = numbers((2, 4), 2)?;
    let bias = numbers(4, 3)?;
    let error = packed.forward(&x, Some(&bias), Epilogue::None).expect_err("4 is not 3").to_string();
    assert!(error.contains("[3]") && error.contains("[4]"), "{error}");
    let half = x.to_dtype(DType::F16)?;
    let error = packed.forward(&half, None, Epilogue::None).expect_err("f16 is not f32").to_string();
    assert!(error.contains("F32") && error.contains("F16"), "{error}");
    let error = packed.forward(&x.narrow(D::Minus1, 0, 3)?, None, Epilogue::None).expect_err("3 is not 4");
    assert!(error.to_string().contains("4 inputs"), "{error}");
    Ok(())
}
