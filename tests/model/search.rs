//! Beam search against a search that considers every token and reads every text anew.

use crate::common::{Result, test_device};
use crate::models::random_model;
use candle_core::DType;
use gpt2_model::beams::BeamSearch;
use gpt2_model::config::TokenIds;
use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, LmHead, init};

/// The log-probabilities of each token after `text`, in f64; those of its own tokens multiplied by the penalty.
fn log_probabilities(model: &Gpt2LMHeadModel, text: &[u32], penalty: f64) -> Result<Vec<f64>> {
    let input = model.ids(text)?;
    let args = ForwardArgs { last_logits_only: true, ..Default::default() };
    let logits = model.forward(&input, args)?.logits.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    let total = logits.iter().map(|x| x.exp()).sum::<f64>().ln();
    let said = |token: usize| text.iter().any(|id| *id as usize == token);
    let penalized = |(token, x): (usize, &f64)| (x - total) * if said(token) { penalty } else { 1.0 };
    Ok(logits.iter().enumerate().map(penalized).collect())
}

/// A score or a sum of log-probabilities, and the tokens after the prompt.
type Scored = (f64, Vec<u32>);

/// The texts that end, with their scores, the best first; and the smallest difference of two that decided something.
fn expected(
    search: &BeamSearch,
    model: &Gpt2LMHeadModel,
    prompt: &[u32],
    most: usize,
) -> Result<(Vec<Scored>, f64)> {
    let beams = search.num_beams;
    let mut gap = f64::INFINITY;
    let mut running: Vec<Scored> = vec![(0.0, vec![])];
    let mut ended: Vec<Scored> = vec![];
    for length in 1..=most {
        let mut all = vec![];
        for (before, ids) in &running {
            let text = [prompt, ids].concat();
            let next = log_probabilities(model, &text, search.repetition_penalty)?;
            all.extend((0u32..).zip(next).map(|(token, x)| (before + x, [&ids[..], &[token]].concat())));
        }
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let score = |sum: f64| sum / (length as f64).powf(search.length_penalty);
        gap = all[..20].windows(2).map(|two| two[0].0 - two[1].0).fold(gap, f64::min);
        let ends = |ids: &[u32]| length == most || model.config().is_eos(ids[length - 1]);
        ended.extend(all[..beams].iter().filter(|x| ends(&x.1)).map(|(sum, ids)| (score(*sum), ids.clone())));
        ended.sort_by(|a, b| b.0.total_cmp(&a.0));
        ended.truncate(beams);
        running = all.into_iter().filter(|(_, ids)| !ends(ids)).take(beams).collect();
        let best = running.first().map(|(sum, _)| score(*sum));
        if best.is_none() {
            break;
        }
        if ended.len() == beams && (search.early_stopping || best <= ended.last().map(|(worst, _)| *worst)) {
            break;
        }
    }
    gap = ended.windows(2).map(|two| two[0].0 - two[1].0).fold(gap, f64::min);
    Ok((ended, gap))
}

#[test]
fn the_search_finds_what_a_search_through_every_token_finds() -> Result {
    let base = random_model(2, 8, 16)?;
    let (mut steps, mut searches) = (0, 0);
    // From no end to half of all tokens.
    for ends in [0u32, 1, 2, 6, 18] {
        let ids = TokenIds::Many((0..ends).map(|i| (i * 2 + 3) % 37).collect());
        let config = Config { eos_token_id: (ends > 0).then_some(ids), ..base.config().clone() };
        let model = Gpt2LMHeadModel::load(init::seeded(7, DType::F32, &test_device()), &config)?;
        for (num_beams, length_penalty, early_stopping, repetition_penalty) in [
            (1, 1.0, false, 1.0),
            (2, 1.0, false, 1.0),
            (2, 3.0, false, 1.2),
            (3, 0.0, true, 1.0),
            (3, 2.0, false, 1.0),
            (5, -1.0, false, 1.0),
            (5, 1.5, false, 0.8),
        ] {
            let search = BeamSearch { num_beams, length_penalty, early_stopping, repetition_penalty };
            for prompt in [&[1u32, 2][..], &[30], &[5, 6, 7, 8], &[12, 12, 3]] {
                let found = search.run(&model, prompt, 6)?;
                let (expected, gap) = expected(&search, &model, prompt, 6)?;
                // Rounding may decide between two as close as this.
                if gap < 1e-5 {
                    continue;
                }
                searches += 1;
                let what = format!("{search:?}, {ends} ends, after {prompt:?}");
                assert_eq!(found.len(), expected.len(), "{what}");
                for (found, (score, ids)) in found.iter().zip(&expected) {
                    assert_eq!(&found.ids, ids, "{what}");
                    assert!((found.score - score).abs() < 1e-4 * score.abs().max(1.0), "{what}");
                    steps += ids.len();
                }
            }
        }
    }
    assert!(steps > 500 && searches > 100, "{steps} tokens of {searches} searches");
    Ok(())
}

#[test]
fn the_default_search_is_transformers_and_refuses_what_is_not_finite() -> Result {
    let BeamSearch { num_beams, length_penalty, early_stopping, repetition_penalty } = BeamSearch::default();
    assert_eq!((num_beams, early_stopping), (4, false));
    assert!((length_penalty - 1.0).abs() + (repetition_penalty - 1.0).abs() < 1e-12);
    let mut model = random_model(2, 4, 8)?;
    model.lm_head = LmHead::new((model.lm_head.weight()? * f64::NAN)?)?;
    let error = BeamSearch::default().run(&model, &[1, 2], 3).expect_err("NaN").to_string();
    assert!(error.contains("the log-probability of token 0 is NaN"), "{error}");
    Ok(())
}
