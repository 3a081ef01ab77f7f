//! Tensors of a `pytorch_model.bin`: a zip of uncompressed storages and a pickle that names them.
//!
//! Candle's pickle machine reads the objects and runs none of them. The walk over them is here, because
//! Candle's own skips what it does not know (the bool buffers of GPT-2) with a line on stderr and
//! indexes into short argument lists.

use crate::checkpoint::Stored;
use crate::{Bytes, LoadError, TensorInfo};
use candle_core::pickle::{Object, Stack};
use safetensors::Dtype;
use std::io::{BufReader, Cursor, Read};
use std::path::Path;

const FORMAT: &str = "PyTorch zip";

/// Every tensor of the state dictionary; only the pickle is read.
pub(crate) fn read(path: &Path) -> Result<Vec<Stored>, LoadError> {
    let bytes = Bytes::map(path)?;
    read_archive(path, &bytes).map_err(|reason| LoadError::damaged(path, FORMAT, &bytes, reason))
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
    zip.by_name(&pickle_name)
        .map_err(|e| e.to_string())?
        .take(bytes.len() as u64) // a stored entry is never longer than its archive
        .read_to_end(&mut pickle)
        .map_err(|e| e.to_string())?;
    let mut stack = Stack::empty();
    stack.read_loop(&mut BufReader::new(Cursor::new(pickle))).map_err(|e| e.to_string())?;
    let Object::Dict(entries) = stack.finalize().map_err(|e| e.to_string())? else {
        return Err("the pickle holds no state dictionary".into());
    };

    let mut tensors = Vec::new();
    for (key, value) in entries {
        // A state dictionary carries a `_metadata` entry beside its tensors.
        let Object::Unicode(name) = key else { continue };
        let Some(view) = tensor_view(value).map_err(|e| format!("tensor {name}: {e}"))? else { continue };
        let range = storage(&mut zip, &format!("{folder}/{}", view.storage))
            .and_then(|file| view.range(&file))
            .map_err(|e| format!("tensor {name}: {e}"))?;
        let info = TensorInfo { name, dtype: view.dtype, shape: view.shape, file: path.to_path_buf() };
        tensors.push(Stored { info, bytes: bytes.clone(), range });
    }
    Ok(tensors)
}

/// Where an uncompressed entry lies in the archive.
fn storage<R: Read + std::io::Seek>(
    zip: &mut zip::ZipArchive<R>,
    name: &str,
) -> Result<std::ops::Range<usize>, String> {
    let entry = zip.by_name(name).map_err(|e| format!("storage {name}: {e}"))?;
    if entry.compression() != zip::CompressionMethod::Stored {
        return Err(format!("storage {name} is compressed; PyTorch stores its tensors plain"));
    }
    let start = entry.data_start().ok_or("the archive does not say where its data lies")?;
    let to_usize = |n: u64| usize::try_from(n).map_err(|e| e.to_string());
    Ok(to_usize(start)?..to_usize(start.saturating_add(entry.size()))?)
}

/// A tensor as a view of a storage, from `_rebuild_tensor_v2(storage, offset, size, stride, ..)`.
struct TensorView {
    storage: String,
    dtype: Dtype,
    offset: usize,
    shape: Vec<usize>,
}

impl TensorView {
    fn range(&self, storage: &std::ops::Range<usize>) -> Result<std::ops::Range<usize>, String> {
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
fn tensor_view(value: Object) -> Result<Option<TensorView>, String> {
    let Object::Reduce { callable, args } = value else { return Ok(None) };
    let (Object::Class { class_name, .. }, Object::Tuple(args)) = (*callable, *args) else {
        return Err("not a tensor that torch.save writes".into());
    };
    match class_name.as_str() {
        "_rebuild_tensor_v2" => {}
        "_rebuild_parameter" => {
            return tensor_view(args.into_iter().next().ok_or("a parameter without its tensor")?);
        }
        other => return Err(format!("{other} is not supported")),
    }
    let [Object::PersistentLoad(storage), offset, size, stride, ..] = args.as_slice() else {
        return Err("the arguments of _rebuild_tensor_v2 are not what torch.save writes".into());
    };
    // ('storage', torch.FloatStorage, key, location, element count)
    let Object::Tuple(storage) = &**storage else { return Err("its storage has no description".into()) };
    let [_, Object::Class { class_name, .. }, Object::Unicode(key), ..] = storage.as_slice() else {
        return Err("its storage's description is not what torch.save writes".into());
    };
    let dtype = match class_name.as_str() {
        "FloatStorage" => Dtype::F32,
        "DoubleStorage" => Dtype::F64,
        "HalfStorage" => Dtype::F16,
        "BFloat16Storage" => Dtype::BF16,
        "ByteStorage" => Dtype::U8,
        "BoolStorage" => Dtype::BOOL,
        "IntStorage" => Dtype::I32,
        "LongStorage" => Dtype::I64,
        other => return Err(format!("{other} is not supported")),
    };
    let (shape, stride) = (numbers(size)?, numbers(stride)?);
    let mut contiguous = 1;
    for (&d, &s) in shape.iter().zip(&stride).rev() {
        if d != 1 && s != contiguous {
            return Err(format!("shape {shape:?} with strides {stride:?} is not contiguous; save it again"));
        }
        contiguous = s.saturating_mul(d);
    }
    if shape.len() != stride.len() {
        return Err("it has more dimensions than strides, or fewer".into());
    }
    Ok(Some(TensorView { storage: key.clone(), dtype, offset: number(offset)?, shape }))
}

fn numbers(object: &Object) -> Result<Vec<usize>, String> {
    match object {
        Object::Tuple(items) => items.iter().map(number).collect(),
        other => Err(format!("expected a tuple of sizes, got {other:?}")),
    }
}

fn number(object: &Object) -> Result<usize, String> {
    let n = match object {
        Object::Int(n) => i64::from(*n),
        Object::Long(n) => *n,
        other => return Err(format!("expected a size, got {other:?}")),
    };
    usize::try_from(n).map_err(|_| format!("expected a size, got {n}"))
}
