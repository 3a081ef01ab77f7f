//! Generation whose steps are CUDA graphs, and whose tokens are chosen from what the GPU finds in the logits: the same texts. The CPU has
//! none, and says so.

use crate::common::{Result, test_device};
use candle_core::{DType, Device};
use candle_fused::Implementation;
use gpt2_model::draft::LookupDraft;
use gpt2_model::{Config, Generation, Gpt2LMHeadModel, Sampling, init};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A model with heads that have kernels on a GPU.
fn model(dtype: DType, attn_implementation: Implementation, device: &Device) -> Result<Gpt2LMHeadModel> {
    model_of(50, dtype, attn_implementation, device)
}

fn model_of(
    vocab_size: usize,
    dtype: DType,
    attn_implementation: Implementation,
    device: &Device,
) -> Result<Gpt2LMHeadModel> {
    let config = Config {
        vocab_size,
        n_positions: 200,
        n_embd: 64,
        n_layer: 2,
        n_head: 2,
        initializer_range: 0.3,
        eos_token_id: None,
        attn_implementation,
        ..Config::gpt2()
    };
    Ok(Gpt2LMHeadModel::load(init::seeded(7, dtype, device), &config)?)
}

/// A device with a stream of its own, since no other test may use it while a graph is recorded; `None` on the CPU. Opening one waits
/// for all streams, which would end a recording: one of these tests at a time, after the other tests' device.
fn gpu() -> Result<Option<(Device, MutexGuard<'static, ()>)>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(if test_device().is_cuda() { Some((Device::new_cuda_with_stream(0)?, guard)) } else { None })
}

fn prompt(length: u32, salt: u32) -> Vec<u32> {
    (0..length).map(|i| (i * i + salt * 7) % 50).collect()
}

fn samplings() -> [Sampling; 2] {
    [
        Sampling::greedy(),
        Sampling { temperature: 1.5, repetition_penalty: 1.2, seed: 3, ..Sampling::default() },
    ]
}

/// The texts, where rows end before a step: (step, row).
fn texts(generation: Generation, ends: &[(usize, usize)]) -> Result<Vec<Vec<u32>>> {
    let mut generation = generation;
    for step in 0.. {
        ends.iter().filter(|end| end.0 == step).for_each(|end| generation.end(end.1));
        match generation.next() {
            Some(tokens) => drop(tokens?),
            None => break,
        }
    }
    Ok(generation.texts().to_vec())
}

#[test]
fn a_text_is_the_same_with_a_graph() -> Result {
    let Some((device, _alone)) = gpu()? else { return Ok(()) };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let model = model(dtype, Implementation::Fused, &device)?;
        for (sampling, (length, new)) in samplings().into_iter().zip([(1, 140), (60, 80)]) {
            let prompts = [prompt(length, 1)];
            let begin = || Generation::new(&model, &prompts, sampling.clone(), new);
            let expected = texts(begin()?, &[])?;
            assert_eq!(texts(begin()?.with_cuda_graph()?, &[])?, expected, "{dtype:?}, {sampling:?}");
            assert_eq!(expected[0].len(), length as usize + new);
        }
    }
    Ok(())
}

/// Every option of sampling, on vocabularies below and above the number of tokens that the GPU lists, with a graph and without: the texts
/// are those that the host chooses from all logits, as it does beside hooks.
#[test]
fn tokens_are_chosen_from_what_the_gpu_finds() -> Result {
    let Some((device, _alone)) = gpu()? else { return Ok(()) };
    let warm = Sampling { temperature: 1.3, seed: 9, ..Sampling::default() };
    let cool = Sampling { temperature: 0.4, repetition_penalty: 1.1, ..warm.clone() };
    let samplings = [
        Sampling { repetition_penalty: 1.5, ..Sampling::greedy() },
        warm.clone(),
        cool.clone(),
        Sampling { top_k: Some(7), ..warm.clone() },
        Sampling { top_k: Some(40), top_p: Some(0.8), typical_p: Some(0.9), ..cool.clone() },
        Sampling { top_p: Some(0.7), ..cool.clone() },
        Sampling { top_p: Some(0.95), ..warm.clone() }, // among 1500 tokens, more than the GPU lists
        Sampling { min_p: Some(0.05), ..warm.clone() },
        Sampling { typical_p: Some(0.6), ..warm.clone() }, // for all logits
    ];
    for (vocabulary, dtype) in [(50, DType::F32), (1500, DType::BF16)] {
        let model = model_of(vocabulary, dtype, Implementation::Fused, &device)?;
        for sampling in &samplings {
            for rows in [1, 3] {
                let prompts: Vec<Vec<u32>> = (0..rows).map(|row| prompt(2 + 3 * row, row)).collect();
                let begin = || Generation::new(&model, &prompts, sampling.clone(), 12);
                let ends: &[_] = if rows == 1 { &[] } else { &[(4, 0), (7, 1)] };
                let by_host = texts(begin()?.with_hooks(&gpt2_model::hooks::Chain(&[])), ends)?;
                let case = format!("{rows} rows, {vocabulary} tokens, {sampling:?}");
                assert_eq!(texts(begin()?, ends)?, by_host, "{case}");
                assert_eq!(texts(begin()?.with_cuda_graph()?, ends)?, by_host, "{case}, with a graph");
            }
        }
    }
    Ok(())
}

/// Rows of different lengths are padded, and rows that end leave: the graph is recorded again for those that stay.
#[test]
fn texts_of_a_batch_are_the_same_with_a_graph() -> Result {
    let Some((device, _alone)) = gpu()? else { return Ok(()) };
    for dtype in [DType::F32, DType::BF16] {
        let model = model(dtype, Implementation::Fused, &device)?;
        for (rows, sampling) in [2, 4, 10].into_iter().zip(samplings().into_iter().cycle()) {
            let prompts: Vec<Vec<u32>> = (0..rows).map(|row| prompt(1 + row * 5 % 12, row)).collect();
            let ends = [(4, 0), (4, 1), (9, 1)];
            let begin = || Generation::new(&model, &prompts, sampling.clone(), 20);
            let expected = texts(begin()?, &ends)?;
            assert_eq!(texts(begin()?.with_cuda_graph()?, &ends)?, expected, "{rows} rows, {dtype:?}");
        }
    }
    Ok(())
}

/// Texts that end leave their place to longer ones, for which the cache gets more room: the step is recorded again.
#[test]
fn texts_that_join_a_batch_are_the_same_with_a_graph() -> Result {
    let Some((device, _alone)) = gpu()? else { return Ok(()) };
    let model = model(DType::F32, Implementation::Fused, &device)?;
    for sampling in samplings() {
        let prompts: Vec<Vec<u32>> = (0..3).map(|row| prompt(2 + 3 * row, row)).collect();
        let texts = |graph: bool| -> Result<Vec<Vec<u32>>> {
            let generation = Generation::new(&model, &prompts, sampling.clone(), 25)?;
            let mut generation = if graph { generation.with_cuda_graph()? } else { generation };
            let mut texts = vec![];
            for step in 0.. {
                for (at, row, length) in [(5, 1, 100), (9, 0, 1), (12, 2, 40)] {
                    if step == at {
                        texts.push(generation.texts()[row].clone());
                        generation.end(row);
                        generation.replace(row, &prompt(length, 5), 30)?;
                    }
                }
                match generation.next() {
                    Some(tokens) => drop(tokens?),
                    None => break,
                }
            }
            texts.extend(generation.texts().iter().cloned());
            Ok(texts)
        };
        let expected = texts(false)?;
        assert_eq!(texts(true)?, expected, "{sampling:?}");
        assert_eq!(expected.len(), 6);
        for (text, (row, length)) in expected[3..].iter().zip([(5, 1), (5, 100), (5, 40)]) {
            let alone = [prompt(length, row)];
            let by_host = Generation::new(&model, &alone, sampling.clone(), 30)?;
            let mut by_host = by_host.with_hooks(&gpt2_model::hooks::Chain(&[]));
            by_host.try_for_each(|step| step.map(drop))?;
            assert_eq!(*text, by_host.texts()[0], "{sampling:?}, a prompt of {length} tokens");
        }
    }
    Ok(())
}

/// Between two steps, a generation may be set aside, and another one may use the GPU.
#[test]
fn a_generation_with_a_graph_that_is_paused_goes_on_with_its_text() -> Result {
    let Some((device, _alone)) = gpu()? else { return Ok(()) };
    let model = model(DType::F32, Implementation::Fused, &device)?;
    let [_, sampling] = samplings();
    let prompts = [prompt(5, 2)];
    let begin = || Generation::new(&model, &prompts, sampling.clone(), 30);
    let expected = texts(begin()?, &[])?;
    let mut paused = begin()?.with_cuda_graph()?.pause();
    for step in 0..30 {
        let mut running = Generation::resume(&model, paused);
        running.next().ok_or("no step")??;
        paused = running.pause();
        if step == 10 {
            // More rows, with their own graph.
            let others: Vec<Vec<u32>> = (0..12).map(|row| prompt(3, row)).collect();
            texts(Generation::new(&model, &others, sampling.clone(), 6)?.with_cuda_graph()?, &[])?;
        }
    }
    assert_eq!(Generation::resume(&model, paused).texts(), expected);
    Ok(())
}

#[test]
fn what_cannot_be_a_graph_is_refused() -> Result {
    let refused = |generation: candle_core::Result<Generation>, cause: &str| {
        let error = generation.expect_err("refused").to_string();
        assert!(error.contains(cause), "{error}");
    };
    let prompts = [prompt(4, 1)];
    let on = |model: &Gpt2LMHeadModel| -> Result<Vec<String>> {
        let error =
            |generation: Generation| generation.with_cuda_graph().err().map(|error| error.to_string());
        Ok(error(Generation::new(model, &prompts, Sampling::greedy(), 4)?).into_iter().collect())
    };
    let on_cpu = on(&model(DType::F32, Implementation::Fused, &Device::Cpu)?)?;
    assert!(on_cpu[0].contains("only CUDA has graphs"), "{on_cpu:?}");
    let Some((device, _alone)) = gpu()? else { return Ok(()) };
    let eager = on(&model(DType::F32, Implementation::Eager, &device)?)?;
    assert!(eager[0].contains("use fused attention"), "{eager:?}");
    let fused = model(DType::F32, Implementation::Fused, &device)?;
    let begin = || Generation::new(&fused, &prompts, Sampling::greedy(), 4);
    refused(begin()?.with_cache_dtype(DType::F16)?.with_cuda_graph(), "a cache in another dtype");
    let hooks = gpt2_model::hooks::Chain(&[]);
    refused(begin()?.with_hooks(&hooks).with_cuda_graph(), "leave hooks and interventions out");
    refused(begin()?.with_cuda_graph()?.with_draft(LookupDraft { longest: 2 }), "no draft");
    // Given later, they are found at the first step.
    let mut later = begin()?.with_cuda_graph()?.with_hooks(&hooks);
    let error = later.next().ok_or("an error")?.expect_err("refused").to_string();
    assert!(error.contains("leave hooks"), "{error}");
    Ok(())
}
