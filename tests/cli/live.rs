//! `gpt2 live`: the page as a file, and that its model computes what the command computes.

use crate::common::Result;
use crate::folder::Folder;
use crate::{Run, gpt2};
use base64::{Engine, prelude::BASE64_STANDARD};
use gpt2_web::{Live, Look};
use miniz_oxide::inflate::decompress_to_vec_zlib;
use std::collections::BTreeMap;

/// A stand-in for the module: the page is written around it, and nothing here runs it.
fn folder() -> Result<Folder> {
    let folder = Folder::empty()?;
    std::fs::write(folder.at("gpt2_web_bg.wasm"), b"\0asm")?;
    std::fs::write(folder.at("gpt2_web.js"), "let wasm_bindgen;")?;
    Ok(folder)
}

fn live(folder: &Folder, args: &[&str]) -> Result<Run> {
    let module = folder.at("");
    gpt2(&[&["live", "--module", &module][..], args].concat())
}

#[test]
fn the_page_is_one_file_that_may_run_its_own_code_alone() -> Result {
    let folder = folder()?;
    let out = folder.at("live.html");
    live(&folder, &["--out", &out, "</script><script>alert(1)</script>", "--ablate", "0.3"])?.succeeded();
    let page = std::fs::read_to_string(&out)?;
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n") && !page.contains("{{"));
    let policy = page.split_once("Security-Policy\" content=\"").and_then(|(_, rest)| rest.split_once('"'));
    let policy = policy.ok_or("a policy")?.0;
    for part in ["default-src 'none'", "'wasm-unsafe-eval'", "worker-src blob:", "trusted-types gpt2-live"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe-inline") && !policy.contains("'unsafe-eval'"), "{policy}");
    assert!(!page.contains("alert(1)"), "the text is data in base64");
    assert_eq!(page.matches("<script").count(), 4, "three blocks of data, and the page's own script");
    Ok(())
}

#[test]
fn what_the_page_could_not_show_is_refused_before_it_is_written() -> Result {
    let folder = folder()?;
    let out = folder.at("live.html");
    live(&folder, &[])?.refused(2, &["--out <FILE>", "--open"]);
    live(&folder, &["--out", &out, ""])?.refused(1, &["type a few words"]);
    live(&folder, &["--out", &out, &"O Romeo ".repeat(200)])?.refused(1, &["256"]);
    live(&folder, &["--out", &out, "--ablate", "9.9"])?.refused(1, &["9.9"]);
    live(&folder, &["--out", &folder.at("gpt2_web.js"), "--overwrite"])?
        .refused(1, &["gpt2_web.js", "the module"]);
    assert!(!std::fs::exists(&out)?);
    live(&folder, &["--out", &out])?.succeeded();
    live(&folder, &["--out", &out])?.refused(1, &["already exists", "--overwrite"]);
    let empty = Folder::empty()?;
    live(&empty, &["--out", &empty.at("x.html")])?
        .refused(1, &["--module", "gpt2_web_bg.wasm", "scripts/web.sh"]);
    if cfg!(not(feature = "live")) {
        gpt2(&["live", "--out", &empty.at("x.html")])?.refused(1, &["scripts/web.sh", "--features live"]);
    }
    Ok(())
}

/// The blocks of data of a page, by kind, without what says how it was made.
fn blocks(text: &str, separator: &str, end: &str) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let line = line.split_once("class=\"").map_or(line, |(_, rest)| rest);
        if let Some((kind, block)) = line.split_once(separator)
            && ["layer", "weights", "norms", "lens", "predictions", "opens", "changes", "largest"]
                .contains(&kind)
        {
            all.entry(kind.to_owned()).or_insert_with(Vec::new).push(block.trim_end_matches(end).to_owned());
        }
    }
    all
}

/// Every weight, norm, summary, prediction and token of the lens, bit by bit.
#[test]
fn the_model_of_the_page_shows_what_the_command_shows() -> Result {
    let folder = Folder::empty()?;
    let live = Live::demo()?;
    let cases: [(&str, &[&str], &[&str]); 4] = [
        ("O Romeo, Romeo! wherefore art thou Romeo?", &[], &[]),
        ("To be, or not to be", &["ablate 0.3"], &["--compare", "--ablate", "0.3"]),
        (
            "日本 👩‍👧 <b>",
            &["scale 1.2=0.5", "block 3:1"],
            &["--compare", "--scale", "1.2=0.5", "--block", "3:1"],
        ),
        ("x", &[], &[]),
    ];
    for (i, (text, changes, options)) in cases.into_iter().enumerate() {
        let path = folder.at(&format!("{i}.html"));
        let args = ["attention", text, "--html", &path, "--with", "lens"];
        gpt2(&[&args[..], options].concat())?.succeeded();
        let page = std::fs::read_to_string(&path)?;
        let look = Look {
            text: text.to_owned(),
            changes: changes.iter().map(|&change| change.to_owned()).collect(),
            compare: true,
            ..Look::default()
        };
        let (theirs, ours) = (blocks(&page, "\">", "</script>"), blocks(&live.look(&look)?.page, "\t", ""));
        assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{text:?}");
        for (kind, blocks) in &ours {
            if kind == "weights" {
                // In the page, these are compressed.
                for (ours, theirs) in blocks.iter().zip(&theirs[kind]) {
                    let packed = BASE64_STANDARD.decode(theirs)?;
                    let codes = decompress_to_vec_zlib(&packed).map_err(|error| error.to_string())?;
                    assert_eq!(BASE64_STANDARD.decode(ours)?, codes, "{text:?}");
                }
                assert_eq!(blocks.len(), theirs[kind].len());
                continue;
            }
            assert_eq!(blocks, &theirs[kind], "{text:?}: {kind}");
        }
        assert_eq!(ours["weights"].len(), if changes.is_empty() { 16 } else { 32 });
    }
    Ok(())
}
