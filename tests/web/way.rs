//! The way of one token is what the model computes, and the lessons say what is so.

use crate::common::Result;
use candle_core::{DType, Device, Module, Tensor};
use gpt2_loader::{Checkpoint, Source};
use gpt2_model::hooks::{Point, Recorder};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel};
use gpt2_web::{DEMO, DrawSettings, FollowedToken, Live, PageRequest, STAGES, Stage};
use serde_json::Value;

const TEXT: &str = "O Romeo, Romeo! wherefore art thou Romeo?";

fn demo() -> Result<Gpt2LMHeadModel> {
    Ok(Checkpoint::open(&Source::Embedded(DEMO).open()?)?.load_model(DType::F32, &Device::Cpu)?)
}

fn way(along: FollowedToken, changes: &[&str]) -> Result<Vec<Stage>> {
    let changes = changes.iter().map(|&change| change.to_owned()).collect();
    // The probabilities of all tokens, not of the 40 that the next one is drawn from.
    let draw = DrawSettings { top_k: None, ..DrawSettings::default() };
    let look =
        PageRequest { text: TEXT.to_owned(), changes, along: Some(along), draw, ..PageRequest::default() };
    Ok(Live::demo()?.look(&look)?.way.ok_or("a way")?.stages)
}

fn stage<'a>(way: &'a [Stage], name: &str) -> Result<&'a Stage> {
    Ok(way.iter().find(|stage| stage.name == name).ok_or_else(|| name.to_owned())?)
}

/// Whether two lists agree to the last digits of f32.
fn close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-4 * b.abs().max(1.0))
}

/// Each stage follows from the ones before by the formula that the page shows, in the layer's own weights.
#[test]
fn each_stage_follows_from_the_ones_before() -> Result {
    let model = demo()?;
    for (layer, head, token) in [(0, 3, 5), (1, 1, 13), (3, 0, 0)] {
        let way = way(FollowedToken { layer, head, token: Some(token) }, &[])?;
        assert_eq!(way.iter().map(|stage| stage.name).collect::<Vec<_>>(), STAGES);
        let at = |name: &str| -> Result<Vec<f32>> { Ok(stage(&way, name)?.values.clone()) };
        let row =
            |values: Vec<f32>| -> Result<Tensor> { Ok(Tensor::new(values, &Device::Cpu)?.unsqueeze(0)?) };
        let list = |x: &Tensor| x.flatten_all()?.to_vec1::<f32>();
        let sum = |a: &str, b: &str| -> Result<Vec<f32>> {
            Ok(at(a)?.iter().zip(at(b)?).map(|(a, b)| a + b).collect())
        };
        let block = &model.transformer.h[layer];
        if layer == 0 {
            assert!(close(&at("resid_pre")?, &sum("wte", "wpe")?));
        }
        assert!(close(&at("ln_1")?, &list(&block.ln_1.forward(&row(at("resid_pre")?)?)?)?));
        let qkv = list(&block.attn.c_attn.forward(&row(at("ln_1")?)?)?)?;
        for name in ["q", "k", "v"] {
            let columns = stage(&way, name)?.columns.clone().ok_or("columns")?;
            assert!(close(&at(name)?, &qkv[columns.clone()]), "{name}: {columns:?}");
        }
        let scores = at("scores")?;
        let pattern = at("pattern")?;
        assert_eq!((scores.len(), pattern.len()), (token + 1, token + 1), "the triangle");
        let product: f32 = at("q")?.iter().zip(at("k")?).map(|(q, k)| q * k).sum();
        assert!((scores[token] - product / 32f32.sqrt()).abs() < 1e-4, "of the token and itself");
        let total: f32 = scores.iter().map(|score| score.exp()).sum();
        assert!(close(&pattern, &scores.iter().map(|score| score.exp() / total).collect::<Vec<_>>()));
        let own = stage(&way, "merged")?.own.clone().ok_or("a part")?;
        assert_eq!(at("merged")?[own.clone()], at("z")?);
        let mut alone = vec![0.0; at("merged")?.len()];
        alone[own].copy_from_slice(&at("z")?);
        let [of_head, of_none] = [alone.clone(), vec![0.0; alone.len()]]
            .map(|merged| -> Result<Vec<f32>> { Ok(list(&block.attn.c_proj.forward(&row(merged)?)?)?) });
        let share: Vec<f32> = of_head?.iter().zip(of_none?).map(|(a, b)| a - b).collect();
        assert!(close(&at("result")?, &share));
        assert!(close(&at("attn_out")?, &list(&block.attn.c_proj.forward(&row(at("merged")?)?)?)?));
        assert!(close(&at("resid_mid")?, &sum("resid_pre", "attn_out")?));
        assert!(close(&at("ln_2")?, &list(&block.ln_2.forward(&row(at("resid_mid")?)?)?)?));
        assert!(close(&at("mlp_out")?, &list(&block.mlp.c_proj.forward(&row(at("mlp_post")?)?)?)?));
        assert!(close(&at("resid_post")?, &sum("resid_mid", "mlp_out")?));
        let logits = list(&model.lm_head.forward(&row(at("ln_f")?)?)?)?;
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert!((at("logits")?[0] - largest).abs() < 1e-4);
        let total: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        assert!((at("probabilities")?[0] - total.recip()).abs() < 1e-5);
    }
    Ok(())
}

/// The context is the mean of the values by the weights: those of all tokens, as the model's own hooks see them.
#[test]
fn the_context_is_the_mean_of_the_values() -> Result {
    let (layer, head, token) = (1, 2, 11);
    let way = way(FollowedToken { layer, head, token: Some(token) }, &["ablate 0.3"])?;
    let recorder = Recorder::new([Point::V(layer)]);
    let ids = Live::demo()?.look(&PageRequest { text: TEXT.to_owned(), ..PageRequest::default() })?.ids;
    let changes = gpt2_model::hooks::Interventions::new(["ablate 0.3".parse()?], demo()?.config())?;
    let hooks = gpt2_model::hooks::Chain(&[&changes, &recorder]);
    let args = ForwardArgs { hooks: Some(&hooks), ..ForwardArgs::default() };
    demo()?.transform(&Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?, args)?;
    let v = recorder.value(Point::V(layer))?.squeeze(0)?.narrow(1, head, 1)?.squeeze(1)?.to_vec2::<f32>()?;
    let mut mean = vec![0.0; v[0].len()];
    for (weight, row) in stage(&way, "pattern")?.values.iter().zip(&v) {
        for (sum, x) in mean.iter_mut().zip(row) {
            *sum += weight * x;
        }
    }
    assert!(close(&stage(&way, "z")?.values, &mean));
    Ok(())
}

/// A link that is cut has no score, which is not the triangle's doing.
#[test]
fn a_cut_link_has_no_score_and_no_weight() -> Result {
    let way = way(FollowedToken { layer: 2, head: 1, token: Some(3) }, &["block 3:1"])?;
    let scores = &stage(&way, "scores")?.values;
    let pattern = &stage(&way, "pattern")?.values;
    assert_eq!(scores.iter().map(|score| score.is_finite()).collect::<Vec<_>>(), [true, false, true, true]);
    assert_eq!((pattern[1].to_bits(), pattern.len()), (0, 4));
    let look =
        PageRequest { text: "O Romeo".into(), changes: vec!["block 3:1".into()], ..PageRequest::default() };
    let refused = Live::demo()?.look(&look).err().map(|error| error.to_string());
    assert_eq!(
        refused.as_deref(),
        Some("block 3:1: the text has no token 3: undo this change, or type more")
    );
    Ok(())
}

/// A text that got shorter has its last token followed.
#[test]
fn the_last_token_stands_for_those_that_are_not_there() -> Result {
    for (token, expected) in [(None, 13), (Some(13), 13), (Some(99), 13), (Some(2), 2)] {
        let look = PageRequest {
            text: TEXT.to_owned(),
            along: Some(FollowedToken { layer: 1, head: 1, token }),
            ..PageRequest::default()
        };
        assert_eq!(Live::demo()?.look(&look)?.way.ok_or("a way")?.token, expected);
    }
    Ok(())
}

#[test]
fn a_way_that_the_model_does_not_have_is_refused() -> Result {
    let live = Live::demo()?;
    for (along, says) in [
        (FollowedToken { layer: 4, head: 0, token: None }, "there is no layer 4: they are 0 to 3"),
        (FollowedToken { layer: 0, head: 4, token: None }, "there is no head 4: they are 0 to 3"),
    ] {
        let look = PageRequest { text: "O Romeo".into(), along: Some(along), ..PageRequest::default() };
        assert_eq!(live.look(&look).err().map(|error| error.to_string()).as_deref(), Some(says));
    }
    Ok(())
}

/// The texts of the page, by language.
fn texts(language: &str) -> Result<Value> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page/texts");
    Ok(serde_json::from_str(&std::fs::read_to_string(folder.join(format!("{language}.json")))?)?)
}

/// The structure of a text without its words: names, kinds, and the number of parts.
fn outline(value: &Value) -> Value {
    match value {
        Value::String(_) => Value::Null,
        Value::Array(all) => all.iter().map(outline).collect(),
        Value::Object(all) => all
            .iter()
            .map(|(name, of)| {
                (name.clone(), if name == "state" || name == "goal" { of.clone() } else { outline(of) })
            })
            .collect(),
        other => other.clone(),
    }
}

/// Words in capitals that stand for values, and one that is a word.
const VALUES: [&str; 11] =
    ["TOKEN", "HEAD", "LAYER", "COUNT", "LENGTH", "MEAN", "LARGEST", "FROM", "TO", "CHANGES", "MLP"];

/// Every language has the same lessons, set up in the same way, and a sentence for every stage.
#[test]
fn the_languages_say_the_same() -> Result {
    let english = texts("en")?;
    let german = texts("de")?;
    assert_eq!(outline(&english), outline(&german));
    assert_eq!(english["lessons"].as_array().map(Vec::len), Some(10));
    let mut stages: Vec<_> = english["way"]["stages"].as_object().ok_or("stages")?.keys().collect();
    let mut expected = STAGES.to_vec();
    stages.sort();
    expected.sort_unstable();
    assert_eq!(stages, expected);
    let capitals = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_ascii_uppercase());
        let mut words: Vec<_> = words.filter(|word| word.len() > 1).map(str::to_owned).collect();
        words.sort();
        words
    };
    for (key, text) in english["way"].as_object().ok_or("texts")? {
        let Some(text) = text.as_str() else { continue };
        let words = capitals(text);
        assert!(words.iter().all(|word| VALUES.contains(&word.as_str())), "{key}: {words:?}");
        assert_eq!(capitals(german["way"][key].as_str().ok_or("a text")?), words, "{key}");
    }
    for of in [&english, &german] {
        for (key, names) in [
            ("of", &["TOKEN", "HEAD", "LAYER"][..]),
            ("facts", &["COUNT", "LENGTH", "MEAN", "LARGEST"]),
            ("hidden", &["COUNT"]),
        ] {
            let text = of["way"][key].as_str().ok_or("a text")?;
            assert!(names.iter().all(|name| text.contains(name)), "{text}");
        }
    }
    Ok(())
}

/// The look that a lesson asks for, and its state; with `changes` in place of the lesson's own, if given.
fn lesson(number: usize, changes: Option<&[&str]>) -> Result<(PageRequest, Value)> {
    let texts = texts("en")?;
    let state = &texts["lessons"][number - 1]["state"];
    let given = state["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let given: Vec<_> = given.iter().filter_map(Value::as_str).collect();
    let look = PageRequest {
        text: state["text"].as_str().ok_or("a text")?.to_owned(),
        changes: changes.unwrap_or(&given).iter().map(|&change| change.to_owned()).collect(),
        ..PageRequest::default()
    };
    Ok((look, state.clone()))
}

/// The row of a head's map for a token.
fn row(look: &PageRequest, (layer, head): (usize, usize), token: usize) -> Result<Vec<f32>> {
    let look = PageRequest { along: Some(FollowedToken { layer, head, token: Some(token) }), ..look.clone() };
    let way = Live::demo()?.look(&look)?.way.ok_or("a way")?.stages;
    Ok(stage(&way, "pattern")?.values.clone())
}

fn entropy(row: &[f32]) -> f32 {
    -row.iter().filter(|&&w| w > 0.0).map(|w| w * w.ln()).sum::<f32>()
}

/// The tokens that the model expects after the last one, with their probabilities.
fn expects(look: &PageRequest) -> Result<Vec<(String, f64)>> {
    Ok(Live::demo()?.look(look)?.next.ok_or("a next token")?.from)
}

/// Each lesson's claims, with the numbers that it names.
#[test]
fn the_lessons_say_what_is_so() -> Result {
    let live = Live::demo()?;
    // 1: the vocabulary, and words of two tokens.
    assert_eq!(demo()?.config().vocab_size, 1024);
    let count = |text: &str| -> Result<usize> {
        Ok(live.look(&PageRequest { text: text.to_owned(), ..PageRequest::default() })?.ids.len())
    };
    assert_eq!((count(" wherefore")?, count(" Romeo")?), (2, 2));
    assert!(count(" xylophone")? > 4, "{}", count(" xylophone")?);
    // 3: rows stay when the text goes on.
    let (look, _) = lesson(3, None)?;
    let longer = PageRequest { text: format!("{} that", look.text), ..look.clone() };
    let a = row(&look, (0, 2), 6)?;
    let b = row(&longer, (0, 2), 6)?;
    assert!(close(&a, &b));
    // 4: without the division, every row is at least as concentrated, and in the mean by far.
    let (undivided, _) = lesson(4, None)?;
    let (divided, _) = lesson(4, Some(&[]))?;
    let mut means = [0.0; 2];
    for token in 1..7 {
        for (mean, look) in means.iter_mut().zip([&divided, &undivided]) {
            *mean += entropy(&row(look, (0, 2), token)?) / 6.0;
        }
    }
    assert!(means[1] < 0.6 * means[0], "{means:?}");
    assert!((32f64.sqrt().recip() - 0.1768).abs() < 5e-5);
    // 6: head 0.3 looks back one token.
    let (look, _) = lesson(6, None)?;
    for token in 1..14 {
        assert!(row(&look, (0, 3), token)?[token - 1] > 0.95, "token {token}");
    }
    // 7: induction.
    let (look, _) = lesson(7, None)?;
    assert!(row(&look, (1, 2), 13)?[5] > 0.95);
    let (token, p) = expects(&look)?.swap_remove(0);
    assert_eq!(token, "·l");
    assert!((0.6..0.7).contains(&p), "{p}");
    let king = PageRequest { text: look.text.replace("lamp", "king"), ..look };
    let of_king = live.look(&PageRequest { text: " king".into(), ..PageRequest::default() })?.ids;
    let likely = live.look(&king)?.next.ok_or("a token")?.from;
    let first = live.look(&PageRequest { ids: vec![of_king[0]], ..PageRequest::default() })?.text;
    assert!(likely[0].0.trim_start_matches('·') == first.trim(), "{likely:?} {first}");
    // 8: it needs head 0.3, and not 3.2.
    let (without, _) = lesson(8, None)?;
    assert!(expects(&without)?.iter().take(5).all(|(token, _)| token != "·l"));
    let (other, _) = lesson(8, Some(&["ablate 3.2"]))?;
    let likely = expects(&other)?;
    assert!(likely[0].0 == "·l" && likely[0].1 > 5.0 * likely[1].1, "{likely:?}");
    // 9: the stream grows from block to block.
    let (look, _) = lesson(9, None)?;
    let token = live.look(&look)?.ids.len() - 1;
    let mut lengths = vec![];
    for layer in 0..4 {
        let look =
            PageRequest { along: Some(FollowedToken { layer, head: 3, token: Some(token) }), ..look.clone() };
        let way = live.look(&look)?.way.ok_or("a way")?.stages;
        lengths.push(stage(&way, "resid_post")?.values.iter().map(|x| x * x).sum::<f32>().sqrt());
        let neurons = &stage(&way, "mlp_post")?.values;
        let largest = neurons.iter().copied().fold(0.0, f32::max);
        let large = neurons.iter().filter(|x| x.abs() > 0.5 * largest).count();
        assert!(10 * large < neurons.len(), "layer {layer}: {large} of {}", neurons.len());
    }
    assert!(lengths.is_sorted(), "{lengths:?}");
    // 10: at temperature 0, one token is left.
    let (mut look, _) = lesson(10, None)?;
    look.draw.temperature = 0.0;
    assert_eq!(expects(&look)?.len(), 1);
    Ok(())
}
