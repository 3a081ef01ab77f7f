//! Patching, attribution and head scores, compared in f64 with TransformerLens (tests/data/circuits).

use crate::common::{Result, data, relative_error, test_device};
use crate::models::load;
use candle_core::{DType, Tensor};
use gpt2_model::analysis::{
    Centering, Contrast, Metric, Parts, RepeatedTokens, activation_patching, attribution_patching,
    direct_attribution, head_scores,
};
use gpt2_model::hooks::{Head, Hooks, Intervention, Interventions, Patch, Place, Point, Recorder, on};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel};
use std::collections::HashMap;

/// Both sides compute in f64; the largest error that we have seen is 3e-15 of the largest value.
const TOLERANCE: f64 = 1e-13;

fn reference(file: &str) -> Result<HashMap<String, Tensor>> {
    Ok(candle_core::safetensors::load(data("circuits").join(file), &test_device())?)
}

fn model(dtype: DType) -> Result<Gpt2LMHeadModel> {
    load("circuits/model", dtype)
}

#[track_caller]
fn assert_near(what: &str, got: &Tensor, expected: &Tensor, tolerance: f64) -> Result {
    assert_eq!(got.dims(), expected.dims(), "{what}");
    let error = relative_error(got, expected)?;
    assert!(error < tolerance, "{what}: {error:e}");
    Ok(())
}

fn token(data: &HashMap<String, Tensor>, name: &str) -> Result<u32> {
    Ok(u32::try_from(data[&format!("ids/{name}")].get(0)?.to_scalar::<i64>()?)?)
}

fn difference(data: &HashMap<String, Tensor>) -> Result<Metric> {
    Ok(Metric::difference(token(data, "answer")?, token(data, "against")?))
}

/// The value at a point of a run.
fn value(model: &Gpt2LMHeadModel, ids: &Tensor, point: Point) -> Result<Tensor> {
    let recorder = Recorder::new([point]);
    model.forward(ids, ForwardArgs { hooks: Some(&recorder), ..Default::default() })?;
    Ok(recorder.value(point)?)
}

const PARTS: [(Parts, &str); 5] = [
    (Parts::Heads, "z"),
    (Parts::HeadsByPosition, "z by position"),
    (Parts::Streams, "resid_pre"),
    (Parts::AttentionByPosition, "attn_out"),
    (Parts::MlpsByPosition, "mlp_out"),
];

#[test]
fn patching_and_its_estimates_are_those_of_transformer_lens() -> Result {
    let expected = reference("patching.safetensors")?;
    let metric = difference(&expected)?;
    // In f32, logits of up to 20 come back within 1e-5; a sum of products of gradients loses a little more.
    for (dtype, tolerance) in [(DType::F64, TOLERANCE), (DType::F32, 5e-5)] {
        let model = model(dtype)?;
        let clean = &expected["ids/clean"];
        let corrupt = &expected["ids/corrupt"];
        let contrast = Contrast { clean, corrupt, metric: &metric, hooks: None };
        let mut calls = vec![];
        let parts = PARTS.map(|(parts, _)| parts);
        let patched = activation_patching(&model, &contrast, &parts, &mut |done, total| {
            calls.push((done, total));
            Ok(())
        })?;
        let scalar = |name: &str| expected[name].to_scalar::<f64>();
        assert!((patched.clean - scalar("metric/clean")?).abs() < 100.0 * tolerance);
        assert!((patched.corrupt - scalar("metric/corrupt")?).abs() < 100.0 * tolerance);
        for ((_, name), map) in PARTS.iter().zip(&patched.maps) {
            assert_near(name, map, &expected[&format!("patch/{name}")], tolerance)?;
        }
        let total = 9 + 9 * 12 + 3 * 36;
        assert_eq!(calls.last(), Some(&(total, total)));

        let estimate = attribution_patching(&model, &contrast)?;
        for (name, map) in [
            ("z", &estimate.heads),
            ("resid_pre", &estimate.streams),
            ("attn_out", &estimate.attention),
            ("mlp_out", &estimate.mlps),
        ] {
            assert_near(name, map, &expected[&format!("attribution/{name}")], tolerance)?;
        }
    }
    Ok(())
}

/// A layer's attention or MLP at all positions: the corrupted run with that point's whole value from the clean one.
#[test]
fn a_whole_layer_is_patched_at_all_positions_at_once() -> Result {
    let model = model(DType::F64)?;
    let expected = reference("patching.safetensors")?;
    let clean = &expected["ids/clean"];
    let corrupt = &expected["ids/corrupt"];
    let metric = difference(&expected)?;
    let contrast = Contrast { clean, corrupt, metric: &metric, hooks: None };
    let parts = [Parts::Attention, Parts::Mlps];
    let maps = activation_patching(&model, &contrast, &parts, &mut |_, _| Ok(()))?.maps;
    let points: [fn(usize) -> Point; 2] = [Point::AttnOut, Point::MlpOut];
    for (map, point) in maps.iter().zip(points) {
        for (layer, found) in map.to_vec1::<f64>()?.into_iter().enumerate() {
            let of_clean = value(&model, clean, point(layer))?;
            let hook = on([point(layer)], |_, _| Ok(Some(of_clean.clone())));
            let args = ForwardArgs { hooks: Some(&hook), last_logits_only: true, ..Default::default() };
            let logits = model.forward(corrupt, args)?.logits.flatten_all()?;
            let logit = |name: &str| -> Result<f64> {
                Ok(logits.get(token(&expected, name)? as usize)?.to_scalar::<f64>()?)
            };
            let replaced = logit("answer")? - logit("against")?;
            assert!((found - replaced).abs() < 1e-9, "{}: {found} and {replaced}", point(layer));
        }
    }
    assert_eq!((maps[0].dims(), maps[1].dims()), (&[3][..], &[3][..]));
    Ok(())
}

/// Hooks act in both runs, so that a patch under an ablation is that of the ablated model.
#[test]
fn patching_under_interventions_is_that_of_the_changed_model() -> Result {
    let model = model(DType::F64)?;
    let expected = reference("patching.safetensors")?;
    let changes = Interventions::new(
        [
            Intervention::ZeroAblate(Head { layer: 1, head: 0 }),
            Intervention::Temperature(Head { layer: 2, head: 1 }, 0.5),
        ],
        model.config(),
    )?;
    let mut changed = model.clone();
    let attn = &mut changed.transformer.h[1].attn;
    let w = attn.c_proj.weight()?;
    let b = attn.c_proj.bias().ok_or("a bias")?.clone();
    let rows = Tensor::cat(&[w.narrow(0, 0, 8)?.zeros_like()?, w.narrow(0, 8, 16)?], 0)?;
    attn.c_proj = gpt2_model::Conv1D::new(rows, b)?;
    let attn = &mut changed.transformer.h[2].attn;
    let w = attn.c_attn.weight()?;
    let b = attn.c_attn.bias().ok_or("a bias")?.clone();
    let doubled: Vec<f64> = (0..72).map(|i| if (8..16).contains(&i) { 2.0 } else { 1.0 }).collect();
    let doubled = Tensor::new(doubled, &test_device())?;
    attn.c_attn = gpt2_model::Conv1D::new(w.broadcast_mul(&doubled)?, (b * doubled)?)?;

    let clean = &expected["ids/clean"];
    let corrupt = &expected["ids/corrupt"];
    let run = |model: &Gpt2LMHeadModel, hooks: Option<&dyn Hooks>| -> Result<(Vec<Tensor>, Tensor)> {
        let contrast = Contrast { clean, corrupt, metric: &difference(&expected)?, hooks };
        let maps =
            activation_patching(model, &contrast, &[Parts::Streams, Parts::MlpsByPosition], &mut |_, _| {
                Ok(())
            })?
            .maps;
        Ok((maps, attribution_patching(model, &contrast)?.streams))
    };
    let ((hooked, estimate), (maps, of_changed)) = (run(&model, Some(&changes))?, run(&changed, None)?);
    for (hooked, map) in hooked.iter().zip(&maps) {
        assert_near("patched", hooked, map, TOLERANCE)?;
    }
    assert_near("estimated", &estimate, &of_changed, TOLERANCE)?;
    assert!(relative_error(&maps[0], &expected["patch/resid_pre"])? > 1e-2, "the changes change nothing");
    Ok(())
}

#[test]
fn direct_attribution_is_that_of_transformer_lens_and_sums_to_the_logit() -> Result {
    let model = model(DType::F64)?;
    let expected = reference("direct.safetensors")?;
    for (family, centering) in [("centred", Centering::Centered), ("raw", Centering::Raw)] {
        for (target, metric) in
            [("answer", Metric::Logit(token(&expected, "answer")?)), ("difference", difference(&expected)?)]
        {
            let found = direct_attribution(&model, &expected["ids/clean"], &metric, centering, None)?;
            let of = |name: &str| &expected[&format!("{family}/{target}/{name}")];
            for (name, got) in [
                ("heads", &found.heads),
                ("attention_biases", &found.attention_biases),
                ("mlps", &found.mlps),
            ] {
                assert_near(&format!("{family} {target} {name}"), got, of(name), TOLERANCE)?;
            }
            for (name, got) in [
                ("embed", found.embed),
                ("pos_embed", found.pos_embed),
                ("final_bias", found.final_bias),
                ("total", found.total),
            ] {
                let expected = of(name).to_scalar::<f64>()?;
                assert!(
                    (got - expected).abs() < TOLERANCE,
                    "{family} {target} {name}: {got}, not {expected}"
                );
            }
            assert!((found.sum()? - found.total).abs() < TOLERANCE);
        }
    }
    // What interventions write into the stream is a share of its own.
    let vector: Vec<f64> = (0..24u8).map(|i| f64::from(i % 5) - 2.0).collect();
    let from = value(&model, &expected["ids/clean"].zeros_like()?, Point::ResidPre(2))?;
    let changes = Interventions::new(
        [
            Intervention::Add { layer: 1, position: None, vector: Tensor::new(vector, &test_device())? },
            Intervention::Patch(Patch { place: Place::Stream(2), position: Some(11), from }),
        ],
        model.config(),
    )?;
    let hooks: Option<&dyn Hooks> = Some(&changes);
    let found = direct_attribution(
        &model,
        &expected["ids/clean"],
        &difference(&expected)?,
        Centering::Centered,
        hooks,
    )?;
    assert!(found.interventions.abs() > 0.1 && (found.sum()? - found.total).abs() < TOLERANCE, "{found:?}");
    let refused =
        direct_attribution(&model, &expected["ids/clean"], &Metric::LogProb(1), Centering::Raw, None);
    assert!(refused.expect_err("not linear").to_string().contains("log-probability"));
    Ok(())
}

#[test]
fn head_scores_follow_olsson_and_have_the_rows_standard_error() -> Result {
    let model = model(DType::F64)?;
    let expected = reference("heads.safetensors")?;
    let rows: Vec<Vec<i64>> = expected["ids"].to_vec2()?;
    let rows = rows.into_iter().map(|row| row.into_iter().map(u32::try_from).collect());
    let texts =
        RepeatedTokens { rows: rows.collect::<std::result::Result<_, _>>()?, length: 25, begins: true };
    let scores = head_scores(&model.transformer, &texts, None)?;
    let per_query = texts.copies_per_query();
    assert!((per_query - 2.0).abs() < 1e-12);
    for (layer, scores) in scores.iter().enumerate() {
        for (head, scores) in scores.iter().enumerate() {
            for (name, got, factor) in [
                ("previous", scores.previous_token, 1.0),
                ("duplicate/sum over copies", scores.duplicate_token, 1.0),
                ("prefix/sum over copies", scores.induction, 1.0),
                ("prefix/mean of entries", scores.induction, per_query),
            ] {
                let rows = expected[name]
                    .narrow(1, layer, 1)?
                    .narrow(2, head, 1)?
                    .flatten_all()?
                    .to_vec1::<f64>()?;
                let mean = rows.iter().sum::<f64>() / 6.0;
                assert!((got.mean / factor - mean).abs() < TOLERANCE, "{layer}.{head} {name}");
                let deviation = (rows.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 5.0).sqrt();
                let error = deviation / 6f64.sqrt();
                assert!((got.standard_error / factor - error).abs() < TOLERANCE, "{layer}.{head} {name}");
            }
        }
    }
    Ok(())
}

#[test]
fn texts_that_do_not_fit_and_tokens_that_are_not_there_are_refused() -> Result {
    let model = model(DType::F32)?;
    let expected = reference("patching.safetensors")?;
    let clean = &expected["ids/clean"];
    let shorter = expected["ids/corrupt"].narrow(1, 0, 11)?;
    let metric = difference(&expected)?;
    let contrast = Contrast { clean, corrupt: &shorter, metric: &metric, hooks: None };
    let error = attribution_patching(&model, &contrast).expect_err("other lengths").to_string();
    assert!(error.contains("[1, 12]") && error.contains("[1, 11]"), "{error}");
    let metric = Metric::difference(1, 53);
    let contrast = Contrast { clean, corrupt: &expected["ids/corrupt"], metric: &metric, hooks: None };
    let error =
        activation_patching(&model, &contrast, &[Parts::Heads], &mut |_, _| Ok(())).expect_err("53 tokens");
    assert!(error.to_string().contains("target 53"), "{error}");
    Ok(())
}
