//! The terminal helps: signs of life, advice that is true, names that people type first, tables that fit a screen.

use super::{Run, assert_near, command, gpt2, json, list, number, spawn, stdout, words};
use crate::common::Result;
use crate::folder::{Folder, assert_says};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

/// Some kilobytes of English, of one byte a character.
fn text() -> String {
    include_str!("../../docs/tutorial.md").chars().filter(char::is_ascii).collect()
}

#[test]
fn work_that_takes_long_says_how_far_it_is_every_ten_seconds() -> Result {
    // More texts than are read in the time of the test.
    let mut process = spawn(command(&["heads", "--batch", "65535"]))?;
    let started = Instant::now();
    let lines = BufReader::new(process.stderr.take().ok_or("a pipe")?).lines();
    let mut found = None;
    for line in lines {
        let line = line?;
        if line.contains(" of 65535 texts, about ") {
            found = Some(started.elapsed());
            break;
        }
    }
    process.kill()?;
    process.wait()?;
    let after = found.ok_or("no line says how far it is")?;
    assert!(after >= Duration::from_secs(9), "{after:?}");
    Ok(())
}

#[test]
fn advice_about_the_network_is_true_for_what_was_looked_up() -> Result {
    let folder = Folder::empty()?;
    folder.write("text.txt", text())?;
    let text = folder.at("text.txt");
    let out = folder.at("out");
    let demo = "leave --model out for the built-in demo model";
    let cases: [(&[&str], &str, &[&str]); 6] = [
        (&["download", "a/b"], "or set HF_ENDPOINT to a mirror", &["folder", "--model"]),
        (&["forward", "x", "--model", "a/b"], demo, &[]),
        (
            &["train", "--model", "a/b", "--text", &text, "--out", &out],
            "or name a folder with the model's",
            &[demo],
        ),
        (&["features", "x", "--dictionary", "a/b"], "or name a folder with the dictionary's", &["--model"]),
        (&["forward", "x", "--adapter", "a/b"], "or name a folder with the adapter's", &["--model"]),
        (&["compare", "a/b", "demo", "--text", &text], "or give demo, the built-in model", &["--model"]),
    ];
    // Each tries several times, and waits in between.
    let started =
        cases.map(|(args, ..)| spawn(command(&[args, &["--endpoint", "http://127.0.0.1:1"]].concat())));
    for (process, (args, says, never)) in started.into_iter().zip(cases) {
        let run = Run::end_of(process?)?;
        assert_eq!(run.code, 1, "{args:?}");
        let error = run.stderr.lines().find(|line| line.starts_with("error: ")).ok_or("an error")?;
        assert_says(args[0], error, &["check the network", says]);
        assert!(never.iter().all(|never| !error.contains(never)), "{args:?}: {error}");
    }
    Ok(())
}

#[test]
fn what_people_type_first_runs_or_gets_a_tip() -> Result {
    for (line, tip) in [
        ("finetune", "gpt2 train --model gpt2 --text FILE"),
        ("chat", "gpt2 generate \"TEXT\""),
        ("gpt2-small", "--model gpt2-small"),
        ("distilgpt2", "--model distilgpt2"),
    ] {
        gpt2(&words(line))?.refused(2, &["tip: ", tip]);
    }
    let small = gpt2(&["forward", "x", "--model", "gpt2-small", "--offline"])?;
    small.refused(1, &["openai-community/gpt2"]);
    assert_eq!(stdout(&["pairs", "INDUCTION", "-n2"])?, stdout(&["pairs", "induction", "-n2"])?);
    let four = stdout(&["generate", "O", "--greedy", "-n4"])?;
    for name in ["--length", "--num-tokens", "--max-new-tokens"] {
        assert_eq!(stdout(&["generate", "O", "--greedy", name, "4"])?, four, "{name}");
    }
    for (model, meant) in
        [("distillgpt2", "distilgpt2"), ("GPT2", "gpt2"), ("gpt-2", "gpt2"), ("gpt2_xl", "gpt2-xl")]
    {
        let run = gpt2(&["forward", "x", "--model", model])?;
        run.refused(1, &["no such directory", &format!("did you mean {meant}?")]);
    }
    assert!(!gpt2(&["forward", "x", "--model", "llama"])?.stderr.contains("did you mean"));
    let folder = Folder::empty()?;
    folder.write("text.txt", text())?;
    let text = folder.at("text.txt");
    let run = gpt2(&["train", "--text", &text, "--learning-rate", "x", "--out", &folder.at("out")])?;
    run.refused(2, &["'x' for '--lr"]);
    assert_eq!(stdout(&["perplexity", &text])?, stdout(&["score", &text])?);
    folder.write("short.txt", "To be")?;
    let short = folder.at("short.txt");
    let run = gpt2(&["attention", &short])?.succeeded();
    assert_says("a note", &run.stderr, &[&format!("--file {short}")]);
    assert!(!gpt2(&["attention", "--file", &short])?.succeeded().stderr.contains("--file"));
    Ok(())
}

#[test]
fn a_text_and_a_head_are_named_alike_in_every_command() -> Result {
    let folder = Folder::empty()?;
    std::fs::create_dir(folder.at("texts"))?;
    folder.write("texts/a.txt", &text()[..3000])?;
    folder.write("texts/b.txt", &text()[3000..9000])?;
    folder.write("both.txt", &text()[..9000])?;
    let both = folder.at("both.txt");
    let texts = folder.at("texts");
    assert_eq!(stdout(&["score", "--text", &both])?, stdout(&["score", &both])?);
    gpt2(&["score"])?.refused(2, &["required"]);
    gpt2(&["score", "--text", &both, &both])?.refused(2, &["cannot be used with"]);
    let compare = |more: &[&str]| json(&[&["compare", "demo", "demo", "--json"][..], more].concat());
    let compared = compare(&["--text", &both])?;
    assert_eq!(compare(&[&both])?, compared);
    assert_eq!(compare(&["--text", &texts])?, compared, "the files of a folder, one after another");
    let train = |text: &str, out: &str| -> Result<Vec<u8>> {
        let sizes =
            words("--vocab-size 300 --n-layer 1 --n-head 1 --n-embd 8 --n-positions 32 --steps 2 --batch 1");
        let out = folder.at(out);
        gpt2(&[&["train", "--text", text, "--out", &out][..], &sizes].concat())?.succeeded();
        Ok(std::fs::read(format!("{out}/model.safetensors"))?)
    };
    assert_eq!(train(&texts, "of-folder")?, train(&both, "of-file")?);
    assert_eq!(stdout(&["circuits", "--head", "1.2"])?, stdout(&["circuits", "1.2"])?);
    gpt2(&["circuits", "1.2", "--head", "1.1"])?.refused(2, &["cannot be used with"]);
    Ok(())
}

/// Both predict each token once, from other windows.
#[test]
fn score_gives_the_perplexity_of_compare_with_its_windows() -> Result {
    let folder = Folder::empty()?;
    folder.write("text.txt", &text()[..9000])?;
    let text = folder.at("text.txt");
    let score = |more: &[&str]| json(&[&["score", &text, "--json"][..], more].concat());
    for window in ["256", "100"] {
        let compared = json(&["compare", "demo", "demo", "--text", &text, "--window", window, "--json"])?;
        let scored = score(&["--window", window, "--stride", window])?;
        assert_eq!(scored["predicted"], compared["tokens"]);
        // Both add up the same logarithms, of logits that differ by rounding.
        let perplexity = number(&compared["model"]["perplexity"]);
        assert_near("perplexity", &scored["perplexity"], perplexity, 1e-5 * perplexity);
        assert!(number(&score(&["--window", window])?["perplexity"]) < perplexity);
    }
    assert_says("score", &stdout(&["score", &text])?, &["--stride 256 gives its perplexity"]);
    gpt2(&["score", &text, "--window", "257"])?.refused(1, &["--window 257", "2 to 256"]);
    Ok(())
}

/// A model of GPT-2 small's number of heads.
fn with_144_heads(folder: &Folder) -> Result<String> {
    folder.write("text.txt", text())?;
    let model = folder.at("model");
    let sizes =
        words("--vocab-size 300 --n-layer 12 --n-head 12 --n-embd 24 --n-positions 128 --steps 1 --batch 1");
    gpt2(&[&["train", "--text", &folder.at("text.txt"), "--out", &model][..], &sizes].concat())?.succeeded();
    Ok(model)
}

/// The rows of a table that begin with a head's name.
fn rows(printed: &str) -> usize {
    let is_head = |word: &str| {
        word.split_once('.')
            .is_some_and(|(a, b)| a.len() < 3 && a.parse::<u8>().is_ok() && b.parse::<u8>().is_ok())
    };
    printed.lines().filter(|line| line.split_whitespace().next().is_some_and(is_head)).count()
}

#[test]
fn a_model_of_144_heads_fits_a_screen() -> Result {
    let folder = Folder::empty()?;
    let model = with_144_heads(&folder)?;
    for args in [
        &["attention", "To be, or not to be", "--model", &model][..],
        &["attention", "To be, or not to be", "--effect", "--model", &model],
        &["heads", "--length", "9", "--model", &model],
    ] {
        let printed = stdout(args)?;
        assert_says(args[0], &printed, &["\n129 more: --all\n"]);
        assert_eq!(rows(&printed), 15, "{args:?}: {printed}");
        let all = stdout(&[args, &["--all"]].concat())?;
        assert!(rows(&all) == 144 && !all.contains("more: --all"), "{args:?}: {all}");
    }
    let heads = |report: &Value| list(report).len();
    assert_eq!(heads(&json(&["heads", "--length", "9", "--model", &model, "--json"])?["heads"]), 144);
    assert!(!stdout(&["heads"])?.contains("more: --all"), "16 heads are few");
    Ok(())
}

#[test]
fn tokens_that_training_hardly_saw_do_not_fill_the_tables_of_a_head() -> Result {
    let is_byte = |word: &str| word.len() == 4 && word.starts_with('<') && word.ends_with('>');
    let bytes = |printed: &str| printed.split_whitespace().filter(|word| is_byte(word)).count();
    for head in ["1.2", "3.0"] {
        let printed = stdout(&["circuits", head])?;
        assert_eq!(bytes(&printed), 0, "{printed}");
        assert_says(
            "how many",
            &printed,
            &["\nwithout ", " tokens that training hardly saw; all: --all-tokens\n"],
        );
        let all = stdout(&["circuits", head, "--all-tokens"])?;
        assert!(bytes(&all) > 5 && !all.contains("--all-tokens"), "{all}");
    }
    let report = json(&["circuits", "1.2", "--json"])?;
    assert!(report.get("unseen").is_none(), "JSON has all");
    Ok(())
}

#[test]
fn the_dictionary_of_the_demo_model_is_built_in() -> Result {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-shakespeare-features");
    let of = |dictionary: &str| -> Result<Value> {
        let mut report = json(&["features", "O Romeo, Romeo", "--dictionary", dictionary, "--json"])?;
        assert_eq!(report["dictionary"]["name"], dictionary);
        report["dictionary"].take();
        Ok(report)
    };
    assert_eq!(of("demo")?, of(folder)?);
    let run = gpt2(&["forward", "O", "--dictionary", "demo", "--ablate-feature", "713"])?.succeeded();
    assert_says("the first line", &run.stdout, &["a feature of demo"]);
    Ok(())
}
