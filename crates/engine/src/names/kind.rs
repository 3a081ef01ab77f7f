//! What a file is, by its first bytes.

use gpt2_files::open_regular;
use std::io::Read;
use std::path::Path;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A whole model.
    Gguf,
    /// A file of a folder that is a model or an adapter.
    Part(&'static str),
    /// A program, such as this one.
    Program,
    /// Anything else.
    Other(&'static str),
}

/// The bytes by which a kind is told.
const START: u64 = 512;
/// The longest header that safetensors allows.
const LONGEST_HEADER: u64 = 100_000_000;

/// The kind of the file at `path`.
pub(crate) fn kind(path: &Path) -> std::io::Result<Kind> {
    let mut start = vec![];
    open_regular(path)?.take(START).read_to_end(&mut start)?;
    Ok(of(&start))
}

fn of(start: &[u8]) -> Kind {
    let begins = |with: &[u8]| start.starts_with(with);
    let has = |text: &[u8]| start.windows(text.len()).any(|part| part == text);
    let text = start.trim_ascii_start();
    match start {
        [] => Kind::Other("empty"),
        _ if begins(b"GGUF") => Kind::Gguf,
        _ if is_safetensors(start) => Kind::Part("weights (safetensors)"),
        _ if begins(b"PK\x03\x04") && has(b"data.pkl") => Kind::Part("weights (PyTorch)"),
        _ if begins(b"PK\x03\x04") && has(b".npy") => Kind::Other("an archive of NumPy arrays"),
        _ if begins(b"PK\x03\x04") => Kind::Other("a zip archive"),
        [0x80, 2..=5, ..] => Kind::Part("weights (a pickle)"),
        _ if begins(b"\x89HDF\r\n\x1a\n") => Kind::Other("an HDF5 file, as Keras writes weights"),
        _ if begins(b"\x93NUMPY") => Kind::Other("a NumPy array"),
        [0x1f, 0x8b, ..] => Kind::Other("compressed with gzip"),
        _ if begins(b"\x7fELF") || begins(b"#!") || begins(b"MZ") => Kind::Program,
        [0xcf | 0xca, 0xfa | 0xfe, 0xed | 0xba, 0xfe | 0xbe, ..] => Kind::Program,
        _ if begins(b"version https://git-lfs") => {
            Kind::Other("a pointer of Git LFS; `git lfs pull` fetches the file itself")
        }
        _ if text.starts_with(b"<") => Kind::Other("a web page"),
        _ if text.starts_with(b"{") => Kind::Part("JSON"),
        _ if std::str::from_utf8(start).is_ok_or_cut() => Kind::Other("a text"),
        _ => Kind::Other("of a kind that is not known"),
    }
}

/// A length, and as many bytes of JSON.
fn is_safetensors(start: &[u8]) -> bool {
    let length = start.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    length.is_some_and(|length| length <= LONGEST_HEADER) && start.get(8) == Some(&b'{')
}

trait Utf8 {
    fn is_ok_or_cut(&self) -> bool;
}

impl Utf8 for Result<&str, std::str::Utf8Error> {
    /// Whether it is a text, perhaps with a character that the end of the bytes cuts.
    fn is_ok_or_cut(&self) -> bool {
        self.as_ref().is_ok_and(|text| !text.contains('\0'))
            || self.as_ref().is_err_and(|error| error.error_len().is_none() && error.valid_up_to() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_by_their_first_bytes() {
        let safetensors = [&16u64.to_le_bytes()[..], b"{\"__metadata__\":"].concat();
        for (start, kind) in [
            (&b"GGUF\x03\0\0\0"[..], Kind::Gguf),
            (&safetensors, Kind::Part("weights (safetensors)")),
            (b"PK\x03\x04..archive/data.pkl", Kind::Part("weights (PyTorch)")),
            (b"PK\x03\x04..x.npy", Kind::Other("an archive of NumPy arrays")),
            (b"\x80\x02}q\0", Kind::Part("weights (a pickle)")),
            (b"\x7fELF", Kind::Program),
            (b"\xcf\xfa\xed\xfe", Kind::Program),
            (b"  {\"a\": 1}", Kind::Part("JSON")),
            (b"<!DOCTYPE html>", Kind::Other("a web page")),
            (b"", Kind::Other("empty")),
            (b"To be, or", Kind::Other("a text")),
            (b"\xff\xfe\xfd", Kind::Other("of a kind that is not known")),
        ] {
            assert_eq!(of(start), kind, "{start:?}");
        }
    }
}
