//! The tokens that the GPU finds in rows of logits for the choice of the next tokens, against all logits on the CPU.

use super::{DTYPES, device, numbers};
use crate::common::Result;
use candle_core::{DType, Device, Tensor};
use candle_fused::{FoundTokens, TokenSearch};
use rand_philox::philox4x32_10;

fn search() -> TokenSearch {
    TokenSearch { listed: 0, temperature: 1.0, penalty: 1.0, sums: false, seed: None }
}

/// Row `i` has `texts[i]`, and draws at place `7 + i`.
fn found(search: &TokenSearch, rows: &[Vec<f32>], texts: &[Vec<u32>]) -> Result<Vec<FoundTokens>> {
    let device = device();
    let v = rows[0].len();
    let logits = Tensor::from_vec(rows.concat(), (rows.len(), v), &device)?;
    let mut words = vec![];
    for (i, text) in texts.iter().enumerate() {
        words.extend(search.row(v, 7 + i, text)?);
    }
    let shape = (rows.len(), search.row_words(v));
    let words = if words.is_empty() { None } else { Some(Tensor::from_vec(words, shape, &device)?) };
    let found = Tensor::zeros((rows.len(), search.words(v)), DType::U32, &device)?;
    search.find(&logits, words.as_ref(), &found)?;
    Ok(search.read(&found)?)
}

/// The tokens by the definition, and the draw that f64 gives.
fn expected(search: &TokenSearch, logits: &[f32], text: &[u32], place: u32) -> FoundTokens {
    let mut logits = logits.to_vec();
    let mut ids = text.to_vec();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit = if *logit > 0.0 { *logit / search.penalty } else { *logit * search.penalty };
        }
    }
    let all: Vec<(u32, f32)> = (0..).zip(logits).collect();
    let highest = all.iter().skip(1).fold(all[0], |best, &one| if one.1 > best.1 { one } else { best });
    let weight = |logit: f32| ((f64::from(logit) - f64::from(highest.1)) / search.temperature).exp();
    let mut listed = all.clone();
    listed.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    listed.truncate(search.listed);
    let drawn = search.seed.map(|seed| {
        let time = |id: u32, logit: f32| {
            #[allow(clippy::cast_possible_truncation)] // in halves
            let key = [seed as u32, (seed >> 32) as u32];
            let words = philox4x32_10([id / 2, place, 0, 0], key);
            let at = 2 * (id % 2) as usize;
            let bits = u64::from(words[at + 1]) << 20 | u64::from(words[at]) >> 12;
            -((bits as f64 + 0.5) / 2f64.powi(52)).ln() / weight(logit)
        };
        let times = all.iter().map(|&(id, logit)| (time(id, logit), id));
        times.fold((f64::INFINITY, 0), |first, one| if one.0 < first.0 { one } else { first }).1
    });
    FoundTokens {
        not_finite: all.iter().find(|(_, logit)| !logit.is_finite()).copied(),
        highest,
        drawn,
        sum: if search.sums { all.iter().map(|&(_, logit)| weight(logit)).sum() } else { 0.0 },
        listed,
    }
}

#[track_caller]
fn assert_same(got: &FoundTokens, expected: &FoundTokens, case: &str) {
    assert_eq!(got.not_finite, expected.not_finite, "{case}");
    // 0 and -0 are as high.
    assert_eq!(got.highest, expected.highest, "{case}");
    assert!((got.sum - expected.sum).abs() <= 1e-9 * expected.sum, "{case}: {} {}", got.sum, expected.sum);
    let bits = |all: &[(u32, f32)]| all.iter().map(|(id, logit)| (*id, logit.to_bits())).collect::<Vec<_>>();
    assert_eq!(bits(&got.listed), bits(&expected.listed), "{case}");
    assert!(got.drawn.is_none() || got.drawn == expected.drawn, "{case}: {got:?} {expected:?}");
}

/// Logits of this dtype, of a few sizes: whole numbers have many ties.
fn logits(v: usize, salt: usize, dtype: DType, whole: bool) -> Result<Vec<f32>> {
    let all = numbers(v, salt)?.affine(4., -20. * (salt % 2) as f64)?;
    let all = if whole { all.round()? } else { all };
    Ok(all.to_dtype(dtype)?.to_dtype(DType::F32)?.to_vec1()?)
}

fn searches() -> Vec<TokenSearch> {
    let listing = |listed| TokenSearch { listed, ..search() };
    let drawing = |seed, temperature| TokenSearch { seed: Some(seed), temperature, ..search() };
    vec![
        search(),
        listing(1),
        listing(50),
        TokenSearch { listed: 1024, sums: true, temperature: 0.3, ..search() },
        drawing(3, 1.0),
        TokenSearch { penalty: 1.3, ..drawing(1 << 40, 2.5) },
        TokenSearch { penalty: 0.7, sums: true, temperature: 3.0, ..listing(7) },
        TokenSearch { penalty: 1e9, ..listing(2) },
    ]
}

/// On the CPU, `find` is refused by name.
fn has_no_kernel() -> Result<bool> {
    if TokenSearch::runs_on(&device())? {
        return Ok(false);
    }
    let refused = found(&search(), &[vec![1.0, 2.0]], &[vec![]]).map_err(|e| e.to_string());
    assert!(refused.is_err_and(|e| e.contains("no kernel")));
    Ok(true)
}

#[test]
fn tokens_found_on_the_gpu_are_those_of_all_logits() -> Result {
    if has_no_kernel()? {
        return Ok(());
    }
    let mut undecided = 0;
    for (v, b) in [(1, 1), (2, 3), (31, 1), (33, 2), (1000, 9), (1024, 1), (1025, 1), (5003, 3), (50257, 1)] {
        for (i, search) in searches().into_iter().enumerate() {
            let dtype = DTYPES[(i + v) % 3];
            let rows: Vec<_> = (0..b)
                .map(|row| logits(v, 99 * row + i, dtype, (i + row) % 3 == 0))
                .collect::<Result<_>>()?;
            let last = u32::try_from(v)?;
            let text = |row: u32| vec![0, row % last, last - 1, last / 2, last / 2, last, last + 40];
            let texts: Vec<_> = (0..u32::try_from(b)?).map(text).collect();
            let got = found(&search, &rows, &texts)?;
            for (row, got) in got.iter().enumerate() {
                let place = 7 + u32::try_from(row)?;
                let expected = expected(&search, &rows[row], &texts[row], place);
                assert_same(got, &expected, &format!("{search:?}, row {row} of {b}, {v} logits, {dtype:?}"));
                undecided += u32::from(search.seed.is_some() && got.drawn.is_none());
            }
        }
    }
    assert!(undecided < 2, "{undecided} draws are left to the host");
    Ok(())
}

/// All logits alike, zeros of both signs, and few values: ties are listed from the lowest id on.
#[test]
fn ties_among_logits_are_exact() -> Result {
    if has_no_kernel()? {
        return Ok(());
    }
    let v = 3000;
    let rows = [
        vec![-1.5; v],
        (0..v).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect(),
        (0..v).map(|i| if i % 3 == 1 { 0.0 } else { -0.0 }).collect(),
        (0..v).map(|i| (i * i % 7) as f32 - 9.0).collect(),
        (0..v).map(|i| if i == 2999 { 1e30 } else { f32::from_bits(1 + u32::from(i % 2 == 1)) }).collect(),
    ];
    let texts = vec![vec![2, 5, 5]; rows.len()];
    for listed in [0, 1, 2, 31, 429, 1000, 1001, 1024] {
        for penalty in [1.0, 1.5] {
            let search = TokenSearch { listed, penalty, sums: true, temperature: 0.7, ..search() };
            let got = found(&search, &rows, &texts)?;
            for (row, (got, logits)) in got.iter().zip(&rows).enumerate() {
                let expected = expected(&search, logits, &texts[row], 0);
                assert_same(got, &expected, &format!("row {row}, {listed} listed, penalty {penalty}"));
            }
        }
    }
    Ok(())
}

/// The lowest id, wherever it lies, also where the penalty alone makes the logit infinite; other rows do not mind.
#[test]
fn a_logit_that_is_not_finite_is_found() -> Result {
    if has_no_kernel()? {
        return Ok(());
    }
    let v = 2100;
    let fine = logits(v, 1, DType::F32, false)?;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for ids in [&[0usize][..], &[2099], &[1030, 1031, 2060], &[1031, 7], &[2048, 1023]] {
            let mut row = fine.clone();
            for &id in ids {
                row[id] = bad;
            }
            let search = TokenSearch { listed: 5, ..search() };
            let got = found(&search, &[fine.clone(), row], &[vec![], vec![]])?;
            assert_eq!(got[0].not_finite, None);
            let (id, logit) = got[1].not_finite.ok_or("not found")?;
            assert_eq!(id as usize, *ids.iter().min().ok_or("no id")?);
            assert_eq!(logit.to_bits(), bad.to_bits());
        }
    }
    let search = TokenSearch { penalty: 1e30, ..search() };
    let got = found(&search, &[vec![1.0, -1e10, -1e30]], &[vec![0, 1, 2]])?;
    assert_eq!(got[0].not_finite, Some((1, f32::NEG_INFINITY)));
    Ok(())
}

/// A thousand draws of nearly equal tokens: the first to arrive, or `None` where a second comes at nearly the same time.
#[test]
fn draws_on_the_gpu_are_those_of_f64() -> Result {
    if has_no_kernel()? {
        return Ok(());
    }
    let row = logits(700, 5, DType::F32, false)?;
    let mut undecided = 0;
    for seed in 0..30u64 {
        let search = TokenSearch { seed: Some(seed << 20), temperature: 2.0, ..search() };
        let rows = vec![row.clone(); 40];
        let texts = vec![vec![]; 40];
        let got = found(&search, &rows, &texts)?;
        for (i, got) in got.iter().enumerate() {
            let expected = expected(&search, &row, &[], 7 + u32::try_from(i)?);
            assert_same(got, &expected, &format!("seed {seed}, draw {i}"));
            undecided += usize::from(got.drawn.is_none());
        }
    }
    assert!(undecided < 5, "{undecided} of 1200 draws are left to the host");
    Ok(())
}

#[test]
fn searches_without_a_kernel_are_refused() -> Result {
    let device = device();
    let v = 10;
    let logits = Tensor::zeros((2, v), DType::F32, &device)?;
    let run = |search: &TokenSearch, logits: &Tensor, rows: Option<&Tensor>, words: usize| {
        let found = Tensor::zeros((2, words), DType::U32, &device)?;
        search.find(logits, rows, &found)
    };
    let refused = |result: candle_core::Result<()>, cause: &str| {
        let error = result.map_err(|e| e.to_string()).expect_err("refused");
        assert!(error.contains(cause), "{error}");
    };
    let plain = search();
    refused(run(&plain, &logits, None, 9), "the result must be");
    refused(run(&plain, &logits.to_dtype(DType::BF16)?, None, 8), "must be f32");
    let rows = Tensor::zeros((2, 1), DType::U32, &device)?;
    refused(run(&plain, &logits, Some(&rows), 8), "the rows must be");
    let drawing = TokenSearch { seed: Some(1), ..search() };
    refused(run(&drawing, &logits, None, 8), "the rows must be");
    refused(run(&TokenSearch { temperature: 0.0, ..drawing }, &logits, Some(&rows), 8), "the temperature");
    refused(run(&TokenSearch { listed: 1025, ..search() }, &logits, None, 28), "at most 1024");
    refused(run(&TokenSearch { penalty: 0.0, ..search() }, &logits, None, 8), "the penalty");
    // A part of a tensor is read as its rows are.
    if TokenSearch::runs_on(&device)? {
        let all = numbers(4 * 12, 3)?.to_dtype(DType::F32)?.reshape((4, 12))?.to_device(&device)?;
        let part = all.narrow(0, 1, 2)?.narrow(1, 1, v)?;
        let found = Tensor::zeros((3, 8), DType::U32, &device)?;
        plain.find(&part, None, &found.narrow(0, 1, 2)?)?;
        let rows = part.to_device(&Device::Cpu)?.to_vec2::<f32>()?;
        let got = plain.read(&found.narrow(0, 1, 2)?)?;
        for (got, logits) in got.iter().zip(&rows) {
            assert_same(got, &expected(&plain, logits, &[], 0), "a part");
        }
        assert_eq!(found.get(0)?.to_vec1::<u32>()?, [0; 8]);
    }
    Ok(())
}
