//! `gpt2 patch` and `gpt2 circuits`, and the attention of generated text.

use super::{ODD, comma_separated, gpt2, json, list, number, some_ids, words};
use crate::common::{Result, assert_close};
use crate::errors::with_numbers;
use crate::folder::{Folder, assert_says};
use crate::models::load;
use candle_core::{DType, Tensor};
use gpt2_model::hooks::WeightRows;
use gpt2_model::{ForwardArgs, Generation, Sampling};
use serde_json::Value;

pub(crate) const CLEAN: &str = " lord fair which king come out of lord";
pub(crate) const CORRUPT: &str = " lord king which fair come out of lord";
const TOKENS: [&str; 4] = ["--answer", " fair", "--against", " king"];

/// The demo model copies what followed a token before: the induction circuit carries the difference.
#[test]
fn patching_finds_the_induction_heads_of_the_demo_model() -> Result {
    let report = json(&[&["patch", CLEAN, CORRUPT, "--by-position", "--json"][..], &TOKENS].concat())?;
    assert!(number(&report["clean_difference"]) > 2.0 && number(&report["corrupt_difference"]) < -2.0);
    assert!(number(&report["correlation"]) > 0.9, "{}", report["correlation"]);
    let heads = list(&report["heads"]);
    let exact = |layer: usize, head: usize| number(&heads[4 * layer + head]["exact"]);
    // Head 1.0 has the highest induction score; 3.1 has none.
    assert!(exact(1, 0) > 0.05 && exact(3, 1).abs() < 0.03, "{heads:?}");
    // The stream: the difference lies on the second token at first, on the last one at the end.
    let stream = |layer: usize, position: usize| number(&report["streams"][layer][position]);
    assert!(stream(0, 1) > 0.9 && stream(0, 7).abs() < 0.01);
    assert!(stream(3, 7) > 0.7 && stream(3, 1) < 0.4);
    assert_eq!(list(&report["heads_by_position"]).len(), 4);
    // Where the prompts differ in what comes before the copy, head 0.3 carries everything, into the keys of induction heads.
    let clean = CLEAN;
    let corrupt = " king fair which lord come out of lord";
    let answers = ["--answer", " fair", "--against", " come"];
    let report = json(&[&["patch", clean, corrupt, "--json"][..], &answers].concat())?;
    assert!(number(&report["heads"][3]["exact"]) > 0.9, "{}", report["heads"][3]);
    let run = gpt2(&[&["patch", CLEAN, CORRUPT][..], &TOKENS].concat())?.succeeded();
    assert_says("stdout", &run.stdout, &["1.0", "correlate", "corrupted", "\u{b7}fair"]);
    Ok(())
}

/// The terminal shows what attention and MLPs of each layer bring back, and warns of estimates that mislead.
#[test]
fn patch_shows_layers_and_warns_of_estimates() -> Result {
    let args =
        ["patch", CLEAN, " king fair which lord come out of lord", "--answer", " fair", "--against", " come"];
    let report = json(&[&args[..], &["--json"]].concat())?;
    let run = gpt2(&args)?.succeeded();
    let lines: Vec<Vec<&str>> = run.stdout.lines().map(words).collect();
    for layer in list(&report["layers"]) {
        let row = vec![
            layer["layer"].to_string(),
            format!("{:+.3}", number(&layer["attention"])),
            format!("{:+.3}", number(&layer["mlp"])),
        ];
        assert!(lines.iter().any(|line| *line == row), "{row:?} in {}", run.stdout);
    }
    // All heads of layer 0 bring back what its head 0.3 does; what the MLP adds to each token depends on it.
    assert!(
        number(&report["layers"][0]["attention"]) > 0.9 && number(&report["layers"][3]["attention"]) < 0.3
    );
    assert_says("stdout", &run.stdout, &["warning: ", "by -0.02: do not rely on them"]);
    let run = gpt2(&[&args[..], &["--json"]].concat())?.succeeded();
    assert_says("stderr", &run.stderr, &["warning: ", "do not rely on them"]);
    // Estimates that agree get no warning.
    let run = gpt2(&[&["patch", CLEAN, CORRUPT][..], &TOKENS].concat())?.succeeded();
    assert!(!run.stdout.contains("warning") && !run.stderr.contains("warning"), "{run:?}");
    Ok(())
}

#[test]
fn patch_says_what_does_not_fit() -> Result {
    let run =
        |clean: &str, corrupt: &str, more: &[&str]| gpt2(&[&["patch", clean, corrupt][..], more].concat());
    run(CLEAN, " lord king", &TOKENS)?.refused(1, &["8 tokens", "2", "reword"]);
    run(CLEAN, CORRUPT, &["--answer", " fair", "--against", " fair"])?.refused(1, &["same token"]);
    run(CLEAN, CORRUPT, &["--answer", " fairest", "--against", " king"])?
        .refused(1, &["--answer", "expected one"]);
    run(CLEAN, CLEAN, &TOKENS)?.refused(1, &["nothing to bring back"]);
    run("", CORRUPT, &TOKENS)?.refused(1, &["the clean prompt is empty"]);
    let long = "日".repeat(4000);
    run(CLEAN, &long, &TOKENS)?
        .refused(1, &["the corrupted prompt has 4000 characters", "n_positions = 256", "shorten"]);
    run(CLEAN, CORRUPT, &[&TOKENS[..], &["--picture", "x.gif"]].concat())?.refused(1, &["x.gif", ".svg"]);
    gpt2(&["patch", CLEAN])?.refused(2, &["CORRUPT"]);
    let folder = Folder::empty()?;
    for name in ["heads.svg", "heads.pdf", "heads.png"] {
        let path = folder.at(name);
        run(CLEAN, CORRUPT, &[&TOKENS[..], &["--picture", &path]].concat())?.succeeded();
        assert!(std::fs::metadata(&path)?.len() > 1000, "{name}");
    }
    Ok(())
}

#[test]
fn circuits_are_those_of_the_weights() -> Result {
    let report = json(&["circuits", "--json"])?;
    assert_eq!(list(&report["heads"]).len(), 16);
    let scores = json(&["heads", "--json"])?;
    for (circuit, head) in list(&report["heads"]).iter().zip(list(&scores["heads"])) {
        assert_eq!(circuit["copying"], head["copying"]);
    }
    // The keys of the induction heads read what the previous-token head writes.
    let scores: Vec<f64> = list(&report["compositions"]).iter().map(|pair| number(&pair["score"])).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b) && scores.iter().all(|score| *score > 0.0));
    let head = json(&["circuits", "1.0", "-k", "4", "--json"])?;
    let qk = list(&head["qk"]);
    let ov = list(&head["ov"]);
    assert_eq!((qk.len(), ov.len(), list(&head["eigenvalues"]).len()), (4, 4, 32));
    let of_token = json(&["circuits", "1.0", "-k", "4", "--token", " king", "--json"])?;
    assert!(list(&of_token["ov"]).iter().all(|link| link["from"] == " king"));
    let run = gpt2(&["circuits", "1.0", "--token", " king"])?.succeeded();
    assert_says("stdout", &run.stdout, &["copying", "QK", "OV", "singular", "\u{b7}king"]);
    gpt2(&["circuits", "4.0"])?.refused(1, &["layers 0 to 3"]);
    gpt2(&["circuits", "1"])?.refused(2, &["LAYER.HEAD"]);
    gpt2(&["circuits", "--token", "x"])?.refused(2, &["L.H"]);
    Ok(())
}

/// The rows from the cache, and those of one pass.
#[test]
fn generated_text_leaves_a_row_of_weights_a_step() -> Result {
    let model = load("odd", DType::F32)?;
    let ids = some_ids()[..7].to_vec();
    let rows = WeightRows::new([0, 1]);
    // Rows of other lengths beside it change nothing.
    let prompts = [vec![5, 9], ids.clone()];
    let mut generation = Generation::new(&model, &prompts, Sampling::greedy(), 6)?.with_hooks(&rows);
    generation.by_ref().collect::<candle_core::Result<Vec<_>>>()?;
    let texts = generation.texts().to_vec();
    for (row, prompt) in prompts.iter().enumerate() {
        let t = prompt.len() + 5;
        let input = model.ids(&texts[row][..t])?;
        let args = ForwardArgs { output_attentions: true, ..Default::default() };
        let expected = model.forward(&input, args)?.transformer.attentions;
        for (layer, expected) in expected.iter().enumerate() {
            assert_close("rows", &rows.weights(layer, row, t)?, &expected.get(0)?, 1e-5);
        }
    }
    let folder = Folder::empty()?;
    let npy = folder.at("w.npy");
    let html = folder.at("page.html");
    let args = ["generate", "--model", ODD, "--ids", &comma_separated(&ids), "--greedy", "-n", "6"];
    gpt2(&[&args[..], &["--export", &npy, "--html", &html, "-l", "1"]].concat())?.succeeded();
    let weights = Tensor::read_npy(npy)?;
    assert_eq!(weights.dims(), [1, 3, 12, 12]);
    assert_close("exported", &weights.get(0)?, &rows.weights(1, 1, 12)?, 1e-5);
    assert_says("the page", &std::fs::read_to_string(&html)?, &["\"prompt\":7"]);
    gpt2(&["generate", "x", "--layer", "1"])?.refused(2, &["--export"]);
    gpt2(&["generate", "x", "--export", "w.txt"])?.refused(1, &["w.txt", ".npy"]);
    Ok(())
}

/// A generated text goes on beyond the prompts that its interventions name.
#[test]
fn generated_pages_work_under_patches_and_links_cut_later() -> Result {
    let folder = Folder::empty()?;
    let page = folder.at("page.html");
    let args = ["generate", CORRUPT, "-n", "6", "--html", &page, "--overwrite"];
    gpt2(&[&args[..], &["--patch", "1.0", "--from-prompt", CLEAN, "--block", "11:2"]].concat())?.succeeded();
    assert!(std::fs::metadata(&page)?.len() > 50_000);
    gpt2(&[&args[..], &["--patch", "1.0", "--from-prompt", "O Romeo"]].concat())?
        .refused(1, &["3 tokens", "@POS"]);
    Ok(())
}

/// A decomposition of NaN would not end.
#[test]
fn weights_that_are_not_finite_have_no_circuits() -> Result {
    let folder = with_numbers(&[("h.1.attn.c_attn.weight", f32::NAN)])?;
    let model = folder.dir();
    gpt2(&["circuits", "--model", &model])?.refused(1, &["head 1.0", "not finite"]);
    gpt2(&["heads", "--model", &model, "--length", "5"])?.refused(1, &["not finite", "layer 1"]);
    let args = ["heads", "--model", &model, "--length", "5", "--allow-nonfinite", "--json"];
    assert_eq!(json(&args)?["heads"][0]["copying"], Value::Null);
    Ok(())
}

/// Any metric by its name; without answers where it needs none.
#[test]
fn patching_takes_a_metric_by_its_name() -> Result {
    let report = json(&["patch", CLEAN, CORRUPT, "--metric", "kl", "--json"])?;
    assert_eq!(report["metric"], "kl");
    assert!(number(&report["clean_difference"]).abs() < 1e-6 && number(&report["corrupt_difference"]) > 1.0);
    let run = gpt2(&["patch", CLEAN, CORRUPT, "--metric", "loss"])?.succeeded();
    assert_says("stdout", &run.stdout, &["loss: +", "after the clean prompt"]);
    let args = ["patch", CLEAN, CORRUPT, "--metric", "probability", "--answer", " fair", "--json"];
    let probability = number(&json(&args)?["clean_difference"]);
    assert!(probability > 0.1 && probability < 1.0, "{probability}");
    let last = json(&[&["patch", CLEAN, CORRUPT, "--positions", "7", "--json"][..], &TOKENS].concat())?;
    let plain = json(&[&["patch", CLEAN, CORRUPT, "--json"][..], &TOKENS].concat())?;
    let off = number(&last["clean_difference"]) - number(&plain["clean_difference"]);
    assert!(off.abs() < 1e-4, "{off}"); // f32, by a product of more rows
    for (args, code, says) in [
        (&["--metric", "probability"][..], 1, "--answer: give the right answer"),
        (&["--metric", "logit-difference", "--answer", " fair"], 1, "--against"),
        (&["--metric", "kl", "--positions", "3"], 1, "--positions: are for metrics of answers"),
        (&["--positions", "9", "--answer", " fair", "--against", " king"], 1, "pair 0 has 8 tokens"),
        (&["--metric", "accuracy"], 2, "accuracy"),
        (&[], 2, "--answer"),
    ] {
        gpt2(&[&["patch", CLEAN, CORRUPT][..], args].concat())?.refused(code, &[says]);
    }
    Ok(())
}

/// The processed view predicts the same, and what the first token stands before says so.
#[test]
fn the_processed_view_and_the_first_token_are_options() -> Result {
    let of = |more: &[&str]| json(&[&["forward", "O Romeo, Romeo!", "--json"][..], more].concat());
    let plain = of(&[])?;
    let processed = of(&["--processed"])?;
    let off = number(&plain["perplexity"]) / number(&processed["perplexity"]) - 1.0;
    assert!(off.abs() < 1e-5, "{off}"); // f32
    assert_eq!(processed["provenance"]["processed"], true);
    let first = of(&["--prepend-bos"])?;
    let ids = |report: &Value| list(&report["provenance"]["ids"]).to_vec();
    assert_eq!(ids(&first)[1..], ids(&plain));
    let run = gpt2(&["forward", "O Romeo", "--processed"])?.succeeded();
    assert_says("stdout", &run.stdout, &["processed weights"]);
    for (args, says) in [
        (&["inspect", "--processed"][..], "--processed: has no meaning in gpt2 inspect"),
        (&["bench", "forward", "--processed"], "--processed: has no meaning in gpt2 bench"),
        (&["forward", "O", "--processed", "--quantize", "q8_0"], "leave --quantize out"),
    ] {
        gpt2(args)?.refused(1, &[says]);
    }
    Ok(())
}
