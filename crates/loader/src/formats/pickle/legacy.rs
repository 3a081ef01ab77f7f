//! Files from before PyTorch 1.6: pickles of a magic number, a version, the machine, the object and the storages' keys, one after
//! another, and then the storages.

use super::archive::big_endian;
use super::machine;
use super::object::{Object, Pickle};
use super::tensors::storage_of;
use crate::error::refusal::Refusal;
use std::collections::BTreeMap;
use std::ops::Range;

/// The first pickle's number, 0x1950a86a20f9469cfc6c.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const VERSION: i64 = 1001;

/// The pickle of the object, and the place of each storage by its key.
pub(super) struct Legacy<'a> {
    pub(super) pickle: Pickle<'a>,
    pub(super) storages: BTreeMap<&'a str, Range<usize>>,
}

/// Whether these are pickles of protocol 2 or later, of whatever program.
pub(super) fn is_pickle(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80, 2..=5, ..])
}

/// Reads the pickles, each of at most `longest` bytes, and finds the storages.
pub(super) fn read(bytes: &[u8], longest: usize) -> Result<Legacy<'_>, Refusal> {
    let mut at = 0;
    let mut next = |name: &str| {
        let rest = &bytes[at..];
        let pickle = machine::read(&rest[..rest.len().min(longest)], name)?;
        at += pickle.len;
        Ok::<_, String>(pickle)
    };
    let first = next("the first pickle")?;
    if !matches!(first.root, Object::Long(number) if number == MAGIC) {
        return Err(Refusal::Unread(
            "a pickle that torch.save did not write; expected weights that torch.save or safetensors wrote"
                .into(),
        ));
    }
    let version = next("the version")?.root;
    if !matches!(version, Object::Int(VERSION)) {
        return Err(
            format!("its version is not {VERSION}, the only one of files from before PyTorch 1.6").into()
        );
    }
    let machine = next("the machine's description")?;
    let order = machine.dict(&machine.root).into_iter().flatten();
    if order.into_iter().any(|entry| matches!(entry, (Object::Text("little_endian"), Object::Bool(false)))) {
        return Err(big_endian());
    }
    let pickle = next("the object's pickle")?;
    let keys = next("the list of storages")?;
    let Object::List(keys_at) = keys.root else { return Err("there is no list of storages".into()) };

    let mut described = BTreeMap::new();
    for outside in &pickle.outside {
        // Whole modules name their source code in the same way; it is not needed.
        if let Ok(storage) = storage_of(outside) {
            described.insert(storage.key, storage);
        }
    }
    let mut storages = BTreeMap::new();
    for key in &keys.lists[keys_at] {
        let &Object::Text(key) = key else { return Err("a storage's key is no text".into()) };
        let storage = described.get(key).ok_or_else(|| format!("storage {key} is of no tensor"))?;
        let short =
            || format!("storage {key} goes beyond the end of the file, which has {} bytes", bytes.len());
        let len = bytes[at..].first_chunk().ok_or_else(short)?;
        let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| short())?;
        if storage.len.is_some_and(|expected| expected != len) {
            return Err(format!("storage {key} has {len} numbers, and its description says others").into());
        }
        at += 8;
        let end = len.checked_mul(storage.size).and_then(|len| at.checked_add(len));
        let end = end.filter(|end| *end <= bytes.len()).ok_or_else(short)?;
        if storages.insert(key, at..end).is_some() {
            return Err(format!("storage {key} is there twice").into());
        }
        at = end;
    }
    Ok(Legacy { pickle, storages })
}
