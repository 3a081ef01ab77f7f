//! A tokenizer's file, of bounded length.

use crate::json;
use serde::Deserialize;

/// The most bytes of a file; the largest vocabularies in use take a fifth of that.
const LARGEST_FILE: usize = 64 << 20;

/// Refuses a file that is larger than any tokenizer's.
pub(super) fn check_len(bytes: &[u8]) -> Result<(), String> {
    if bytes.len() <= LARGEST_FILE {
        return Ok(());
    }
    Err(format!("{} bytes; expected at most {LARGEST_FILE}", bytes.len()))
}

/// JSON into a value; the error names the field.
pub(super) fn read_json<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, String> {
    check_len(bytes)?;
    json::parse(bytes).map_err(|misfit| misfit.to_string())
}
