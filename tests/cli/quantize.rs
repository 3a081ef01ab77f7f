//! `gpt2 quantize`, `gpt2 compare`, `--quantize`, `--kv`, and models in GGUF files.

use super::{gpt2, json};
use crate::common::{Result, data};
use crate::folder::assert_says;
use std::path::{Path, PathBuf};

fn demo() -> PathBuf {
    data("../../models/tiny-shakespeare")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// The demo model as a GGUF file.
fn quantized(dir: &Path, to: &str) -> Result<PathBuf> {
    let path = dir.join(format!("{to}.gguf"));
    gpt2(&["quantize", "--to", to, "--out", text(&path)])?.succeeded();
    Ok(path)
}

#[test]
fn every_command_reads_the_file_that_quantize_writes() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("demo.gguf");
    let report = json(&["quantize", text(&demo()), "--to", "q8_0", "--out", text(&path), "--json"])?;
    let bytes = std::fs::metadata(&path)?.len();
    assert_eq!((report["type"].as_str(), report["bytes"].as_u64()), (Some("q8_0"), Some(bytes)));
    assert!(bytes < 1_200_000, "{bytes}");

    let plain = json(&["forward", "O Romeo, Romeo! wherefore", "--json"])?;
    let of_file = json(&["forward", "O Romeo, Romeo! wherefore", "--json", "--model", text(&path)])?;
    assert_eq!(of_file["provenance"]["quantized"], serde_json::json!(["q8_0"]));
    assert_eq!(of_file["provenance"]["ids"], plain["provenance"]["ids"]);
    let quantized = json(&["forward", "O Romeo, Romeo! wherefore", "--json", "--quantize", "q8_0"])?;
    assert_eq!(of_file["next"], quantized["next"]);
    let run = |args: &[&str]| -> Result<String> {
        Ok(gpt2(&[args, &["--model", text(&path)]].concat())?.succeeded().stdout)
    };
    assert_says("attention", &run(&["attention", "O Romeo, Romeo!"])?, &["weights in q8_0"]);
    let written = run(&["generate", "--greedy", "-n", "12", "--kv", "f16", "O Romeo"])?;
    assert!(written.starts_with("O Romeo") && written.len() > 20, "{written}");
    assert_says("lens", &run(&["lens", "O Romeo"])?, &["weights in q8_0", "what follows"]);
    assert_says("heads", &run(&["heads"])?, &["induction"]);
    let audit = json(&["inspect", text(&path), "--json"])?;
    assert_eq!(audit["audit"]["clean"], true);
    assert_eq!(audit["tensors"][0]["file"], "demo.gguf");
    Ok(())
}

#[test]
fn compare_shows_what_each_type_costs() -> Result {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("text.txt");
    std::fs::write(&file, "ROMEO:\nO, she doth teach the torches to burn bright!\n".repeat(30))?;
    let compared = |other: &str| json(&["compare", "demo", other, "--text", text(&file), "--json"]);
    let same = compared("demo")?;
    assert_eq!(
        (same["mean_kl_divergence"].as_f64(), same["top_1_agreement"].as_f64()),
        (Some(0.0), Some(1.0))
    );
    assert_eq!(same["model"]["perplexity"], same["other"]["perplexity"]);
    let mut before = 0.0;
    for kind in ["f16", "q8_0", "q4_k_m", "q4_0"] {
        let report = compared(text(&quantized(dir.path(), kind)?))?;
        let divergence = report["mean_kl_divergence"].as_f64().unwrap_or(-1.0);
        assert!(divergence >= before && divergence < 0.1, "{kind}: {divergence} after {before}");
        before = divergence;
    }
    let printed = gpt2(&[
        "compare",
        "demo",
        "demo",
        "--quantize-other",
        "q4_0",
        "--text",
        text(&file),
        "--tokens",
        "50",
    ])?;
    assert_says(
        "printed",
        &printed.succeeded().stdout,
        &["perplexity", "(q4_0)", "mean KL divergence", "49 tokens"],
    );
    Ok(())
}

#[test]
fn what_would_do_harm_or_make_no_sense_is_refused() -> Result {
    let dir = tempfile::tempdir()?;
    let path = quantized(dir.path(), "q8_0")?;
    let before = std::fs::read(&path)?;
    let other = dir.path().join("other.gguf");
    let refused = |args: &[&str], parts: &[&str]| -> Result<()> {
        gpt2(args)?.refused(1, parts);
        Ok(())
    };
    refused(&["quantize", "--to", "q4_0", "--out", text(&path)], &["already exists", "--overwrite"])?;
    refused(
        &["quantize", text(&path), "--to", "q4_0", "--out", text(&path), "--overwrite"],
        &["a file of the model"],
    )?;
    refused(&["quantize", text(&path), "--to", "q4_0", "--out", text(&other)], &["quantized already"])?;
    refused(&["quantize", text(&data("odd")), "--to", "q8_0", "--out", text(&other)], &["no tokenizer"])?;
    refused(&["forward", "x", "--model", text(&path), "--quantize", "q4_0"], &["quantized already"])?;
    refused(&["forward", "x", "--quantize", "q4_0", "--dtype", "f16"], &["leave --dtype out"])?;
    refused(&["forward", "x", "--model", text(&dir.path().join("none.gguf"))], &["none.gguf"])?;
    refused(&["bench", "core", "--quantize", "q8_0"], &["bench forward"])?;
    refused(&["bench", "forward", "--kv", "f16"], &["bench decode"])?;
    let out = dir.path().join("trained");
    let corpus = text(&demo().join("config.json")).to_string();
    refused(
        &["train", "--text", &corpus, "--out", text(&out), "--model", text(&path)],
        &["quantized (q8_0)", "cannot be trained"],
    )?;
    let none = dir.path().join("none.txt");
    refused(&["compare", "demo", "demo", "--text", text(&none)], &["cannot read the text"])?;
    std::fs::write(&none, "x")?;
    refused(&["compare", "demo", "demo", "--text", text(&none)], &["at least 2"])?;
    refused(
        &["compare", "demo", text(&data("gguf").join("tiny.gguf")), "--text", text(&none)],
        &["1024 and 257"],
    )?;
    assert_eq!(std::fs::read(&path)?, before);
    assert!(!other.exists() && !out.exists());
    Ok(())
}

#[test]
fn another_dtype_says_that_it_unpacks() -> Result {
    let model = data("gguf").join("tiny.gguf");
    let run = gpt2(&["forward", "--ids", "1,2,3", "--model", text(&model), "--dtype", "f16"])?.succeeded();
    assert_says("note", &run.stderr, &["q8_0", "unpacked to f16"]);
    Ok(())
}

#[test]
fn bench_reads_a_quantized_file_as_it_is() -> Result {
    let model = data("gguf").join("tiny.gguf");
    let args = [
        "bench",
        "decode",
        "--model",
        text(&model),
        "--tokens",
        "4",
        "--new-tokens",
        "2",
        "--runs",
        "1",
        "--kv",
        "bf16",
        "--json",
    ];
    let report = json(&args)?;
    assert_eq!((report["quantized"].as_str(), report["kv"].as_str()), (Some("q8_0"), Some("bf16")));
    Ok(())
}

#[test]
fn verify_passes_on_a_quantized_model() -> Result {
    let report = json(&["verify", "--model", text(&data("gguf").join("tiny.gguf")), "--json"])?;
    assert_eq!(report["passed"], true, "{report}");
    let checks = report["checks"].as_array().map(Vec::as_slice).unwrap_or_default();
    // With few rows and with many, all of them and the first alone.
    assert_eq!(checks.iter().filter(|check| check["what"] == "linear, q4_K").count(), 4);
    Ok(())
}
