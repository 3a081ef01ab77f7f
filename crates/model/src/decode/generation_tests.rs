use super::*;
use crate::Config;
use crate::decode::draft::LookupDraft;
use crate::init::seeded;
use candle_core::Device;

fn small_model(n_positions: usize) -> Result<Gpt2LMHeadModel> {
    let config = Config {
        vocab_size: 11,
        n_positions,
        n_embd: 8,
        n_layer: 1,
        n_head: 2,
        initializer_range: 0.3,
        eos_token_id: None,
        ..Config::gpt2()
    };
    Gpt2LMHeadModel::load(seeded(7, DType::F32, &Device::Cpu), &config)
}

/// A row that is padded to the length of a longer one draws the text that it draws alone: the padding is no text, so that no
/// penalty falls on its id.
#[test]
fn no_penalty_falls_on_the_padding_of_a_shorter_row() -> Result<()> {
    let model = small_model(16)?;
    let mut with_padding_id = 0;
    for seed in 0..40 {
        // At this temperature every id is drawn now and then, but for those with a penalty on a logit below 0.
        let sampling = Sampling { repetition_penalty: 1e9, temperature: 3.0, seed, ..Sampling::default() };
        let text = |prompts: &[Vec<u32>]| -> Result<Vec<u32>> {
            let mut generation = Generation::new(&model, prompts, sampling.clone(), 6)?;
            generation.by_ref().try_for_each(|step| step.map(drop))?;
            Ok(generation.texts()[0].clone())
        };
        let short = vec![3u32, 5];
        let alone = text(std::slice::from_ref(&short))?;
        assert_eq!(text(&[short, vec![1, 2, 4, 6, 7, 8]])?, alone, "seed {seed}");
        with_padding_id += usize::from(alone.contains(&0));
    }
    assert!(with_padding_id > 2, "the padding's id is hardly ever drawn: this shows nothing");
    Ok(())
}

/// Rows that have ended leave the passes, and the others draw what they draw alone.
#[test]
fn rows_that_have_ended_leave_the_passes() -> Result<()> {
    let model = small_model(16)?;
    for dtype in [CacheDType::from(DType::F32), CacheDType::Q8_0] {
        rows_leave(&model, dtype)?;
    }
    Ok(())
}

fn rows_leave(model: &Gpt2LMHeadModel, dtype: CacheDType) -> Result<()> {
    let prompts = [vec![3u32, 5], vec![1, 2, 4, 6], vec![7], vec![2, 9, 4], vec![8, 8]];
    let sampling = Sampling { temperature: 2.0, seed: 5, ..Sampling::default() };
    let begin =
        |prompts: &[Vec<u32>]| Generation::new(model, prompts, sampling.clone(), 10)?.with_cache_dtype(dtype);
    let alone = |prompt: &Vec<u32>| -> Result<Vec<u32>> {
        let mut generation = begin(std::slice::from_ref(prompt))?;
        generation.by_ref().try_for_each(|step| step.map(drop))?;
        Ok(generation.texts()[0].clone())
    };
    // One of five is less than a quarter, and stays.
    let ends = [(2, 1, 5), (4, 4, 3), (5, 0, 2), (7, 2, 1)];
    let mut generation = begin(&prompts)?;
    let mut steps = 0;
    while let Some(step) = generation.next() {
        let chosen = step?;
        steps += 1;
        for (row, token) in chosen.iter().enumerate() {
            let ended = ends.iter().any(|&(at, one, _)| one == row && steps > at);
            assert_eq!(token.is_none(), ended, "row {row} at step {steps}");
        }
        if let Some((_, _, rows)) = ends.iter().find(|(at, ..)| at + 1 == steps) {
            assert_eq!(generation.at.rows.len(), *rows, "after step {steps}");
        }
        if let Some((_, row, _)) = ends.iter().find(|(at, ..)| *at == steps) {
            generation.end(*row);
        }
    }
    assert_eq!(steps, 10);
    for (row, prompt) in prompts.iter().enumerate() {
        let whole = alone(prompt)?;
        let new = ends.iter().find(|(_, one, _)| *one == row).map_or(10, |(at, ..)| *at);
        assert_eq!(generation.texts()[row], whole[..prompt.len() + new], "row {row}");
    }
    Ok(())
}

/// Prompts that take the place of texts that have ended get the texts that they get alone, wherever they end, and those that have no
/// room beside the others wait.
#[test]
fn prompts_take_the_places_of_texts_that_have_ended() -> Result<()> {
    let model = small_model(40)?;
    for dtype in [CacheDType::from(DType::F32), CacheDType::Q8_0] {
        places_are_taken(&model, dtype)?;
    }
    Ok(())
}

fn places_are_taken(model: &Gpt2LMHeadModel, dtype: CacheDType) -> Result<()> {
    let sampling = Sampling { temperature: 2.0, seed: 5, ..Sampling::default() };
    let begin = |prompts: &[Vec<u32>], new| {
        Generation::new(model, prompts, sampling.clone(), new)?.with_cache_dtype(dtype)
    };
    // 60 prompts of 1 to 29 tokens, and up to 12 new ones; number 20 fills the context by itself.
    let prompt = |i: u32| (0..=(i * 7919 + 13) % 29).map(move |j| (i * 5 + j * j) % 11);
    let prompts: Vec<Vec<u32>> = (0..60).map(|i| prompt(i).collect()).collect();
    let new = |i: usize| if i == 20 { 41 - prompts[20].len() } else { 1 + (i * 31) % 12 };
    let mut in_place: Vec<usize> = (0..5).collect();
    let mut generation = begin(&prompts[..5], 12)?;
    let (mut next, mut waited, mut most_rows) = (5, 0, 0);
    let mut found = vec![vec![]; prompts.len()];
    while let Some(step) = generation.next() {
        let step = step?;
        most_rows = most_rows.max(generation.at.rows.len());
        for (place, token) in step.into_iter().enumerate() {
            let text = in_place[place];
            waited += usize::from(token.is_none() && generation.at.waiting.contains(&place));
            if token.is_some() && generation.texts()[place].len() == prompts[text].len() + new(text) {
                generation.end(place);
            }
            if token.is_some() && generation.at.ended[place] {
                found[text] = generation.texts()[place].clone();
                if next < prompts.len() {
                    generation.replace(place, &prompts[next], new(next))?;
                    in_place[place] = next;
                    next += 1;
                }
            }
        }
    }
    for (i, prompt) in prompts.iter().enumerate() {
        let mut alone = begin(std::slice::from_ref(prompt), new(i))?;
        alone.by_ref().try_for_each(|step| step.map(drop))?;
        assert_eq!(found[i], alone.texts()[0], "text {i} in {}", dtype.as_str());
    }
    assert!(waited > 0, "no prompt ever waited: this shows less");
    assert!((5..=7).contains(&most_rows), "{most_rows} rows for 5 places");
    Ok(())
}

#[test]
fn a_prompt_joins_where_a_row_has_ended_or_is_added() -> Result<()> {
    let model = small_model(16)?;
    let refused = |result: Result<()>, why: &str| {
        let message = result.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(message.contains(why), "{message:?}");
    };
    let mut generation = Generation::new(&model, &[vec![1, 2], vec![3]], Sampling::greedy(), 4)?;
    refused(generation.replace(0, &[1], 1), "has not ended");
    generation.end(0);
    refused(generation.replace(0, &[], 1), "at least one token");
    refused(generation.replace(0, &[1; 10], 8), "do not fit");
    generation.replace(0, &[5, 6], 2)?;
    generation.by_ref().try_for_each(|step| step.map(drop))?;
    assert_eq!(generation.texts().iter().map(Vec::len).collect::<Vec<_>>(), [4, 5]);
    // All have ended: one that takes a place goes on, and another waits until it fits beside it.
    generation.replace(1, &[7], 3)?;
    assert_eq!(generation.add(&[2; 15], 2)?, 2);
    generation.next().ok_or("a step").map_err(candle_core::Error::msg)??;
    assert_eq!(generation.at.rows.len(), 1, "they have no room together");
    generation.by_ref().try_for_each(|step| step.map(drop))?;
    assert_eq!(generation.texts().iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 17]);
    Ok(())
}

/// A pause lets the draft go, with what it found and no step has returned, and the text stays the same.
#[test]
fn a_generation_that_is_paused_after_a_draft_goes_on_with_its_text() -> Result<()> {
    let model = small_model(32)?;
    let prompt = [vec![3u32, 5, 3, 5, 3]];
    let begin = || Generation::new(&model, &prompt, Sampling::greedy(), 12);
    let mut alone = begin()?;
    alone.by_ref().try_for_each(|step| step.map(drop))?;
    let mut ahead = 0;
    for pause_after in 0..10 {
        let mut generation = begin()?.with_draft(LookupDraft { longest: 2 })?;
        generation.by_ref().take(pause_after).try_for_each(|step| step.map(drop))?;
        ahead += usize::from(generation.checks.as_ref().is_some_and(|checks| !checks.found.is_empty()));
        let mut rest = Generation::resume(&model, generation.pause());
        rest.by_ref().try_for_each(|step| step.map(drop))?;
        assert_eq!(rest.texts(), alone.texts(), "paused after {pause_after} steps");
    }
    assert!(ahead > 0, "no pause came while the draft was ahead: this shows nothing");
    Ok(())
}

#[test]
fn a_penalty_falls_on_the_prompt_and_on_what_was_generated() -> Result<()> {
    let model = small_model(8)?;
    let text = |repetition_penalty, prompt: u32| -> Result<Vec<u32>> {
        let sampling = Sampling { repetition_penalty, ..Sampling::greedy() };
        let mut generation = Generation::new(&model, &[vec![prompt]], sampling, 4)?;
        generation.by_ref().try_for_each(|step| step.map(drop))?;
        Ok(generation.texts()[0].clone())
    };
    let repeats = |text: &[u32]| (1..text.len()).any(|i| text[..i].contains(&text[i]));
    let mut echoes = 0;
    for prompt in 0..11 {
        echoes += usize::from(text(1.0, prompt)?[1] == prompt);
        let text = text(1e9, prompt)?;
        assert!(!repeats(&text), "{text:?}");
    }
    assert!(echoes > 0, "without a penalty no prompt is repeated: this shows nothing");
    Ok(())
}
