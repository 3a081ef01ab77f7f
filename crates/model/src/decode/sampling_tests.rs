use super::*;

#[test]
fn top_k_and_top_p_keep_the_most_probable() {
    let logits = [0.0, 3.0, 1.0, 2.0].map(|x: f32| x);
    let ids = |s: Sampling| s.keep(&logits).into_iter().map(|(token, _)| token).collect::<Vec<_>>();
    assert_eq!(ids(Sampling { top_k: Some(2), ..Sampling::default() }), [1, 3]);
    // softmax: 0.644, 0.237, 0.087, 0.032
    assert_eq!(ids(Sampling { top_p: Some(0.64), ..Sampling::default() }), [1]);
    assert_eq!(ids(Sampling { top_p: Some(0.65), ..Sampling::default() }), [1, 3]);
    assert_eq!(ids(Sampling { top_p: Some(1.0), ..Sampling::default() }), [1, 3, 2, 0]);
}

#[test]
fn draws_follow_the_probabilities() -> Result<()> {
    let sampler = Sampler::new(Sampling { seed: 1, ..Sampling::default() }, 0);
    let mut counts = [0usize; 2];
    let text = vec![0; 20_000];
    for length in 0..text.len() {
        let mut logits = [3f32.ln(), 0.0]; // 0.75, 0.25
        counts[sampler.choose(&mut logits, &text[..length])? as usize] += 1;
    }
    // Five standard deviations of a binomial with n = 20000, p = 0.75.
    assert!((14_700..15_300).contains(&counts[0]), "{counts:?}");
    Ok(())
}

#[test]
fn numbers_differ_by_seed_place_and_token_and_fill_the_unit_interval() {
    let sampling = |seed| Sampling { seed, ..Sampling::default() };
    let mut all: Vec<f64> = vec![];
    for seed in [1, 1 << 40] {
        for place in 0..50 {
            all.extend((0..200).map(|token| sampling(seed).random(place, token)));
        }
    }
    let n = all.len() as f64;
    let mean = all.iter().sum::<f64>() / n;
    assert!((mean - 0.5).abs() < 5.0 / (12.0 * n).sqrt(), "{mean}"); // five standard deviations
    all.sort_by(f64::total_cmp);
    assert!(all.windows(2).all(|two| two[0] < two[1]), "no number occurs twice");
    assert!(all[0] > 0.0 && all[all.len() - 1] < 1.0);
}

/// Logits that differ by a little, as those of a quantized model do, disagree as seldom as their probabilities differ.
#[test]
fn nearly_the_same_logits_draw_nearly_always_the_same_token() -> Result<()> {
    let sampler = Sampler::new(Sampling { seed: 3, ..Sampling::default() }, 0);
    let (tokens, draws) = (50, 4000);
    let logits: Vec<f32> = (0..tokens).map(|i| (i * 37 % 50) as f32 / 25.0).collect();
    let other: Vec<f32> = (0..tokens).zip(&logits).map(|(i, x)| x + 0.05 * (i as f32).sin()).collect();
    let text = vec![0; draws];
    let mut same = 0;
    for place in 0..draws {
        let [a, b] = [&logits, &other].map(|logits| sampler.choose(&mut logits.clone(), &text[..place]));
        same += usize::from(a? == b?);
    }
    // The total variation distance is below 0.02, and twice that bounds the share that differs.
    assert!(same > draws * 96 / 100, "{same} of {draws}");
    Ok(())
}

#[test]
fn min_p_keeps_what_is_not_much_less_probable_than_the_best() {
    let logits = [0.0, 3.0, 1.0, 2.0].map(|x: f32| x); // beside the best: 0.0498, 1, 0.135, 0.368
    let kept = |min_p| Sampling { min_p: Some(min_p), ..Sampling::default() }.keep(&logits).len();
    assert_eq!([1.0, 0.4, 0.36, 0.13, 0.04].map(kept), [1, 1, 2, 3, 4]);
}

/// With probabilities 0.5, 0.25, 0.125, 0.125 the entropy is 1.75 bits, and the information 1, 2, 3 and 3: the distances are
/// 0.75, 0.25, 1.25 and 1.25.
#[test]
fn typical_p_keeps_what_is_as_surprising_as_expected() {
    let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
    let kept = |p| {
        let sampling = Sampling { typical_p: Some(p), ..Sampling::default() };
        let mut ids: Vec<_> = sampling.keep(&logits).into_iter().map(|(token, _)| token).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(kept(0.2), [1]);
    assert_eq!(kept(0.3), [0, 1]);
    assert_eq!(kept(0.8), [0, 1, 2, 3]); // the two last are as far
    assert_eq!(kept(1.0), [0, 1, 2, 3]);
    // A token without any probability changes no entropy.
    let logits = [logits[0], logits[1], logits[2], logits[3], -2000.0];
    let sampling = Sampling { typical_p: Some(0.2), ..Sampling::default() };
    assert_eq!(sampling.keep(&logits), [(1, logits[1])]);
}

#[test]
fn a_penalty_makes_what_was_said_less_probable_whatever_its_sign() -> Result<()> {
    let sampling = Sampling { repetition_penalty: 2.0, ..Sampling::greedy() };
    assert_eq!(sampling.choose(&mut [4.0, 3.0], &[0, 0], 0)?, 1);
    assert_eq!(sampling.choose(&mut [-1.0, -1.5], &[0], 0)?, 1);
    Ok(())
}

#[test]
fn what_is_not_finite_is_an_error_and_not_a_token() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for sampling in [Sampling::greedy(), Sampling::default()] {
            assert!(sampling.choose(&mut [0.0, bad], &[], 0).is_err());
        }
    }
    assert!(Sampling { repetition_penalty: 1e-50, ..Sampling::default() }.validate().is_err());
    let least = Sampling { repetition_penalty: f32::MIN_POSITIVE.into(), ..Sampling::default() };
    assert!(least.validate().is_ok());
}

#[test]
fn top_p_is_a_part_of_what_temperature_and_top_k_leave() {
    let logits = [3f32, 2., 1., 0.]; // 0.644, 0.237, 0.087, 0.032
    let kept = |s: Sampling| s.keep(&logits).len();
    // Of the two most probable tokens, the first has 0.731 and the second 0.269.
    assert_eq!(kept(Sampling { top_k: Some(2), top_p: Some(0.7), ..Sampling::default() }), 1);
    assert_eq!(kept(Sampling { top_k: Some(2), top_p: Some(0.75), ..Sampling::default() }), 2);
    // At temperature 0.5 the first token alone has 0.865.
    assert_eq!(kept(Sampling { temperature: 0.5, top_p: Some(0.8), ..Sampling::default() }), 1);
    assert_eq!(kept(Sampling { top_p: Some(0.8), ..Sampling::default() }), 2);
}

/// Against a full sort, for logits with many ties.
#[test]
fn what_is_kept_is_the_beginning_of_all_tokens_in_order() {
    let logits: Vec<f32> =
        (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_769) >> 20) as f32 / 300.0).collect();
    for (top_k, top_p, temperature) in [
        (None, None, 1.0),
        (Some(3), None, 0.5),
        (Some(700), Some(0.9), 2.0),
        (None, Some(0.999), 5.0),
        (None, Some(1.0), 1.0),
        (Some(9000), None, 3.0),
    ] {
        let sampling = Sampling { temperature, top_k, top_p, ..Sampling::default() };
        let mut all: Vec<(usize, f64)> = logits.iter().map(|&l| f64::from(l)).enumerate().collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        all.truncate(top_k.unwrap_or(usize::MAX));
        let highest = all[0].1;
        for (_, l) in &mut all {
            *l = ((*l - highest) / temperature).exp();
        }
        let mass = top_p.unwrap_or(1.0) * all.iter().map(|(_, p)| p).sum::<f64>();
        let mut sum = 0.0;
        let kept = all.iter().position(|(_, p)| {
            sum += p;
            sum >= mass * (1.0 - 1e-12)
        });
        let mut expected: Vec<usize> = all.iter().map(|(token, _)| *token).collect();
        expected.truncate(kept.filter(|_| top_p.is_some()).map_or(all.len(), |i| i + 1));
        let mut got: Vec<usize> = sampling.keep(&logits).into_iter().map(|(token, _)| token).collect();
        expected.sort_unstable();
        got.sort_unstable();
        assert_eq!(got, expected, "{sampling:?}");
    }
}

/// Philox4x32-10 of counter and key 0 is 6627e8d5 e169c58d bc57ac4c 9b00dbd8, as its authors publish. Each token takes two
/// words, and of them 52 bits.
#[test]
fn random_numbers_are_those_of_philox() {
    let sampling = Sampling { seed: 0, ..Sampling::default() };
    for (token, bits) in [(0, 0xe_169c_58d6_627e_u64), (1, 0x9_b00d_bd8b_c57a)] {
        let expected = (bits as f64 + 0.5) / 2f64.powi(52);
        assert_eq!(sampling.random(0, token).to_bits(), expected.to_bits(), "token {token}");
    }
}

#[test]
fn a_token_is_penalized_once_however_often_it_was_said() -> Result<()> {
    let sampling = Sampling { repetition_penalty: 1.2, ..Sampling::greedy() };
    // 4 / 1.2 is above 3, and 4 / 1.44 is not.
    assert_eq!(sampling.choose(&mut [4.0, 3.0, 0.0], &[0, 0], 0)?, 0);
    assert_eq!(sampling.choose(&mut [4.0, 3.0, 0.0], &[0, 2, 0], 0)?, 0);
    assert_eq!(sampling.choose(&mut [4.0, 3.5, 0.0], &[0, 7], 0)?, 1, "token 7 does not exist");
    Ok(())
}

#[test]
fn parts_are_above_0_and_at_most_1_and_penalties_finite() {
    let of = |name: &str, p: f64| match name {
        "top_p" => Sampling { top_p: Some(p), ..Sampling::default() },
        "min_p" => Sampling { min_p: Some(p), ..Sampling::default() },
        _ => Sampling { typical_p: Some(p), ..Sampling::default() },
    };
    for name in ["top_p", "min_p", "typical_p"] {
        assert!(of(name, 1.0).validate().is_ok() && of(name, 1e-9).validate().is_ok());
        for p in [0.0, -0.1, 1.01, f64::NAN] {
            let error = of(name, p).validate().map_err(|e| e.to_string());
            assert!(error.as_ref().is_err_and(|e| e.starts_with(name)), "{name} {p}: {error:?}");
        }
    }
    for penalty in [f64::INFINITY, f64::NAN, -1.0] {
        let sampling = Sampling { repetition_penalty: penalty, ..Sampling::default() };
        assert!(sampling.validate().is_err(), "{penalty}");
    }
    for (temperature, is_fine) in [(0.0, true), (f64::INFINITY, false)] {
        assert_eq!(Sampling { temperature, ..Sampling::default() }.validate().is_ok(), is_fine);
    }
    assert!(Sampling { top_k: Some(1), ..Sampling::default() }.validate().is_ok());
    assert_eq!(Sampling::default().seed, 0);
}

#[test]
fn the_probabilities_are_those_that_draws_follow() -> Result<()> {
    let logits = [2.0, 3.0, 1.0, 3.0f32];
    // exp(2), exp(3), exp(1), exp(3) over their sum: 0.147, 0.399, 0.054, 0.399
    let of = |sampling: Sampling| sampling.probabilities(&logits);
    let near = |found: &[(u32, f64)], expected: &[(u32, f64)]| {
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((id, p), (expected_id, expected)) in found.iter().zip(expected) {
            assert!(id == expected_id && (p - expected).abs() < 1e-3, "{found:?}");
        }
    };
    near(&of(Sampling::default())?, &[(1, 0.399), (3, 0.399), (0, 0.147), (2, 0.054)]);
    near(&of(Sampling { top_k: Some(3), ..Sampling::default() })?, &[(1, 0.422), (3, 0.422), (0, 0.155)]);
    near(&of(Sampling { top_p: Some(0.3), ..Sampling::default() })?, &[(1, 1.0)]);
    // At half the temperature, squares of them.
    near(
        &of(Sampling { temperature: 0.5, top_k: Some(3), ..Sampling::default() })?,
        &[(1, 0.468), (3, 0.468), (0, 0.063)],
    );
    near(&of(Sampling::greedy())?, &[(1, 1.0)]);
    // Of two that are equally probable, greedy decoding takes the first, and both are drawn as often.
    let sampling = Sampling { top_k: Some(3), ..Sampling::default() };
    let sampler = Sampler::new(sampling.clone(), 0);
    let text = vec![0; 4000];
    let mut counts = [0.0; 4];
    for place in 0..text.len() {
        counts[sampler.choose(&mut logits.clone(), &text[..place])? as usize] += 1.0 / text.len() as f64;
    }
    for (id, p) in of(sampling)? {
        // Five standard deviations.
        assert!(
            (counts[id as usize] - p).abs() < 5.0 * (p * (1.0 - p) / text.len() as f64).sqrt(),
            "{counts:?}"
        );
    }
    assert!(counts[2] < f64::MIN_POSITIVE, "{counts:?}");
    assert!(Sampling::default().probabilities(&[0.0, f32::NAN]).is_err());
    assert!(of(Sampling { top_k: Some(0), ..Sampling::default() }).is_err());
    Ok(())
}

/// The tokens that a GPU would find in these logits: the sum of the weights is added in another order.
fn found_in(search: &TokenSearch, sampling: &Sampling, logits: &[f32]) -> FoundTokens {
    let mut listed: Vec<(usize, f32)> = logits.iter().copied().enumerate().collect();
    let highest = most_probable(logits);
    let weights = logits.iter().rev().map(|&logit| sampling.weight(logit, highest.1));
    let sum = if search.sums { weights.sum::<f64>() * (1.0 + 3e-10) } else { 0.0 };
    listed.sort_by(descending);
    listed.truncate(search.listed);
    let of = |(token, logit): (usize, f32)| (id(token).expect("a small id"), logit);
    FoundTokens {
        not_finite: logits.iter().copied().enumerate().find(|(_, logit)| !logit.is_finite()).map(of),
        highest: of(highest),
        drawn: None,
        sum,
        listed: listed.into_iter().map(of).collect(),
    }
}

/// Of a few logits with many ties, or of many that hardly differ, under any options.
#[test]
fn what_a_gpu_finds_gives_the_choice_of_all_logits() {
    let mut random = 1u32;
    let mut next = |below: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) as usize % below
    };
    let (mut decided, mut asked) = (0, 0);
    for case in 0..4000 {
        let parts = [None, Some(1e-9), Some(0.3), Some(0.9), Some(0.999), Some(1.0)];
        let sampling = Sampling {
            temperature: [0.0, 0.3, 1.0, 4.0, 1e-20, 1e20][next(6)],
            top_k: [None, None, Some(1), Some(5), Some(700), Some(5000)][next(6)],
            top_p: parts[next(6)],
            min_p: parts[next(6)].filter(|_| next(2) == 0),
            typical_p: parts[next(6)].filter(|_| next(2) == 0),
            repetition_penalty: [1.0, 1.3][next(2)],
            seed: next(100) as u64,
        };
        let count = [1, 2, 40, 1024, 1025, 3000][next(6)];
        let (steps, width) = ([4, 1000][next(2)], [0.01, 1.0, 8.0][next(3)]);
        let mut logits: Vec<f32> =
            (0..count).map(|_| next(steps) as f32 / steps as f32 * width - 2.0).collect();
        if case % 50 == 0 {
            logits[next(count)] = f32::NAN;
        }
        let Some(search) = sampling.search().filter(|search| search.seed.is_none()) else { continue };
        let text = [1, 30, 30, 5000];
        let mut penalized = logits.clone();
        penalize(&mut penalized, &text, sampling.repetition_penalty);
        let sampler = Sampler::new(sampling.clone(), 1);
        let found = found_in(&search, &sampling, &penalized);
        let first_line = |e: candle_core::Error| e.to_string().lines().next().map(str::to_owned);
        let said = |result: Result<Option<u32>>| result.map_err(first_line);
        let got = said(sampler.choose_found(&found, count, &text));
        asked += 1;
        if got == Ok(None) {
            continue; // the host takes all logits
        }
        decided += 1;
        assert_eq!(got, said(sampler.choose(&mut logits, &text).map(Some)), "{sampling:?}, {count} logits");
    }
    assert!(decided > asked * 3 / 4 && asked > 2000, "{decided} of {asked}");
}

/// All logits decide where it found no token that certainly arrives first.
#[test]
fn a_gpu_s_draw_is_taken_where_it_is_certain() -> Result<()> {
    let sampling = Sampling { seed: 3, ..Sampling::default() };
    let search = sampling.search().ok_or_else(|| candle_core::Error::msg("no search"))?;
    let close = found_in(&search, &sampling, &[1.0, 2.0, 3.0]);
    assert_eq!(sampling.choose_found(&close, 3, 0)?, None);
    assert_eq!(sampling.choose_found(&FoundTokens { drawn: Some(2), ..close }, 3, 0)?, Some(2));
    Ok(())
}

/// All logits decide where the order of a sum could.
#[test]
fn a_sum_on_the_edge_of_a_nucleus_decides_nothing() -> Result<()> {
    let sampling = Sampling { top_p: Some(0.5), ..Sampling::default() };
    let mut logits = vec![-800.0f32; 2000];
    logits[..4].fill(1.0); // the first two have exactly a half
    let search = sampling.search().ok_or_else(|| candle_core::Error::msg("no search"))?;
    let found = found_in(&search, &sampling, &logits);
    assert_eq!(sampling.choose_found(&found, 2000, 0)?, None);
    let certain = Sampling { top_p: Some(0.51), ..sampling };
    let expected = certain.choose(&mut logits, &[], 0)?;
    assert_eq!(certain.choose_found(&found, 2000, 0)?, Some(expected));
    Ok(())
}

#[test]
fn what_needs_all_logits_is_not_searched_for() {
    let of = |sampling: Sampling| sampling.search().map(|search| (search.listed, search.sums, search.seed));
    let plain = Sampling { seed: 7, ..Sampling::default() };
    let most = TokenSearch::MOST;
    assert_eq!(of(Sampling::greedy()), Some((0, false, None)));
    assert_eq!(of(plain.clone()), Some((0, false, Some(7))));
    assert_eq!(of(Sampling { top_k: Some(40), ..plain.clone() }), Some((40, false, None)));
    assert_eq!(of(Sampling { top_p: Some(0.9), ..plain.clone() }), Some((most, true, None)));
    assert_eq!(of(Sampling { min_p: Some(0.1), ..plain.clone() }), Some((most, false, None)));
    for all in [
        Sampling { top_k: Some(most + 1), ..plain.clone() },
        Sampling { top_p: Some(1.0), ..plain.clone() },
        Sampling { typical_p: Some(0.5), ..plain.clone() },
        Sampling { temperature: 1e-40, ..plain.clone() },
    ] {
        assert_eq!(of(all), None);
    }
}
