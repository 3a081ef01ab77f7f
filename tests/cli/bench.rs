//! `gpt2 bench`: the documented fields, with consistent numbers; and `gpt2 verify`: every path, with an exit code that
//! tells the result.

use super::{ODD, gpt2, json, list, stdout, words};
use crate::common::Result;
use crate::folder::assert_says;
use serde_json::Value;
use std::collections::BTreeSet;

fn number(report: &Value, field: &str) -> Result<f64> {
    Ok(report[field].as_f64().ok_or_else(|| format!("{field} in {report}"))?)
}

#[test]
fn json_has_the_documented_fields() -> Result {
    let common =
        words("batch device dtype impl isa median_ms min_ms model runs shape threads timer tokens what work");
    for what in ["core", "block", "forward", "decode", "generate"] {
        let makes_tokens = matches!(what, "decode" | "generate");
        let args = ["bench", what, "--model", ODD, "--json", "--batch", "2", "--tokens", "16"];
        let mut more = words("--runs 3 --threads 2 --dtype f16 --impl eager --device cpu");
        if makes_tokens {
            more.extend(["--new-tokens", "4"]);
        }
        let report = json(&[&args[..], &more].concat())?;
        let mut fields = common.clone();
        if makes_tokens {
            fields.extend(["ms_per_token", "tokens_per_s"]);
        }
        fields.sort_unstable();
        let mut found: Vec<_> = report.as_object().ok_or("an object")?.keys().collect();
        found.sort_unstable();
        assert_eq!(found, fields);
        assert_eq!(report["shape"]["n_embd"], 48);
        for (field, value) in
            [("what", what), ("model", ODD), ("impl", "eager"), ("dtype", "f16"), ("device", "cpu")]
        {
            assert_eq!(report[field], value);
        }
        for (field, value) in [("batch", 2), ("tokens", 16), ("runs", 3), ("threads", 2)] {
            assert_eq!(report[field], value);
        }
        let isa = report["isa"].as_str().ok_or("isa")?;
        assert!(["portable", "neon", "avx2", "avx-vnni", "avx512", "amx"].contains(&isa), "{report}");
        let work = &report["work"];
        let speed = number(work, "giga_per_s")?;
        let peak = number(work, "peak")?;
        let least = number(work, "least_peak")?;
        assert!(speed > 0.0 && 0.0 < least && least <= peak, "{report}");
        assert!((number(work, "of_peak")? - speed / peak).abs() < 1e-9, "{report}");
        assert_eq!(work["unit"], if makes_tokens { "GB/s" } else { "GFLOP/s" });
        let median = number(&report, "median_ms")?;
        let min = number(&report, "min_ms")?;
        assert!(0.0 < min && min <= median && median < 60_000.0, "{report}");
        if makes_tokens {
            let ms = number(&report, "ms_per_token")?;
            assert!((ms * 4.0 - median).abs() < 1e-6 * median, "{report}");
            // Each step gives a token to both rows.
            assert!((number(&report, "tokens_per_s")? * ms - 2000.0).abs() < 1e-3, "{report}");
        }
    }
    Ok(())
}

#[test]
fn the_first_line_says_what_is_timed() -> Result {
    let random = stdout(&["bench", "core", "-t8", "-r1"])?;
    assert!(
        random.starts_with("random weights of GPT-2 small's shape: 12 layers, 12 heads, width 768"),
        "{random}"
    );
    let demo = stdout(&["bench", "core", "-t8", "-r1", "--model", "demo"])?;
    assert!(demo.starts_with("tiny-shakespeare (built in): 4 layers, "), "{demo}");
    Ok(())
}

/// A multiplication and an addition, twice, of 12·64 channels for each of 8·9/2 pairs of a query and a key that it sees.
#[test]
fn the_speed_of_core_is_its_operations_over_its_time() -> Result {
    let report = json(&["bench", "core", "-t8", "-r1", "--json"])?;
    let operations = 4.0 * 768.0 * 36.0;
    let speed = number(&report["work"], "giga_per_s")?;
    assert!((speed * 1e6 * number(&report, "median_ms")? / operations - 1.0).abs() < 1e-9, "{report}");
    Ok(())
}

/// 917,504 weights as the file has them, and keys and values in f32 of 4 layers, 128 wide, for 24.5 positions on average.
#[test]
fn the_bytes_of_a_token_are_those_of_the_file_s_weights() -> Result {
    let options = ["bench", "decode", "-t8", "-r1", "--json", "--model", "demo"];
    for (more, of_weight) in [(&[][..], 2.0), (&["--quantize", "q8_0"], 8.5 / 8.0)] {
        let report = json(&[&options, more].concat())?;
        let bytes = number(&report["work"], "giga_per_s")? * 1e6 * number(&report, "ms_per_token")?;
        let expected = 917_504.0 * of_weight + 4.0 * 4.0 * 2.0 * 128.0 * 24.5;
        assert!((bytes / expected - 1.0).abs() < 1e-9, "{bytes} and {expected}: {report}");
    }
    Ok(())
}

#[test]
fn an_instruction_set_is_held_or_refused_by_name() -> Result {
    let held = json(&["bench", "core", "-t8", "-r1", "--json", "--isa", "portable"])?;
    assert_eq!(held["isa"], "portable");
    gpt2(&["bench", "core", "--isa", "sse9"])?
        .refused(2, &["sse9", "portable, simd128, neon, avx2, avx-vnni, avx512, amx"]);
    let other = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    gpt2(&["bench", "core", "-t8", "--isa", other])?.refused(1, &[other, "choose one of portable"]);
    Ok(())
}

#[test]
fn one_run_is_its_own_median() -> Result {
    let args = words("bench forward --last -t77 -r1 --threads 1 --json --model");
    let report = json(&[&args[..], &[ODD]].concat())?;
    assert_eq!(report["median_ms"], report["min_ms"]);
    assert_eq!((&report["tokens"], &report["threads"]), (&77.into(), &1.into()));
    Ok(())
}

#[test]
fn core_runs_in_the_shape_of_gpt2_small_without_a_model() -> Result {
    let run = gpt2(&["bench", "core", "--impl", "eager", "--tokens", "8", "--runs", "1"])?.succeeded();
    assert_says("text", &run.stdout, &["core, eager, batch 1, 8 tokens, f32, cpu", "median", "of 1 run\n"]);
    Ok(())
}

#[test]
fn attention_alone_is_not_bound_by_the_context() -> Result {
    for what in ["core", "block"] {
        let report = json(&["bench", what, "--model", ODD, "-t100", "-r1", "--json"])?;
        assert_eq!(report["tokens"], 100);
    }
    Ok(())
}

#[test]
fn options_of_other_targets_are_refused() -> Result {
    for (args, says) in [
        (&["core", "--last"][..], "--last is only for bench forward"),
        (&["forward", "--recompute"], "--recompute is only for bench train"),
        (&["core", "--new-tokens", "7"], "--new-tokens is only for bench decode and generate"),
        (&["decode", "--cuda-graph"], "--cuda-graph is only for bench generate"),
        (&["generate", "--cuda-graph", "--model", ODD, "-t8"], "only CUDA has graphs"),
    ] {
        gpt2(&[&["bench"], args].concat())?.refused(1, &[says]);
    }
    Ok(())
}

#[test]
fn what_a_model_has_no_room_for_is_refused() -> Result {
    gpt2(&["bench", "forward", "--model", ODD, "-t78"])?.refused(1, &["--tokens", "78", "n_positions = 77"]);
    gpt2(&["bench", "decode", "--model", ODD, "-t60"])?.refused(1, &["--tokens", "92", "n_positions = 77"]);
    gpt2(&["bench", "train", "-t8", "--model", ODD])?.refused(1, &["--model", "random weights"]);
    Ok(())
}

#[test]
fn every_path_is_checked_and_within_its_tolerance() -> Result {
    let report = json(&["verify", "--model", ODD, "--device", "cpu", "--json"])?;
    assert_eq!(report["passed"], true, "{report}");
    let mut seen = BTreeSet::new();
    for check in list(&report["checks"]) {
        let error = number(check, "error")?;
        let tolerance = number(check, "tolerance")?;
        assert_eq!(check["passed"], error <= tolerance, "{check}");
        // A half without any error was never rounded: the computation ran in f32.
        let half = check["dtype"] != "f32";
        assert!(!(half && check["what"] == "prompt" && error < 1e-5), "{check}");
        seen.insert([&check["what"], &check["impl"], &check["dtype"]].map(ToString::to_string).join(" "));
    }
    let parts =
        ["attention", "its gradient", "with weights", "prompt", "last logits", "chunks", "decode", "padded"];
    for (what, implementation) in parts.iter().flat_map(|what| [(what, "fused"), (what, "eager")]) {
        for dtype in ["f32", "f16", "bf16"] {
            let path = format!("{what:?} {implementation:?} {dtype:?}");
            assert!(seen.contains(&path), "{path} is missing");
        }
    }
    assert!(seen.contains("\"over q8_0 keys\" \"fused\" \"f32\""), "{seen:?}");
    Ok(())
}
