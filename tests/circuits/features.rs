//! Features over many tokens, and runs in which they are changed.

use crate::common::assert_close;
use crate::models::load;
use candle_core::{DType, Device, Result, Tensor};
use gpt2_circuits::features::{Around, Peak, Tally, Tokens};
use gpt2_model::dictionary::{Dictionary, DictionaryTensors, Selection};
use gpt2_model::hooks::{
    Activity, Chain, FeatureChange, FeatureSite, Hooks, Intervention, Interventions, Point, Recorder, on,
};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel};
use std::sync::Arc;

/// A dictionary whose features are the numbers that are above 0.
fn numbers() -> Result<Dictionary> {
    let eye = Tensor::eye(2, candle_core::DType::F32, &Device::Cpu)?;
    let zeros = Tensor::zeros(2, candle_core::DType::F32, &Device::Cpu)?;
    let tensors =
        DictionaryTensors { w_enc: eye.clone(), b_enc: zeros.clone(), w_dec: eye, b_dec: zeros, skip: None };
    Dictionary::new(tensors, Selection::Relu)
}

/// Two documents of 30 tokens each, in shards of 20 tokens; token n is n.
fn tally<'a>(dictionary: &'a Dictionary, values: &[[f32; 2]], keep: usize) -> Result<Tally<'a>> {
    let around = Around { before: 3, after: 2 };
    let mut tally = Tally::new(dictionary, keep, around);
    let ids: Vec<u32> = (0..60).collect();
    let documents: Vec<u32> = ids.iter().map(|id| id / 30).collect();
    let positions: Vec<u32> = ids.iter().map(|id| id % 30).collect();
    for start in (0..60).step_by(20) {
        let shard = start..start + 20;
        let tokens = Tokens {
            ids: &ids[shard.clone()],
            documents: &documents[shard.clone()],
            positions: &positions[shard.clone()],
        };
        let read =
            Tensor::new(values[shard].iter().map(|row| row.to_vec()).collect::<Vec<_>>(), &Device::Cpu)?;
        tally.add(tokens, &read, Some(&read))?;
    }
    Ok(tally)
}

#[test]
fn peaks_are_the_strongest_and_apart_with_the_text_around_them() -> Result<()> {
    let mut values = vec![[0f32, -1.0]; 60];
    // The strongest of neighbors counts; the last begins its document, so that nothing stands before it.
    for (id, value) in [(5, 2.0), (7, 3.0), (8, 2.5), (13, 1.0), (19, 4.0), (29, 1.5), (30, 5.0)] {
        values[id][0] = value;
    }
    let dictionary = numbers()?;
    let found = tally(&dictionary, &values, 4)?;
    let used = &found.uses()[0];
    assert_eq!((found.tokens(), used.fired, used.sum), (60, 7, 19.0));
    let peak = |peak: &Peak| (peak.id, peak.activation, peak.document, peak.position);
    let peaks: Vec<_> = used.peaks.iter().map(peak).collect();
    assert_eq!(peaks, [(30, 5.0, 1, 0), (19, 4.0, 0, 19), (7, 3.0, 0, 7), (29, 1.5, 0, 29)]);
    let around: Vec<_> = used.peaks.iter().map(|peak| (&peak.before[..], &peak.after[..])).collect();
    // A shard ends after 19, and a document after 29.
    let expected: [(&[u32], &[u32]); 4] =
        [(&[], &[31, 32]), (&[16, 17, 18], &[]), (&[4, 5, 6], &[8, 9]), (&[26, 27, 28], &[])];
    assert_eq!(around, expected);
    let activations: Vec<_> = used.peaks.iter().map(|peak| &peak.activations[..]).collect();
    let expected: [&[f32]; 4] =
        [&[5.0, 0.0, 0.0], &[0.0, 0.0, 0.0, 4.0], &[0.0, 2.0, 0.0, 3.0, 2.5, 0.0], &[0.0, 0.0, 0.0, 1.5]];
    assert_eq!(activations, expected);
    assert_eq!(found.uses()[1].fired, 0);
    assert!((found.mean_fired() - 7.0 / 60.0).abs() < 1e-12);
    // The second number, -1 everywhere, is missed and does not vary: nothing of its error is variance.
    let mean = 19.0 / 60.0;
    let squares = [2.0f64, 3.0, 2.5, 1.0, 4.0, 1.5, 5.0].iter().map(|x| x * x).sum::<f64>();
    let explained = found.explained_variance()?.expect("it varies");
    assert!((explained - (1.0 - 60.0 / (squares - 60.0 * mean * mean))).abs() < 1e-9, "{explained}");
    Ok(())
}

/// A shard is computed in parts of 1024 tokens: what stands around a peak may lie in the parts before and after it.
#[test]
fn parts_of_a_long_shard_make_no_difference() -> Result<()> {
    let dictionary = numbers()?;
    let count = 3100;
    let ids: Vec<u32> = (0..count).collect();
    // Documents of 700 tokens cross 1024, 2048 and 3072.
    let documents: Vec<u32> = ids.iter().map(|id| id / 700).collect();
    let positions: Vec<u32> = ids.iter().map(|id| id % 700).collect();
    let mut state = 1u64;
    let values: Vec<f32> = (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Half of them fire.
            (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect();
    let read = Tensor::new(values.iter().map(|&value| vec![value, 0.0]).collect::<Vec<_>>(), &Device::Cpu)?;
    let tokens = Tokens { ids: &ids, documents: &documents, positions: &positions };
    let fired = |at: usize| values[at].max(0.0);
    for around in [Around { before: 12, after: 6 }, Around { before: 1500, after: 1300 }] {
        let mut tally = Tally::new(&dictionary, 400, around);
        tally.add(tokens, &read, None)?;
        let used = &tally.uses()[0];
        assert_eq!(used.fired, values.iter().filter(|&&value| value > 0.0).count() as u64);
        let sum: f64 = (0..values.len()).map(|at| f64::from(fired(at))).sum();
        assert!((used.sum - sum).abs() < 1e-6, "{} for {sum}", used.sum);
        // The strongest token of each stretch of a document.
        let stretch = around.before + around.after;
        let mut strongest = std::collections::BTreeMap::<(u32, usize), usize>::new();
        for at in 0..values.len() {
            let place = strongest.entry((documents[at], positions[at] as usize / stretch)).or_insert(at);
            if fired(at) > fired(*place) {
                *place = at;
            }
        }
        let mut expected: Vec<usize> = strongest.into_values().filter(|&at| fired(at) > 0.0).collect();
        expected.sort_by(|&a, &b| fired(b).total_cmp(&fired(a)).then(a.cmp(&b)));
        let found: Vec<usize> = used.peaks.iter().map(|peak| peak.id as usize).collect();
        assert_eq!(found, expected, "{around:?}");
        for (peak, at) in used.peaks.iter().zip(found) {
            let begin = documents[at] as usize * 700;
            let first = at.saturating_sub(around.before).max(begin);
            let last = (at + around.after).min(begin + 699).min(values.len() - 1);
            assert_eq!(peak.before, ids[first..at], "{at}");
            assert_eq!(peak.after, ids[at + 1..=last], "{at}");
            assert_eq!(peak.activations, (first..=last).map(fired).collect::<Vec<_>>(), "{at}");
        }
    }
    Ok(())
}

#[test]
fn values_that_are_not_one_for_each_token_are_refused() -> Result<()> {
    let dictionary = numbers()?;
    let mut tally = Tally::new(&dictionary, 1, Around { before: 1, after: 1 });
    let tokens = Tokens { ids: &[1, 2], documents: &[0, 0], positions: &[0, 1] };
    let wrong = Tensor::zeros((3, 2), candle_core::DType::F32, &Device::Cpu)?;
    let error = tally.add(tokens, &wrong, None).expect_err("another number of tokens").to_string();
    assert!(error.contains("2 tokens") && error.contains("[3]"), "{error}");
    let right = Tensor::zeros((2, 2), candle_core::DType::F32, &Device::Cpu)?;
    tally.add(Tokens { positions: &[0], ..tokens }, &right, None).expect_err("too few positions");
    let nan = (&right * f64::NAN)?;
    assert!(tally.add(tokens, &nan, None).expect_err("NaN").to_string().contains("NaN"));
    tally.add(tokens, &right, None)?;
    assert_eq!((tally.tokens(), tally.explained_variance()?), (2, None));
    Ok(())
}

/// Of 40 features, with random weights.
fn random(d: usize, d_out: usize) -> Result<Dictionary> {
    let drawn = |shape: (usize, usize)| Tensor::randn(0f32, 0.5, shape, &Device::Cpu);
    let zeros = |n: usize| Tensor::zeros(n, DType::F32, &Device::Cpu);
    let tensors = DictionaryTensors {
        w_enc: drawn((d, 40))?,
        b_enc: zeros(40)?,
        w_dec: drawn((40, d_out))?,
        b_dec: zeros(d_out)?,
        skip: None,
    };
    let dictionary = Dictionary::new(tensors, Selection::Relu)?;
    Ok(if d == d_out { dictionary } else { dictionary.transcoding() })
}

fn logits(model: &Gpt2LMHeadModel, ids: &Tensor, hooks: &dyn Hooks) -> Result<Tensor> {
    Ok(model.forward(ids, ForwardArgs { hooks: Some(hooks), ..ForwardArgs::default() })?.logits)
}

/// Of a transcoder, what it predicts changes; of heads, all of them together.
#[test]
fn features_of_transcoders_and_heads_change_what_they_rebuild() -> Result<()> {
    let model = load("circuits/model", DType::F32).expect("a model");
    let ids = Tensor::new(&[[1u32, 5, 9, 2], [7, 7, 3, 30]], &Device::Cpu)?;
    let c = model.config().n_embd;
    let hidden = 4 * model.config().n_embd;
    for (hook, hook_out, d, d_out) in [
        (Point::MlpPost(1), Point::MlpOut(1), hidden, c),
        (Point::Ln2Normalized(0), Point::MlpPost(1), c, hidden),
        (Point::Z(1), Point::Z(1), c, c),
        (Point::ResidPre(2), Point::ResidPre(2), c, c),
    ] {
        let dictionary = random(d, d_out)?;
        // Feature 3 goes, and feature 8 gets an activation at one position.
        let site = Arc::new(FeatureSite::new(Arc::new(dictionary.clone()), hook, hook_out));
        let change = |feature, to, position| {
            Intervention::Feature(FeatureChange { site: Arc::clone(&site), feature, to, position })
        };
        let list = [change(3, Activity::Times(0.0), None), change(8, Activity::Set(2.0), Some(2))];
        let alone = list.iter().map(|one| Interventions::new([one.clone()], model.config()));
        let alone = alone.collect::<Result<Vec<_>>>()?;
        let changed = Interventions::new(list, model.config())?;

        let recorder = Recorder::new([hook]);
        let plain = logits(&model, &ids, &recorder)?;
        let code = dictionary.encode(&recorder.value(hook)?.reshape((8, d))?)?;
        let row = |row: usize| -> Result<Tensor> {
            let of = |feature: u32, difference: f32| {
                dictionary.w_dec().get(feature as usize)? * f64::from(difference)
            };
            let sum = of(3, -code.value(row, 3))?;
            if row % 4 == 2 { sum + of(8, 2.0 - code.value(row, 8))? } else { Ok(sum) }
        };
        let difference = Tensor::stack(&(0..8).map(row).collect::<Result<Vec<_>>>()?, 0)?;
        let add = on([hook_out], |_, x| Ok(Some((x + difference.reshape(x.shape())?)?)));
        let expected = logits(&model, &ids, &add)?;
        // Twice: nothing is left of the first run.
        for _ in 0..2 {
            let found = logits(&model, &ids, &changed)?;
            assert_close(&hook.to_string(), &found, &expected, 1e-5);
        }
        if dictionary.is_transcoder() {
            // Of the same text, in two lists: what was read serves both.
            let found = logits(&model, &ids, &Chain(&[&alone[0], &alone[1]]))?;
            assert_close(&hook.to_string(), &found, &expected, 1e-5);
        }
        let apart = (plain - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(apart > 1e-2, "{hook}: {apart}");
    }
    let site = Arc::new(FeatureSite::new(Arc::new(random(c, hidden)?), Point::MlpOut(1), Point::MlpPost(1)));
    let change = FeatureChange { site, feature: 3, to: Activity::Set(1.0), position: None };
    let error = Interventions::new([Intervention::Feature(change)], model.config()).expect_err("an order");
    assert!(error.to_string().contains("blocks.1.mlp.hook_post, which comes before"), "{error}");
    Ok(())
}
