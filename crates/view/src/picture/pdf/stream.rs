//! The data of a PDF, compressed.

use miniz_oxide::deflate::compress_to_vec_zlib;

/// The strength, 0 to 10: a higher one hardly makes a picture smaller.
const LEVEL: u8 = 6;

/// `data` as [`pdf_writer::Filter::FlateDecode`] expects it.
pub(super) fn compressed(data: &[u8]) -> Vec<u8> {
    compress_to_vec_zlib(data, LEVEL)
}
