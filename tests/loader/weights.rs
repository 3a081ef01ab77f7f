//! Damage to safetensors files, shards and their index: each has its own message and remedy.

use super::assert_damaged;
use crate::common::{Result, data};
use crate::folder::{Folder, assert_says, read, serialized, zeros};
use gpt2_loader::{Bytes, Checkpoint, Files, Header, LoadError, Source, TokenizerFiles, WeightFiles};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::Dtype;
use serde_json::json;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Content that can end up in a file when something went wrong, and a part of the remedy.
pub(super) fn wrong_files(whole: &[u8]) -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n";
    let garbage: Vec<u8> = ChaCha8Rng::seed_from_u64(1).random_iter::<u8>().take(5000).collect();
    let refetch = "fetch the file again";
    vec![
        ("empty", vec![], "it is empty; fetch it again"),
        ("a git-lfs pointer", lfs.to_vec(), "git lfs pull"),
        ("a web page", b"\n <!DOCTYPE html>\n<html>404</html>".to_vec(), "web page"),
        ("garbage", garbage, refetch),
        (
            "zeros",
            vec![0; 5000],
            "nothing but zeros where it begins, as an unfinished download is; fetch it again",
        ),
        ("a gzip archive", b"\x1f\x8b\x08\0\0\0\0\0".to_vec(), "is a gzip archive; expected"),
        ("half of it", whole[..whole.len() / 2].to_vec(), refetch),
        ("a byte short", whole[..whole.len() - 1].to_vec(), refetch),
        ("its first byte", whole[..1].to_vec(), refetch),
    ]
}

/// A safetensors file with this header and `data` zeros after it.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn a_safetensors_file_that_is_not_whole_or_none() -> Result {
    let whole = std::fs::read(data("odd").join("model.safetensors"))?;
    let header_len = usize::try_from(u64::from_le_bytes(whole[..8].try_into()?))?;
    let mut cases = wrong_files(&whole);
    for (what, len) in [
        ("cut in the header's length", 4),
        ("cut before the header", 8),
        ("cut in the header", 8 + header_len / 2),
        ("cut before the data", 8 + header_len),
    ] {
        cases.push((what, whole[..len].to_vec(), "fetch the file again"));
    }
    for (what, len) in [
        ("a header of 2^64 bytes", u64::MAX),
        ("a header of 2^63 bytes", 1 << 63),
        ("a header of 99 MB", 99_000_000),
    ] {
        cases.push((what, [&len.to_le_bytes(), &whole[8..]].concat(), "fetch the file again"));
    }
    cases.push(("bytes behind the data", [&whole[..], b"more"].concat(), "fetch the file again"));
    for (what, file, remedy) in cases {
        let folder = Folder::of("odd")?;
        folder.write("model.safetensors", file)?;
        assert_damaged(what, &folder, "model.safetensors", &[remedy]);
    }
    Ok(())
}

#[test]
fn a_safetensors_header_that_does_not_hold() -> Result {
    for (what, header, data) in [
        ("a list", "[]", 0),
        ("not UTF-8's first byte", "\u{7f}{}", 0),
        ("nested without end", &"[".repeat(200_000), 0),
        ("offsets backwards", r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#, 4),
        ("offsets beyond the end", r#"{"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#, 8),
        ("a shape of another size", r#"{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8),
        (
            "a shape of 2^128 elements",
            r#"{"x":{"dtype":"U8","shape":[18446744073709551615,18446744073709551615],"data_offsets":[0,1]}}"#,
            1,
        ),
        ("a dtype of the future", r#"{"x":{"dtype":"F128","shape":[1],"data_offsets":[0,16]}}"#, 16),
        ("a negative size", r#"{"x":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#, 1),
    ] {
        let folder = Folder::of("odd")?;
        folder.write("model.safetensors", with_header(header, data))?;
        assert_damaged(what, &folder, "model.safetensors", &["fetch the file again"]);
    }
    Ok(())
}

#[test]
fn any_flipped_byte_of_the_header_is_an_error_or_a_success() -> Result {
    let whole = std::fs::read(data("untied").join("model.safetensors"))?;
    let header_end = 8 + usize::try_from(u64::from_le_bytes(whole[..8].try_into()?))?;
    let folder = Folder::of("untied")?;
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for _ in 0..400 {
        let at = rng.random_range(0..header_end);
        let to = rng.random::<u8>();
        let mut bytes = whole.clone();
        bytes[at] = to;
        folder.write("model.safetensors", bytes)?;
        let loaded = catch_unwind(AssertUnwindSafe(|| folder.load().map(|_| ())));
        assert!(loaded.is_ok(), "byte {at} as {to:#04x} panics");
    }
    Ok(())
}

#[test]
fn a_dtype_that_candle_has_not_is_mis_shaped() -> Result {
    for dtype in [Dtype::BOOL, Dtype::I16, Dtype::U64, Dtype::C64, Dtype::F8_E5M2, Dtype::F4] {
        let mut tensors = read(&data("odd").join("model.safetensors"))?;
        tensors.insert("transformer.ln_f.bias".into(), zeros(dtype, &[48]));
        let folder = Folder::with_tensors("odd", &tensors)?;
        let name = format!("transformer.ln_f.bias {dtype:?} [48]");
        assert_says(&name, &folder.refusal(&name), &[&name, "expected a float dtype"]);
    }
    Ok(())
}

/// `odd` in two shards under an index.
fn sharded() -> Result<Folder> {
    let tensors = read(&data("odd").join("model.safetensors"))?;
    let folder = Folder::of("odd")?;
    std::fs::remove_file(folder.file("model.safetensors"))?;
    let shard = |i: usize| if i < 10 { "a.safetensors" } else { "b.safetensors" };
    folder.write("a.safetensors", serialized(tensors.iter().take(10))?)?;
    folder.write("b.safetensors", serialized(tensors.iter().skip(10))?)?;
    let map: serde_json::Map<_, _> =
        tensors.keys().enumerate().map(|(i, name)| (name.clone(), shard(i).into())).collect();
    folder.write("model.safetensors.index.json", json!({"weight_map": map}).to_string())?;
    assert!(folder.load().is_ok());
    Ok(folder)
}

#[test]
fn a_shard_that_is_missing_is_named_with_the_remedy() -> Result {
    let folder = sharded()?;
    std::fs::remove_file(folder.file("b.safetensors"))?;
    let message = folder.refusal("no shard");
    assert_says("no shard", &message, &[&folder.at("b.safetensors"), "is not there"]);
    assert!(message.contains("index") && message.contains("fetch"), "what to do is missing from: {message}");
    Ok(())
}

#[test]
fn a_shard_that_is_damaged_is_named() -> Result {
    let whole = std::fs::read(sharded()?.file("b.safetensors"))?;
    for (what, file, remedy) in wrong_files(&whole) {
        let folder = sharded()?;
        folder.write("b.safetensors", file)?;
        assert_damaged(what, &folder, "b.safetensors", &[remedy]);
    }
    Ok(())
}

#[test]
fn an_index_that_points_outside_its_folder_is_refused() -> Result {
    let outside = Folder::of("odd")?;
    let absolute = outside.file("model.safetensors").display().to_string();
    for shard in ["../model.safetensors", &absolute, "sub/a.safetensors", "..", ".", "", "a.safetensors/"] {
        let folder = sharded()?;
        std::fs::create_dir(folder.file("sub"))?;
        std::fs::copy(folder.file("a.safetensors"), folder.file("sub/a.safetensors"))?;
        let index = json!({"weight_map": {"transformer.wte.weight": shard}});
        folder.write("model.safetensors.index.json", index.to_string())?;
        let parts = [&folder.at("model.safetensors.index.json"), "is not a file name beside the index"];
        assert_says(
            shard,
            &folder.refusal(shard),
            &[&parts[..], &[&format!("{shard:?}"), "from one place"]].concat(),
        );
    }
    Ok(())
}

#[test]
fn a_tensor_that_is_not_in_its_shard_is_named() -> Result {
    for (name, shard) in [("transformer.ln_f.bias", "b.safetensors"), ("transformer.ghost", "a.safetensors")]
    {
        let folder = sharded()?;
        let path = folder.file("model.safetensors.index.json");
        let mut index: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        let other = if shard == "b.safetensors" { "a.safetensors" } else { shard };
        index["weight_map"][name] = other.into();
        folder.write("model.safetensors.index.json", index.to_string())?;
        let part = format!("tensor {name} is not in {other}, where the index puts it");
        // Both files may be sound, and of different saves.
        let error = folder.load().expect_err(name);
        assert!(matches!(error, LoadError::Unread { .. }), "{name}: {error:?}");
        let index = folder.at("model.safetensors.index.json");
        assert_says(name, &error.to_string(), &[&index, &part, "the index and its shards together"]);
    }
    Ok(())
}

#[test]
fn an_index_that_is_no_index_is_named() -> Result {
    for (what, content) in [
        ("empty", ""),
        ("truncated", r#"{"weight_map": {"transformer.wte"#),
        ("without a map", r#"{"metadata": {}}"#),
        ("numbers for shards", r#"{"weight_map": {"x": 1}}"#),
        ("a web page", "<html></html>"),
    ] {
        let folder = sharded()?;
        folder.write("model.safetensors.index.json", content)?;
        let error = folder.load().expect_err(what);
        let is_other = matches!(error, LoadError::OtherFile { .. });
        assert!(is_other || matches!(error, LoadError::Json { .. }), "{what}: {error:?}");
        assert_eq!(is_other, ["empty", "a web page"].contains(&what), "{error:?}");
        let path = folder.at("model.safetensors.index.json");
        assert_says(what, &error.to_string(), &[&path, "expected a shard index"]);
    }
    Ok(())
}

#[test]
fn an_index_of_nothing_misses_everything() -> Result {
    let folder = sharded()?;
    folder.write("model.safetensors.index.json", r#"{"weight_map": {}}"#)?;
    assert_eq!(folder.audit()?.missing.len(), folder.open()?.config().parameters()?.len());
    Ok(())
}

/// The file disappears after its headers were read and before its data is.
// Windows does not let a file shrink that is mapped.
#[cfg(unix)]
#[test]
fn a_file_that_shrinks_before_its_data_is_read_is_named_with_the_tensor() -> Result {
    let folder = Folder::of("odd")?;
    let checkpoint = folder.open()?;
    let path = folder.file("model.safetensors");
    let len = std::fs::metadata(&path)?.len();
    std::fs::OpenOptions::new().write(true).open(&path)?.set_len(len / 2)?;
    let Err(error) = checkpoint.load_model(candle_core::DType::F32, &candle_core::Device::Cpu) else {
        return Err("half a file was taken for a whole one".into());
    };
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert_says(
        "a file that shrinks",
        &format!("{error}: {cause}"),
        &["model.safetensors", "weight", "fetch it again"],
    );
    Ok(())
}

/// The checkpoint of `odd`'s config and of a header alone.
fn of_header(bytes: &[u8], file_len: Option<u64>) -> std::result::Result<Checkpoint, LoadError> {
    let config = data("odd").join("config.json");
    let json = Bytes::open(&config)?;
    let header = Header { path: "far/model.safetensors".into(), bytes: bytes.to_vec(), file_len };
    let weights = WeightFiles::Headers(vec![header]);
    Checkpoint::open(&Files::new("far".into(), (config, json), weights, TokenizerFiles::Absent))
}

#[test]
fn a_header_without_its_data_is_audited_and_no_more() -> Result {
    let whole = std::fs::read(data("odd").join("model.safetensors"))?;
    let end = 8 + usize::try_from(u64::from_le_bytes(whole[..8].try_into()?))?;
    let len = whole.len() as u64;
    for (bytes, file_len) in
        [(&whole[..end], Some(len)), (&whole[..end], None), (&whole[..end + 9], Some(len))]
    {
        let checkpoint = of_header(bytes, file_len)?;
        assert!(checkpoint.audit().is_clean(), "{}", checkpoint.audit());
        assert_eq!(checkpoint.numbers(&mut |_, _| panic!("there is nothing to read"))?, None);
        assert!(checkpoint.load_model(candle_core::DType::F32, &candle_core::Device::Cpu).is_err());
    }
    let empty = with_header("{}", 0);
    assert_eq!(of_header(&empty, Some(10))?.tensors().count(), 0);
    let describes = |len: u64, found: u64| format!("its header describes {len} bytes, the file has {found}");
    for (what, bytes, file_len, says) in [
        ("cut", &whole[..end - 1], None, format!("its header should be {} bytes long", end - 8)),
        ("seven bytes", &whole[..7], None, "it is shorter than the length of a header".into()),
        ("of 2^64 bytes", &[255; 100], None, format!("its header should be {} bytes long", u64::MAX)),
        ("a byte more", &whole[..end], Some(len + 1), describes(len, len + 1)),
        ("a byte less", &whole[..end], Some(len - 1), describes(len, len - 1)),
        ("no tensor but data", &empty, Some(11), describes(10, 11)),
    ] {
        let error = of_header(bytes, file_len).expect_err(what);
        assert!(matches!(error, LoadError::Damaged { .. }), "{what}: {error:?}");
        assert_says(what, &error.to_string(), &["far/model.safetensors", &says]);
    }
    Ok(())
}

#[test]
fn every_file_that_a_model_is_read_from_is_listed() -> Result {
    let listed = |folder: &Folder| -> Result<Vec<String>> {
        let paths = Source::directory(folder.path()).open()?.paths()?;
        let name =
            |path: &Path| -> Result<String> { Ok(path.strip_prefix(folder.path())?.display().to_string()) };
        let mut names = paths.iter().map(|path| name(path)).collect::<Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    };
    assert_eq!(listed(&Folder::of("odd")?)?, ["config.json", "model.safetensors"]);
    assert_eq!(listed(&Folder::of("pickle")?)?, ["config.json", "pytorch_model.bin"]);
    let folder = sharded()?;
    folder.write("vocab.json", "{}")?;
    folder.write("merges.txt", "")?;
    let shards =
        ["a.safetensors", "b.safetensors", "config.json", "merges.txt", "model.safetensors.index.json"];
    assert_eq!(listed(&folder)?, [&shards[..], &["vocab.json"]].concat());
    folder.write("tokenizer.json", "{}")?;
    assert_eq!(listed(&folder)?, [&shards[..3], &shards[4..], &["tokenizer.json"]].concat());
    let gguf = data("gguf").join("tiny.gguf");
    assert_eq!(Source::Gguf(gguf.clone()).open()?.paths()?, [gguf]);
    Ok(())
}
