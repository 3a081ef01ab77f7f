//! Generation: the ids that transformers generates, batches, seeds and the end of the context.

use crate::common::{Result, data, test_device};
use crate::models::{load, random_model};
use candle_core::{DType, Tensor};
use gpt2_model::beams::{BeamSearch, Hypothesis};
use gpt2_model::config::TokenIds;
use gpt2_model::draft::{Draft, LookupDraft, ModelDraft};
use gpt2_model::hooks::{At, Chain, Head, Intervention, Interventions, Point, on};
use gpt2_model::{Config, ForwardArgs, Generation, Gpt2LMHeadModel, LmHead, Sampler, Sampling};

fn generate(
    model: &Gpt2LMHeadModel,
    prompts: &[Vec<u32>],
    sampling: &Sampling,
    new: usize,
) -> Result<Vec<Vec<u32>>> {
    let mut generation = Generation::new(model, prompts, sampling.clone(), new)?;
    for step in generation.by_ref() {
        step?;
    }
    let new_ids = generation.texts().iter().zip(prompts).map(|(text, p)| text[p.len()..].to_vec());
    Ok(new_ids.collect())
}

#[derive(serde::Deserialize)]
struct Expected {
    prompt: Vec<u32>,
    repetition_penalty: f64,
    new_ids: Vec<u32>,
}

/// The reference ignored the end token; this model has none, so it does the same.
fn endless() -> Result<Gpt2LMHeadModel> {
    let files = gpt2_loader::Source::directory(data("odd")).open()?;
    let checkpoint = gpt2_loader::Checkpoint::open(&files)?;
    let config = Config { eos_token_id: None, ..checkpoint.config().clone() };
    let vb = checkpoint.var_builder(DType::F32, &test_device())?;
    Ok(Gpt2LMHeadModel::load(vb, &config)?)
}

#[test]
fn greedy_ids_equal_transformers_alone_and_in_a_padded_batch() -> Result {
    let model = endless()?;
    let expected: Vec<Expected> = serde_json::from_slice(&std::fs::read(data("odd").join("generate.json"))?)?;
    assert_eq!(expected.len(), 4);
    for e in &expected {
        let sampling = Sampling { repetition_penalty: e.repetition_penalty, ..Sampling::greedy() };
        let ids = generate(&model, std::slice::from_ref(&e.prompt), &sampling, 20)?;
        assert_eq!(ids[0], e.new_ids);
    }
    for pair in expected.chunks(2) {
        let prompts: Vec<_> = pair.iter().map(|e| e.prompt.clone()).collect();
        let sampling = Sampling { repetition_penalty: pair[0].repetition_penalty, ..Sampling::greedy() };
        let ids: Vec<_> = pair.iter().map(|e| e.new_ids.clone()).collect();
        assert_eq!(generate(&model, &prompts, &sampling, 20)?, ids);
    }
    Ok(())
}

#[test]
fn sampling_gives_each_prompt_of_a_batch_the_text_it_gets_alone() -> Result {
    let model = random_model(3, 5, 40)?;
    let prompts = [vec![1, 2, 3, 4, 5, 6, 7], vec![8], vec![9, 10, 11]];
    let sampling = Sampling { top_k: Some(20), top_p: Some(0.95), seed: 3, ..Sampling::default() };
    let together = generate(&model, &prompts, &sampling, 25)?;
    for (prompt, text) in prompts.iter().zip(&together) {
        assert_eq!(
            generate(&model, std::slice::from_ref(prompt), &sampling, 25)?,
            std::slice::from_ref(text)
        );
    }
    assert_ne!(together[0], together[1]);
    Ok(())
}

#[test]
fn the_seed_decides_the_text() -> Result {
    let model = random_model(3, 5, 40)?;
    let text = |seed| generate(&model, &[vec![1, 2]], &Sampling { seed, ..Sampling::default() }, 30);
    assert_eq!(text(1)?, text(1)?);
    assert_ne!(text(1)?, text(2)?);
    Ok(())
}

#[test]
fn a_row_ends_at_its_end_token_and_the_others_go_on() -> Result {
    let mut model = random_model(3, 5, 40)?;
    let prompts = [vec![1, 2], vec![3, 4, 5]];
    let endless = generate(&model, &prompts, &Sampling::greedy(), 12)?;
    // The token that row 0 gives at step 4 becomes the end; row 1 must not give it earlier.
    let end = endless[0][4];
    let at = endless[0].iter().position(|&x| x == endless[0][4]).ok_or("there")?;
    let config = Config { eos_token_id: Some(TokenIds::Many(vec![36, end])), ..model.config().clone() };
    model = Gpt2LMHeadModel::load(gpt2_model::init::seeded(7, DType::F32, &test_device()), &config)?;
    let ended = generate(&model, &prompts, &Sampling::greedy(), 12)?;
    assert_eq!(ended[0], endless[0][..=at]);
    let until = endless[1].iter().position(|x| [36, end].contains(x)).map_or(12, |i| i + 1);
    assert_eq!(ended[1], endless[1][..until]);
    Ok(())
}

#[test]
fn the_whole_context_can_be_used_and_not_more() -> Result {
    let model = random_model(2, 4, 8)?;
    let prompt = vec![1, 2, 3];
    // The model reads eight positions; it generates the ninth token from the eighth and never reads it.
    assert_eq!(generate(&model, std::slice::from_ref(&prompt), &Sampling::greedy(), 6)?[0].len(), 6);
    let err =
        Generation::new(&model, &[prompt], Sampling::greedy(), 7).expect_err("7 do not fit").to_string();
    assert!(err.contains("n_positions = 8") && err.contains("at most 6"), "{err}");
    let whole = [vec![1; 8]];
    assert_eq!(generate(&model, &whole, &Sampling::greedy(), 1)?[0].len(), 1);
    assert!(generate(&model, &whole, &Sampling::greedy(), 0)?[0].is_empty());
    let err =
        Generation::new(&model, &[vec![1; 9]], Sampling::greedy(), 1).expect_err("9 tokens").to_string();
    assert!(err.contains("a prompt of 9 tokens and 1 new ones") && err.contains("at most 0"), "{err}");
    Ok(())
}

#[test]
fn values_without_a_meaning_are_refused_by_name() -> Result {
    let model = load("odd", DType::F32)?;
    for (sampling, name) in [
        (Sampling { temperature: -1.0, ..Sampling::default() }, "temperature"),
        (Sampling { temperature: f64::NAN, ..Sampling::default() }, "temperature"),
        (Sampling { top_k: Some(0), ..Sampling::default() }, "top_k"),
        (Sampling { top_p: Some(1.5), ..Sampling::default() }, "top_p"),
        (Sampling { repetition_penalty: 0.0, ..Sampling::default() }, "repetition_penalty"),
    ] {
        let err = Generation::new(&model, &[vec![1]], sampling, 1).expect_err(name).to_string();
        assert!(err.contains(name), "{err}");
    }
    for prompts in [vec![], vec![vec![]], vec![vec![1], vec![]]] {
        let err = Generation::new(&model, &prompts, Sampling::greedy(), 1).expect_err("empty").to_string();
        assert!(err.contains("at least one token"), "{err}");
    }
    Ok(())
}

#[test]
fn of_tokens_that_are_as_probable_greedy_takes_the_first() -> Result {
    let model = random_model(2, 4, 8)?;
    // Every logit is 0.
    let model = Gpt2LMHeadModel { lm_head: LmHead::new(model.lm_head.weight()?.zeros_like()?)?, ..model };
    assert_eq!(generate(&model, &[vec![3, 1]], &Sampling::greedy(), 2)?, [[0, 0]]);
    Ok(())
}

/// Guesses right up to some token, then wrong; now and then nothing, and sometimes tokens that do not exist.
#[derive(Debug)]
struct HalfRight {
    text: Vec<u32>,
    calls: usize,
}

impl Draft for HalfRight {
    fn propose(&mut self, text: &[u32], count: usize, _: &Sampler) -> candle_core::Result<Vec<u32>> {
        self.calls += 1;
        let right = self.calls % 5;
        let known = self.text[text.len()..].iter().copied().take(right.min(count));
        Ok(known.chain([if right == 3 { u32::MAX } else { 0 }, 1, 2]).collect())
    }
}

#[test]
fn a_draft_changes_no_token() -> Result {
    let model = random_model(3, 5, 60)?;
    let small = random_model(1, 5, 40)?; // its positions end before the text does
    for seed in 0..30u32 {
        let prompt = vec![seed % 7, 2, seed % 5, 2];
        let drawn = Sampling { temperature: 0.7, top_k: Some(12), seed: seed.into(), ..Sampling::default() };
        let penalized = Sampling { repetition_penalty: 1.3, ..Sampling::greedy() };
        for sampling in [Sampling::greedy(), drawn, penalized] {
            let plain = generate(&model, std::slice::from_ref(&prompt), &sampling, 56)?;
            let text = [&prompt[..], &plain[0]].concat();
            let drafts: [Box<dyn Draft>; 4] = [
                Box::new(LookupDraft::default()),
                Box::new(ModelDraft::new(model.clone())?),
                Box::new(ModelDraft::new(small.clone())?),
                Box::new(HalfRight { text: text.clone(), calls: 0 }),
            ];
            for (i, draft) in drafts.into_iter().enumerate() {
                let begun = Generation::new(&model, std::slice::from_ref(&prompt), sampling.clone(), 56)?;
                let mut generation = begun.with_draft(draft)?;
                for step in generation.by_ref() {
                    step?;
                }
                assert_eq!(generation.texts()[0], text, "draft {i}, {sampling:?}");
                let drafted = generation.drafted().ok_or("a draft")?;
                // Every pass gives one token more than it accepts.
                assert_eq!(1 + drafted.passes + drafted.accepted, plain[0].len(), "draft {i}: {drafted:?}");
                if i == 1 {
                    assert_eq!(drafted.accepted, drafted.proposed, "the same model guesses right");
                }
                if i == 3 {
                    assert!(drafted.accepted > 0 && drafted.accepted < drafted.proposed, "{drafted:?}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_draft_that_cannot_be_exact_is_refused() -> Result {
    let model = random_model(2, 4, 16)?;
    let of = |model: &Gpt2LMHeadModel, prompts: &[Vec<u32>]| -> Result<String> {
        let generation = Generation::new(model, prompts, Sampling::greedy(), 4)?;
        Ok(generation.with_draft(LookupDraft::default()).expect_err("refused").to_string())
    };
    assert!(of(&model, &[vec![1], vec![2]])?.contains("one prompt, got 2"));
    let config =
        Config { attn_implementation: candle_fused::Implementation::Eager, ..model.config().clone() };
    let vb = gpt2_model::init::seeded(7, DType::F32, &test_device());
    assert!(of(&Gpt2LMHeadModel::load(vb, &config)?, &[vec![1]])?.contains("fused attention"));
    let vb = gpt2_model::init::seeded(7, DType::F64, &test_device());
    assert!(of(&Gpt2LMHeadModel::load(vb, model.config())?, &[vec![1]])?.contains("in f64 the text could"));
    Ok(())
}

/// Logits after some position are not finite: a draft that guesses beyond it gets the tokens before it and the same error.
#[test]
fn a_text_ends_with_the_same_error_with_a_draft_and_without() -> Result {
    let model = random_model(3, 5, 60)?;
    let prompt = vec![1, 2, 3];
    let plain = generate(&model, std::slice::from_ref(&prompt), &Sampling::greedy(), 30)?;
    let text = [&prompt[..], &plain[0]].concat();
    for broken in [2, 3, 4, 5, 10, 11, 12] {
        let breaks = on([Point::Logits], move |at: At, x: &Tensor| {
            // The last position of a pass over the prompt, of which there are no other logits.
            let first = if at.past == 0 { 2 } else { at.past };
            let factors = (0..x.dim(1)?).map(|i| if first + i >= broken { f32::NAN } else { 1.0 });
            Ok(Some(x.broadcast_mul(&Tensor::from_iter(factors, x.device())?.reshape((1, (), 1))?)?))
        });
        for draft in [None, Some(text.clone())] {
            let begun = Generation::new(&model, std::slice::from_ref(&prompt), Sampling::greedy(), 30)?;
            let mut generation = begun.with_hooks(&breaks);
            if let Some(text) = draft {
                generation = generation.with_draft(Known(text))?;
            }
            let found: Vec<_> = generation.by_ref().collect();
            assert_eq!(found.len(), broken - 1, "tokens, and an error");
            let error = found[broken - 2].as_ref().expect_err("not finite").to_string();
            assert!(error.contains("the logit of token 0 is NaN"), "{error}");
            let told = found.iter().filter(|step| step.is_ok()).count();
            assert!(told == broken - 2 && generation.next().is_none());
            assert_eq!(generation.texts()[0], text[..=broken]);
        }
    }
    Ok(())
}

/// Guesses right as far as it is asked.
#[derive(Debug)]
struct Known(Vec<u32>);

impl Draft for Known {
    fn propose(&mut self, text: &[u32], count: usize, _: &Sampler) -> candle_core::Result<Vec<u32>> {
        Ok(self.0[text.len()..].iter().copied().take(count).collect())
    }
}

#[test]
fn a_text_that_has_begun_keeps_its_cache_and_a_row_may_be_ended() -> Result {
    let model = random_model(2, 4, 16)?;
    let prompts = [vec![1, 2], vec![3, 4]];
    let mut generation = Generation::new(&model, &prompts, Sampling::greedy(), 6)?;
    let first = generation.next().ok_or("a step")??;
    assert!(first.iter().all(Option::is_some));
    generation.end(0);
    let second = generation.next().ok_or("a step")??;
    assert!(second[0].is_none() && second[1].is_some());
    assert_eq!(generation.texts().iter().map(Vec::len).collect::<Vec<_>>(), [3, 4]);
    let error = generation.with_cache_dtype(DType::F16).expect_err("it has begun").to_string();
    assert!(error.contains("before the first token"), "{error}");
    Ok(())
}

#[derive(serde::Deserialize)]
struct ExpectedBeams {
    prompt: Vec<u32>,
    eos_token_id: Option<Vec<u32>>,
    options: BeamOptions,
    ids: Vec<Vec<u32>>,
    scores: Vec<f64>,
}

#[derive(serde::Deserialize)]
#[serde(default)]
struct BeamOptions {
    num_beams: usize,
    length_penalty: f64,
    early_stopping: bool,
    repetition_penalty: f64,
}

impl Default for BeamOptions {
    fn default() -> Self {
        let BeamSearch { num_beams, length_penalty, early_stopping, repetition_penalty } =
            BeamSearch::default();
        Self { num_beams, length_penalty, early_stopping, repetition_penalty }
    }
}

#[test]
fn beams_find_transformers_hypotheses_and_scores() -> Result {
    let files = gpt2_loader::Source::directory(data("odd")).open()?;
    let checkpoint = gpt2_loader::Checkpoint::open(&files)?;
    let cases: Vec<ExpectedBeams> = serde_json::from_slice(&std::fs::read(data("odd").join("beams.json"))?)?;
    assert_eq!(cases.len(), 12);
    for ExpectedBeams { prompt, eos_token_id, options, ids, scores } in cases {
        let config = Config { eos_token_id: eos_token_id.map(TokenIds::Many), ..checkpoint.config().clone() };
        let vb = checkpoint.var_builder(DType::F32, &test_device())?;
        let model = Gpt2LMHeadModel::load(vb, &config)?;
        let BeamOptions { num_beams, length_penalty, early_stopping, repetition_penalty } = options;
        let search = BeamSearch { num_beams, length_penalty, early_stopping, repetition_penalty };
        let found = search.run(&model, &prompt, 20)?;
        assert_eq!(found.iter().map(|one| &one.ids).collect::<Vec<_>>(), ids.iter().collect::<Vec<_>>());
        for (Hypothesis { score, .. }, expected) in found.iter().zip(scores) {
            assert!(
                (score - expected).abs() < 1e-5 * expected.abs().max(1.0),
                "{score}, expected {expected}"
            );
        }
    }
    Ok(())
}

#[test]
fn one_beam_is_greedy_and_settings_without_a_meaning_are_refused() -> Result {
    let model = endless()?;
    let prompt = vec![43, 97, 31, 71];
    let greedy = generate(&model, std::slice::from_ref(&prompt), &Sampling::greedy(), 20)?;
    let one = BeamSearch { num_beams: 1, ..BeamSearch::default() };
    let found = one.run(&model, &prompt, 20)?;
    assert_eq!(found.iter().map(|one| &one.ids).collect::<Vec<_>>(), greedy.iter().collect::<Vec<_>>());
    assert!(one.run(&model, &prompt, 0)?.is_empty());
    for (search, prompt, new, says) in [
        (BeamSearch { num_beams: 0, ..one.clone() }, &prompt[..], 5, "num_beams is 0"),
        (BeamSearch { length_penalty: f64::NAN, ..one.clone() }, &prompt, 5, "length_penalty is NaN"),
        (BeamSearch { repetition_penalty: 0.0, ..one.clone() }, &prompt, 5, "repetition_penalty is 0"),
        (one.clone(), &[], 5, "at least one token"),
        (one.clone(), &prompt, 75, "n_positions = 77; at most 74"),
    ] {
        let error = search.run(&model, prompt, new).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
    // Fewer texts than beams: a token decides it all.
    let many = BeamSearch { num_beams: 300, ..one };
    assert_eq!(many.run(&model, &prompt, 1)?.len(), 101);
    Ok(())
}

/// An ablated head, and a vector that is added at one position of the prompt.
fn changes(model: &Gpt2LMHeadModel) -> Result<Interventions> {
    let vector = Tensor::full(0.7f32, model.config().n_embd, model.device())?;
    let changes = [
        Intervention::ZeroAblate(Head { layer: 1, head: 0 }),
        Intervention::Add { layer: 1, position: Some(1), vector },
    ];
    Ok(Interventions::new(changes, model.config())?)
}

/// The ids after each prompt, with interventions.
fn changed(model: &Gpt2LMHeadModel, prompts: &[Vec<u32>], sampling: &Sampling) -> Result<Vec<Vec<u32>>> {
    let changes = changes(model)?;
    let mut generation = Generation::new(model, prompts, sampling.clone(), 40)?.with_hooks(&changes);
    generation.by_ref().try_for_each(|step| step.map(drop))?;
    Ok(generation.texts().iter().zip(prompts).map(|(text, prompt)| text[prompt.len()..].to_vec()).collect())
}

#[test]
fn interventions_give_the_same_text_with_a_draft_in_a_batch_and_alone() -> Result {
    let model = random_model(3, 5, 60)?;
    let drawn = Sampling { temperature: 0.7, top_k: Some(12), seed: 5, ..Sampling::default() };
    let mut differ = 0;
    for sampling in [Sampling::greedy(), drawn] {
        let prompts: Vec<Vec<u32>> = (0..6u32).map(|i| vec![i, 2, (3 * i) % 7, 2]).collect();
        let together = changed(&model, &prompts, &sampling)?;
        for (prompt, expected) in prompts.iter().zip(&together) {
            let prompt = std::slice::from_ref(prompt);
            assert_eq!(&changed(&model, prompt, &sampling)?[0], expected, "alone, after {prompt:?}");
            differ += usize::from(&generate(&model, prompt, &sampling, 40)?[0] != expected);
            let drafts: [Box<dyn Draft>; 2] =
                [Box::new(LookupDraft::default()), Box::new(ModelDraft::new(model.clone())?)];
            for draft in drafts {
                let changes = changes(&model)?;
                let generation = Generation::new(&model, prompt, sampling.clone(), 40)?;
                let mut generation = generation.with_draft(draft)?.with_hooks(&changes);
                generation.by_ref().try_for_each(|step| step.map(drop))?;
                assert_eq!(&generation.texts()[0][prompt[0].len()..], expected, "after {prompt:?}");
            }
        }
    }
    assert!(differ > 6, "the interventions change {differ} of 12 texts: this shows little");
    Ok(())
}

#[test]
fn interventions_act_on_every_beam() -> Result {
    let model = random_model(3, 5, 60)?;
    let changes = changes(&model)?;
    let prompt = [3, 2, 6, 2];
    let search = |num_beams| BeamSearch { num_beams, ..BeamSearch::default() };
    let mut steps = vec![];
    let mut progress = |done: usize, all: usize| {
        steps.push((done, all));
        Ok(())
    };
    let found = search(1).run_with(&model, &prompt, 40, Some(&changes), &mut progress)?;
    assert_eq!(steps, (1..=40).map(|done| (done, 40)).collect::<Vec<_>>());
    let greedy = changed(&model, &[prompt.to_vec()], &Sampling::greedy())?;
    assert_eq!(found[0].ids, greedy[0], "one beam is greedy");
    // A score is the text's log-probability in a run that reads it anew.
    let found = search(4).run_with(&model, &prompt, 12, Some(&changes), &mut |_, _| Ok(()))?;
    let plain = search(4).run(&model, &prompt, 12)?;
    assert_ne!(found, plain, "without the interventions");
    for Hypothesis { ids, score } in &found {
        let text = [&prompt[..], ids].concat();
        let args = ForwardArgs { hooks: Some(&changes), ..ForwardArgs::default() };
        let logits = model.forward(&model.ids(&text)?, args)?.logits.squeeze(0)?; // (T, V)
        let log_probs = candle_nn::ops::log_softmax(&logits, 1)?.to_vec2::<f32>()?;
        let after = log_probs[prompt.len() - 1..].iter().zip(ids);
        let sum: f64 = after.map(|(row, id)| f64::from(row[*id as usize])).sum();
        let expected = sum / ids.len() as f64;
        // Passes of one token round otherwise than one over the whole text.
        assert!((score - expected).abs() < 1e-5 * expected.abs().max(1.0), "{score}, expected {expected}");
    }
    // A hook's error ends the search, and each pass has a row for each beam.
    let rows = std::cell::RefCell::new(vec![]);
    let counts = on([Point::ResidPre(0)], |_: At, x: &Tensor| {
        rows.borrow_mut().push(x.dim(0)?);
        if rows.borrow().len() == 4 {
            candle_core::bail!("enough");
        }
        Ok(None)
    });
    let hooks: [&dyn gpt2_model::hooks::Hooks; 2] = [&changes, &counts];
    let chain = Chain(&hooks);
    let found = search(3).run_with(&model, &prompt, 12, Some(&chain), &mut |_, _| Ok(()));
    let error = found.expect_err("the hook ends the search");
    assert!(error.to_string().contains("enough"), "{error}");
    assert_eq!(*rows.borrow(), [1, 3, 3, 3]);
    Ok(())
}
