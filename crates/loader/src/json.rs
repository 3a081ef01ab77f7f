//! Reads JSON into values; an error names the field that does not fit.

use serde::Deserialize;
use std::fmt;

/// Why JSON does not fit: where, and what is wrong there.
pub(crate) struct Misfit {
    /// The field; empty if it is the whole value.
    field: String,
    source: serde_json::Error,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "{}", self.source)
    }
}

/// Reads one value and nothing after it.
pub(crate) fn parse<'de, T: Deserialize<'de>>(json: &'de [u8]) -> Result<T, Misfit> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|e| {
        let field = match e.path().to_string() {
            whole if whole == "." => String::new(),
            field => field,
        };
        Misfit { field, source: e.into_inner() }
    })?;
    deserializer.end().map_err(|source| Misfit { field: String::new(), source })?;
    Ok(value)
}
