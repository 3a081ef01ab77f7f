//! Damage to `pytorch_model.bin`: an error or a success, never a panic.

use super::weights::wrong_files;
use super::{assert_damaged, parameter_bits};
use crate::common::{Result, data};
use crate::folder::{Folder, assert_says};
use crate::models::load;
use crate::pickles::{BIN, entries, with_pickle, zip};
use candle_core::DType;
use gpt2_loader::LoadError;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Fails unless loading the folder says that its pickle is sound and not read, and all of `parts`.
#[track_caller]
fn assert_unread(what: &str, folder: &Folder, parts: &[&str]) {
    let error = folder.load().expect_err(what);
    assert!(matches!(error, LoadError::Unread { .. }), "{what}: {error:?}");
    assert_says(what, &error.to_string(), &[&[folder.at(BIN).as_str()], parts].concat());
    assert!(!error.to_string().contains("damaged"), "{error}");
}

#[test]
fn an_archive_written_by_these_tests_is_read() -> Result {
    let entries = entries("pickle")?;
    assert_eq!((entries.len(), entries[0].0.as_str()), (39, "pytorch_model/data.pkl"));
    let folder = with_pickle(&entries[0].1)?;
    assert_eq!(parameter_bits(&folder.load()?)?, parameter_bits(&load("untied", DType::F32)?)?);
    Ok(())
}

#[test]
fn a_file_that_is_not_whole_or_no_archive() -> Result {
    let whole = std::fs::read(data("pickle").join(BIN))?;
    for (what, file, remedy) in wrong_files(&whole) {
        let folder = Folder::of("pickle")?;
        folder.write(BIN, file)?;
        assert_damaged(what, &folder, BIN, &[remedy]);
    }
    let folder = Folder::of("pickle")?;
    folder.write(BIN, b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.")?;
    assert_damaged("only a magic number", &folder, BIN, &["the version: cut short"]);
    Ok(())
}

#[test]
fn an_archive_without_what_the_pickle_names() -> Result {
    let folder = Folder::of("pickle")?;
    let mut some = entries("pickle")?;
    some.retain(|(name, _)| name != "pytorch_model/data/7");
    folder.write(BIN, zip(&some)?)?;
    assert_damaged("no storage 7", &folder, BIN, &["pytorch_model/data/7"]);

    let mut short = entries("pickle")?;
    if let Some((_, data)) = short.iter_mut().find(|(name, _)| name == "pytorch_model/data/0") {
        data.pop();
    }
    folder.write(BIN, zip(&short)?)?;
    assert_damaged("a short storage", &folder, BIN, &["transformer.wte.weight", "outside its storage"]);

    some.remove(0);
    folder.write(BIN, zip(&some)?)?;
    assert_unread(
        "no pickle",
        &folder,
        &["is a zip archive with no data.pkl", "torch.save did not write it"],
    );
    Ok(())
}

#[test]
fn a_pickle_cut_at_any_place_is_an_error() -> Result {
    let whole = entries("pickle")?.swap_remove(0).1;
    for len in (0..whole.len()).step_by(97).chain([whole.len() - 1]) {
        assert_damaged(&format!("{len} bytes"), &with_pickle(&whole[..len])?, BIN, &[]);
    }
    Ok(())
}

#[test]
fn any_flipped_byte_of_the_pickle_is_an_error_or_a_success() -> Result {
    let whole = entries("pickle")?.swap_remove(0).1;
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let (mut loaded, mut refused) = (0, 0);
    for _ in 0..600 {
        let at = rng.random_range(0..whole.len());
        let to = rng.random::<u8>();
        let mut pickle = whole.clone();
        pickle[at] = to;
        let folder = with_pickle(&pickle)?;
        let result = catch_unwind(AssertUnwindSafe(|| folder.load().is_ok()));
        assert!(result.is_ok(), "byte {at} of data.pkl as {to:#04x} panics");
        *if result.is_ok_and(|ok| ok) { &mut loaded } else { &mut refused } += 1;
    }
    // The flips do reach the pickle: they get past the checksum and change bytes that matter.
    assert!(loaded > 0 && refused > 100, "{loaded} loaded, {refused} refused");
    Ok(())
}

#[test]
fn any_flipped_byte_of_the_archive_is_an_error_or_a_success() -> Result {
    let whole = zip(&entries("pickle")?)?;
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let folder = Folder::of("pickle")?;
    for _ in 0..600 {
        let at = rng.random_range(0..whole.len());
        let to = rng.random::<u8>();
        let mut bytes = whole.clone();
        bytes[at] = to;
        folder.write(BIN, bytes)?;
        let loaded = catch_unwind(AssertUnwindSafe(|| folder.load().map(|_| ())));
        assert!(loaded.is_ok(), "byte {at} of the archive as {to:#04x} panics");
    }
    Ok(())
}

#[test]
fn a_storage_beyond_the_end_of_the_file_is_an_error() -> Result {
    let entries = entries("pickle")?;
    let mut bytes = zip(&entries)?;
    // The local header of the last weights says that 65535 bytes of extra fields come before them.
    let name = b"pytorch_model/data/28";
    let local = bytes.windows(name.len()).position(|w| w == name).ok_or("there")? - 30;
    bytes[local + 28..local + 30].copy_from_slice(&u16::MAX.to_le_bytes());
    assert!(bytes.len() < 65_535);
    let folder = Folder::of("pickle")?;
    folder.write(BIN, bytes)?;
    assert!(folder.load().is_err());
    Ok(())
}

#[test]
fn pickles_that_hold_no_weights_are_errors() -> Result {
    // Protocol 2, then the operations that each name describes, then the end.
    for (what, pickle, part) in [
        ("a list", &b"\x80\x02]."[..], "is a pickled list"),
        ("a number", b"\x80\x02K\x01.", "holds no state dictionary"),
        (
            "a call of os.system",
            b"\x80\x02cposix\nsystem\nX\x02\0\0\0ls\x85R.",
            "a pickled object, posix.system",
        ),
        ("a whole module", b"\x80\x02ctransformers\nGPT2Model\n)\x81}b.", "transformers.GPT2Model; load it"),
    ] {
        assert_unread(what, &with_pickle(pickle)?, &[part]);
    }
    // What is no tensor is no parameter, and is never called.
    let call = b"\x80\x02}X\x01\0\0\0ucposix\nsystem\nX\x02\0\0\0ls\x85Rs.";
    assert_eq!(
        with_pickle(call)?.audit()?.missing.len(),
        load("untied", DType::F32)?.config().parameters()?.len()
    );
    for (what, pickle) in [
        ("nothing on the stack", &b"\x80\x02."[..]),
        ("an unknown operation", b"\x80\x02\xff."),
        ("a memo that was never put", b"\x80\x02h\x07."),
        ("no mark", b"\x80\x02t."),
        ("a tensor without arguments", b"\x80\x02}X\x01\0\0\0uctorch._utils\n_rebuild_tensor_v2\n)Rs."),
        ("a parameter without a tensor", b"\x80\x02}X\x01\0\0\0uctorch._utils\n_rebuild_parameter\n)Rs."),
    ] {
        assert_damaged(what, &with_pickle(pickle)?, BIN, &[]);
    }
    Ok(())
}

#[test]
fn an_integer_of_many_bytes_is_an_error_or_a_success() -> Result {
    // LONG1 of 255 bytes: shifting it into 64 bits overflows, which panics if overflow checks are on.
    let mut pickle = b"\x80\x02}X\x01\0\0\0u\x8a\xff".to_vec();
    pickle.extend([1; 255]);
    pickle.extend(b"s.");
    assert!(with_pickle(&pickle)?.load().is_err());
    Ok(())
}

/// The loader compares the archive's checksum with its storages; nothing else would notice this damage.
#[test]
fn a_flipped_bit_in_any_storage_is_an_error_that_names_it() -> Result {
    let entries = entries("pickle")?;
    let whole = zip(&entries)?;
    let folder = Folder::of("pickle")?;
    let mut storages = 0;
    for (name, content) in
        entries.iter().filter(|(name, content)| name.contains("/data/") && !content.is_empty())
    {
        let local = whole.windows(name.len()).position(|w| w == name.as_bytes()).ok_or("its local header")?;
        let data = whole[local..].windows(content.len()).position(|w| w == &content[..]).ok_or("its data")?;
        let mut bytes = whole.clone();
        bytes[local + data + content.len() / 2] ^= 1;
        folder.write(BIN, bytes)?;
        assert_damaged(name, &folder, BIN, &[name, "CRC-32"]);
        storages += 1;
    }
    assert!(storages > 10, "{storages} storages");
    folder.write(BIN, whole)?;
    folder.load()?;
    Ok(())
}

/// The sizes of an entry stand twice: before its data, and in the directory at the end of the archive.
#[test]
fn a_size_that_contradicts_the_others_is_an_error() -> Result {
    let whole = zip(&entries("pickle")?)?;
    for name in ["pytorch_model/data.pkl", "pytorch_model/data/7"] {
        let ends = [name.as_bytes(), b"PK"].concat();
        let places: Vec<usize> =
            (0..whole.len()).filter(|&at| whole[at..].starts_with(name.as_bytes())).collect();
        // The name follows its local header of 30 bytes, and its 46 bytes in the directory.
        let local = places[0] - 30;
        let central = places[places.len() - 1] - 46;
        assert!(whole[local..].starts_with(b"PK\x03\x04") && whole[central..].starts_with(b"PK\x01\x02"));
        assert!(whole[central + 46..].starts_with(&ends), "the last one of this name");
        for (what, at) in [
            ("compressed, before the data", local + 18),
            ("plain, before the data", local + 22),
            ("compressed, in the directory", central + 20),
            ("plain, in the directory", central + 24),
        ] {
            for change in [1, -1i32] {
                let mut bytes = whole.clone();
                let size = i32::from_le_bytes(bytes[at..at + 4].try_into()?) + change;
                bytes[at..at + 4].copy_from_slice(&size.to_le_bytes());
                let folder = Folder::of("pickle")?;
                folder.write(BIN, bytes)?;
                assert_damaged(&format!("{name}: {what}, {change:+}"), &folder, BIN, &[name]);
            }
        }
    }
    Ok(())
}

/// A field of 0 says that the size follows the data; one of 2^32 - 1 that it stands in a field for large files.
#[test]
fn a_size_that_stands_elsewhere_is_no_contradiction() -> Result {
    let whole = zip(&entries("pickle")?)?;
    let expected = parameter_bits(&load("untied", DType::F32)?)?;
    for name in ["pytorch_model/data.pkl", "pytorch_model/data/7"] {
        let local = whole.windows(name.len()).position(|w| w == name.as_bytes()).ok_or("there")? - 30;
        for size in [0, u32::MAX] {
            let mut bytes = whole.clone();
            bytes[local + 18..local + 22].copy_from_slice(&size.to_le_bytes());
            bytes[local + 22..local + 26].copy_from_slice(&size.to_le_bytes());
            let folder = Folder::of("pickle")?;
            folder.write(BIN, bytes)?;
            assert!(parameter_bits(&folder.load()?)? == expected, "{name}: {size}");
        }
    }
    Ok(())
}

#[test]
fn the_pickle_may_be_anywhere_in_the_archive() -> Result {
    let expected = parameter_bits(&load("untied", DType::F32)?)?;
    let mut backwards = entries("pickle")?;
    backwards.reverse();
    let mut at_the_root = backwards.clone();
    for (name, _) in &mut at_the_root {
        *name = name.replace("pytorch_model/", "");
    }
    assert!(at_the_root.iter().any(|(name, _)| name == "data.pkl"));
    for (what, entries) in [("the last", backwards), ("without a folder", at_the_root)] {
        let folder = Folder::of("pickle")?;
        folder.write(BIN, zip(&entries)?)?;
        assert!(parameter_bits(&folder.load()?)? == expected, "{what}");
    }
    Ok(())
}

#[test]
fn a_pickle_has_at_most_four_mebibytes() -> Result {
    let pickle = entries("pickle")?.swap_remove(0).1;
    assert!(pickle.starts_with(b"\x80\x02"));
    // `X` puts a text below all other objects, where nothing asks for it.
    let of_len = |len: usize| {
        let text = len - pickle.len() - 5;
        let size = u32::try_from(text).expect("a few mebibytes").to_le_bytes();
        [b"\x80\x02X", &size[..], &vec![b' '; text], &pickle[2..]].concat()
    };
    with_pickle(&of_len(4 << 20))?.load()?;
    let message = with_pickle(&of_len((4 << 20) + 1))?.refusal("a byte more");
    assert_says("a byte more", &message, &["data.pkl has more than 4194304 bytes"]);
    Ok(())
}
