//! Checks each kind with a file that this crate writes and with other files of the same name.

use super::*;
use crate::{HeadGrid, NumberMap, PageHeader, PageWriter, PictureFormat, Provenance};
use crate::{head_picture, loss_curve, summarize};
use crate::{write_json_lines, write_provenance_line, write_safetensors, write_square_json};
use candle_core::{DType, Device, Result, Tensor};
use serde_json::json;
use std::path::PathBuf;
use std::{fs, io};

/// A temporary folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("gpt2-view-{name}-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn provenance() -> Provenance {
    Provenance {
        caption: "f32 on cpu".to_owned(),
        facts: json!({ "gpt2": "0.1.0", "model": "gpt2", "prompt": "a 漢\n" }),
    }
}

fn tokens() -> [String; 2] {
    ["a".to_owned(), " b".to_owned()]
}

/// (1, 2, 2)
fn weights() -> Result<Tensor> {
    Tensor::new(&[[[1f32, 0.], [0.25, 0.75]]], &Device::Cpu)
}

/// Asserts that files with these bytes are of that kind, or that none of them is.
fn assert_kind<const N: usize>(kind: FileKind, ours: bool, files: [&[u8]; N]) -> Result<()> {
    let folder = Folder::new(&format!("recognize-{kind:?}-{ours}"))?;
    for (i, bytes) in files.into_iter().enumerate() {
        let path = folder.0.join(i.to_string());
        fs::write(&path, bytes)?;
        let start = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
        assert_eq!(is_ours(kind, &path)?, ours, "{kind:?} {i}: {start}");
    }
    Ok(())
}

/// The bytes that `write` writes to the path it gets.
fn written(name: &str, write: impl FnOnce(&Path) -> Result<()>) -> Result<Vec<u8>> {
    let folder = Folder::new(&format!("written-{name}"))?;
    let path = folder.0.join("file");
    write(&path)?;
    Ok(fs::read(path)?)
}

fn tensors(name: &str, metadata: &[(&str, String)]) -> Result<Vec<u8>> {
    // The header comes first and its metadata before the tensors; some have thousands.
    let names: Vec<String> = (0..3000).map(|i| format!("h.{i}.attn.c_attn.weight")).collect();
    let x = Tensor::zeros(1, DType::F32, &Device::Cpu)?;
    let tensors: Vec<_> = names.iter().map(|name| (name.as_str(), &x)).collect();
    written(name, |path| write_safetensors(path, &tensors, metadata))
}

#[test]
fn tensors_are_told_by_their_metadata() -> Result<()> {
    let version = ("gpt2", "0.1.0".to_owned());
    let small = written("small", |path| write_safetensors(path, &[], std::slice::from_ref(&version)))?;
    let long = tensors("long", &[("a", "x".repeat(100_000)), version])?;
    assert!(long.len() as u64 > 2 * WINDOW, "the header is longer than the window");
    assert_kind(FileKind::Safetensors, true, [&small, &long])?;

    let named = tensors("named", &[("model", "gpt2".to_owned())])?;
    let gpt2 = Tensor::zeros(1, DType::F32, &Device::Cpu)?;
    let tensor = written("tensor", |path| write_safetensors(path, &[("gpt2", &gpt2)], &[]))?;
    let bare = safetensors::serialize([("x", &gpt2)], None)?;
    let large = [&(LONGEST_HEADER + 1).to_le_bytes()[..], &small[8..]].concat();
    let cut = &long[..long.len() / 2];
    assert_kind(
        FileKind::Safetensors,
        false,
        [&named, &tensor, &bare, &large, cut, b"short", b"a text file\n"],
    )
}

#[test]
fn npy_is_told_by_candles_spelling_of_a_square() -> Result<()> {
    let npy = |dims: &[usize], dtype: DType| {
        written("npy", |path| Tensor::zeros(dims, dtype, &Device::Cpu)?.write_npy(path))
    };
    assert_kind(
        FileKind::Npy,
        true,
        [&npy(&[2, 1, 3, 3], DType::F32)?, &npy(&[12, 12, 128, 128], DType::F32)?],
    )?;
    let numpy = |header: &str| {
        let header = format!("{header:117}\n");
        [b"\x93NUMPY\x01\x00v\x00", header.as_bytes(), &[0; 72]].concat()
    };
    let theirs = numpy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, 3, 3), }");
    let turned = numpy("{'descr': '<f4', 'fortran_order': True, 'shape': (2,1,3,3,), }");
    let (flat, oblong) = (npy(&[2, 3, 3], DType::F32)?, npy(&[2, 1, 3, 4], DType::F32)?);
    let wide = npy(&[2, 1, 3, 3], DType::F64)?;
    assert_kind(FileKind::Npy, false, [&theirs, &turned, &flat, &oblong, &wide, b"\x93NUMPY", b"1 2 3\n"])
}

#[test]
fn json_lines_are_told_by_the_first() -> Result<()> {
    let (mut with, mut without) = (vec![], vec![]);
    write_provenance_line(&mut with, &provenance())?;
    write_json_lines(&mut with, &tokens(), 0, &[3], &weights()?)?;
    write_json_lines(&mut without, &tokens(), 0, &[3], &weights()?)?;
    let mut unknown = vec![];
    write_provenance_line(&mut unknown, &Provenance::default())?;
    assert_kind(FileKind::JsonLines, true, [&with])?;
    assert_kind(FileKind::JsonLines, false, [&without, &unknown])?;
    let strangers: [&[u8]; 7] = [
        b"{\"provenance\": \"the only copy of my notes, on \\\"gpt2\\\":\"}\n",
        b"{\"text\":\"a\"}\n",
        b"{\"layer\":0,\"head\":0}\n",
        b"{\"provenance\":{},\"text\":\"a\"}\n",
        b"\"provenance\"\n",
        b"\n{\"provenance\":{}}\n",
        b"{\"provenance\":{}",
    ];
    assert_kind(FileKind::JsonLines, false, strangers)
}

#[test]
fn squares_are_told_by_their_keys() -> Result<()> {
    let squares = |provenance: &Provenance| {
        let mut out = vec![];
        write_square_json(&mut out, &tokens(), &[0], &[3], [weights()], provenance)?;
        Result::Ok(out)
    };
    assert_kind(FileKind::SquareJson, true, [&squares(&provenance())?])?;
    assert_kind(FileKind::SquareJson, false, [&squares(&Provenance::default())?])?;
    // Its tokens may have any length.
    let long = [" ".repeat(70_000), " b".to_owned()];
    let mut out = vec![];
    write_square_json(&mut out, &long, &[0], &[3], [weights()], &provenance())?;
    assert_kind(FileKind::SquareJson, true, [&out])?;
    let strangers: [&[u8]; 7] = [
        b"{\"tokens\":[\"a\"],\"attention\":[[1]],\"notes\":1}",
        b"{}",
        b"[[1.0]]",
        b"{\"tokens\":[\"a\"]}",
        b"{\"tokens\":[\"\\\"attention\\\":[\"]}",
        b"{\"provenance\":{},\"attention\":[]}",
        b"{\"attention\":[],\"tokens\":[]}",
    ];
    assert_kind(FileKind::SquareJson, false, strangers)
}

#[test]
fn pictures_are_told_by_their_software() -> Result<()> {
    let mut grid = HeadGrid::default();
    grid.add(0, &[3], &weights()?)?;
    let (tokens, plain, weights) = (tokens(), Provenance::default(), weights()?.get(0)?);
    let map = NumberMap { title: "d <metadata>", rows: &tokens, columns: &tokens, ..NumberMap::default() };
    let mut heads = vec![];
    for format in [PictureFormat::Png, PictureFormat::Svg, PictureFormat::Pdf] {
        let head = head_picture(format, "a", &weights, &tokens, &tokens, &plain)?;
        let curve = loss_curve(format, "c", &[(1, 2.0)], &[], &plain)?;
        let (grid, map) = (grid.finish(format, "b", &provenance())?, map.draw(format, &weights, &plain)?);
        for kind in [FileKind::Png, FileKind::Svg, FileKind::Pdf] {
            assert_kind(kind, kind == format.kind(), [&head, &grid, &curve, &map])?;
        }
        heads.push(head);
    }
    let [head, svg, pdf] = &heads[..] else { unreachable!() };
    let edited = |file: &[u8], from: &str, to: &str| {
        let at = file.windows(from.len()).position(|part| part == from.as_bytes()).expect(from);
        [&file[..at], to.as_bytes(), &file[at + from.len()..]].concat()
    };
    assert_kind(
        FileKind::Svg,
        false,
        [
            &edited(svg, "\"gpt2 ", "\"Inkscape "),
            &edited(svg, "<metadata>", "<title>x</title><metadata>"),
            &edited(svg, "<svg ", "<svg  "),
            b"<svg xmlns=\"http://www.w3.org/2000/svg\" a=\"<metadata>{software:gpt2 \"/>",
            b"<svg xmlns=\"http://www.w3.org/2000/svg\" ",
            &svg[..40],
        ],
    )?;
    assert_kind(
        FileKind::Pdf,
        false,
        [
            &edited(pdf, "/Producer (gpt2 ", "/Producer (LaTeX "),
            &edited(pdf, "/Producer (gpt2 ", "/Producer (gpt2plot "),
            b"%PDF-1.7\n%",
            b"%PDF-1.7\n%\x80\x80\x80\x80\n\n2 0 obj\n(1 0 obj << /Producer (gpt2 0.1.0)",
            &pdf[1..],
            &pdf[..30],
        ],
    )?;

    let png = |software: Option<&str>| {
        let mut file = vec![];
        let mut encoder = png::Encoder::new(&mut file, 1, 1);
        if let Some(software) = software {
            encoder.add_text_chunk("Software".into(), software.into()).unwrap();
        }
        encoder.add_text_chunk("Comment".into(), "Software\0gpt2 1".into()).unwrap();
        encoder.write_header().unwrap().write_image_data(&[0]).unwrap();
        file
    };
    let (none, theirs, alike) = (png(None), png(Some("GIMP")), png(Some("gpt2plot 1")));
    // A length that reaches beyond the file.
    let broken = [&head[..8], &[0xff; 8], &head[8..]].concat();
    assert_kind(FileKind::Png, false, [&none, &theirs, &alike, &broken, &head[..20], &head[1..]])
}

#[test]
fn pages_are_told_by_their_generator() -> Result<()> {
    let (tokens, provenance) = (tokens(), provenance());
    let header = PageHeader { queries: 2, ..PageHeader::new("m", &tokens, 1, &provenance) };
    let mut page = PageWriter::new(vec![], &header)?;
    page.layer(0, &[3], &weights()?, &summarize(&weights()?)?)?;
    let page = page.finish(&[])?;
    assert_kind(FileKind::Page, true, [&page])?;
    let generator = "<meta name=\"generator\" content=\"gpt2-view\">";
    let late = format!("<!doctype html>{}{generator}", " ".repeat(2000));
    let strangers: [&[u8]; 4] =
        [b"<!doctype html><title>mine</title>", generator.as_bytes(), late.as_bytes(), b"notes"];
    assert_kind(FileKind::Page, false, strangers)
}

#[test]
fn metrics_are_told_by_their_columns() -> Result<()> {
    let header = "step,loss,val_loss,lr,grad_norm";
    let (alone, more) = (format!("{header}\n"), format!("{header}\r\n1,2.5,,0.001,1.0\r\n"));
    assert_kind(FileKind::MetricsCsv, true, [alone.as_bytes(), more.as_bytes()])?;
    let strangers: [&[u8]; 3] =
        [b"step,loss\n1,2\n", b"name,price\nstep,loss,val_loss,lr\n", header.as_bytes()];
    assert_kind(FileKind::MetricsCsv, false, strangers)?;

    let row = b"{\"step\":1,\"loss\":2.5,\"val_loss\":null,\"lr\":0.001,\"grad_norm\":1.0}\n";
    assert_kind(FileKind::MetricsJsonLines, true, [row])?;
    assert_kind(
        FileKind::MetricsJsonLines,
        false,
        [
            b"{\"step\":1,\"loss\":2.5}\n",
            b"[\"step\",\"loss\",\"lr\"]\n",
            b"{\"step\":1,\"loss\":2.5,\"lr\":0.1,\"epoch\":1,\"grad_norm\":1,\"time\":2}\n",
        ],
    )
}

#[test]
fn provenance_is_told_by_its_first_keys() -> Result<()> {
    let facts = "{\n  \"gpt2\": \"0.1.0\",\n  \"model\": \"m\",\n  \"ids\": []\n}\n";
    assert_kind(FileKind::Provenance, true, [facts.as_bytes()])?;
    let strangers: [&[u8]; 3] = [
        b"{\"gpt2\":\"small\",\"model\":\"x\",\"dtype\":\"f32\",\"my\":\"config\"}",
        b"{\n  \"gpt2\": \"small\"\n}\n",
        b"[]",
    ];
    assert_kind(FileKind::Provenance, false, strangers)
}

#[test]
fn nothing_is_lost_with_an_empty_file_and_a_missing_one_is_an_error() -> Result<()> {
    use FileKind::Provenance as Facts;
    use FileKind::{
        JsonLines, MetricsCsv, MetricsJsonLines, Npy, Page, Pdf, Png, Safetensors, SquareJson, Svg,
    };
    let folder = Folder::new("recognize-empty")?;
    let path = folder.0.join("empty");
    fs::write(&path, b"")?;
    for kind in
        [Safetensors, Npy, JsonLines, SquareJson, Png, Svg, Pdf, Page, MetricsCsv, MetricsJsonLines, Facts]
    {
        assert!(is_ours(kind, &path)?, "{kind:?}");
        assert!(is_ours(kind, &folder.0.join("missing")).is_err(), "{kind:?}");
    }
    Ok(())
}
