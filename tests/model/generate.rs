//! Generation: the ids that transformers generates, batches, seeds and the end of the context.

use crate::common::{Result, data};
use crate::models::{load, random_model};
use candle_core::DType;
use gpt2_model::config::TokenIds;
use gpt2_model::{Config, Generation, Gpt2LMHeadModel, LmHead, Sampling};

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
    let vb = checkpoint.var_builder(DType::F32, &candle_core::Device::Cpu)?;
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
    let (end, at) = (endless[0][4], endless[0].iter().position(|&x| x == endless[0][4]).ok_or("there")?);
    let config = Config { eos_token_id: Some(TokenIds::Many(vec![36, end])), ..model.config().clone() };
    model =
        Gpt2LMHeadModel::load(gpt2_model::init::seeded(7, DType::F32, &candle_core::Device::Cpu), &config)?;
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
