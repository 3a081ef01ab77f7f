//! Interventions on the command line: the same results as the library's for the same list.

use super::{ODD, assert_near, comma_separated, gpt2, json, list, log_softmax, some_ids};
use crate::circuits::{CLEAN, CORRUPT};
use crate::common::Result;
use crate::folder::{Folder, assert_says};
use crate::models::load;
use candle_core::{DType, Device, Tensor};
use gpt2_model::hooks::{Head, Intervention, Interventions, KnockOut};
use gpt2_model::{ForwardArgs, Generation, Gpt2LMHeadModel, Sampling};

const FLAGS: [&str; 8] = [
    "--ablate",
    "0.1",
    "--mean-ablate=1.2",
    "--scale",
    "0.0=0.5,1.0=-2",
    "--block=7:4,1/9:3",
    "--block",
    "0.2/8:0",
];

fn changes() -> Vec<Intervention> {
    let head = |layer, head| Head { layer, head };
    let block = |layer, head, query, key| Intervention::KnockOut(layer, KnockOut { head, query, key });
    vec![
        Intervention::ZeroAblate(head(0, 1)),
        Intervention::MeanAblate(head(1, 2)),
        Intervention::Scale(head(0, 0), 0.5),
        Intervention::Scale(head(1, 0), -2.0),
        block(None, None, 7, 4),
        block(Some(1), None, 9, 3),
        block(Some(0), Some(2), 8, 0),
    ]
}

fn changed(model: &Gpt2LMHeadModel, ids: &[u32]) -> Result<(Vec<f64>, Tensor)> {
    let changes = Interventions::new(changes(), model.config())?;
    let args = ForwardArgs { hooks: Some(&changes), output_attentions: true, ..Default::default() };
    let output = model.forward(&model.ids(ids)?, args)?;
    let last = output.logits.squeeze(0)?.get(ids.len() - 1)?.to_dtype(DType::F64)?.to_vec1()?;
    Ok((log_softmax(&last), output.transformer.attentions[1].clone()))
}

#[test]
fn the_flags_do_what_the_library_does() -> Result {
    let model = load("odd", DType::F32)?;
    let ids = &some_ids()[..12];
    let (log_probs, weights) = changed(&model, ids)?;
    let listed = comma_separated(ids);
    let run =
        |command: &str| json(&[&[command, "--model", ODD, "--json", "--ids", &listed], &FLAGS[..]].concat());
    for candidate in list(&run("forward")?["next"]) {
        let id = usize::try_from(candidate["id"].as_u64().ok_or("id")?)?;
        assert_near("log_prob", &candidate["log_prob"], log_probs[id], 1e-4);
    }
    let summaries = gpt2_view::summarize(&weights.squeeze(0)?)?;
    let heads = run("attention")?["layers"][1]["heads"].clone();
    for (got, expected) in list(&heads).iter().zip(summaries) {
        assert_near("entropy", &got["summary"]["entropy"], f64::from(expected.entropy), 1e-4);
    }
    Ok(())
}

#[test]
fn generate_keeps_them_and_takes_the_means_of_the_prompt() -> Result {
    let model = load("odd", DType::F32)?;
    let ids = some_ids()[..12].to_vec();
    let input = model.ids(&ids)?;
    let changes = Interventions::new(changes(), model.config())?.with_means_of(&model, &input)?;
    let mut generation =
        Generation::new(&model, std::slice::from_ref(&ids), Sampling::greedy(), 15)?.with_hooks(&changes);
    generation.by_ref().collect::<candle_core::Result<Vec<_>>>()?;
    let listed = comma_separated(&ids);
    let args = ["generate", "--model", ODD, "--json", "--greedy", "-n", "15", "--ids", &listed];
    let report = json(&[&args[..], &FLAGS].concat())?;
    let got: Vec<u64> = list(&report["ids"]).iter().filter_map(serde_json::Value::as_u64).collect();
    let expected: Vec<u64> = generation.texts()[0][12..].iter().map(|&id| u64::from(id)).collect();
    assert_eq!(got, expected);
    Ok(())
}

#[test]
fn what_is_not_there_is_named_with_what_is() -> Result {
    let run = |flags: &[&str]| gpt2(&[&["forward", "--model", ODD, "--ids", "1,2,3"], flags].concat());
    run(&["--ablate", "0.3"])?.refused(1, &["head 3 of layer 0", "heads 0 to 2"]);
    run(&["--scale", "2.0=1"])?.refused(1, &["layer 2", "layers 0 to 1"]);
    run(&["--block", "3:1"])?.refused(1, &["block 3:1", "positions 0 to 2"]);
    run(&["--block", "1:2"])?
        .refused(1, &["block 1:2", "position 1 attends to positions 0 to 1 alone", "as in 2:1"]);
    run(&["--ablate", "5"])?.refused(2, &["--ablate", "LAYER.HEAD", "5.1"]);
    run(&["--scale", "0.1=much"])?.refused(2, &["--scale", "3.2=0.5"]);
    run(&["--scale", "0.1=inf"])?.refused(2, &["--scale", "3.2=0.5"]);
    for wrong in ["3", "x/3:1", "3:y", "1.2.3/3:1"] {
        run(&["--block", wrong])?.refused(2, &["--block", "3.2/7:4"]);
    }
    Ok(())
}

#[test]
fn a_change_that_another_one_undoes_is_refused() -> Result {
    let run = |flags: &[&str]| gpt2(&[&["forward", "--model", ODD, "--ids", "1,2,3"], flags].concat());
    for (flags, undone) in [
        (["--scale", "0.1=2"], "scale 0.1=2"),
        (["--mean-ablate", "0.1"], "mean-ablate 0.1"),
        (["--attention-temperature", "0.1=2"], "0.1=2"),
    ] {
        run(&[&["--ablate", "1.1,0.1"], &flags[..]].concat())?.refused(1, &[undone, "beside `ablate 0.1`"]);
        run(&[&["--ablate", "1.1"], &flags[..]].concat())?.succeeded();
    }
    let patched =
        |flags: &[&str]| gpt2(&[&["forward", "O Romeo", "--from-prompt", "O Juliet"], flags].concat());
    patched(&["--patch", "0.3", "--ablate", "0.3"])?.refused(1, &["`ablate 0.3`", "beside `patch 0.3`"]);
    patched(&["--patch", "0.3@1", "--ablate", "0.3"])?.succeeded();
    Ok(())
}

#[test]
fn bench_says_what_asking_costs() -> Result {
    let args = ["bench", "forward", "--model", ODD, "--json", "--tokens", "33", "--runs", "3"];
    let report = json(&[&args[..], &["--summaries", "--weights-heads", "4"]].concat())?;
    for field in ["median_ms", "plain_median_ms", "ratio_to_plain"] {
        assert!(report[field].as_f64().is_some_and(|x| x > 0.0), "{field} in {report}");
    }
    gpt2(&["bench", "core", "--summaries"])?.refused(1, &["--summaries", "bench forward"]);
    gpt2(&[&args[..], &["--weights-heads", "7"]].concat())?.refused(1, &["--weights-heads", "6 heads"]);
    Ok(())
}

/// The flags, against the library on the same ids.
#[test]
fn patches_vectors_and_temperatures_do_what_the_library_does() -> Result {
    let model = load("odd", DType::F32)?;
    let ids = &some_ids()[..12];
    let input = model.ids(ids)?;
    let folder = Folder::empty()?;
    let vector: Vec<f32> = (0..48u8).map(|i| f32::from(i % 7) - 3.0).collect();
    let vector = Tensor::new(vector, &Device::Cpu)?;
    vector.write_npy(folder.file("v.npy"))?;
    let add = format!("1@3={}*-0.5", folder.at("v.npy"));
    let changes = vec![
        Intervention::Temperature(Head { layer: 0, head: 1 }, 0.25),
        Intervention::Add { layer: 1, position: Some(3), vector: (vector * -0.5)? },
    ];
    let changes = Interventions::new(changes, model.config())?;
    let args = ForwardArgs { hooks: Some(&changes), ..Default::default() };
    let logits = model.forward(&input, args)?.logits.squeeze(0)?.get(11)?.to_dtype(DType::F64)?.to_vec1()?;
    let expected = log_softmax(&logits);
    let listed = comma_separated(ids);
    let flags = ["--attention-temperature", "0.1=0.25", "--add", &add];
    let report = json(&[&["forward", "--model", ODD, "--json", "--ids", &listed][..], &flags].concat())?;
    for candidate in list(&report["next"]) {
        let id = usize::try_from(candidate["id"].as_u64().ok_or("id")?)?;
        assert_near("log_prob", &candidate["log_prob"], expected[id], 1e-4);
    }
    let said = report["provenance"]["interventions"].to_string();
    assert_says("provenance", &said, &["temperature 0.1=0.25", "add 1@3=", "*-0.5"]);
    let run = |flags: &[&str]| gpt2(&[&["forward", "--model", ODD, "--ids", &listed][..], flags].concat());
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
    for (prompt, patch, says) in [
        ("O Romeo", "1", &["3 tokens", "the prompt 8", "@POS"][..]),
        ("O Romeo", "1@5", &["position 5", "0 to 2"]),
        (CLEAN, "9", &["layers 0 to 3"]),
    ] {
        gpt2(&["forward", CORRUPT, "--from-prompt", prompt, "--patch", patch])?.refused(1, says);
    }
    // Means over other texts, by position where all have as many tokens.
    let folder = Folder::empty()?;
    folder.write("texts.txt", format!("{CLEAN}\n{CORRUPT}\n"))?;
    let path = folder.at("texts.txt");
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
    let args = ["attention", CLEAN, "--mean-ablate", "1.0", "--mean-of", &path, "--html", &path];
    gpt2(&[&args[..], &["--overwrite"]].concat())?.refused(1, &["--mean-of"]);
    Ok(())
}

/// On a head above 0, no position has to follow the patched ones.
#[test]
fn the_last_position_and_the_only_one_are_patched_on_every_head() -> Result {
    for command in [&["forward"][..], &["attention"], &["lens"], &["generate", "-n", "2", "--greedy"]] {
        for patch in ["0.3", "0.3@0", "1.0", "3.attn@0"] {
            let run = [command, &["O", "--patch", patch, "--from-prompt", "A", "--json"]].concat();
            let report = json(&run)?;
            assert_says("provenance", &report["provenance"].to_string(), &[&format!("patch {patch}")]);
        }
    }
    // The stream before the first block is all that the prompts differ in.
    let whole = json(&["forward", "O", "--patch", "0@0", "--from-prompt", "A", "--json"])?;
    assert_eq!(whole["next"], json(&["forward", "A", "--json"])?["next"]);
    for (clean, corrupt, tokens) in [("A", "O", 1), ("A,", "O,", 2), ("O,", "O.", 2)] {
        let pair = ["patch", clean, corrupt, "--answer", ",", "--against", ".", "--by-position", "--json"];
        let report = json(&pair)?;
        assert_eq!(list(&report["clean"]).len(), tokens);
    }
    Ok(())
}

#[test]
fn positions_that_are_not_there_are_refused() -> Result {
    let folder = Folder::empty()?;
    Tensor::zeros(128, DType::F32, &Device::Cpu)?.write_npy(folder.file("v.npy"))?;
    let add = |at: &str| format!("{at}={}", folder.at("v.npy"));
    gpt2(&["forward", "O Romeo", "--add", &add("1@50")])?.refused(1, &["--add 1@50", "0 to 2"]);
    gpt2(&["heads", "--add", &add("1@3")])?
        .refused(1, &["--add 1@3", "random tokens", "leave the position out"]);
    gpt2(&["heads", "--add", &add("1")])?.succeeded();
    folder.write("long.npy", "\u{93}NUMPY {'shape': (99999999999999,), }")?;
    let long = format!("1={}", folder.at("long.npy"));
    gpt2(&["forward", "O Romeo", "--add", &long])?.refused(1, &["long.npy", "NumPy"]);
    let pair = ["attention", "O Romeo", "--effect", "--target", ",", "--against", ","];
    gpt2(&pair)?.refused(1, &["same token"]);
    Ok(())
}
