//! `gpt2 score`: losses and perplexities of documents, the same on any number of processes and after a stop.

use crate::common::Result;
use crate::folder::{Folder, assert_says};
use crate::mpirun::mpirun;
use crate::{
    GPT2, Run, assert_near, command, demo_model, demo_tokenizer, gpt2, gpt2_with_pipe, json, launched, list,
    log_softmax, logits, number, signal, spawn, stdout, wait_for_lines,
};
use serde_json::Value;

/// A folder with texts of many lengths, some longer than the demo model's context of 256 tokens.
fn corpus(documents: usize) -> Result<Folder> {
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
    assert_says("stdout", &run.stdout, &["perplexity ", "9 documents"]);
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
    let (model, mut nats, mut start, mut done) = (demo_model()?, 0.0, 0, 1);
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
    let (text, out) = (folder.at("lines.txt"), folder.at("scores.jsonl"));
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
    let (texts, one) = (folder.at("texts"), folder.at("one.jsonl"));
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
#[cfg(unix)]
fn a_run_that_stopped_goes_on_where_it_was() -> Result {
    let folder = corpus(400)?;
    let (texts, whole, out) = (folder.at("texts"), folder.at("whole.jsonl"), folder.at("out.jsonl"));
    let expected = stdout(&["score", &texts, "--by", "line", "--jsonl", &whole])?;
    let part = folder.file("out.jsonl.part");
    for (name, replaces) in [("INT", None), ("KILL", Some(std::fs::read(&whole)?)), ("KILL", Some(vec![]))] {
        let args = ["score", &texts, "--by", "line", "--jsonl", &out, "--threads", "1"];
        // The file that a run replaces is still there while it is resumed.
        let begun = if replaces.is_some() { &["--overwrite"][..] } else { &[] };
        if let Some(before) = &replaces {
            std::fs::write(&out, before)?;
        }
        let child = spawn(command(&[&args[..], begun].concat()))?;
        wait_for_lines(&part, 257)?;
        signal(name, child.id())?;
        let stopped = child.wait_with_output()?;
        if name == "INT" {
            let stderr = String::from_utf8_lossy(&stopped.stderr).into_owned();
            assert_eq!(stopped.status.code(), Some(130), "{stderr}");
            assert_says("stderr", &stderr, &["stopped after ", "--resume"]);
        }
        assert!(part.exists(), "{name}: done before the signal came");
        // Half a line, as a crash leaves it.
        let mut text = std::fs::read_to_string(&part)?;
        text.push_str("{\"file\":\"te");
        std::fs::write(&part, text)?;
        if name == "INT" {
            gpt2(&args)?.refused(1, &["out.jsonl.part", "--resume", "--overwrite"]);
        }
        gpt2(&[&args[..], &["--resume", "--bos"]].concat())?.refused(1, &["bos was false and is true"]);
        let run = gpt2(&[&args[..], &["--resume"]].concat())?.succeeded();
        assert_eq!(run.stdout, expected, "{name}");
        assert!(std::fs::read(&out)? == std::fs::read(&whole)?, "{name}");
        assert!(!part.exists());
        std::fs::remove_file(&out)?;
    }
    gpt2(&["score", &texts, "--jsonl", &out, "--resume"])?.refused(1, &["--resume", "out.jsonl.part"]);
    Ok(())
}

#[test]
fn what_cannot_be_scored_is_refused_with_the_reason() -> Result {
    let folder = corpus(3)?;
    let (texts, out) = (folder.at("texts"), folder.at("scores.jsonl"));
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
    gpt2(&["score", &texts, "--stride", "256"])?.refused(1, &["--stride 256", "256"]);
    folder.write("texts/bad.txt", [b'o', b'k', 0xff])?;
    gpt2(&["score", &texts])?.refused(1, &["bad.txt", "not UTF-8"]);
    folder.write("texts/bad.txt", "")?;
    gpt2(&["score", &texts, "--jsonl", &out])?.succeeded();
    let rows = rows(&folder, "scores.jsonl")?;
    let empty = rows.iter().find(|row| row["bytes"] == 0).ok_or("an empty file")?;
    assert!(empty["tokens"] == 0 && empty["loss"].is_null() && empty["perplexity"].is_null(), "{empty}");
    gpt2(&["score", &texts, "--jsonl", &out])?.refused(1, &["exists already", "--overwrite"]);
    gpt2(&["score", &texts, "--jsonl", &out, "--overwrite"])?.succeeded();
    let empty = Folder::empty()?;
    gpt2(&["score", &empty.at("")])?.refused(1, &[".txt"]);
    gpt2_with_pipe(&["score", "-", "--by", "line"], "\n \n")?.refused(1, &["holds no document"]);
    Ok(())
}
