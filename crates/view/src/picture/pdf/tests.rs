//! Reads the files back as a viewer does: by the table of objects, through the page to its content and its font.

use super::*;
use crate::picture::letters::{Letters, visual};
use crate::picture::png::tests::provenance;
use crate::picture::scene::{Anchor, TextStyle, WHITE};
use crate::text::tests::NASTY;
use miniz_oxide::inflate::decompress_to_vec_zlib;
use serde_json::json;
use std::collections::HashMap;

/// A PDF's objects by their number: what comes before a stream as text, and the stream.
struct PdfObjects {
    objects: HashMap<usize, (String, Vec<u8>)>,
}

fn find(bytes: &[u8], part: &str, from: usize) -> Option<usize> {
    let found = bytes[from..].windows(part.len()).position(|window| window == part.as_bytes());
    found.map(|at| from + at)
}

impl PdfObjects {
    fn of(file: &[u8]) -> Self {
        assert!(file.starts_with(b"%PDF-1.7\n") && file.ends_with(b"%%EOF"));
        let end = String::from_utf8_lossy(&file[file.len() - 40..]).into_owned();
        let table: usize =
            end.split("startxref\n").nth(1).and_then(|rest| rest.lines().next()).unwrap().parse().unwrap();
        let table = std::str::from_utf8(&file[table..]).expect("a table");
        let mut objects = HashMap::new();
        for (number, line) in table.lines().skip(2).take_while(|line| line.len() >= 18).enumerate().skip(1) {
            let at: usize = line[..10].parse().expect("a place");
            let head = format!("{number} 0 obj\n");
            assert!(file[at..].starts_with(head.as_bytes()), "object {number} is not at {at}");
            let end = find(file, "\nendobj", at).expect("an end");
            let body = &file[at + head.len()..end];
            let stream = find(body, "stream\n", 0);
            let text = String::from_utf8_lossy(&body[..stream.unwrap_or(body.len())]).into_owned();
            let data = stream.map(|start| {
                let length = after(&text, "/Length ").expect("a length").parse::<usize>().unwrap();
                let start = start + "stream\n".len();
                let data = &file[at + head.len() + start..at + head.len() + start + length];
                decompress_to_vec_zlib(data).expect("deflate")
            });
            objects.insert(number, (text, data.unwrap_or_default()));
        }
        Self { objects }
    }

    /// The object that has this in its text.
    fn with(&self, part: &str) -> &(String, Vec<u8>) {
        let mut all = self.objects.values().filter(|(text, _)| text.contains(part));
        let found = all.next().unwrap_or_else(|| panic!("no object with {part}"));
        assert!(all.next().is_none(), "two objects with {part}");
        found
    }

    /// The object to which `key` of an object refers.
    fn to(&self, text: &str, key: &str) -> &(String, Vec<u8>) {
        &self.objects[&after(text, key).expect(key).trim_start_matches('[').parse().expect("a number")]
    }
}

/// The first word after `key`.
fn after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.split(key).nth(1)?.split_whitespace().next()
}

/// The bytes of a string, of either kind.
fn string(token: &[u8]) -> Vec<u8> {
    if token[0] == b'<' {
        let hex = std::str::from_utf8(&token[1..token.len() - 1]).unwrap();
        return (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect();
    }
    let mut out = vec![];
    let mut bytes = token[1..token.len() - 1].iter();
    while let Some(byte) = bytes.next() {
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        out.push(match bytes.next().unwrap() {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 8,
            b'f' => 12,
            digit @ b'0'..=b'7' => {
                let rest = [*bytes.next().unwrap(), *bytes.next().unwrap()];
                (digit - b'0') * 64 + (rest[0] - b'0') * 8 + rest[1] - b'0'
            }
            other => *other,
        });
    }
    out
}

/// The texts of a page, each with the matrix that places it.
fn texts(reader: &PdfObjects) -> Vec<(String, Vec<f32>)> {
    let (page, _) = reader.with("/Type /Page\n");
    let (_, content) = reader.to(page, "/Contents ");
    let (font, _) = reader.with("/Subtype /Type0");
    let map = String::from_utf8(reader.to(font, "/ToUnicode ").1.clone()).expect("text");
    let mut characters: HashMap<u16, String> = HashMap::new();
    for line in map.lines().filter(|line| line.starts_with('<') && line.contains("> <")) {
        let (code, units) = line[1..line.len() - 1].split_once("> <").unwrap();
        if units.is_empty() || line.contains("<FFFF>") && code == "0000" {
            continue;
        }
        let unit = |i: usize| u16::from_str_radix(&units[i * 4..i * 4 + 4], 16).unwrap();
        let units: Vec<u16> = (0..units.len() / 4).map(unit).collect();
        characters
            .insert(u16::from_str_radix(code, 16).unwrap(), String::from_utf16(&units).expect("UTF-16"));
    }
    let mut found = vec![];
    let mut rest = &content[..];
    while let Some(begin) = find(rest, "BT\n", 0) {
        let matrix_end = find(rest, " Tm\n", begin).expect("a matrix");
        let line = std::str::from_utf8(&rest[begin..matrix_end]).unwrap().lines().last().unwrap();
        let matrix = line.split(' ').map(|number| number.parse().unwrap()).collect();
        let start = matrix_end + " Tm\n".len();
        let end = find(rest, " Tj\nET", start).expect("text");
        let codes = string(&rest[start..end]);
        let codes = codes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
        found.push((codes.map(|code| characters[&code].as_str()).collect(), matrix));
        rest = &rest[end..];
    }
    found
}

fn scene() -> Result<Scene> {
    let mut scene = Scene::new(Letters::new()?, (400.0, 600.0), "a title (with) \\ é")?;
    for (i, text) in NASTY.iter().chain(&["(", ")\\", "漢漢", "loss"]).enumerate() {
        let style =
            TextStyle::new(14.0, (1, 2, 3)).anchor(if i % 2 == 0 { Anchor::Start } else { Anchor::End });
        scene.text(*text, (200.0, i as f32 * 16.0), if i % 3 == 0 { style.upward() } else { style });
    }
    Ok(scene)
}

#[test]
fn texts_can_be_found_where_the_scene_has_them() -> Result<()> {
    let scene = scene()?;
    let file = write(&scene, &Provenance::default())?;
    let found = texts(&PdfObjects::of(&file));
    let expected = scene.marks.iter().filter_map(|mark| match mark {
        Mark::Text(text) if !text.shown.is_empty() => Some(text),
        _ => None,
    });
    let expected: Vec<&PlacedText> = expected.collect();
    assert_eq!(found.len(), expected.len());
    for ((found, matrix), text) in found.iter().zip(expected) {
        assert_eq!(*found, visual(&text.shown).into_iter().collect::<String>());
        let (x, y) = text.start();
        assert!((matrix[4] - x).abs() < 0.01 && (matrix[5] - y).abs() < 0.01, "{found} at {matrix:?}");
        assert_eq!(matrix[0] == 0.0, text.style.upward);
    }
    assert_eq!(file, write(&scene, &Provenance::default())?, "two runs write the same");
    Ok(())
}

#[test]
fn the_font_has_the_letters_with_their_widths_and_no_others() -> Result<()> {
    let scene = scene()?;
    let reader = PdfObjects::of(&write(&scene, &Provenance::default())?);
    let (cid_font, _) = reader.with("/Subtype /CIDFontType2");
    let (_, map) = reader.to(cid_font, "/CIDToGIDMap ");
    let (descriptor, _) = reader.to(cid_font, "/FontDescriptor ");
    let (_, file) = reader.to(descriptor, "/FontFile2 ");
    assert!(file.len() < 60_000 && Letters::file().len() > 500_000, "{} bytes", file.len());
    // The tables of the subset that is embedded.
    let table = |tag: &str| {
        let at = find(file, tag, 12).expect(tag);
        let number = |at: usize| u32::from_be_bytes(file[at..at + 4].try_into().unwrap()) as usize;
        &file[number(at + 8)..number(at + 8) + number(at + 12)]
    };
    let short = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let glyphs = short(table("maxp"), 4);
    let metrics = short(table("hhea"), 34);
    let widths = cid_font.split("/W [1 [").nth(1).expect("widths").split(']').next().unwrap();
    let widths: Vec<f32> = widths.split_whitespace().map(|width| width.parse().unwrap()).collect();
    assert_eq!(map.len(), 2 * (widths.len() + 1));
    for (i, width) in widths.iter().enumerate() {
        let glyph = short(map, 2 * (i + 1));
        assert!(glyph < glyphs, "glyph {glyph} of {glyphs}");
        let advance = short(table("hmtx"), 4 * usize::from(glyph.min(metrics - 1)));
        let advance = f32::from(advance) / 2.048;
        // Marks take no room, and what the font lacks may be two boxes wide.
        assert!(
            (advance - width).abs() < 1.0
                || *width == 0.0
                || (glyph == 0 && (2.0 * advance - width).abs() < 1.0),
            "character {i}: {width} and {advance}"
        );
    }
    Ok(())
}

#[test]
fn it_says_what_made_it() -> Result<()> {
    let facts = json!({ "model": "gpt2 (small) \\", "ids": [1, 2] });
    let reader = PdfObjects::of(&write(&scene()?, &provenance("", facts.clone()))?);
    let (info, _) = &reader.objects[&1];
    assert!(info.contains(&format!("/Producer ({SOFTWARE})")), "{info}");
    let subject =
        info.split("/Subject ").nth(1).expect("a subject").trim_end().trim_end_matches('>').trim_end();
    let subject = String::from_utf8(string(subject.as_bytes())).expect("ASCII");
    assert_eq!(serde_json::from_str::<Value>(&subject).expect("JSON"), facts);
    let title = info.split("/Title ").nth(1).expect("a title").lines().next().unwrap();
    let units: Vec<u8> = string(title.as_bytes());
    let units: Vec<u16> = units.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
    assert_eq!(String::from_utf16(&units).unwrap(), format!("\u{feff}{}", scene()?.title));
    let plain = write(&scene()?, &Provenance::default())?;
    assert!(find(&plain, "/Subject", 0).is_none() && find(&plain, "Date", 0).is_none());
    Ok(())
}

#[test]
fn cells_are_images_with_their_colors() -> Result<()> {
    let mut scene = Scene::new(Letters::new()?, (100.0, 80.0), "")?;
    let colors = vec![Some((1, 2, 3)), None, Some((255, 0, 9)), Some((7, 7, 7))];
    scene.cells(Cells { x: 10.0, y: 20.0, width: 20.0, height: 20.0, columns: 2, colors });
    let reader = PdfObjects::of(&write(&scene, &Provenance::default())?);
    let (image, pixels) = reader.with("/Subtype /Image");
    assert!(image.contains("/Width 20\n") && image.contains("/Interpolate false"), "{image}");
    let at = |x: usize, y: usize| {
        (pixels[(y * 20 + x) * 3], pixels[(y * 20 + x) * 3 + 1], pixels[(y * 20 + x) * 3 + 2])
    };
    assert_eq!([at(0, 0), at(9, 9), at(10, 0), at(19, 9)], [(1, 2, 3), (1, 2, 3), WHITE, WHITE]);
    assert_eq!([at(0, 10), at(10, 10), at(19, 19)], [(255, 0, 9), (7, 7, 7), (7, 7, 7)]);
    let (page, _) = reader.with("/Type /Page\n");
    assert!(page.contains("/MediaBox [0 0 75 60]"), "{page}");
    let content = String::from_utf8(reader.to(page, "/Contents ").1.clone()).unwrap();
    assert!(
        content.starts_with("0.75 0 0 -0.75 0 60 cm\n") && content.contains("20 0 0 -20 10 40 cm\n/I0 Do"),
        "{content}"
    );
    Ok(())
}
