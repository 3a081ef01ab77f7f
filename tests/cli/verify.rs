//! `gpt2 verify`: it covers every path, and the exit code reflects the results.

use super::{case, json};
use crate::common::Result;
use std::collections::BTreeSet;

#[test]
fn every_path_is_checked_and_within_its_tolerance() -> Result {
    let report = json(&["verify", "--model", &case("odd"), "--device", "cpu", "--json"])?;
    assert_eq!(report["passed"], true, "{report}");
    let checks = report["checks"].as_array().ok_or("a list of checks")?;
    let mut seen = BTreeSet::new();
    for check in checks {
        let (error, tolerance) = (check["error"].as_f64(), check["tolerance"].as_f64());
        let (error, tolerance) = error.zip(tolerance).ok_or("two numbers")?;
        assert_eq!(check["passed"], error <= tolerance, "{check}");
        // A half without any error was never rounded: the computation ran in f32.
        let half = check["dtype"] != "f32";
        assert!(!(half && check["what"] == "prompt" && error < 1e-5), "{check}");
        seen.insert([&check["what"], &check["impl"], &check["dtype"]].map(ToString::to_string).join(" "));
    }
    for what in
        ["attention", "its gradient", "with weights", "prompt", "last logits", "chunks", "decode", "padded"]
    {
        for (implementation, dtype) in
            ["fused", "eager"].iter().flat_map(|i| ["f32", "f16", "bf16"].map(|d| (i, d)))
        {
            let path = format!("{what:?} {implementation:?} {dtype:?}");
            assert!(seen.contains(&path), "{path} is missing");
        }
    }
    Ok(())
}
