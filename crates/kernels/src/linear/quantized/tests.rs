use super::activations::Activations;
use super::format::BlockFormat;
use super::panels::BlockPanels;
use super::product::product_on;
use crate::cpu::isa::Isa;
use crate::cpu::test_numbers::{pool, values as numbers};
use crate::linear::product::finish::Finish;
use crate::linear::product::numbers::PANEL;
use crate::pointwise::epilogue::ResidualOrGate;

/// Quantized weights (depth, width) from numbers.
fn panels(format: BlockFormat, (depth, width): (usize, usize)) -> BlockPanels {
    let data = numbers(depth * width, 7);
    let blocks: Vec<u8> = data.chunks(depth).flat_map(|row| format.quantize(row)).collect();
    packed(format, (depth, width), &blocks)
}

fn packed(format: BlockFormat, shape: (usize, usize), blocks: &[u8]) -> BlockPanels {
    let row = blocks.len() / shape.1;
    let read = |outputs: std::ops::Range<usize>, out: &mut [u8]| {
        out.copy_from_slice(&blocks[outputs.start * row..outputs.end * row]);
        Ok(())
    };
    BlockPanels::pack(format, shape, read).expect("no reader fails")
}

fn run(isa: Isa, x: &[f32], w: &BlockPanels, finish: Finish<f32>) -> Vec<f32> {
    let rows = x.len() / w.depth();
    let mut out = vec![0.0; rows * w.width()];
    // SAFETY: there is room for the result.
    unsafe { product_on(isa, x, w, 0..w.width(), finish, out.as_mut_ptr()) };
    out
}

/// Against f64 over the dequantized weights and the quantized activations: only the rounding of f32 is left.
#[test]
fn products_are_those_of_the_codes_and_scales() {
    for &format in BlockFormat::ALL {
        let (depth, width, rows) = (768, 50, 9);
        let w = panels(format, (depth, width));
        let x = numbers(rows * depth, 3);
        let codes = Activations::<i8>::new(Isa::Portable, &x);
        let x_at = |i: usize| f64::from(codes.codes[i]) * f64::from(codes.scales[i / 32]);
        let got = run(Isa::current(), &x, &w, Finish::NOTHING);
        for j in 0..width {
            let mut column = vec![0.0; depth];
            w.output(j, &mut column);
            for r in 0..rows {
                let terms = (0..depth).map(|k| x_at(r * depth + k) * f64::from(column[k]));
                let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                let error = (f64::from(got[r * width + j]) - sum).abs();
                assert!(error <= 1e-6 * size, "{format}, row {r}, column {j}: {error} of {size}");
            }
        }
    }
}

/// On Arm and x86-64, with any features: scripts/arm.sh runs this on Arm, without and with `dotprod` and `i8mm`.
#[test]
fn products_have_the_same_bits_on_every_machine() {
    let mut hash = 0xcbf2_9ce4_8422_2325; // FNV-1a
    for &format in BlockFormat::ALL {
        let w = panels(format, (768, 50));
        for rows in 1..=9 {
            for y in run(Isa::current(), &numbers(rows * 768, 3), &w, Finish::NOTHING) {
                for byte in y.to_bits().to_le_bytes() {
                    hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
                }
            }
        }
    }
    assert_eq!(hash, 0x1750_24d4_4388_b9f8, "{hash:#018x}");
}

/// The codes of activations differ from them by at most half a step.
#[test]
fn activations_are_rounded_to_the_nearest_code_on_every_instruction_set() {
    let mut x = numbers(4 * 64, 5);
    x[64..128].fill(0.0);
    x[130] = f32::INFINITY;
    x[200] = f32::NAN;
    let expected = Activations::<i8>::new(Isa::Portable, &x);
    for (i, (block, scale)) in x.chunks(32).zip(&expected.scales).enumerate() {
        if block.iter().any(|x| !x.is_finite()) {
            assert!(scale.is_nan(), "block {i}");
            assert_eq!(
                (&expected.codes[i * 32..][..32], &expected.sums[2 * i..][..2]),
                (&[0; 32][..], &[0; 2][..])
            );
            continue;
        }
        for (x, code) in block.iter().zip(&expected.codes[i * 32..]) {
            assert!((x - scale * f32::from(*code)).abs() <= 0.5001 * scale, "{x} in block {i}");
        }
        let sum: i32 = expected.codes[i * 32..][..32].iter().map(|code| i32::from(*code)).sum();
        assert_eq!(expected.sums[2 * i] + expected.sums[2 * i + 1], sum);
    }
    for isa in Isa::available() {
        let got = Activations::<i8>::new(isa, &x);
        assert_eq!((got.codes, got.sums), (expected.codes.clone(), expected.sums.clone()), "{isa:?}");
        let bits = |scales: &[f32]| scales.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got.scales), bits(&expected.scales), "{isa:?}");
    }
}

#[test]
fn the_bits_are_the_same_on_every_instruction_set_for_any_threads_and_any_rows() {
    for &format in BlockFormat::ALL {
        for (depth, width) in [(256, 16), (512, 70), (768, 130)] {
            let w = panels(format, (depth, width));
            let x = numbers(23 * depth, 3);
            let bias = numbers(width, 11);
            let residual = numbers(23 * width, 13);
            let finish = |rows: usize| Finish {
                bias: Some(&bias),
                activation: None,
                join: Some(ResidualOrGate::Add(&residual[..rows * width])),
                onto: false,
            };
            let expected = run(Isa::Portable, &x, &w, finish(23));
            // Where a set is missing, portable code runs.
            for isa in Isa::available().into_iter().chain([Isa::Neon, Isa::Amx]) {
                assert!(run(isa, &[], &w, finish(0)).is_empty());
                for threads in [1, 2, 8] {
                    let pool = pool(threads);
                    for rows in [1, 2, 3, 4, 5, 7, 23] {
                        let got = pool.install(|| run(isa, &x[..rows * depth], &w, finish(rows)));
                        let same = got.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(same, "{format} ({depth}, {width}), {isa:?}, {threads} threads, {rows} rows");
                    }
                }
            }
        }
    }
}

/// The largest codes of both factors: products of bytes must not saturate, and sums must not overflow.
#[test]
fn the_largest_codes_do_not_overflow() {
    for &format in BlockFormat::ALL {
        for (weight, input) in [(1.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0)] {
            let block = format.quantize(&vec![weight; 512]);
            let w = packed(format, (512, PANEL), &block.repeat(PANEL));
            let mut column = vec![0.0; 512];
            w.output(3, &mut column);
            let expected: f32 = column.iter().sum::<f32>() * input;
            for isa in Isa::available() {
                for rows in [1, 6] {
                    for y in run(isa, &vec![input; 512 * rows], &w, Finish::NOTHING) {
                        assert!(
                            (y - expected).abs() < 1e-5 * expected.abs(),
                            "{format}, {isa:?}: {y}, not {expected}"
                        );
                    }
                }
            }
        }
    }
}

/// Packing preserves the weights of the blocks.
#[test]
fn panels_hold_the_weights_of_the_blocks() {
    for &format in BlockFormat::ALL {
        let (depth, width) = (512, 37);
        let data = numbers(depth * width, 7);
        let blocks: Vec<u8> = data.chunks(depth).flat_map(|row| format.quantize(row)).collect();
        let panels = packed(format, (depth, width), &blocks);
        let mut got = vec![0.0; data.len()];
        let mut expected = vec![0.0; data.len()];
        format.dequantize(&blocks, &mut expected);
        got.chunks_exact_mut(depth).enumerate().for_each(|(j, row)| panels.output(j, row));
        assert_eq!(got, expected, "{format}");
    }
}

/// Each format is as close as its number of bits allows, and zeros stay zeros.
#[test]
fn quantized_weights_are_close() {
    for (format, most) in [
        (BlockFormat::Q8_0, 0.006),
        (BlockFormat::Q6K, 0.025),
        (BlockFormat::Q5_0, 0.06),
        (BlockFormat::Q4K, 0.09),
        (BlockFormat::Q5K, 0.05),
        (BlockFormat::Q4_0, 0.12),
    ] {
        let mut data = numbers(2048, 9);
        data[..512].fill(0.0);
        let mut got = vec![1.0; data.len()];
        format.dequantize(&format.quantize(&data), &mut got);
        assert!(got[..512].iter().all(|x| *x == 0.0), "{format}");
        let square = |x: f32| f64::from(x).powi(2);
        let error: f64 = data.iter().zip(&got).map(|(a, b)| square(a - b)).sum();
        let relative = (error / data.iter().map(|x| square(*x)).sum::<f64>()).sqrt();
        assert!(relative < most, "{format}: {relative}");
    }
}
