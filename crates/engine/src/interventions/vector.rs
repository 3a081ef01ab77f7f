//! The vectors of `add`, from NumPy files or as numbers.

use super::options::{Steer, VectorSource};
use anyhow::{Context, bail};
use candle_core::{DType, Device, Tensor};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The longest header to read, in bytes: far more than one takes.
const LONGEST_HEADER: u64 = 1 << 16;

impl Steer {
    /// The vector (C) in f32, times its scale.
    ///
    /// # Errors
    /// When the file is no NumPy array of floats, or a number is not finite.
    pub(super) fn numbers(&self) -> anyhow::Result<Tensor> {
        match &self.vector {
            VectorSource::File { path, scale } => of_file(path, *scale),
            VectorSource::Numbers(numbers) => {
                let numbers = numbers.to_dtype(DType::F32)?.flatten_all()?;
                if !gpt2_model::finite::all_finite(&numbers)? {
                    bail!("the vector holds NaN or infinity");
                }
                Ok(numbers)
            }
        }
    }
}

fn of_file(path: &Path, scale: f64) -> anyhow::Result<Tensor> {
    let read = || -> anyhow::Result<Tensor> {
        check_length(path)?;
        Ok(Tensor::read_npy(path)?)
    };
    let vector = read().with_context(|| {
        format!("cannot read {} as a NumPy array (numpy.save writes one)", path.display())
    })?;
    if !matches!(vector.dtype(), DType::F16 | DType::F32 | DType::F64) {
        bail!("{}: holds {}, expected floats", path.display(), vector.dtype().as_str());
    }
    let vector = (vector.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()? * scale)?;
    if !gpt2_model::finite::all_finite(&vector)? {
        bail!("{}: holds NaN or infinity, or its product with {scale} overflows", path.display());
    }
    Ok(vector)
}

/// Refuses a file that is shorter than the array that its header announces.
fn check_length(path: &Path) -> anyhow::Result<()> {
    let file = gpt2_files::open_regular(path)?;
    let length = file.metadata()?.len();
    let mut start = vec![];
    File::take(file, LONGEST_HEADER).read_to_end(&mut start)?;
    let text = String::from_utf8_lossy(&start);
    if !start.starts_with(b"\x93NUMPY") {
        bail!("it does not begin as a NumPy file does");
    }
    let (_, shape) = text.split_once("'shape':").context("its header has no shape")?;
    let (_, shape) = shape.split_once('(').context("its shape has no parenthesis")?;
    let (shape, _) = shape.split_once(')').context("its shape does not end")?;
    let mut numbers = 1u64;
    for dim in shape.split(',').map(str::trim).filter(|dim| !dim.is_empty()) {
        let dim: u64 = dim.parse().context("its shape holds something else than numbers")?;
        numbers = numbers.checked_mul(dim).context("its shape is larger than any file")?;
    }
    // A number takes a byte at least.
    if numbers > length {
        bail!("its header announces {numbers} numbers, but the file has {length} bytes");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_announces_more_than_the_file_is_refused() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("v.npy");
        Tensor::zeros((3, 4), candle_core::DType::F32, &Device::Cpu)?.write_npy(&path)?;
        check_length(&path)?;
        let bytes = std::fs::read(&path)?;
        let refused = |bytes: &[u8], says: &str| -> anyhow::Result<()> {
            std::fs::write(&path, bytes)?;
            let error = check_length(&path).expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
            Ok(())
        };
        let at = bytes.windows(3).position(|part| part == b"3,4").expect("a shape");
        let mut larger = bytes.clone();
        larger[at..at + 3].copy_from_slice(b"999");
        refused(&larger, "announces")?;
        refused(b"not numpy", "begin")?;
        refused(b"\x93NUMPY {'shape': (99999999999, 99999999999), }", "larger than any file")?;
        refused(b"\x93NUMPY {'shape': (x,), }", "something else")
    }
}
