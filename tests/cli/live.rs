//! `gpt2 live`: the page as a file, and that its model computes what the command computes.

use crate::common::Result;
use crate::folder::{Folder, read, serialized};
use crate::{Run, gpt2};
use base64::{Engine, prelude::BASE64_STANDARD};
use gpt2_web::{Live, PageRequest};
use miniz_oxide::inflate::decompress_to_vec_zlib;
use std::collections::BTreeMap;
use std::path::Path;

fn live(args: &[&str]) -> Result<Run> {
    gpt2(&[&["live"], args].concat())
}

#[test]
fn the_page_is_one_file_that_may_run_its_own_code_alone() -> Result {
    let folder = Folder::empty()?;
    let out = folder.at("live.html");
    live(&["--out", &out, "</script><script>alert(1)</script>", "--ablate", "0.3"])?.succeeded();
    let page = std::fs::read_to_string(&out)?;
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n") && !page.contains("{{"));
    let policy = page.split_once("Security-Policy\" content=\"").and_then(|(_, rest)| rest.split_once('"'));
    let policy = policy.ok_or("a policy")?.0;
    for part in ["default-src 'none'", "'wasm-unsafe-eval'", "worker-src blob:", "trusted-types gpt2-live"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe-inline") && !policy.contains("'unsafe-eval'"), "{policy}");
    assert!(!page.contains("alert(1)"), "the text is data in base64");
    assert_eq!(
        page.matches("<script").count(),
        8,
        "four blocks of data, three files, and the page's own script"
    );
    Ok(())
}

#[test]
fn what_the_page_could_not_show_is_refused_before_it_is_written() -> Result {
    let folder = Folder::empty()?;
    let out = folder.at("live.html");
    live(&[])?.refused(2, &["--out <FILE>", "--open"]);
    live(&["--out", &out, ""])?.refused(1, &["type a few words"]);
    live(&["--out", &out, &"O Romeo ".repeat(200)])?.refused(1, &["256"]);
    live(&["--out", &out, "--ablate", "9.9"])?.refused(1, &["9.9"]);
    assert!(!std::fs::exists(&out)?);
    live(&["--out", &out])?.succeeded();
    live(&["--out", &out])?.refused(1, &["already exists", "--overwrite"]);
    Ok(())
}

/// Decodes a block of a page from base64.
fn block(page: &str, kind: &str) -> Result<Vec<u8>> {
    let start = page.split_once(&format!("class=\"{kind}\">")).ok_or_else(|| kind.to_owned())?.1;
    Ok(BASE64_STANDARD.decode(start.split_once('<').ok_or("an end")?.0)?)
}

/// The files as they are, or one file in 8 bits.
#[test]
fn a_model_comes_with_the_page() -> Result {
    let folder = Folder::empty()?;
    let out = folder.at("live.html");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-shakespeare").canonicalize()?;
    let path = model.display().to_string();
    let run = live(&["--out", &out, "--model", &path])?.succeeded();
    assert!(run.stderr.contains("the page has"), "{}", run.stderr);
    let page = std::fs::read_to_string(&out)?;
    let first: serde_json::Value = serde_json::from_slice(&block(&page, "first")?)?;
    let names = ["model.safetensors", "config.json", "tokenizer.json"];
    assert_eq!(first["model"]["files"], serde_json::json!(names));
    assert_eq!(first["model"]["is_demo"], false);
    for (i, name) in names.iter().enumerate() {
        assert!(block(&page, &format!("file-{i}"))? == std::fs::read(model.join(name))?, "{name}");
    }

    let gguf = folder.at("small.gguf");
    gpt2(&["quantize", &path, "--to", "q8_0", "--out", &gguf])?.succeeded();
    for args in [&["--model", &path, "--quantize", "q8_0"][..], &["--model", &gguf]] {
        live(&[&["--out", &out, "--overwrite"], args].concat())?.succeeded();
        let page = std::fs::read_to_string(&out)?;
        assert!(block(&page, "file-0")? == std::fs::read(&gguf)?, "{args:?}");
        assert!(block(&page, "file-1").is_err());
    }

    for (args, says) in [
        (&["--model", &*gguf, "--quantize", "q8_0"][..], "--quantize"),
        (&["--quantize", "q8_0"], "--model"),
        (&["--model", "no/such/model"], "no/such/model"),
        (&["--model", &gguf, "--out", &gguf, "--overwrite"], "small.gguf"),
    ] {
        let elsewhere = folder.at("x.html");
        let out = if args.contains(&"--out") { &[][..] } else { &["--out", &elsewhere] };
        let run = live(&[args, out].concat())?;
        assert!(run.code != 0 && run.stderr.contains(says), "{args:?}: {}", run.stderr);
    }
    let mut tensors = read(&model.join("model.safetensors"))?;
    let sharded = Folder::empty()?;
    for name in ["config.json", "tokenizer.json"] {
        sharded.write(name, std::fs::read(model.join(name))?)?;
    }
    let second = tensors.split_off("transformer.h.2");
    let mut index = serde_json::Map::new();
    for (file, part) in [("1.safetensors", &tensors), ("2.safetensors", &second)] {
        sharded.write(file, serialized(part)?)?;
        index.extend(part.keys().map(|name| (name.clone(), file.into())));
    }
    sharded.write("model.safetensors.index.json", serde_json::json!({ "weight_map": index }).to_string())?;
    live(&["--out", &folder.at("x.html"), "--model", &sharded.dir()])?
        .refused(1, &["several files", "gpt2 quantize"]);
    live(&["--out", &folder.at("x.html"), "--model", &sharded.dir(), "--quantize", "q8_0"])?.succeeded();
    Ok(())
}

/// The page opens on what the command would have shown, and draws as it drew.
#[test]
fn the_pages_of_other_commands_may_be_alive() -> Result {
    let folder = Folder::empty()?;
    let out = folder.at("live.html");
    let first = |args: &[&str]| -> Result<serde_json::Value> {
        gpt2(&[args, &["--live", "--html", &out, "--overwrite"]].concat())?.succeeded();
        Ok(serde_json::from_slice(&block(&std::fs::read_to_string(&out)?, "first")?)?)
    };
    let changes = ["--ablate", "0.3", "--scale", "1.1=0.5", "--block", "3:1", "--compare"];
    let shown = first(&[&["attention", "O Romeo, Romeo"], &changes[..]].concat())?;
    assert_eq!((shown["text"].as_str(), &shown["ids"]), (Some("O Romeo, Romeo"), &serde_json::json!([])));
    assert_eq!(shown["changes"], serde_json::json!(["ablate 0.3", "scale 1.1=0.5", "block 3:1"]));
    assert_eq!(first(&["attention", "--ids", "47,788"])?["ids"], serde_json::json!([47, 788]));
    // A page that says nothing of drawing draws as the command does.
    assert_eq!(first(&["attention", "ROMEO:"])?["draw"], first(&["generate", "ROMEO:", "-n", "1"])?["draw"]);
    let shown = first(&["generate", "ROMEO:", "-n", "5", "--seed", "7", "--temperature", "0.5"])?;
    let ids = shown["ids"].as_array().ok_or("ids")?;
    let prompt = shown["prompt"].as_u64().ok_or("a prompt")?;
    assert_eq!(ids.len() as u64, prompt + 5);
    let draw = serde_json::json!({ "temperature": 0.5, "top_k": 40, "top_p": null, "seed": 7 });
    assert_eq!(shown["draw"], draw);
    assert_eq!(first(&["generate", "ROMEO:", "-n", "1", "--greedy"])?["draw"]["temperature"], 0.0);

    std::fs::remove_file(&out)?;
    let vector = folder.at("v.npy");
    candle_core::Tensor::zeros(128, candle_core::DType::F32, &candle_core::Device::Cpu)?
        .write_npy(&vector)?;
    let add = format!("1={vector}");
    for (args, code, says) in [
        (&["attention", "O", "--live"][..], 2, "--html"),
        (&["attention", "O", "--live", "--html", &out, "--layer", "0"], 2, "--layer"),
        (&["attention", "O", "--live", "--html", &out, "--json"], 2, "--json"),
        (
            &["attention", "O", "--live", "--html", &out, "--quantize", "q8_0"],
            1,
            "--quantize: not with --live",
        ),
        (&["attention", "O", "--live", "--html", &out, "--processed"], 1, "--processed: not with --live"),
        (&["attention", "O", "--live", "--html", &out, "--prepend-bos"], 1, "--prepend-bos: not with --live"),
        (
            &["attention", "O", "--live", "--html", &out, "--add", &add],
            1,
            "--live: a page cannot hold `add 1`",
        ),
        (
            &["generate", "O", "-n", "1", "--live", "--html", &out, "--min-p", "0.1"],
            1,
            "--min-p: not with --live",
        ),
    ] {
        gpt2(args)?.refused(code, &[says]);
    }
    assert!(!std::fs::exists(&out)?);
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
        let look = PageRequest {
            text: text.to_owned(),
            changes: changes.iter().map(|&change| change.to_owned()).collect(),
            compare: true,
            ..PageRequest::default()
        };
        let theirs = blocks(&page, "\">", "</script>");
        let ours = blocks(&live.look(&look)?.page, "\t", "");
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

#[test]
fn the_text_may_come_from_a_file() -> Result {
    let folder = Folder::empty()?;
    folder.write("speech.txt", "O Romeo, Romeo\n")?;
    let speech = folder.at("speech.txt");
    let typed = folder.at("typed.html");
    let read = folder.at("read.html");
    live(&["--out", &typed, "O Romeo, Romeo"])?.succeeded();
    live(&["--out", &read, "--file", &speech])?.succeeded();
    assert!(std::fs::read(&typed)? == std::fs::read(&read)?);
    live(&["--out", &read, "--file", &speech, "O"])?.refused(2, &["--file"]);
    live(&["--out", &speech, "--file", &speech, "--overwrite"])?.refused(1, &["--out"]);
    assert_eq!(std::fs::read_to_string(&speech)?, "O Romeo, Romeo\n");
    let named = live(&["--out", &read, "--overwrite", &speech])?.succeeded();
    assert!(named.stderr.contains(&format!("--file {speech}")), "{}", named.stderr);
    Ok(())
}
