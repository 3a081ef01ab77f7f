//! [`FileKind`]: what a file really is, by its first bytes, whatever its name promises.

use gpt2_files::open_regular;
use std::fmt;
use std::io::Read;
use std::path::Path;

/// The bytes that are looked at, but for those of a text's first line.
const LOOKED_AT: usize = 1 << 12;
/// The characters of a text that a message shows.
const SHOWN: usize = 60;
/// The longest header of a safetensors file.
const LONGEST_HEADER: u64 = 100_000_000;

/// A kind of file. Displays as "a gzip archive".
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// No byte.
    Empty,
    /// Nothing but zeros at the beginning.
    Zeros,
    /// The text that stands for a file in a repository with git-lfs.
    LfsPointer,
    /// HTML or XML.
    WebPage,
    /// Compressed with gzip.
    Gzip,
    /// Compressed with bzip2.
    Bzip2,
    /// Compressed with xz.
    Xz,
    /// Compressed with zstd.
    Zstandard,
    /// An archive of 7-Zip.
    SevenZip,
    /// A tar archive that is not compressed.
    Tar,
    /// Weights of Keras and `TensorFlow`.
    Hdf5,
    /// An array of `NumPy`.
    NumPy,
    /// A zip of `NumPy` arrays.
    NumPyZip,
    /// A zip of anything else, of `PyTorch` too.
    Zip,
    /// A pickle, as `PyTorch` before 1.6 wrote it.
    Pickle,
    /// llama.cpp's format.
    Gguf,
    /// llama.cpp's formats before GGUF.
    Ggml,
    /// A header of JSON, and tensors.
    Safetensors,
    /// llm.c's checkpoint.
    LlmC,
    /// A graph in ONNX.
    Onnx,
    /// Flax's msgpack.
    MessagePack,
    /// A program or a script.
    Program,
    /// A text that begins as JSON does.
    Json,
    /// Other text, and how it begins.
    Text(String),
}

impl FileKind {
    /// The kind of the file at `path`, if it looks like one. Reads only its beginning.
    ///
    /// # Errors
    /// When it is no file, or cannot be read.
    pub fn of_file(path: &Path) -> std::io::Result<Option<Self>> {
        let mut start = vec![];
        open_regular(path)?.take(LOOKED_AT as u64).read_to_end(&mut start)?;
        Ok(Self::of(&start))
    }

    /// The kind of file that the bytes begin, if they look like one.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        const MAGIC: [(&[u8], FileKind); 21] = [
            (b"version https://git-lfs", FileKind::LfsPointer),
            (b"\x1f\x8b", FileKind::Gzip),
            (b"BZh", FileKind::Bzip2),
            (b"\xfd7zXZ\0", FileKind::Xz),
            (b"\x28\xb5\x2f\xfd", FileKind::Zstandard),
            (b"7z\xbc\xaf\x27\x1c", FileKind::SevenZip),
            (b"\x89HDF\r\n\x1a\n", FileKind::Hdf5),
            (b"\x93NUMPY", FileKind::NumPy),
            (b"GGUF", FileKind::Gguf),
            (b"lmgg", FileKind::Ggml),
            (b"fmgg", FileKind::Ggml),
            (b"tjgg", FileKind::Ggml),
            // 20240326, in four bytes.
            (b"\xc6\xd7\x34\x01", FileKind::LlmC),
            (b"\x7fELF", FileKind::Program),
            (b"#!", FileKind::Program),
            (b"MZ\x90\0", FileKind::Program),
            (b"\xcf\xfa\xed\xfe", FileKind::Program),
            (b"\xce\xfa\xed\xfe", FileKind::Program),
            (b"\xca\xfe\xba\xbe", FileKind::Program),
            (b"PK\x05\x06", FileKind::Zip),
            (b"PK\x03\x04", FileKind::Zip),
        ];
        let start = &bytes[..bytes.len().min(LOOKED_AT)];
        if bytes.is_empty() {
            return Some(Self::Empty);
        }
        if let Some((_, kind)) = MAGIC.into_iter().find(|(magic, _)| start.starts_with(magic)) {
            return Some(if kind == Self::Zip { zip(start) } else { kind });
        }
        let len = start.first_chunk().map(|len| u64::from_le_bytes(*len));
        if len.is_some_and(|len| len <= LONGEST_HEADER) && start.get(8) == Some(&b'{') {
            return Some(Self::Safetensors);
        }
        match start {
            _ if start.len() >= 8 && start.iter().all(|byte| *byte == 0) => Some(Self::Zeros),
            _ if start.get(257..262) == Some(b"ustar") => Some(Self::Tar),
            [0x80, 2..=5, ..] => Some(Self::Pickle),
            // A map with few keys, the first of which is a short text.
            [0x81..=0x8f, len @ 0xa1..=0xbf, rest @ ..] if is_word(rest, usize::from(len - 0xa0)) => {
                Some(Self::MessagePack)
            }
            // The format's version, then the producer's name.
            [8, 1..=20, 0x12, len, rest @ ..] if is_word(rest, usize::from(*len)) => Some(Self::Onnx),
            _ => text(start),
        }
    }

    /// Whether the bytes are damage: no program meant them.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Empty | Self::Zeros)
    }

    /// Whether a file of this kind may be meant to be of the format that a reader names.
    pub(crate) fn may_be(&self, format: &str) -> bool {
        let is_of_weights =
            ["safetensors", "PyTorch", "GGUF", "llm.c"].iter().any(|one| format.contains(one));
        match self {
            Self::Safetensors => format == "safetensors",
            Self::Zip | Self::Pickle => format == "PyTorch",
            Self::Gguf => format == "GGUF",
            Self::LlmC => format == "llm.c",
            // A text may be JSON with a mistake in it; then the parser's own words say more.
            Self::Json | Self::Text(_) => !is_of_weights,
            _ => false,
        }
    }

    /// The remedy for such a file where another kind is needed.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Empty | Self::Zeros => "fetch it again",
            Self::LfsPointer => "the file itself is elsewhere: run `git lfs pull` in its repository",
            Self::WebPage => {
                "fetch the file itself (on the Hub, an address with /resolve/ is the file, one with /blob/ its page)"
            }
            Self::Gzip | Self::Bzip2 | Self::Xz | Self::Zstandard | Self::SevenZip | Self::Tar => {
                "unpack it, and use the file inside"
            }
            Self::Hdf5 | Self::NumPy | Self::NumPyZip | Self::Onnx | Self::MessagePack => {
                "this program does not read such weights: load them with the program that wrote them, or with transformers, and save \
                 them as safetensors"
            }
            Self::Zip | Self::Pickle => {
                "weights that torch.save wrote are read under the name pytorch_model.bin"
            }
            Self::Safetensors => "such weights are read under the name model.safetensors",
            Self::Gguf | Self::LlmC => "give this file itself as the model",
            Self::Ggml => "llama.cpp's formats before GGUF are not read: convert the original weights again",
            Self::Program => "give the file that is meant",
            Self::Json | Self::Text(_) => "fetch the file itself",
        }
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "empty",
            Self::Zeros => "nothing but zeros where it begins, as an unfinished download is",
            Self::LfsPointer => "a git-lfs pointer",
            Self::WebPage => "a web page",
            Self::Gzip => "a gzip archive",
            Self::Bzip2 => "a bzip2 archive",
            Self::Xz => "an xz archive",
            Self::Zstandard => "a zstd archive",
            Self::SevenZip => "a 7z archive",
            Self::Tar => "a tar archive",
            Self::Hdf5 => "an HDF5 file, as Keras and TensorFlow write weights",
            Self::NumPy => "a NumPy array",
            Self::NumPyZip => "an archive of NumPy arrays (npz)",
            Self::Zip => "a zip archive, as torch.save writes weights",
            Self::Pickle => "a pickle, as torch.save writes weights",
            Self::Gguf => "a GGUF file",
            Self::Ggml => "a GGML file, of llama.cpp before GGUF",
            Self::Safetensors => "a safetensors file",
            Self::LlmC => "a checkpoint of llm.c",
            Self::Onnx => "an ONNX file",
            Self::MessagePack => "a msgpack file, as Flax writes weights",
            Self::Program => "a program",
            Self::Json => "a JSON file",
            Self::Text(start) => return write!(f, "a text that begins {start:?}"),
        })
    }
}

/// A zip archive, by the name of its first entry.
fn zip(start: &[u8]) -> FileKind {
    let len = start.get(26..28).map_or(0, |len| usize::from(u16::from_le_bytes([len[0], len[1]])));
    let name = start.get(30..30 + len).unwrap_or_default();
    if name.ends_with(b".npy") { FileKind::NumPyZip } else { FileKind::Zip }
}

/// Whether a word of so many letters begins here.
fn is_word(bytes: &[u8], len: usize) -> bool {
    len > 0 && bytes.get(..len).is_some_and(|word| word.iter().all(u8::is_ascii_graphic))
}

/// A text, if nothing in it is no text.
fn text(start: &[u8]) -> Option<FileKind> {
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        // A character may be cut where the look ends.
        Err(e) if start.len() == LOOKED_AT && start.len() - e.valid_up_to() < 4 => {
            std::str::from_utf8(&start[..e.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    if start.len() < 2 || text.chars().any(|c| c.is_control() && !"\t\n\r\u{c}".contains(c)) {
        return None;
    }
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let mut bytes = text.bytes().filter(|byte| !byte.is_ascii_whitespace());
    Some(match (bytes.next(), bytes.next()) {
        // A table of TOML begins with a bracket, too.
        (Some(b'{'), _) | (Some(b'['), Some(b'[' | b'{' | b']' | b'"' | b'-' | b'0'..=b'9') | None) => {
            FileKind::Json
        }
        (Some(b'<'), _) => FileKind::WebPage,
        _ => FileKind::Text(text.lines().next().unwrap_or_default().chars().take(SHOWN).collect()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_first_bytes() {
        let tar = [&[b'a'; 257][..], b"ustar\0"].concat();
        let npz = b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0a.npy";
        let page = b"\n <!DOCTYPE html>\n<html>404</html>";
        for (bytes, kind) in [
            (&b""[..], Some(FileKind::Empty)),
            (&[0; 5000], Some(FileKind::Zeros)),
            (b"version https://git-lfs.github.com/spec/v1\noid", Some(FileKind::LfsPointer)),
            (page, Some(FileKind::WebPage)),
            (b"\x1f\x8b\x08\0", Some(FileKind::Gzip)),
            (&tar, Some(FileKind::Tar)),
            (b"\x89HDF\r\n\x1a\n\0", Some(FileKind::Hdf5)),
            (b"\x93NUMPY\x01\0", Some(FileKind::NumPy)),
            (npz, Some(FileKind::NumPyZip)),
            (b"PK\x03\x04\x14\0", Some(FileKind::Zip)),
            (b"\x80\x04\x95\0", Some(FileKind::Pickle)),
            (b"GGUF\x03\0\0\0", Some(FileKind::Gguf)),
            (b"tjgg\x03\0\0\0", Some(FileKind::Ggml)),
            (b"\x10\0\0\0\0\0\0\0{\"a\":1}", Some(FileKind::Safetensors)),
            (&20_240_326i32.to_le_bytes(), Some(FileKind::LlmC)),
            (b"\x08\x07\x12\x07pytorch\x1a", Some(FileKind::Onnx)),
            (b"\x81\xabtransformer\x81", Some(FileKind::MessagePack)),
            (b" {\"a\": 1}", Some(FileKind::Json)),
            (b"\x7fELF\x02\x01", Some(FileKind::Program)),
            (b"#!/bin/sh\n", Some(FileKind::Program)),
            (b"Access denied\nbye", Some(FileKind::Text("Access denied".into()))),
            (b"[1, 2]", Some(FileKind::Json)),
            (b"[package]\nname", Some(FileKind::Text("[package]".into()))),
            (b"\x01\x02\xff\xfe", None),
            (b"\x80", None),
        ] {
            assert_eq!(FileKind::of(bytes), kind, "{bytes:?}");
        }
    }
}
