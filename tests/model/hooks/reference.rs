//! Every hook point and intervention, compared in f64 with TransformerLens 2.18 and 4.3 (tests/data/circuits).

use super::hooked;
use crate::common::{Result, assert_close, of_transformer_lens as reference, relative_error};
use crate::models::load;
use candle_core::{DType, Tensor};
use gpt2_model::hooks::{Head, Hooks, Intervention, Interventions, Patch, Place, Point, Recorder};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel, MeanOver};
use std::collections::HashMap;

/// Both sides compute in f64; the largest error that we have seen is 2e-15 of the largest value.
const TOLERANCE: f64 = 1e-13;

type Tensors = HashMap<String, Tensor>;

fn model() -> Result<Gpt2LMHeadModel> {
    load("circuits/model", DType::F64)
}

/// The reference writes -1e30 for the -inf of a hidden key.
fn finite(scores: &Tensor) -> Result<Tensor> {
    Ok(scores.maximum(-1e30)?)
}

#[test]
fn every_point_has_transformer_lens_value_in_both_spellings() -> Result {
    let model = model()?;
    let expected = reference("hooks.safetensors")?;
    let recorder = Recorder::new(Point::of_model(3));
    model.forward(&expected["ids/clean"], hooked(&recorder))?;
    let mut seen = HashMap::new();
    for (key, expected) in &expected {
        let Some((version, name)) = key.split_once('/').filter(|(version, _)| ["2x", "4x"].contains(version))
        else {
            continue;
        };
        // In 2.x, without folded layer norms, this is the output after the weight and the bias.
        let name = if version == "2x" { &name.replace("hook_normalized", "hook_out") } else { name };
        let Ok(point) = name.parse::<Point>() else {
            // Inputs that are another point's value under a second name, and ids.
            let copies = [
                "ln1.hook_in",
                "pos_embed.hook_in",
                "q.hook_in",
                "k.hook_in",
                "v.hook_in",
                "embed.hook_in",
                "ln_final.hook_in",
            ];
            assert!(version == "4x" && copies.iter().any(|copy| name.ends_with(copy)), "{key}");
            continue;
        };
        let mut got = recorder.value(point)?;
        if matches!(point, Point::Scores(_)) {
            got = finite(&got)?;
        }
        if matches!(point, Point::PosEmbed) {
            got = got.broadcast_as(expected.shape())?.contiguous()?;
        }
        assert_close(key, &got, expected, TOLERANCE);
        *seen.entry(point).or_insert(0) += 1;
    }
    let missing: Vec<_> = Point::of_model(3).filter(|point| !seen.contains_key(point)).collect();
    assert!(missing.is_empty(), "no reference for {missing:?}");
    assert_close("logits", &recorder.value(Point::Logits)?, &expected["logits"], TOLERANCE);
    Ok(())
}

/// The value at `point` in a run over `ids`.
fn value(model: &Gpt2LMHeadModel, ids: &Tensor, point: Point) -> Result<Tensor> {
    let recorder = Recorder::new([point]);
    model.forward(ids, hooked(&recorder))?;
    Ok(recorder.value(point)?)
}

/// `1.2@5` or `1`, as a place and a position.
fn place(kind: &str, text: &str) -> Result<(Place, Option<usize>)> {
    let (place, position) = text.split_once('@').map_or((text, None), |(place, at)| (place, Some(at)));
    let layer = || place.parse::<usize>();
    let place = match kind {
        "z" => Place::Head(place.parse()?),
        "resid_pre" => Place::Stream(layer()?),
        "attn_out" => Place::Attention(layer()?),
        "mlp_out" => Place::Mlp(layer()?),
        other => return Err(format!("another kind of place: {other}").into()),
    };
    Ok((place, position.map(str::parse).transpose()?))
}

/// The intervention that a key of the reference names, with its means and other runs filled in; `None` if it names data.
fn intervention(model: &Gpt2LMHeadModel, expected: &Tensors, key: &str) -> Result<Option<Interventions>> {
    let words: Vec<&str> = key.split(' ').collect();
    let texts = |over: MeanOver| -> Result<Vec<Tensor>> {
        Ok(match over {
            MeanOver::EachPosition => {
                let rows = &expected["ids/others by position"];
                (0..5).map(|i| rows.narrow(0, i, 1)).collect::<candle_core::Result<_>>()?
            }
            MeanOver::AllPositions => (0..5).map(|i| expected[&format!("ids/others.{i}")].clone()).collect(),
        })
    };
    let mean = |head: Head, over| -> Result<Interventions> {
        let changes = Interventions::new([Intervention::MeanAblate(head)], model.config())?;
        Ok(changes.with_means_over(model, &texts(over)?, over)?)
    };
    let one = match words[..] {
        ["zero", "z", head] => Intervention::ZeroAblate(head.parse()?),
        ["patch", kind, at] => {
            let (place, position) = place(kind, at)?;
            let from = value(model, &expected["ids/corrupt"], place.point())?;
            Intervention::Patch(Patch { place, position, from })
        }
        ["mean", "z", head] if !head.contains('@') => {
            return Ok(Some(mean(head.parse()?, MeanOver::AllPositions)?));
        }
        ["mean", "by", "position", "z", head] => {
            return Ok(Some(mean(head.parse()?, MeanOver::EachPosition)?));
        }
        ["steer", kind, at, factor] => {
            let (place, position) = place(kind, at)?;
            let vector = (&expected["vector"] * factor.parse::<f64>()?)?;
            Intervention::Add { layer: place.layer(), position, vector }
        }
        ["temperature", "scores", head, t] => Intervention::Temperature(head.parse()?, t.parse()?),
        _ => return Ok(None),
    };
    Ok(Some(Interventions::new([one], model.config())?))
}

#[test]
fn every_intervention_gives_transformer_lens_logits() -> Result {
    let model = model()?;
    let expected = reference("interventions.safetensors")?;
    let ids = &expected["ids/clean"];
    let plain = &expected["plain"];
    assert_close("plain", &model.forward(ids, ForwardArgs::default())?.logits, plain, TOLERANCE);
    let mut count = 0;
    for (key, logits) in &expected {
        let Some(changes) = intervention(&model, &expected, key)? else { continue };
        assert_close(key, &model.forward(ids, hooked(&changes))?.logits, logits, TOLERANCE);
        assert!(relative_error(logits, plain)? > 1e-4, "{key} changes nothing");
        count += 1;
    }
    assert_eq!(count, 25);
    Ok(())
}

/// Writing to a point has the effect that it has in TransformerLens: what comes before it, and beside it, stays.
#[test]
fn replacing_what_a_head_reads_is_the_same_as_replacing_what_it_computes_from_it() -> Result {
    let model = model()?;
    let expected = reference("hooks.safetensors")?;
    let (ids, other) =
        (&expected["ids/clean"], (expected["ids/clean"].ones_like()? * 52.0)?.sub(&expected["ids/clean"])?);
    for (input, output, part) in [
        (Point::QInput(1), Point::Q(1), 0),
        (Point::KInput(1), Point::K(1), 1),
        (Point::VInput(1), Point::V(1), 2),
    ] {
        // Head 1 reads the other text's stream, the others their own.
        let mine = value(&model, ids, input)?;
        let theirs = value(&model, &other, input)?;
        let mixed = Tensor::cat(&[mine.narrow(2, 0, 1)?, theirs.narrow(2, 1, 1)?, mine.narrow(2, 2, 1)?], 2)?;
        let swap_input = gpt2_model::hooks::on([input], |_, _| Ok(Some(mixed.clone())));
        let mine = value(&model, ids, output)?;
        let theirs = value(&model, &other, output)?;
        let mixed_output =
            Tensor::cat(&[mine.narrow(2, 0, 1)?, theirs.narrow(2, 1, 1)?, mine.narrow(2, 2, 1)?], 2)?;
        let swap_output = gpt2_model::hooks::on([output], |_, _| Ok(Some(mixed_output.clone())));
        let logits = |hooks: &dyn Hooks| -> Result<Tensor> { Ok(model.forward(ids, hooked(hooks))?.logits) };
        assert_close(&format!("part {part}"), &logits(&swap_input)?, &logits(&swap_output)?, TOLERANCE);
        assert!(
            relative_error(&logits(&swap_input)?, &expected["logits"])? > 1e-4,
            "part {part} changes nothing"
        );
    }
    Ok(())
}
