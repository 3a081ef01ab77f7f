//! `gpt2 quantize`, `gpt2 compare`, `--quantize`, `--kv`, and models in GGUF files.

use super::{DEMO, ODD, gpt2, json, list, stdout, words};
use crate::common::Result;
use crate::folder::{Folder, assert_says};

/// A model in a file of blocks of `q8_0`.
const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/gguf/tiny.gguf");

/// The demo model as a GGUF file.
fn quantized(folder: &Folder, to: &str) -> Result<String> {
    let path = folder.at(&format!("{to}.gguf"));
    gpt2(&["quantize", "--to", to, "--out", &path])?.succeeded();
    Ok(path)
}

#[test]
fn every_command_reads_the_file_that_quantize_writes() -> Result {
    let folder = Folder::empty()?;
    let path = folder.at("demo.gguf");
    let report = json(&["quantize", DEMO, "--to", "q8_0", "--out", &path, "--json"])?;
    let bytes = std::fs::metadata(&path)?.len();
    assert_eq!((report["type"].as_str(), report["bytes"].as_u64()), (Some("q8_0"), Some(bytes)));
    assert!(bytes < 1_200_000, "{bytes}");

    let plain = json(&["forward", "O Romeo, Romeo! wherefore", "--json"])?;
    let of_file = json(&["forward", "O Romeo, Romeo! wherefore", "--json", "--model", &path])?;
    assert_eq!(of_file["provenance"]["quantized"], serde_json::json!(["q8_0"]));
    assert_eq!(of_file["provenance"]["ids"], plain["provenance"]["ids"]);
    let quantized = json(&["forward", "O Romeo, Romeo! wherefore", "--json", "--quantize", "q8_0"])?;
    assert_eq!(of_file["next"], quantized["next"]);
    let run = |args: &[&str]| -> Result<String> { stdout(&[args, &["--model", &path]].concat()) };
    assert_says("attention", &run(&["attention", "O Romeo, Romeo!"])?, &["weights in q8_0"]);
    let written = run(&["generate", "--greedy", "-n", "12", "--kv", "f16", "O Romeo"])?;
    assert!(written.starts_with("O Romeo") && written.len() > 20, "{written}");
    let written = run(&["generate", "--greedy", "-n", "12", "--kv", "q8_0", "O Romeo"])?;
    assert!(written.starts_with("O Romeo") && written.len() > 20, "{written}");
    assert_says("lens", &run(&["lens", "O Romeo"])?, &["weights in q8_0", "what follows"]);
    assert_says("heads", &run(&["heads"])?, &["induction"]);
    let audit = json(&["inspect", &path, "--json"])?;
    assert_eq!(audit["audit"]["clean"], true);
    assert_eq!(audit["tensors"][0]["file"], "demo.gguf");
    Ok(())
}

/// The demo model is 128 wide, its MLP's inner layer 512.
#[test]
fn quantize_says_which_formats_the_file_has_and_why() -> Result {
    let folder = Folder::empty()?;
    let of = |to: &str, file: &str| stdout(&["quantize", "--to", to, "--out", &folder.at(file)]);
    assert_says("q8_0", &of("q8_0", "a.gguf")?, &["weights: 17 in Q8_0\n"]);
    let mix = "weights: 16 in Q4_0, 1 in Q8_0; Q6_K needs rows whose length is a multiple of 256; the output projection got Q8_0\n";
    assert_says("q4_0", &of("q4_0", "b.gguf")?, &[mix]);
    assert_says(
        "q4_k_m",
        &of("q4_k_m", "c.gguf")?,
        &["10 in Q5_0, 2 in Q6_K, 3 in Q8_0; Q4_K and Q6_K need rows", "; the others got Q5_0 and Q8_0\n"],
    );
    let report = json(&["quantize", "--to", "q4_0", "--out", &folder.at("d.gguf"), "--json"])?;
    assert_eq!(report["weights"], serde_json::json!({ "q4_0": 16, "q8_0": 1 }));
    let other = folder.at("x.safetensors");
    gpt2(&["quantize", "--to", "f16", "--out", &other])?.refused(1, &[&other, "ends in .gguf"]);
    Ok(())
}

#[test]
fn compare_shows_what_each_type_costs() -> Result {
    let folder = Folder::empty()?;
    let file = folder.at("text.txt");
    std::fs::write(&file, "ROMEO:\nO, she doth teach the torches to burn bright!\n".repeat(30))?;
    let compared = |other: &str| json(&["compare", "demo", other, "--text", &file, "--json"]);
    let same = compared("demo")?;
    assert_eq!(
        (same["mean_kl_divergence"].as_f64(), same["top_1_agreement"].as_f64()),
        (Some(0.0), Some(1.0))
    );
    assert_eq!(same["model"]["perplexity"], same["other"]["perplexity"]);
    let mut before = 0.0;
    for kind in ["f16", "q8_0", "q4_k_m", "q4_0"] {
        let report = compared(&quantized(&folder, kind)?)?;
        let divergence = report["mean_kl_divergence"].as_f64().unwrap_or(-1.0);
        assert!(divergence >= before && divergence < 0.1, "{kind}: {divergence} after {before}");
        before = divergence;
    }
    let args = words("compare demo demo --quantize-other q4_0 --tokens 50 --text");
    let printed = stdout(&[&args[..], &[&file]].concat())?;
    assert_says("printed", &printed, &["perplexity", "(q4_0)", "mean KL divergence", "49 tokens"]);
    assert_says("printed", &printed, &["in windows of up to 256 that do not overlap"]);
    assert_eq!((&same["window"], &same["stride"]), (&256.into(), &256.into()));
    Ok(())
}

#[test]
fn a_cache_in_8_bits_says_so_and_costs_little() -> Result {
    let folder = Folder::empty()?;
    let file = folder.at("text.txt");
    std::fs::write(&file, "ROMEO:\nO, she doth teach the torches to burn bright!\n".repeat(30))?;
    let cost = |kv: &str| -> Result<f64> {
        let report = json(&["compare", "demo", "demo", "--kv-other", kv, "--text", &file, "--json"])?;
        assert_eq!((report["other"]["kv"].as_str(), report["model"]["kv"].as_str()), (Some(kv), None));
        Ok(report["mean_kl_divergence"].as_f64().ok_or("a number")?)
    };
    let [plain, half, codes] = [cost("f32")?, cost("f16")?, cost("q8_0")?];
    assert!(plain < 1e-9 && half > plain && codes > half && codes < 1e-3, "{plain} {half} {codes}");
    let printed = stdout(&["compare", "demo", "demo", "--kv-other", "q8_0", "--text", &file])?;
    assert_says("printed", &printed, &[", cache in q8_0"]);

    let generate = |options: &[&str]| {
        json(&[&["generate", "--greedy", "O Romeo", "--kv", "q8_0", "--json"], options].concat())
    };
    let plain = generate(&[])?;
    assert_eq!(plain["provenance"]["kv"], "q8_0");
    assert_eq!(generate(&["--draft", "lookup"])?["text"], plain["text"]);
    let page = folder.at("page.html");
    generate(&["-n", "5", "--html", &page])?;
    assert_says("page", &std::fs::read_to_string(&page)?, &["cache in q8_0"]);
    for what in ["generate", "bench"] {
        let args: &[&str] =
            if what == "bench" { &["bench", "decode", "--tokens", "4"] } else { &["generate", "A"] };
        let other = [args, &["--kv", "q8_0", "--dtype", "f16"]].concat();
        gpt2(&other)?.refused(1, &["q8_0", "f32, got", "f16"]);
    }
    Ok(())
}

#[test]
fn what_would_do_harm_or_make_no_sense_is_refused() -> Result {
    let folder = Folder::empty()?;
    let path = quantized(&folder, "q8_0")?;
    let before = std::fs::read(&path)?;
    let other = folder.at("other.gguf");
    gpt2(&["quantize", "--to", "q4_0", "--out", &path])?.refused(1, &["already exists", "--overwrite"]);
    gpt2(&["quantize", &path, "--to", "q4_0", "--out", &path, "--overwrite"])?
        .refused(1, &["a file of the model"]);
    gpt2(&["quantize", &path, "--to", "q4_0", "--out", &other])?.refused(1, &["quantized already"]);
    gpt2(&["quantize", ODD, "--to", "q8_0", "--out", &other])?.refused(1, &["no tokenizer"]);
    gpt2(&["forward", "x", "--model", &path, "--quantize", "q4_0"])?.refused(1, &["quantized already"]);
    gpt2(&["forward", "x", "--quantize", "q4_0", "--dtype", "f16"])?.refused(1, &["leave --dtype out"]);
    gpt2(&["forward", "x", "--model", &folder.at("none.gguf")])?.refused(1, &["none.gguf"]);
    gpt2(&["bench", "core", "--quantize", "q8_0"])?.refused(1, &["bench forward"]);
    gpt2(&["bench", "forward", "--kv", "f16"])?.refused(1, &["bench decode"]);
    let out = folder.at("trained");
    let corpus = format!("{DEMO}/config.json");
    gpt2(&["train", "--text", &corpus, "--out", &out, "--model", &path])?
        .refused(1, &["quantized (q8_0)", "cannot be trained"]);
    let none = folder.at("none.txt");
    gpt2(&["compare", "demo", "demo", "--text", &none])?.refused(1, &["cannot read the text"]);
    std::fs::write(&none, "x")?;
    gpt2(&["compare", "demo", "demo", "--text", &none])?.refused(1, &["at least 2"]);
    gpt2(&["compare", "demo", TINY, "--text", &none])?.refused(1, &["1024 and 257"]);
    assert_eq!(std::fs::read(&path)?, before);
    assert_eq!(folder.names()?, ["none.txt", "q8_0.gguf"]);
    Ok(())
}

#[test]
fn bench_reads_a_quantized_file_as_it_is_and_another_dtype_unpacks_it() -> Result {
    let run = gpt2(&["forward", "--ids", "1,2,3", "--model", TINY, "--dtype", "f16"])?.succeeded();
    assert_says("note", &run.stderr, &["q8_0", "unpacked to f16"]);
    let args = words("bench decode --tokens 4 --new-tokens 2 --runs 1 --kv bf16 --json --model");
    let report = json(&[&args[..], &[TINY]].concat())?;
    assert_eq!((report["quantized"].as_str(), report["kv"].as_str()), (Some("q8_0"), Some("bf16")));
    let args = words("bench decode --tokens 4 --new-tokens 2 --runs 1 --kv q8_0 --json --model");
    assert_eq!(json(&[&args[..], &[TINY]].concat())?["kv"], "q8_0");
    Ok(())
}

#[test]
fn verify_passes_on_a_quantized_model() -> Result {
    let report = json(&["verify", "--model", TINY, "--json"])?;
    assert_eq!(report["passed"], true, "{report}");
    let checks = list(&report["checks"]);
    // With few rows and with many, all of them and the first alone.
    assert_eq!(checks.iter().filter(|check| check["what"] == "linear, q4_K").count(), 4);
    Ok(())
}
