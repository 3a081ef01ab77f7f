//! `gpt2 generate`: greedy, seeded and streamed, ending when the model says so.

use super::{ODD, comma_separated, copy_demo, demo_model, demo_tokenizer, gpt2, json, number, stdout, words};
use crate::common::{Result, data};
use crate::folder::{Folder, assert_says};
use gpt2_model::{Generation, Sampling};
use serde_json::Value;

fn references() -> Result<Vec<Value>> {
    Ok(serde_json::from_slice(&std::fs::read(data("odd").join("generate.json"))?)?)
}

fn ids(value: &Value) -> Result<Vec<u32>> {
    Ok(serde_json::from_value(value.clone())?)
}

#[test]
fn greedy_ids_are_transformers_and_nothing_else_is_printed() -> Result {
    for reference in references()? {
        let prompt = comma_separated(&ids(&reference["prompt"])?);
        let penalty = reference["repetition_penalty"].to_string();
        let args = words("generate --greedy -n20 --model");
        let args = [&args[..], &[ODD, "--repetition-penalty", &penalty, "--ids", &prompt]].concat();
        let run = gpt2(&args)?.succeeded();
        let expected = ids(&reference["new_ids"])?;
        assert_eq!(run.stdout, comma_separated(&expected) + "\n");
        assert_says("stderr", &run.stderr, &["20 tokens in", "tokens/s"]);

        let report = json(&[&args[..], &["--json"]].concat())?;
        assert_eq!(report["model"], ODD);
        assert_eq!((&report["ids"], &report["prompt_ids"]), (&reference["new_ids"], &reference["prompt"]));
        assert_eq!((&report["text"], &report["stopped_at_eos"]), (&Value::Null, &false.into()));
        let (seconds, speed) = (number(&report["seconds"]), number(&report["tokens_per_second"]));
        assert!((seconds * speed - 20.0).abs() < 1e-6, "{seconds} s, {speed} tokens/s");
    }
    Ok(())
}

#[test]
fn text_is_the_prompt_and_its_continuation() -> Result {
    let prompt = "ROMEO:\n";
    let args = ["generate", "--greedy", "-n30", prompt];
    let run = gpt2(&args)?.succeeded();
    let report = json(&[&args[..], &["--json"]].concat())?;
    let text = report["text"].as_str().ok_or("text")?;
    assert_eq!(run.stdout, format!("{prompt}{text}\n"));
    assert_eq!(text, demo_tokenizer()?.decode(&ids(&report["ids"])?));
    assert_eq!(run.stdout, stdout(&args)?, "greedy is not random");

    // The library generates the same from the same input.
    let model = demo_model()?;
    let prompt_ids = demo_tokenizer()?.encode(prompt)?;
    let mut generation = Generation::new(&model, std::slice::from_ref(&prompt_ids), Sampling::greedy(), 30)?;
    for step in generation.by_ref() {
        step?;
    }
    assert_eq!(generation.texts()[0][prompt_ids.len()..], ids(&report["ids"])?);
    Ok(())
}

#[test]
fn the_seed_decides_the_text() -> Result {
    let text = |seed: &[&str]| stdout(&[&["generate", "-n40", "O Romeo"][..], seed].concat());
    assert_eq!(text(&["--seed", "1"])?, text(&["--seed", "1"])?);
    assert_ne!(text(&["--seed", "1"])?, text(&["--seed", "2"])?);
    assert_eq!(text(&[])?, text(&["--seed", "0"])?, "the default is a seed as well");
    Ok(())
}

#[test]
fn narrow_sampling_is_greedy() -> Result {
    let run = |options: &[&str]| -> Result<String> {
        let args = ["generate", "--model", ODD, "--ids", "43,97,31,71", "-n20", "--seed", "9"];
        stdout(&[&args[..], options].concat())
    };
    let greedy = run(&["--greedy"])?;
    for options in
        [&["--temperature", "0"][..], &["--top-k", "1"], &["--top-p", "0.000001"], &["-t", "0.00001"]]
    {
        assert_eq!(run(options)?, greedy, "{options:?}");
    }
    let wide = run(&["--top-k", "0"])?;
    assert_ne!(wide, greedy);
    assert_eq!(run(&["--top-k", "0", "--top-p", "1"])?, wide, "a top-p of all is not a limit");
    Ok(())
}

#[test]
fn the_end_token_ends_the_text_and_is_not_printed() -> Result {
    // `odd` continues this prompt with 61, 50, 41.
    let folder = Folder::of("odd")?;
    folder.set_config("eos_token_id", serde_json::json!([7, 50]))?;
    let model = folder.dir();
    let args = ["generate", "--model", &model, "--greedy", "--ids", "43,97,31,71"];
    assert_eq!(stdout(&args)?, "61\n");
    let report = json(&[&args[..], &["--json"]].concat())?;
    assert_eq!((ids(&report["ids"])?, &report["stopped_at_eos"]), (vec![61, 50], &true.into()));
    Ok(())
}

#[test]
fn json_leaves_the_end_token_out_of_the_text() -> Result {
    // The demo model, with the third token that it would generate as its end token.
    let folder = Folder::empty()?;
    copy_demo(folder.path())?;
    let model = folder.dir();
    let args = ["generate", "--model", &model, "--greedy", "-n8", "ROMEO:", "--json"];
    let endless = ids(&json(&args)?["ids"])?;
    folder.set_config("eos_token_id", endless[2].into())?;
    let report = json(&args)?;
    assert_eq!(report["stopped_at_eos"], true);
    let streamed = stdout(&args[..args.len() - 1])?;
    assert_eq!(streamed, format!("ROMEO:{}\n", report["text"].as_str().ok_or("text")?));
    Ok(())
}

#[test]
fn the_context_is_used_to_its_end_and_not_beyond() -> Result {
    let folder = Folder::of("odd")?;
    folder.set_config("eos_token_id", Value::Null)?;
    let (model, full) = (folder.dir(), comma_separated(&[3; 77]));
    // The model reads 77 positions and generates the 78th token from the last.
    let run = gpt2(&["generate", "--model", &model, "--ids", &full])?.succeeded();
    assert_eq!(run.stdout.trim_end().split(',').count(), 1, "{}", run.stdout);
    let run = gpt2(&["generate", "--model", &model, "--ids", "1,2"])?.succeeded();
    assert_eq!(run.stdout.trim_end().split(',').count(), 76, "what there is room for");
    gpt2(&["generate", "--model", &model, "--ids", "1,2", "-n77"])?
        .refused(1, &["n_positions = 77", "at most 76"]);
    Ok(())
}

#[test]
fn nothing_is_generated_where_nothing_is_asked_for() -> Result {
    let run = gpt2(&["generate", "--model", ODD, "--ids", "1,2", "-n0"])?.succeeded();
    assert_eq!(run.stdout, "\n");
    let report = json(&["generate", "--json", "-n0", "O Romeo"])?;
    assert_eq!((&report["text"], &report["stopped_at_eos"]), (&"".into(), &false.into()));
    Ok(())
}

#[test]
fn values_without_a_meaning_are_refused_by_name() -> Result {
    for (option, value, name) in [
        ("--temperature", "nan", "temperature"),
        ("--temperature=-1", "", "temperature"),
        ("--top-p", "1.5", "top-p"),
        ("--top-p", "0", "top-p"),
        ("--repetition-penalty", "0", "repetition-penalty"),
    ] {
        let options: &[&str] = if value.is_empty() { &[option] } else { &[option, value] };
        let args = ["generate", "--model", ODD, "--ids", "1"];
        gpt2(&[&args[..], options].concat())?.refused(2, &[name, "expected"]);
    }
    Ok(())
}
