//! Recognizes files that this crate wrote, which a new one may replace without harm.
//!
//! Only the beginning of a file counts, not its name. In case of doubt, the file belongs to someone else.

use crate::picture::signature::{PDF_MADE_BY, SVG_MADE_BY, SVG_START};
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// How much of a file to read, apart from the header of a safetensors file.
const WINDOW: u64 = 64 << 10;
/// How the facts of a JSON file that name this program begin.
const FACTS: usize = 1 << 10;
/// The longest header of a safetensors file to read.
const LONGEST_HEADER: u64 = 16 << 20;
/// The metadata entry of a safetensors file that names this program.
const KEY: &str = "gpt2";
const METRICS: &[u8] = b"step,loss,val_loss,lr,grad_norm";

/// The kinds of files that [`is_ours`] recognizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileKind {
    /// From [`write_safetensors`](crate::write_safetensors), if the caller gave a metadata entry `gpt2`.
    Safetensors,
    /// Attention as Candle's `write_npy` writes it: f32, (layers, heads, T, T).
    Npy,
    /// From [`write_json_lines`](crate::write_json_lines) after a
    /// [`write_provenance_line`](crate::write_provenance_line) whose facts name `gpt2`.
    JsonLines,
    /// From [`write_square_json`](crate::write_square_json) with facts that name `gpt2`.
    SquareJson,
    /// From [`head_picture`](crate::head_picture), [`HeadGrid`](crate::HeadGrid), [`NumberMap`](crate::NumberMap) or
    /// [`loss_curve`](crate::loss_curve).
    Png,
    /// The same as SVG.
    Svg,
    /// The same as PDF.
    Pdf,
    /// From [`PageWriter`](crate::PageWriter).
    Page,
    /// A training run's table: `step,loss,val_loss,lr,grad_norm`.
    MetricsCsv,
    /// The same as JSON lines.
    MetricsJsonLines,
    /// A record of how another file was made: a JSON object that names this program's version and the model.
    Provenance,
}

impl fmt::Display for FileKind {
    /// The name of such a file in messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Safetensors => ".safetensors export",
            Self::Npy => ".npy export",
            Self::JsonLines => ".jsonl export",
            Self::SquareJson => ".json export",
            Self::Png | Self::Svg | Self::Pdf => "picture",
            Self::Page => "page",
            Self::MetricsCsv | Self::MetricsJsonLines => "table of metrics",
            Self::Provenance => "provenance file",
        })
    }
}

/// Whether this program wrote the file at `path`, as a file of that kind. An empty file counts, since it holds
/// nothing to lose.
///
/// Reads no more than the first 64 KiB, or the header of a safetensors file up to 16 MiB. Call it only for regular
/// files: it would consume data from a pipe.
///
/// # Errors
/// When the file cannot be read.
pub fn is_ours(kind: FileKind, path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut start = vec![];
    file.by_ref().take(WINDOW).read_to_end(&mut start)?;
    if start.is_empty() {
        return Ok(true);
    }
    Ok(match kind {
        FileKind::Safetensors => return is_tensors(start, file),
        FileKind::Npy => is_npy(&start),
        FileKind::JsonLines | FileKind::SquareJson => begins_with_facts(&start, b"\"gpt2\":"),
        FileKind::Png => is_png(&start),
        FileKind::Svg => is_svg(&start),
        FileKind::Pdf => is_pdf(&start),
        FileKind::Page => is_page(&start),
        FileKind::MetricsCsv => first_line(&start).is_some_and(|line| line == METRICS),
        FileKind::Provenance => is_provenance(&start),
        FileKind::MetricsJsonLines => first_object(&start).is_some_and(|row| {
            let columns = METRICS.split(|byte| *byte == b',');
            row.len() == columns.clone().count()
                && columns.flat_map(std::str::from_utf8).all(|c| row.contains_key(c))
        }),
    })
}

/// The first line without its end, if the line is complete.
fn first_line(start: &[u8]) -> Option<&[u8]> {
    let end = start.iter().position(|byte| *byte == b'\n')?;
    Some(start[..end].strip_suffix(b"\r").unwrap_or(&start[..end]))
}

fn first_object(start: &[u8]) -> Option<serde_json::Map<String, Value>> {
    serde_json::from_slice(first_line(start)?).ok()
}

/// Indented JSON that begins with this program's version and the model.
fn is_provenance(start: &[u8]) -> bool {
    let start = &start[..start.len().min(FACTS)];
    start.starts_with(b"{\n  \"gpt2\": \"") && contains(start, b"\n  \"model\": \"")
}

/// An object whose first entry is `provenance`, which is itself an object with that key near its beginning. No string
/// can imitate this: in a JSON string, every quote has a backslash.
fn begins_with_facts(start: &[u8], key: &[u8]) -> bool {
    start.starts_with(b"{\"provenance\":{") && contains(&start[..start.len().min(FACTS)], key)
}

fn contains(start: &[u8], part: &[u8]) -> bool {
    start.windows(part.len()).any(|window| window == part)
}

fn is_tensors(start: Vec<u8>, rest: File) -> io::Result<bool> {
    #[derive(Deserialize)]
    struct Header {
        #[serde(rename = "__metadata__")]
        metadata: HashMap<String, String>,
    }
    let Some((length, _)) = start.split_first_chunk() else { return Ok(false) };
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER {
        return Ok(false);
    }
    let mut header = vec![];
    io::Cursor::new(start).chain(rest).take(8 + length).read_to_end(&mut header)?;
    let header = serde_json::from_slice::<Header>(&header[8..]);
    Ok(header.is_ok_and(|header| header.metadata.contains_key(KEY)))
}

/// Candle writes `(1,2,3,3,)` and `numpy.save` writes `(1, 2, 3, 3)`, so files from `NumPy` are not ours.
fn is_npy(start: &[u8]) -> bool {
    let shape = || {
        let header = start.strip_prefix(b"\x93NUMPY\x01\x00")?.get(2..)?;
        let header = std::str::from_utf8(first_line(header)?).ok()?;
        let shape = header.strip_prefix("{'descr': '<f4', 'fortran_order': False, 'shape': (")?;
        let shape = shape.trim_end().strip_suffix(",), }")?;
        shape.split(',').map(|size| size.parse().ok()).collect::<Option<Vec<usize>>>()
    };
    shape().is_some_and(|shape| shape.len() == 4 && shape[2] == shape[3])
}

fn is_png(start: &[u8]) -> bool {
    let Some(mut chunks) = start.strip_prefix(b"\x89PNG\r\n\x1a\n") else { return false };
    // A chunk: the length of its data, its type, its data, a checksum.
    while let Some((head, rest)) = chunks.split_first_chunk::<8>() {
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let Some((data, rest)) = rest.split_at_checked(length) else { return false };
        if &head[4..] == b"tEXt" && data.starts_with(b"Software\0gpt2 ") {
            return true;
        }
        chunks = rest.get(4..).unwrap_or_default();
    }
    false
}

/// The root and, as its first element, metadata that begin with this program. No text or attribute can imitate this:
/// in our files they have no `<` before that.
fn is_svg(start: &[u8]) -> bool {
    let start = &start[..start.len().min(FACTS)];
    let root = start.split(|byte| *byte == b'>').next().unwrap_or_default();
    start.starts_with(SVG_START.as_bytes()) && start[root.len()..].starts_with(SVG_MADE_BY.as_bytes())
}

/// The header, a comment of four bytes, and as the first object the information that this program produced it.
fn is_pdf(start: &[u8]) -> bool {
    let Some(rest) = start.strip_prefix(b"%PDF-1.7\n%") else { return false };
    rest.get(4..).is_some_and(|rest| rest.trim_ascii_start().starts_with(PDF_MADE_BY.as_bytes()))
}

fn is_page(start: &[u8]) -> bool {
    let begins = &start[..start.len().min(1024)];
    begins.starts_with(b"<!doctype html>")
        && contains(begins, b"<meta name=\"generator\" content=\"gpt2-view\">")
}

#[cfg(test)]
mod tests;
