//! JSON of a file, and the error if it is none or another kind of file.

use crate::error::LoadError;
use crate::stored::bytes::Bytes;
use crate::stored::recognize::Kind;
use serde::Deserialize;
use std::path::Path;

/// The JSON value in `bytes`, and nothing after it; `expected` is what the file should hold.
pub(crate) fn read<'de, T: Deserialize<'de>>(
    path: &Path,
    bytes: &'de Bytes,
    expected: &'static str,
) -> Result<T, LoadError> {
    bytes.parse().map_err(|reason| match Kind::of(bytes) {
        Some(kind) if kind.is_damage() || !kind.may_be("JSON") => {
            LoadError::other_file(path, expected, &kind)
        }
        _ => LoadError::json(path, expected)(reason),
    })
}
