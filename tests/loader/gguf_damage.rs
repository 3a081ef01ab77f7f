//! Damage to GGUF files: each kind has a message.

use super::gguf::open;
use crate::common::{Result, data};
use crate::folder::assert_says;
use candle_core::{DType, Device};
use gpt2_loader::{LoadError, Source, Tokenizer};
use std::path::Path;

/// The file that the Python package wrote.
pub(super) fn tiny() -> Result<Vec<u8>> {
    Ok(std::fs::read(data("gguf").join("tiny.gguf"))?)
}

/// The place where a text first occurs.
pub(super) fn position(bytes: &[u8], text: &[u8]) -> usize {
    bytes.windows(text.len()).position(|part| part == text).expect("it is there")
}

pub(super) fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = position(bytes, from);
    let mut out = bytes.to_vec();
    out[at..at + to.len()].copy_from_slice(to);
    out
}

/// The file with some bytes replaced after the first occurrence of a text.
pub(super) fn after(bytes: &[u8], text: &[u8], skip: usize, to: &[u8]) -> Vec<u8> {
    let at = position(bytes, text) + text.len() + skip;
    let mut out = bytes.to_vec();
    out[at..at + to.len()].copy_from_slice(to);
    out
}

/// The name of a damage, the damaged file, and words of its error.
type Hostile = (&'static str, Vec<u8>, &'static [&'static str]);

fn hostile(whole: &[u8]) -> Vec<Hostile> {
    let huge = (1u64 << 60).to_le_bytes();
    let embedding = b"gpt2.embedding_length";
    let table = b"token_embd.weight";
    vec![
        ("nothing", vec![], &["it is empty"]),
        ("no version", after(whole, b"GGUF", 0, &[1, 2, 3, 4]), &["version 67305985 is not supported"]),
        ("2^60 tensors", after(whole, b"GGUF", 4, &huge), &["1152921504606846976 tensors do not fit"]),
        ("2^60 keys", after(whole, b"GGUF", 12, &huge), &["1152921504606846976 keys do not fit"]),
        (
            "a key of 2^60 bytes",
            after(whole, b"GGUF", 20, &huge),
            &["a key should take 1152921504606846976 bytes"],
        ),
        (
            "a string of 2^60 bytes",
            after(whole, b"general.architecture", 4, &huge),
            &["general.architecture", "1152921504606846976"],
        ),
        (
            "2^60 tokens",
            after(whole, b"tokenizer.ggml.tokens", 8, &huge),
            &["elements of tokenizer.ggml.tokens do not fit"],
        ),
        (
            "an unknown type",
            after(whole, b"gpt2.block_count", 0, &[99, 0, 0, 0]),
            &["gpt2.block_count: there is no type 99"],
        ),
        (
            "no embedding length",
            replaced(whole, embedding, b"gpt2.embedding_lengtX"),
            &["gpt2.embedding_length is missing"],
        ),
        ("9 dimensions", after(whole, table, 0, &[9, 0, 0, 0]), &["token_embd.weight: 9 dimensions"]),
        ("2^60 by 257", after(whole, table, 4, &huge), &["token_embd.weight: [1152921504606846976, 257]"]),
        (
            "no whole blocks",
            after(whole, table, 4, &33u64.to_le_bytes()),
            &["token_embd.weight", "no whole blocks of Q8_0"],
        ),
        (
            "an offset beyond the end",
            after(whole, table, 24, &huge),
            &["token_embd.weight", "beyond the end"],
        ),
        ("an offset of -1", after(whole, table, 24, &[255; 8]), &["token_embd.weight", "beyond the end"]),
        (
            "a shared offset",
            after(whole, b"position_embd.weight", 24, &[0; 8]),
            &["position_embd.weight", "token_embd.weight", "share bytes"],
        ),
        (
            "the offset of the tensor before",
            after(whole, b"output_norm.bias", 16, &25_536u64.to_le_bytes()),
            &["output_norm.weight and output_norm.bias share bytes"],
        ),
        (
            "a tensor twice",
            replaced(whole, b"blk.0.ffn_norm.bias", b"blk.0.attn_qkv.bias"),
            &["tensor \"blk.0.attn_qkv.bias\" occurs twice"],
        ),
        ("no UTF-8", replaced(whole, b"general.name", b"general.nam\xff"), &["a key is not UTF-8"]),
        ("cut in the header", whole[..500].to_vec(), &["the file"]),
        ("cut in the data", whole[..whole.len() - 100].to_vec(), &["output_norm.bias", "beyond the end"]),
    ]
}

#[test]
fn a_renamed_tensor_is_missing_and_unexpected() -> Result {
    let whole = tiny()?;
    assert!(open(data("gguf").join("tiny.gguf"))?.config().tie_word_embeddings);
    let renamed = replaced(&whole, b"output_norm.bias", b"output_norm.bia_");
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("a.gguf");
    std::fs::write(&path, renamed)?;
    let error = open(&path)?.load_model(DType::F32, &Device::Cpu).expect_err("another name").to_string();
    assert_says(
        "a renamed tensor",
        &error,
        &["missing     ln_f.bias", "unexpected  output_norm.bia_", "the file's own keys"],
    );
    Ok(())
}

#[test]
fn hostile_files_are_refused_with_what_is_wrong() -> Result {
    let whole = tiny()?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("hostile.gguf");
    for (what, bytes, parts) in hostile(&whole) {
        std::fs::write(&path, bytes)?;
        let error = open(&path).expect_err(what);
        assert!(matches!(error, LoadError::Damaged { .. }), "{what}: {error:?}");
        let file = path.display().to_string();
        assert_says(what, &error.to_string(), &[&[file.as_str()], parts].concat());
    }
    Ok(())
}

/// Sound files of other kinds are named as what they are, and nobody is told to fetch them again.
#[test]
fn sound_files_that_are_not_read_are_not_called_damaged() -> Result {
    let whole = tiny()?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("sound.gguf");
    let llama = after(&whole, b"general.architecture", 12, b"llam");
    for (what, bytes, parts) in [
        (
            "another architecture",
            llama,
            &["is a GGUF file of a llam; expected one of a gpt2 or a starcoder"][..],
        ),
        ("version 1", after(&whole, b"GGUF", 0, &[1, 0, 0, 0]), &["version 1, of August 2023"]),
        ("version 4", after(&whole, b"GGUF", 0, &[4, 0, 0, 0]), &["of version 4; expected 2 or 3"]),
        ("big-endian", after(&whole, b"GGUF", 0, &[0, 0, 0, 3]), &["big-endian", "gguf-convert-endian"]),
        ("a zip", b"PK\x03\x04 and so on".to_vec(), &["is a zip archive", "expected a GGUF file"]),
        ("HDF5", b"\x89HDF\r\n\x1a\n and so on".to_vec(), &["is an HDF5 file", "load them with"]),
    ] {
        std::fs::write(&path, bytes)?;
        let message = open(&path).expect_err(what).to_string();
        assert_says(what, &message, &[&[path.display().to_string().as_str()], parts].concat());
        assert!(!message.contains("damaged") && !message.contains("fetch"), "{what}: {message}");
    }
    Ok(())
}

/// Keys that name an alignment, as a writer could put them.
#[test]
fn an_alignment_is_a_power_of_2() -> Result {
    let whole = tiny()?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("aligned.gguf");
    for (alignment, works) in [(0u32, false), (3, false), (1 << 31, false), (32, true)] {
        // general.name and its value become general.alignment and a number.
        let name = b"general.name\x08\0\0\0\x04\0\0\0\0\0\0\0tiny";
        let at = position(&whole, name);
        let mut key = 17u64.to_le_bytes().to_vec();
        key.extend(b"general.alignment\x04\0\0\0");
        key.extend(alignment.to_le_bytes());
        let mut bytes = [&whole[..at - 8], &key, &whole[at + name.len()..]].concat();
        // The header has become shorter, but the data must start where it did, modulo the alignment.
        let shift = whole.len() - bytes.len();
        let data_start = header_end(&whole);
        bytes.splice(data_start - shift..data_start - shift, vec![0; shift % 32]);
        std::fs::write(&path, &bytes)?;
        match open(&path) {
            Ok(_) => assert!(works, "an alignment of {alignment} was read"),
            Err(error) => {
                assert!(!works, "{error}");
                assert_says("alignment", &error.to_string(), &["general.alignment", "power of 2"]);
            }
        }
    }
    Ok(())
}

/// The end of the header: after the offset of the last tensor, which is the same in all files of these tests.
pub(super) fn header_end(whole: &[u8]) -> usize {
    let name = b"output_norm.bias";
    position(whole, name) + name.len() + 4 + 8 + 4 + 8
}

/// A tensor of a type that is not read: the file opens, and the audit names the tensor.
#[test]
fn a_type_that_is_not_read_is_named_with_its_tensor() -> Result {
    let whole = tiny()?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("unknown.gguf");
    for (number, name) in [(16u8, "IQ2_XXS"), (200, "type 200")] {
        std::fs::write(&path, after(&whole, b"blk.0.ffn_up.weight", 20, &[number, 0, 0, 0]))?;
        let checkpoint = open(&path)?;
        let error = checkpoint.load_model(DType::F32, &Device::Cpu).expect_err("refused").to_string();
        assert_says(name, &error, &[&format!("blk.0.ffn_up.weight {name}")]);
        assert_eq!(checkpoint.audit().mismatched.len(), 1);
    }
    Ok(())
}

#[test]
fn a_file_cut_or_changed_anywhere_is_an_error_or_a_success() -> Result {
    let whole = tiny()?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("changed.gguf");
    let use_it = |path: &Path| {
        if let Ok(checkpoint) = open(path) {
            let _ = checkpoint.load_model(DType::F32, &Device::Cpu);
            let _ = Source::Gguf(path.to_path_buf()).open().map(|files| Tokenizer::open(&files, 257));
        }
    };
    for len in (0..whole.len()).step_by(331) {
        std::fs::write(&path, &whole[..len])?;
        assert!(open(&path).is_err(), "{len} bytes");
    }
    for at in (0..header_end(&whole)).step_by(7) {
        let mut changed = whole.clone();
        changed[at] ^= 0x80 | u8::try_from(at % 113)?;
        std::fs::write(&path, &changed)?;
        use_it(&path);
    }
    Ok(())
}
