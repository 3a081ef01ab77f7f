//! `gpt2 verify --published`: the demo model and a random one beside what transformers and PyTorch compute with them, which
//! `scripts/make_eval_reference.py` wrote. The real weights cannot be fetched here.

use crate::common::{Result, data};
use crate::folder::{Folder, assert_says};
use crate::hub::server::Server;
use crate::{DEMO, Run, command, gpt2, json, list};
use serde_json::{Value, json};
use std::path::Path;

fn answers() -> Result<Value> {
    Ok(serde_json::from_str(&std::fs::read_to_string(data("eval/answers.json"))?)?)
}

/// A copy of the answers after `change`.
fn changed(folder: &Folder, change: impl FnOnce(&mut Value)) -> Result<String> {
    let mut answers = answers()?;
    change(&mut answers);
    folder.write("answers.json", answers.to_string())?;
    Ok(folder.at("answers.json"))
}

fn evaluation(task: &str, file: &Path, measure: &str, value: f64) -> Value {
    let task = format!("{task}={}", file.display());
    let question =
        json!({"evaluation": {"task": task, "measure": measure, "value": value, "tolerance": 0.001}});
    json!({"source": "lm-evaluation-harness", "question": question})
}

/// Ten losses of PyTorch's AdamW on random weights to 1e-5 among them.
#[test]
fn sound_weights_agree_with_every_answer() -> Result {
    let file = data("eval/answers.json").display().to_string();
    for model in [None, Some(data("eval/random"))] {
        let mut args = vec!["verify", "--published", "--answers", &file, "--json"];
        let path = model.as_ref().map(|path| path.display().to_string());
        if let Some(path) = &path {
            args.extend(["--model", path.as_str()]);
        }
        let report = json(&args)?;
        let name = if path.is_some() { "random" } else { "demo" };
        assert_eq!((&report["model"], &report["passed"]), (&json!(name), &json!(true)), "{report}");
        let checked = list(&report["answers"]);
        assert_eq!(checked.len(), list(&answers()?[name]).len());
        assert!(checked.iter().all(|one| one["state"] == "right"), "{report}");
        assert_eq!(report["provenance"]["dtype"], "f32");
    }
    let run = gpt2(&["verify", "--published", "--answers", &file])?.succeeded();
    let parts = [
        "ok: losses of 10 steps on one batch of 4 rows of 32",
        "PyTorch",
        "5 answers as printed",
        "tiny-shakespeare",
    ];
    assert_says("stdout", &run.stdout, &parts);
    Ok(())
}

#[test]
fn an_answer_that_differs_fails_by_itself() -> Result {
    let folder = Folder::empty()?;
    let file = changed(&folder, |answers| {
        answers["demo"][0]["question"]["continuation"]["ids"][9] = json!(7);
        answers["demo"][1]["question"]["losses"]["losses"][9] = json!(0.1557);
        answers["demo"][2]["question"]["heads"]["heads"] = json!(["2.1"]);
    })?;
    let run = gpt2(&["verify", "--published", "--answers", &file, "--json"])?;
    assert_eq!(run.code, 1, "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout)?;
    let states: Vec<&Value> = list(&report["answers"]).iter().map(|one| &one["state"]).collect();
    assert_eq!(states, ["wrong", "wrong", "wrong", "right", "right"]);
    let other = gpt2(&["verify", "--published", "--answers", &file, "--quantize", "q4_0"])?;
    other.refused(2, &["--quantize"]);
    Ok(())
}

#[test]
fn evaluations_run_when_they_are_asked_for() -> Result {
    let folder = Folder::empty()?;
    let file = changed(&folder, |answers| {
        let hellaswag = data("eval/hellaswag.jsonl");
        let more = [
            evaluation("hellaswag", &hellaswag, "acc", 0.375),
            evaluation("hellaswag", &hellaswag, "acc_norm", 0.9),
        ];
        answers["demo"].as_array_mut().expect("a list").extend(more);
    })?;
    let args = ["verify", "--published", "--answers", &file, "--json"];
    let without = json(&args)?;
    assert_eq!((&without["passed"], &without["unchecked"]), (&json!(true), &json!(2)));
    let run = gpt2(&[&args[..], &["--evaluations"]].concat())?;
    assert_eq!(run.code, 1, "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout)?;
    let last: Vec<&Value> = list(&report["answers"]).iter().skip(5).map(|one| &one["state"]).collect();
    assert_eq!(last, ["right", "wrong"]);
    Ok(())
}

/// An answer that cannot be checked says why, and all others are still reported.
#[test]
fn one_answer_that_cannot_be_checked_leaves_the_others() -> Result {
    let folder = Folder::empty()?;
    folder.write("damaged.jsonl", "no JSON\n")?;
    let hellaswag = data("eval/hellaswag.jsonl");
    let heads = |among: usize, heads: Value| {
        let question = json!({"heads": {"score": "induction", "heads": heads, "among": among}});
        json!({"source": "nobody", "question": question})
    };
    let file = changed(&folder, |answers| {
        let more = [
            evaluation("hellaswag", &folder.file("damaged.jsonl"), "acc", 0.375),
            evaluation("hellaswag", Path::new("missing.jsonl"), "acc", 0.375),
            evaluation("hellaswag", &hellaswag, "f1", 0.375),
            heads(1000, json!(["0.0"])),
            heads(1, json!(["99.0"])),
            evaluation("hellaswag", &hellaswag, "acc", 0.375),
        ];
        answers["demo"].as_array_mut().expect("a list").extend(more);
    })?;
    let args = ["verify", "--published", "--answers", &file, "--evaluations"];
    let run = gpt2(&[&args[..], &["--json"]].concat())?;
    assert_eq!(run.code, 3, "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout)?;
    assert_eq!((&report["passed"], &report["unchecked"]), (&json!(true), &json!(5)));
    let checked = &list(&report["answers"])[5..];
    for (one, part) in checked.iter().zip([
        "damaged.jsonl, line 1: expected an object of JSON",
        "missing.jsonl: no such file",
        "has no measure f1; it has acc, acc_norm",
        "which are all among the first 1000",
        "the model has no head 99.0",
    ]) {
        assert_eq!(one["state"], "unchecked", "{one}");
        assert!(one["found"].as_str().is_some_and(|found| found.contains(part)), "{part}: {one}");
    }
    assert_eq!(checked[5]["state"], "right");
    let shown = gpt2(&args)?;
    assert_says(
        "stdout",
        &shown.stdout,
        &["not checked: acc of hellaswag", "reason", "6 of 11 answers as printed"],
    );
    // One that differs counts for more.
    let mut wrong: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    wrong["demo"][10]["question"]["evaluation"]["value"] = json!(0.9);
    folder.write("answers.json", wrong.to_string())?;
    assert_eq!(gpt2(&args)?.code, 1);
    Ok(())
}

/// Whoever has no network learns that nothing was checked, by an exit code of its own.
#[test]
fn without_a_network_it_says_that_it_could_not_run() -> Result {
    let cache = tempfile::tempdir()?;
    let run = |args: &[&str], endpoint: &str| {
        let mut run = command(&[&["verify", "--published"], args].concat());
        run.env("HF_ENDPOINT", endpoint).env("HF_HUB_CACHE", cache.path());
        Run::of(run)
    };
    let closed = "http://127.0.0.1:9";
    for args in [
        &["--model", "gpt2"][..],
        &["--model", "gpt2", "--offline"],
        &["--model", "gpt2-xl", "--evaluations"],
    ] {
        run(args, closed)?.refused(3, &["nothing was checked: the model could not be fetched"]);
    }
    // A model that does not exist is another error.
    let server = Server::start([("config.json".to_owned(), b"{}".to_vec())]);
    assert_eq!(run(&["--model", "gpt2"], &server.endpoint())?.code, 1);
    // A data set that cannot be had leaves its answer alone unchecked.
    let folder = Folder::empty()?;
    let file = changed(&folder, |answers| {
        let question =
            json!({"evaluation": {"task": "hellaswag", "measure": "acc", "value": 0.3, "tolerance": 0.1}});
        answers["demo"] = json!([answers["demo"][0], {"source": "nobody yet", "question": question}]);
    })?;
    let found = run(&["--answers", &file, "--evaluations", "--json"], closed)?;
    assert_eq!(found.code, 3, "{}", found.stderr);
    let report: Value = serde_json::from_str(&found.stdout)?;
    assert_eq!((&report["passed"], &report["unchecked"]), (&json!(true), &json!(1)));
    Ok(())
}

#[test]
fn a_file_without_answers_is_refused() -> Result {
    let folder = Folder::empty()?;
    for (text, parts) in [
        ("{", &["answers.json: expected {\"MODEL\""][..]),
        ("{\"demo\": [{\"source\": \"x\", \"question\": {\"guess\": {}}}]}", &["answers.json", "guess"]),
        ("{\"gpt2\": []}", &["has no answer about demo; it is about gpt2"]),
        ("{\"demo\": []}", &["lists no answer about demo"]),
        (
            "{\"demo\": [{\"source\": \"x\", \"question\": {\"continuation\": {\"prompt\": [1], \"ids\": [1]}}}]}",
            &["answers.json: answer 1 about demo", "hold the prompt alone"],
        ),
        (
            "{\"demo\": [{\"source\": \"\", \"question\": {\"continuation\": {\"prompt\": [1], \"ids\": [1, 2]}}}]}",
            &["answer 1 about demo", "\"source\" is empty"],
        ),
    ] {
        folder.write("answers.json", text)?;
        gpt2(&["verify", "--published", "--answers", &folder.at("answers.json")])?.refused(1, parts);
    }
    gpt2(&["verify", "--published"])?.refused(1, &["has no answer about demo; it is about gpt2, gpt2-xl"]);
    gpt2(&["verify", "--published", "--model", "gpt2-xl"])?
        .refused(1, &["all answers about gpt2-xl are evaluations", "--evaluations"]);
    gpt2(&["verify", "--published", "--model", "gpt2-medium"])?
        .refused(1, &["has no answer about gpt2-medium"]);
    gpt2(&["verify", "--answers", "x"])?.refused(2, &["--published"]);
    gpt2(&["verify", "--published", "--model", DEMO])?.refused(1, &["tiny-shakespeare"]);
    Ok(())
}
