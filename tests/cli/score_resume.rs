//! `gpt2 score --resume`: runs that stopped go on, and what does not belong to them is refused.

use crate::common::Result;
use crate::folder::{Folder, assert_says};
use crate::score::corpus;
use crate::{command, demo_model, gpt2, signal, spawn, stdout, wait_for_lines};
use candle_core::{Device, Tensor};
use serde_json::Value;

#[test]
fn a_run_under_other_interventions_is_not_resumed() -> Result {
    let folder = corpus(3)?;
    let vector = |x: f32| -> Result {
        let n_embd = demo_model()?.config().n_embd;
        Ok(Tensor::new(vec![x; n_embd], &Device::Cpu)?.write_npy(folder.file("v.npy"))?)
    };
    vector(0.5)?;
    let texts = folder.at("texts");
    let out = folder.at("out.jsonl");
    let add = format!("1={}", folder.at("v.npy"));
    let args = ["score", &texts, "--jsonl", &out, "--ablate", "0.3", "--add", &add];
    gpt2(&args)?.succeeded();
    let whole = std::fs::read(&out)?;
    // As if the run had stopped within its first section.
    std::fs::rename(&out, folder.file("out.jsonl.part"))?;
    let others = ["score", &texts, "--jsonl", &out, "--ablate", "0.2", "--add", &add, "--resume"];
    gpt2(&others)?.refused(1, &["interventions was [\"ablate 0.3\"", "and is [\"ablate 0.2\""]);
    vector(0.25)?;
    gpt2(&[&args[..], &["--resume"]].concat())?.refused(1, &["fingerprint"]);
    vector(0.5)?;
    gpt2(&[&args[..], &["--resume"]].concat())?.succeeded();
    assert!(std::fs::read(&out)? == whole);
    Ok(())
}

#[test]
#[cfg(unix)]
fn a_run_that_stopped_goes_on_where_it_was() -> Result {
    let folder = corpus(400)?;
    let texts = folder.at("texts");
    let whole = folder.at("whole.jsonl");
    let out = folder.at("out.jsonl");
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
    Ok(())
}

#[test]
fn a_run_that_has_finished_says_so_when_it_is_resumed() -> Result {
    let folder = corpus(5)?;
    let texts = folder.at("texts");
    let out = folder.at("out.jsonl");
    let args = ["score", &texts, "--jsonl", &out];
    let expected = gpt2(&args)?.succeeded().stdout;
    let whole = std::fs::read_to_string(&out)?;
    let resume = [&args[..], &["--resume"]].concat();
    let run = gpt2(&resume)?.succeeded();
    assert_says("stderr", &run.stderr, &["--resume", "has finished", "out.jsonl"]);
    assert_eq!(run.stdout, expected);
    assert_eq!(std::fs::read_to_string(&out)?, whole);
    assert!(!folder.file("out.jsonl.part").exists());
    // Another run's scores, and a corpus that has changed since, are not this run's.
    gpt2(&[&resume[..], &["--bos"]].concat())?.refused(1, &["out.jsonl", "bos was false and is true"]);
    let last = whole.trim_end().rfind('\n').ok_or("lines")?;
    std::fs::write(&out, &whole[..=last])?;
    gpt2(&resume)?.refused(1, &["--resume", "out.jsonl", "no line about", "--overwrite"]);
    std::fs::write(&out, &whole)?;
    std::fs::remove_file(folder.file("texts/001.txt"))?;
    gpt2(&resume)?.refused(1, &["--resume", "out.jsonl", "--overwrite"]);
    std::fs::write(&out, "notes of mine\n")?;
    gpt2(&resume)?.refused(1, &["out.jsonl", "is not a file of scores"]);
    Ok(())
}

#[test]
fn a_resumed_run_notices_texts_that_changed_and_starts_where_there_is_none() -> Result {
    let folder = Folder::empty()?;
    folder
        .write("p.jsonl", "{\"text\": \"O Romeo\", \"id\": \"a\"}\n{\"text\": \"My lord\", \"id\": 2}\n")?;
    let corpus = folder.at("p.jsonl");
    let out = folder.at("out");
    let run = ["score", &corpus, "--jsonl", &out, "--resume"];
    let first = gpt2(&run)?.succeeded();
    assert_says("stderr", &first.stderr, &["there is no earlier run"]);
    let rows: Vec<Value> = std::fs::read_to_string(&out)?
        .lines()
        .skip(1)
        .map(serde_json::from_str)
        .collect::<std::result::Result<_, _>>()?;
    assert_eq!((&rows[0]["input"]["id"], &rows[1]["input"]["id"]), (&"a".into(), &2.into()));
    assert_ne!(rows[0]["hash"], rows[1]["hash"]);
    assert_eq!(gpt2(&run)?.succeeded().stdout, first.stdout);
    // As long as before.
    folder
        .write("p.jsonl", "{\"text\": \"O Romeo\", \"id\": \"a\"}\n{\"text\": \"My lady\", \"id\": 2}\n")?;
    gpt2(&run)?.refused(1, &["p.jsonl, line 2", "another text", "--overwrite"]);
    // A run that failed before its first row leaves nothing to continue.
    let other = folder.at("other");
    folder.write("p.jsonl", "{\"text\": 1}\n")?;
    let run = ["score", &corpus, "--jsonl", &other];
    gpt2(&run)?.refused(1, &["line 1"]);
    folder.write("p.jsonl", "{\"text\": \"O Romeo\"}\n")?;
    gpt2(&run)?.succeeded();
    Ok(())
}
