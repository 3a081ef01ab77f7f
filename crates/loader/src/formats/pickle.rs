//! Tensors of a `pytorch_model.bin`: a zip of uncompressed storages and a pickle that names them.
//!
//! `archive -> data.pkl -> objects -> views of storages -> ranges of the file`. This reader runs nothing in the
//! file, and trusts no size before checking it.
//!
//! Candle also has such a reader, `candle_core::pickle`, for trusted files: it allocates as much as a length claims
//! before reading, copies shared objects, leaves out tensors that it cannot read, and opens the archive again for
//! each tensor. This one reads files that anybody may have uploaded: the file's length limits time and memory, an
//! error names the tensor, it compares checksums, and data goes straight into a tensor's own memory.

use super::pickle_machine::{self, Object, Tuple};
use crate::error::LoadError;
use crate::stored::bytes::Bytes;
use crate::stored::{Encoding, Stored, TensorInfo, ZipEntry};
use safetensors::Dtype;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Cursor, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub(crate) const FORMAT: &str = "PyTorch zip";
/// A tensor takes about 150 bytes of pickle, so this is enough for tens of thousands of them.
const LONGEST_PICKLE: u64 = 4 << 20;
/// The length of the header before an entry's data, without its name, and the place of the two sizes in it.
const LOCAL_HEADER: usize = 30;
const LOCAL_SIZES: usize = 18;
/// GPT-2's buffers have four dimensions.
const MOST_DIMENSIONS: usize = 8;

/// Every tensor of the state dictionary; reads only the pickle.
pub(crate) fn read(path: &Path, bytes: &Bytes) -> Result<Vec<Stored>, LoadError> {
    read_archive(path, bytes).map_err(|reason| LoadError::damaged(path, FORMAT, bytes, reason))
}

fn read_archive(path: &Path, bytes: &Bytes) -> Result<Vec<Stored>, String> {
    let mut zip = zip::ZipArchive::new(Cursor::new(&bytes[..])).map_err(|e| {
        if bytes.starts_with(&[0x80, 2]) {
            "a pickle from before PyTorch 1.6; save it again with a newer PyTorch or as safetensors".into()
        } else {
            e.to_string()
        }
    })?;
    let pickle_name = (0..zip.len())
        .filter_map(|i| zip.by_index_raw(i).ok()?.name().ok().map(std::borrow::Cow::into_owned))
        .find(|name| name.ends_with("/data.pkl") || name == "data.pkl")
        .ok_or("there is no data.pkl inside")?;
    let folder = pickle_name.trim_end_matches(".pkl").to_string(); // storages lie in <folder>/<key>

    let mut pickle = Vec::new();
    let entry = zip.by_name(&pickle_name).map_err(|e| e.to_string())?;
    check_sizes(&entry, bytes)?;
    entry.take(LONGEST_PICKLE + 1).read_to_end(&mut pickle).map_err(|e| e.to_string())?;
    if pickle.len() as u64 > LONGEST_PICKLE {
        return Err(format!("{pickle_name} has more than {LONGEST_PICKLE} bytes, too many for GPT-2"));
    }
    let Object::Dict(state) = pickle_machine::read(&pickle)? else {
        return Err("the pickle holds no state dictionary".into());
    };

    let mut tensors = Vec::new();
    let mut names = BTreeSet::new();
    let mut entries = BTreeMap::new();
    for (key, value) in state.borrow().iter() {
        let &Object::Text(name) = key else { continue };
        let Some(view) = tensor_view(value).map_err(|e| format!("tensor {name}: {e}"))? else { continue };
        if !names.insert(name) {
            return Err(format!("tensor {name} is there twice"));
        }
        let failed = |e: String| format!("tensor {name}: {e}");
        if !entries.contains_key(view.storage) {
            let entry = storage(&mut zip, bytes, &format!("{folder}/{}", view.storage)).map_err(failed)?;
            entries.insert(view.storage, Arc::new(entry));
        }
        let entry = Arc::clone(&entries[view.storage]);
        let range = view.range(&entry.range).map_err(failed)?;
        let dtype = Encoding::Plain(view.dtype);
        let file = path.to_path_buf();
        let info = TensorInfo { name: name.into(), dtype, shape: view.shape, file };
        tensors.push(Stored { info, bytes: bytes.clone(), range, entry: Some(entry), transposed: false });
    }
    Ok(tensors)
}

/// Finds an uncompressed entry in the archive `bytes`.
fn storage<R: Read + std::io::Seek>(
    zip: &mut zip::ZipArchive<R>,
    bytes: &[u8],
    name: &str,
) -> Result<ZipEntry, String> {
    let entry = zip.by_name(name).map_err(|e| format!("storage {name}: {e}"))?;
    if entry.compression() != zip::CompressionMethod::Stored {
        return Err(format!("storage {name} is compressed; PyTorch stores its tensors plain"));
    }
    check_sizes(&entry, bytes)?;
    let len = bytes.len();
    let start = entry.data_start().ok_or("the archive does not say where its data lies")?;
    let to_usize = |n: u64| usize::try_from(n).map_err(|e| e.to_string());
    let (start, end) = (to_usize(start)?, to_usize(start.saturating_add(entry.size()))?);
    if end > len {
        return Err(format!("storage {name} ends at byte {end} of a file of {len} bytes"));
    }
    Ok(ZipEntry { name: name.into(), range: start..end, crc32: entry.crc32() })
}

/// Refuses an entry whose sizes contradict one another: those of the archive's directory, and those that stand before its data.
fn check_sizes<R: Read>(entry: &zip::read::ZipFile<'_, R>, bytes: &[u8]) -> Result<(), String> {
    let (name, size, stored) =
        (entry.name().map_err(|e| e.to_string())?, entry.size(), entry.compressed_size());
    if entry.compression() == zip::CompressionMethod::Stored && size != stored {
        return Err(format!("{name} is stored plain, but the archive gives it {stored} bytes and {size}"));
    }
    let header =
        usize::try_from(entry.header_start()).ok().and_then(|at| bytes.get(at..)?.get(..LOCAL_HEADER));
    let field =
        |at: usize| header.and_then(|h| h.get(at..at + 4)?.try_into().ok()).map_or(0, u32::from_le_bytes);
    for (found, expected) in [(field(LOCAL_SIZES), stored), (field(LOCAL_SIZES + 4), size)] {
        // 0 says that the size follows the data, the largest number that it stands in a field for large files.
        if ![0, u32::MAX].contains(&found) && u64::from(found) != expected {
            return Err(format!("the archive gives {name} {expected} bytes, and its own header {found}"));
        }
    }
    Ok(())
}

/// A tensor as a view of a storage, from `_rebuild_tensor_v2(storage, offset, size, stride, ..)`.
struct TensorView<'a> {
    storage: &'a str,
    dtype: Dtype,
    offset: usize,
    shape: Vec<usize>,
}

impl TensorView<'_> {
    fn range(&self, storage: &Range<usize>) -> Result<Range<usize>, String> {
        let size = self.dtype.bitsize() / 8;
        let len = self.shape.iter().try_fold(size, |n, &d| n.checked_mul(d));
        let start = self.offset.checked_mul(size).and_then(|n| n.checked_add(storage.start));
        let end = start.zip(len).and_then(|(start, len)| start.checked_add(len));
        match (start, end) {
            (Some(start), Some(end)) if end <= storage.end => Ok(start..end),
            _ => Err(format!("shape {:?} at offset {} is outside its storage", self.shape, self.offset)),
        }
    }
}

/// `None` for an entry that is not a tensor.
fn tensor_view<'a>(value: &Object<'a>) -> Result<Option<TensorView<'a>>, String> {
    let Object::Call(function, args) = value else { return Ok(None) };
    match (function.module, function.name, args.items()) {
        ("torch._utils", "_rebuild_tensor_v2", [Object::Persistent(storage), offset, size, stride, ..]) => {
            let (storage, dtype) = described(storage)?;
            let shape = contiguous(size, stride)?;
            let offset = number(offset)?;
            Ok(Some(TensorView { storage, dtype, offset, shape }))
        }
        ("torch._utils", "_rebuild_parameter", [tensor, ..]) => tensor_view(tensor),
        ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_parameter", _) => {
            Err(format!("the arguments of {function} are not what torch.save writes"))
        }
        _ => Err(format!("{function} is not supported")),
    }
}

/// Key and dtype of `('storage', torch.FloatStorage, key, location, element count)`.
fn described<'a>(storage: &Tuple<'a>) -> Result<(&'a str, Dtype), String> {
    let [_, Object::Global(class), Object::Text(key), ..] = storage.items() else {
        return Err("its storage's description is not what torch.save writes".into());
    };
    let dtype = match (class.module, class.name) {
        ("torch", "FloatStorage") => Dtype::F32,
        ("torch", "DoubleStorage") => Dtype::F64,
        ("torch", "HalfStorage") => Dtype::F16,
        ("torch", "BFloat16Storage") => Dtype::BF16,
        ("torch", "ByteStorage") => Dtype::U8,
        ("torch", "BoolStorage") => Dtype::BOOL,
        ("torch", "IntStorage") => Dtype::I32,
        ("torch", "LongStorage") => Dtype::I64,
        _ => return Err(format!("{class} is not supported")),
    };
    Ok((key, dtype))
}

/// The shape of a tensor that lies in one piece.
fn contiguous(size: &Object, stride: &Object) -> Result<Vec<usize>, String> {
    let shape = numbers(size)?;
    let stride = numbers(stride)?;
    if shape.len() != stride.len() {
        return Err("it has more dimensions than strides, or fewer".into());
    }
    let mut expected = 1usize;
    for (&d, &s) in shape.iter().zip(&stride).rev() {
        // The stride of a dimension of 1 is never used.
        if d == 1 {
            continue;
        }
        if s != expected {
            return Err(format!("shape {shape:?} with strides {stride:?} is not contiguous; save it again"));
        }
        expected = s.saturating_mul(d);
    }
    Ok(shape)
}

fn numbers(object: &Object) -> Result<Vec<usize>, String> {
    match object {
        Object::Tuple(sizes) if sizes.items().len() <= MOST_DIMENSIONS => {
            sizes.items().iter().map(number).collect()
        }
        _ => Err(format!("expected a tuple of at most {MOST_DIMENSIONS} sizes")),
    }
}

fn number(object: &Object) -> Result<usize, String> {
    let &Object::Int(n) = object else { return Err("expected a size".into()) };
    usize::try_from(n).map_err(|_| format!("expected a size, got {n}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_tensor_in_one_piece_is_contiguous() -> Result<(), String> {
        let tuple = |sizes: &[i64]| -> Result<Object<'static>, String> {
            Ok(Object::Tuple(Tuple::new(sizes.iter().map(|&n| Object::Int(n)).collect())?))
        };
        for (shape, strides) in [
            (&[2, 3][..], &[3, 1][..]),
            (&[2, 3, 4], &[12, 4, 1]),
            // The stride of a dimension of one is never used.
            (&[1, 3], &[99, 1]),
            (&[1], &[99]),
            (&[], &[]),
            (&[2; 8], &[128, 64, 32, 16, 8, 4, 2, 1]),
        ] {
            let read = contiguous(&tuple(shape)?, &tuple(strides)?)?;
            assert_eq!(read.len(), shape.len());
        }
        for (shape, strides) in [
            (&[2, 3][..], &[4, 1][..]), // rows with a gap between them
            (&[2, 3], &[2, 1]),         // rows over one another
            (&[2, 3], &[1, 2]),         // transposed
            (&[2, 3], &[0, 1]),         // one row twice
            (&[2, 3], &[6, 2]),         // every other number
            (&[2], &[2]),
            (&[2, 3, 4], &[13, 4, 1]),
            (&[2, 3, 4], &[15, 5, 1]),
        ] {
            let refused = contiguous(&tuple(shape)?, &tuple(strides)?).expect_err("it has gaps");
            assert!(refused.contains("is not contiguous; save it again"), "{shape:?} {strides:?}: {refused}");
        }
        assert!(contiguous(&tuple(&[2, 3])?, &tuple(&[1])?).is_err());
        let nine = contiguous(&tuple(&[1; 9])?, &tuple(&[1; 9])?).expect_err("nine dimensions");
        assert_eq!(nine, "expected a tuple of at most 8 sizes");
        Ok(())
    }
}
