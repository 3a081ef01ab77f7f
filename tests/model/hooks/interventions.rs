//! Interventions, compared with transformers with forward hooks (tests/data/odd/interventions.safetensors).

use super::{bits, hooked};
use crate::common::{Result, assert_close, data, some_ids, test_device};
use crate::models::{load, random_model};
use candle_core::{DType, Tensor};
use gpt2_model::analysis::{Contrast, Metric, Parts, activation_patching};
use gpt2_model::hooks::{
    Chain, Head, Hooks, Intervention, Interventions, KnockOut, Patch, Place, Point, Recorder,
};
use gpt2_model::{ForwardArgs, Generation, Gpt2LMHeadModel, KvCache, MeanOver, Sampling};
use std::collections::HashMap;

/// The tolerance of `parity`.
const TOLERANCE: f64 = 3e-5;

pub(crate) fn expected() -> Result<HashMap<String, Tensor>> {
    Ok(candle_core::safetensors::load(data("odd").join("interventions.safetensors"), &test_device())?)
}

fn head(layer: usize, head: usize) -> Head {
    Head { layer, head }
}

fn patch(head: Head, from: Tensor) -> Intervention {
    Intervention::Patch(Patch { place: Place::Head(head), position: None, from })
}

fn knock_out(layer: Option<usize>, head: Option<usize>, query: usize, key: usize) -> Intervention {
    Intervention::KnockOut(layer, KnockOut { head, query, key })
}

/// The lists for which the reference holds logits.
fn lists(model: &Gpt2LMHeadModel, other: &Tensor) -> Result<Vec<(&'static str, Vec<Intervention>)>> {
    use Intervention::{MeanAblate, Scale, ZeroAblate};
    let recorder = Recorder::new([Point::Z(0)]);
    model.forward(other, hooked(&recorder))?;
    Ok(vec![
        ("plain", vec![]),
        ("zero", vec![ZeroAblate(head(0, 1)), ZeroAblate(head(1, 2))]),
        ("mean", vec![MeanAblate(head(0, 2)), MeanAblate(head(1, 0))]),
        ("scale", vec![Scale(head(0, 1), 0.5), Scale(head(1, 0), -2.0)]),
        ("patch", vec![patch(head(0, 2), recorder.value(Point::Z(0))?)]),
        (
            "knock_out",
            vec![
                knock_out(None, None, 7, 4),
                knock_out(None, None, 8, 0),
                knock_out(Some(1), Some(2), 5, 5),
                knock_out(Some(0), None, 3, 1),
            ],
        ),
    ])
}

#[test]
fn interventions_give_what_transformers_with_forward_hooks_gives() -> Result {
    let model = load("odd", DType::F32)?;
    let expected = expected()?;
    let ids = &expected["input_ids"];
    for (name, list) in lists(&model, &expected["other_ids"])? {
        let changes = Interventions::new(list, model.config())?;
        let logits = model.forward(ids, hooked(&changes))?.logits;
        assert_close(name, &logits, &expected[name], TOLERANCE);
        let last = ForwardArgs { last_logits_only: true, ..hooked(&changes) };
        assert_close(name, &model.forward(ids, last)?.logits, &expected[name].narrow(1, 8, 1)?, TOLERANCE);
        if name != "plain" {
            let moved = crate::common::relative_error(&expected[name], &expected["plain"])?;
            assert!(moved > 1e-2, "{name} changes nothing");
        }
    }
    Ok(())
}

/// Positions count from the start of the text, regardless of the cache; a mean is computed in advance.
#[test]
fn interventions_in_chunks_of_a_cache_are_those_of_one_pass() -> Result {
    let model = load("odd", DType::F32)?;
    let expected = expected()?;
    let ids = &expected["input_ids"];
    for (name, list) in lists(&model, &expected["other_ids"])? {
        let changes = Interventions::new(list, model.config())?;
        let chunked = |changes: &Interventions| -> Result {
            let mut cache = KvCache::new(model.config(), 2, 9, DType::F32, &test_device())?;
            for (start, len) in [(0, 6), (6, 1), (7, 2)] {
                let args = ForwardArgs { cache: Some(&mut cache), ..hooked(changes) };
                let got = model.forward(&ids.narrow(1, start, len)?, args)?.logits;
                assert_close(name, &got, &expected[name].narrow(1, start, len)?, TOLERANCE);
            }
            Ok(())
        };
        if name == "mean" {
            let err = chunked(&changes).err().ok_or("a mean of chunks was taken")?.to_string();
            assert!(err.contains("0.2") && err.contains("with_means_of"), "{err}");
        }
        chunked(&changes.with_means_of(&model, ids)?)?;
    }
    Ok(())
}

/// The mean leaves padding out, so that a padded row gives the same as the row without padding.
#[test]
fn a_mean_leaves_padding_out() -> Result {
    let model = random_model(2, 4, 20)?;
    let ids = some_ids(6, 1)?;
    let changes = Interventions::new([Intervention::MeanAblate(head(0, 1))], model.config())?;
    let alone = model.forward(&ids, hooked(&changes))?.logits;
    let mask: Vec<u8> = (0..9).map(|j| u8::from(j < 6)).collect();
    let mask = Tensor::from_vec(mask, (1, 9), &test_device())?;
    let args = ForwardArgs { attention_mask: Some(&mask), ..hooked(&changes) };
    let padded = model.forward(&ids.pad_with_zeros(1, 0, 3)?, args)?.logits;
    assert_close("padded", &padded.narrow(1, 0, 6)?, &alone, 1e-5);
    Ok(())
}

/// A token that no later token can see anywhere may be replaced without effect.
#[test]
fn a_token_that_is_knocked_out_everywhere_has_no_effect() -> Result {
    let model = random_model(3, 8, 40)?;
    let ids: Vec<u32> = some_ids(30, 1)?.flatten_all()?.to_vec1()?;
    let blocked = (5..30).map(|query| knock_out(None, None, query, 4));
    let changes = Interventions::new(blocked, model.config())?;
    let logits = |token: u32| -> Result<Tensor> {
        let mut ids = ids.clone();
        ids[4] = token;
        Ok(model.forward(&model.ids(&ids)?, hooked(&changes))?.logits)
    };
    let one = logits(1)?.narrow(1, 5, 25)?;
    let other = logits(2)?.narrow(1, 5, 25)?;
    assert_eq!(bits(&one)?, bits(&other)?);
    Ok(())
}

/// Generated text equals greedy choices from whole passes.
#[test]
fn generation_keeps_the_interventions() -> Result {
    let model = random_model(2, 8, 32)?;
    let prompt = some_ids(7, 3)?;
    let changes = Interventions::new(
        [
            Intervention::ZeroAblate(head(1, 0)),
            Intervention::MeanAblate(head(0, 1)),
            knock_out(None, None, 6, 2),
            knock_out(Some(1), None, 9, 3),
            knock_out(None, None, 7, 1), // the first position that is not in the prompt
        ],
        model.config(),
    )?
    .with_means_of(&model, &prompt)?;
    let mut text: Vec<u32> = prompt.flatten_all()?.to_vec1()?;
    let mut generation =
        Generation::new(&model, &[text.clone()], Sampling::greedy(), 10)?.with_hooks(&changes);
    generation.by_ref().collect::<candle_core::Result<Vec<_>>>()?;
    // A pass over a text that has no position 9 yet refuses a knock-out there.
    let shorter = Interventions::new([knock_out(Some(1), None, 9, 3)], model.config())?;
    let err = model.forward(&prompt, hooked(&shorter)).expect_err("it is not there").to_string();
    assert!(err.contains("position 9") && err.contains("0 to 6"), "{err}");
    for _ in 0..10 {
        let ids = model.ids(&text)?;
        let mut cache = KvCache::new(model.config(), 1, 32, DType::F32, &test_device())?;
        let args = ForwardArgs { cache: Some(&mut cache), last_logits_only: true, ..hooked(&changes) };
        let logits = model.forward(&ids, args)?.logits.flatten_all()?;
        text.push(logits.argmax(0)?.to_scalar::<u32>()?);
    }
    assert_eq!(generation.texts()[0], text);
    Ok(())
}

#[test]
fn what_the_model_has_not_is_refused_with_what_it_has() -> Result {
    let model = random_model(3, 8, 40)?;
    let refused = |one: Intervention| {
        Interventions::new([one], model.config()).expect_err("it is not there").to_string()
    };
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &test_device());
    let vector = zeros(&[7])?;
    let add =
        |layer, position, vector: &Tensor| Intervention::Add { layer, position, vector: vector.clone() };
    let place = |place, position, from| Intervention::Patch(Patch { place, position, from });
    let head_at = |position, from| place(Place::Head(head(0, 1)), position, from);
    let width = zeros(&[24])?;
    let stream = zeros(&[1, 5, 24])?;
    for (one, said) in [
        (Intervention::Temperature(head(0, 0), 0.0), "the temperature is 0, expected a number above 0"),
        (Intervention::Temperature(head(0, 0), -1.0), "the temperature is -1"),
        (Intervention::Temperature(head(0, 0), f64::INFINITY), "the temperature is inf"),
        (Intervention::Temperature(head(0, 0), 1e-320), "expected a number above 0"),
        (add(2, None, &width), "layer 2: the model has layers 0 to 1"),
        (add(1, Some(40), &width), "position 40: the model has positions 0 to 39"),
        (add(1, None, &vector), "vector for layer 1: expected 24 numbers (n_embd), got [7]"),
        (
            place(Place::Stream(0), Some(5), stream.clone()),
            "patch of 0 at position 5: the other text has positions 0 to 4",
        ),
        (place(Place::Mlp(2), None, stream.clone()), "layer 2: the model has layers 0 to 1"),
        (place(Place::Attention(0), None, zeros(&[5, 24])?), "value of [B, T, [24]], got [5, 24]"),
        (place(Place::Attention(0), None, zeros(&[1, 5, 23])?), "value of [B, T, [24]], got [1, 5, 23]"),
        (head_at(None, zeros(&[1, 5, 2, 8])?), "value of [B, T, [3, 8]], got [1, 5, 2, 8]"),
        (head_at(None, stream.clone()), "value of [B, T, [3, 8]], got [1, 5, 24]"),
        (Intervention::ZeroAblate(head(0, 3)), "head 3 of layer 0: the model has heads 0 to 2"),
        (Intervention::Scale(head(2, 0), 1.0), "layer 2: the model has layers 0 to 1"),
        (Intervention::Scale(head(1, 0), f64::NAN), "finite"),
        (Intervention::Replace(head(1, 0), vector), "[8]"),
        (knock_out(Some(5), None, 3, 1), "layer 5"),
        (knock_out(None, Some(4), 3, 1), "head 4: the model has heads 0 to 2"),
        (knock_out(None, None, 3, 4), "0 to 3"),
        (knock_out(None, None, 40, 4), "positions 0 to 39"),
    ] {
        let err = refused(one);
        assert!(err.contains(said), "{err} does not say {said}");
    }
    // The last positions that there are.
    let last = [
        add(1, Some(39), &width),
        place(Place::Stream(0), Some(4), stream),
        knock_out(None, None, 39, 39),
        Intervention::Temperature(head(1, 2), 1e-300),
    ];
    assert_eq!(Interventions::new(last, model.config())?.iter().count(), 4);
    // Values of another length, and of another number of rows than 1 and the batch's.
    for (from, rows) in [(1, 1), (2, 3)] {
        let z = zeros(&[from, 6 - usize::from(rows == 1), 3, 8])?;
        let patch = Interventions::new([patch(head(0, 1), z.clone())], model.config())?;
        let ids = Tensor::cat(&vec![some_ids(6, 0)?; rows], 0)?;
        let err = model.forward(&ids, hooked(&patch)).expect_err("another shape").to_string();
        assert!(err.contains("0.1") && err.contains(&format!("{:?}", z.dims())), "{err}");
    }
    Ok(())
}

/// A mean that is computed in advance includes the interventions before it.
#[test]
fn several_interventions_on_one_head_are_made_in_their_order_with_and_without_a_cache() -> Result {
    let model = load("odd", DType::F32)?;
    let ids = some_ids(9, 1)?;
    let head = head(0, 1);
    for list in [
        vec![Intervention::ZeroAblate(head), Intervention::MeanAblate(head)],
        vec![Intervention::Scale(head, 3.0), Intervention::MeanAblate(head)],
        vec![Intervention::MeanAblate(head), Intervention::Scale(head, 3.0)],
    ] {
        let changes = Interventions::new(list, model.config())?;
        let expected = model.forward(&ids, hooked(&changes))?.logits;
        let fixed = changes.clone().with_means_of(&model, &ids)?;
        assert_close("fixed means", &model.forward(&ids, hooked(&fixed))?.logits, &expected, 1e-5);
    }
    Ok(())
}

/// A patch from a text does not affect the tokens after that text; a patch from the same text changes nothing.
#[test]
fn a_patch_ends_where_the_other_text_does() -> Result {
    let model = random_model(2, 4, 12)?;
    let ids = some_ids(8, 1)?;
    let expected = model.forward(&ids, ForwardArgs::default())?.logits;
    let recorder = Recorder::new([Point::Z(1)]);
    model.forward(&ids.narrow(1, 0, 5)?, hooked(&recorder))?;
    let theirs = patch(head(1, 0), recorder.value(Point::Z(1))?);
    let patch = Interventions::new([theirs], model.config())?;
    let mut cache = KvCache::new(model.config(), 1, 8, DType::F32, &test_device())?;
    for (start, len) in [(0, 3), (3, 4), (7, 1)] {
        let args = ForwardArgs { cache: Some(&mut cache), ..hooked(&patch) };
        let got = model.forward(&ids.narrow(1, start, len)?, args)?.logits;
        assert_close(&format!("{start}"), &got, &expected.narrow(1, start, len)?, 1e-5);
    }
    Ok(())
}

/// A patch replaces the rows that it names and no other: on every head, up to the last position, where no row is left, and
/// where a single row is all there is.
#[test]
fn a_patch_replaces_its_rows_and_no_other() -> Result {
    let model = random_model(3, 4, 12)?;
    for (t, batch) in [(1, 1), (2, 1), (2, 3), (5, 2)] {
        let one = Tensor::cat(&vec![some_ids(t, 1)?; batch], 0)?;
        let other = some_ids(t, 4)?;
        let heads = (0..3).map(|h| Place::Head(head(1, h)));
        for place in heads.chain([Place::Stream(1), Place::Attention(1), Place::Mlp(1)]) {
            let point = place.point();
            let read = |ids: &Tensor, changes: &Interventions| -> Result<Tensor> {
                let recorder = Recorder::new([point]);
                let hooks: [&dyn Hooks; 2] = [changes, &recorder];
                model.forward(ids, hooked(&Chain(&hooks)))?;
                Ok(recorder.value(point)?)
            };
            let none = Interventions::default();
            let mine = read(&one, &none)?;
            let theirs = read(&other, &none)?;
            for position in (0..t).map(Some).chain([None]) {
                let patch = Patch { place, position, from: theirs.clone() };
                let changes = Interventions::new([Intervention::Patch(patch)], model.config())?;
                let got = read(&one, &changes)?;
                for row in 0..batch {
                    for at in 0..t {
                        let part = |x: &Tensor, row: usize, h: usize| -> Result<Vec<u32>> {
                            let x = x.get(row)?.get(at)?;
                            bits(&if matches!(place, Place::Head(_)) { x.get(h)? } else { x })
                        };
                        for h in 0..3 {
                            let of_head = !matches!(place, Place::Head(head) if head.head != h);
                            let patched = of_head && position.is_none_or(|position| position == at);
                            let expected = if patched { part(&theirs, 0, h)? } else { part(&mine, row, h)? };
                            assert_eq!(
                                part(&got, row, h)?,
                                expected,
                                "{place} {position:?} of {t}: {row}, {at}, {h}"
                            );
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_vector_is_added_at_the_last_position_and_at_the_only_one() -> Result {
    let model = random_model(2, 4, 12)?;
    let vector = Tensor::new(&[1f32, -2., 3., 0.5, 0., 1., -1., 4.], &test_device())?;
    for t in [1, 2, 4] {
        let ids = some_ids(t, 2)?;
        let add = Intervention::Add { layer: 1, position: Some(t - 1), vector: vector.clone() };
        let changes = Interventions::new([add], model.config())?;
        let stream = |changes: &Interventions| -> Result<Tensor> {
            let recorder = Recorder::new([Point::ResidPre(1)]);
            let hooks: [&dyn Hooks; 2] = [changes, &recorder];
            model.forward(&ids, hooked(&Chain(&hooks)))?;
            Ok(recorder.value(Point::ResidPre(1))?.squeeze(0)?)
        };
        let before = stream(&Interventions::default())?;
        let after = stream(&changes)?;
        assert_eq!(bits(&after.narrow(0, 0, t - 1)?)?, bits(&before.narrow(0, 0, t - 1)?)?);
        assert_close("last", &after.get(t - 1)?, &(before.get(t - 1)? + &vector)?, 1e-6);
    }
    Ok(())
}

/// Texts of one token and of two leave nothing before or after a patched position.
#[test]
fn the_shortest_texts_are_patched_by_position() -> Result {
    let model = random_model(3, 4, 12)?;
    let metric = Metric::difference(3, 4);
    for t in [1, 2] {
        let clean = some_ids(t, 1)?;
        let corrupt = some_ids(t, 4)?;
        let contrast = Contrast { clean: &clean, corrupt: &corrupt, metric: &metric, hooks: None };
        let parts = [Parts::Heads, Parts::HeadsByPosition, Parts::Streams];
        let patched = activation_patching(&model, &contrast, &parts, &mut |_, _| Ok(()))?;
        let [heads, by_position, streams] = &patched.maps[..] else { return Err("three maps".into()) };
        assert_eq!((by_position.dims(), streams.dims()), (&[2, 3, t][..], &[2, t][..]));
        if t == 1 {
            // The only position is all of them, and its stream is the whole clean run.
            let one = by_position.squeeze(2)?.flatten_all()?.to_vec1::<f64>()?;
            for (one, all) in one.iter().zip(heads.flatten_all()?.to_vec1::<f64>()?) {
                assert!((one - all).abs() < 1e-6, "{one} {all}");
            }
            let whole = streams.get(0)?.get(0)?.to_scalar::<f64>()?;
            assert!((whole - patched.clean).abs() < 1e-5, "{whole} {}", patched.clean);
        }
    }
    Ok(())
}

/// An intervention hides what a head attends to if it silences the head, and only then.
#[test]
fn a_silenced_head_may_attend_to_anything() -> Result {
    let t = 7;
    let model = random_model(3, 8, 40)?;
    let ids = some_ids(t, 1)?;
    let recorder = Recorder::new([Point::Z(0), Point::AttnOut(0), Point::ResidPre(1), Point::MlpOut(0)]);
    model.forward(&ids, hooked(&recorder))?;
    let at = |place: Place, position| -> Result<Intervention> {
        Ok(Intervention::Patch(Patch { place, position, from: recorder.value(place.point())? }))
    };
    let d = model.config().head_dim();
    let zeros = Tensor::zeros(d, DType::F32, &test_device())?;
    let one = head(0, 1);
    let other = head(0, 0);
    for (intervention, how) in [
        (Intervention::ZeroAblate(one), Some("ablated")),
        (Intervention::ZeroAblate(other), None),
        (Intervention::Scale(one, 0.0), Some("scaled to 0")),
        (Intervention::Scale(one, 0.1), None),
        (Intervention::Replace(one, zeros), Some("replaced")),
        (at(Place::Head(one), None)?, Some("patched")),
        (at(Place::Head(other), None)?, None),
        (at(Place::Head(one), Some(2))?, None),
        (at(Place::Attention(0), None)?, Some("patched")),
        (at(Place::Stream(1), None)?, Some("patched")),
        (at(Place::Mlp(0), None)?, None),
    ] {
        let name = intervention.to_string();
        assert_eq!(intervention.silences(one, t), how, "{name}");
        assert_eq!(intervention.silences(head(1, 1), t), None, "{name}");
        let changes = Interventions::new([intervention.clone()], model.config())?;
        let sharper = [Intervention::Temperature(one, 0.2), intervention];
        let sharper = Interventions::new(sharper, model.config())?;
        assert_eq!(sharper.silence(one, t), how, "{name}");
        let plain = model.forward(&ids, hooked(&changes))?.logits;
        let sharp = model.forward(&ids, hooked(&sharper))?.logits;
        assert_eq!(bits(&plain)? == bits(&sharp)?, how.is_some(), "{name}");
    }
    // A patch from a shorter text leaves a text that grows alone from its end on.
    assert_eq!(at(Place::Head(one), None)?.silences(one, t + 1), None);
    assert_eq!(Intervention::MeanAblate(one).silences(one, t), Some("mean-ablated"));
    // Means that are fixed are a vector or another run's values, and are still called means.
    let means = || {
        Interventions::new([Intervention::ZeroAblate(other), Intervention::MeanAblate(one)], model.config())
    };
    let text = std::slice::from_ref(&ids);
    for fixed in [
        means()?.with_means_of(&model, &ids)?,
        means()?.with_means_over(&model, text, MeanOver::AllPositions)?,
        means()?.with_means_over(&model, text, MeanOver::EachPosition)?,
    ] {
        assert_eq!((fixed.silence(one, t), fixed.silence(other, t)), (Some("mean-ablated"), Some("ablated")));
    }
    let error = means()?.with_means_over(&model, &[], MeanOver::AllPositions).expect_err("no text");
    assert!(error.to_string().contains("no text to take the mean over"), "{error}");
    Ok(())
}
