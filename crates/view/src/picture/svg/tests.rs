//! Reads the files back with a small reader of XML, which refuses what is not well formed.

use super::*;
use crate::picture::letters::Letters;
use crate::picture::png::tests::{decode, provenance};
use crate::picture::raster::whole;
use crate::picture::{HeadGrid, NumberMap, PictureFormat, head_picture, loss_curve};
use crate::text::tests::NASTY;
use candle_core::{Device, Tensor};
use serde_json::Value;
use std::collections::HashMap;

/// An element without its children.
struct Element {
    name: String,
    attributes: HashMap<String, String>,
    /// Up to its first child.
    text: String,
}

impl Element {
    fn number(&self, attribute: &str) -> f32 {
        self.attributes[attribute].parse().expect("a number")
    }
}

fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut parts = text.split('&');
    out += parts.next().unwrap_or_default();
    for part in parts {
        let (name, rest) = part.split_once(';').expect("an entity");
        out.push(match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            _ => char::from_u32(name.strip_prefix('#').expect("a number").parse().unwrap()).unwrap(),
        });
        out += rest;
    }
    out
}

/// The elements in order. Every one is closed, and no character is one that XML forbids.
fn parse(file: &[u8]) -> Vec<Element> {
    let file = std::str::from_utf8(file).expect("UTF-8");
    let forbidden = |c: char| matches!(c, '\0'..='\x08' | '\x0b'..='\x1f' | '\u{fffe}' | '\u{ffff}');
    assert!(!file.contains(forbidden), "a character that XML forbids");
    let (mut elements, mut open) = (vec![], vec![]);
    let mut rest = file.strip_prefix('<').expect("an element");
    loop {
        let (tag, after) = rest.split_once('>').expect("the end of a tag");
        let (text, next) = after.split_once('<').unwrap_or((after, ""));
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name));
        } else {
            let (tag, closed) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
            let (name, mut list) = tag.split_once(' ').unwrap_or((tag, ""));
            let mut attributes = HashMap::new();
            while let Some((key, value)) = list.split_once("=\"") {
                let (value, more) = value.split_once('"').expect("the end of an attribute");
                assert!(!value.contains('<'));
                assert!(attributes.insert(key.trim().to_owned(), unescaped(value)).is_none(), "twice {key}");
                list = more;
            }
            assert!(list.trim().is_empty(), "{list}");
            elements.push(Element { name: name.to_owned(), attributes, text: unescaped(text) });
            if !closed {
                open.push(name.to_owned());
            }
        }
        if open.is_empty() {
            assert!(next.is_empty(), "one root");
            return elements;
        }
        rest = next;
    }
}

fn named<'a>(elements: &'a [Element], name: &'a str) -> impl Iterator<Item = &'a Element> {
    elements.iter().filter(move |element| element.name == name)
}

#[test]
fn texts_are_those_of_the_scene_and_as_wide() -> Result<()> {
    let mut scene = Scene::new(Letters::new()?, (400.0, 600.0), "<title> & \"more\"")?;
    let raw = ["<script>alert(1)</script>", "a & b", "]]>", "\0\x1b\u{ffff}\t"];
    for (i, text) in NASTY.iter().chain(&raw).enumerate() {
        let style = super::super::scene::Style::new(14.0, (1, 2, 3));
        let anchor = [Anchor::Start, Anchor::Middle, Anchor::End][i % 3];
        let style = if i % 2 == 0 { style.upward() } else { style };
        scene.text(*text, (200.0, i as f32 * 16.0), style.anchor(anchor));
    }
    let file = write(&scene, &Provenance::default())?;
    let elements = parse(&file);
    assert_eq!(named(&elements, "title").next().expect("a title").text, scene.title);
    assert_eq!(named(&elements, "script").count(), 0);
    let texts: Vec<&Text> = scene
        .marks
        .iter()
        .filter_map(|mark| if let Mark::Text(text) = mark { Some(text) } else { None })
        .filter(|text| !text.shown.is_empty())
        .collect();
    assert_eq!(named(&elements, "text").count(), texts.len());
    for (found, text) in named(&elements, "text").zip(texts) {
        let shown: String = text
            .shown
            .chars()
            .map(|c| if matches!(c, '\0' | '\x07' | '\x1b' | '\u{ffff}') { '\u{fffd}' } else { c })
            .collect();
        assert_eq!(found.text, shown);
        assert!((found.number("textLength") - text.width).abs() < 0.01, "{shown}");
        assert_eq!((found.number("x"), found.number("y")), text.place);
        assert_eq!(found.attributes["font-size"], "14");
        let anchor = found.attributes.get("text-anchor").map_or("start", String::as_str);
        assert_eq!(anchor, format!("{:?}", text.style.anchor).to_lowercase());
        assert_eq!(found.attributes.contains_key("transform"), text.style.upward);
    }
    assert_eq!(file, write(&scene, &Provenance::default())?, "two runs write the same");
    Ok(())
}

#[test]
fn metadata_are_the_facts_and_hide_nothing() -> Result<()> {
    for facts in [json!({ "prompt": NASTY.concat(), "html": "</metadata><script>&amp;" }), Value::Null] {
        let file = write(&Scene::new(Letters::new()?, (3.0, 2.0), "")?, &provenance("", facts.clone()))?;
        let elements = parse(&file);
        let metadata = &elements[1];
        assert_eq!(metadata.name, "metadata");
        assert!(metadata.text.chars().all(|c| c.is_ascii() || has_shape(c)), "{}", metadata.text);
        let found: Value = serde_json::from_str(&metadata.text).expect("JSON");
        assert_eq!(found, json!({ "software": SOFTWARE, "facts": facts }));
    }
    Ok(())
}

#[test]
fn cells_are_rectangles_or_a_sharp_image_with_the_same_colors() -> Result<()> {
    for columns in [3usize, 80] {
        let color = |i: usize| (!i.is_multiple_of(7)).then(|| (u8::try_from(i % 5 * 50).unwrap(), 7, 9));
        let colors: Vec<Option<Rgb>> = (0..columns * columns).map(color).collect();
        let mut scene = Scene::new(Letters::new()?, (500.0, 500.0), "")?;
        let width = columns as f32 * 5.0;
        scene.cells(Cells { x: 10.0, y: 20.0, width, height: width, columns, colors: colors.clone() });
        let elements = parse(&write(&scene, &Provenance::default())?);
        let image = named(&elements, "image").next();
        assert_eq!(image.is_some(), columns * columns > RECTANGLES);
        let image = image.map(|image| {
            assert_eq!((image.number("x"), image.number("width")), (10.0, width));
            assert_eq!(image.attributes["image-rendering"], "pixelated");
            let data = image.attributes["href"].strip_prefix("data:image/png;base64,").expect("a PNG");
            decode(&BASE64_STANDARD.decode(data).expect("base64"))
        });
        let at = |x: f32, y: f32| {
            if let Some(image) = &image {
                let scale = image.width as f32 / width;
                return Some((image.pixels)(whole((x - 10.0) * scale), whole((y - 20.0) * scale)));
            }
            let inside = |rect: &&Element| {
                let [left, top] = ["x", "y"].map(|a| rect.number(a));
                x > left && x < left + rect.number("width") && y > top && y < top + rect.number("height")
            };
            let fill = &named(&elements, "rect").filter(inside).last()?.attributes["fill"];
            let part = |i: usize| u8::from_str_radix(&fill[i..i + 2], 16).unwrap();
            Some((part(1), part(3), part(5)))
        };
        for (i, color) in colors.into_iter().enumerate() {
            let (column, row) = ((i % columns) as f32, (i / columns) as f32);
            assert_eq!(at(12.5 + column * 5.0, 22.5 + row * 5.0), color.or(Some(WHITE)), "{i} of {columns}");
        }
    }
    Ok(())
}

#[test]
fn every_view_is_well_formed() -> Result<()> {
    let tokens: Vec<String> = NASTY.iter().map(|token| (*token).to_owned()).collect();
    let n = tokens.len();
    let weights = Tensor::full(0.25f32, (n, n), &Device::Cpu)?;
    let made_by = provenance(&NASTY.concat(), json!(NASTY));
    let format = PictureFormat::Svg;
    let title = "<&>\0";
    let mut grid = HeadGrid::default();
    grid.add(0, &[0], &weights.unsqueeze(0)?)?;
    let map = NumberMap {
        title,
        rows: &tokens,
        columns: &tokens,
        row_axis: title,
        column_axis: title,
        unit: title,
    };
    for (file, said) in [
        (head_picture(format, title, &weights, &tokens, &tokens, &made_by)?, "keys: what is attended to"),
        (grid.finish(format, title, &made_by)?, "layer 0"),
        (map.draw(format, &weights, &made_by)?, ".250"),
        (loss_curve(format, title, &[(1, 2.0), (2, 1.0)], &[(2, 3.0)], &made_by)?, "optimizer steps"),
    ] {
        let elements = parse(&file);
        assert!(named(&elements, "text").any(|text| text.text == said), "{said}");
        assert!(named(&elements, "text").any(|text| text.text == "<&>␀"), "the title");
    }
    Ok(())
}
