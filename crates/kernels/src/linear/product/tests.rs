use super::finish::{Destination, Finish};
use super::multiply::{product, share_out};
use super::numbers::PanelNumber;
use super::panels::Panels;
use super::rows::{Matrix, Rows};
use super::sums::PackedPairs;
use crate::cpu::dispatch::Factors;
use crate::cpu::isa::Isa;
use crate::cpu::test_numbers::pool;
use crate::pointwise::activation::Activation;
use crate::pointwise::epilogue::ResidualOrGate;
use half::{bf16, f16};

/// Numbers between -1 and 1, the same for the same seed.
fn numbers<E: PanelNumber>(count: usize, seed: usize) -> Vec<E> {
    (0..count).map(|i| E::from_f32(((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0)).collect()
}

fn wide<E: PanelNumber>(x: &[E]) -> Vec<f64> {
    x.iter().map(|x| f64::from(x.to_f32())).collect()
}

/// `x·W` from the definition.
fn definition(x: &[f64], w: &[f64], depth: usize) -> Vec<f64> {
    let rows = x.len() / depth;
    let width = w.len() / depth;
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

fn run<E: PanelNumber, O: PanelNumber>(
    isa: Isa,
    x: &[E],
    w: &Panels<E>,
    columns: std::ops::Range<usize>,
    finish: Finish<O>,
    before: Option<&[O]>,
) -> Vec<O> {
    let rows = x.len() / w.depth();
    let count = rows * columns.len();
    let mut out = before.map_or_else(|| vec![O::from_f32(f32::NAN); count], <[O]>::to_vec);
    // SAFETY: `out` holds `count` numbers.
    unsafe {
        product(isa, &Rows { data: x, depth: w.depth() }, rows, w, columns, finish, out.as_mut_ptr());
    };
    out
}

fn check<E: PanelNumber>(isa: Isa) {
    for (rows, depth, width) in [
        (1, 1, 1),
        (1, 768, 96),
        (2, 3, 65),
        (3, 130, 200),
        (5, 17, 33),
        (7, 300, 64),
        (8, 40, 130),
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
        let x = numbers::<E>(rows * depth, 1);
        let w = numbers::<E>(depth * width, 2);
        let bias = numbers::<f32>(width, 3);
        let residual = numbers::<f32>(rows * width, 4);
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
            join: Some(ResidualOrGate::Add(&residual)),
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

/// Only AVX-512 and NEON have an instruction for pairs of bf16. The others compute the same in several, and only here.
#[test]
fn pairs_give_what_f64_gives() {
    #[cfg(target_arch = "x86_64")]
    let has = |isa: Isa| isa < Isa::Avx512 || is_x86_feature_detected!("avx512bf16");
    #[cfg(target_arch = "aarch64")]
    let has = |isa: Isa| isa < Isa::Neon || std::arch::is_aarch64_feature_detected!("bf16");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has = |_: Isa| true;
    for isa in Isa::available().into_iter().filter(|isa| has(*isa)) {
        let arch = isa.arch().expect("it is available");
        for (rows, depth, width) in [(1, 768, 96), (2, 4, 65), (5, 40, 33), (13, 516, 31), (97, 768, 130)] {
            let x = numbers::<bf16>(rows * depth, 1);
            let w = numbers::<bf16>(depth * width, 2);
            let packed = Panels::pack(&w, (depth, width), (width, 1));
            let x = Rows { data: &x, depth };
            // SAFETY: `has` has looked.
            let pairs = unsafe { PackedPairs::new(arch, &x, rows, &packed) }.expect("the depth suits");
            let mut out = vec![f32::NAN; rows * width];
            let result = Destination::new(Finish::NOTHING, rows, width, out.as_mut_ptr());
            // SAFETY: `out` has the rows and columns.
            unsafe { share_out(arch, rows, &(0..width), &pairs, &result) };
            let expected = definition(&wide(x.data), &wide(&w), depth);
            let scale = expected.iter().fold(1f64, |most, x| most.max(x.abs()));
            for (got, expected) in out.iter().zip(&expected) {
                let error = (f64::from(*got) - expected).abs();
                assert!(error <= 1e-6 * scale, "{}, {rows} x {depth} x {width}: {error:e}", isa.as_str());
            }
        }
    }
    for depth in [1, 2, 3, 6] {
        let packed = Panels::pack(&numbers::<bf16>(depth * 16, 1), (depth, 16), (16, 1));
        let x = Rows { data: &numbers::<bf16>(depth, 2), depth };
        // SAFETY: portable code needs nothing.
        let pairs = unsafe { PackedPairs::new(pulp::Arch::Scalar, &x, 1, &packed) };
        assert!(pairs.is_none(), "depth {depth}");
    }
}

/// The least number of bf16 times the largest: 2⁻⁵ or so, or 0 where the processor multiplies bf16 itself.
#[test]
fn subnormal_bf16s_count_as_0_where_the_processor_multiplies_them() {
    for isa in Isa::available() {
        let x = vec![bf16::from_bits(1); 64];
        let w = vec![bf16::MAX; 64 * 16];
        let packed = Panels::pack(&w, (64, 16), (16, 1));
        let got = run::<_, f32>(isa, &x, &packed, 0..16, Finish::NOTHING, None);
        #[cfg(amx)]
        let in_bf16 = isa.has_pairs() || isa.has_tiles();
        #[cfg(not(amx))]
        let in_bf16 = isa.has_pairs();
        let expected = if in_bf16 { 0.0 } else { 64.0 * x[0].to_f32() * bf16::MAX.to_f32() };
        assert!(
            got.iter().all(|y| (y - expected).abs() <= 1e-5 * expected),
            "{isa:?}: {got:?}, not {expected}"
        );
    }
}

/// A row has the same bits alone, as in decoding, and among others; and for any number of threads.
#[test]
fn the_bits_depend_neither_on_threads_nor_on_the_other_rows() {
    fn check<E: PanelNumber>(isa: Isa) {
        let (rows, depth, width) = (150, 608, 300);
        let x = numbers::<E>(rows * depth, 1);
        let w = numbers::<E>(depth * width, 2);
        let packed = Panels::pack(&w, (depth, width), (width, 1));
        let of = |x: &[E]| run::<E, f32>(isa, x, &packed, 0..width, Finish::NOTHING, None);
        let all = |threads: usize| pool(threads).install(|| of(&x));
        let one = all(1);
        assert!([2, 7, 16].into_iter().all(|threads| all(threads) == one), "{isa:?}");
        for (x, expected) in x.chunks(depth).zip(one.chunks(width)) {
            assert_eq!(of(x), expected, "{isa:?}");
        }
    }
    for isa in Isa::available() {
        check::<f32>(isa);
        check::<f16>(isa);
        check::<bf16>(isa);
    }
}

/// `a·b`, added to ones if `onto` is set.
fn product_of(factors: Factors, isa: Isa, onto: bool, a: Matrix, b: Matrix) -> Vec<f32> {
    if !onto {
        let out = factors.product_on(isa, a, b);
        if !out.is_empty() && a.shape[1] > 0 {
            let mut written = vec![f32::NAN; out.len()];
            // SAFETY: there is room for the result.
            unsafe { factors.write(isa, written.as_mut_ptr(), false, a, b) };
            assert_eq!(written, out, "{isa:?} {factors:?}: nothing is read of the result");
        }
        return out;
    }
    let mut out = vec![1.0; a.shape[0] * b.shape[1]];
    factors.add_product_on(isa, &mut out, a, b);
    out
}

#[test]
fn factors_may_be_transposed() {
    let (m, k, n) = (19, 70, 45);
    let a = numbers::<f32>(m * k, 1);
    let b = numbers::<f32>(k * n, 2);
    let transposed = |x: &[f32], rows: usize, columns: usize| -> Vec<f32> {
        (0..rows * columns).map(|i| x[i % rows * columns + i / rows]).collect()
    };
    let a_t = transposed(&a, m, k);
    let b_t = transposed(&b, k, n);
    let expected = definition(&wide(&a), &wide(&b), k);
    for (a, b) in [
        (Matrix::new(&a, m, k), Matrix::new(&b, k, n)),
        (Matrix::new(&a_t, k, m).t(), Matrix::new(&b, k, n)),
        (Matrix::new(&a, m, k), Matrix::new(&b_t, n, k).t()),
        (Matrix::new(&a_t, k, m).t(), Matrix::new(&b_t, n, k).t()),
    ] {
        for (isa, onto) in Isa::available().into_iter().flat_map(|isa| [(isa, false), (isa, true)]) {
            let out = product_of(Factors::AsStored, isa, onto, a, b);
            for (got, expected) in out.iter().zip(&expected) {
                let expected = expected + f64::from(u8::from(onto));
                assert!((f64::from(*got) - expected).abs() < 2e-5, "{isa:?}: {got}, not {expected}");
            }
        }
    }
}

/// A result in a half is that in f32, rounded once, up to the end of each row.
#[test]
fn halves_are_rounded_once_on_every_instruction_set() {
    fn check<E: PanelNumber>(isa: Isa) {
        let (rows, depth, width) = (19, 30, 37);
        let x = numbers::<E>(rows * depth, 1);
        let w = numbers::<E>(depth * width, 2);
        let bias = numbers::<f32>(width, 3);
        let residual = numbers::<E>(rows * width, 4);
        let wide: Vec<f32> = residual.iter().map(|x| x.to_f32()).collect();
        let packed = Panels::pack(&w, (depth, width), (width, 1));
        let finish =
            Finish { bias: Some(&bias), join: Some(ResidualOrGate::Add(&residual[..])), ..Finish::NOTHING };
        let in_f32 =
            Finish { bias: Some(&bias), join: Some(ResidualOrGate::Add(&wide[..])), ..Finish::NOTHING };
        let got: Vec<E> = run(isa, &x, &packed, 0..width, finish, None);
        let expected: Vec<f32> = run(isa, &x, &packed, 0..width, in_f32, None);
        for (got, expected) in got.iter().zip(&expected) {
            assert!(
                got.to_f32().to_bits() == E::from_f32(*expected).to_f32().to_bits(),
                "{isa:?}: {expected}"
            );
        }
    }
    for isa in Isa::available() {
        check::<f16>(isa);
        check::<bf16>(isa);
    }
}

#[test]
fn portable_code_runs_where_an_instruction_set_is_missing() {
    let (rows, depth, width) = (3, 64, 40);
    let packed = Panels::pack(&numbers::<bf16>(depth * width, 2), (depth, width), (width, 1));
    let x = numbers::<bf16>(rows * depth, 1);
    let run = |isa| run::<bf16, f32>(isa, &x, &packed, 0..width, Finish::NOTHING, None);
    for isa in [Isa::Neon, Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Amx] {
        assert!(isa.arch().is_some() || run(isa) == run(Isa::Portable), "{isa:?}");
    }
}

#[test]
fn a_matrix_is_whole_if_its_last_number_is_in_the_slice() {
    let data = [0.0; 12];
    for (shape, strides, whole) in [
        ([3, 4], [4, 1], true),
        ([3, 4], [1, 3], true),
        ([3, 4], [5, 1], false),
        ([4, 3], [1, 4], true),
        ([4, 4], [3, 1], false),
        ([2, 6], [7, 1], false),
        ([1, 12], [99, 1], true),
        ([1, 13], [0, 1], false),
        ([12, 1], [1, 99], true),
        ([13, 1], [1, 0], false),
        ([9, 9], [0, 0], true),
        ([0, 5], [99, 99], true),
        ([5, 0], [99, 99], true),
        ([3, 2], [usize::MAX, 1], false),
        ([2, 2], [usize::MAX, 1], false),
    ] {
        assert_eq!(Matrix { data: &data, shape, strides }.is_whole(), whole, "{shape:?}, {strides:?}");
    }
    assert!(!Matrix::new(&data[..11], 3, 4).is_whole());
}

#[test]
fn no_rows_and_no_depth_are_no_work() {
    let packed = Panels::pack(&numbers::<f32>(12, 1), (3, 4), (4, 1));
    for isa in Isa::available() {
        assert!(run::<f32, f32>(isa, &[], &packed, 0..4, Finish::NOTHING, None).is_empty());
        // What an earlier product leaves in the working memory does not count.
        run::<f32, f32>(isa, &[1.0; 6], &packed, 0..4, Finish::NOTHING, None);
        for (onto, expected) in [(false, 0.0), (true, 1.0)] {
            for factors in [Factors::AsStored, Factors::Bf16] {
                let out = product_of(factors, isa, onto, Matrix::new(&[], 2, 0), Matrix::new(&[], 0, 3));
                assert_eq!(out, [expected; 6], "{isa:?} {factors:?}");
            }
        }
    }
}

#[test]
fn factors_are_rounded_to_bf16_and_sums_are_not() {
    for isa in Isa::available() {
        for (m, k, n) in [(1, 1, 1), (3, 5, 7), (16, 32, 64), (33, 70, 65), (100, 129, 40), (40, 768, 96)] {
            let a = numbers::<f32>(m * k, 1);
            let b = numbers::<f32>(k * n, 2);
            let rounded = |x: &[f32]| x.iter().map(|x| bf16::from_f32(*x).to_f64()).collect::<Vec<_>>();
            let expected = definition(&rounded(&a), &rounded(&b), k);
            let largest = expected.iter().fold(1e-30f64, |most, x| most.max(x.abs()));
            let a_turned: Vec<f32> = (0..m * k).map(|i| a[i % m * k + i / m]).collect();
            let b_turned: Vec<f32> = (0..k * n).map(|i| b[i % k * n + i / k]).collect();
            let rows = Matrix::new(&a, m, k);
            let columns = Matrix::new(&a_turned, k, m).t();
            let right = [Matrix::new(&b, k, n), Matrix::new(&b_turned, n, k).t()];
            for (a, b) in [(rows, right[0]), (rows, right[1]), (columns, right[0]), (columns, right[1])] {
                for onto in [false, true] {
                    let out = product_of(Factors::Bf16, isa, onto, a, b);
                    for (got, expected) in out.iter().zip(&expected) {
                        let expected = expected + if onto { 1.0 } else { 0.0 };
                        // f32 sums of at most 768 exact products.
                        let error = (f64::from(*got) - expected).abs() / largest.max(1.0);
                        assert!(error <= 2e-6, "{} {m} x {k} x {n}: {got}, not {expected}", isa.as_str());
                    }
                }
            }
        }
    }
}

#[test]
fn products_of_rounded_factors_do_not_depend_on_the_number_of_threads() {
    let a = numbers::<f32>(130 * 300, 3);
    let b = numbers::<f32>(300 * 200, 4);
    let with = |threads: usize| {
        pool(threads).install(|| Factors::Bf16.product(Matrix::new(&a, 130, 300), Matrix::new(&b, 300, 200)))
    };
    assert_eq!(with(1), with(2));
    assert_eq!(with(1), with(5));
}
