//! A `pytorch_model.bin` around a pickle: a valid zip, so that the fuzzer reaches what is inside.

use std::io::{Cursor, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Storages `0` to `19`, each large enough for any tensor of the tiny model.
const STORAGES: usize = 20;
const STORAGE: [u8; 256] = [0; 256];

pub(super) fn around(pickle: &[u8]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(vec![]));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    let mut add = |name: String, data: &[u8]| {
        zip.start_file(name, options).expect("a new entry");
        zip.write_all(data).expect("memory can be written to");
    };
    add("archive/data.pkl".into(), pickle);
    (0..STORAGES).for_each(|i| add(format!("archive/data/{i}"), &STORAGE));
    zip.finish().expect("a zip").into_inner()
}
