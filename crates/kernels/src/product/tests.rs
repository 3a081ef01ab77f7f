use super::multiply::product;
use super::panels::Stored;
use super::rows::Rows;
use super::{Finish, Matrix, Panels, multiply};
use crate::activation::Activation;
use crate::epilogue::Join;
use crate::isa::Isa;
use crate::test_numbers::pool;
use half::{bf16, f16};

/// Numbers between -1 and 1, the same for the same seed.
fn numbers<E: Stored>(count: usize, seed: usize) -> Vec<E> {
    (0..count).map(|i| E::from_f32(((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0)).collect()
}

fn wide<E: Stored>(x: &[E]) -> Vec<f64> {
    x.iter().map(|x| f64::from(x.to_f32())).collect()
}

/// `x·W` from the definition.
fn definition(x: &[f64], w: &[f64], depth: usize) -> Vec<f64> {
    let (rows, width) = (x.len() / depth, w.len() / depth);
    let mut out = vec![0.0; rows * width];
    for r in 0..rows {
        for k in 0..depth {
            for c in 0..width {
                out[r * width + c] += x[r * depth + k] * w[k * width + c];
            }
        }
    }
    out
}

fn run<E: Stored>(
    isa: Isa,
    x: &[E],
    w: &Panels<E>,
    columns: std::ops::Range<usize>,
    finish: Finish<f32>,
    before: Option<&[f32]>,
) -> Vec<f32> {
    let rows = x.len() / w.depth();
    let count = rows * columns.len();
    let mut out = before.map_or_else(|| vec![f32::NAN; count], <[f32]>::to_vec);
    // SAFETY: `out` holds `count` numbers.
    unsafe {
        product(isa, &Rows { data: x, depth: w.depth() }, rows, w, columns, finish, out.as_mut_ptr());
    };
    out
}

fn check<E: Stored>(isa: Isa) {
    for (rows, depth, width) in [
        (1, 1, 1),
        (1, 768, 96),
        (2, 3, 65),
        (3, 130, 200),
        (5, 17, 33),
        (7, 300, 64),
        (13, 65, 31),
        (14, 64, 128),
        (15, 257, 70),
        (97, 40, 130),
        (200, 513, 16),
        (1, 64, 40),
        (16, 32, 100),
        (33, 544, 70),
        (150, 320, 96),
    ] {
        let (x, w) = (numbers::<E>(rows * depth, 1), numbers::<E>(depth * width, 2));
        let (bias, residual) = (numbers::<f32>(width, 3), numbers::<f32>(rows * width, 4));
        let packed = Panels::pack(&w, (depth, width), (width, 1));
        let plain = definition(&wide(&x), &wide(&w), depth);
        let case = format!("{} {}, {rows} x {depth} x {width}", isa.as_str(), std::any::type_name::<E>());
        let scale = plain.iter().fold(1e-30f64, |most, x| most.max(x.abs()));
        let close = |got: &[f32], expected: &dyn Fn(usize) -> f64, what: &str| {
            for (i, got) in got.iter().enumerate() {
                let error = (f64::from(*got) - expected(i)).abs();
                assert!(error <= 1e-6 * scale.max(1.0), "{case}, {what}: number {i} is off by {error:e}");
            }
        };
        let got = run(isa, &x, &packed, 0..width, Finish::NOTHING, None);
        close(&got, &|i| plain[i], "alone");
        let finish = Finish {
            bias: Some(&bias),
            activation: Some(Activation::GeluTanh),
            join: Some(Join::Add(&residual)),
            onto: true,
        };
        let got = run(isa, &x, &packed, 0..width, finish, Some(&residual));
        let gelu = |x: f64| 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x.powi(3))).tanh());
        let expected = |i: usize| gelu(plain[i] + f64::from(bias[i % width])) + 2.0 * f64::from(residual[i]);
        close(&got, &expected, "with all that can follow");
        if width > 64 {
            let got = run(isa, &x, &packed, 64..width, Finish::NOTHING, None);
            let count = width - 64;
            close(&got, &|i| plain[i / count * width + 64 + i % count], "the last columns");
        }
    }
}

#[test]
fn every_instruction_set_gives_what_f64_gives() {
    for isa in Isa::available() {
        check::<f32>(isa);
        check::<f16>(isa);
        check::<bf16>(isa);
    }
}

/// A row has the same bits alone, as in decoding, and among others; and for any number of threads.
#[test]
fn the_bits_depend_neither_on_threads_nor_on_the_other_rows() {
    fn check<E: Stored>(isa: Isa) {
        let (rows, depth, width) = (150, 608, 300);
        let (x, w) = (numbers::<E>(rows * depth, 1), numbers::<E>(depth * width, 2));
        let packed = Panels::pack(&w, (depth, width), (width, 1));
        let all =
            |threads: usize| pool(threads).install(|| run(isa, &x, &packed, 0..width, Finish::NOTHING, None));
        let one = all(1);
        assert!([2, 7, 16].into_iter().all(|threads| all(threads) == one), "{isa:?}");
        for (x, expected) in x.chunks(depth).zip(one.chunks(width)) {
            assert_eq!(run(isa, x, &packed, 0..width, Finish::NOTHING, None), expected, "{isa:?}");
        }
    }
    for isa in Isa::available() {
        check::<f32>(isa);
        check::<f16>(isa);
        check::<bf16>(isa);
    }
}

#[test]
fn factors_may_be_transposed() {
    let (m, k, n) = (19, 70, 45);
    let (a, b) = (numbers::<f32>(m * k, 1), numbers::<f32>(k * n, 2));
    let transposed = |x: &[f32], rows: usize, columns: usize| -> Vec<f32> {
        (0..rows * columns).map(|i| x[i % rows * columns + i / rows]).collect()
    };
    let (a_t, b_t) = (transposed(&a, m, k), transposed(&b, k, n));
    let expected = definition(&wide(&a), &wide(&b), k);
    for (a, b) in [
        (Matrix::new(&a, m, k), Matrix::new(&b, k, n)),
        (Matrix::new(&a_t, k, m).t(), Matrix::new(&b, k, n)),
        (Matrix::new(&a, m, k), Matrix::new(&b_t, n, k).t()),
        (Matrix::new(&a_t, k, m).t(), Matrix::new(&b_t, n, k).t()),
    ] {
        for onto in [false, true] {
            let mut out = vec![if onto { 1.0 } else { f32::NAN }; m * n];
            multiply(&mut out, onto, a, b);
            for (got, expected) in out.iter().zip(&expected) {
                let expected = expected + f64::from(u8::from(onto));
                assert!((f64::from(*got) - expected).abs() < 2e-5, "{got}, not {expected}");
            }
        }
    }
}

#[test]
fn no_rows_and_no_depth_are_no_work() {
    let packed = Panels::pack(&numbers::<f32>(12, 1), (3, 4), (4, 1));
    assert!(run(Isa::best(), &[], &packed, 0..4, Finish::NOTHING, None).is_empty());
    let mut out = vec![1.0; 6];
    multiply(&mut out, false, Matrix::new(&[], 2, 0), Matrix::new(&[], 0, 3));
    assert_eq!(out, [0.0; 6]);
}
