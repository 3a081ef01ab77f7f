//! LoRA adapters: `train --lora`, `--adapter` of every command, `merge`, and `inspect` of an adapter.

use super::{DEMO, Run, case, command, gpt2, json, list, number, stdout};
use crate::common::Result;
use crate::folder::{Folder, assert_says, names_in};
use serde_json::Value;

const PROMPT: &str = "O Romeo, Romeo! wherefore";

/// Trains an adapter of the demo model into `out`, for a few steps on a text that it does not know.
fn train(folder: &Folder, out: &str, more: &[&str]) -> Result<Run> {
    folder.write("text.txt", "the cat sat on the mat and the dog sat on the log; ".repeat(60))?;
    let text = folder.at("text.txt");
    let out = folder.at(out);
    let fixed = ["train", "--model", DEMO, "--text", &text, "--out", &out, "--lora", "4"];
    let short = ["--lr", "0.02", "--warmup", "0", "--window", "24", "--batch", "2", "--eval-every", "6"];
    gpt2(&[&fixed[..], &short, more].concat())
}

/// An adapter, and the base folder's name as an argument.
fn adapter(folder: &Folder) -> Result<String> {
    train(folder, "cat", &["--steps", "12", "--lora-target", "c_attn,c_proj,c_fc"])?.succeeded();
    Ok(folder.at("cat"))
}

fn next(args: &[&str]) -> Result<Value> {
    Ok(json(&[&["forward", "--json", PROMPT], args].concat())?["next"].clone())
}

#[test]
fn an_adapter_is_trained_used_by_every_command_and_merged() -> Result {
    let folder = Folder::empty()?;
    let cat = adapter(&folder)?;
    let files = ["adapter_config.json", "adapter_model.safetensors", "loss.png"];
    assert_eq!(names_in(cat.as_ref())?, files);
    assert!(std::fs::metadata(folder.file("cat/adapter_model.safetensors"))?.len() < 200_000, "kilobytes");

    let with = next(&["--model", DEMO, "--adapter", &cat])?;
    let without = next(&["--model", DEMO])?;
    assert_ne!(with, without);
    let nothing = next(&["--model", DEMO, "--adapter", &format!("{cat}=0")])?;
    assert_eq!(nothing, without);
    let report = json(&["forward", PROMPT, "--json", "--model", DEMO, "--adapter", &format!("{cat}=0.5")])?;
    assert_eq!(report["provenance"]["adapters"][0]["weight"], 0.5);
    for command in [
        &["attention", PROMPT][..],
        &["generate", "--greedy", "-n", "5", PROMPT],
        &["lens", PROMPT],
        &["heads"],
    ] {
        let run = gpt2(&[command, &["--adapter", &cat]].concat())?.succeeded();
        assert_says(command[0], &format!("{}{}", run.stdout, run.stderr), &["cat x 1"]);
    }
    let text = folder.at("text.txt");
    let compared = json(&["compare", "demo", "demo", "--adapter", &cat, "--text", &text, "--json"])?;
    let perplexity = |side: &str| number(&compared[side]["perplexity"]);
    assert!(perplexity("other") < 0.7 * perplexity("model"), "it learnt nothing: {compared}");

    let merged = folder.at("merged");
    let report = json(&["merge", "--model", DEMO, "--adapter", &cat, "--out", &merged, "--json"])?;
    assert_eq!(report["adapters"][0]["weight"], 1.0);
    let of_merged = next(&["--model", &merged])?;
    for (a, b) in list(&of_merged).iter().zip(list(&with)) {
        assert_eq!(a["id"], b["id"]);
        let [a, b] = [a, b].map(|one| number(&one["probability"]));
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    let back = folder.at("back");
    gpt2(&["merge", "--model", &merged, "--adapter", &format!("{cat}=-1"), "--out", &back])?.succeeded();
    for (a, b) in list(&next(&["--model", &back])?).iter().zip(list(&without)) {
        assert_eq!(a["id"], b["id"]);
    }
    Ok(())
}

#[test]
fn inspect_of_an_adapter_says_what_it_changes_and_by_how_much() -> Result {
    let folder = Folder::empty()?;
    let cat = adapter(&folder)?;
    let alone = json(&["inspect", &cat, "--json"])?;
    assert_eq!((alone["config"]["r"].as_u64(), list(&alone["layers"]).len()), (Some(4), 16));
    let norm = number(&alone["layers"][0]["norm"]);
    assert!(norm > 0.0 && alone["layers"][0]["relative_norm"].is_null());
    let beside = json(&["inspect", "--adapter", &cat, "--model", DEMO, "--json"])?;
    assert_eq!(beside["fits"], true);
    assert_eq!(
        json(&["inspect", DEMO, "--adapter", &cat, "--json"])?,
        beside,
        "either way to name the model"
    );
    assert_eq!(beside["layers"][0]["norm"], alone["layers"][0]["norm"]);
    let relative = number(&beside["layers"][0]["relative_norm"]);
    assert!((1e-4..1.0).contains(&relative), "{relative}");
    let printed = stdout(&["inspect", &cat])?;
    assert_says("printed", &printed, &["a LoRA adapter of", "h.3.mlp.c_proj", "parameters"]);
    let other = case("lora/default");
    let misfit = gpt2(&["inspect", "--adapter", &other, "--model", DEMO])?;
    assert_eq!(misfit.code, 1);
    assert_says("misfit", &misfit.stdout, &["mis-shaped", "[8, 12]"]);
    Ok(())
}

#[test]
fn the_same_seed_gives_the_same_adapter_and_a_quantized_base_serves_too() -> Result {
    let folder = Folder::empty()?;
    let bytes = |name: &str| std::fs::read(folder.file(name).join("adapter_model.safetensors"));
    for name in ["one", "two"] {
        train(&folder, name, &["--steps", "6", "--lora-dropout", "0.1", "--seed", "3"])?.succeeded();
    }
    assert_eq!(bytes("one")?, bytes("two")?);
    train(&folder, "other", &["--steps", "6", "--lora-dropout", "0.1", "--seed", "4"])?.succeeded();
    assert_ne!(bytes("one")?, bytes("other")?);
    let run = train(&folder, "small", &["--steps", "6", "--quantize", "q8_0", "--rslora", "--recompute"])?;
    assert_says("notes", &run.succeeded().stderr, &["frozen", "of the adapter learn"]);
    let small = folder.at("small");
    gpt2(&["forward", PROMPT, "--quantize", "q8_0", "--adapter", &small])?.succeeded();
    Ok(())
}

#[test]
fn what_cannot_be_done_with_an_adapter_is_refused() -> Result {
    let folder = Folder::empty()?;
    let cat = adapter(&folder)?;
    let out = folder.at("out");
    let misfit = case("lora/default");
    gpt2(&["forward", PROMPT, "--model", DEMO, "--adapter", &misfit])?
        .refused(1, &["mis-shaped", "[8, 12]", "its config names base"]);
    // Nobody named the demo model.
    for args in [&["forward", PROMPT][..], &["merge", "--out", &out]] {
        let run = gpt2(&[args, &["--adapter", &misfit]].concat())?;
        run.refused(1, &["is an adapter of base", "give --model base"]);
        assert!(!run.stderr.contains("mis-shaped"), "{}", run.stderr);
    }
    let run = gpt2(&["forward", PROMPT, "--adapter", &cat])?.succeeded();
    assert_says(
        "stderr",
        &run.stderr,
        &[&format!(
            "{cat} was trained on {DEMO} but now runs on the built-in demo model; to run it on {DEMO}, give --model {DEMO}"
        )],
    );
    gpt2(&["forward", PROMPT, "--model", &cat])?
        .refused(1, &["a LoRA adapter", &format!("give --model {DEMO} --adapter {cat}")]);
    gpt2(&["forward", PROMPT, "--adapter", "no/where/at/all"])?
        .refused(1, &["no such folder", "adapter_config.json"]);
    gpt2(&["forward", PROMPT, "--adapter", DEMO])?.refused(1, &["a model, not an adapter"]);
    gpt2(&["forward", PROMPT, "--adapter", &cat, "--adapter", &cat])?.refused(1, &["twice"]);
    gpt2(&["forward", PROMPT, "--adapter", &format!("{cat}=much")])?.refused(2, &["poems=0.5"]);
    gpt2(&["bench", "core", "--adapter", &cat])?.refused(1, &["--adapter is only for"]);
    gpt2(&["bench", "forward", "--lora", "4"])?.refused(1, &["--lora is only for"]);
    gpt2(&["merge", "--out", &out])?.refused(2, &["--adapter"]);
    gpt2(&["merge", "--model", DEMO, "--adapter", &cat, "--out", &cat])?.refused(1, &["holds an adapter"]);
    gpt2(&["merge", "--model", DEMO, "--adapter", &cat, "--out", DEMO])?
        .refused(1, &["which this run reads"]);
    std::fs::create_dir(folder.file("full"))?;
    folder.write("full/config.json", "{}")?;
    gpt2(&["merge", "--model", DEMO, "--adapter", &cat, "--out", &folder.at("full")])?
        .refused(1, &["config.json already", "--overwrite"]);
    gpt2(&["merge", "--model", DEMO, "--adapter", &cat, "--out", DEMO, "--overwrite"])?
        .refused(1, &["which this run reads"]);
    // The built-in model is no folder.
    std::fs::create_dir(folder.file("demo"))?;
    let mut into_demo = command(&["merge", "--model", "demo", "--adapter", &cat, "--out", "demo"]);
    Run::of(into_demo.current_dir(folder.path()))?.succeeded();
    gpt2(&["merge", "--model", DEMO, "--adapter", &misfit, "--out", &out])?.refused(1, &["mis-shaped"]);
    assert!(!folder.file("out").exists(), "a refused merge leaves a folder");
    let gguf = folder.at("q.gguf");
    gpt2(&["quantize", DEMO, "--to", "q8_0", "--out", &gguf])?.succeeded();
    gpt2(&["merge", "--model", &gguf, "--adapter", &cat, "--out", &out])?
        .refused(1, &["quantized (q8_0)", "then quantize"]);
    assert!(!folder.file("out").exists(), "a refused merge leaves a folder");

    let text = folder.at("text.txt");
    gpt2(&["train", "--text", &text, "--out", &out, "--lora", "4"])?.refused(2, &["--model"]);
    gpt2(&["train", "--text", &text, "--out", &out, "--model", DEMO, "--lora-alpha", "4"])?
        .refused(2, &["--lora"]);
    // clap forgets a required option that conflicts with a given one.
    for new in ["--n-layer", "--n-head", "--n-embd", "--n-positions", "--vocab-size"] {
        gpt2(&["train", "--text", &text, "--out", &out, "--lora", "4", new, "512"])?.refused(2, &["--model"]);
    }
    for of_lora in
        ["--lora-alpha=4", "--lora-dropout=0.1", "--lora-target=c_fc", "--rslora", "--quantize=q8_0"]
    {
        let whole =
            ["train", "--text", &text, "--out", &out, "--model", DEMO, "--save-dtype", "f16", of_lora];
        gpt2(&whole)?.refused(2, &["--lora <R>"]);
    }
    gpt2(&["train", "--text", &text, "--out", &out, "--revision", "v1"])?
        .refused(1, &["--revision", "a new model"]);
    assert!(!folder.file("out").exists(), "a refused run leaves a folder");
    train(&folder, "cat", &["--steps", "6"])?.refused(1, &["adapter_config.json already", "--overwrite"]);
    train(&folder, "x", &["--steps", "6", "--lora-target", "q_proj"])?
        .refused(1, &["\"q_proj\"", "c_attn, c_fc, c_proj"]);
    train(&folder, "cat", &["--steps", "6", "--overwrite"])?.succeeded();
    let whole = ["train", "--text", &text, "--out", &cat, "--model", DEMO, "--steps", "2", "--overwrite"];
    gpt2(&whole)?.refused(1, &["adapter_config.json, of an adapter", "choose another --out"]);
    Ok(())
}

/// An answer that only its prompt tells, among neighbors in the row that say otherwise.
#[test]
fn prompts_and_completions_are_learned_and_each_alone() -> Result {
    let folder = Folder::empty()?;
    let example = |i: usize| {
        let (animal, sound) = [("cat", "meow"), ("dog", "woof"), ("cow", "moo")][i % 3];
        format!("{{\"prompt\": \"The {animal} says\", \"completion\": \" {sound}!\", \"source\": {i}}}\n")
    };
    folder.write("animals.jsonl", (0..60).map(example).collect::<String>())?;
    let jsonl = folder.at("animals.jsonl");
    let out = folder.at("animals");
    let train = |jsonl: &str, more: &[&str]| {
        let fixed =
            ["train", "--model", DEMO, "--jsonl", jsonl, "--out", &out, "--lora", "8", "--window", "48"];
        let short = ["--lr", "0.02", "--warmup", "0", "--batch", "4", "--lora-target", "c_attn,c_fc,c_proj"];
        gpt2(&[&fixed[..], &short, more].concat())
    };
    train(&jsonl, &["--steps", "30"])?.succeeded();
    for (animal, sound) in [("cat", " meow!"), ("dog", " woof!"), ("cow", " moo!")] {
        let prompt = format!("The {animal} says");
        let run = json(&["generate", "--greedy", "-n", "8", "--json", "--adapter", &out, &prompt])?;
        let text = run["text"].as_str().unwrap_or_default();
        assert!(text.contains(sound), "{prompt}: {run}");
    }
    for (content, parts) in [
        ("{\"prompt\": \"a\"}\n", &["line 1", "completion"][..]),
        ("{\"prompt\": \"a\", \"completion\": \"b\"}\nno\n", &["line 2", "\"prompt\": \"..\""]),
        ("{\"prompt\": \"a\", \"completion\": \"\"}\n", &["line 1", "completion is empty"]),
        ("{\"prompt\": \"a\", \"completion\": \"b\"}\n", &["has 1 examples, expected at least 2"]),
        ("", &["has 0 examples"]),
    ] {
        folder.write("bad.jsonl", content)?;
        train(&folder.at("bad.jsonl"), &["--steps", "2", "--overwrite"])?.refused(1, parts);
    }
    train(&folder.at("none.jsonl"), &["--steps", "2", "--overwrite"])?.refused(1, &["none.jsonl"]);
    train(&jsonl, &["--steps", "2", "--text", &jsonl])?.refused(2, &["--text"]);
    train(&jsonl, &["--steps", "2", "--repeat-fraction", "0.5"])?.refused(2, &["--repeat-fraction"]);
    Ok(())
}
