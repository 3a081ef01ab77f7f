//! [`Kind`]: what a file really is, by its first bytes, whatever its name promises.

use std::fmt;

/// The bytes that are looked at, but for those of a text's first line.
const LOOKED_AT: usize = 1 << 12;
/// The characters of a text that a message shows.
const SHOWN: usize = 60;
/// The longest header of a safetensors file.
const LONGEST_HEADER: u64 = 100_000_000;

/// A kind of file. Displays as "a gzip archive".
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Empty,
    /// Nothing but zeros at the beginning.
    Zeros,
    LfsPointer,
    WebPage,
    Gzip,
    Bzip2,
    Xz,
    Zstandard,
    SevenZip,
    Tar,
    Hdf5,
    NumPy,
    /// A zip of NumPy arrays.
    NumPyZip,
    /// A zip of anything else, of PyTorch too.
    Zip,
    /// A pickle, as PyTorch before 1.6 wrote it.
    Pickle,
    Gguf,
    /// llama.cpp's formats before GGUF.
    Ggml,
    Safetensors,
    /// llm.c's checkpoint.
    LlmC,
    Onnx,
    /// Flax's msgpack.
    MessagePack,
    Json,
    /// Other text, and how it begins.
    Text(String),
}

impl Kind {
    /// What the bytes are, if they look like something.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        const MAGIC: [(&[u8], Kind); 15] = [
            (b"version https://git-lfs", Kind::LfsPointer),
            (b"\x1f\x8b", Kind::Gzip),
            (b"BZh", Kind::Bzip2),
            (b"\xfd7zXZ\0", Kind::Xz),
            (b"\x28\xb5\x2f\xfd", Kind::Zstandard),
            (b"7z\xbc\xaf\x27\x1c", Kind::SevenZip),
            (b"\x89HDF\r\n\x1a\n", Kind::Hdf5),
            (b"\x93NUMPY", Kind::NumPy),
            (b"GGUF", Kind::Gguf),
            (b"lmgg", Kind::Ggml),
            (b"fmgg", Kind::Ggml),
            (b"tjgg", Kind::Ggml),
            // 20240326, in four bytes.
            (b"\xc6\xd7\x34\x01", Kind::LlmC),
            (b"PK\x05\x06", Kind::Zip),
            (b"PK\x03\x04", Kind::Zip),
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
    pub(crate) fn is_damage(&self) -> bool {
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

    /// What to do with such a file where another kind is needed.
    pub(crate) fn remedy(&self) -> &'static str {
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
            Self::Gguf => "give this file itself as the model, under a name that ends in .gguf",
            Self::Ggml => "llama.cpp's formats before GGUF are not read: convert the original weights again",
            Self::LlmC => "`gpt2 import` makes a folder of it",
            Self::Json | Self::Text(_) => "fetch the file itself",
        }
    }
}

impl fmt::Display for Kind {
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
            Self::Json => "a JSON file",
            Self::Text(start) => return write!(f, "a text that begins {start:?}"),
        })
    }
}

/// A zip archive, by the name of its first entry.
fn zip(start: &[u8]) -> Kind {
    let len = start.get(26..28).map_or(0, |len| usize::from(u16::from_le_bytes([len[0], len[1]])));
    let name = start.get(30..30 + len).unwrap_or_default();
    if name.ends_with(b".npy") { Kind::NumPyZip } else { Kind::Zip }
}

/// Whether a word of so many letters begins here.
fn is_word(bytes: &[u8], len: usize) -> bool {
    len > 0 && bytes.get(..len).is_some_and(|word| word.iter().all(u8::is_ascii_graphic))
}

/// A text, if nothing in it is no text.
fn text(start: &[u8]) -> Option<Kind> {
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
    Some(match text.as_bytes().first() {
        Some(b'{' | b'[') => Kind::Json,
        Some(b'<') => Kind::WebPage,
        _ => Kind::Text(text.lines().next().unwrap_or_default().chars().take(SHOWN).collect()),
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
            (&b""[..], Some(Kind::Empty)),
            (&[0; 5000], Some(Kind::Zeros)),
            (b"version https://git-lfs.github.com/spec/v1\noid", Some(Kind::LfsPointer)),
            (page, Some(Kind::WebPage)),
            (b"\x1f\x8b\x08\0", Some(Kind::Gzip)),
            (&tar, Some(Kind::Tar)),
            (b"\x89HDF\r\n\x1a\n\0", Some(Kind::Hdf5)),
            (b"\x93NUMPY\x01\0", Some(Kind::NumPy)),
            (npz, Some(Kind::NumPyZip)),
            (b"PK\x03\x04\x14\0", Some(Kind::Zip)),
            (b"\x80\x04\x95\0", Some(Kind::Pickle)),
            (b"GGUF\x03\0\0\0", Some(Kind::Gguf)),
            (b"tjgg\x03\0\0\0", Some(Kind::Ggml)),
            (b"\x10\0\0\0\0\0\0\0{\"a\":1}", Some(Kind::Safetensors)),
            (&20_240_326i32.to_le_bytes(), Some(Kind::LlmC)),
            (b"\x08\x07\x12\x07pytorch\x1a", Some(Kind::Onnx)),
            (b"\x81\xabtransformer\x81", Some(Kind::MessagePack)),
            (b" {\"a\": 1}", Some(Kind::Json)),
            (b"Access denied\nbye", Some(Kind::Text("Access denied".into()))),
            (b"\x01\x02\xff\xfe", None),
            (b"\x80", None),
        ] {
            assert_eq!(Kind::of(bytes), kind, "{bytes:?}");
        }
    }
}
