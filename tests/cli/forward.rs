//! `gpt2 forward`: it prints the library's numbers.

use super::{
    ODD, Run, assert_near, comma_separated, command, demo_model, demo_tokenizer, gpt2, json, list,
    log_softmax, logits, metadata, number, some_ids, stdout,
};
use crate::common::{Result, assert_close};
use crate::folder::{Folder, assert_says};
use crate::models::load;
use candle_core::{DType, Device, Tensor};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel};
use serde_json::Value;

/// Compares a report with logits that the library computed.
#[track_caller]
fn assert_agrees(
    report: &Value,
    model: &Gpt2LMHeadModel,
    ids: &[u32],
    shown: usize,
    tolerance: f64,
) -> Result {
    let log_probs: Vec<Vec<f64>> = logits(model, ids)?.iter().map(|row| log_softmax(row)).collect();
    let tokens = list(&report["tokens"]);
    assert_eq!(tokens.len(), ids.len());
    assert_eq!(tokens[0]["log_prob"], Value::Null);
    let mut sum = 0.0;
    for (i, (token, &id)) in tokens.iter().zip(ids).enumerate() {
        assert_eq!(token["id"], id);
        if i > 0 {
            let expected = log_probs[i - 1][id as usize];
            assert_near(&format!("log_prob of token {i}"), &token["log_prob"], expected, tolerance);
            sum += expected;
        }
    }
    if ids.len() > 1 {
        let perplexity = (-sum / (ids.len() - 1) as f64).exp();
        assert_near("perplexity", &report["perplexity"], perplexity, perplexity * tolerance);
    } else {
        assert_eq!(report["perplexity"], Value::Null);
    }

    let last = &log_probs[ids.len() - 1];
    let mut best: Vec<usize> = (0..last.len()).collect();
    best.sort_by(|&a, &b| last[b].total_cmp(&last[a]));
    let next = list(&report["next"]);
    assert_eq!(next.len(), shown);
    for (candidate, id) in next.iter().zip(best) {
        assert_eq!(candidate["id"], id);
        assert_near("log_prob", &candidate["log_prob"], last[id], tolerance);
        assert_near("probability", &candidate["probability"], last[id].exp(), tolerance);
    }
    Ok(())
}

#[test]
fn json_agrees_with_the_library() -> Result {
    let model = load("odd", DType::F32)?;
    let ids = some_ids();
    for ids in [&ids[..], &ids[..2], &ids[..1]] {
        let report = json(&["forward", "--model", ODD, "--json", "--ids", &comma_separated(ids)])?;
        assert_eq!(report["model"], ODD);
        assert_agrees(&report, &model, ids, 10, 1e-5)?;
        // Without a tokenizer, a token appears as its number.
        assert_eq!(report["tokens"][0]["token"], ids[0].to_string());
        assert_eq!(report["next"][0]["token"], report["next"][0]["id"].to_string());
    }
    Ok(())
}

#[test]
fn json_of_the_demo_model_agrees_with_the_library() -> Result {
    let model = demo_model()?;
    let tokenizer = demo_tokenizer()?;
    let text = "ROMEO:\nWhat light through yonder";
    let ids = tokenizer.encode(text)?;
    let report = json(&["forward", "--json", text])?;
    assert_agrees(&report, &model, &ids, 10, 1e-4)?;
    let tokens = list(&report["tokens"]);
    let joined: String = tokens.iter().filter_map(|t| t["token"].as_str()).collect();
    assert_eq!(joined, text);
    for candidate in list(&report["next"]) {
        let id = u32::try_from(candidate["id"].as_u64().ok_or("id")?)?;
        assert_eq!(candidate["token"], tokenizer.decode(&[id]));
    }
    Ok(())
}

#[test]
fn top_k_says_how_many_are_shown() -> Result {
    let ids = comma_separated(&some_ids());
    for (k, shown) in [("0", 0), ("3", 3), ("101", 101), ("100000", 101)] {
        let report = json(&["forward", "--model", ODD, "--json", "--top-k", k, "--ids", &ids])?;
        assert_agrees(&report, &load("odd", DType::F32)?, &some_ids(), shown, 1e-5)?;
        if shown == 101 {
            let next = list(&report["next"]);
            let total: f64 = next.iter().filter_map(|c| c["probability"].as_f64()).sum();
            assert!((total - 1.0).abs() < 1e-4, "{total}");
        }
    }
    Ok(())
}

#[test]
fn the_tables_show_what_json_holds() -> Result {
    let ids = comma_separated(&some_ids());
    let args = ["forward", "--model", ODD, "--ids", &ids];
    let report = json(&[&args[..], &["--json"]].concat())?;
    let text = stdout(&args)?;
    let perplexity = number(&report["perplexity"]);
    assert_says("tables", &text, &[&format!("perplexity {perplexity:.3} over 32 tokens")]);
    let line_of =
        |words: &[String]| text.lines().any(|l| l.split_whitespace().eq(words.iter().map(String::as_str)));
    for (i, token) in list(&report["tokens"]).iter().enumerate() {
        let mut words = vec![i.to_string(), token["id"].to_string(), token["id"].to_string()];
        words.extend(token["log_prob"].as_f64().map(|l| format!("{l:.3}")));
        assert!(line_of(&words), "{words:?} is not in:\n{text}");
    }
    for candidate in list(&report["next"]) {
        let id = candidate["id"].to_string();
        let words = [id.clone(), id, format!("{:.4}", number(&candidate["probability"]))];
        assert!(line_of(&words), "{words:?} is not in:\n{text}");
    }
    Ok(())
}

#[test]
fn the_export_holds_logits_and_hidden_states() -> Result {
    let folder = Folder::empty()?;
    let path = folder.at("forward.safetensors");
    let ids = some_ids();
    let args = ["forward", "--model", ODD, "--ids", &comma_separated(&ids), "--export", &path];
    let run = gpt2(&args)?.succeeded();
    assert_says("stderr", &run.stderr, &[&path]);
    assert!(!run.stdout.contains(&path), "a note among the results");
    assert_eq!(folder.names()?, ["forward.safetensors"]);

    let tensors = candle_core::safetensors::load(&path, &Device::Cpu)?;
    assert_eq!(tensors.len(), 2);
    let input = Tensor::new(ids.as_slice(), &Device::Cpu)?.unsqueeze(0)?;
    let forward = ForwardArgs { output_hidden_states: true, ..ForwardArgs::default() };
    let output = load("odd", DType::F32)?.forward(&input, forward)?;
    for (name, expected) in
        [("logits", output.logits), ("hidden_states", Tensor::cat(&output.transformer.hidden_states, 0)?)]
    {
        assert_eq!(tensors[name].dtype(), DType::F32);
        assert_close(name, &tensors[name], &expected, 1e-5);
    }
    assert_eq!(tensors["logits"].dims(), [1, 33, 101]);
    assert_eq!(tensors["hidden_states"].dims(), [3, 33, 48]);

    let metadata = metadata(path.as_ref())?;
    assert_eq!(metadata["model"], "odd");
    assert_eq!(serde_json::from_str::<Vec<u32>>(&metadata["ids"])?, ids);
    let labels: Vec<String> = ids.iter().map(u32::to_string).collect();
    assert_eq!(serde_json::from_str::<Vec<String>>(&metadata["tokens"])?, labels);
    Ok(())
}

#[test]
fn an_export_is_f32_in_every_dtype_and_may_lie_in_the_folder_of_the_day() -> Result {
    for dtype in ["f16", "bf16", "f64"] {
        let folder = Folder::empty()?;
        let ids = comma_separated(&some_ids());
        let args = ["forward", "--model", ODD, "--ids", &ids, "--dtype", dtype, "--export", "x.safetensors"];
        Run::of(command(&args).current_dir(folder.path()))?.succeeded();
        let tensors = candle_core::safetensors::load(folder.file("x.safetensors"), &Device::Cpu)?;
        assert!(tensors.values().all(|t| t.dtype() == DType::F32), "{dtype}");
    }
    Ok(())
}

#[test]
fn every_dtype_agrees_with_f32_within_its_rounding() -> Result {
    let model = load("odd", DType::F32)?;
    let ids = some_ids();
    let args = ["forward", "--model", ODD, "--json", "-k0", "--ids", &comma_separated(&ids), "--dtype"];
    for (dtype, tolerance) in [("f64", 1e-5), ("f16", 0.02), ("bf16", 0.15)] {
        let report = json(&[&args[..], &[dtype]].concat())?;
        assert_agrees(&report, &model, &ids, 0, tolerance)?;
    }
    Ok(())
}
