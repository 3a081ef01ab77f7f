//! `--picture` of every command that has it, and what stands around a picture.

use super::circuits::{CLEAN, CORRUPT};
use super::{gpt2, json, list, number};
use crate::common::Result;
use crate::folder::Folder;
use serde_json::Value;

/// Every kind of picture: a command, and texts that only its picture has.
fn kinds() -> Vec<(Vec<&'static str>, &'static [&'static str])> {
    let patch = vec!["patch", CLEAN, CORRUPT, "--answer", " fair", "--against", " king"];
    vec![
        (vec!["attention", CLEAN], &["layer 0", "head 3", "weight"]),
        (
            vec!["attention", CLEAN, "-l", "1", "-H", "2"],
            &["queries: what attends", "0 \u{b7}lord", "weight"],
        ),
        (
            vec!["attention", CLEAN, "--rollout"],
            &["tokens: what reaches a position", "7 \u{b7}lord", "share"],
        ),
        (vec!["attention", CLEAN, "--effect"], &["layer", "head", "change in nats"]),
        ([&patch[..], &["--by-position"]].concat(), &["token", "3.3", "share of the logit difference"]),
        (patch, &["layer", "head", "share of the logit difference"]),
        (vec!["heads", "--batch", "2"], &["previous-token", "duplicate-token", "induction", "copying"]),
        (vec!["lens", CLEAN], &["after block", "\u{b7}fair", "probability"]),
        (vec!["circuits"], &["copying", "into queries", "into keys", "into values", "to head"]),
        (vec!["circuits", "1.0", "--token", " king"], &["QK: where it looks", "attended", "\u{b7}king"]),
    ]
}

/// The texts of an SVG, without the file's own title and metadata.
fn texts(svg: &str) -> Vec<String> {
    let tags = svg.split("<text ").skip(1).filter_map(|part| part.split_once('>')?.1.split_once("</text>"));
    tags.map(|(text, _)| text.replace("&amp;", "&")).collect()
}

/// The facts in an SVG's metadata.
fn metadata(svg: &str) -> Result<Value> {
    let (_, rest) = svg.split_once("<metadata>").ok_or("metadata")?;
    let facts = rest.split_once("</metadata>").ok_or("an end")?.0.replace("&quot;", "\"");
    Ok(serde_json::from_str::<Value>(&facts)?["facts"].clone())
}

fn draw(args: &[&str], more: &[&str]) -> Result<String> {
    let folder = Folder::empty()?;
    gpt2(&[args, &["--picture", &folder.at("picture.svg")], more].concat())?.succeeded();
    Ok(std::fs::read_to_string(folder.file("picture.svg"))?)
}

#[test]
fn every_kind_draws_what_it_found_in_every_format() -> Result {
    for (args, says) in kinds() {
        let folder = Folder::empty()?;
        for (name, begins) in [("w.png", "PNG"), ("w.svg", "<svg"), ("w.pdf", "%PDF-")] {
            let printed = gpt2(&[&args[..], &["--picture", &folder.at(name)]].concat())?.succeeded().stdout;
            assert_eq!(printed, gpt2(&args)?.succeeded().stdout, "{args:?}");
            let bytes = std::fs::read(folder.file(name))?;
            assert!(String::from_utf8_lossy(&bytes[..200]).contains(begins), "{args:?} {name}");
        }
        let svg = std::fs::read_to_string(folder.file("w.svg"))?;
        for text in says {
            assert!(texts(&svg).iter().any(|shown| shown == text), "{args:?}: {text} in {:?}", texts(&svg));
        }
        assert_eq!(metadata(&svg)?["model"], "tiny-shakespeare (built in)");
        assert!(texts(&svg).iter().any(|text| text.starts_with("f32 on cpu, ")), "{args:?}");
    }
    Ok(())
}

/// No title is cut, by default or of one's own, however narrow the picture is.
#[test]
fn titles_are_whole_in_every_kind() -> Result {
    let squeezed = |text: &str| text.replace(' ', "");
    let long = format!("{} {}", "Which & how? ".repeat(30), "x".repeat(300));
    for (args, _) in kinds() {
        for width in [&[][..], &["--size", "5.3cm"]] {
            let svg = draw(&args, width)?;
            let (_, rest) = svg.split_once("<title>").ok_or("a title")?;
            let own = rest.split_once("</title>").ok_or("its end")?.0;
            let shown = texts(&svg).concat();
            assert!(own.starts_with("tiny-shakespeare (built in): "), "{own}");
            assert!(squeezed(&shown).contains(&squeezed(own)), "{args:?}: {own} in {shown}");
            let svg = draw(&args, &[&["--title", &long][..], width].concat())?;
            assert!(squeezed(&texts(&svg).concat()).starts_with(&squeezed(&long)), "{args:?}: {svg}");
        }
    }
    Ok(())
}

#[test]
fn title_caption_and_size_are_those_that_were_asked_for() -> Result {
    for (args, _) in kinds() {
        let svg =
            draw(&args, &["--title", "My \u{1f642} title", "--caption", "and\nits lines", "--size", "10cm"])?;
        assert_eq!(texts(&svg)[..3], ["My \u{1f642} title", "and", "its lines"], "{args:?}");
        assert!(svg.contains("width=\"377.95\""), "10 cm of 96 pixels an inch: {}", &svg[..200]);
        assert_eq!(metadata(&svg)?["device"], "cpu");
        let bare = texts(&draw(&args, &["--title", "", "--caption", ""])?).concat();
        assert!(!bare.contains("tiny-shakespeare") && !bare.contains("f32 on cpu"), "{args:?}: {bare}");
    }
    Ok(())
}

/// Whoever has the picture alone can make it again.
#[test]
fn the_metadata_have_the_options_that_shaped_the_numbers() -> Result {
    let patch = ["patch", CLEAN, CORRUPT, "--answer", " fair", "--against", " king"];
    let settings = |args: &[&str]| -> Result<Value> { Ok(metadata(&draw(args, &[])?)?["settings"].clone()) };
    let facts = metadata(&draw(&patch, &[])?)?;
    let found = &facts["settings"];
    assert_eq!((&found["answer"], &found["against"]), (&" fair".into(), &" king".into()));
    let corrupt = json(&["forward", CORRUPT, "--json"])?;
    let ids: Vec<_> = list(&corrupt["tokens"]).iter().map(|token| token["id"].clone()).collect();
    assert_eq!(facts["corrupt_ids"], Value::from(ids));
    let found = settings(&["heads", "--batch", "2", "--length", "7", "--seed", "5", "--no-bos"])?;
    let expected = serde_json::json!({ "batch": 2, "length": 7, "repeats": 4, "seed": 5, "bos": false });
    assert_eq!(found, expected);
    assert_eq!(settings(&["lens", CLEAN, "--position", "2"])?["position"], 2);
    let found = settings(&["attention", CLEAN, "--effect=mean", "--target", " fair"])?;
    assert_eq!((&found["ablation"], &found["target"]["token"]), (&"mean".into(), &" fair".into()));
    assert_eq!(settings(&["circuits", "1.0", "--token", " king"])?["tokens"][0], " king");
    Ok(())
}

#[test]
fn what_cannot_be_drawn_is_refused_by_name() -> Result {
    for (size, says) in [
        ("8.5", "such as 8.5cm"),
        ("800x600", "the height follows"),
        ("-8cm", "such as 8.5cm"),
        ("nan", "such as 8.5cm"),
        ("2cm", "at least 5.3cm"),
        ("0px", "at least 5.3cm"),
        ("3m", "such as 8.5cm"),
        ("900in", "at most 138cm"),
    ] {
        let size = format!("--size={size}");
        for (args, _) in kinds() {
            gpt2(&[&args[..], &["--picture", "x.svg", &size]].concat())?.refused(2, &["--size", says]);
        }
    }
    for (args, _) in kinds() {
        for option in ["--title", "--caption", "--size"] {
            gpt2(&[&args[..], &[option, "8.5cm"]].concat())?.refused(2, &["--picture <FILE>"]);
        }
        gpt2(&[&args[..], &["--picture", "x.gif"]].concat())?.refused(1, &["x.gif", ".png, .svg or .pdf"]);
    }
    Ok(())
}

#[test]
fn existing_pictures_are_replaced_with_overwrite_alone() -> Result {
    for (args, _) in kinds() {
        let folder = Folder::empty()?;
        folder.write("w.svg", "somebody else's")?;
        let path = folder.at("w.svg");
        let args = [&args[..], &["--picture", &path]].concat();
        gpt2(&args)?.refused(1, &["--picture", "already exists", "--overwrite"]);
        assert_eq!(std::fs::read_to_string(folder.file("w.svg"))?, "somebody else's");
        gpt2(&[&args[..], &["--overwrite"]].concat())?.succeeded();
        assert!(std::fs::read_to_string(folder.file("w.svg"))?.starts_with("<svg"));
        assert_eq!(folder.names()?, ["w.svg"]);
    }
    for command in [&["lens"][..], &["attention", "--rollout"], &["attention", "--effect"]] {
        let folder = Folder::empty()?;
        folder.write("w.svg", "a prompt")?;
        let path = folder.at("w.svg");
        let args = [command, &["--file", &path, "--picture", &path, "--overwrite"]].concat();
        gpt2(&args)?.refused(1, &["--picture", "is the prompt"]);
        assert_eq!(std::fs::read_to_string(folder.file("w.svg"))?, "a prompt");
    }
    Ok(())
}

/// The numbers in the cells of the maps with this unit, map by map and row by row.
fn cells(svg: &str, unit: &str, count: usize) -> Vec<Vec<f64>> {
    let texts = texts(svg);
    let after = texts.iter().enumerate().filter(|(_, text)| *text == unit).map(|(i, _)| i + 1);
    let number = |text: &String| {
        let whole =
            text.replacen('.', if text.trim_start_matches('-').starts_with('.') { "0." } else { "." }, 1);
        whole.parse().unwrap_or_else(|_| panic!("{text} in a cell"))
    };
    after.map(|from| texts[from..from + count].iter().map(number).collect()).collect()
}

#[track_caller]
fn assert_cells(found: &[f64], expected: &[f64], digits: i32) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 0.501 * 10f64.powi(-digits), "{found} for {expected}");
    }
}

#[test]
fn cells_have_the_numbers_of_the_report() -> Result {
    let by_head = |heads: &Value, of: &dyn Fn(&Value) -> f64| -> Vec<f64> {
        let place = |head: &Value| (head["layer"].as_u64(), head["head"].as_u64());
        let mut heads = list(heads).to_vec();
        heads.sort_by_key(place);
        heads.iter().map(of).collect()
    };
    let args = ["heads", "--batch", "2"];
    let report = json(&[&args[..], &["--json"]].concat())?["heads"].clone();
    let svg = draw(&args, &[])?;
    let found = cells(&svg, "mean weight", 16);
    assert_eq!(found.len(), 3);
    for (found, name) in found.iter().zip(["previous_token", "duplicate_token", "induction"]) {
        assert_cells(found, &by_head(&report, &|head| number(&head[name]["mean"])), 2);
    }
    assert_cells(
        &cells(&svg, "copying score", 16)[0],
        &by_head(&report, &|head| number(&head["copying"])),
        2,
    );

    let args = ["attention", CLEAN, "--effect"];
    let report = json(&[&args[..], &["--json"]].concat())?;
    let svg = draw(&args, &[])?;
    let expected = by_head(&report["heads"], &|head| number(&head["change"]));
    assert_cells(&cells(&svg, "change in nats", 16)[0], &expected, 2);

    let args = ["lens", CLEAN, "-k", "1"];
    let report = json(&[&args[..], &["--json"]].concat())?;
    let svg = draw(&args, &[])?;
    let likeliest: Vec<&Value> = list(&report["layers"]).iter().map(|layer| &layer[0]).collect();
    let mut tokens: Vec<&str> = likeliest.iter().filter_map(|one| one["token"].as_str()).collect();
    tokens.sort_unstable();
    tokens.dedup();
    let found = &cells(&svg, "probability", likeliest.len() * tokens.len())[0];
    for (row, best) in found.chunks(tokens.len()).zip(likeliest) {
        let most = row.iter().copied().fold(0.0, f64::max);
        assert_cells(&[most], &[number(&best["probability"])], 2);
    }

    let report = json(&["circuits", "--json"])?;
    let svg = draw(&["circuits"], &[])?;
    // No head feeds one of its own layer or of an earlier one: those cells are empty.
    let found = cells(&svg, "composition score", 4 * (12 + 8 + 4));
    assert_eq!(found.len(), 3);
    let place = |name: &Value| -> Option<usize> {
        let (layer, head) = name.as_str()?.split_once('.')?;
        Some(4 * layer.parse::<usize>().ok()? + head.parse::<usize>().ok()?)
    };
    for (found, reads) in found.iter().zip(["q", "k", "v"]) {
        let mut expected = vec![None; 144];
        for pair in list(&report["compositions"]).iter().filter(|pair| pair["reads"] == reads) {
            let from = place(&pair["from"]).ok_or("a head")?;
            let to = place(&pair["to"]).ok_or("a head")?;
            expected[12 * from + to - 4] = Some(number(&pair["score"]));
        }
        assert_cells(found, &expected.into_iter().flatten().collect::<Vec<f64>>(), 3);
    }
    Ok(())
}
