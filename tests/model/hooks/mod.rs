//! Reading and changing the model's values, and asking for weights and summaries while it runs.

pub(crate) mod interventions;
mod reference;

use crate::common::{Result, assert_close, max_abs, some_ids, test_device};
use crate::inputs::batch;
use crate::models::random_model;
use candle_core::{DType, Tensor};
use gpt2_model::hooks::{
    At, Chain, Head, Hooks, Intervention, Interventions, KnockOut, Point, Recorder, WeightRows, on,
};
use gpt2_model::{Chosen, ChosenWeights, ForwardArgs, Gpt2LMHeadModel, KvCache, Training};

const LAYERS: usize = 2;

fn every_point() -> Vec<Point> {
    Point::of_model(LAYERS).collect()
}

pub(crate) fn hooked(hooks: &dyn Hooks) -> ForwardArgs<'_> {
    ForwardArgs { hooks: Some(hooks), ..Default::default() }
}

fn bits(x: &Tensor) -> Result<Vec<u32>> {
    Ok(x.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
}

#[test]
fn reading_every_point_changes_no_bit() -> Result {
    let model = random_model(3, 8, 40)?;
    let ids = batch(33)?;
    let recorder = Recorder::new(every_point());
    let plain = model.forward(&ids, ForwardArgs::default())?.logits;
    assert_eq!(bits(&model.forward(&ids, hooked(&recorder))?.logits)?, bits(&plain)?);

    let (b, t, h, d) = (2, 33, 3, 8);
    for layer in 0..LAYERS {
        let dims = |point: Point| -> Result<Vec<usize>> { Ok(recorder.value(point)?.dims().to_vec()) };
        for point in [Point::Q(layer), Point::K(layer), Point::V(layer), Point::Z(layer)] {
            assert_eq!(dims(point)?, [b, t, h, d], "{point}");
        }
        assert_eq!(dims(Point::Pattern(layer))?, [b, h, t, t]);
        let value = |point| recorder.value(point);
        let mid = (value(Point::ResidPre(layer))? + value(Point::AttnOut(layer))?)?;
        assert_close("resid_mid", &value(Point::ResidMid(layer))?, &mid, 1e-6);
        let post = (mid + value(Point::MlpOut(layer))?)?;
        assert_close("resid_post", &value(Point::ResidPost(layer))?, &post, 1e-6);
        let v = value(Point::V(layer))?.transpose(1, 2)?.contiguous()?; // (B, H, T, D)
        let z = value(Point::Pattern(layer))?.matmul(&v)?.transpose(1, 2)?;
        assert_close("z", &value(Point::Z(layer))?, &z, 1e-5);
    }
    assert_eq!(bits(&recorder.value(Point::Logits)?)?, bits(&plain)?);
    Ok(())
}

/// Patching in another run's value at a point makes everything after it the same as in that run.
#[test]
fn replacing_the_residual_stream_continues_the_other_run() -> Result {
    let model = random_model(3, 8, 40)?;
    let ids = some_ids(20, 1)?;
    let other = some_ids(20, 5)?;
    let expected = model.forward(&other, ForwardArgs::default())?.logits;
    for point in [
        Point::ResidPre(0),
        Point::ResidPre(1),
        Point::ResidMid(1),
        Point::ResidPost(0),
        Point::ResidPost(1),
        Point::LnFinal,
        Point::Logits,
    ] {
        let recorder = Recorder::new([point]);
        model.forward(&other, hooked(&recorder))?;
        let patch = on([point], |at, _| recorder.value(at.point).map(Some));
        let got = model.forward(&ids, hooked(&patch))?.logits;
        assert_eq!(bits(&got)?, bits(&expected)?, "{point}");
        let last = ForwardArgs { last_logits_only: true, ..hooked(&patch) };
        if !matches!(point, Point::LnFinal | Point::Logits) {
            assert_close("last", &model.forward(&ids, last)?.logits, &expected.narrow(1, 19, 1)?, 1e-6);
        }
    }
    Ok(())
}

/// Patching in q, k, v and the weights of another run gives its z; z and everything after it are then the same.
#[test]
fn replacing_inside_attention_gives_the_other_runs_context() -> Result {
    let model = random_model(3, 8, 40)?;
    let ids = some_ids(20, 1)?;
    let other = some_ids(20, 5)?;
    let inside = [Point::Q(1), Point::K(1), Point::V(1)];
    let theirs = Recorder::new(inside.into_iter().chain([Point::Z(1), Point::AttnOut(1), Point::Pattern(1)]));
    model.forward(&other, hooked(&theirs))?;
    for points in [&inside[..], &[Point::V(1), Point::Pattern(1)]] {
        let patch = on(points.iter().copied(), |at, _| theirs.value(at.point).map(Some));
        let mine = Recorder::new([Point::Z(1), Point::AttnOut(1)]);
        model.forward(&ids, hooked(&Chain(&[&patch, &mine])))?;
        for point in [Point::Z(1), Point::AttnOut(1)] {
            assert_close(&point.to_string(), &mine.value(point)?, &theirs.value(point)?, 1e-5);
        }
    }
    let patch = on([Point::MlpOut(1)], |_, x| Ok(Some(x.zeros_like()?)));
    let mine = Recorder::new([Point::ResidMid(1), Point::ResidPost(1)]);
    model.forward(&ids, hooked(&Chain(&[&patch, &mine])))?;
    assert_eq!(bits(&mine.value(Point::ResidMid(1))?)?, bits(&mine.value(Point::ResidPost(1))?)?);
    Ok(())
}

/// With hooks that act on each position separately, a prompt and steps through a cache give the same as one pass.
#[test]
fn hooks_with_a_cache_see_each_position_once() -> Result {
    let model = random_model(2, 8, 40)?;
    let ids = some_ids(12, 3)?;
    let seen = std::cell::RefCell::new(vec![]);
    let change = on([Point::K(0), Point::Z(1)], |at: At, x: &Tensor| {
        seen.borrow_mut().push((at.point, at.past, x.dim(1)?));
        Ok(Some((x * 0.7)?))
    });
    let knock_out = KnockOuts(vec![KnockOut { head: None, query: 9, key: 4 }]);
    let hooks = Chain(&[&change, &knock_out]);
    let whole = model.forward(&ids, hooked(&hooks))?.logits;
    let mut cache = KvCache::new(model.config(), 1, 12, DType::F32, &test_device())?;
    seen.borrow_mut().clear();
    for (start, len) in [(0, 5), (5, 4), (9, 1), (10, 2)] {
        let args = ForwardArgs { cache: Some(&mut cache), ..hooked(&hooks) };
        let part = model.forward(&ids.narrow(1, start, len)?, args)?.logits;
        assert_close("part", &part, &whole.narrow(1, start, len)?, 1e-5);
    }
    let z: Vec<_> = seen.borrow().iter().filter(|x| x.0 == Point::Z(1)).map(|x| (x.1, x.2)).collect();
    assert_eq!(z, [(0, 5), (5, 4), (9, 1), (10, 2)]);
    Ok(())
}

struct KnockOuts(Vec<KnockOut>);

impl Hooks for KnockOuts {
    fn wants(&self, _: Point) -> bool {
        false
    }
    fn at(&self, _: At, _: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(None)
    }
    fn knocked_out(&self, _: usize) -> Vec<KnockOut> {
        self.0.clone()
    }
}

#[test]
fn a_value_of_another_shape_is_refused_with_the_point() -> Result {
    let model = random_model(2, 4, 20)?;
    let ids = some_ids(6, 3)?;
    for point in every_point() {
        let wrong = on([point], |_, x| Ok(Some(x.flatten_all()?)));
        let err = model.forward(&ids, hooked(&wrong)).err().ok_or("it was taken")?.to_string();
        assert!(err.contains(&point.to_string()), "{err}");
    }
    assert_eq!(Point::Z(3).to_string(), "blocks.3.attn.hook_z");
    let wide = on([Point::MlpOut(1)], |_, x| Ok(Some(x.to_dtype(DType::F64)?)));
    let err = model.forward(&ids, hooked(&wide)).err().ok_or("it was taken")?.to_string();
    assert!(err.contains("the value is F32 [1, 6, 8], but its replacement is F64 [1, 6, 8]"), "{err}");
    Ok(())
}

/// A pass in which a hook puts a value back computes the same as the fused code, with dropout and without.
#[test]
fn every_value_that_is_put_back_changes_nothing() -> Result {
    let model = random_model(3, 8, 40)?;
    let ids = batch(12)?;
    for training in [None, Some(Training { seed: 1, step: 2 })] {
        let args = || ForwardArgs { training, ..Default::default() };
        let plain = model.forward(&ids, args())?.logits;
        for point in every_point() {
            // Weights that are put in place of others are not dropped.
            if training.is_some() && matches!(point, Point::Scores(_) | Point::Pattern(_)) {
                continue;
            }
            let same = on([point], |_, x| Ok(Some(x.copy()?)));
            let logits = model.forward(&ids, ForwardArgs { hooks: Some(&same), ..args() })?.logits;
            assert_close(&format!("{point}, {training:?}"), &logits, &plain, 1e-5);
        }
    }
    Ok(())
}

#[test]
fn twice_the_deviation_of_a_layer_norm_is_half_the_normalized_stream() -> Result {
    let model = random_model(3, 8, 40)?;
    let ids = batch(6)?;
    let plain = model.forward(&ids, ForwardArgs::default())?.logits;
    let scaled = |point, factor: f64| {
        let scale = on([point], move |_, x| Ok(Some((x * factor)?)));
        model.forward(&ids, hooked(&scale)).map(|output| output.logits)
    };
    for (scale, normalized) in [
        (Point::Ln1Scale(1), Point::Ln1Normalized(1)),
        (Point::Ln2Scale(0), Point::Ln2Normalized(0)),
        (Point::LnFinalScale, Point::LnFinalNormalized),
    ] {
        let twice = scaled(scale, 2.0)?;
        let half = scaled(normalized, 0.5)?;
        assert_close(&scale.to_string(), &twice, &half, 1e-5);
        assert!(crate::common::relative_error(&twice, &plain)? > 1e-3, "{scale} changes nothing");
    }
    Ok(())
}

#[test]
fn a_head_whose_result_is_0_is_ablated() -> Result {
    let model = random_model(3, 8, 40)?;
    let ids = batch(6)?;
    let without = on([Point::Result(1)], |_, x| {
        let first = x.narrow(2, 0, 1)?.zeros_like()?;
        Ok(Some(Tensor::cat(&[first, x.narrow(2, 1, 2)?], 2)?))
    });
    let ablated = Interventions::new([Intervention::ZeroAblate(Head { layer: 1, head: 0 })], model.config())?;
    let expected = model.forward(&ids, hooked(&ablated))?.logits;
    assert_close("logits", &model.forward(&ids, hooked(&without))?.logits, &expected, 1e-5);
    let plain = model.forward(&ids, ForwardArgs::default())?.logits;
    assert!(crate::common::relative_error(&expected, &plain)? > 1e-3, "the head does nothing");
    Ok(())
}

#[test]
fn a_recorder_holds_the_latest_pass() -> Result {
    let model = random_model(2, 4, 20)?;
    let recorder = Recorder::new([Point::ResidPre(1), Point::Z(0)]);
    assert!(recorder.value(Point::Z(0)).expect_err("no pass").to_string().contains("blocks.0.attn.hook_z"));
    for t in [5, 3, 6] {
        model.forward(&some_ids(t, t)?, hooked(&recorder))?;
        assert_eq!(recorder.value(Point::ResidPre(1))?.dims(), [1, t, 8]);
        assert_eq!(recorder.value(Point::Z(0))?.dims(), [1, t, 2, 4]);
    }
    Ok(())
}

#[test]
fn rows_of_weights_over_a_cache_are_those_of_one_pass() -> Result {
    let model = random_model(3, 8, 40)?;
    let ids = batch(8)?;
    let rows = WeightRows::new([1]);
    let mut cache = KvCache::new(model.config(), 2, 8, DType::F32, &test_device())?;
    // A text whose rows the next one replaces.
    for (text, chunks) in [(batch(5)?, &[5][..]), (ids.clone(), &[5, 1, 2])] {
        cache.clear();
        let mut start = 0;
        for &len in chunks {
            let args = ForwardArgs { cache: Some(&mut cache), ..hooked(&rows) };
            model.forward(&text.narrow(1, start, len)?, args)?;
            start += len;
        }
    }
    let whole = &attentions(&model, &ids)?[1]; // (B, H, T, T)
    for (row, t) in [(0, 8), (1, 8), (1, 3), (0, 1)] {
        let expected = whole.get(row)?.narrow(1, 8 - t, t)?.narrow(2, 8 - t, t)?;
        assert_close(&format!("{t} of row {row}"), &rows.weights(1, row, t)?, &expected, 1e-5);
    }
    for (layer, t) in [(1, 0), (1, 9), (0, 8)] {
        let error = rows.weights(layer, 0, t).expect_err("not seen").to_string();
        assert!(error.contains(&format!("layer {layer}: {t} positions were not all seen")), "{error}");
    }
    Ok(())
}

fn attentions(model: &Gpt2LMHeadModel, ids: &Tensor) -> Result<Vec<Tensor>> {
    let args = ForwardArgs { output_attentions: true, ..Default::default() };
    Ok(model.forward(ids, args)?.transformer.attentions)
}

/// The results come in the order of the requests, and the logits are the same as without requests.
#[test]
fn weights_and_summaries_are_asked_for_as_data() -> Result {
    let model = random_model(3, 8, 40)?;
    let ids = batch(33)?;
    let all = attentions(&model, &ids)?;
    let of = |heads: &[usize], queries: &[usize]| Chosen {
        heads: Some(heads.to_vec()),
        queries: Some(queries.to_vec()),
    };
    let weights = [
        ChosenWeights { layer: 1, of: of(&[2], &[32, 0]) },
        ChosenWeights { layer: 0, of: of(&[0, 1], &[5]) },
        ChosenWeights { layer: 1, of: Chosen::default() },
    ];
    let plain = model.forward(&ids, ForwardArgs::default())?.logits;
    for last_logits_only in [false, true] {
        let args = ForwardArgs {
            weights: &weights,
            output_summaries: true,
            last_logits_only,
            output_attentions: !last_logits_only,
            ..Default::default()
        };
        let output = model.forward(&ids, args)?;
        let expected = if last_logits_only { plain.narrow(1, 32, 1)? } else { plain.clone() };
        assert_close("logits", &output.logits, &expected, 1e-6);
        assert_eq!(output.transformer.attentions.len(), if last_logits_only { 0 } else { LAYERS });
        let dims: Vec<_> = output.transformer.weights.iter().map(|w| w.dims().to_vec()).collect();
        assert_eq!(dims, [[2, 1, 2, 33], [2, 2, 1, 33], [2, 3, 33, 33]]);
        let row = |w: &Tensor, head, query| w.narrow(1, head, 1)?.narrow(2, query, 1);
        assert!(max_abs(&(row(&output.transformer.weights[0], 0, 0)? - row(&all[1], 2, 32)?)?)? < 1e-6);
        assert!(max_abs(&(row(&output.transformer.weights[1], 1, 0)? - row(&all[0], 1, 5)?)?)? < 1e-6);
        assert!(max_abs(&(&output.transformer.weights[2] - &all[1])?)? < 1e-6);
        for (summary, weights) in output.transformer.summaries.iter().zip(&all) {
            assert!(max_abs(&(&summary.max - weights.max(3)?)?)? < 1e-6);
        }
        assert_eq!(output.transformer.summaries.len(), LAYERS);
    }
    let beyond = [ChosenWeights { layer: 2, of: Chosen::default() }];
    let args = ForwardArgs { weights: &beyond, ..Default::default() };
    let err = model.forward(&ids, args).expect_err("not there").to_string();
    assert!(err.contains("layer 2") && err.contains("0 to 1"), "{err}");
    Ok(())
}
