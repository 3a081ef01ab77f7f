//! GGUF files: those of the Python package `gguf` are read, and ours are read back.

use super::gguf_damage::position;
use super::{demo, logit_bits, parameter_bits, saved};
use crate::common::{Result, assert_close, data};
use crate::folder::{assert_says, read};
use crate::models::load;
use candle_core::{DType, Device, Tensor};
use gpt2_loader::{Checkpoint, Encoding, GgufType, LoadError, SaveOptions, Source, Tokenizer, save_gguf};
use gpt2_model::linear::BlockFormat;
use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init};
use safetensors::Dtype;
use std::path::{Path, PathBuf};

/// A bound of what 8 bits for the activations of each layer cost in the logits of the demo model: 0.030, measured.
const OF_ACTIVATIONS: f64 = 0.05;

pub(super) fn open(path: impl Into<PathBuf>) -> std::result::Result<Checkpoint, LoadError> {
    Checkpoint::open(&Source::Gguf(path.into()).open()?)
}

/// The checkpoint of a case.
fn case(name: &str) -> Result<Checkpoint> {
    Ok(Checkpoint::open(&Source::directory(data(name)).open()?)?)
}

/// [`save_gguf`] in silence.
pub(super) fn save_quietly(
    path: &Path,
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    kind: GgufType,
) -> std::result::Result<(), LoadError> {
    save_gguf(path, checkpoint, tokenizer, kind, &mut |_, _, _| Ok(()))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

/// The parts that llama-gguf-split writes: the keys are in the first alone, so a later part does not say whose weights it has.
#[test]
fn a_starcoder_in_parts_is_the_same_model() -> Result {
    let whole = std::fs::read(data("gguf").join("starcoder.gguf"))?;
    let expected = open(data("gguf").join("starcoder.gguf"))?.load_model(DType::F32, &Device::Cpu)?;
    // Square, so that its shape tells nothing.
    let name = b"blk.0.attn_output.weight";
    let named = [&(name.len() as u64).to_le_bytes()[..], name].concat();
    let begin = whole.windows(named.len()).position(|part| part == named).ok_or("the tensor is there")?;
    let dims = begin + named.len() + 4;
    let end = dims + 2 * 8 + 4 + 8;
    let last = b"token_embd.weight";
    let header = position(&whole, last) + last.len() + 4 + 2 * 8 + 4 + 8;
    let number = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().expect("8 bytes"));
    let kind = u32::from_le_bytes(whole[dims + 16..dims + 20].try_into().expect("4 bytes"));
    let bytes = usize::try_from(number(dims) * number(dims + 8))? * if kind == 0 { 4 } else { 2 };
    let from = header.next_multiple_of(32) + usize::try_from(number(dims + 20))?;
    let part = |number: u16, tensors: u64, keys: u64, rest: &[&[u8]], numbers: &[u8]| {
        let mut part = [&whole[..8], &tensors.to_le_bytes(), &(keys + 2).to_le_bytes()].concat();
        for (key, value) in [("split.no", number), ("split.count", 2)] {
            part.extend((key.len() as u64).to_le_bytes());
            part.extend(key.as_bytes());
            part.extend(2u32.to_le_bytes()); // u16
            part.extend(value.to_le_bytes());
        }
        part.extend(rest.concat());
        part.resize(part.len().next_multiple_of(32), 0);
        part.extend(numbers);
        part
    };
    let first = part(
        0,
        number(8) - 1,
        number(16),
        &[&whole[24..begin], &whole[end..header]],
        &whole[header.next_multiple_of(32)..],
    );
    let offset = 0u64.to_le_bytes();
    let second = part(1, 1, 0, &[&whole[begin..dims + 20], &offset], &whole[from..from + bytes]);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("s-00001-of-00002.gguf");
    std::fs::write(&path, first)?;
    std::fs::write(folder.path().join("s-00002-of-00002.gguf"), second)?;
    let model = open(&path)?.load_model(DType::F32, &Device::Cpu)?;
    assert!(parameter_bits(&model)? == parameter_bits(&expected)?);
    Ok(())
}

/// A `gpt_bigcode` as llama.cpp's converter writes it has the numbers of the same model in safetensors, bit for bit.
#[test]
fn a_starcoder_is_a_gpt_bigcode() -> Result {
    let path = data("gguf").join("starcoder.gguf");
    let checkpoint = open(&path)?;
    let expected = load("bigcode", DType::F32)?;
    let model = checkpoint.load_model(DType::F32, &Device::Cpu)?;
    assert_eq!((model.config().multi_query, model.config().is_bigcode()), (Some(true), true));
    assert_eq!(model.config().eos_token_id, expected.config().eos_token_id);
    assert!(parameter_bits(&model)? == parameter_bits(&expected)?);
    assert!(logit_bits(&model)? == logit_bits(&expected)?);
    // llama.cpp's starcoder has one head of keys.
    let mut whole = std::fs::read(&path)?;
    let key = b"starcoder.attention.head_count_kv";
    let at = whole.windows(key.len()).position(|part| part == key).ok_or("there")? + key.len() + 4;
    whole[at] = 3;
    let folder = tempfile::tempdir()?;
    let other = folder.path().join("other.gguf");
    std::fs::write(&other, whole)?;
    assert_says("heads", &open(&other).expect_err("heads").to_string(), &["head_count_kv is 3; expected 1"]);
    Ok(())
}

/// The numbers that the Python package `gguf` reads from blocks of random bytes.
#[test]
fn blocks_hold_the_numbers_that_gguf_reads_from_them() -> Result {
    let reference = read(&data("gguf").join("blocks.safetensors"))?;
    for format in BlockFormat::ALL {
        let name = format.as_str().to_uppercase();
        let expected = floats(&reference[&format!("{name}.values")].data);
        let mut got = vec![0.0; expected.len()];
        format.dequantize(&reference[&format!("{name}.blocks")].data, &mut got);
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            // With a minimum, the order of two roundings may differ.
            assert!(
                (got - expected).abs() <= 1e-6 * expected.abs().max(1e-3),
                "{name}, number {i}: {got}, not {expected}"
            );
        }
    }
    Ok(())
}

/// By ggml's layouts: each block of 32 has a scale of two bytes, one of 256 has scales of 12 + 4 or 16 + 2 bytes.
#[test]
fn the_bits_of_a_number_count_its_part_of_the_scales() {
    for (format, bits) in [
        (BlockFormat::Q4_0, 4.5),
        (BlockFormat::Q5_0, 5.5),
        (BlockFormat::Q8_0, 8.5),
        (BlockFormat::Q4K, 4.5),
        (BlockFormat::Q5K, 5.5),
        (BlockFormat::Q6K, 6.5625),
    ] {
        assert!((Encoding::Blocks(format).bits() - bits).abs() < 1e-12, "{format:?}");
    }
    for (dtype, bits) in [(Dtype::U8, 8.0), (Dtype::BF16, 16.0), (Dtype::F32, 32.0)] {
        assert!((Encoding::Plain(dtype).bits() - bits).abs() < 1e-12, "{dtype:?}");
    }
}

#[test]
fn the_bytes_of_q8_0_are_those_of_gguf() -> Result {
    let reference = read(&data("gguf").join("blocks.safetensors"))?;
    let made = BlockFormat::Q8_0.quantize(&floats(&reference["Q8_0.of"].data));
    assert_eq!(made, reference["Q8_0.made"].data);
    Ok(())
}

#[test]
fn a_file_that_gguf_wrote_holds_its_model_and_its_tokenizer() -> Result {
    let path = data("gguf").join("tiny.gguf");
    let checkpoint = open(&path)?;
    assert!(checkpoint.audit().is_clean(), "{}", checkpoint.audit());
    assert_eq!(checkpoint.formats(), [BlockFormat::Q8_0]);
    let config = checkpoint.config();
    assert_eq!((config.vocab_size, config.n_positions, config.n_embd, config.n_head), (257, 16, 32, 2));
    assert!((config.layer_norm_epsilon - 1e-5).abs() < 1e-18 && config.tie_word_embeddings);
    let expected = read(&data("gguf").join("tiny.safetensors"))?;
    let model = checkpoint.load_model(DType::F32, &Device::Cpu)?;
    let parameters = model.named_parameters();
    assert_eq!(parameters.len(), expected.len());
    for (name, values) in parameters {
        assert_eq!(
            values.tensor()?.flatten_all()?.to_vec1::<f32>()?,
            floats(&expected[&name].data),
            "{name}"
        );
    }
    let tokenizer = Tokenizer::open(&Source::Gguf(path).open()?, 257)?;
    let text = "Höhe, 1\n\t<|endoftext|> x";
    let mut ids: Vec<u32> = "Höhe, 1\n\t".bytes().map(u32::from).collect();
    // Its tokens are the bytes in order; the ids are those of GPT-2's letters, which put printing bytes first.
    ids = ids.iter().copied().chain([256]).chain(" x".bytes().map(u32::from)).collect();
    assert_eq!((tokenizer.encode(text)?, tokenizer.decode(&ids).as_str()), (ids.clone(), text));
    Ok(())
}

/// The demo model in each type.
#[test]
fn what_is_written_is_read_back() -> Result {
    let (checkpoint, tokenizer) = demo()?;
    let plain = checkpoint.load_model(DType::F32, &Device::Cpu)?;
    let dir = tempfile::tempdir()?;
    let ids = Tensor::arange(0u32, 60, &Device::Cpu)?.unsqueeze(0)?;
    let expected = plain.forward(&ids, ForwardArgs::default())?.logits;
    for (kind, tolerance) in
        [(GgufType::F16, 0.0), (GgufType::Q8_0, 0.05), (GgufType::Q4KM, 0.3), (GgufType::Q4_0, 0.4)]
    {
        let path = dir.path().join(format!("{kind}.gguf"));
        let mut calls = 0;
        save_gguf(&path, &checkpoint, &tokenizer, kind, &mut |done, all, _| {
            assert!(done <= all);
            calls += 1;
            Ok(())
        })?;
        assert_eq!(calls, checkpoint.config().parameters()?.len() + 1);
        let files = Source::Gguf(path).open()?;
        let written = Checkpoint::open(&files)?;
        let model = written.load_model(DType::F32, &Device::Cpu)?;
        assert_close(
            kind.as_str(),
            &model.forward(&ids, ForwardArgs::default())?.logits,
            &expected,
            tolerance,
        );
        let again = Tokenizer::open(&files, 1024)?;
        let text = "O Romeo, Romeo! wherefore art thou Romeo?<|endoftext|>\n\u{1f600}";
        assert_eq!(again.encode(text)?, tokenizer.encode(text)?, "{kind}");
        assert_eq!(written.config().eos_token_id, checkpoint.config().eos_token_id);
        if kind == GgufType::F16 {
            // The demo model's numbers are halves.
            assert_eq!(parameter_bits(&model)?, parameter_bits(&plain)?);
            continue;
        }
        // Unpacked, the numbers are the same, and the model computes with what it holds.
        let unpacked = written.load_model(DType::F64, &Device::Cpu)?;
        for ((name, a), (_, b)) in model.named_parameters().iter().zip(unpacked.named_parameters()) {
            let a = a.tensor()?;
            let b = b.tensor()?.to_dtype(DType::F32)?;
            assert_eq!(
                a.flatten_all()?.to_vec1::<f32>()?,
                b.flatten_all()?.to_vec1::<f32>()?,
                "{kind}, {name}"
            );
        }
        let unpacked = unpacked.forward(&ids, ForwardArgs::default())?.logits.to_dtype(DType::F32)?;
        assert_close(
            kind.as_str(),
            &model.forward(&ids, ForwardArgs::default())?.logits,
            &unpacked,
            OF_ACTIVATIONS,
        );
    }
    Ok(())
}

/// Quantizing while loading, in memory and in a file gives the same model.
#[test]
fn a_model_is_quantized_in_the_same_way_wherever_it_is() -> Result {
    let (checkpoint, tokenizer) = demo()?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("q8_0.gguf");
    save_quietly(&path, &checkpoint, &tokenizer, GgufType::Q8_0)?;
    let of_file = logit_bits(&open(&path)?.load_model(DType::F32, &Device::Cpu)?)?;
    let while_loading = checkpoint.load_quantized(BlockFormat::Q8_0)?;
    assert!(while_loading.is_tied());
    assert_eq!(of_file, logit_bits(&while_loading)?);
    let in_memory = checkpoint.load_model(DType::F32, &Device::Cpu)?.quantize(BlockFormat::Q8_0)?;
    assert_eq!(of_file, logit_bits(&in_memory)?);

    // gpt_bigcode stores the transposes of its weights.
    let config = Config { n_embd: 64, n_head: 4, n_inner: None, ..case("bigcode")?.config().clone() };
    let model = Gpt2LMHeadModel::load(init::seeded(3, DType::F32, &Device::Cpu), &config)?;
    let while_loading = saved(&model, SaveOptions::default())?.open()?.load_quantized(BlockFormat::Q8_0)?;
    assert_eq!(logit_bits(&while_loading)?, logit_bits(&model.quantize(BlockFormat::Q8_0)?)?);
    Ok(())
}

#[test]
fn what_gguf_cannot_hold_is_refused_by_name() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("out.gguf");
    for (name, named) in [
        ("relu", "activation_function is Relu"),
        ("no_scale", "scale_attn_weights is false"),
        ("inverse_layer", "scale_attn_by_inverse_layer_idx is true"),
        ("untied", "32 weights"),
        ("bigcode", "gpt_bigcode"),
        ("cross", "cross-attention"),
    ] {
        let saved = save_quietly(&path, &case(name)?, &Tokenizer::gpt2(), GgufType::Q8_0);
        assert_says(name, &saved.expect_err(name).to_string(), &[named]);
    }
    let saved = save_quietly(&path, &case("untied")?, &Tokenizer::gpt2(), GgufType::F16);
    assert_says("tokens", &saved.expect_err("too many").to_string(), &["50257 tokens, the model only 31"]);
    Ok(())
}

#[test]
fn a_number_that_a_file_cannot_hold_is_not_written() -> Result {
    let demo = data("../../models/tiny-shakespeare");
    let refusal = |number: f32, kind| -> Result<String> {
        let dir = tempfile::tempdir()?;
        for file in ["config.json", "tokenizer.json"] {
            std::fs::copy(demo.join(file), dir.path().join(file))?;
        }
        let mut tensors = read(&demo.join("model.safetensors"))?;
        for tensor in tensors.values_mut() {
            // In f32, which holds more than blocks and halves do.
            let wide = |half: &[u8; 2]| half::f16::from_le_bytes(*half).to_f32().to_le_bytes();
            tensor.data = tensor.data.as_chunks::<2>().0.iter().flat_map(wide).collect();
            tensor.dtype = safetensors::Dtype::F32;
        }
        let damaged = tensors.get_mut("transformer.h.2.mlp.c_fc.weight").ok_or("a tensor")?;
        damaged.data[400..404].copy_from_slice(&number.to_le_bytes());
        std::fs::write(dir.path().join("model.safetensors"), crate::folder::serialized(&tensors)?)?;
        let files = Source::directory(dir.path()).open()?;
        let checkpoint = Checkpoint::open(&files)?;
        let tokenizer = Tokenizer::open(&files, 1024)?;
        let saved = save_quietly(&dir.path().join("out.gguf"), &checkpoint, &tokenizer, kind);
        Ok(saved.expect_err("not finite").to_string())
    };
    for kind in GgufType::ALL {
        for (number, says) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf"), (65505.0, "65504")] {
            assert_says(says, &refusal(number, *kind)?, &["h.2.mlp.c_fc.weight", says]);
        }
    }
    Ok(())
}

#[test]
fn a_checkpoint_that_does_not_fit_its_config_is_not_written() -> Result {
    let demo = data("../../models/tiny-shakespeare");
    let dir = tempfile::tempdir()?;
    for file in ["model.safetensors", "tokenizer.json"] {
        std::fs::copy(demo.join(file), dir.path().join(file))?;
    }
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(demo.join("config.json"))?)?;
    config["n_layer"] = 3.into();
    std::fs::write(dir.path().join("config.json"), config.to_string())?;
    let files = Source::directory(dir.path()).open()?;
    let checkpoint = Checkpoint::open(&files)?;
    let tokenizer = Tokenizer::open(&files, 1024)?;
    let path = dir.path().join("out.gguf");
    let saved = save_quietly(&path, &checkpoint, &tokenizer, GgufType::F16);
    assert!(matches!(saved, Err(LoadError::Audit(_))), "{saved:?}");
    assert!(!path.exists());
    Ok(())
}

/// GPT-2 small's own shape and vocabulary, quantized from random numbers: what a real file has, but for its size.
#[test]
fn the_built_in_tokenizer_is_written_as_lists() -> Result {
    let config = Config { n_layer: 1, n_embd: 32, n_head: 2, n_positions: 8, ..Config::gpt2() };
    let model = Gpt2LMHeadModel::load(init::seeded(3, DType::F32, &Device::Cpu), &config)?;
    let folder = saved(&model, SaveOptions::default())?;
    // The table has 6.4 MB, more than is read at a time.
    assert!(parameter_bits(&folder.load()?)? == parameter_bits(&model)?, "other numbers");
    let checkpoint = folder.open()?;
    let path = folder.file("small.gguf");
    save_quietly(&path, &checkpoint, &Tokenizer::gpt2(), GgufType::Q8_0)?;
    let tokenizer = Tokenizer::open(&Source::Gguf(path).open()?, 50257)?;
    for text in ["The capital of France is", " naïve café — 12345\n\n\tdone<|endoftext|>", "日本語 \u{1f600}"]
    {
        assert_eq!(tokenizer.encode(text)?, Tokenizer::gpt2().encode(text)?, "{text}");
    }
    Ok(())
}

/// Loading needs no more than the file says: the tests' own model in halves of the file's dtype.
#[test]
fn another_dtype_unpacks_what_is_quantized() -> Result {
    let checkpoint = open(data("gguf").join("tiny.gguf"))?;
    let ids = Tensor::arange(0u32, 16, &Device::Cpu)?.unsqueeze(0)?;
    let logits = |dtype| -> Result<Tensor> {
        let model = checkpoint.load_model(dtype, &Device::Cpu)?;
        Ok(model.forward(&ids, ForwardArgs::default())?.logits.to_dtype(DType::F32)?)
    };
    let plain = load("untied", DType::F32)?;
    assert!(!plain.is_tied());
    assert_close("f16", &logits(DType::F16)?, &logits(DType::F64)?, 0.02);
    assert_close("quantized", &logits(DType::F32)?, &logits(DType::F64)?, OF_ACTIVATIONS);
    Ok(())
}
