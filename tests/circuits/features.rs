//! What features do over many tokens.

use candle_core::{Device, Result, Tensor};
use gpt2_circuits::features::{Around, Peak, Tally, Tokens};
use gpt2_model::dictionary::{Dictionary, DictionaryTensors, Selection};

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
    assert_eq!(found.uses()[1].fired, 0);
    assert!((found.mean_fired() - 7.0 / 60.0).abs() < 1e-12);
    // The second number, -1 everywhere, is missed and does not vary: nothing of its error is variance.
    let mean = 19.0 / 60.0;
    let squares = [2.0f64, 3.0, 2.5, 1.0, 4.0, 1.5, 5.0].iter().map(|x| x * x).sum::<f64>();
    let explained = found.explained_variance()?.expect("it varies");
    assert!((explained - (1.0 - 60.0 / (squares - 60.0 * mean * mean))).abs() < 1e-9, "{explained}");
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
