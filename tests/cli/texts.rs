//! `--texts`: each of many texts gives what a run of its own gives.

use super::stdin_stdout::into_nothing;
use super::{ODD, gpt2, gpt2_with_pipe, json, list, metadata, stdout};
use crate::common::Result;
use crate::folder::{Folder, assert_says};
use candle_core::Device;
use serde_json::{Value, json};
use std::path::Path;

const TEXTS: [&str; 4] =
    ["O Romeo, Romeo!", "To be, or not to be, that is \"the\" question", "Enter a MESSENGER", "My lord"];
const COMMANDS: [&str; 3] = ["attention", "forward", "lens"];

/// A folder with the texts as lines, and as JSON lines under another name.
fn folder() -> Result<Folder> {
    let folder = Folder::empty()?;
    folder.write("texts.txt", TEXTS.join("\n"))?;
    let lines = TEXTS.iter().map(|text| format!("{}\r\n", json!({ "id": 1, "story": text })));
    folder.write("stories.jsonl", lines.collect::<String>())?;
    folder.write("means.txt", "A plague on both your houses\nO Juliet, Juliet!\n")?;
    Ok(folder)
}

/// The values of JSON lines.
fn values(text: &str) -> Result<Vec<Value>> {
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

#[test]
fn each_result_is_that_of_a_run_of_its_own() -> Result {
    let folder = folder()?;
    let (texts, stories, means) =
        (folder.at("texts.txt"), folder.at("stories.jsonl"), folder.at("means.txt"));
    for flags in [
        &[][..],
        &["--mean-ablate", "0.3", "--block", "1:0"],
        &["--mean-ablate", "0.3,1.1", "--mean-of", &means],
        &["--patch", "1.2@0", "--from-prompt", "Some other words"],
    ] {
        for command in COMMANDS {
            let lines = values(&stdout(&[&[command, "--json", "--texts", &texts], flags].concat())?)?;
            let alike = [command, "--json", "--texts", &stories, "--field", "story"];
            let fields = values(&stdout(&[&alike[..], flags].concat())?)?;
            assert_eq!((lines.len(), fields.len()), (TEXTS.len(), TEXTS.len()), "{command} {flags:?}");
            for (((i, text), fields), mut line) in (1..).zip(TEXTS).zip(fields).zip(lines) {
                let number = line.as_object_mut().and_then(|line| line.remove("line"));
                assert_eq!(number, Some(json!(i)));
                let alone = json(&[&[command, "--json", text], flags].concat())?;
                assert_eq!(line, alone, "{command} {flags:?} {text}");
                (line["line"], line["input"]) = (json!(i), json!({ "id": 1 }));
                assert_eq!(line, fields, "{command} {flags:?} {text}");
            }
        }
    }
    // Chosen heads, and text for people.
    for args in [&["attention", "--layer", "1", "--head", "2"][..], &["attention"], &["forward"], &["lens"]] {
        let shown = stdout(&[args, &["--texts", &texts]].concat())?;
        let mut expected = String::new();
        for (i, text) in (1..).zip(TEXTS) {
            let of_one = stdout(&[args, &[text]].concat())?;
            expected.push_str(&[&format!("== {texts}, line {i} ==\n"), &of_one[..], "\n"].concat());
        }
        assert_eq!(shown, expected, "{args:?}");
    }
    Ok(())
}

#[test]
fn lines_of_token_ids_need_no_tokenizer() -> Result {
    let folder = Folder::empty()?;
    let path = folder.at("ids.jsonl");
    folder.write("ids.jsonl", "{\"ids\": [43, 97, 31]}\n{\"ids\": [7]}\n")?;
    for command in COMMANDS {
        let run = [command, "--model", ODD, "--json"];
        let lines = values(&stdout(&[&run[..], &["--texts", &path, "--field", "ids"]].concat())?)?;
        for (mut line, ids) in lines.into_iter().zip(["43,97,31", "7"]) {
            line.as_object_mut().and_then(|line| line.remove("line")).ok_or("a line")?;
            assert_eq!(line, json(&[&run[..], &["--ids", ids]].concat())?, "{command}");
        }
    }
    for (bad, says) in [
        ("[]", "is empty"),
        ("[1, -2]", "not of token ids"),
        ("[101]", "101"),
        ("[4294967296]", "not of token ids"),
    ] {
        folder.write("ids.jsonl", format!("{{\"ids\": {bad}}}"))?;
        let run = gpt2(&["forward", "--model", ODD, "--texts", &path, "--field", "ids"])?;
        run.refused(1, &["ids.jsonl, line 1", says]);
    }
    Ok(())
}

#[test]
fn an_export_has_the_tensors_of_each_text_under_its_line() -> Result {
    let folder = folder()?;
    let many = folder.at("many.safetensors");
    for command in COMMANDS {
        let points = ["--export-point", "blocks.*.attn.hook_z,logits", "--ablate", "1.0", "--overwrite"];
        let run = [command, "--texts", &folder.at("texts.txt"), "--json", "--export", &many];
        gpt2(&[&run[..], &points].concat())?.succeeded();
        let found = candle_core::safetensors::load(&many, &Device::Cpu)?;
        let mut count = 0;
        for (i, text) in (1..).zip(TEXTS) {
            let one = folder.at("one.safetensors");
            gpt2(&[&[command, text, "--export", &one][..], &points].concat())?.succeeded();
            for (name, expected) in candle_core::safetensors::load(&one, &Device::Cpu)? {
                let found = &found[&format!("{i}/{name}")];
                let bits = |x: &candle_core::Tensor| -> Result<Vec<f32>> { Ok(x.flatten_all()?.to_vec1()?) };
                assert!(found.dims() == expected.dims() && bits(found)? == bits(&expected)?, "{i}/{name}");
                count += 1;
            }
        }
        assert_eq!(found.len(), count, "{command}");
        let facts = metadata(Path::new(&many))?;
        let texts: Value = serde_json::from_str(&facts["texts"])?;
        assert_eq!(list(&texts).len(), TEXTS.len());
        assert_eq!(list(&texts[3]["tokens"]).iter().filter_map(Value::as_str).collect::<String>(), TEXTS[3]);
        assert_eq!(
            (&texts[3]["line"], list(&texts[3]["ids"]).len()),
            (&json!(4), list(&texts[3]["tokens"]).len())
        );
        assert_says(command, &facts["provenance"], &["ablate 1.0", env!("CARGO_PKG_VERSION")]);
        assert_eq!(facts.contains_key("heads"), command == "attention");
    }
    Ok(())
}

#[test]
fn a_line_that_is_no_text_is_refused_with_its_number() -> Result {
    let folder = Folder::empty()?;
    let txt = folder.at("texts.txt");
    let jsonl = folder.at("texts.jsonl");
    let export = folder.at("x.safetensors");
    for command in COMMANDS {
        folder.write("texts.txt", format!("{}\nMy lord\n", "to be ".repeat(200)))?;
        gpt2(&[command, "--texts", &txt, "--export", &export])?
            .refused(1, &["x.safetensors is not written", "texts.txt, line 1", "n_positions = 256"]);
        for blank in ["", "\n", " \t\n\n"] {
            folder.write("texts.txt", blank)?;
            gpt2(&[command, "--texts", &txt])?.refused(1, &["texts.txt: holds no text"]);
        }
        for (bad, says) in [
            ("My lord", "expected {\"text\": \"..\"}"),
            ("{\"text\": \"\"}", "is empty"),
            ("{\"a\": \"b\"}", "--field"),
        ] {
            folder.write("texts.jsonl", bad)?;
            gpt2(&[command, "--texts", &jsonl])?.refused(1, &["texts.jsonl, line 1", says]);
        }
        // What comes before it is there already, and blank lines are counted but skipped.
        let args = [command, "--texts", "-", "--json", "--export", &export];
        let run = gpt2_with_pipe(&args, &format!("My\n\n \nMy lord\n{}", "to be ".repeat(200)))?;
        let lines: Vec<_> = values(&run.stdout)?.iter().map(|line| line["line"].clone()).collect();
        assert_eq!((run.code, lines), (1, vec![json!(1), json!(4)]));
        assert_says("stderr", &run.stderr, &["standard input, line 5", "n_positions = 256"]);
        folder.write("texts.txt", "My lord, my lord\nMy\n")?;
        let run = gpt2(&[command, "--texts", &txt, "--block", "2:1", "--json"])?;
        assert_says("stderr", &run.stderr, &["texts.txt, line 2: --block 2:1", "positions 0 to 0"]);
        gpt2(&[command, "--texts", &txt, "My lord"])?.refused(2, &["--texts", "[PROMPT]"]);
        gpt2(&[command, "--field", "a", "My lord"])?.refused(2, &["--field"]);
        gpt2(&[command, "--texts", &folder.at("")])?.refused(1, &["folder"]);
        gpt2(&[command, "--texts", &folder.at("nowhere")])?.refused(1, &["nowhere", "os error 2"]);
    }
    gpt2(&["attention", "--texts", &txt, "--export", &folder.at("w.npy")])?
        .refused(1, &["--texts", ".safetensors"]);
    for option in ["--open", "--rollout", "--effect"] {
        gpt2(&["attention", "--texts", &txt, option])?.refused(2, &["--texts", option]);
    }
    let target = folder.at("texts.safetensors");
    std::fs::rename(&txt, &target)?;
    gpt2(&["forward", "--texts", &target, "--export", &target, "--overwrite"])?
        .refused(1, &["--export", "is the file of texts"]);
    assert_eq!(folder.names()?, ["texts.jsonl", "texts.safetensors"]);
    Ok(())
}

#[test]
#[cfg(target_os = "linux")]
fn a_reader_that_has_seen_enough_still_gets_the_whole_export() -> Result {
    let folder = folder()?;
    let path = folder.at("x.safetensors");
    let args = ["forward", "--texts", &folder.at("texts.txt"), "--json", "--export", &path];
    assert_eq!(into_nothing(&args)?.code, 0);
    let found = candle_core::safetensors::load(&path, &Device::Cpu)?;
    assert!(found.contains_key("4/logits"), "{:?}", found.keys());
    Ok(())
}
