//! The circuits of heads, compared in f64 with TransformerLens (tests/data/circuits).

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/models.rs"]
mod models;

mod attribution_graph;
mod discovery;
mod features;

use candle_core::{DType, Device, Tensor};
use common::{Result, assert_close, of_transformer_lens as reference};
use gpt2_circuits::{Circuit, Circuits, Composition, PromotedTokens};
use gpt2_model::candle_nn::{VarBuilder, VarMap};
use gpt2_model::hooks::Head;
use gpt2_model::{Config, Embedding, Gpt2LMHeadModel, LmHead};
use models::load;

/// Both sides compute in f64; the largest error that we have seen is 6e-15 of the largest value.
const TOLERANCE: f64 = 1e-13;

fn circuits() -> Result<Circuits> {
    Ok(Circuits::new(&load("circuits/model", DType::F64)?)?)
}

fn all_heads() -> impl Iterator<Item = Head> {
    (0..9).map(|i| Head { layer: i / 3, head: i % 3 })
}

#[test]
fn tables_and_eigenvalues_are_those_of_transformer_lens() -> Result {
    let circuits = circuits()?;
    let expected = reference("circuits.safetensors")?;
    let every: Vec<u32> = (0..53).collect();
    for name in ["0.1", "2.0"] {
        let head: Head = name.parse()?;
        for (circuit, key) in [(Circuit::Ov, "ov"), (Circuit::Qk, "qk")] {
            let table = circuits.rows(head, circuit, &every)?;
            assert_close(key, &table, &expected[&format!("{key}/{name}")], TOLERANCE);
            // The largest entries, against a search through the whole table.
            let mut entries: Vec<(f64, u32, u32)> = vec![];
            for (from, row) in (0u32..).zip(table.to_vec2::<f64>()?) {
                entries.extend((0u32..).zip(row).map(|(to, value)| (value, from, to)));
            }
            entries.sort_by(|a, b| b.0.total_cmp(&a.0));
            let mut done = vec![];
            let mut progress = |rows, of| {
                done.push((rows, of));
                Ok(())
            };
            let found = circuits.largest_entries(head, circuit, 20, &mut progress)?;
            let found: Vec<_> = found.iter().map(|entry| (entry.value, entry.from, entry.to)).collect();
            assert_eq!(found, entries[..20]);
            assert_eq!(done.last(), Some(&(53, 53)));
        }
        for (key, values) in [
            ("full ov eigenvalues", circuits.token_eigenvalues(head)?),
            ("ov eigenvalues", circuits.stream_eigenvalues(head)?),
        ] {
            let values: Vec<f64> = values.iter().flat_map(|value| [value.re, value.im]).collect();
            let values = Tensor::from_vec(values, (8, 2), &Device::Cpu)?;
            assert_close(key, &values, &expected[&format!("{key}/{name}")], TOLERANCE);
        }
    }
    let copying = reference("heads.safetensors")?["copying/eigenvalues"].flatten_all()?.to_vec1::<f64>()?;
    for (head, expected) in all_heads().zip(copying) {
        let score = circuits.copying_score(head)?;
        assert!((score - expected).abs() < TOLERANCE, "{head}: {score}, not {expected}");
    }
    Ok(())
}

#[test]
fn singular_vectors_make_up_the_circuit() -> Result {
    let circuits = circuits()?;
    let expected = reference("circuits.safetensors")?;
    let every: Vec<u32> = (0..53).collect();
    for (circuit, key) in [(Circuit::Ov, "ov"), (Circuit::Qk, "qk")] {
        let mut values = vec![];
        for head in all_heads() {
            values.extend(circuits.singular(head, circuit)?.values);
        }
        let values = Tensor::from_vec(values, (3, 3, 8), &Device::Cpu)?;
        assert_close(key, &values, &expected[&format!("{key} singular values")], TOLERANCE);
    }
    // Σ value · (W_E·left) (right·W_U) is the table.
    let head = Head { layer: 2, head: 0 };
    let found = circuits.singular(head, Circuit::Ov)?;
    let mut table = Tensor::zeros((53, 53), DType::F64, &Device::Cpu)?;
    for (i, value) in found.values.iter().enumerate() {
        let column = |direction: &Tensor, reads: bool| -> Result<Tensor> {
            let mut numbers = vec![0.0; 53];
            for (token, product) in circuits.tokens_of(direction, reads, 53)? {
                numbers[token as usize] = product;
            }
            Ok(Tensor::new(numbers, &Device::Cpu)?)
        };
        let read = column(&found.left.get(i)?, true)?;
        let written = column(&found.right.get(i)?, false)?;
        table = (table + (read.unsqueeze(1)?.matmul(&written.unsqueeze(0)?)? * *value)?)?;
    }
    assert_close("the sum", &table, &circuits.rows(head, Circuit::Ov, &every)?, TOLERANCE);
    Ok(())
}

#[test]
fn compositions_are_those_of_transformer_lens() -> Result {
    let circuits = circuits()?;
    let expected = reference("circuits.safetensors")?;
    for (kind, name) in Composition::ALL.iter().zip(["Q", "K", "V"]) {
        let mut done = vec![];
        let scores = circuits.composition(*kind, &mut |pairs, of| {
            done.push((pairs, of));
            Ok(())
        })?;
        assert_close(name, &scores, &expected[&format!("composition/{name}")], TOLERANCE);
        assert_eq!(done, [(1, 3), (2, 3), (3, 3)]);
    }
    Ok(())
}

/// The table of a large vocabulary is computed a few rows at a time: no part may hide another's entries.
#[test]
fn the_largest_entries_of_a_long_table_are_those_of_all_its_rows() -> Result {
    let config =
        Config { vocab_size: 700, n_embd: 12, n_head: 3, n_layer: 1, n_positions: 8, ..Config::gpt2() };
    let map = VarMap::new();
    let model = Gpt2LMHeadModel::load(VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu), &config)?;
    // Entries grow with the row, so that every part has larger ones than those before it.
    let factors = Tensor::arange(1f64, 701., &Device::Cpu)?.reshape((700, 1))?;
    let variables = map.data().lock().map_err(|e| e.to_string())?.clone();
    let (_, table) = variables.iter().find(|(name, _)| name.ends_with("wte.weight")).ok_or("a table")?;
    table.set(&table.broadcast_mul(&factors)?)?;
    let circuits = Circuits::new(&model)?;
    let head = Head { layer: 0, head: 1 };
    let every: Vec<u32> = (0..700).collect();
    let all = circuits.rows(head, Circuit::Ov, &every)?.flatten_all()?.to_vec1::<f64>()?;
    let mut all: Vec<(f64, usize)> = all.into_iter().zip(0..).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    for count in [1, 2, 3, 50, 1000] {
        let mut done = vec![];
        let mut progress = |rows, of| {
            done.push((rows, of));
            Ok(())
        };
        let found = circuits.largest_entries(head, Circuit::Ov, count, &mut progress)?;
        assert_eq!(done, [(256, 700), (512, 700), (700, 700)]);
        let found: Vec<_> = found.iter().map(|e| (e.from as usize * 700) + e.to as usize).collect();
        assert_eq!(found, all[..count].iter().map(|(_, at)| *at).collect::<Vec<_>>(), "{count}");
    }
    Ok(())
}

/// The sum of the eigenvalues is the trace of the table, also where the table has more rows than are added up at a time.
#[test]
fn the_eigenvalues_of_a_large_vocabulary_sum_to_the_trace() -> Result {
    let config =
        Config { vocab_size: 5000, n_embd: 8, n_head: 2, n_layer: 1, n_positions: 8, ..Config::gpt2() };
    let vb = gpt2_model::init::seeded(3, DType::F64, &Device::Cpu);
    let circuits = Circuits::new(&Gpt2LMHeadModel::load(vb, &config)?)?;
    let head = Head { layer: 0, head: 1 };
    let (mut trace, mut size) = (0.0, 0.0);
    for first in (0..5000u32).step_by(500) {
        let tokens: Vec<u32> = (first..first + 500).collect();
        let rows = circuits.rows(head, Circuit::Ov, &tokens)?.narrow(1, first as usize, 500)?;
        let diagonal = (rows * Tensor::eye(500, DType::F64, &Device::Cpu)?)?;
        trace += diagonal.sum_all()?.to_scalar::<f64>()?;
        size += diagonal.abs()?.sum_all()?.to_scalar::<f64>()?;
    }
    let sum: f64 = circuits.token_eigenvalues(head)?.iter().map(|value| value.re).sum();
    assert!((sum - trace).abs() < 1e-10 * size, "{sum}, not {trace}");
    Ok(())
}

#[test]
fn heads_and_tokens_that_are_not_there_are_refused() -> Result {
    let circuits = circuits()?;
    let error = circuits.copying_score(Head { layer: 3, head: 0 }).expect_err("no layer 3").to_string();
    assert!(error.contains("layers 0 to 2"), "{error}");
    let none = circuits.largest_entries(Head { layer: 0, head: 0 }, Circuit::Ov, 0, &mut |_, _| Ok(()))?;
    assert!(none.is_empty());
    assert_eq!(
        (circuits.layers(), circuits.heads(2), circuits.heads(3), circuits.vocab_size()),
        (3, 3, 0, 53)
    );
    let error = circuits.stream_eigenvalues(Head { layer: 0, head: 3 }).expect_err("no head 3").to_string();
    assert!(error.contains("of 3 heads"), "{error}");
    // The first of all tokens in their order.
    let direction = Tensor::from_iter((0..24).map(|i| f64::from(i * 7 % 11) - 5.0), &Device::Cpu)?;
    for reads in [false, true] {
        let all = circuits.tokens_of(&direction, reads, 53)?;
        assert!(all.is_sorted_by(|a, b| a.1 >= b.1) && all.len() == 53);
        for count in [0, 1, 5] {
            assert_eq!(circuits.tokens_of(&direction, reads, count)?, all[..count]);
        }
    }
    let two = Tensor::stack(&[&direction, &direction.affine(-2.0, 0.0)?], 0)?;
    let each = circuits.promoted_by_each(&two, 4)?;
    let times = |found: &[(u32, f64)], by: f64| -> Vec<(u32, f64)> {
        found.iter().map(|(token, product)| (*token, product * by)).collect()
    };
    assert_eq!(each.len(), 2);
    for PromotedTokens { likelier, less_likely: less } in &each {
        assert!(likelier.is_sorted_by(|a, b| a.1 >= b.1) && less.is_sorted_by(|a, b| a.1 <= b.1));
    }
    assert_eq!(times(&each[0].likelier, -2.0), each[1].less_likely);
    for (found, expected) in each[0].likelier.iter().zip(circuits.tokens_of(&direction, false, 4)?) {
        assert!(found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-9, "{found:?} {expected:?}");
    }
    let error =
        circuits.rows(Head { layer: 0, head: 0 }, Circuit::Qk, &[53]).expect_err("53 tokens").to_string();
    assert!(error.contains("0..53"), "{error}");
    Ok(())
}

/// A decomposition of NaN would not end.
#[test]
fn weights_that_are_not_finite_are_refused_by_name() -> Result {
    let mut model = load("circuits/model", DType::F32)?;
    let attn = &mut model.transformer.h[1].attn;
    let weight = attn.c_attn.weight()?;
    let bias = attn.c_attn.bias().ok_or("a bias")?.clone();
    attn.c_attn = gpt2_model::Conv1D::new((weight * f64::NAN)?, bias)?;
    let error = Circuits::new(&model).expect_err("NaN").to_string();
    assert!(error.contains("head 1.0") && error.contains("not finite"), "{error}");
    let table =
        |model: &Gpt2LMHeadModel| -> Result<Tensor> { Ok((model.transformer.wte.weight()? * f64::NAN)?) };
    let mut model = load("circuits/model", DType::F32)?;
    model.lm_head = LmHead::new(table(&model)?)?;
    let error = Circuits::new(&model).expect_err("NaN").to_string();
    assert!(error.contains("the unembedding are not finite"), "{error}");
    let mut model = load("circuits/model", DType::F32)?;
    model.transformer.wte = Embedding::new(table(&model)?)?;
    let error = Circuits::new(&model).expect_err("NaN").to_string();
    assert!(error.contains("the embedding are not finite"), "{error}");
    Ok(())
}
