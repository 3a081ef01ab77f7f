//! `gpt2 attention`'s files and analyses, `gpt2 heads` and `gpt2 lens`: the library's numbers, in every form.

use super::{ODD, assert_near, comma_separated, command, gpt2, json, list, number, some_ids};
use crate::common::{Result, assert_close};
use crate::folder::{Folder, assert_says};
use crate::models::load;
use candle_core::{DType, Device, Tensor};
use gpt2_model::analysis::{
    Ablation, Centering, Metric, RepeatedTokens, ablation_effects, attention_rollout, direct_attribution,
    head_scores, logit_lens,
};
use gpt2_model::hooks::{Head, Hooks, Intervention, Interventions};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel};
use serde_json::Value;

/// A number in a report; anything else becomes an index that is out of range.
fn index(value: &Value) -> usize {
    value.as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX)
}

fn nine_ids() -> Vec<u32> {
    some_ids()[..9].to_vec()
}

/// `odd`, and nine ids for it, (1, T).
fn model() -> Result<(Gpt2LMHeadModel, Tensor)> {
    Ok((load("odd", DType::F32)?, Tensor::new(nine_ids(), &Device::Cpu)?.unsqueeze(0)?))
}

/// The weights of `odd`, (L, H, T, T).
fn weights() -> Result<Tensor> {
    let (model, input) = model()?;
    let args = ForwardArgs { output_attentions: true, ..Default::default() };
    Ok(Tensor::cat(&model.transformer.forward(&input, args)?.attentions, 0)?)
}

#[test]
fn every_format_holds_the_same_weights() -> Result {
    let folder = Folder::empty()?;
    let expected = weights()?;
    let ids = comma_separated(&nine_ids());
    let export = |name: &str, more: &[&str]| -> Result<String> {
        let path = folder.at(name);
        let args = ["attention", "--model", ODD, "--ids", &ids, "--export", &path];
        let run = gpt2(&[&args[..], more].concat())?.succeeded();
        assert_says("stderr", &run.stderr, &["wrote", &path]);
        Ok(path)
    };
    let all = Tensor::read_npy(export("a.npy", &[])?)?;
    assert_eq!(all.dims(), [2, 3, 9, 9]);
    assert_close("npy", &all, &expected, 1e-6);

    let square: Value = serde_json::from_slice(&std::fs::read(export("a.json", &["--layer", "1"])?)?)?;
    let rows: Vec<Vec<Vec<Vec<f32>>>> = serde_json::from_value(square["attention"].clone())?;
    let flat: Vec<f32> = rows.into_iter().flatten().flatten().flatten().collect();
    let square_weights = Tensor::from_vec(flat, (1, 3, 9, 9), &Device::Cpu)?;
    assert_close("square JSON", &square_weights, &expected.narrow(0, 1, 1)?, 1e-6);
    assert_eq!(list(&square["tokens"]).len(), 9);

    let lines = std::fs::read_to_string(export("a.jsonl", &["--head", "0,2"])?)?;
    assert_eq!(lines.lines().count(), 1 + 2 * 2 * 9);
    // The first line says how the others were made.
    for line in lines.lines().skip(1) {
        let line: Value = serde_json::from_str(line)?;
        let place = ["layer", "head", "position"].map(|name| index(&line[name]));
        let row: Vec<f32> = serde_json::from_value(line["weights"].clone())?;
        assert_eq!(row.len(), place[2] + 1);
        let expected = expected.get(place[0])?.get(place[1])?.get(place[2])?.narrow(0, 0, row.len())?;
        assert_close("a line", &Tensor::new(row, &Device::Cpu)?, &expected, 1e-6);
    }
    Ok(())
}

#[test]
fn a_name_without_a_known_format_is_refused_before_a_model_is_loaded() -> Result {
    for name in ["weights", "weights.txt", "weights.npz"] {
        gpt2(&["attention", "--model", "no-such-folder", "x", "--export", name])?
            .refused(1, &[name, ".safetensors, .npy, .jsonl or .json"]);
    }
    Ok(())
}

#[test]
fn pictures_are_of_one_head_or_of_all() -> Result {
    let folder = Folder::empty()?;
    let ids = comma_separated(&nine_ids());
    let draw = |name: &str, more: &[&str]| -> Result<Vec<u8>> {
        let args = ["attention", "--model", ODD, "--ids", &ids, "--picture", &folder.at(name)];
        gpt2(&[&args[..], more].concat())?.succeeded();
        Ok(std::fs::read(folder.file(name))?)
    };
    let size = |name: &str, more: &[&str]| -> Result<(u32, u32)> {
        let bytes = draw(name, more)?;
        assert_eq!(bytes[..8], *b"\x89PNG\r\n\x1a\n");
        let number = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Ok((number(16), number(20)))
    };
    let (all, layer, head) =
        (size("all.png", &[])?, size("layer.png", &["-l", "1"])?, size("head.png", &["-l", "1", "-H", "2"])?);
    assert!(all.1 > layer.1, "two rows of heads and one: {all:?} {layer:?}");
    assert!(head.0 > 9 * 40 && head.1 > 9 * 40, "9 cells of 40 pixels: {head:?}");
    for (name, begins) in [("head.svg", "<svg"), ("head.pdf", "%PDF-")] {
        let bytes = draw(name, &["-l", "1", "-H", "2"])?;
        assert!(String::from_utf8_lossy(&bytes[..400]).contains(begins), "{name}");
    }
    gpt2(&["attention", "x", "--picture", "head.gif"])?.refused(1, &["head.gif", ".svg"]);
    Ok(())
}

#[test]
fn effects_are_the_librarys_largest_first() -> Result {
    let (model, input) = model()?;
    let ids = comma_separated(&nine_ids());
    let changes = Interventions::new([Intervention::ZeroAblate(Head { layer: 0, head: 1 })], model.config())?;
    let difference = &Metric::difference(17, 3);
    let log_prob = &Metric::LogProb(17);
    let logit = &Metric::Logit(17);
    let zero = Ablation::Zero;
    let centered = Centering::Centered;
    for (flags, ablation, metric, logit, centering, hooks) in [
        (&["--effect"][..], zero, log_prob, logit, centered, None),
        (&["--effect=mean", "--raw"], Ablation::Mean, log_prob, logit, Centering::Raw, None),
        (&["--effect", "--against", "3"], zero, difference, difference, centered, None),
        (&["--effect", "--ablate", "0.1"], zero, log_prob, logit, centered, Some(&changes as &dyn Hooks)),
    ] {
        let args = ["attention", "--model", ODD, "--ids", &ids, "--target", "17", "--json"];
        let report = json(&[&args[..], flags].concat())?;
        let effects = ablation_effects(&model, &input, metric, ablation, hooks)?;
        let found = direct_attribution(&model, &input, logit, centering, hooks)?;
        let change = effects.change.to_vec2::<f64>()?;
        let direct = found.heads.to_vec2::<f64>()?;
        assert_near("value", &report["value"], effects.plain, 1e-5);
        assert_near("total", &report["direct"]["total"], found.total, 1e-4);
        assert_near("sum", &report["direct"]["sum"], found.total, 1e-4);
        let heads = list(&report["heads"]);
        assert_eq!(heads.len(), 6);
        for head in heads {
            let l = index(&head["layer"]);
            let h = index(&head["head"]);
            assert_near("change", &head["change"], change[l][h], 1e-5);
            assert_near("direct", &head["direct"], direct[l][h], 1e-5);
        }
        let size = |head: &Value| number(&head["change"]).abs();
        assert!(heads.is_sorted_by(|a, b| size(a) >= size(b)), "{heads:?}");
    }
    // Without a target, it takes the most probable next token.
    let next = json(&["forward", "--model", ODD, "--ids", &ids, "--json"])?["next"][0].clone();
    let report = json(&["attention", "--model", ODD, "--ids", &ids, "--effect", "--json"])?;
    assert_eq!(report["target"]["id"], next["id"]);
    let run = gpt2(&["attention", "O Romeo", "--effect", "--target", ","])?.succeeded();
    assert_says("stdout", &run.stdout, &["log-probability", "change", "direct", "token embedding", "sum"]);
    gpt2(&["attention", "O Romeo", "--effect", "--target", "Romeo"])?.refused(1, &["3 tokens", "\"R\""]);
    gpt2(&["attention", "O Romeo", "--effect", "--against", ","])?.refused(2, &["--target"]);
    gpt2(&["attention", "O Romeo", "--target", ","])?.refused(2, &["--effect"]);
    gpt2(&["attention", "--model", ODD, "--ids", "1,2", "--effect", "--target", "101"])?
        .refused(1, &["target 101", "vocab_size"]);
    Ok(())
}

#[test]
fn rollout_is_the_librarys() -> Result {
    let (model, input) = model()?;
    let args = ForwardArgs { output_attentions: true, ..Default::default() };
    let expected = attention_rollout(&model.transformer.forward(&input, args)?.attentions)?[1].get(0)?;
    let ids = comma_separated(&nine_ids());
    let report = json(&["attention", "--model", ODD, "--ids", &ids, "--rollout", "--json"])?;
    let rows: Vec<Vec<f32>> = serde_json::from_value(report["rollout"].clone())?;
    for (i, row) in rows.into_iter().enumerate() {
        assert_eq!(row.len(), i + 1);
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        assert_close("a row", &Tensor::new(row, &Device::Cpu)?, &expected.get(i)?.narrow(0, 0, i + 1)?, 1e-6);
    }
    let run = gpt2(&["attention", "O Romeo", "--rollout"])?.succeeded();
    assert_says("stdout", &run.stdout, &["attention rollout after 4 layers"]);
    Ok(())
}

#[test]
fn head_scores_are_the_librarys_and_follow_the_seed() -> Result {
    let texts = RepeatedTokens::random(None, (12, 3), 3, 101, 4);
    let scores = head_scores(&load("odd", DType::F32)?.transformer, &texts, None)?;
    let args = ["heads", "--model", ODD, "--length", "12", "--repeats", "3", "--batch", "3", "--no-bos"];
    let report = json(&[&args[..], &["--seed", "4", "--json"]].concat())?;
    let heads = list(&report["heads"]);
    assert_eq!(heads.len(), 6);
    for (i, head) in heads.iter().enumerate() {
        let expected = scores[i / 3][i % 3];
        for (name, score) in [
            ("previous_token", expected.previous_token),
            ("duplicate_token", expected.duplicate_token),
            ("induction", expected.induction),
        ] {
            assert_near(name, &head[name]["mean"], score.mean, 1e-6);
            assert_near(name, &head[name]["standard_error"], score.standard_error, 1e-6);
        }
        assert_near("prefix", &head["prefix_matching"], expected.induction.mean / 1.5, 1e-6);
    }
    assert_ne!(json(&[&args[..], &["--seed", "5", "--json"]].concat())?["heads"], report["heads"]);
    let run = gpt2(&["heads"])?.succeeded();
    assert_says("stdout", &run.stdout, &["previous-token heads, above 0.090: 0.", "induction"]);
    gpt2(&["heads", "--length", "129"])?.refused(1, &["517 tokens", "n_positions = 256"]);
    gpt2(&["heads", "--patch", "0.1", "--from-prompt", "x"])?
        .refused(1, &["--patch: is not for heads; it works in forward, attention, lens, patch,"]);
    gpt2(&["heads", "--mean-ablate", "0.1"])?.refused(1, &["--mean-of"]);
    Ok(())
}

#[test]
fn the_lens_is_the_librarys_and_ends_with_the_models_own() -> Result {
    let (model, input) = model()?;
    let ids = comma_separated(&nine_ids());
    let args = ["lens", "--model", ODD, "--ids", &ids, "--json"];
    let report = json(&[&args[..], &["--position", "4", "-k", "2"]].concat())?;
    let lens =
        candle_nn::ops::softmax(&logit_lens(&model, &input, 4, None)?.squeeze(1)?, 1)?.to_vec2::<f32>()?;
    let layers = list(&report["layers"]);
    assert_eq!(layers.len(), 3);
    for (layer, expected) in layers.iter().zip(&lens) {
        let first = index(&layer[0]["id"]);
        assert_near("p", &layer[0]["probability"], f64::from(expected[first]), 1e-5);
        assert!(expected.iter().all(|p| *p <= expected[first] * 1.0001), "not the most probable");
        assert_eq!(list(layer).len(), 2);
    }
    let last = &json(&args)?["layers"][2][0];
    let next = &json(&["forward", "--model", ODD, "--ids", &ids, "--json"])?["next"][0];
    assert_eq!(last["id"], next["id"]);
    let run = gpt2(&["lens", "To be, or not to"])?.succeeded();
    assert_says("stdout", &run.stdout, &["embeddings", "block 3"]);
    gpt2(&["lens", "To be", "--position", "40"])?.refused(1, &["--position 40", "positions 0 to"]);
    Ok(())
}

#[test]
fn a_page_may_hold_the_largest_weights_alone() -> Result {
    let folder = Folder::empty()?;
    let text = "To be, or not to be, that is the question: ".repeat(15);
    let page = |name: &str, more: &[&str]| -> Result<u64> {
        gpt2(&[&["attention", &text, "--html", &folder.at(name)][..], more].concat())?.succeeded();
        Ok(std::fs::metadata(folder.file(name))?.len())
    };
    let whole = page("whole.html", &[])?;
    let few = page("few.html", &["--top", "3"])?;
    assert!(few < whole / 2, "{few} of {whole} bytes");
    assert_says("the page", &std::fs::read_to_string(folder.file("few.html"))?, &["\"top\":3"]);
    gpt2(&["attention", "x", "--top", "3"])?.refused(2, &["--html", "--open"]);
    assert_eq!(command(&["attention", "x", "--top", "0", "--open"]).output()?.status.code(), Some(2));
    Ok(())
}

/// The demo model has heads that a teacher can point at.
#[test]
fn the_demo_model_has_a_previous_token_head_and_an_induction_head() -> Result {
    let report = json(&["heads", "--json"])?;
    let heads = list(&report["heads"]);
    let best = |kind: &str| heads.iter().filter_map(|head| head[kind]["mean"].as_f64()).fold(0.0, f64::max);
    assert!(best("previous_token") >= 0.6, "{}", best("previous_token"));
    assert!(best("induction") >= 0.4, "{}", best("induction"));
    // Uniform attention over i + 1 keys: positions 1 to 100, and 26 to 100, whose token has come once, twice or three times.
    let chance = |first: u32, keys: &dyn Fn(u32) -> u32| {
        (first..101).map(|i| f64::from(keys(i)) / f64::from(i + 1)).sum::<f64>() / f64::from(101 - first)
    };
    assert_near("chance", &report["chance"]["previous_token"], chance(1, &|_| 1), 1e-6);
    assert_near("chance", &report["chance"]["induction"], chance(26, &|i| (i - 1) / 25), 1e-6);
    Ok(())
}

#[test]
fn heads_that_do_nothing_are_said_to_do_nothing() -> Result {
    let run = gpt2(&["heads", "--model", ODD, "--length", "15"])?.succeeded();
    assert_says("heads", &run.stdout, &["chance", "no induction head: none is above 0."]);
    Ok(())
}
