//! Dropout (Srivastava et al. 2014) from a counter-based generator: `x·m / (1 - rate)`, m = 1 with
//! probability `1 - rate`.
//!
//! Whether an element stays depends only on the seed, the stream and its position: it is decided by the word of
//! Philox4x32-10 (Salmon et al. 2011) under the key `seed` at the counter (column / 4, row, stream), with the
//! tensor viewed as rows of its last dimension. A mask is therefore never stored but drawn again when needed, in
//! the backward pass or inside a kernel, and it is the same on every device and for any number of threads.

use crate::cpu::cpu_op::{CpuInput, CpuOp, OnCpu};
use crate::cpu::dispatch::cpu_f32;
use candle_core::{CpuStorage, Device, Result, Shape, Tensor};
use rand_philox::Philox;
use rayon::prelude::*;

/// Dropout of a tensor's elements: decides which ones to drop.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::Dropout;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::ones((100, 100), candle_core::DType::F32, &Device::Cpu)?;
/// let dropped = Dropout::new(0.25, 42, 0)?.apply(&x)?;
/// let mean = dropped.mean_all()?.to_scalar::<f32>()?; // elements that stay are scaled by 1 / (1 - 0.25)
/// assert!((mean - 1.0).abs() < 0.02);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    rate: f64,
    key: [u32; 2],
    stream: [u32; 2],
}

impl Dropout {
    /// Drops each element with probability `rate`. Two calls with the same `seed` draw the same
    /// mask if their `stream` is the same, and independent masks if it is not.
    ///
    /// # Errors
    /// When `rate` is below 0 or at least 1.
    pub fn new(rate: f64, seed: u64, stream: u64) -> Result<Self> {
        if !(0.0..1.0).contains(&rate) {
            candle_core::bail!("dropout: the rate is {rate}, expected at least 0 and below 1")
        }
        Ok(Self { rate, key: halves(seed), stream: halves(stream) })
    }

    /// The probability of dropping an element.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Drops elements of `x` and scales the others by `1 / (1 - rate)`; differentiable.
    ///
    /// # Shapes
    /// `x` of any shape -> the same shape
    ///
    /// # Errors
    /// When the device fails, or there are 2^32 rows or more.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        if self.rate == 0.0 {
            return Ok(x.clone());
        }
        if cpu_f32(&[x]) {
            return x.contiguous()?.apply_op1(OnCpu(*self));
        }
        x * self.factors_of(x.shape(), x.device())?.to_dtype(x.dtype())?
    }

    /// The factor for each element of a tensor: 0, or `1 / (1 - rate)`, in f32.
    fn factors_of(&self, shape: &Shape, device: &Device) -> Result<Tensor> {
        let mut out = vec![1.0; shape.elem_count()];
        self.scale(&mut out, columns(shape))?;
        Tensor::from_vec(out, shape, &Device::Cpu)?.to_device(device)
    }

    /// Multiplies rows of `columns` elements by their factors.
    fn scale(&self, out: &mut [f32], columns: usize) -> Result<()> {
        if columns == 0 {
            return Ok(());
        }
        if u32::try_from(out.len() / columns).is_err() {
            candle_core::bail!("dropout: {} rows, expected fewer than 2^32", out.len() / columns)
        }
        let rows = out.par_chunks_mut(columns).enumerate().with_min_len(ROWS_A_TASK);
        rows.for_each(|(row, x)| self.scale_row(row, 0, x));
        Ok(())
    }

    /// The numbers that decide which elements stay.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // the rate is between 0 and 1
    pub(crate) fn words(&self) -> DropoutWords {
        DropoutWords {
            key: self.key,
            stream: self.stream,
            threshold: (self.rate * 2f64.powi(32)) as u32,
            kept: (1.0 / (1.0 - self.rate)) as f32,
        }
    }

    /// Multiplies the elements of row `row`, starting at column `first`, by their factors.
    #[allow(clippy::cast_possible_truncation)] // rows and columns are below 2^32
    pub(crate) fn scale_row(&self, row: usize, first: usize, out: &mut [f32]) {
        let DropoutWords { key, stream, threshold, kept } = self.words();
        let stream = u128::from(stream[1]) << 32 | u128::from(stream[0]);
        let mut philox =
            Philox::new(key, stream << 64 | u128::from(row as u32) << 32 | u128::from((first / 4) as u32));
        // Four columns share a counter, and the first may be any of them.
        for _ in 0..first % 4 {
            philox.next_u32();
        }
        let mut words = [0; 256];
        for out in out.chunks_mut(words.len()) {
            let words = &mut words[..out.len()];
            philox.fill_u32(words);
            for (x, word) in out.iter_mut().zip(words) {
                *x = if *word < threshold { 0.0 } else { *x * kept };
            }
        }
    }
}

/// A [`Dropout`] as numbers: an element is dropped if its word under `key` and `stream` is below `threshold`, and
/// otherwise multiplied by `kept`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DropoutWords {
    pub(crate) key: [u32; 2],
    pub(crate) stream: [u32; 2],
    pub(crate) threshold: u32,
    pub(crate) kept: f32,
}

/// The number of rows that a thread takes at a time.
const ROWS_A_TASK: usize = 16;

#[allow(clippy::cast_possible_truncation)] // the two halves of the word
fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

fn columns(shape: &Shape) -> usize {
    shape.dims().last().copied().unwrap_or(1)
}

/// Dropout of a contiguous f32 tensor. It is linear, so its backward pass is the same operation.
impl CpuOp<1> for Dropout {
    const NAME: &'static str = "dropout";

    fn forward(&self, [x]: [CpuInput; 1]) -> Result<(CpuStorage, Shape)> {
        let mut out = x.slice()?.to_vec();
        self.scale(&mut out, columns(x.shape()))?;
        Ok((CpuStorage::F32(out), x.shape().clone()))
    }

    fn backward(&self, [_]: [&Tensor; 1], _: &Tensor, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(self.apply(grad)?)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Var};

    fn ones(dims: (usize, usize)) -> Tensor {
        Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap()
    }

    #[test]
    fn the_rate_is_kept_and_the_mean_stays() {
        for rate in [0.1, 0.5, 0.9] {
            let x = Dropout::new(rate, 7, 3).unwrap().apply(&ones((500, 401))).unwrap();
            let x: Vec<f32> = x.flatten_all().unwrap().to_vec1().unwrap();
            let n = x.len() as f64;
            let dropped = x.iter().filter(|&&x| x == 0.0).count() as f64 / n;
            let kept = 1.0 / (1.0 - rate);
            assert!(x.iter().all(|&x| x == 0.0 || (f64::from(x) - kept).abs() < 1e-6));
            // Four standard deviations of the share in n draws.
            let deviation = (rate * (1.0 - rate) / n).sqrt();
            assert!((dropped - rate).abs() < 4.0 * deviation, "{dropped} of {rate}");
            let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
            assert!((mean - 1.0).abs() < 4.0 * deviation * kept, "{mean}");
        }
    }

    #[test]
    fn a_mask_depends_on_seed_stream_and_place_alone() {
        let mask = |seed, stream, dims| -> Vec<Vec<f32>> {
            Dropout::new(0.5, seed, stream).unwrap().apply(&ones(dims)).unwrap().to_vec2().unwrap()
        };
        let a = mask(1, 2, (8, 103));
        assert_eq!(a, mask(1, 2, (8, 103)));
        assert_ne!(a, mask(2, 2, (8, 103)));
        assert_ne!(a, mask(1, 3, (8, 103)));
        assert_ne!(a[0], a[1]);
        // Part of a row, or fewer rows, draw the same mask as within the whole tensor.
        for first in 16..24 {
            for len in [0, 1, 2, 3, 4, 5, 50] {
                let mut part = vec![1.0; len];
                Dropout::new(0.5, 1, 2).unwrap().scale_row(3, first, &mut part);
                assert_eq!(part, a[3][first..first + len], "{len} from {first} on");
            }
        }
        let wide = mask(1, 2, (2, 1100));
        for first in [0, 1, 2, 3, 259] {
            let mut part = vec![1.0; 800];
            Dropout::new(0.5, 1, 2).unwrap().scale_row(1, first, &mut part);
            assert_eq!(part, wide[1][first..first + 800], "from {first} on");
        }
        assert_eq!(mask(1, 2, (2, 103)), a[..2]);
    }

    #[test]
    fn the_gradient_meets_the_same_mask() {
        let dropout = Dropout::new(0.3, 5, 0).unwrap();
        for dtype in [DType::F32, DType::F64] {
            let x = Var::from_tensor(&ones((7, 33)).to_dtype(dtype).unwrap()).unwrap();
            let y = dropout.apply(&x).unwrap();
            let gradient = y.sum_all().unwrap().backward().unwrap().get(&x).unwrap().clone();
            let values = |x: &Tensor| x.to_dtype(DType::F64).unwrap().to_vec2::<f64>().unwrap();
            assert_eq!(values(&gradient), values(&y), "{dtype:?}");
        }
    }

    #[test]
    fn nothing_is_dropped_at_rate_0_and_other_rates_are_refused() {
        let x = ones((3, 5));
        let y = Dropout::new(0.0, 1, 1).unwrap().apply(&x).unwrap();
        assert_eq!(y.to_vec2::<f32>().unwrap(), x.to_vec2::<f32>().unwrap());
        for rate in [-0.1, 1.0, f64::NAN] {
            let error = Dropout::new(rate, 0, 0).unwrap_err().to_string();
            assert!(error.contains("at least 0 and below 1"), "{error}");
        }
    }

    /// Whether each element is not 0.
    fn kept(x: &Tensor) -> Vec<bool> {
        let x = x.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
        x.to_vec1::<f32>().unwrap().into_iter().map(|x| x != 0.0).collect()
    }

    #[test]
    fn every_dtype_meets_the_same_mask() {
        let dropout = Dropout::new(0.4, 5, 9).unwrap();
        let expected = kept(&dropout.apply(&ones((9, 33))).unwrap());
        for dtype in [DType::F16, DType::BF16, DType::F64] {
            let dropped = dropout.apply(&ones((9, 33)).to_dtype(dtype).unwrap()).unwrap();
            assert_eq!(dropped.dtype(), dtype);
            assert_eq!(kept(&dropped), expected, "{dtype:?}");
        }
    }
}
