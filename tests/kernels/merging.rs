//! Log-sums, and attention over several sets of keys, merged by them.

use crate::common::{Result, test_device};
use crate::extras::{finite, flat, some_case};
use crate::{random, relative_error};
use candle_core::{DType, Tensor, Var};
use candle_fused::Implementation::{Eager, Fused};
use candle_fused::attention::{Chosen, Mask, Sdpa, Wanted, Window, merge};

/// Attention over three parts of the keys, merged, is attention over all, and so are the gradients. Some rows see keys of one
/// part only, some none.
#[test]
fn merged_parts_are_the_whole() -> Result {
    let case = some_case();
    let [q, k, v] = case.qkv()?.map(|x| Var::from_tensor(&x));
    let q = q?;
    let k = k?;
    let v = v?;
    let numbers = (0..case.t * case.s).map(|n| match (n / case.s, n % case.s) {
        (i, _) if i % 7 == 3 => f32::NEG_INFINITY,
        (i, j) if i % 7 == 5 && j >= 30 => f32::NEG_INFINITY,
        _ => 0.0,
    });
    let added = Tensor::from_iter(numbers, &test_device())?.reshape((1, 1, case.t, case.s))?;
    for (implementation, dtype, tolerance) in
        [(Fused, DType::F32, 1e-5), (Eager, DType::F32, 1e-5), (Fused, DType::BF16, 3e-2)]
    {
        let attention = Sdpa { window: Window::ALL, implementation, ..Sdpa::default() };
        let run = |parts: &[usize]| -> Result<Vec<Vec<f64>>> {
            let mut first = 0;
            let mut attended = vec![];
            for &len in parts {
                let part = |x: &Var| x.to_dtype(dtype)?.narrow(2, first, len);
                let added = added.narrow(3, first, len)?;
                let mask = Mask { added: Some(&added), ..Mask::default() };
                let wanted = Wanted { lse: true, ..Wanted::default() };
                let one = attention.attend(&q.to_dtype(dtype)?, &part(&k)?, &part(&v)?, mask, wanted)?;
                attended.push((one.context, one.lse.ok_or("log-sums")?));
                first += len;
            }
            let parts: Vec<_> = attended.iter().map(|(context, lse)| (context, lse)).collect();
            let (context, lse) = merge(&parts)?;
            assert_eq!(context.dtype(), dtype);
            let seen = lse.ne(f64::NEG_INFINITY)?.where_cond(&lse, &lse.zeros_like()?)?;
            let of_lse = (seen * case.numbers("l", lse.dims())?)?.sum_all()?;
            let of_context =
                (context.to_dtype(DType::F32)? * case.numbers("g", context.dims())?)?.sum_all()?;
            let gradients = (of_lse + of_context)?.backward()?;
            let of = |x: &Var| flat(gradients.get(x).ok_or("no gradient")?);
            Ok(vec![flat(&context)?, finite(&flat(&lse)?), of(&q)?, of(&k)?, of(&v)?])
        };
        let whole = run(&[90])?;
        assert!(whole[0].chunks(4 * 20).nth(3).ok_or("row 3")?.iter().all(|x| *x == 0.0));
        for (n, (got, expected)) in run(&[30, 59, 1])?.iter().zip(&whole).enumerate() {
            let error = relative_error(got, expected);
            assert!(error < tolerance, "{n} of {implementation:?} in {dtype:?}: {error}");
        }
    }
    Ok(())
}

#[test]
fn parts_that_do_not_fit_are_refused() -> Result {
    let (context, lse) = (
        Tensor::zeros((1, 3, 2, 4), DType::F32, &test_device())?,
        Tensor::zeros((1, 2, 3), DType::F32, &test_device())?,
    );
    let turned = lse.transpose(1, 2)?;
    let narrow = context.narrow(3, 0, 3)?;
    for (parts, says) in [
        (&[][..], "no part"),
        (&[(&context, &lse), (&context, &turned)], "[1, 3, 2]"),
        (&[(&context, &lse), (&narrow, &lse)], "got [1, 3, 2, 3] in f32"),
        (&[(&context, &lse), (&context.to_dtype(DType::F16)?, &lse)], "f16"),
    ] {
        let message = merge(parts).err().ok_or(says)?.to_string();
        assert!(message.contains(says), "{message:?} does not say {says:?}");
    }
    Ok(())
}

#[test]
fn queries_without_keys_have_log_sums_of_minus_infinity() -> Result {
    let q = random(1, "q", 1., (1, 2, 3, 8))?;
    let none = Tensor::zeros((1, 2, 0, 8), DType::F32, &test_device())?;
    for implementation in [Fused, Eager] {
        let attention = Sdpa { implementation, ..Sdpa::default() };
        let wanted = Wanted { lse: true, weights: &[Chosen::default()], summary: true };
        let lse = attention.attend(&q, &none, &none, Mask::default(), wanted)?.lse.ok_or("log-sums")?;
        assert_eq!((lse.dims(), flat(&lse)?), (&[1, 2, 3][..], vec![f64::NEG_INFINITY; 6]));
    }
    Ok(())
}
