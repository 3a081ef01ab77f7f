//! Tensors that `torch.save` wrote: a zip of storages and a pickle that names them, or, before PyTorch 1.6, pickles and then the
//! storages.
//!
//! `file -> pickle -> objects -> views of storages -> ranges of the file`. This reader runs nothing in the
//! file, and trusts no size before checking it.
//!
//! Candle also has such a reader, `candle_core::pickle`, for trusted files: it allocates as much as a length claims
//! before reading, copies shared objects, leaves out tensors that it cannot read, and opens the archive again for
//! each tensor. This one reads files that anybody may have uploaded: the file's length limits time and memory, an
//! error names the tensor, it compares checksums, and data goes straight into a tensor's own memory.

mod archive;
mod legacy;
mod machine;
mod object;
mod tensors;

use crate::error::LoadError;
use crate::error::refusal::Refusal;
use crate::stored::bytes::Bytes;
use crate::stored::{Stored, TensorInfo, ZipEntry};
use archive::Archive;
use object::{Object, Pickle};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub(crate) const FORMAT: &str = "PyTorch";
/// A tensor takes about 150 bytes of pickle, so this is enough for tens of thousands of them.
const LONGEST_PICKLE: usize = 4 << 20;
/// The key under which nanoGPT keeps a model's sizes.
const SIZES: &str = "model_args";

/// The contents of a file of `torch.save`.
pub(crate) struct Saved {
    /// Each dictionary of tensors and the keys that lead to it, the outermost first, whose key is empty.
    pub(crate) dicts: Vec<(String, Vec<Stored>)>,
    /// nanoGPT's `model_args`: the numbers and bools in it.
    pub(crate) sizes: Option<BTreeMap<String, i64>>,
}

/// The tensors of the state dictionary, or of the first one inside; reads only the pickle.
pub(crate) fn read(path: &Path, bytes: &Bytes) -> Result<Vec<Stored>, LoadError> {
    let dicts = read_all(path, bytes)?.dicts;
    Ok(dicts.into_iter().next().map(|(_, tensors)| tensors).unwrap_or_default())
}

/// Every dictionary of tensors in the file; reads only the pickle.
pub(crate) fn read_all(path: &Path, bytes: &Bytes) -> Result<Saved, LoadError> {
    saved(path, bytes).map_err(|refusal| LoadError::refused(path, FORMAT, bytes, refusal))
}

fn saved(path: &Path, bytes: &Bytes) -> Result<Saved, Refusal> {
    if legacy::is_pickle(bytes) {
        let legacy = legacy::read(bytes, LONGEST_PICKLE)?;
        let place = |key: &str| {
            let range = legacy.storages.get(key).cloned();
            range.map(StoragePlace::Bare).ok_or_else(|| format!("storage {key} is not in the file").into())
        };
        return collect(path, bytes, &legacy.pickle, place);
    }
    let (mut archive, pickle) = Archive::open(bytes, LONGEST_PICKLE as u64)?;
    let pickle = Archive::read(&pickle)?;
    let mut entries: BTreeMap<String, Arc<ZipEntry>> = BTreeMap::new();
    let place = |key: &str| {
        if let Some(entry) = entries.get(key) {
            return Ok(StoragePlace::Entry(Arc::clone(entry)));
        }
        let entry = Arc::new(archive.storage(key)?);
        entries.insert(key.to_string(), Arc::clone(&entry));
        Ok(StoragePlace::Entry(entry))
    };
    collect(path, bytes, &pickle, place)
}

/// A storage in the file.
enum StoragePlace {
    Entry(Arc<ZipEntry>),
    Bare(Range<usize>),
}

/// The dictionaries of a pickle, with each tensor's place in the file.
fn collect(
    path: &Path,
    bytes: &Bytes,
    pickle: &Pickle,
    mut place: impl FnMut(&str) -> Result<StoragePlace, Refusal>,
) -> Result<Saved, Refusal> {
    if !matches!(pickle.root, Object::Dict(_)) && pickle.dict(&pickle.root).is_none_or(Vec::is_empty) {
        return Err(no_dictionary(&pickle.root));
    }
    let mut dicts = vec![];
    for (key, tensors) in tensors::dicts(pickle)? {
        let mut names = BTreeSet::new();
        let mut stored = vec![];
        for (name, view) in tensors {
            let failed = |e: String| format!("tensor {name}: {e}");
            if !names.insert(name) {
                return Err(format!("tensor {name} is there twice").into());
            }
            let (range, entry) = match view.storage {
                None => (0..0, None),
                Some(storage) => match place(storage.key).map_err(|e| e.of(&format!("tensor {name}")))? {
                    StoragePlace::Bare(bare) => (view.range(storage.size, &bare).map_err(failed)?, None),
                    StoragePlace::Entry(entry) => {
                        (view.range(storage.size, &entry.range).map_err(failed)?, Some(entry))
                    }
                },
            };
            let info =
                TensorInfo { name: name.into(), dtype: view.encoding, shape: view.shape, file: path.into() };
            let bytes = bytes.clone();
            stored.push(Stored { info, bytes, range, entry, strides: view.strides, transposed: false });
        }
        dicts.push((key, stored));
    }
    Ok(Saved { dicts, sizes: sizes(pickle) })
}

/// The error for a pickle of something else: what it is, and what to save instead.
fn no_dictionary(root: &Object) -> Refusal {
    let what = match root {
        Object::Instance(class, _) | Object::Call(class, _) => {
            format!(
                "a pickled object, {class}; load it with torch.load in the program that saved it, and save its state_dict()"
            )
        }
        Object::List(_) | Object::Tuple(_) => {
            "a pickled list; expected tensors by name, as state_dict() gives them".into()
        }
        _ => "a pickle that holds no state dictionary; expected tensors by name, as state_dict() gives them"
            .into(),
    };
    Refusal::Unread(what)
}

/// nanoGPT's sizes: what is a number or a bool beside the weights' own dictionary.
fn sizes(pickle: &Pickle) -> Option<BTreeMap<String, i64>> {
    let root = pickle.dict(&pickle.root)?;
    let (_, args) = root.iter().find(|(key, _)| matches!(key, Object::Text(SIZES)))?;
    let numbers = pickle.dict(args)?.iter().filter_map(|(key, value)| match (key, value) {
        (Object::Text(name), Object::Int(number)) => Some(((*name).to_string(), *number)),
        (Object::Text(name), Object::Bool(set)) => Some(((*name).to_string(), i64::from(*set))),
        _ => None,
    });
    Some(numbers.collect())
}
