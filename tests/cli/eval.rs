//! `gpt2 eval`: the numbers of lm-evaluation-harness on small files in the form of each task's data set, which
//! `scripts/make_eval_reference.py` wrote with those results.

use crate::common::{Result, data};
use crate::folder::{Folder, assert_says};
use crate::hub::server::Server;
use crate::mpirun::mpirun;
use crate::{DEMO, Run, assert_near, command, gpt2, json, launched, list, number};
use serde_json::{Value, json};

fn reference() -> Result<Value> {
    Ok(serde_json::from_str(&std::fs::read_to_string(data("eval/reference.json"))?)?)
}

/// All tasks, with the files that the script wrote.
fn tasks() -> Vec<String> {
    let at = |name: &str| data("eval").join(name).display().to_string();
    let known = [
        ("lambada_openai", "lambada.jsonl"),
        ("lambada_standard", "lambada.jsonl"),
        ("hellaswag", "hellaswag.jsonl"),
        ("wikitext", "wikitext.jsonl"),
        ("blimp", "blimp"),
    ];
    let known = known.map(|(task, file)| format!("{task}={}", at(file)));
    known.into_iter().chain(["quiz.jsonl", "cloze.jsonl"].map(at)).collect()
}

fn evaluated(model: &str, more: &[&str]) -> Result<Value> {
    let tasks = tasks();
    let tasks: Vec<&str> = tasks.iter().map(String::as_str).collect();
    json(&[&["eval", "--json", "--model", model][..], &tasks, more].concat())
}

/// The models of the reference.
fn models() -> [(&'static str, String); 2] {
    [("demo", DEMO.to_owned()), ("random", data("eval/random").display().to_string())]
}

/// Both sum f32 numbers, in other orders: the sums differ by 2e-5 on an Intel Xeon with AVX-512.
const NATS: f64 = 1e-4;

#[test]
fn every_log_probability_is_the_harness_own() -> Result {
    let reference = reference()?;
    for (name, model) in models() {
        let found = evaluated(&model, &["--samples"])?;
        for (task, expected) in reference[name].as_object().ok_or("tasks")? {
            let samples = list(&found["samples"][task]);
            let expected = list(&expected["samples"]);
            assert_eq!(samples.len(), expected.len(), "{name}, {task}");
            for (i, (sample, expected)) in samples.iter().zip(expected).enumerate() {
                let what = format!("{name}, {task}, {i}");
                let answers = list(&sample["resps"]);
                // A long text is in several windows, whose sum the harness gives.
                if task == "wikitext" {
                    let sum: f64 = answers.iter().map(|answer| number(&answer[0])).sum();
                    assert_near(&what, &json!(sum), number(&expected[0]), 1e-6 * number(&expected[0]).abs());
                    continue;
                }
                assert_eq!(answers.len(), list(expected).len(), "{what}");
                for (answer, expected) in answers.iter().zip(list(expected)) {
                    assert_near(&what, &answer[0], number(&expected[0]), NATS);
                    assert_eq!(answer[1], expected[1], "{what}: whether it is the most probable");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_results_are_those_of_the_harness() -> Result {
    let reference = reference()?;
    for (name, model) in models() {
        for (suffix, more) in [("", &[][..]), (" limited", &["--limit", "2"])] {
            let found = evaluated(&model, more)?;
            for (task, expected) in reference[format!("{name}{suffix}")].as_object().ok_or("tasks")? {
                let results = &found["results"][task];
                for (measure, value) in expected["results"].as_object().ok_or("results")? {
                    let what = format!("{name}{suffix}, {task}, {measure}");
                    match value.as_f64() {
                        // A perplexity multiplies the error of its sum, and so does its own error.
                        Some(value) => assert_near(&what, &results[measure], value, 1e-3 * value.abs()),
                        None => assert_eq!(results[measure], *value, "{what}"),
                    }
                }
                assert_eq!(found["n-samples"][task], expected["n-samples"], "{name}{suffix}, {task}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_group_is_the_mean_of_its_tasks() -> Result {
    let found = evaluated(DEMO, &[])?;
    let accuracy = |task: &str| number(&found["results"][task]["acc,none"]);
    let error = |task: &str| number(&found["results"][task]["acc_stderr,none"]);
    let parts = ["blimp_adjunct_island", "blimp_wh_island"];
    assert_eq!(found["group_subtasks"]["blimp"], json!(parts));
    let mean = f64::midpoint(accuracy(parts[0]), accuracy(parts[1]));
    assert_near("acc", &found["groups"]["blimp"]["acc,none"], mean, 1e-12);
    let joint = error(parts[0]).hypot(error(parts[1])) / 2.0;
    assert_near("its error", &found["groups"]["blimp"]["acc_stderr,none"], joint, 1e-12);
    // Of 5 and 3 examples. The harness' `unweighted_mean_stderr` (0.4.13), which it takes for BLiMP, where `pooled_sample_stderr`, for
    // groups that weigh their tasks by size, would give 0.1748.
    assert_near(
        "the harness' own",
        &found["groups"]["blimp"]["acc_stderr,none"],
        0.194_365_063_161_510_03,
        1e-12,
    );
    assert_eq!(found["versions"]["wikitext"], 2.0);
    assert_eq!(found["higher_is_better"]["hellaswag"], json!({"acc": true, "acc_norm": true}));
    Ok(())
}

#[test]
fn a_stride_gives_tokens_more_context_and_each_still_counts_once() -> Result {
    let file = data("eval/wikitext.jsonl").display().to_string();
    let task = format!("wikitext={file}");
    let run = |more: &[&str]| json(&[&["eval", "--json", &task, "--samples"][..], more].concat());
    let plain = run(&[])?;
    let short = run(&["--stride", "16"])?;
    assert_eq!((&plain["config"]["stride"], &short["config"]["stride"]), (&json!(256), &json!(16)));
    let perplexity = |found: &Value| number(&found["results"]["wikitext"]["token_perplexity,none"]);
    // The same tokens, with other contexts: another number, and not far from it.
    let change = (perplexity(&short) / perplexity(&plain)).ln().abs();
    assert!(change > 1e-6 && change < 0.2, "{change}");
    let windows = |found: &Value| list(&list(&found["samples"]["wikitext"])[3]["resps"]).len();
    assert!(windows(&short) > windows(&plain));
    Ok(())
}

#[test]
fn parquet_and_a_description_give_the_numbers_of_json_lines() -> Result {
    let folder = Folder::empty()?;
    let at = |name: &str| data("eval").join(name).display().to_string();
    let rows = std::fs::read_to_string(data("eval/quiz.jsonl"))?;
    let renamed = rows
        .replace("\"context\"", "\"q\"")
        .replace("\"choices\"", "\"options\"")
        .replace("\"answer\"", "\"gold\"");
    folder.write("renamed.jsonl", renamed)?;
    let description = json!({"task": "quiz", "data": "renamed.jsonl", "context": "{{q}}", "choices": "options", "answer": "gold"});
    folder.write("quiz.json", description.to_string())?;
    for (a, b, task) in [
        (
            format!("hellaswag={}", at("hellaswag.jsonl")),
            format!("hellaswag={}", at("hellaswag.parquet")),
            "hellaswag",
        ),
        (at("quiz.jsonl"), folder.at("quiz.json"), "quiz"),
    ] {
        let results =
            |task: &str| -> Result<Value> { Ok(json(&["eval", "--json", task])?["results"].clone()) };
        assert_eq!(results(&a)?[task], results(&b)?[task], "{task}");
    }
    Ok(())
}

#[test]
fn the_table_and_the_file_hold_the_results() -> Result {
    let folder = Folder::empty()?;
    let quiz = data("eval/quiz.jsonl").display().to_string();
    let out = folder.at("r.json");
    let run = gpt2(&["eval", &quiz, "--limit", "4", "--out", &out, "--ablate", "0.1"])?.succeeded();
    assert_says("stdout", &run.stdout, &["tiny-shakespeare", "ablate 0.1", "quiz", "4 of 6", "acc_norm"]);
    let written: Value = serde_json::from_str(&std::fs::read_to_string(folder.file("r.json"))?)?;
    let printed = json(&["eval", &quiz, "--limit", "4", "--json", "--ablate", "0.1"])?;
    assert_eq!(written, printed);
    assert_eq!(written["provenance"]["interventions"], json!(["ablate 0.1"]));
    gpt2(&["eval", &quiz, "--out", &out])?.refused(1, &["already exists", "--overwrite"]);
    gpt2(&["eval", &quiz, "--out", &quiz, "--overwrite"])?.refused(1, &["is a file of examples"]);
    // Quantized weights and interventions change the answers.
    let plain = json(&["eval", &quiz, "--json", "--samples"])?;
    let changed = json(&["eval", &quiz, "--json", "--samples", "--quantize", "q4_0"])?;
    assert_ne!(plain["samples"], changed["samples"]);
    Ok(())
}

#[test]
fn what_would_measure_nothing_or_harm_a_file_is_refused() -> Result {
    let folder = Folder::empty()?;
    folder.write("empty.jsonl", "{\"text\": \"\"}\n{\"text\": \"\"}\n")?;
    gpt2(&["eval", &folder.at("empty.jsonl")])?.refused(1, &["empty", "expected some text"]);
    let quiz = std::fs::read_to_string(data("eval/quiz.jsonl"))?;
    folder.write("blimp_mine.jsonl", &quiz)?;
    let mine = folder.at("blimp_mine.jsonl");
    gpt2(&["eval", &mine, "--limit", "2"])?.succeeded();
    let same = folder.at("same");
    gpt2(&["eval", &mine, "--journal", &same, "--out", &same])?
        .refused(1, &["--journal and --out are the same"]);
    assert!(!folder.file("same").exists());
    Ok(())
}

#[test]
fn a_run_that_stopped_goes_on_from_its_journal() -> Result {
    let folder = Folder::empty()?;
    let quiz = data("eval/quiz.jsonl").display().to_string();
    let tasks = tasks();
    let tasks: Vec<&str> = tasks.iter().map(String::as_str).collect();
    let journal = folder.at("done.jsonl");
    let args = [&["eval", "--samples", "--json"][..], &tasks].concat();
    let with = [&args[..], &["--journal", &journal]].concat();
    let whole = json(&args)?;
    assert_eq!(json(&with)?, whole);
    let text = std::fs::read_to_string(folder.file("done.jsonl"))?;
    let batches = text.lines().count() - 1;
    assert!(batches > 2, "{text}");
    // Killed after the second batch, within a line.
    let second = text.match_indices('\n').nth(2).ok_or("three lines")?.0;
    for kept in [second + 1, second + 9, text.len()] {
        std::fs::write(folder.file("done.jsonl"), &text[..kept])?;
        assert_eq!(json(&with)?, whole, "{kept}");
        let after = std::fs::read_to_string(folder.file("done.jsonl"))?;
        assert_eq!(after.lines().count(), batches + 1, "{kept}");
        assert_eq!(after, text, "{kept}");
    }
    // What it says is believed: no batch runs again.
    let line = text.lines().nth(1).ok_or("a line")?;
    let bits = line.split(['[', ',']).nth(4).ok_or("bits")?;
    std::fs::write(folder.file("done.jsonl"), text.replacen(bits, &1f64.to_bits().to_string(), 1))?;
    assert_ne!(json(&with)?, whole);
    std::fs::write(folder.file("done.jsonl"), &text)?;
    for (more, parts) in [
        (
            &["--ablate", "0.1"][..],
            &["belongs to another evaluation, whose run is", "choose another name"][..],
        ),
        (&["--limit", "2"], &["whose examples are"]),
        (&["--model", "MODEL"], &["belongs to another evaluation"]),
    ] {
        let random = data("eval/random").display().to_string();
        let more: Vec<&str> =
            more.iter().map(|word| if *word == "MODEL" { random.as_str() } else { word }).collect();
        gpt2(&[&with[..], &more].concat())?.refused(1, parts);
        assert_eq!(std::fs::read_to_string(folder.file("done.jsonl"))?, text);
    }
    // Another version of the program, and one that did not record its own.
    let version = format!("\"gpt2\":\"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(text.contains(&version), "{text}");
    for (before, part) in [
        (text.replacen(&version, "\"gpt2\":\"0.0.1\"", 1), "whose version of gpt2 is 0.0.1 and not"),
        (text.replacen(&format!("{version},"), "", 1), "whose version of gpt2 is unknown and not"),
    ] {
        std::fs::write(folder.file("done.jsonl"), &before)?;
        gpt2(&with)?.refused(1, &[part, "or delete the file"]);
        assert_eq!(std::fs::read_to_string(folder.file("done.jsonl"))?, before);
    }
    std::fs::write(folder.file("done.jsonl"), text.replacen("\n[", "\n{", 1))?;
    gpt2(&with)?.refused(1, &["line 2 is damaged", "delete the file"]);
    for foreign in ["O Romeo\n", "{}\n"] {
        folder.write("done.jsonl", foreign)?;
        gpt2(&with)?.refused(1, &["is not the journal of an evaluation"]);
        assert_eq!(std::fs::read_to_string(folder.file("done.jsonl"))?, foreign);
    }
    gpt2(&["eval", &quiz, "--journal", &quiz])?.refused(1, &["is a file of examples"]);
    Ok(())
}

#[test]
fn several_processes_give_the_results_of_one() -> Result {
    let Some(mpirun) = mpirun(3, crate::GPT2) else { return Ok(()) };
    let tasks = tasks();
    let tasks: Vec<&str> = tasks.iter().map(String::as_str).collect();
    let args = [&["eval", "--json", "--samples", "--threads", "1"][..], &tasks].concat();
    let alone = json(&args)?;
    let run = Run::of(launched(mpirun, &args))?.succeeded();
    assert_eq!(serde_json::from_str::<Value>(&run.stdout)?, alone);
    Ok(())
}

#[test]
fn a_task_or_a_file_that_does_not_exist_is_named() -> Result {
    let folder = Folder::empty()?;
    folder.write("notes.txt", "a text")?;
    for (task, parts) in [
        ("helaswag", &["helaswag: no such task or file", "did you mean hellaswag?", "lambada_openai"][..]),
        ("blimp_wh_iland", &["did you mean blimp_wh_island?"]),
        ("hellaswag=missing.jsonl", &["missing.jsonl: no such file"]),
        ("blimp=missing", &["expected a folder"]),
        (&folder.at("notes.txt"), &["expected examples in a file whose name ends in .jsonl"]),
        ("hellaswag=hf://datasets/a/b", &["expected hf://datasets/OWNER/NAME/FILE"]),
        ("hellaswag=hf://datasets/a/b/../c", &["expected the file's path inside the data set"]),
    ] {
        gpt2(&["eval", task])?.refused(1, parts);
    }
    let blimp = format!("blimp={}", folder.at(""));
    gpt2(&["eval", &blimp])?.refused(1, &["holds no part of BLiMP"]);
    let quiz = data("eval/quiz.jsonl").display().to_string();
    gpt2(&["eval", &quiz, &quiz])?.refused(1, &["quiz: is given twice"]);
    gpt2(&["eval", &folder.at("")])?.refused(1, &["is a folder", "blimp=FOLDER"]);
    gpt2(&["eval", &quiz, "--bootstrap", "1"])?.refused(1, &["--bootstrap 1: expected 2 samples at least"]);
    // A task of one's own with the name of a group would take its place in the results.
    folder.write("blimp.jsonl", std::fs::read_to_string(&quiz)?)?;
    let group = format!("blimp={}", data("eval/blimp").display());
    gpt2(&["eval", &group, &folder.at("blimp.jsonl")])?
        .refused(1, &["blimp: is the name of a task and of a group"]);
    gpt2(&["eval", &folder.at("blimp.jsonl"), "--limit", "1"])?.succeeded();
    gpt2(&["eval", &quiz, "--stride", "257"])?
        .refused(1, &["--stride 257: expected 1 to the model's context of 256"]);
    Ok(())
}

#[test]
fn a_damaged_row_is_named_with_what_was_expected() -> Result {
    let folder = Folder::empty()?;
    let long = "O Romeo ".repeat(400);
    let answer = json!({"context": "O", "answer": long}).to_string();
    for (file, text, parts) in [
        (
            "a.jsonl",
            "{\"context\": \"O\", \"choices\": [\"a\"], \"answer\": 0}\nno JSON\n",
            &["a.jsonl, line 2: expected an object of JSON"][..],
        ),
        (
            "b.jsonl",
            "{\"context\": \"O\", \"choices\": [\"a\"], \"answer\": 1}\n",
            &["line 1: expected an index from 0 to 0", "found 1"],
        ),
        (
            "c.jsonl",
            "{\"context\": \"O\", \"choices\": [\"a\", 2], \"answer\": 0}\n",
            &["a list of texts alone", "\"choices\"", "found 2"],
        ),
        ("d.jsonl", "{\"context\": \"O\", \"choices\": [], \"answer\": 0}\n", &["lists no choice"]),
        ("e.jsonl", "{\"question\": \"O\"}\n", &["expected the fields context, choices and answer"]),
        (
            "f.jsonl",
            "{\"context\": \"O\", \"answer\": \"\"}\n",
            &["f.jsonl, line 1", "adds no token to its context"],
        ),
        (
            "g.jsonl",
            answer.as_str(),
            &["g.jsonl, line 1", "the text to predict has ", "the model reads 256 at most"],
        ),
        ("h.jsonl", "\n\n", &["h.jsonl: holds no row"]),
        (
            "i.jsonl",
            "{\"context\": \"O\", \"answer\": \"x\"}\n{\"context\": 7, \"answer\": \"x\"}\n",
            &["line 2: expected a text in the field \"context\", found 7"],
        ),
        ("j.parquet", "PAR1 and no more", &["j.parquet: expected a sound file in Parquet"]),
        (
            "k.json",
            "{\"data\": \"a.jsonl\", \"contxt\": \"{{q}}\"}",
            &["k.json: expected {\"data\": FILE", "contxt"],
        ),
        (
            "l.json",
            "{\"data\": \"a.jsonl\", \"context\": \"{{q}}\"}",
            &["l.json: has a context but no answer"],
        ),
        ("n.json", "{\"data\": \"a.jsonl\", \"answer\": \"a\"}", &["n.json: has an answer but no context"]),
        ("o.json", "{\"data\": \"a.jsonl\", \"choices\": \"c\"}", &["o.json: has choices, but neither"]),
        (
            "p.json",
            "{\"data\": \"a.jsonl\", \"delimiter\": \" \"}",
            &["p.json: has a delimiter, but neither"],
        ),
        (
            "q.json",
            "{\"data\": \"a.jsonl\", \"context\": \"Q: {{context}} A: {{answer\", \"answer\": \"answer\"}",
            &["q.json", "has {{ without }} behind it"],
        ),
        (
            "r.json",
            "{\"data\": \"a.jsonl\", \"context\": \"{{ }}\", \"answer\": \"answer\"}",
            &["r.json", "has {{ }}; expected the name of a field"],
        ),
        ("m.json", "{\"data\": \"missing.jsonl\"}", &["m.json", "missing.jsonl: no such file"]),
    ] {
        folder.write(file, text)?;
        gpt2(&["eval", &folder.at(file)])?.refused(1, parts);
    }
    folder.write("wrong.jsonl", "{\"text\": \"O Romeo\"}\n")?;
    let wrong = format!("hellaswag={}", folder.at("wrong.jsonl"));
    gpt2(&["eval", &wrong])?
        .refused(1, &["line 1: expected the field \"ctx_a\"; its fields are: text", "another task"]);
    Ok(())
}

#[test]
fn a_part_of_a_sound_file_is_named() -> Result {
    let folder = Folder::empty()?;
    let whole = std::fs::read(data("eval/hellaswag.parquet"))?;
    for (i, length) in [4, 100, whole.len() / 2, whole.len() - 9].into_iter().enumerate() {
        std::fs::write(folder.file("half.parquet"), &whole[..length])?;
        let task = format!("hellaswag={}", folder.at("half.parquet"));
        let run = gpt2(&["eval", &task])?;
        assert_ne!(run.code, 0, "{i}");
        assert_says("stderr", &run.stderr, &["half.parquet"]);
    }
    Ok(())
}

#[test]
fn interventions_that_need_whole_texts_are_refused_on_longer_ones() -> Result {
    let wikitext = format!("wikitext={}", data("eval/wikitext.jsonl").display());
    let run = gpt2(&["eval", &wikitext, "--block", "1:0"])?;
    run.refused(1, &["wikitext.jsonl, line 4", "longer than the model's context"]);
    Ok(())
}

/// The Hub of the tests stands in for the real one, which these machines cannot reach.
#[test]
fn a_data_set_of_the_hub_is_fetched_verified_and_kept() -> Result {
    let parquet = std::fs::read(data("eval/hellaswag.parquet"))?;
    let lines = std::fs::read(data("eval/hellaswag.jsonl"))?;
    let server = Server::start([
        ("default/validation/0000.parquet".to_owned(), parquet),
        ("data/some.jsonl".to_owned(), lines),
    ]);
    let cache = tempfile::tempdir()?;
    let run = |args: &[&str]| {
        let mut run = command(args);
        run.env("HF_ENDPOINT", server.endpoint()).env("HF_HUB_CACHE", cache.path());
        Run::of(run)
    };
    let results = |run: Run| -> Result<Value> {
        Ok(serde_json::from_str::<Value>(&run.succeeded().stdout)?["results"]["hellaswag"].clone())
    };
    let expected = results(gpt2(&[
        "eval",
        "--json",
        &format!("hellaswag={}", data("eval/hellaswag.jsonl").display()),
    ])?)?;
    assert_eq!(results(run(&["eval", "hellaswag", "--json"])?)?, expected);
    let named = "hellaswag=hf://datasets/Rowan/hellaswag/data/some.jsonl";
    assert_eq!(results(run(&["eval", named, "--json"])?)?, expected);
    // Kept, in the place where Python looks.
    let before = server.state().seen.len();
    assert_eq!(results(run(&["eval", "hellaswag", "--json", "--offline"])?)?, expected);
    assert_eq!(server.state().seen.len(), before, "a request");
    assert!(cache.path().join("datasets--Rowan--hellaswag/snapshots").is_dir());
    run(&["eval", "lambada_openai"])?.refused(1, &["EleutherAI/lambada_openai"]);
    run(&["eval", "wikitext", "--offline"])?.refused(
        1,
        &["0000.parquet is not in the cache", "run this once where there is a network", "TASK=FILE"],
    );
    Ok(())
}
