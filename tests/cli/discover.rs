//! `gpt2 pairs`, `gpt2 discover`, and `gpt2 patch` over many pairs and along paths.

use super::circuits::{CLEAN, CORRUPT};
use super::{gpt2, gpt2_with_pipe, json, list, number};
use crate::common::Result;
use crate::folder::{Folder, assert_says};
use serde_json::{Value, json as value};

const TOKENS: [&str; 4] = ["--answer", " fair", "--against", " king"];

/// The lines of a task for the demo model.
fn induction(folder: &Folder, count: &str) -> Result<String> {
    let path = folder.at("pairs.jsonl");
    gpt2(&["pairs", "induction", "-n", count, "--out", &path])?.succeeded();
    Ok(path)
}

#[test]
fn pairs_are_those_of_their_seed_and_refuse_vocabularies_that_break_their_words() -> Result {
    let run = |more: &[&str]| gpt2(&[&["pairs", "induction", "-n", "3"][..], more].concat());
    let once = run(&[])?.succeeded().stdout;
    let again = run(&["--seed", "0"])?.succeeded().stdout;
    assert_eq!(once, again);
    assert_ne!(once, run(&["--seed", "1"])?.succeeded().stdout);
    for line in once.lines() {
        let pair: Value = serde_json::from_str(line)?;
        let clean = list(&pair["clean"]);
        let corrupted = list(&pair["corrupted"]);
        let differ: Vec<usize> = (0..clean.len()).filter(|&i| clean[i] != corrupted[i]).collect();
        assert_eq!(clean.len(), corrupted.len());
        // The only difference is the token that should come again.
        let [at] = differ[..] else { panic!("{line}") };
        assert_eq!((&pair["correct"][0], &pair["incorrect"][0]), (&clean[at], &corrupted[at]));
        assert_eq!(clean.last(), clean.get(at - 1));
    }
    for task in ["ioi", "greater-than", "pronouns"] {
        gpt2(&["pairs", task])?.refused(1, &["vocabulary", "breaks", "induction"]);
    }
    gpt2(&["pairs", "capitals"])?.refused(2, &["ioi", "greater-than", "induction", "pronouns"]);
    let folder = Folder::empty()?;
    let path = induction(&folder, "2")?;
    gpt2(&["pairs", "ioi", "--out", &path])?.refused(1, &["already exists", "--overwrite"]);
    Ok(())
}

/// 0.3's value carries the difference, through the MLP of its layer into the keys of induction heads: the estimate of heads
/// misses it, integrated gradients of edges do not.
#[test]
fn the_induction_circuit_of_the_demo_model_is_found() -> Result {
    let folder = Folder::empty()?;
    let out = folder.at("c.json");
    let dot = folder.at("c.dot");
    let svg = folder.at("c.svg");
    let args = [
        "discover",
        CLEAN,
        " king fair which lord come out of lord",
        "--answer",
        " fair",
        "--against",
        " come",
    ];
    let files = ["--out", &out, "--dot", &dot, "--picture", &svg];
    let report = json(&[&args[..], &files, &["--minimal", "--json"]].concat())?;
    let circuit = &report["circuit"];
    let edges = list(&circuit["edges"]);
    let first: Vec<String> = edges
        .iter()
        .take(2)
        .map(|edge| format!("{} {}", edge["from"], edge["to"]).replace('"', ""))
        .collect();
    assert_eq!(first, ["embed 0.3.v", "0.3 0.mlp"]);
    assert!(number(&circuit["faithfulness"]) >= 0.9 && edges.len() < 60, "{} edges", edges.len());
    assert!(number(&circuit["random"]["mean"]).abs() < 0.1 && number(&circuit["rest"]).abs() < 0.1);
    let without = |part: &str| {
        let found = list(&circuit["without"]).iter().find(|without| without["part"] == part);
        number(&found.unwrap_or_else(|| panic!("no {part}"))["faithfulness"])
    };
    assert!(without("0.3") < 0.1 && without("1.2") > 0.5, "{circuit}");
    let curve = list(&report["curve"]);
    let last = curve.last().expect("a point");
    assert_eq!(last["edges"], report["all_edges"]);
    assert!((number(&last["faithfulness"]) - 1.0).abs() < 1e-3);
    // The files hold the same circuit.
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(&out)?)?;
    assert_eq!((&saved["edges"], &saved["provenance"]), (&circuit["edges"], &report["provenance"]));
    assert_says(
        "the graph",
        &std::fs::read_to_string(&dot)?,
        &["digraph", "\"0.3\" -> \"0.mlp\"", "label=\"v\""],
    );
    assert_says(
        "the picture",
        &std::fs::read_to_string(&svg)?,
        &["0.mlp", "logits", "helps the right answer"],
    );
    // As an intervention it gives what was measured.
    let corrupt = args[2];
    let answers =
        json(&["forward", "--json", "-k", "60000", CLEAN, "--circuit", &out, "--from-prompt", corrupt])?;
    let probability = |token: &str| {
        let found = list(&answers["next"]).iter().find(|one| one["token"] == token);
        number(&found.unwrap_or_else(|| panic!("no {token}"))["probability"])
    };
    let difference = (probability(" fair") / probability(" come")).ln();
    let measured = number(&circuit["each"][0]["circuit"]);
    assert!((difference - measured).abs() < 1e-3 * measured.abs(), "{difference} {measured}");
    let run = gpt2(&args)?.succeeded();
    assert_says("stdout", &run.stdout, &["faithfulness", "random", "0.3.v", "of 479 keep"]);
    Ok(())
}

#[test]
fn a_circuit_is_an_intervention_of_other_commands_too() -> Result {
    let folder = Folder::empty()?;
    let all = folder.at("all.json");
    let few = folder.at("few.json");
    let texts = folder.at("texts.txt");
    let pairs = induction(&folder, "2")?;
    for (edges, out) in [("479", &all), ("30", &few)] {
        gpt2(&[
            "discover", "--pairs", &pairs, "--edges", edges, "--choose", "rank", "--random", "1", "--out",
            out,
        ])?
        .succeeded();
    }
    std::fs::write(&texts, "To be, or not to be\nWhat say you, my lord?\n")?;
    let perplexity = |more: &[&str]| -> Result<f64> {
        let report = json(&[&["score", &texts, "--by", "line", "--json"][..], more].concat())?;
        Ok(number(&report["perplexity"]))
    };
    let (plain, whole, zero) =
        (perplexity(&[])?, perplexity(&["--circuit", &all])?, perplexity(&["--circuit", &few])?);
    assert!((whole / plain - 1.0).abs() < 1e-4, "{whole} {plain}");
    let mean = perplexity(&["--circuit", &few, "--mean-of", &texts])?;
    assert!(zero > 2.0 * plain && mean > 1.2 * plain && (mean - zero).abs() > 1.0, "{plain} {zero} {mean}");
    // With a cache and without: each token is the likeliest after those before it.
    let mean_of = ["--circuit", &few, "--mean-of", &texts];
    let generated =
        json(&[&["generate", "My lord", "--greedy", "-n", "3", "--json"][..], &mean_of].concat())?;
    let of = |name: &str| list(&generated[name]).iter().map(ToString::to_string).collect::<Vec<_>>();
    for known in 1..3 {
        let ids = [&of("prompt_ids")[..], &of("ids")[..known]].concat().join(",");
        let next = json(&[&["forward", "--ids", &ids, "--json", "-k", "1"][..], &mean_of].concat())?;
        assert_eq!(next["next"][0]["id"].to_string(), of("ids")[known]);
    }

    // Other interventions act in the run over the other text, too, as when the circuit was measured.
    let found = json(&[
        "discover",
        CLEAN,
        CORRUPT,
        "--answer",
        " fair",
        "--against",
        " king",
        "--ablate",
        "1.2",
        "--out",
        &few,
        "--overwrite",
        "--json",
    ])?;
    let run = [
        "forward",
        CLEAN,
        "--circuit",
        &few,
        "--from-prompt",
        CORRUPT,
        "--ablate",
        "1.2",
        "--json",
        "-k",
        "60000",
    ];
    let next = json(&run)?["next"].clone();
    let probability = |token: &str| {
        number(
            &list(&next).iter().find(|one| one["token"] == token).unwrap_or_else(|| panic!("no {token}"))["probability"],
        )
    };
    let measured = number(&found["circuit"]["each"][0]["circuit"]);
    let difference = (probability(" fair") / probability(" king")).ln();
    assert!((difference - measured).abs() < 1e-3 * measured.abs(), "{difference} {measured}");

    // Where the stream itself is looked at or changed, no reader would notice.
    for more in [
        &["attention", "My lord", "--effect"][..],
        &["lens", "My lord"],
        &["patch", CLEAN, CORRUPT, "--answer", " fair", "--against", " king"],
        &["discover", CLEAN, CORRUPT, "--answer", " fair", "--against", " king"],
        &["features", "My lord", "--dictionary", "sae"],
    ] {
        gpt2(&[more, &["--circuit", &few]].concat())?.refused(1, &["--circuit: is not for", "forward"]);
    }

    let forward = |more: &[&str]| gpt2(&[&["forward", "My lord", "--circuit"][..], more].concat());
    forward(&[&few, "--from-prompt", "My lord, what"])?.refused(1, &["--from-prompt has", "make them equal"]);
    forward(&[&few, "--from-prompt", "My king", "--mean-of", &texts])?.refused(1, &["not both"]);
    forward(&[&few, "--patch", "1", "--from-prompt", "My king"])?
        .refused(1, &["--circuit", "no edge carries"]);
    gpt2(&["score", &texts, "--circuit", &few, "--from-prompt", "My king"])?
        .refused(1, &["--from-prompt has 2 tokens"]);
    forward(&[&texts])?.refused(1, &["texts.txt", "is not a circuit", "gpt2 discover"]);
    let edge = value!({"from": "1.0", "to": "logits"});
    std::fs::write(&texts, value!({"edges": [edge], "provenance": {"model": "gpt2"}}).to_string())?;
    let run = forward(&[&texts])?.succeeded();
    assert_says("stderr", &run.stderr, &["texts.txt was found in gpt2, and this is tiny-shakespeare"]);
    std::fs::write(&texts, value!({"edges": [{"from": "0.9", "to": "logits"}]}).to_string())?;
    forward(&[&texts])?.refused(1, &["texts.txt", "0.9"]);
    std::fs::write(&texts, value!({"edges": []}).to_string())?;
    forward(&[&texts])?.refused(1, &["has no edge"]);
    gpt2(&["generate", "My lord", "--circuit", &few, "--from-prompt", "My king"])?.refused(1, &["grows"]);
    Ok(())
}

#[test]
fn circuits_over_many_pairs_are_as_large_as_asked_for() -> Result {
    let folder = Folder::empty()?;
    let pairs = induction(&folder, "4")?;
    for more in [
        &["--choose", "rank"][..],
        &["--replace", "mean"],
        &["--replace", "zero"],
        &["--steps", "0"],
        &["--steps", "1", "--integrate", "activations", "--qk-fix"],
    ] {
        let args = ["discover", "--pairs", &pairs, "--edges", "100", "--random", "1", "--json"];
        let report = json(&[&args[..], more].concat())?;
        let edges = list(&report["circuit"]["edges"]).len();
        assert!((50..=100).contains(&edges), "{more:?}: {edges}");
        assert_eq!((&report["pairs"], list(&report["circuit"]["each"]).len()), (&4.into(), 4));
        let points = list(&report["curve"]);
        assert!(points.iter().all(|point| number(&point["connected"]) <= number(&point["edges"])));
        assert!(number(&report["clean_difference"]["error"]) > 0.0);
    }
    let no_step = ["discover", "--pairs", &pairs, "--steps", "0", "--integrate", "activations"];
    gpt2(&no_step)?.refused(1, &["--integrate activations needs --steps"]);
    let hot = ["discover", "--pairs", &pairs, "--qk-fix", "--attention-temperature", "1.2=2"];
    gpt2(&hot)?.refused(1, &["blocks.1.attn.hook_q", "QK fix"]);
    // From a pipe, and the same numbers twice.
    let text = std::fs::read_to_string(&pairs)?;
    let piped = || gpt2_with_pipe(&["discover", "--pairs", "-", "--json"], &text);
    assert_eq!(piped()?.succeeded().stdout, piped()?.succeeded().stdout);
    Ok(())
}

#[test]
fn patching_many_pairs_gives_means_with_their_errors_and_each_pair() -> Result {
    let folder = Folder::empty()?;
    let path = folder.at("two.jsonl");
    let pair = |clean: &str, corrupt: &str| {
        value!({"clean": clean, "corrupted": corrupt, "correct": " fair", "incorrect": [" king"]}).to_string()
    };
    // The third pair is the first one turned around.
    let there = pair(CLEAN, CORRUPT);
    let back = pair(CORRUPT, CLEAN);
    std::fs::write(&path, format!("{there}\n\n{there}\n{back}\n"))?;
    let many = json(&["patch", "--pairs", &path, "--json"])?;
    let one = json(&[&["patch", CLEAN, CORRUPT, "--json"][..], &TOKENS].concat())?;
    let each = list(&many["each"]);
    assert_eq!(many["pairs"], 3);
    assert_eq!(each[0]["clean"], one["clean_difference"]);
    assert_eq!(each[0]["clean"], each[2]["corrupt"]);
    let difference = number(&one["clean_difference"]) - number(&one["corrupt_difference"]);
    for (i, head) in list(&one["heads"]).iter().enumerate() {
        let gained = number(&each[0]["heads"][i / 4][i % 4]);
        assert!((gained / difference - number(&head["exact"])).abs() < 1e-6, "head {i}");
    }
    Ok(())
}

#[test]
fn patching_many_pairs_shows_shares_and_paths() -> Result {
    let folder = Folder::empty()?;
    let pairs = induction(&folder, "5")?;
    let args = ["patch", "--pairs", &pairs, "--path", "0.mlp->1.0.v,1.1.v,1.2.v", "--path", "embed->0.mlp"];
    let report = json(&[&args[..], &["--json"]].concat())?;
    let lost = |i: usize| number(&report["paths"][i]["lost"]["mean"]);
    // The layer-0 MLP's word reaches the first induction heads, and comes from the embeddings.
    assert!(lost(0) > 0.1 && lost(1) > 0.9, "{}", report["paths"]);
    let mlp = &report["layers"][0]["mlp"];
    assert!(number(&mlp["mean"]) > 0.9 && number(&mlp["error"]) > 0.0, "{mlp}");
    let run = gpt2(&args)?.succeeded();
    assert_says("stdout", &run.stdout, &["over 5 pairs", " ± ", "what the clean run loses", "embed->0.mlp"]);
    let clean =
        [&["patch", CLEAN, " king fair which lord come out of lord"][..], &["--answer", " fair"]].concat();
    let path = ["--against", " come", "--path", "0.3->1.0.k,1.1.k,1.2.k", "--json"];
    let lost = |freeze: &str| -> Result<f64> {
        let report = json(&[&clean[..], &path, &["--freeze", freeze]].concat())?;
        Ok(number(&report["paths"][0]["lost"]["mean"]))
    };
    // What 0.3 tells these keys goes through the MLP between them.
    assert!(lost("all")?.abs() < 0.05 && lost("heads")? > 0.3, "{} {}", lost("all")?, lost("heads")?);
    Ok(())
}

#[test]
fn wrong_pairs_say_their_line_and_what_is_wrong() -> Result {
    let folder = Folder::empty()?;
    let path = folder.at("wrong.jsonl");
    let good = value!({"clean": [1, 2, 3], "corrupted": [1, 4, 3], "correct": 5, "incorrect": 6});
    let with = |name: &str, new: Value| {
        let mut pair = good.clone();
        pair[name] = new;
        pair.to_string()
    };
    for (line, says) in [
        ("{".to_owned(), "not JSON"),
        ("[1]".to_owned(), "not an object"),
        (value!({"clean": "a", "corrupted": "b", "correct": " c"}).to_string(), "\"incorrect\""),
        (with("clean", value!("日本")), "6 tokens and the corrupted one 3"),
        (with("clean", value!([1, 2])), "2 tokens and the corrupted one 3"),
        (with("clean", value!([1, 2, 1024])), "1024 is not in 0..1024"),
        (with("clean", value!([1, 2, -1])), "-1, expected a text or an id"),
        (with("clean", value!(7)), "neither a text nor a list"),
        (with("correct", value!(" fairest")), "expected one; a word inside a text begins with its space"),
        (with("correct", value!([])), "empty list"),
        (with("correct", value!([5, 6])), "both a right and a wrong answer"),
        (with("correct", value!([5, 7, 5])), "an answer twice"),
        (with("correct", value!(1024)), "1024 is not in 0..1024"),
    ] {
        std::fs::write(&path, format!("{good}\n{line}\n"))?;
        for command in ["discover", "patch"] {
            gpt2(&[command, "--pairs", &path])?.refused(1, &["wrong.jsonl, line 2", says]);
        }
    }
    std::fs::write(&path, "\n")?;
    gpt2(&["discover", "--pairs", &path])?.refused(1, &["holds no pair", "gpt2 pairs"]);
    gpt2(&["discover", "--pairs", &folder.at("none")])?.refused(1, &["none"]);
    gpt2(&["discover"])?.refused(2, &["CLEAN", "--pairs"]);
    gpt2(&["discover", CLEAN])?.refused(2, &["CORRUPT"]);
    let one = |more: &[&str]| gpt2(&[&["discover", CLEAN, CORRUPT][..], &TOKENS, more].concat());
    one(&["--pairs", &path])?.refused(2, &["--pairs"]);
    one(&["--ablate", "0.*", "--ablate", "1.*", "--ablate", "2.*", "--ablate", "3.*", "--edges", "1"])?
        .refused(1, &["nothing to look for"]);
    one(&["--edges", "1"])?.refused(1, &["no way from the embeddings", "--edges"]);
    std::fs::write(&path, good.to_string())?;
    gpt2(&["discover", "--pairs", &path, "--out", &path, "--overwrite"])?
        .refused(1, &["the file of pairs", "which this run reads"]);
    for (path, says) in
        [("0.3", "senders and readers"), ("0.3->1.2", "reads nothing"), ("x->logits", "writes nothing")]
    {
        gpt2(&[&["patch", CLEAN, CORRUPT][..], &TOKENS, &["--path", path]].concat())?.refused(2, &[says]);
    }
    gpt2(&[&["patch", CLEAN, CORRUPT][..], &TOKENS, &["--path", "2.0->1.0.q"]].concat())?
        .refused(1, &["no receiver comes after the sender 2.0"]);
    Ok(())
}
