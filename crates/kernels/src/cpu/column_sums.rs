//! Sums over the rows of a matrix: the gradient of anything that was added to each row.

use super::dispatch::cpu_f32;
use super::element::accumulator;
use super::isa;
use super::vector::with_slices;
use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;

/// Rows per partial sum. Errors grow with the length of the partial sums and of their total, not with
/// the number of rows, and the result is the same for any number of threads.
pub(crate) const ROWS: usize = 32;

/// (rows, N) -> (N), summed in f32 or wider. On the CPU Candle's own sum adds the numbers one by one on a single
/// thread, and sums f16 and bf16 in their own dtype.
pub(crate) fn column_sums(x: &Tensor) -> Result<Tensor> {
    if cpu_f32(&[x]) && x.elem_count() > 0 {
        let (_, width) = x.dims2()?;
        let arch = isa::arch();
        let sums = with_slices([&x.contiguous()?], |[x]| {
            let partial = x.par_chunks(ROWS * width).map(|rows| {
                let mut sums = vec![0f32; width];
                arch.dispatch(|| rows.chunks_exact(width).for_each(|row| add(&mut sums, row)));
                sums
            });
            total(partial.collect(), width)
        })?;
        return Tensor::from_vec(sums, width, &Device::Cpu);
    }
    x.to_dtype(accumulator(x.dtype()))?.sum(0)?.to_dtype(x.dtype())
}

/// `sums += row`
#[inline(always)]
pub(crate) fn add(sums: &mut [f32], row: &[f32]) {
    for (sum, x) in sums.iter_mut().zip(row) {
        *sum += x;
    }
}

/// The sum of vectors of `width` numbers, in order.
pub(crate) fn total(parts: Vec<Vec<f32>>, width: usize) -> Vec<f32> {
    let mut sums = vec![0f32; width];
    for part in &parts {
        add(&mut sums, part);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::test_numbers::{numbers, pool};
    use candle_core::DType;

    #[test]
    fn the_sums_are_those_of_f64() -> Result<()> {
        for (rows, width) in [(1, 1), (3, 5), (32, 7), (33, 16), (200, 100)] {
            let x = (numbers((rows, width), 1)? + 1.0)?;
            let expected = x.to_dtype(DType::F64)?.sum(0)?.to_vec1::<f64>()?;
            for (sum, expected) in column_sums(&x)?.to_vec1::<f32>()?.iter().zip(&expected) {
                assert!((f64::from(*sum) - expected).abs() <= 1e-5 * rows as f64, "{sum}, not {expected}");
            }
            let expected = x.to_dtype(DType::F64)?.sum(1)?.to_vec1::<f64>()?;
            for (sum, expected) in column_sums(&x.t()?)?.to_vec1::<f32>()?.iter().zip(&expected) {
                assert!((f64::from(*sum) - expected).abs() <= 1e-5 * width as f64, "{sum}, not {expected}");
            }
        }
        Ok(())
    }

    #[test]
    fn without_rows_the_sums_are_zeros_and_without_columns_there_are_none() -> Result<()> {
        for (rows, width) in [(0, 5), (3, 0)] {
            let sums = column_sums(&Tensor::zeros((rows, width), DType::F32, &Device::Cpu)?)?;
            assert_eq!(sums.to_vec1::<f32>()?, vec![0.0; width]);
        }
        Ok(())
    }

    #[test]
    fn halves_are_not_added_up_in_halves() -> Result<()> {
        for dtype in [DType::F16, DType::BF16] {
            let sums = column_sums(&Tensor::ones((4096, 2), dtype, &Device::Cpu)?)?;
            assert_eq!(sums.dtype(), dtype);
            assert_eq!(sums.to_dtype(DType::F32)?.to_vec1::<f32>()?, [4096.0, 4096.0]);
        }
        Ok(())
    }

    #[test]
    fn the_number_of_threads_changes_no_bit() -> Result<()> {
        let x = numbers((1000, 37), 1)?;
        let with = |threads| pool(threads).install(|| column_sums(&x)?.to_vec1::<f32>());
        assert_eq!(with(1)?, with(3)?);
        Ok(())
    }
}
