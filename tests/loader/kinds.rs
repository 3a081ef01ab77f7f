//! Every kind of checkpoint with the same numbers gives the same logits, bit for bit.

use super::{logit_bits, odd, parameter_bits};
use crate::common::Result;
use crate::folder::{Folder, Raw, Tensors, read, serialized, zeros};
use crate::models::load;
use candle_core::DType;
use safetensors::Dtype;
use serde_json::json;

const PREFIX: &str = "transformer.";

fn without_prefix(tensors: Tensors) -> Tensors {
    tensors.into_iter().map(|(n, t)| (n.strip_prefix(PREFIX).unwrap_or(&n).to_string(), t)).collect()
}

/// The triangle of `odd`, with one byte or one f32 per element.
fn triangle(dtype: Dtype) -> Raw {
    let visible = (0..77 * 77).map(|i| i % 77 <= i / 77);
    let data = match dtype {
        Dtype::F32 => visible.flat_map(|v| f32::from(u8::from(v)).to_le_bytes()).collect(),
        _ => visible.map(u8::from).collect(),
    };
    Raw { dtype, shape: vec![1, 1, 77, 77], data }
}

/// Fails unless the folder loads as `case` does, with a clean audit that counts its parameters.
#[track_caller]
fn assert_same(what: &str, folder: &Folder, case: &str, buffers: usize) -> Result {
    let audit = folder.audit()?;
    assert!(audit.is_clean(), "{what}: {audit}");
    let got = folder.load()?;
    let expected = load(case, DType::F32)?;
    assert_eq!(audit.parameter_count, expected.config().parameter_count()?, "{what}");
    assert_eq!(audit.buffers.len(), buffers, "{what}");
    assert_eq!(got.is_tied(), expected.is_tied(), "{what}");
    assert!(parameter_bits(&got)? == parameter_bits(&expected)?, "{what}: other parameters");
    assert!(logit_bits(&got)? == logit_bits(&expected)?, "{what}: other logits");
    Ok(())
}

#[test]
fn names_without_prefix() -> Result {
    let tensors = without_prefix(odd()?);
    assert!(tensors.contains_key("h.1.attn.c_attn.weight"));
    assert_same("without prefix", &Folder::with_tensors("odd", &tensors)?, "odd", 0)
}

#[test]
fn buffers_of_every_dtype_with_and_without_prefix() -> Result {
    for dtype in [Dtype::F32, Dtype::U8, Dtype::BOOL] {
        let mut tensors = odd()?;
        for layer in 0..2 {
            tensors.insert(format!("{PREFIX}h.{layer}.attn.bias"), triangle(dtype));
            let masked = Raw { data: (-1e4f32).to_le_bytes().to_vec(), ..zeros(Dtype::F32, &[]) };
            tensors.insert(format!("{PREFIX}h.{layer}.attn.masked_bias"), masked);
        }
        let what = format!("{dtype:?} buffers");
        assert_same(&what, &Folder::with_tensors("odd", &tensors)?, "odd", 4)?;
        assert_same(&what, &Folder::with_tensors("odd", &without_prefix(tensors))?, "odd", 4)?;
    }
    Ok(())
}

#[test]
fn shards_with_an_index() -> Result {
    let tensors = odd()?;
    let folder = Folder::of("odd")?;
    std::fs::remove_file(folder.file("model.safetensors"))?;
    let shard = |i: usize| format!("model-{:05}-of-00003.safetensors", i % 3 + 1);
    for part in 0..3 {
        let some = tensors.iter().enumerate().filter(|(i, _)| i % 3 == part).map(|(_, t)| t);
        folder.write(&shard(part), serialized(some)?)?;
    }
    let map: serde_json::Map<_, _> =
        tensors.keys().enumerate().map(|(i, name)| (name.clone(), shard(i).into())).collect();
    let index = json!({"metadata": {"total_size": 250_000}, "weight_map": map});
    folder.write("model.safetensors.index.json", index.to_string())?;
    assert_same("sharded", &folder, "odd", 0)
}

#[test]
fn a_tied_head_saved_alone_or_beside_the_embedding() -> Result {
    let mut both = odd()?;
    let wte = both[&format!("{PREFIX}wte.weight")].clone();
    both.insert("lm_head.weight".into(), wte);
    assert_same("both", &Folder::with_tensors("odd", &both)?, "odd", 0)?;
    both.remove(&format!("{PREFIX}wte.weight"));
    assert_same("only lm_head", &Folder::with_tensors("odd", &both)?, "odd", 0)?;
    assert_same("only lm_head", &Folder::with_tensors("odd", &without_prefix(both))?, "odd", 0)
}

#[test]
fn an_untied_head_counts_whatever_the_config_says() -> Result {
    let folder = Folder::of("untied")?;
    folder.set_config("tie_word_embeddings", true.into())?;
    assert_eq!(logit_bits(&folder.load()?)?, logit_bits(&load("untied", DType::F32)?)?);
    Ok(())
}

#[test]
fn an_untied_model_needs_both_of_its_tables() -> Result {
    for (config, tensor) in [("odd", "lm_head.weight"), ("untied", "wte.weight")] {
        let folder = Folder::of(config)?;
        folder.set_config("tie_word_embeddings", false.into())?;
        if config == "untied" {
            let mut tensors = read(&folder.file("model.safetensors"))?;
            tensors.remove("transformer.wte.weight").ok_or("no wte")?;
            folder.write("model.safetensors", serialized(&tensors)?)?;
        }
        let err = folder.load().expect_err("one table is lost").to_string();
        assert!(err.contains("missing") && err.contains(tensor), "{err}");
    }
    Ok(())
}

#[test]
fn data_at_any_alignment() -> Result {
    let bytes = serialized(&odd()?)?;
    let header_len = usize::try_from(u64::from_le_bytes(bytes[..8].try_into()?))?;
    for spaces in 1..8 {
        let mut unaligned = ((header_len + spaces) as u64).to_le_bytes().to_vec();
        unaligned.extend(&bytes[8..8 + header_len]);
        unaligned.resize(unaligned.len() + spaces, b' ');
        assert_ne!(unaligned.len() % 8, 0);
        unaligned.extend(&bytes[8 + header_len..]);
        let folder = Folder::of("odd")?;
        folder.write("model.safetensors", unaligned)?;
        assert_same(&format!("{spaces} bytes further"), &folder, "odd", 0)?;
    }
    Ok(())
}

#[test]
fn weights_in_f64_give_the_same_numbers() -> Result {
    let mut tensors = odd()?;
    for tensor in tensors.values_mut() {
        let (numbers, _) = tensor.data.as_chunks::<4>();
        tensor.data = numbers.iter().flat_map(|&n| f64::from(f32::from_le_bytes(n)).to_le_bytes()).collect();
        tensor.dtype = Dtype::F64;
    }
    assert_same("f64", &Folder::with_tensors("odd", &tensors)?, "odd", 0)
}

#[test]
fn pickles_with_buffers_of_both_dtypes() -> Result {
    assert_same("u8 and f32 buffers", &Folder::of("pickle")?, "untied", 4)?;
    assert_same("bool buffers, shared head", &Folder::of("pickle_tied")?, "padded", 4)
}

#[test]
fn safetensors_come_before_shards_and_shards_before_a_pickle() -> Result {
    let folder = Folder::of("odd")?;
    folder.write("pytorch_model.bin", "not read")?;
    folder.write("model.safetensors.index.json", "not read")?;
    assert_same("all three", &folder, "odd", 0)?;
    std::fs::remove_file(folder.file("model.safetensors"))?;
    let message = folder.refusal("not an index");
    assert!(message.contains("model.safetensors.index.json"), "{message}");
    std::fs::remove_file(folder.file("model.safetensors.index.json"))?;
    let message = folder.refusal("not a pickle");
    assert!(message.contains("pytorch_model.bin"), "{message}");
    Ok(())
}

#[test]
fn a_config_with_nothing_but_sizes() -> Result {
    let folder = Folder::of("odd")?;
    // The reference uses GPT-2's values wherever a file may leave them out.
    let sizes = json!({"n_layer": 2, "n_head": 3, "n_embd": 48, "n_positions": 77, "vocab_size": 101});
    folder.write("config.json", sizes.to_string())?;
    assert_same("sizes only", &folder, "odd", 0)
}
