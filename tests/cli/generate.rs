//! `gpt2 generate`: greedy, seeded and streamed, ending when the model says so.

use super::{
    DEMO, ODD, comma_separated, copy_demo, demo_model, demo_tokenizer, gpt2, json, list, number, stdout,
    words,
};
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
        assert_says("stderr", &run.stderr, &["20 tokens in "]);

        let report = json(&[&args[..], &["--json"]].concat())?;
        assert_eq!(report["model"], ODD);
        assert_eq!((&report["ids"], &report["prompt_ids"]), (&reference["new_ids"], &reference["prompt"]));
        assert_eq!((&report["text"], &report["stopped_at_eos"]), (&Value::Null, &false.into()));
        let seconds = number(&report["seconds"]);
        let speed = number(&report["tokens_per_second"]);
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

/// Every way to continue a text stops where transformers stops: at the end tokens of `generation_config.json`.
#[test]
fn the_end_tokens_of_generation_config_rank_above_those_of_config() -> Result {
    // `odd` continues this prompt with 61, 50, 41.
    let folder = Folder::of("odd")?;
    let model = folder.dir();
    folder.set_config("eos_token_id", 61.into())?;
    let prompt = ["generate", "--model", &model, "--ids", "43,97,31,71", "-n", "3"];
    let ids_of = |options: &[&str]| stdout(&[&prompt[..], options].concat());
    assert_eq!(ids_of(&["--greedy", "-q"])?, "\n");
    folder.write(
        "generation_config.json",
        r#"{"eos_token_id": [7, 50], "max_new_tokens": 1, "temperature": 0.5}"#,
    )?;
    for options in [&["--greedy"][..], &["--greedy", "--draft", "lookup"], &["--beams", "1"]] {
        assert_eq!(ids_of(&[options, &["-q"]].concat())?, "61\n", "{options:?}");
    }
    folder.write("prompts.jsonl", "{\"ids\": [43,97,31,71]}\n{\"ids\": [43,97,31,71]}\n")?;
    let texts = folder.at("prompts.jsonl");
    let many = [
        "generate", "--model", &model, "--greedy", "-n", "3", "--texts", &texts, "--field", "ids", "--json",
        "-q",
    ];
    for line in stdout(&many)?.lines() {
        let line: Value = serde_json::from_str(line)?;
        assert_eq!((ids(&line["ids"])?, &line["stopped_at_eos"]), (vec![61, 50], &true.into()));
    }
    let run = gpt2(&[&prompt[..], &["--greedy"]].concat())?.succeeded();
    let note = "generation_config.json: only its end tokens are used, not max_new_tokens 1, temperature 0.5";
    assert_eq!(run.stderr.matches(note).count(), 1, "{}", run.stderr);
    let shown = stdout(&["inspect", &model])?;
    let line =
        "end tokens, used in place of config.json's: 7, 50; not used: max_new_tokens 1, temperature 0.5\n";
    assert!(shown.contains(line), "{shown}");
    let shown = json(&["inspect", &model, "--json"])?;
    assert_eq!(shown["generation_config"]["eos_token_id"], serde_json::json!([7, 50]));
    assert_eq!(shown["config"]["eos_token_id"], serde_json::json!([7, 50]));
    // It may name none, and must name ids.
    folder.write("generation_config.json", "{\"eos_token_id\": -1}")?;
    assert_eq!(ids_of(&["--greedy", "-q"])?, "61,50,41\n");
    folder.write("generation_config.json", "{\"eos_token_id\": \"50\"}")?;
    gpt2(&prompt)?.refused(1, &["generation_config.json", "eos_token_id is \"50\"", "expected a token id"]);
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
    let model = folder.dir();
    let full = comma_separated(&[3; 77]);
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

/// Elsewhere than on CUDA and beside what no graph can repeat, with the option's name and the remedy.
#[test]
fn a_cuda_graph_is_refused_where_there_is_none() -> Result {
    let args = ["generate", "ROMEO:", "--cuda-graph", "--device", "cpu"];
    gpt2(&args)?.refused(1, &["--cuda-graph", "only CUDA has graphs", "leave the graph out"]);
    for other in [&["--beams", "2"][..], &["--draft", "lookup"], &["--export", "a.npy"], &["--open"]] {
        gpt2(&[&args[..], other].concat())?.refused(2, &["--cuda-graph", other[0]]);
    }
    Ok(())
}

#[test]
fn a_draft_gives_the_same_text_and_says_how_it_fared() -> Result {
    for options in [&["--greedy"][..], &["--seed", "5"], &["--min-p", "0.05", "--typical-p", "0.9"]] {
        let args = [&["generate", "-n60", "ROMEO: O Romeo, Romeo"][..], options].concat();
        let text = stdout(&args)?;
        for draft in ["q8_0", "q4_0", "lookup", DEMO] {
            let run = gpt2(&[&args[..], &["--draft", draft]].concat())?.succeeded();
            assert_eq!(run.stdout, text, "{draft}");
            let report = json(&[&args[..], &["--json", "--draft", draft]].concat())?;
            let [passes, proposed, accepted] =
                ["passes", "proposed", "accepted"].map(|name| number(&report["draft"][name]));
            assert!(accepted <= proposed && proposed <= 3.0 * passes, "{}", report["draft"]);
            // The prompt's pass gives a token, and each other pass one more than it accepts.
            assert!((1.0 + passes + accepted - 60.0).abs() < 1e-9, "{}", report["draft"]);
            let says = format!(
                "draft {draft}: {accepted} of {proposed} guesses right ({:.0} %)",
                100.0 * accepted / proposed
            );
            assert_says("stderr", &run.stderr, &[&says]);
        }
    }
    for (draft, says) in [(ODD, "has 101 tokens"), ("/nowhere", "--draft")] {
        gpt2(&["generate", "ROMEO:", "--draft", draft])?.refused(1, &[says]);
    }
    // What cannot guess is refused before it is loaded.
    for (more, says) in [
        (["--draft", "q4_0", "--dtype", "f16"], "leave --dtype out"),
        (["--draft", "/nowhere", "--impl", "eager"], "use fused attention"),
        (["--draft", "/nowhere", "--dtype", "f64"], "use f32"),
    ] {
        gpt2(&[&["generate", "ROMEO:"], &more[..]].concat())?.refused(1, &["--draft", says]);
    }
    gpt2(&["generate", "ROMEO:", "--draft", "lookup", "--dtype", "f16", "-n", "9"])?.succeeded();
    // Interventions act on the model, whatever guesses.
    let args = ["generate", "ROMEO:", "-n", "40", "--ablate", "1.*", "--block", "9:3"];
    let text = stdout(&args)?;
    assert_ne!(text, stdout(&args[..4])?, "the interventions change nothing: this shows nothing");
    for draft in ["q4_0", "lookup"] {
        assert_eq!(stdout(&[&args[..], &["--draft", draft]].concat())?, text, "{draft}");
    }
    Ok(())
}

#[test]
fn a_stop_string_ends_the_text_before_it() -> Result {
    let args = ["generate", "--greedy", "-n80", "ROMEO:\n"];
    let endless = json(&[&args[..], &["--json"]].concat())?;
    let endless = endless["text"].as_str().ok_or("text")?;
    let characters: Vec<char> = endless.chars().collect();
    // A string that begins and ends within tokens.
    let stop: String = characters[21..27].iter().collect();
    let before = endless.split(&stop).next().ok_or("a beginning")?;
    let args = [&args[..], &["--stop", "never in it", "--stop", &stop]].concat();
    assert_eq!(stdout(&args)?, format!("ROMEO:\n{before}\n"));
    let report = json(&[&args[..], &["--json"]].concat())?;
    assert_eq!((&report["text"], &report["stopped_at"]), (&before.into(), &stop.as_str().into()));
    assert!(ids(&report["ids"])?.len() < 80, "no token is generated after it");
    Ok(())
}

#[test]
fn beams_give_the_most_probable_texts_and_their_scores() -> Result {
    let args = ["generate", "--beams", "3", "-n12", "ROMEO:"];
    let report = json(&[&args[..], &["--json", "--length-penalty", "0.5"]].concat())?;
    let found = report["hypotheses"].as_array().ok_or("hypotheses")?;
    assert_eq!(found.len(), 3);
    let scores: Vec<f64> = found.iter().map(|one| number(&one["score"])).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    for one in found {
        assert_eq!(one["text"], demo_tokenizer()?.decode(&ids(&one["ids"])?));
    }
    // The score is the log-probability that `forward` gives the text.
    let text = format!("ROMEO:{}", found[0]["text"].as_str().ok_or("text")?);
    let new = ids(&found[0]["ids"])?;
    let forward = json(&["forward", &text, "--json"])?;
    let tokens = forward["tokens"].as_array().ok_or("tokens")?;
    assert_eq!(tokens[tokens.len() - 1]["id"], new[11], "the text has the same tokens");
    let sum: f64 = tokens[tokens.len() - 12..].iter().map(|token| number(&token["log_prob"])).sum();
    assert!((scores[0] - sum / 12f64.sqrt()).abs() < 1e-4, "{} and {sum}", scores[0]);

    let text = found[0]["text"].as_str().ok_or("text")?;
    let printed = stdout(&[&args[..], &["--length-penalty", "0.5"]].concat())?;
    assert_eq!(printed, format!("ROMEO:{text}\n"));
    gpt2(&["generate", "--beams", "3", "--top-k", "4", "A"])?.refused(2, &["--beams", "cannot be used with"]);
    gpt2(&["generate", "--length-penalty", "3", "A"])?.refused(2, &["--beams"]);
    // Interventions act in the search as in a pass over the whole text.
    let changes = ["--ablate", "1.*", "--block", "4:1"];
    let plain = json(&[&args[..], &["--json"]].concat())?;
    let report = json(&[&args[..], &["--json"], &changes].concat())?;
    let best = &report["hypotheses"][0];
    assert_ne!(
        best["ids"], plain["hypotheses"][0]["ids"],
        "the interventions change nothing: this shows nothing"
    );
    assert_says("provenance", &report["provenance"].to_string(), &["ablate 1.0", "block 4:1"]);
    let text = comma_separated(&[ids(&report["prompt_ids"])?, ids(&best["ids"])?].concat());
    let forward = json(&[&["forward", "--ids", &text, "--json"], &changes[..]].concat())?;
    let tokens = forward["tokens"].as_array().ok_or("tokens")?;
    let sum: f64 = tokens[tokens.len() - 12..].iter().map(|token| number(&token["log_prob"])).sum();
    assert!((number(&best["score"]) - sum / 12.0).abs() < 1e-4, "{} and {sum}", best["score"]);
    Ok(())
}

#[test]
fn many_prompts_get_the_texts_that_they_get_alone() -> Result {
    let folder = Folder::empty()?;
    let long = "to be ".repeat(115);
    let begin = ["ROMEO:", "O Romeo, Romeo!", "", "To be, or not to be", "My", long.trim_end()];
    let more =
        ["What,", "Nay, good my lord, not so", "KING", "Farewell", "I", "Enter GHOST", "No more of that."];
    let prompts = [&begin[..], &more].concat();
    folder.write("prompts.txt", prompts.join("\n"))?;
    let path = folder.at("prompts.txt");
    // The long one leaves no room for the 100 tokens that the others get: it waits for them. The others take places that texts leave.
    for options in [&["--greedy"][..], &["--seed", "7"], &["--stop", ",", "--top-p", "0.9"], &["--kv", "f16"]]
    {
        let mut alone = vec![];
        for (i, prompt) in prompts.iter().enumerate().filter(|(_, prompt)| !prompt.is_empty()) {
            let mut report = json(&[&["generate", prompt, "--json"], options].concat())?;
            let fields = report.as_object_mut().ok_or("an object")?;
            fields.retain(|name, _| name != "seconds" && name != "tokens_per_second");
            fields.insert("line".to_owned(), (i + 1).into());
            alone.push(report);
        }
        let new = |report: &Value| list(&report["ids"]).len();
        assert!(options[0] == "--stop" || new(&alone[0]) > new(&alone[4]), "{options:?}");
        for batch in ["1", "3", "8"] {
            let run = [&["generate", "--texts", &path, "--json", "--batch", batch], options].concat();
            let lines = gpt2(&run)?.succeeded().stdout;
            let lines: Vec<Value> =
                lines.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?;
            assert_eq!(lines, alone, "{run:?}");
        }
    }
    // A first prompt beside which few fit does not hold the later ones back.
    folder.write("prompts.txt", [&[long.trim_end()], &begin[..2], &more].concat().join("\n"))?;
    let run = gpt2(&["generate", "--texts", &path, "--json", "--batch", "4", "--greedy"])?;
    let lines: Vec<Value> =
        run.succeeded().stdout.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?;
    for (line, prompt) in lines.iter().skip(1).zip(begin[..2].iter().chain(&more)) {
        let alone = json(&["generate", prompt, "--json", "--greedy"])?;
        assert_eq!(line["ids"], alone["ids"], "{prompt}");
    }
    assert_eq!(lines.len(), 3 + more.len());
    // Without JSON, each comes under its place; and those before a bad line are printed.
    folder.write("prompts.txt", format!("O Romeo\nMy lord\n{}\nMy", "to be ".repeat(200)))?;
    let run = gpt2(&["generate", "--prompts", &path, "--greedy", "-n", "5"])?;
    let text = |prompt| stdout(&["generate", prompt, "--greedy", "-n", "5"]);
    let expected =
        format!("== {path}, line 1 ==\n{}\n== {path}, line 2 ==\n{}\n", text("O Romeo")?, text("My lord")?);
    assert_eq!((run.code, run.stdout), (1, expected));
    assert_says("stderr", &run.stderr, &["prompts.txt, line 3", "n_positions = 256"]);
    folder.write("prompts.jsonl", "{\"p\": [1, 2, 3]}\n")?;
    let run =
        gpt2(&["generate", "--texts", &folder.at("prompts.jsonl"), "--field", "p", "-n", "3", "--json"])?;
    let line: Value = serde_json::from_str(&run.succeeded().stdout)?;
    assert_eq!(
        (&line["prompt_ids"], &line["text"], list(&line["ids"]).len()),
        (&serde_json::json!([1, 2, 3]), &Value::Null, 3)
    );
    gpt2(&["generate", "--texts", &path, "-n", "300"])?.refused(1, &["line 1", "at most", "new tokens do"]);
    gpt2(&["generate", "O", "--batch", "2"])?.refused(2, &["--texts"]);
    for option in [["--draft", "lookup"], ["--beams", "2"], ["--html", "x.html"]] {
        gpt2(&[&["generate", "--texts", &path], &option[..]].concat())?.refused(2, &["--texts", option[0]]);
    }
    Ok(())
}

/// Positions are those of each prompt, and means are taken over other texts.
#[test]
fn interventions_act_on_many_prompts_as_on_each_alone() -> Result {
    let folder = Folder::empty()?;
    let prompts = ["ROMEO:", "JULIET:", "O Romeo, Romeo!", "To be, or not to be", "ROMEO,"];
    folder.write("prompts.txt", prompts.join("\n"))?;
    folder.write("means.txt", "My lord\nO Romeo, Romeo!\n")?;
    folder.write(
        "circuit.json",
        r#"{"edges": [{"from": "embed", "to": "logits"}, {"from": "0.mlp", "to": "logits"}]}"#,
    )?;
    let path = folder.at("prompts.txt");
    let means = folder.at("means.txt");
    let circuit = folder.at("circuit.json");
    let many =
        |options: &[&str]| gpt2(&[&["generate", "--texts", &path, "--json", "-n", "20"], options].concat());
    let plain = many(&[])?.succeeded().stdout;
    for options in [
        &["--ablate", "1.*", "--scale", "2.1=3"][..],
        &["--block", "3:1,9:0"],
        &["--patch", "0.mlp@1,2@0", "--from-prompt", "My lord, my king"],
        &["--mean-ablate", "1.*", "--mean-of", &means],
        &["--circuit", &circuit, "--mean-of", &means],
    ] {
        let mut alone = vec![];
        for (i, prompt) in prompts.iter().enumerate() {
            let mut report = json(&[&["generate", prompt, "--json", "-n", "20"], options].concat())?;
            let fields = report.as_object_mut().ok_or("an object")?;
            fields.retain(|name, _| name != "seconds" && name != "tokens_per_second");
            fields.insert("line".to_owned(), (i + 1).into());
            alone.push(report);
        }
        let together = many(options)?.succeeded().stdout;
        assert_ne!(together, plain, "{options:?} changes nothing: this shows nothing");
        let lines = together.lines().map(serde_json::from_str);
        let lines: Vec<Value> = lines.collect::<std::result::Result<_, _>>()?;
        assert_eq!(lines, alone, "{options:?}");
    }
    many(&["--mean-ablate", "1.0"])?.refused(1, &["--mean-ablate", "several texts", "--mean-of"]);
    let from_prompt = ["--circuit", &circuit, "--from-prompt", "My lord"];
    let says = ["--circuit", "grows beyond --from-prompt", "--mean-of"];
    many(&from_prompt)?.refused(1, &says);
    gpt2(&[&["generate", "ROMEO:", "--beams", "2"], &from_prompt[..]].concat())?.refused(1, &says);
    Ok(())
}
