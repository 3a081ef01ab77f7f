//! Dictionaries learn the directions that values are made of.

use crate::common::{Result, test_device};
use candle_core::{D, Tensor};
use gpt2_model::dictionary::{Dictionary, DictionaryTensors, Selection};
use gpt2_train::{DictionaryOptions, DictionaryTrainer, Sparsity};
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

const D_MODEL: usize = 16;
const TRUE_FEATURES: usize = 24;
const ACTIVE: usize = 2;
const BATCH: usize = 256;

/// Values that are sums of a few of [`TRUE_FEATURES`] directions, moved by a constant.
struct Planted {
    rng: ChaCha8Rng,
    /// (features, d), rows of norm 1
    directions: Tensor,
}

impl Planted {
    fn new() -> Result<Self> {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let drawn: Vec<f32> = (0..TRUE_FEATURES * D_MODEL).map(|_| StandardNormal.sample(&mut rng)).collect();
        let drawn = Tensor::from_vec(drawn, (TRUE_FEATURES, D_MODEL), &test_device())?;
        let directions = drawn.broadcast_div(&drawn.sqr()?.sum_keepdim(1)?.sqrt()?)?;
        Ok(Self { rng, directions })
    }

    /// (`BATCH`, d)
    fn batch(&mut self) -> Result<Tensor> {
        let mut acts = vec![0f32; BATCH * TRUE_FEATURES];
        for row in acts.chunks_mut(TRUE_FEATURES) {
            for feature in sample(&mut self.rng, TRUE_FEATURES, ACTIVE) {
                row[feature] = self.rng.random_range(1.0..2.0);
            }
        }
        let acts = Tensor::from_vec(acts, (BATCH, TRUE_FEATURES), &test_device())?;
        Ok(((acts.matmul(&self.directions)? * 7.0)? + 3.0)?)
    }
}

fn options(sparsity: Sparsity) -> DictionaryOptions {
    let mut options = DictionaryOptions::new(2 * TRUE_FEATURES, ACTIVE, 1500);
    (options.sparsity, options.lr, options.silent_after) = (sparsity, 3e-3, 20 * BATCH);
    options
}

/// Trains on planted values, and rebuilds others: how much of their variance is explained, how many features fire, and for each planted
/// direction the cosine with the most similar row of `W_dec`.
fn learned(sparsity: Sparsity) -> Result<(f64, f64, Vec<f32>)> {
    let mut planted = Planted::new()?;
    let options = options(sparsity);
    let mut trainer = DictionaryTrainer::new(&planted.batch()?, options)?;
    for _ in 0..options.steps {
        trainer.step(&[planted.batch()?])?;
    }
    let (tensors, selection) = trainer.dictionary()?;
    let dictionary = Dictionary::new(tensors, selection)?.subtracting_b_dec()?;
    let x = planted.batch()?;
    let code = dictionary.encode(&x)?;
    let missed = (&x - dictionary.decode(&code, &x)?)?.sqr()?.sum_all()?.to_scalar::<f32>()?;
    let all = x.broadcast_sub(&x.mean_keepdim(0)?)?.sqr()?.sum_all()?.to_scalar::<f32>()?;
    let rows = dictionary.w_dec();
    let rows = rows.broadcast_div(&rows.sqr()?.sum_keepdim(1)?.sqrt()?)?;
    let cosines = planted.directions.matmul(&rows.t()?)?.max(D::Minus1)?.to_vec1()?;
    Ok((1.0 - f64::from(missed / all), code.mean_fired(), cosines))
}

#[test]
fn topk_finds_planted_directions() -> Result {
    let (explained, fired, cosines) = learned(Sparsity::TopK)?;
    assert!(explained > 0.97, "{explained}");
    assert!(fired <= ACTIVE as f64, "{fired}");
    let found = cosines.iter().filter(|&&cosine| cosine > 0.95).count();
    assert!(found >= TRUE_FEATURES - 2, "{cosines:?}");
    Ok(())
}

#[test]
fn jumprelu_finds_planted_directions_and_keeps_to_its_number() -> Result {
    let (explained, fired, cosines) = learned(Sparsity::JumpRelu)?;
    assert!(explained > 0.9, "{explained}");
    assert!((fired / ACTIVE as f64 - 1.0).abs() < 0.5, "{fired}");
    let found = cosines.iter().filter(|&&cosine| cosine > 0.9).count();
    assert!(found >= TRUE_FEATURES - 4, "{cosines:?}");
    Ok(())
}

/// Of planted values, a transcoder reads some numbers and predicts others of another scale: what it explains, and the shapes of its
/// weights. A step reports what the dictionary before it does.
#[test]
fn a_transcoder_predicts_what_it_does_not_read() -> Result {
    const READS: usize = 10;
    let mut planted = Planted::new()?;
    let mut options = options(Sparsity::JumpRelu);
    options.reads = Some(READS);
    let sample = planted.batch()?;
    let parts = |x: &Tensor| -> Result<(Tensor, Tensor)> {
        Ok((x.narrow(1, 0, READS)?.contiguous()?, x.narrow(1, READS, D_MODEL - READS)?.contiguous()?))
    };
    let mut trainer = DictionaryTrainer::new(&sample, options)?;
    for _ in 1..options.steps {
        trainer.step(&[planted.batch()?])?;
    }
    let (tensors, selection) = trainer.dictionary()?;
    assert_eq!((tensors.w_enc.dims(), tensors.w_dec.dims()), (&[READS, 48][..], &[48, D_MODEL - READS][..]));
    let dictionary = Dictionary::new(tensors, selection)?.transcoding();
    let batch = planted.batch()?;
    let (read, target) = parts(&batch)?;
    let missed = (&target - dictionary.decode(&dictionary.encode(&read)?, &read)?)?;
    let missed = missed.sqr()?.mean_all()?.to_scalar::<f32>()?;
    let variance = |x: &Tensor| -> Result<f32> {
        Ok(x.broadcast_sub(&x.mean_keepdim(0)?)?.sqr()?.mean_all()?.to_scalar()?)
    };
    let explained = 1.0 - missed / variance(&target)?;
    assert!(explained > 0.6, "{explained}");
    let step = trainer.step(&[batch])?;
    let expected = missed / variance(&parts(&sample)?.1)?;
    // Sums of f32 in another order, for the scales are folded in.
    assert!((step.unexplained - f64::from(expected)).abs() < 1e-4, "{step:?}, not {expected}");
    options.reads = Some(D_MODEL);
    let said = DictionaryTrainer::new(&sample, options).expect_err("nothing to predict").to_string();
    assert!(said.contains("reads 16 numbers of 16"), "{said}");
    Ok(())
}

/// As in SAELens, a feature whose sum is its threshold does not fire.
#[test]
fn a_sum_at_its_threshold_does_not_fire() -> Result {
    let eye = Tensor::eye(2, candle_core::DType::F32, &test_device())?;
    let zeros = Tensor::zeros(2, candle_core::DType::F32, &test_device())?;
    let tensors =
        DictionaryTensors { w_enc: eye.clone(), b_enc: zeros.clone(), w_dec: eye, b_dec: zeros, skip: None };
    let threshold = Tensor::new(&[0.5f32, 0.25], &test_device())?;
    let dictionary = Dictionary::new(tensors, Selection::JumpRelu(threshold))?;
    let fired = |x: [f32; 2]| -> Result<f64> {
        Ok(dictionary.encode(&Tensor::new(&[x], &test_device())?)?.mean_fired())
    };
    for (x, expected) in [([0.5, 0.25], 0.0), ([0.5, 0.5], 1.0), ([0.5f32.next_up(), 0.5], 2.0)] {
        assert!((fired(x)? - expected).abs() < 1e-9, "{x:?}");
    }
    Ok(())
}

/// The scale is folded into the weights: what the trainer rebuilds in its units is what the dictionary rebuilds as it is.
#[test]
fn a_step_reports_what_the_dictionary_before_it_does() -> Result {
    for sparsity in [Sparsity::TopK, Sparsity::JumpRelu] {
        let mut planted = Planted::new()?;
        let sample = planted.batch()?;
        let mut trainer = DictionaryTrainer::new(&sample, options(sparsity))?;
        for _ in 0..30 {
            trainer.step(&[planted.batch()?])?;
        }
        let (tensors, selection) = trainer.dictionary()?;
        assert_eq!(matches!(selection, Selection::TopK { .. }), sparsity == Sparsity::TopK);
        let dictionary = Dictionary::new(tensors, selection)?.subtracting_b_dec()?;
        let x = planted.batch()?;
        let code = dictionary.encode(&x)?;
        let missed = (&x - dictionary.decode(&code, &x)?)?.sqr()?.mean_all()?.to_scalar::<f32>()?;
        let all = sample.broadcast_sub(&sample.mean_keepdim(0)?)?.sqr()?.mean_all()?.to_scalar::<f32>()?;
        let step = trainer.step(&[x])?;
        assert!(
            (step.unexplained - f64::from(missed / all)).abs() < 1e-4,
            "{} {}",
            step.unexplained,
            missed / all
        );
        assert!((step.l0 - code.mean_fired()).abs() < 0.02, "{} {}", step.l0, code.mean_fired());
    }
    Ok(())
}

#[test]
fn what_cannot_be_learned_is_refused() -> Result {
    let x = Planted::new()?.batch()?;
    let refused = |x: &Tensor, options: DictionaryOptions, says: &str| {
        let error = DictionaryTrainer::new(x, options).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    };
    refused(&x, DictionaryOptions::new(8, 9, 10), "9 fire");
    refused(&x, DictionaryOptions::new(8, 0, 10), "0 fire");
    refused(&x.zeros_like()?, DictionaryOptions::new(8, 2, 10), "mean norm is 0");
    refused(&x.ones_like()?, DictionaryOptions::new(8, 2, 10), "the same at all 256 positions");
    refused(&x.narrow(0, 0, 0)?, DictionaryOptions::new(8, 2, 10), "got none");
    Ok(())
}
