//! Writes tensors to a safetensors file whose bytes depend only on the tensors and metadata.
//!
//! The file has the same layout as the safetensors crate's: eight bytes with the header's length, the header as JSON,
//! then the tensors without gaps, widest dtype first, then by name. That crate takes the metadata as a `HashMap`,
//! whose order changes from run to run; here it is sorted by key. That crate's own function would also replace the
//! file at `path` with a new one on which nobody holds the lock; see [`atomic::stage`](crate::atomic::stage).

use crate::open_regular;
use ::safetensors::tensor::{Dtype, Metadata, TensorInfo};
use candle_core::{DType, Device, Error, Result, Tensor};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

/// The header's key for the metadata; no tensor may have this name.
const METADATA: &str = "__metadata__";
/// The longest header that readers accept.
const LONGEST_HEADER: usize = 100_000_000;

/// Writes named tensors and text metadata to a safetensors file at `path`, which the caller may rename
/// once it is complete. The same tensors and metadata give the same bytes, in any order.
///
/// The tensors keep their dtype and may lie on any device, with any strides. They are copied one at a time. All of their
/// numbers must be finite; [`write_any_safetensors`] also writes others.
///
/// # Shapes
/// each tensor of any shape, stored as it is
///
/// # Errors
/// When two tensors or two metadata entries have the same name, or a tensor is called `__metadata__` or has a dtype
/// that Candle cannot copy out; these errors leave `path` untouched. Also when a number is NaN or infinite or `path` cannot
/// be written (the error names the tensor or the path), which may leave part of a file behind.
pub fn write_safetensors(
    path: &Path,
    tensors: &[(&str, &Tensor)],
    metadata: &[(&str, String)],
) -> Result<()> {
    write(path, tensors, metadata, Numbers::Finite)
}

/// Like [`write_safetensors`], for tensors that may hold NaN and infinity, such as scores of hidden keys.
///
/// # Shapes
/// each tensor of any shape, stored as it is
///
/// # Errors
/// Same as [`write_safetensors`], but any number is allowed.
pub fn write_any_safetensors(
    path: &Path,
    tensors: &[(&str, &Tensor)],
    metadata: &[(&str, String)],
) -> Result<()> {
    write(path, tensors, metadata, Numbers::Any)
}

/// The numbers that a file may hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbers {
    Finite,
    Any,
}

fn write(
    path: &Path,
    tensors: &[(&str, &Tensor)],
    metadata: &[(&str, String)],
    numbers: Numbers,
) -> Result<()> {
    refuse_twice("tensor", tensors.iter().map(|(name, _)| *name))?;
    refuse_twice("metadata entry", metadata.iter().map(|(key, _)| *key))?;
    let mut tensors = tensors.to_vec();
    tensors.sort_by_key(|(name, tensor)| order(name, tensor.dtype()));
    let entries = tensors.iter().map(|(name, of)| TensorEntry { name, dtype: of.dtype(), shape: of.dims() });
    let header = header(entries, metadata)?;

    let failed = |e: io::Error| Error::from(e).with_path(path);
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
    out.write_all(&header).map_err(failed)?;
    for (name, tensor) in &tensors {
        write_data(&mut out, name, tensor, numbers)?.map_err(failed)?;
    }
    out.flush().map_err(failed)
}

/// A tensor in the header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TensorEntry<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: DType,
    pub(crate) shape: &'a [usize],
}

/// The order of tensors in a file. Wide dtypes come first: each tensor then starts at a multiple of its dtype's size.
pub(crate) fn order(name: &str, dtype: DType) -> (Reverse<Dtype>, &str) {
    (Reverse(Dtype::from(dtype)), name)
}

/// Writes the numbers of a tensor. The inner result is that of writing.
pub(crate) fn write_data(
    out: &mut impl Write,
    name: &str,
    tensor: &Tensor,
    numbers: Numbers,
) -> Result<io::Result<()>> {
    // Candle's copy to bytes panics on failure, so the steps that can fail come first.
    let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?;
    let bytes = ::safetensors::View::data(&tensor);
    if numbers == Numbers::Finite && !all_finite(tensor.dtype(), &bytes) {
        candle_core::bail!(
            "write_safetensors: tensor {name:?} holds NaN or infinity in {}; expected finite numbers",
            tensor.dtype().as_str()
        )
    }
    Ok(out.write_all(&bytes))
}

/// Whether all numbers are finite, from their bytes as in a file. In NaN and infinity, all bits of the exponent are set; the
/// 8-bit floats have no infinity, and a NaN also sets the mantissa.
fn all_finite(dtype: DType, bytes: &[u8]) -> bool {
    match dtype {
        DType::F32 => none_sets(bytes, |x| u32::from_le_bytes(x) & 0x7f80_0000 == 0x7f80_0000),
        DType::F16 => none_sets(bytes, |x| u16::from_le_bytes(x) & 0x7c00 == 0x7c00),
        DType::BF16 => none_sets(bytes, |x| u16::from_le_bytes(x) & 0x7f80 == 0x7f80),
        DType::F64 => {
            none_sets(bytes, |x| u64::from_le_bytes(x) & 0x7ff0_0000_0000_0000 == 0x7ff0_0000_0000_0000)
        }
        DType::F8E4M3 => none_sets(bytes, |[x]: [u8; 1]| x & 0x7f == 0x7f),
        _ => true,
    }
}

/// Whether `is_set` is false for every number of N bytes.
fn none_sets<const N: usize>(bytes: &[u8], is_set: impl Fn([u8; N]) -> bool) -> bool {
    // A part without an early exit compiles to vector instructions.
    const PART: usize = 1 << 12;
    let (numbers, _) = bytes.as_chunks::<N>();
    !numbers.chunks(PART).any(|part| part.iter().fold(false, |any, x| any | is_set(*x)))
}

pub(crate) fn refuse_twice<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            candle_core::bail!("write_safetensors: two {what}s are called {name:?}")
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct SafetensorsHeader<'a> {
    #[serde(rename = "__metadata__")]
    metadata: BTreeMap<&'a str, &'a str>,
    #[serde(flatten)]
    tensors: Metadata,
}

/// Refuses a tensor that no file can hold.
pub(crate) fn check(name: &str, dtype: DType) -> Result<()> {
    if name == METADATA {
        candle_core::bail!(
            "write_safetensors: no tensor can be called {METADATA:?}, which is where the metadata stands"
        )
    }
    if matches!(dtype, DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0) {
        candle_core::bail!(
            "write_safetensors: tensor {name:?} has dtype {dtype:?}, which Candle cannot copy out"
        )
    }
    Ok(())
}

/// The header's JSON for tensors in this order, padded with spaces to a multiple of 8 bytes.
pub(crate) fn header<'a>(
    entries: impl Iterator<Item = TensorEntry<'a>>,
    metadata: &[(&str, String)],
) -> Result<Vec<u8>> {
    let mut end = 0;
    let mut infos = vec![];
    for TensorEntry { name, dtype, shape } in entries {
        check(name, dtype)?;
        let start = end;
        end += shape.iter().product::<usize>() * dtype.size_in_bytes();
        let dtype = dtype.into();
        let shape = shape.to_vec();
        infos.push((name.to_owned(), TensorInfo { dtype, shape, data_offsets: (start, end) }));
    }
    let metadata = metadata.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let header = SafetensorsHeader { metadata, tensors: Metadata::new(None, infos)? };
    let mut header = serde_json::to_vec(&header).map_err(Error::wrap)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() > LONGEST_HEADER {
        candle_core::bail!(
            "write_safetensors: a header of {} bytes, where readers take {LONGEST_HEADER}: write fewer tensors or less metadata",
            header.len()
        )
    }
    Ok(header)
}

/// The metadata of a whole safetensors file; `None` if it ends early.
pub(crate) fn metadata(path: &Path) -> io::Result<Option<HashMap<String, String>>> {
    let mut file = open_regular(path)?;
    let size = file.metadata()?.len();
    let mut start = [0; 8];
    file.read_exact(&mut start)?;
    let length = u64::from_le_bytes(start);
    if length > size.min(LONGEST_HEADER as u64) {
        return Ok(None);
    }
    let mut bytes = vec![];
    file.take(length).read_to_end(&mut bytes)?;
    let Ok(metadata) = serde_json::from_slice::<Metadata>(&bytes) else { return Ok(None) };
    let whole = (8 + length).checked_add(metadata.data_len() as u64);
    Ok((whole == Some(size)).then(|| metadata.metadata().clone().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::safetensors::SafeTensors;
    use std::collections::HashMap;
    use std::fs;
    use std::path::PathBuf;

    /// A temporary folder for one test, removed at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> io::Result<Self> {
            let path = std::env::temp_dir().join(format!("gpt2-files-{name}-{}", std::process::id()));
            fs::create_dir_all(&path)?;
            Ok(Self(path))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn tensors_come_back_with_their_metadata() -> Result<()> {
        let folder = Folder::new("round-trip")?;
        let path = folder.0.join("attention.safetensors");
        let f32s = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu)?;
        let strided = f32s.t()?;
        let halves = f32s.to_dtype(DType::F16)?;
        // One row of three bytes: a tensor after this u8 tensor would start at an odd offset.
        let bytes = Tensor::new(&[7u8, 8, 9], &Device::Cpu)?;
        let (none, one) =
            (Tensor::zeros((0, 2), DType::F64, &Device::Cpu)?, Tensor::new(5i64, &Device::Cpu)?);
        let metadata = [("prompt", "a \"b\"\n".to_owned()), ("model", "gpt2".to_owned())];
        // The second write overwrites the first.
        for _ in 0..2 {
            let tensors = [
                ("a.bytes", &bytes),
                ("h.0.attn", &f32s),
                ("strided", &strided),
                ("halves", &halves),
                ("narrow", &f32s.narrow(0, 1, 1)?),
                ("none", &none),
                ("one", &one),
            ];
            write_safetensors(&path, &tensors, &metadata)?;
        }
        let back = candle_core::safetensors::load(&path, &Device::Cpu)?;
        assert_eq!(back.len(), 7);
        assert_eq!(back["h.0.attn"].to_vec2::<f32>()?, f32s.to_vec2::<f32>()?);
        assert_eq!(back["strided"].to_vec2::<f32>()?, [[1., 4.], [2., 5.], [3., 6.]]);
        assert_eq!(back["narrow"].to_vec2::<f32>()?, [[4., 5., 6.]]);
        assert_eq!(back["halves"].dtype(), DType::F16);
        assert_eq!(back["halves"].to_dtype(DType::F32)?.to_vec2::<f32>()?, f32s.to_vec2::<f32>()?);
        assert_eq!(back["a.bytes"].to_vec1::<u8>()?, [7, 8, 9]);
        assert_eq!((back["none"].dims(), back["one"].to_scalar::<i64>()?), (&[0, 2][..], 5));

        let (_, header) = SafeTensors::read_metadata(&fs::read(&path)?)?;
        let found = header.metadata().clone().unwrap_or_default();
        assert_eq!(found, metadata.map(|(k, v)| (k.to_owned(), v)).into());
        Ok(())
    }

    #[test]
    fn the_bytes_depend_on_nothing_but_names_and_values() -> Result<()> {
        let folder = Folder::new("same-bytes")?;
        let x = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
        let y = x.to_dtype(DType::U8)?;
        let z = x.to_dtype(DType::F16)?;
        let mut tensors = [("y", &y), ("b", &x), ("z", &z), ("a", &x)];
        let mut metadata =
            ["tokens", "model", "ids", "heads", "gpt2", "layers"].map(|k| (k, format!("of {k}")));
        let mut files = vec![];
        for name in ["one", "two"] {
            let path = folder.0.join(name);
            write_safetensors(&path, &tensors, &metadata)?;
            files.push(fs::read(&path)?);
            tensors.reverse();
            metadata.reverse();
        }
        assert_eq!(files[0], files[1]);
        let text = String::from_utf8_lossy(&files[0]);
        let names = ["__metadata__", "gpt2", "heads", "ids", "layers", "model", "tokens", "a", "b", "z", "y"];
        let places: Vec<_> = names.iter().map(|name| text.find(&format!("\"{name}\":"))).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}: {text}");

        // With a single entry there is only one order, and the safetensors crate writes the same bytes.
        for entries in [0, 1] {
            let path = folder.0.join("like theirs");
            write_safetensors(&path, &tensors, &metadata[..entries])?;
            let map: HashMap<_, _> =
                metadata[..entries].iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
            assert_eq!(fs::read(&path)?, ::safetensors::serialize(tensors, Some(map))?, "{entries} entries");
        }
        Ok(())
    }

    #[test]
    fn names_that_cannot_be_told_apart_are_refused_before_a_file_is_there() -> Result<()> {
        let folder = Folder::new("refusals")?;
        let x = Tensor::zeros(1, DType::F32, &Device::Cpu)?;
        let path = folder.0.join("x.safetensors");
        let err = write_safetensors(&path, &[("x", &x), ("x", &x)], &[]).expect_err("twice").to_string();
        assert!(err.contains("two tensors") && err.contains("\"x\""), "{err}");
        let err = write_safetensors(&path, &[(METADATA, &x)], &[]).expect_err("taken").to_string();
        assert!(err.contains(METADATA), "{err}");
        assert!(write_safetensors(&path, &[], &[("k", String::new()), ("k", String::new())]).is_err());
        assert!(!path.exists());
        Ok(())
    }

    #[test]
    fn a_number_that_is_not_finite_is_refused_by_the_name_of_its_tensor() -> Result<()> {
        let folder = Folder::new("numbers")?;
        let path = folder.0.join("x.safetensors");
        // The largest numbers of each dtype are as good as any.
        let largest = [65504.0, 3.389_531_389_251_535_5e38, f64::from(f32::MAX), f64::MAX];
        let dtypes = [DType::F16, DType::BF16, DType::F32, DType::F64];
        for (dtype, largest) in dtypes.into_iter().zip(largest) {
            let mut numbers = vec![0.25f64; 10_001];
            (numbers[1], numbers[10_000]) = (-largest, largest);
            let sound = Tensor::new(numbers.clone(), &Device::Cpu)?.to_dtype(dtype)?;
            write_safetensors(&path, &[("sound", &sound)], &[])?;
            for (at, bad) in [(0, f64::NAN), (10_000, f64::INFINITY), (5000, f64::NEG_INFINITY)] {
                let mut numbers = numbers.clone();
                numbers[at] = bad;
                let damaged = Tensor::new(numbers, &Device::Cpu)?.to_dtype(dtype)?;
                let tensors = [("sound", &sound), ("h.0.damaged", &damaged)];
                let err = write_safetensors(&path, &tensors, &[]).expect_err("not finite").to_string();
                assert!(err.contains("h.0.damaged") && err.contains(dtype.as_str()), "{bad} at {at}: {err}");
                write_any_safetensors(&path, &tensors, &[])?;
                let back = candle_core::safetensors::load(&path, &Device::Cpu)?;
                let back: f64 = back["h.0.damaged"].get(at)?.to_dtype(DType::F64)?.to_scalar()?;
                assert_eq!(back.to_bits(), bad.to_bits());
            }
        }
        let integers = Tensor::new(&[u8::MAX, 0x7c, 0x7f], &Device::Cpu)?;
        write_safetensors(&path, &[("integers", &integers), ("i64", &integers.to_dtype(DType::I64)?)], &[])
    }

    #[test]
    fn a_path_that_cannot_be_written_is_named() -> Result<()> {
        let folder = Folder::new("paths")?;
        let x = Tensor::zeros(1, DType::F32, &Device::Cpu)?;
        let missing = folder.0.join("missing").join("x.safetensors");
        let err = write_safetensors(&missing, &[("x", &x)], &[]).expect_err("no folder").to_string();
        assert!(err.contains("missing"), "{err}");
        let err = write_safetensors(&folder.0, &[("x", &x)], &[]).expect_err("a folder").to_string();
        assert!(err.contains("gpt2-files-paths"), "{err}");
        Ok(())
    }
}
