use super::few_rows::FEW_ROWS;
use super::linear_transposed;
use crate::cpu::dispatch::{Dispatch, Implementation};
use crate::cpu::test_numbers::{error, numbers, pool, wide};
use crate::pointwise::epilogue::Epilogue;
use candle_core::{DType, Device, Result, Tensor, Var};

fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    super::linear(x, weight, Some(bias), Epilogue::None, Dispatch::of(Implementation::Auto, x))
}

fn linear_onto(residual: &Tensor, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    super::linear(x, weight, Some(bias), Epilogue::Residual(residual), Dispatch::of(Implementation::Auto, x))
}

/// Every path of a product: few rows and many, lengths that are not multiples of a vector, columns of a
/// wider weight.
#[test]
fn products_are_what_f64_gives() -> Result<()> {
    for (rows, k, n) in [
        (1, 1, 1),
        (20, 1, 5),
        (20, 2, 1),
        (20, 40, 1),
        (1, 7, 5),
        (2, 768, 96),
        (3, 130, 4099),
        (8, 65, 33),
        (9, 65, 33),
        (70, 300, 100),
    ] {
        let x = numbers((rows, k), 1)?;
        let whole = numbers((k, 2 * n + 3), 2)?;
        let residual = numbers((rows, n), 4)?;
        for weight in [whole.narrow(1, 0, n)?.contiguous()?, whole.narrow(1, n, n)?] {
            let bias = numbers(n, 3)?;
            let expected = wide(&x)?.matmul(&wide(&weight.contiguous()?)?)?.broadcast_add(&wide(&bias)?)?;
            let case = format!("{rows} rows, {k} x {n}");
            let got = linear(&x, &weight, &bias)?;
            assert!(error(&got, &expected)? <= 1e-6, "{case}: {:e}", error(&got, &expected)?);
            let onto = linear_onto(&residual, &x, &weight, &bias)?;
            assert!(error(&onto, &(expected + wide(&residual)?)?)? <= 1e-6, "{case}, onto a residual");
        }
        let table = numbers((n, k), 5)?;
        let expected = wide(&x)?.matmul(&wide(&table)?.t()?)?;
        let got = linear_transposed(&x, &table)?;
        assert!(error(&got, &expected)? <= 1e-6, "{rows} rows, {k} x {n}, transposed");
    }
    Ok(())
}

#[test]
fn gradients_are_what_plain_operations_give() -> Result<()> {
    let x = numbers((2, 5, 6), 1)?;
    let w = numbers((6, 4), 2)?;
    let b = numbers(4, 3)?;
    let r = numbers((2, 5, 4), 4)?;
    let vars = [Var::from_tensor(&x)?, Var::from_tensor(&w)?, Var::from_tensor(&b)?, Var::from_tensor(&r)?];
    let [x, w, b, r] = &vars;
    let plain = (r.as_tensor() + x.reshape((10, 6))?.matmul(w)?.reshape((2, 5, 4))?.broadcast_add(b)?)?;
    let expected = plain.sqr()?.sum_all()?.backward()?;
    let got = linear_onto(r, x, w, b)?.sqr()?.sum_all()?.backward()?;
    for var in &vars {
        let got = got.get(var).expect("a gradient");
        let expected = expected.get(var).expect("a gradient");
        assert!(error(got, &wide(expected)?)? <= 1e-6);
    }
    Ok(())
}

/// The columns of a wider weight that a block uses when it computes the last position only.
#[test]
fn columns_of_a_weight_get_their_gradient_and_the_others_none() -> Result<()> {
    let x = numbers((5, 6), 1)?;
    let w = Var::from_tensor(&numbers((6, 9), 2)?)?;
    let b = numbers(4, 3)?;
    let got = linear(&x, &w.narrow(1, 3, 4)?, &b)?.sqr()?.sum_all()?.backward()?;
    let plain = x.matmul(&w.narrow(1, 3, 4)?.contiguous()?)?.broadcast_add(&b)?;
    let expected = plain.sqr()?.sum_all()?.backward()?;
    let got = got.get(&w).expect("a gradient");
    let expected = expected.get(&w).expect("a gradient");
    assert!(error(got, &wide(expected)?)? <= 1e-6);
    Ok(())
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() -> Result<()> {
    for rows in [1, 5, 64] {
        let x = numbers((rows, 700), 1)?;
        let w = numbers((700, 900), 2)?;
        let b = numbers(900, 3)?;
        let run = |threads: usize| -> Result<Vec<Vec<f32>>> {
            pool(threads).install(|| linear(&x, &w, &b))?.to_vec2()
        };
        let one = run(1)?;
        for threads in [2, 7, 16] {
            assert!(run(threads)? == one, "{rows} rows, {threads} threads");
        }
    }
    Ok(())
}

/// f16 and bf16 are summed in f32 and rounded once on every path.
#[test]
fn halves_differ_from_f64_by_one_rounding() -> Result<()> {
    for (dtype, rounding) in [(DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))] {
        for (rows, k, n) in [(1, 3072, 70), (3, 100, 1030), (8, 65, 33), (9, 65, 33), (70, 300, 100)] {
            let half = |shape: &[usize], salt| numbers(shape, salt)?.to_dtype(dtype);
            let x = half(&[rows, k], 1)?;
            let w = half(&[k, n], 2)?;
            let b = half(&[n], 3)?;
            let residual = half(&[rows, n], 4)?;
            let table = half(&[n, k], 5)?;
            let plain = wide(&x)?.matmul(&wide(&w)?)?.broadcast_add(&wide(&b)?)?;
            let case = format!("{dtype:?}, {rows} rows, {k} x {n}");
            assert!(error(&linear(&x, &w, &b)?, &plain)? <= 1.01 * rounding, "{case}");
            let onto = linear_onto(&residual, &x, &w, &b)?;
            assert!(
                error(&onto, &(plain + wide(&residual)?)?)? <= 1.01 * rounding,
                "{case}, onto a residual"
            );
            if rows <= FEW_ROWS {
                let expected = wide(&x)?.matmul(&wide(&table)?.t()?)?;
                assert!(
                    error(&linear_transposed(&x, &table)?, &expected)? <= 1.01 * rounding,
                    "{case}, transposed"
                );
            }
        }
    }
    Ok(())
}

/// Candle on Arm would add up these 768 products in f16.
#[test]
fn gradients_in_f16_lose_little_more_than_their_rounding() -> Result<()> {
    let x = numbers((200, 256), 1)?;
    let table = numbers((768, 256), 2)?;
    let factor = numbers((200, 768), 3)?;
    let gradients = |dtype| -> Result<[Tensor; 2]> {
        let to = |x: &Tensor| x.to_dtype(DType::F16)?.to_dtype(dtype);
        let x = Var::from_tensor(&to(&x)?)?;
        let table = Var::from_tensor(&to(&table)?)?;
        let gradients = (linear_transposed(&x, &table)? * to(&factor)?)?.sum_all()?.backward()?;
        Ok([&x, &table].map(|of| gradients.get(of).expect("a gradient").clone()))
    };
    for (got, expected) in gradients(DType::F16)?.iter().zip(&gradients(DType::F64)?) {
        let error = error(got, expected)?;
        assert!(error <= 3.0 / 2048.0, "{error}");
    }
    Ok(())
}

#[test]
fn no_rows_give_no_rows() -> Result<()> {
    let w = numbers((6, 4), 2)?;
    let b = numbers(4, 3)?;
    for shape in [vec![0, 6], vec![2, 0, 6]] {
        let x = Tensor::zeros(shape.clone(), DType::F32, &Device::Cpu)?;
        let mut expected = shape;
        *expected.last_mut().expect("two dimensions") = 4;
        assert_eq!(linear(&x, &w, &b)?.dims(), expected);
        let residual = Tensor::zeros(expected.clone(), DType::F32, &Device::Cpu)?;
        assert_eq!(linear_onto(&residual, &x, &w, &b)?.dims(), expected);
        assert_eq!(linear_transposed(&x, &w.t()?.contiguous()?)?.dims(), expected);
    }
    Ok(())
}

#[test]
fn nan_and_infinity_come_through() -> Result<()> {
    let x = Tensor::new(&[[f32::NAN, 1.0], [f32::INFINITY, 1.0], [2.0, 1.0]], &Device::Cpu)?;
    let w = Tensor::new(&[[1f32], [1.0]], &Device::Cpu)?;
    let y = linear(&x, &w, &Tensor::new(&[0f32], &Device::Cpu)?)?.to_vec2::<f32>()?;
    assert!(y[0][0].is_nan() && y[1][0] == f32::INFINITY, "{y:?}");
    assert!((y[2][0] - 3.0).abs() < 1e-6, "{y:?}");
    Ok(())
}

#[test]
fn shapes_that_do_not_fit_are_named() -> Result<()> {
    let x = numbers((2, 5), 1)?;
    let w = numbers((6, 4), 2)?;
    let message = linear(&x, &w, &numbers(4, 3)?).expect_err("5 is not 6").to_string();
    assert!(message.contains("[2, 5]") && message.contains('6'), "{message}");
    let message = linear(&numbers((2, 6), 1)?, &w, &numbers(3, 3)?).expect_err("3 is not 4").to_string();
    assert!(message.contains("[6, 4]") && message.contains("[3]"), "{message}");
    let message =
        linear_onto(&numbers((1, 4), 1)?, &numbers((2, 6), 1)?, &w, &numbers(4, 3)?).expect_err("1 is not 2");
    assert!(message.to_string().contains("[1, 4]"), "{message}");
    Ok(())
}

/// The few-rows kernel has no backward pass, so it does not run if any operand is trained.
#[test]
fn few_rows_pass_gradients_to_whichever_operand_learns() -> Result<()> {
    let x = numbers((2, 5), 1)?;
    let weight = numbers((4, 5), 9)?;
    let learns = Var::from_tensor(&x)?;
    let gradients = linear_transposed(&learns, &weight)?.sum_all()?.backward()?;
    let of_x = gradients.get(&learns).expect("a gradient of x");
    assert!(error(of_x, &wide(&weight.sum_keepdim(0)?.broadcast_as((2, 5))?)?)? < 1e-6);
    let learns = Var::from_tensor(&weight)?;
    let gradients = linear_transposed(&x, &learns)?.sum_all()?.backward()?;
    let of_weight = gradients.get(&learns).expect("a gradient of the weight");
    assert!(error(of_weight, &wide(&x.sum_keepdim(0)?.broadcast_as((4, 5))?)?)? < 1e-6);
    Ok(())
}
