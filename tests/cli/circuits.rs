//! `gpt2 patch` and `gpt2 circuits`, the newer interventions, attention of generated text, and pages for notebooks.

use super::{assert_near, case, comma_separated, gpt2, json, some_ids};
use crate::common::{Result, assert_close};
use crate::folder::{Folder, assert_says};
use crate::models::load;
use candle_core::{DType, Device, Tensor};
use gpt2_model::hooks::{Head, Intervention, Interventions, WeightRows};
use gpt2_model::{ForwardArgs, Generation, Sampling};
use serde_json::Value;

const CLEAN: &str = " lord fair which king come out of lord";
const CORRUPT: &str = " lord king which fair come out of lord";
const TOKENS: [&str; 4] = ["--answer", " fair", "--against", " king"];

/// The demo model copies what followed a token before: the induction circuit carries the difference.
#[test]
fn patching_finds_the_induction_heads_of_the_demo_model() -> Result {
    let report = json(&[&["patch", CLEAN, CORRUPT, "--by-position", "--json"][..], &TOKENS].concat())?;
    let number = |value: &Value| value.as_f64().ok_or("a number");
    assert!(number(&report["clean_difference"])? > 2.0 && number(&report["corrupt_difference"])? < -2.0);
    assert!(number(&report["correlation"])? > 0.9, "{}", report["correlation"]);
    let heads = report["heads"].as_array().ok_or("heads")?;
    let exact = |layer: usize, head: usize| number(&heads[4 * layer + head]["exact"]);
    // Head 1.0 has the highest induction score; 3.1 has none.
    assert!(exact(1, 0)? > 0.05 && exact(3, 1)?.abs() < 0.03, "{heads:?}");
    // The stream: the difference lies on the second token at first, on the last one at the end.
    let stream = |layer: usize, position: usize| number(&report["streams"][layer][position]);
    assert!(stream(0, 1)? > 0.9 && stream(0, 7)?.abs() < 0.01);
    assert!(stream(3, 7)? > 0.7 && stream(3, 1)? < 0.4);
    assert_eq!(report["heads_by_position"].as_array().map(Vec::len), Some(4));
    // Where the prompts differ in what comes before the copy, head 0.3 carries everything, into the keys of induction heads.
    let (clean, corrupt) = (CLEAN, " king fair which lord come out of lord");
    let answers = ["--answer", " fair", "--against", " come"];
    let report = json(&[&["patch", clean, corrupt, "--edges=5", "--json"][..], &answers].concat())?;
    assert!(number(&report["heads"][3]["exact"])? > 0.9, "{}", report["heads"][3]);
    let edge = &report["edges"][0];
    assert_eq!((&edge["from"], &edge["reads"]), (&"0.3".into(), &"k".into()), "{edge}");
    let run = gpt2(&[&["patch", CLEAN, CORRUPT][..], &TOKENS].concat())?.succeeded();
    assert_says("stdout", &run.stdout, &["1.0", "correlate", "corrupted", "\u{b7}fair"]);
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
    run(CLEAN, CORRUPT, &[&TOKENS[..], &["--picture", "x.gif"]].concat())?.refused(1, &["x.gif", ".svg"]);
    gpt2(&["patch", CLEAN])?.refused(2, &["CORRUPT"]);
    let folder = Folder::empty()?;
    for name in ["heads.svg", "heads.pdf", "heads.png"] {
        let path = folder.file(name).display().to_string();
        run(CLEAN, CORRUPT, &[&TOKENS[..], &["--picture", &path]].concat())?.succeeded();
        assert!(std::fs::metadata(&path)?.len() > 1000, "{name}");
    }
    Ok(())
}

#[test]
fn circuits_are_those_of_the_weights() -> Result {
    let report = json(&["circuits", "--json"])?;
    assert_eq!(report["heads"].as_array().map(Vec::len), Some(16));
    let scores = json(&["heads", "--json"])?;
    for (circuit, head) in
        report["heads"].as_array().ok_or("heads")?.iter().zip(scores["heads"].as_array().ok_or("heads")?)
    {
        assert_eq!(circuit["copying"], head["copying"]);
    }
    // The keys of the induction heads read what the previous-token head writes.
    let pairs = report["compositions"].as_array().ok_or("pairs")?;
    let mut before = f64::INFINITY;
    for pair in pairs {
        let score = pair["score"].as_f64().ok_or("a score")?;
        assert!(score <= before && score > 0.0);
        before = score;
    }
    let head = json(&["circuits", "1.0", "-k", "4", "--json"])?;
    let (qk, ov) = (head["qk"].as_array().ok_or("qk")?, head["ov"].as_array().ok_or("ov")?);
    assert_eq!((qk.len(), ov.len(), head["eigenvalues"].as_array().map(Vec::len)), (4, 4, Some(32)));
    let of_token = json(&["circuits", "1.0", "-k", "4", "--token", " king", "--json"])?;
    assert!(of_token["ov"].as_array().ok_or("ov")?.iter().all(|link| link["from"] == " king"));
    let run = gpt2(&["circuits", "1.0", "--token", " king"])?.succeeded();
    assert_says("stdout", &run.stdout, &["copying", "QK", "OV", "singular", "\u{b7}king"]);
    gpt2(&["circuits", "4.0"])?.refused(1, &["layers 0 to 3"]);
    gpt2(&["circuits", "1"])?.refused(2, &["LAYER.HEAD"]);
    gpt2(&["circuits", "--token", "x"])?.refused(2, &["L.H"]);
    Ok(())
}

/// The flags, against the library on the same ids.
#[test]
fn patches_vectors_and_temperatures_do_what_the_library_does() -> Result {
    let (model, ids) = (load("odd", DType::F32)?, &some_ids()[..12]);
    let input = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
    let folder = Folder::empty()?;
    let vector: Vec<f32> = (0..48u8).map(|i| f32::from(i % 7) - 3.0).collect();
    let vector = Tensor::new(vector, &Device::Cpu)?;
    let file = folder.file("v.npy");
    vector.write_npy(&file)?;
    let add = format!("1@3={}*-0.5", file.display());
    let list = vec![
        Intervention::Temperature(Head { layer: 0, head: 1 }, 0.25),
        Intervention::Add { layer: 1, position: Some(3), vector: (vector * -0.5)? },
    ];
    let changes = Interventions::new(list, model.config())?;
    let args = ForwardArgs { hooks: Some(&changes), ..Default::default() };
    let logits = model.forward(&input, args)?.logits.squeeze(0)?.get(11)?.to_dtype(DType::F64)?.to_vec1()?;
    let expected = super::log_softmax(&logits);
    let (name, listed) = (case("odd"), comma_separated(ids));
    let flags = ["--attention-temperature", "0.1=0.25", "--add", &add];
    let report = json(&[&["forward", "--model", &name, "--json", "--ids", &listed][..], &flags].concat())?;
    for candidate in report["next"].as_array().ok_or("next")? {
        let id = usize::try_from(candidate["id"].as_u64().ok_or("id")?)?;
        assert_near("log_prob", &candidate["log_prob"], expected[id], 1e-4);
    }
    let said = report["provenance"]["interventions"].to_string();
    assert_says("provenance", &said, &["temperature 0.1=0.25", "add 1@3=", "*-0.5"]);
    let run = |flags: &[&str]| gpt2(&[&["forward", "--model", &name, "--ids", &listed][..], flags].concat());
    run(&["--add", "1=missing.npy"])?.refused(1, &["missing.npy", "NumPy"]);
    run(&["--add", "2=missing.npy*x"])?.refused(2, &["5=v.npy*4"]);
    run(&["--attention-temperature", "0.1=0"])?.refused(2, &["above 0"]);
    run(&["--patch", "0.1"])?.refused(2, &["--from-prompt"]);
    Ok(())
}

#[test]
fn patches_take_their_values_from_the_other_prompt() -> Result {
    // The demo model: what the corrupted prompt gets of the clean one's stream.
    let plain = json(&["forward", CLEAN, "--json"])?;
    let whole = json(&["forward", CORRUPT, "--patch", "0", "--from-prompt", CLEAN, "--json"])?;
    assert_eq!(whole["next"], plain["next"], "the whole stream from the start is the other run");
    let one = json(&["forward", CORRUPT, "--patch", "1@1,2.1", "--from-prompt", CLEAN, "--json"])?;
    assert_ne!(one["next"], plain["next"]);
    assert_says("provenance", &one["provenance"].to_string(), &["patch 1@1", "patch 2.1", "from_prompt"]);
    let refused = |flags: &[&str], says: &[&str]| -> Result {
        gpt2(&[&["forward", CORRUPT, "--from-prompt"][..], flags].concat())?.refused(1, says);
        Ok(())
    };
    refused(&["O Romeo", "--patch", "1"], &["3 tokens", "the prompt 8", "@POS"])?;
    refused(&["O Romeo", "--patch", "1@5"], &["position 5", "0 to 2"])?;
    refused(&[CLEAN, "--patch", "9"], &["layers 0 to 3"])?;
    // Means over other texts, by position where all have as many tokens.
    let folder = Folder::empty()?;
    let texts = folder.file("texts.txt");
    std::fs::write(&texts, format!("{CLEAN}\n{CORRUPT}\n"))?;
    let path = texts.display().to_string();
    let ablated =
        |command: &[&str]| json(&[command, &["--mean-ablate", "1.0", "--mean-of", &path, "--json"]].concat());
    let by_position = ablated(&["forward", CLEAN])?;
    assert_eq!(by_position["provenance"]["intervention_sources"]["mean_of"]["by_position"], true);
    let other = ablated(&["forward", "O Romeo"])?;
    assert_eq!(other["provenance"]["intervention_sources"]["mean_of"]["by_position"], false);
    assert_ne!(by_position["next"], plain["next"]);
    // Every command takes them.
    for command in
        [&["lens", CLEAN][..], &["heads"], &["attention", CLEAN, "--effect"], &["generate", CLEAN, "-n", "3"]]
    {
        let report = ablated(command)?;
        assert_says("provenance", &report["provenance"].to_string(), &["mean-ablate 1.0", "mean_of"]);
    }
    // An output never replaces what the run reads.
    gpt2(&["forward", CLEAN, "--mean-ablate", "1.0", "--mean-of", &path, "--export", &path, "--overwrite"])?
        .refused(1, &["--mean-of"]);
    Ok(())
}

/// The rows from the cache, and those of one pass.
#[test]
fn generated_text_leaves_a_row_of_weights_a_step() -> Result {
    let (model, ids) = (load("odd", DType::F32)?, some_ids()[..7].to_vec());
    let rows = WeightRows::new([0, 1]);
    // Rows of other lengths beside it change nothing.
    let prompts = [vec![5, 9], ids.clone()];
    let mut generation = Generation::new(&model, &prompts, Sampling::greedy(), 6)?.with_hooks(&rows);
    generation.by_ref().collect::<candle_core::Result<Vec<_>>>()?;
    let texts = generation.texts().to_vec();
    for (row, prompt) in prompts.iter().enumerate() {
        let t = prompt.len() + 5;
        let input = Tensor::new(&texts[row][..t], &Device::Cpu)?.unsqueeze(0)?;
        let args = ForwardArgs { output_attentions: true, ..Default::default() };
        let expected = model.forward(&input, args)?.transformer.attentions;
        for (layer, expected) in expected.iter().enumerate() {
            assert_close("rows", &rows.weights(layer, row, t)?, &expected.get(0)?, 1e-5);
        }
    }
    let folder = Folder::empty()?;
    let (npy, html) = (folder.file("w.npy"), folder.file("page.html"));
    let (shown, page, listed) =
        (npy.display().to_string(), html.display().to_string(), comma_separated(&ids));
    let args = ["generate", "--model", &case("odd"), "--ids", &listed, "--greedy", "-n", "6"];
    gpt2(&[&args[..], &["--export", &shown, "--html", &page, "-l", "1"]].concat())?.succeeded();
    let weights = Tensor::read_npy(&npy)?;
    assert_eq!(weights.dims(), [1, 3, 12, 12]);
    assert_close("exported", &weights.get(0)?, &rows.weights(1, 1, 12)?, 1e-5);
    assert_says("the page", &std::fs::read_to_string(&html)?, &["\"prompt\":7"]);
    gpt2(&["generate", "x", "--layer", "1"])?.refused(2, &["--export"]);
    gpt2(&["generate", "x", "--export", "w.txt"])?.refused(1, &["w.txt", ".npy"]);
    Ok(())
}

#[test]
fn a_fragment_for_a_notebook_is_one_frame_on_stdout() -> Result {
    let run =
        gpt2(&["attention", "O Romeo", "--fragment=600", "--with", "effect,scores,rollout,lens,neurons"])?
            .succeeded();
    let html = run.stdout.trim();
    assert!(html.starts_with("<iframe") && html.ends_with("</iframe>"), "{}", &html[..80]);
    assert_says("the frame", html, &["sandbox=", "height:600px", "srcdoc="]);
    assert!(!html[8..].contains("<iframe"));
    let (_, page) = html.split_once("srcdoc=\"").ok_or("a page")?;
    let (page, after) = page.split_once('"').ok_or("its end")?;
    assert!(page.len() > 50_000 && after.len() < 300, "no quotation mark ends the page early: {after}");
    gpt2(&["attention", "O Romeo", "--fragment", "--json"])?.refused(2, &["cannot be used with"]);
    gpt2(&["attention", "O Romeo", "--fragment=1"])?.refused(2, &["200"]);
    gpt2(&["attention", "O Romeo", "--compare", "--fragment"])?.refused(1, &["--compare", "intervention"]);
    gpt2(&["attention", "O Romeo", "--compare", "--fragment", "--ablate", "0.3"])?.succeeded();
    Ok(())
}

/// What a generated text reads goes on beyond the prompts that its interventions name.
#[test]
fn generated_pages_work_under_patches_and_links_cut_later() -> Result {
    let folder = Folder::empty()?;
    let page = folder.file("page.html").display().to_string();
    let args = ["generate", CORRUPT, "-n", "6", "--html", &page, "--overwrite"];
    gpt2(&[&args[..], &["--patch", "1.0", "--from-prompt", CLEAN, "--block", "11:2"]].concat())?.succeeded();
    assert!(std::fs::metadata(&page)?.len() > 50_000);
    gpt2(&[&args[..], &["--patch", "1.0", "--from-prompt", "O Romeo"]].concat())?
        .refused(1, &["3 tokens", "@POS"]);
    Ok(())
}

#[test]
fn positions_that_are_not_there_are_refused() -> Result {
    let folder = Folder::empty()?;
    let file = folder.file("v.npy");
    Tensor::zeros(128, DType::F32, &Device::Cpu)?.write_npy(&file)?;
    let add = |at: &str| format!("{at}={}", file.display());
    gpt2(&["forward", "O Romeo", "--add", &add("1@50")])?.refused(1, &["--add 1@50", "0 to 2"]);
    gpt2(&["heads", "--add", &add("1@3")])?.refused(1, &["--add 1@3", "random tokens", "@POS"]);
    gpt2(&["heads", "--add", &add("1")])?.succeeded();
    folder.write("long.npy", "\u{93}NUMPY {'shape': (99999999999999,), }")?;
    let long = format!("1={}", folder.file("long.npy").display());
    gpt2(&["forward", "O Romeo", "--add", &long])?.refused(1, &["long.npy", "NumPy"]);
    let pair = ["attention", "O Romeo", "--effect", "--target", ",", "--against", ","];
    gpt2(&pair)?.refused(1, &["same token"]);
    Ok(())
}

/// A decomposition of NaN would not end.
#[test]
fn weights_that_are_not_finite_have_no_circuits() -> Result {
    let mut tensors = crate::folder::read(&crate::common::data("odd").join("model.safetensors"))?;
    let (name, tensor) =
        tensors.iter_mut().find(|(name, _)| name.ends_with("h.1.attn.c_attn.weight")).ok_or("a weight")?;
    assert!(name.contains("c_attn"));
    tensor.data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let folder = Folder::with_tensors("odd", &tensors)?;
    let model = folder.path().display().to_string();
    gpt2(&["circuits", "--model", &model])?.refused(1, &["head 1.0", "not finite"]);
    gpt2(&["heads", "--model", &model, "--length", "5"])?.refused(1, &["not finite", "layer 1"]);
    let args = ["heads", "--model", &model, "--length", "5", "--allow-nonfinite", "--json"];
    assert_eq!(json(&args)?["heads"][0]["copying"], Value::Null);
    Ok(())
}
