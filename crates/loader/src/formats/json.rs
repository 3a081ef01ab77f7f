//! JSON of a file, and the error if it is none or another kind of file.

use crate::error::LoadError;
use crate::stored::bytes::Bytes;
use crate::stored::recognize::FileKind;
use serde::Deserialize;
use std::path::Path;

/// The most bytes of a file of settings or of an index. The largest index in use has less than a hundredth of them.
const LONGEST: usize = 64 << 20;

/// The JSON value in `bytes`, and nothing after it; `expected` is what the file should hold.
pub(crate) fn read<'de, T: Deserialize<'de>>(
    path: &Path,
    bytes: &'de Bytes,
    expected: &'static str,
) -> Result<T, LoadError> {
    if bytes.len() > LONGEST {
        return Err(another(path, bytes, expected).unwrap_or_else(|| {
            let reason = format!("has {} bytes, more than {LONGEST}", bytes.len());
            LoadError::json(path, expected)(reason)
        }));
    }
    bytes.parse().map_err(|reason| {
        another(path, bytes, expected).unwrap_or_else(|| LoadError::json(path, expected)(reason))
    })
}

/// The error for a file that is of another kind by its first bytes; `None` for one that may be meant as JSON.
pub(crate) fn another(path: &Path, bytes: &[u8], expected: &'static str) -> Option<LoadError> {
    let kind = FileKind::of(bytes).filter(|kind| kind.is_damage() || !kind.may_be("JSON"))?;
    Some(LoadError::other_file(path, expected, &kind))
}
