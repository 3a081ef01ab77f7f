//! `gpt2 score`: losses and perplexities of documents, the same on any number of processes and after a stop.

use crate::common::Result;
use crate::folder::{Folder, assert_says};
use crate::mpirun::mpirun;
use crate::{
    GPT2, Run, assert_near, command, demo_model, demo_tokenizer, gpt2, gpt2_with_pipe, json, launched, list,
    log_softmax, logits, number, stdout,
};
use candle_core::{Device, Tensor};
use serde_json::{Value, json};

/// A folder with texts of many lengths, some longer than the demo model's context of 256 tokens.
pub(crate) fn corpus(documents: usize) -> Result<Folder> {
    let folder = Folder::empty()?;
    std::fs::create_dir_all(folder.file("texts/more"))?;
    let lines =
        ["To be, or not to be, that is the question:\n", "O Romeo, Romeo!\n", "Enter a MESSENGER.\n\n"];
    for i in 0..documents {
        let text: String = (0..=i * i % 41).map(|j| lines[(i + j * j) % 3]).collect();
        let name = format!("texts/{}{i:03}.txt", if i % 4 == 0 { "more/" } else { "" });
        folder.write(&name, text.trim_end())?;
    }
    Ok(folder)
}

/// The lines of a file of scores, without the first.
fn rows(folder: &Folder, name: &str) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(folder.file(name))?;
    text.lines().skip(1).map(|line| Ok(serde_json::from_str(line)?)).collect()
}

#[test]
fn the_scores_of_a_document_are_those_of_forward_and_attention() -> Result {
    let folder = corpus(9)?;
    let out = folder.at("scores.jsonl");
    let run = gpt2(&["score", &folder.at("texts"), "--jsonl", &out, "--summaries"])?.succeeded();
    assert_says(
        "stdout",
        &run.stdout,
        &["perplexity ", "9 documents", "windows of up to 256 that move on by 128"],
    );
    let rows = rows(&folder, "scores.jsonl")?;
    let files: Vec<&str> = rows.iter().filter_map(|row| row["file"].as_str()).collect();
    assert!(rows.len() == 9 && files.is_sorted(), "{files:?}");
    for row in rows.iter().filter(|row| row["tokens"].as_u64() <= Some(256)) {
        let file = row["file"].as_str().ok_or("a file")?;
        let alone = json(&["forward", "--json", "--file", file])?;
        let expected = number(&alone["perplexity"]);
        assert_near(file, &row["perplexity"], expected, 1e-4 * expected);
        let attention = json(&["attention", "--json", "--file", file])?;
        for (layer, heads) in list(&row["layers"]).iter().enumerate() {
            for (head, numbers) in list(heads).iter().enumerate() {
                let expected = &attention["layers"][layer]["heads"][head]["summary"];
                for (name, found) in numbers.as_object().ok_or("numbers")? {
                    let expected = number(&expected[name]);
                    assert_near(&format!("{file}, {layer}.{head}, {name}"), found, expected, 1e-4);
                }
            }
        }
    }
    Ok(())
}

/// Each window of a long text, by hand: the tokens after the context are predicted from the window alone.
#[test]
fn a_long_document_is_read_in_windows_that_overlap() -> Result {
    let folder = Folder::empty()?;
    folder.write("long.txt", "What say you to this part of the matter? ".repeat(60))?;
    let out = folder.at("scores.jsonl");
    gpt2(&["score", &folder.at("long.txt"), "--jsonl", &out, "--stride", "100", "--bos"])?.succeeded();
    let row = &rows(&folder, "scores.jsonl")?[0];
    let tokenizer = demo_tokenizer()?;
    let mut ids = vec![0];
    ids.extend(tokenizer.encode(&std::fs::read_to_string(folder.file("long.txt"))?)?);
    assert!(ids.len() > 556, "more than three windows: {}", ids.len());
    let model = demo_model()?;
    let mut nats = 0.0;
    let mut start = 0;
    let mut done = 1;
    while done < ids.len() {
        let end = (start + 256).min(ids.len());
        let logits = logits(&model, &ids[start..end])?;
        for token in done..end {
            nats -= log_softmax(&logits[token - start - 1])[ids[token] as usize];
        }
        (start, done) = (start + 100, end);
    }
    assert_eq!(row["predicted"], ids.len() - 1);
    assert_eq!(row["tokens"], ids.len() - 1, "the token before it is none of the document");
    assert_near("loss", &row["loss"], nats / (ids.len() - 1) as f64, 1e-5);
    Ok(())
}

#[test]
fn lines_are_documents_of_their_own() -> Result {
    let folder = Folder::empty()?;
    folder.write("lines.txt", "O Romeo, Romeo!\n\nTo be\r\n \nTo be")?;
    let text = folder.at("lines.txt");
    let out = folder.at("scores.jsonl");
    gpt2(&["score", &text, "--by", "line", "--jsonl", &out])?.succeeded();
    let rows = rows(&folder, "scores.jsonl")?;
    let lines: Vec<_> = rows.iter().filter_map(|row| row["line"].as_u64()).collect();
    assert_eq!(lines, [1, 3, 5]);
    assert_eq!(rows[1]["loss"], rows[2]["loss"], "the same text");
    let piped = gpt2_with_pipe(&["score", "-", "--by", "line", "--json"], "O Romeo, Romeo!\nTo be\nTo be")?;
    let total: Value = serde_json::from_str(&piped.succeeded().stdout)?;
    let sum: f64 =
        rows.iter().filter_map(|row| Some(row["loss"].as_f64()? * row["predicted"].as_f64()?)).sum();
    let predicted: f64 = rows.iter().filter_map(|row| row["predicted"].as_f64()).sum();
    assert_near("loss", &total["loss"], sum / predicted, 1e-9);
    Ok(())
}

/// The loss and the number of predicted tokens of each line.
fn losses(rows: &[Value]) -> Vec<(f64, u64)> {
    let of = |row: &Value| Some((row["loss"].as_f64()?, row["predicted"].as_u64()?));
    rows.iter().filter_map(of).collect()
}

#[test]
fn each_line_of_json_is_a_document() -> Result {
    let folder = Folder::empty()?;
    let texts = ["O Romeo, Romeo!\nwherefore art thou", "To be", "Enter a \"MESSENGER\".", "To be"];
    let mut lines = String::new();
    let mut stories = String::new();
    std::fs::create_dir(folder.file("texts"))?;
    for (i, text) in texts.iter().enumerate() {
        folder.write(&format!("texts/{i}.txt"), text)?;
        lines.push_str(&(json!({ "id": i, "text": text, "story": 3 }).to_string() + "\n"));
        stories.push_str(&["\n", &json!({ "story": text }).to_string(), "\r\n"].concat());
    }
    folder.write("texts.jsonl", &lines)?;
    folder.write("stories.jsonl", &stories)?;
    let at = |name: &str| folder.at(name);
    let totals = |args: &[&str]| json(&[&["score", "--json"], args].concat());
    let total = totals(&[&at("texts"), "--jsonl", &at("folder.jsonl")])?;
    assert_eq!((&total["documents"], total["predicted"].as_u64() > Some(10)), (&json!(4), true));
    assert_eq!(totals(&[&at("texts.jsonl"), "--jsonl", &at("lines.jsonl")])?, total);
    let named = ["--field", "story", "--jsonl", &at("named.jsonl")];
    assert_eq!(totals(&[&[&at("stories.jsonl")[..]], &named[..]].concat())?, total);
    let piped = gpt2_with_pipe(&["score", "-", "--by", "json", "--json"], &lines)?.succeeded();
    assert_eq!(serde_json::from_str::<Value>(&piped.stdout)?, total);
    let expected = losses(&rows(&folder, "folder.jsonl")?);
    for (name, numbers) in [("lines.jsonl", [1, 2, 3, 4]), ("named.jsonl", [2, 4, 6, 8])] {
        let rows = rows(&folder, name)?;
        assert_eq!(losses(&rows), expected, "{name}");
        for ((row, number), text) in rows.iter().zip(numbers).zip(texts) {
            assert_eq!((&row["line"], &row["bytes"]), (&json!(number), &json!(text.len())), "{name}");
        }
    }
    let first = std::fs::read_to_string(folder.file("named.jsonl"))?;
    assert_says(
        "the first line",
        first.lines().next().unwrap_or(""),
        &["\"by\":\"json\",\"field\":\"story\""],
    );
    // A folder of such files, and a file whose lines are texts as they are.
    std::fs::rename(folder.file("texts.jsonl"), folder.file("texts/texts.jsonl"))?;
    let mut of_folder = totals(&[&at("texts"), "--by", "json"])?;
    assert_eq!(of_folder["other_files"].take(), 4, "the texts beside it");
    of_folder["other_files"] = total["other_files"].clone();
    assert_eq!(of_folder, total);
    assert_ne!(totals(&[&at("texts/texts.jsonl"), "--by", "line"])?, total);
    Ok(())
}

#[test]
fn a_line_of_another_shape_is_refused_with_its_number() -> Result {
    let folder = Folder::empty()?;
    let path = folder.at("texts.jsonl");
    for (line, says) in [
        ("To be", "expected value at column 1"),
        ("{\"text\": \"a", "EOF while parsing a string"),
        ("[\"a\"]", "invalid type: sequence"),
        ("{}", "the object has no field"),
        ("{\"text\": 3}", "the field \"text\" holds a number"),
        ("{\"text\": [\"a\"]}", "the field \"text\" holds a list, but not of token ids"),
        ("{\"text\": null}", "the field \"text\" holds null"),
        ("{\"story\": \"a\", \"x\": 1}", "the object has only \"story\", \"x\"; --field names"),
    ] {
        folder.write("texts.jsonl", format!("{{\"text\": \"To be\"}}\n\n{line}\n"))?;
        gpt2(&["score", &path])?.refused(1, &["texts.jsonl, line 3: expected {\"text\": \"..\"}: ", says]);
    }
    folder.write("texts.jsonl", "{\"text\": [1, 2]}")?;
    gpt2(&["score", &path])?.refused(1, &["texts.jsonl, line 1: holds token ids, expected a text"]);
    // The same words as for examples to learn from.
    folder.write("texts.jsonl", "{\"text\": \"To be\"}\n[1]\n")?;
    let train = ["train", "--jsonl", &path, "--out", &folder.at("out")];
    gpt2(&train)?.refused(
        1,
        &["texts.jsonl, line 1: expected {\"prompt\": \"..\", \"completion\": \"..\"}: missing field"],
    );
    gpt2(&["score", &path, "--by", "line", "--field", "a"])?.refused(1, &["--field", "--by json"]);
    let run = gpt2_with_pipe(&["score", "-", "--field", "a"], "{\"a\": \"b\"}\n3")?;
    run.refused(1, &["standard input, line 2: expected {\"a\": \"..\"}"]);
    gpt2(&["score", &folder.at("")])?.refused(1, &[".txt", "for .jsonl files, give --by json"]);
    Ok(())
}

/// Batches mix texts of several lengths; each must count as it does alone.
#[test]
fn interventions_are_those_of_forward_for_each_document() -> Result {
    let folder = Folder::empty()?;
    let openings = ["O Romeo, Romeo! wherefore", "To be, or not to be", "Enter a MESSENGER and"];
    let texts: Vec<String> =
        (0..12).map(|i| format!("{}{}", openings[i % 3], " my lord".repeat(i / 3))).collect();
    let lines: String = texts.iter().map(|text| json!({ "text": text }).to_string() + "\n").collect();
    folder.write("texts.jsonl", lines)?;
    // As long as some of the texts, whose means are then by position.
    folder.write(
        "means.txt",
        format!("{}\n{}\n", texts[3], texts[3].replace("Romeo, Romeo", "Juliet, Juliet")),
    )?;
    let n_embd = demo_model()?.config().n_embd;
    Tensor::new(vec![0.3f32; n_embd], &Device::Cpu)?.write_npy(folder.file("v.npy"))?;
    let means = folder.at("means.txt");
    let at_2 = format!("1@2={}*2", folder.at("v.npy"));
    let path = folder.at("texts.jsonl");
    let plain = folder.at("plain.jsonl");
    gpt2(&["score", &path, "--jsonl", &plain])?.succeeded();
    let plain = losses(&rows(&folder, "plain.jsonl")?);
    for (i, flags) in [
        &["--ablate", "0.3"][..],
        &["--mean-ablate", "0.3"],
        &["--mean-ablate", "0.3", "--mean-of", &means],
        &["--block", "3:1,1/2:0", "--scale", "0.1=2"],
        &["--patch", "0.3@3,1.mlp@1", "--from-prompt", "Some other words to read"],
        &["--add", &at_2, "--attention-temperature", "1.2=0.5"],
    ]
    .iter()
    .enumerate()
    {
        let name = format!("{i}.jsonl");
        gpt2(&[&["score", &path, "--jsonl", &folder.at(&name)], *flags].concat())?.succeeded();
        let found = losses(&rows(&folder, &name)?);
        assert_eq!(found.len(), 12);
        for ((text, (loss, _)), (before, _)) in texts.iter().zip(&found).zip(&plain) {
            let alone = json(&[&["forward", "--json", text], *flags].concat())?;
            let expected = number(&alone["perplexity"]).ln();
            assert!((loss - expected).abs() < 1e-5, "{flags:?}, {text}: {loss}, alone {expected}");
            assert!((loss - before).abs() > 1e-6, "{flags:?}, {text}: nothing changed");
        }
    }
    Ok(())
}

#[test]
fn a_document_without_the_position_is_named() -> Result {
    let folder = Folder::empty()?;
    folder.write("lines.txt", "O Romeo, Romeo! wherefore art thou\n\nTo be\n")?;
    let path = folder.at("lines.txt");
    let score = |flags: &[&str]| gpt2(&[&["score", &path, "--by", "line"], flags].concat());
    score(&["--block", "5:2"])?.refused(1, &["lines.txt, line 3", "--block 5:2", "positions 0 to 1"]);
    score(&["--patch", "0.3@3", "--from-prompt", "O Romeo, O Romeo"])?
        .refused(1, &["lines.txt, line 3", "--patch at position 3"]);
    score(&["--patch", "0.3", "--from-prompt", "O Romeo, O Romeo"])?
        .refused(1, &["lines.txt, line 1", "--from-prompt has", "--patch PLACE@POS"]);
    folder.write("lines.txt", "to be or not ".repeat(200))?;
    for flags in [&["--block", "5:2"][..], &["--mean-ablate", "0.3"]] {
        score(flags)?.refused(1, &["lines.txt, line 1: has ", "context of 256"]);
    }
    score(&["--ablate", "0.3"])?.succeeded();
    Ok(())
}

#[test]
fn a_process_with_another_model_is_named() -> Result {
    let folder = corpus(3)?;
    let args = ["score", &folder.at("texts")];
    let Some(mpirun) = mpirun(1, GPT2) else { return Ok(()) };
    let run = Run::of(launched(mpirun, &args).args([":", "-n", "1", GPT2]).args(args).arg("--bos"))?;
    assert_ne!(run.code, 0, "{run:?}");
    assert_says("stderr", &run.stderr, &["rank 1 has another bos than rank 0: true, not false"]);
    Ok(())
}

#[test]
fn any_number_of_processes_writes_the_same_scores() -> Result {
    let folder = corpus(70)?;
    let texts = folder.at("texts");
    let one = folder.at("one.jsonl");
    gpt2(&["score", &texts, "--by", "line", "--jsonl", &one, "--summaries"])?.succeeded();
    for n in [2, 3] {
        let out = folder.at(&format!("{n}.jsonl"));
        let args = ["score", &texts, "--by", "line", "--jsonl", &out, "--summaries"];
        let Some(mpirun) = mpirun(n, GPT2) else { return Ok(()) };
        let run = Run::of(launched(mpirun, &args))?.succeeded();
        assert_says("stderr", &run.stderr, &[&format!("parallel: {n} ranks over Open MPI ")]);
        assert!(std::fs::read(&out)? == std::fs::read(&one)?, "{n} ranks");
    }
    Ok(())
}

#[test]
fn what_cannot_be_scored_is_refused_with_the_reason() -> Result {
    let folder = corpus(3)?;
    let texts = folder.at("texts");
    let out = folder.at("scores.jsonl");
    gpt2(&["score", "/nowhere"])?.refused(1, &["/nowhere"]);
    let inside = folder.at("texts/scores.jsonl");
    gpt2(&["score", &texts, "--jsonl", &inside])?.refused(1, &["--jsonl", "folder of the corpus"]);
    let mut within = command(&["score", ".", "--jsonl", "001.txt", "--overwrite"]);
    Run::of(within.current_dir(folder.file("texts")))?
        .refused(1, &["--jsonl 001.txt", "folder of the corpus"]);
    let file = folder.at("texts/001.txt");
    let mut piped = command(&["score", "-", "--jsonl", &file, "--overwrite"]);
    let piped = Run::of(piped.stdin(std::fs::File::open(&file)?))?;
    if cfg!(unix) {
        piped.refused(1, &["--jsonl", "is the corpus"]);
    }
    gpt2(&["score", &file, "--jsonl", &file, "--overwrite"])?.refused(1, &["--jsonl", "is the corpus"]);
    gpt2(&["score", &texts, "--stride", "257"])?.refused(1, &["--stride 257", "256"]);
    folder.write("texts/bad.txt", [b'o', b'k', 0xff])?;
    gpt2(&["score", &texts])?.refused(1, &["bad.txt", "not UTF-8"]);
    folder.write("texts/bad.txt", "")?;
    #[cfg(unix)]
    {
        let odd = folder.file("texts/odd.txt");
        std::os::unix::fs::symlink("nowhere", &odd)?;
        gpt2(&["score", &texts])?.refused(1, &["cannot read", "odd.txt"]);
        std::fs::remove_file(&odd)?;
        assert!(std::process::Command::new("mkfifo").arg(&odd).status()?.success());
        gpt2(&["score", &texts])?.refused(1, &["odd.txt: is a pipe or the like, expected a file"]);
        std::fs::remove_file(&odd)?;
    }
    gpt2(&["score", &texts, "--jsonl", &out])?.succeeded();
    let rows = rows(&folder, "scores.jsonl")?;
    let empty = rows.iter().find(|row| row["bytes"] == 0).ok_or("an empty file")?;
    assert!(empty["tokens"] == 0 && empty["loss"].is_null() && empty["perplexity"].is_null(), "{empty}");
    gpt2(&["score", &texts, "--jsonl", &out])?.refused(1, &["exists already", "--overwrite"]);
    gpt2(&["score", &texts, "--jsonl", &out, "--overwrite"])?.succeeded();
    let empty = Folder::empty()?;
    gpt2(&["score", &empty.at("")])?.refused(1, &[".txt"]);
    empty.write("a.txt", "")?;
    empty.write("b.txt", "")?;
    let printed = stdout(&["score", &empty.at("")])?;
    assert_says("stdout", &printed, &["no token to predict: no document has a token\n"]);
    empty.write("b.txt", "a")?;
    assert_says("stdout", &stdout(&["score", &empty.at("")])?, &["--bos also predicts that one"]);
    gpt2_with_pipe(&["score", "-", "--by", "line"], "\n \n")?.refused(1, &["holds no document"]);
    Ok(())
}

#[test]
fn a_byte_order_mark_is_no_text_and_json_is_noticed() -> Result {
    let folder = Folder::empty()?;
    folder.write("plain.txt", "To be\n")?;
    folder.write("mark.txt", "\u{feff}To be\n")?;
    let plain = folder.at("plain.txt");
    let mark = folder.at("mark.txt");
    for command in [&["score"][..], &["forward", "--file"], &["forward", "--texts"]] {
        let plain = gpt2(&[command, &[&plain]].concat())?.succeeded().stdout;
        let mark = gpt2(&[command, &[&mark]].concat())?.succeeded().stdout;
        assert_eq!(mark.replace("mark.txt", "plain.txt"), plain, "{command:?}");
    }
    let json = "{\"text\": \"To be\\n\"}\n";
    folder.write("q.ndjson", json)?;
    let scored = gpt2(&["score", &folder.at("q.ndjson")])?.succeeded().stdout;
    assert_eq!(scored.lines().next(), gpt2(&["score", &plain])?.succeeded().stdout.lines().next());
    for (args, says) in [(["score", "-"], "--by json"), (["forward", "--texts=-"], "--field text")] {
        let run = super::gpt2_with_pipe(&args, json)?;
        assert_eq!(run.code, 0);
        assert_says("stderr", &run.stderr, &["object of JSON", says]);
    }
    gpt2(&["score", &plain, "--jsonl", "-"])?.refused(1, &["--jsonl -", "./-"]);
    let run = super::gpt2_with_pipe(&["forward", "--file", "-"], "To be\n")?;
    assert_eq!(run.stdout, gpt2(&["forward", "To be"])?.stdout);
    Ok(())
}

#[test]
fn a_few_documents_are_listed_and_what_was_measured_is_said() -> Result {
    let folder = corpus(3)?;
    folder.write("texts/empty.txt", "")?;
    folder.write("texts/notes.md", "no document")?;
    #[cfg(unix)]
    std::os::unix::fs::symlink("nowhere", folder.file("texts/gone.md"))?;
    let texts = folder.at("texts");
    let run = gpt2(&["score", &texts, "--ablate", "0.3"])?.succeeded();
    assert_says("stderr", &run.stderr, &["tiny-shakespeare (built in): f32 on cpu", "ablate 0.3"]);
    let says =
        ["4 documents", "1 document without a token", "1 file left out: the name does not end in .txt"];
    assert_says("stdout", &run.stdout, &says);
    let out = folder.at("scores.jsonl");
    let total = json(&["score", &texts, "--jsonl", &out, "--ablate", "0.3", "--json"])?;
    assert_eq!((&total["empty"], &total["other_files"]), (&json!(1), &json!(1)));
    assert_eq!(
        (&total["window"], &total["stride"], &total["bos"]),
        (&json!(256), &json!(128), &json!(false))
    );
    assert_eq!(list(&total["provenance"]["interventions"]).len(), 1, "{total}");
    for row in rows(&folder, "scores.jsonl")? {
        let file = row["file"].as_str().ok_or("a file")?;
        let line = run.stdout.lines().find(|line| line.starts_with(file)).ok_or("a row")?;
        let perplexity =
            row["perplexity"].as_f64().map_or("-".into(), |perplexity| format!("{perplexity:.4}"));
        let expected = [file.to_owned(), row["tokens"].to_string(), row["predicted"].to_string(), perplexity];
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), expected);
    }
    let resumed = gpt2(&["score", &texts, "--jsonl", &out, "--ablate", "0.3", "--resume"])?.succeeded();
    assert_eq!(resumed.stdout, run.stdout, "the rows of an earlier run are listed too");
    let many = stdout(&["score", &corpus(21)?.at("texts")])?;
    assert!(many.starts_with("perplexity "), "{many}");
    gpt2(&["score", "To be or not to be"])?
        .refused(1, &["no such file or folder", "- for a text from a pipe"]);
    Ok(())
}
