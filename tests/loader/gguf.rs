//! GGUF files: those of the Python package `gguf` are read, ours are read back, and each kind of damage has a message.

use super::{logit_bits, parameter_bits};
use crate::common::{Result, assert_close, data};
use crate::folder::{assert_says, read};
use crate::models::load;
use candle_core::{DType, Device, Tensor};
use gpt2_loader::{Checkpoint, GgufType, LoadError, SaveOptions, Source, Tokenizer, save, save_gguf};
use gpt2_model::linear::BlockFormat;
use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init};
use std::path::{Path, PathBuf};

const FORMATS: [(&str, BlockFormat); 5] = [
    ("Q4_0", BlockFormat::Q4_0),
    ("Q5_0", BlockFormat::Q5_0),
    ("Q8_0", BlockFormat::Q8_0),
    ("Q4_K", BlockFormat::Q4K),
    ("Q6_K", BlockFormat::Q6K),
];

/// What 8 bits for the activations of each layer cost in the logits of the demo model: 0.030, measured.
const OF_ACTIVATIONS: f64 = 0.05;

fn open(path: impl Into<PathBuf>) -> std::result::Result<Checkpoint, LoadError> {
    Checkpoint::open(&Source::Gguf(path.into()).open()?)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

/// The numbers that the Python package `gguf` reads from blocks of random bytes.
#[test]
fn blocks_hold_the_numbers_that_gguf_reads_from_them() -> Result {
    let reference = read(&data("gguf").join("blocks.safetensors"))?;
    for (name, format) in FORMATS {
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
    let demo = data("../../models/tiny-shakespeare");
    let files = Source::directory(demo).open()?;
    let (checkpoint, tokenizer) = (Checkpoint::open(&files)?, Tokenizer::open(&files, 1024)?);
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
            let (a, b) = (a.tensor()?, b.tensor()?.to_dtype(DType::F32)?);
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
    let demo = data("../../models/tiny-shakespeare");
    let files = Source::directory(demo).open()?;
    let (checkpoint, tokenizer) = (Checkpoint::open(&files)?, Tokenizer::open(&files, 1024)?);
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("q8_0.gguf");
    save_gguf(&path, &checkpoint, &tokenizer, GgufType::Q8_0, &mut |_, _, _| ())?;
    let of_file = logit_bits(&open(&path)?.load_model(DType::F32, &Device::Cpu)?)?;
    let while_loading = checkpoint.load_quantized(BlockFormat::Q8_0)?;
    assert!(while_loading.is_tied());
    assert_eq!(of_file, logit_bits(&while_loading)?);
    let in_memory = checkpoint.load_model(DType::F32, &Device::Cpu)?.quantize(BlockFormat::Q8_0)?;
    assert_eq!(of_file, logit_bits(&in_memory)?);

    // gpt_bigcode stores the transposes of its weights.
    let config = Config {
        n_embd: 64,
        n_head: 4,
        n_inner: None,
        ..Checkpoint::open(&Source::directory(data("bigcode")).open()?)?.config().clone()
    };
    let model = Gpt2LMHeadModel::load(init::seeded(3, DType::F32, &Device::Cpu), &config)?;
    let dir = tempfile::tempdir()?;
    save(dir.path(), &model, None, SaveOptions::default())?;
    let checkpoint = Checkpoint::open(&Source::directory(dir.path()).open()?)?;
    let while_loading = checkpoint.load_quantized(BlockFormat::Q8_0)?;
    assert_eq!(logit_bits(&while_loading)?, logit_bits(&model.quantize(BlockFormat::Q8_0)?)?);
    Ok(())
}

#[test]
fn what_gguf_cannot_hold_is_refused_by_name() -> Result {
    let dir = tempfile::tempdir()?;
    for (case, named) in [
        ("relu", "activation_function is Relu"),
        ("no_scale", "scale_attn_weights is false"),
        ("inverse_layer", "scale_attn_by_inverse_layer_idx is true"),
        ("untied", "32 weights"),
        ("bigcode", "gpt_bigcode"),
        ("cross", "cross-attention"),
    ] {
        let checkpoint = Checkpoint::open(&Source::directory(data(case)).open()?)?;
        let path = dir.path().join("out.gguf");
        let saved = save_gguf(&path, &checkpoint, &Tokenizer::gpt2(), GgufType::Q8_0, &mut |_, _, _| ());
        assert_says(case, &saved.expect_err(case).to_string(), &[named]);
    }
    let checkpoint = Checkpoint::open(&Source::directory(data("untied")).open()?)?;
    let path = dir.path().join("out.gguf");
    let saved = save_gguf(&path, &checkpoint, &Tokenizer::gpt2(), GgufType::F16, &mut |_, _, _| ());
    assert_says("tokens", &saved.expect_err("too many").to_string(), &["50257 tokens, the model only 31"]);
    Ok(())
}

/// What every other command refuses is not written, either.
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
    let (checkpoint, tokenizer) = (Checkpoint::open(&files)?, Tokenizer::open(&files, 1024)?);
    let path = dir.path().join("out.gguf");
    let saved = save_gguf(&path, &checkpoint, &tokenizer, GgufType::F16, &mut |_, _, _| ());
    assert!(matches!(saved, Err(LoadError::Audit(_))), "{saved:?}");
    assert!(!path.exists());
    Ok(())
}

#[test]
fn a_renamed_tensor_is_missing_and_unexpected() -> Result {
    let whole = std::fs::read(data("gguf").join("tiny.gguf"))?;
    assert!(open(data("gguf").join("tiny.gguf"))?.config().tie_word_embeddings);
    let renamed = replaced(&whole, b"output_norm.bias", b"output_norm.bia_");
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("a.gguf");
    std::fs::write(&path, renamed)?;
    let error =
        open(&path)?.load_model(DType::F32, &Device::Cpu).expect_err("a name that is none").to_string();
    assert_says("a renamed tensor", &error, &["missing     ln_f.bias", "unexpected  output_norm.bia_"]);
    Ok(())
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = bytes.windows(from.len()).position(|part| part == from).expect("it is there");
    let mut out = bytes.to_vec();
    out[at..at + to.len()].copy_from_slice(to);
    out
}

/// The file with some bytes replaced after the first occurrence of a text.
fn after(bytes: &[u8], text: &[u8], skip: usize, to: &[u8]) -> Vec<u8> {
    let at =
        bytes.windows(text.len()).position(|part| part == text).expect("it is there") + text.len() + skip;
    let mut out = bytes.to_vec();
    out[at..at + to.len()].copy_from_slice(to);
    out
}

/// What is wrong with a file, the file, and what its error says.
type Hostile = (&'static str, Vec<u8>, &'static [&'static str]);

fn hostile(whole: &[u8]) -> Vec<Hostile> {
    let huge = (1u64 << 60).to_le_bytes();
    let mut twice = whole.to_vec();
    let embedding = b"gpt2.embedding_length";
    let at = whole.windows(21).position(|part| part == embedding).expect("it is there");
    twice[at..at + 21].copy_from_slice(b"gpt2.feed_forward_len"); // then another key has that name, too
    let table = b"token_embd.weight";
    vec![
        ("nothing", vec![], &["the file is empty"]),
        ("another format", b"PK\x03\x04 and so on".to_vec(), &["expected \"GGUF\""]),
        ("version 1", after(whole, b"GGUF", 0, &[1, 0, 0, 0]), &["version 1 is not supported"]),
        ("big-endian", after(whole, b"GGUF", 0, &[0, 0, 0, 3]), &["big-endian"]),
        ("2^60 tensors", after(whole, b"GGUF", 4, &huge), &["1152921504606846976 tensors do not fit"]),
        ("2^60 keys", after(whole, b"GGUF", 12, &huge), &["1152921504606846976 keys do not fit"]),
        (
            "a key of 2^60 bytes",
            after(whole, b"GGUF", 20, &huge),
            &["a key should take 1152921504606846976 bytes"],
        ),
        (
            "a string of 2^60 bytes",
            after(whole, b"general.architecture", 4, &huge),
            &["general.architecture", "1152921504606846976"],
        ),
        (
            "2^60 tokens",
            after(whole, b"tokenizer.ggml.tokens", 8, &huge),
            &["elements of tokenizer.ggml.tokens do not fit"],
        ),
        (
            "a type that is none",
            after(whole, b"gpt2.block_count", 0, &[99, 0, 0, 0]),
            &["gpt2.block_count: there is no type 99"],
        ),
        (
            "another architecture",
            after(whole, b"general.architecture", 12, b"llam"),
            &["it is \"llam\"; expected \"gpt2\""],
        ),
        (
            "no embedding length",
            replaced(whole, embedding, b"gpt2.embedding_lengtX"),
            &["gpt2.embedding_length is missing"],
        ),
        ("9 dimensions", after(whole, table, 0, &[9, 0, 0, 0]), &["token_embd.weight: 9 dimensions"]),
        ("2^60 by 257", after(whole, table, 4, &huge), &["token_embd.weight: [1152921504606846976, 257]"]),
        (
            "no whole blocks",
            after(whole, table, 4, &33u64.to_le_bytes()),
            &["token_embd.weight", "no whole blocks of Q8_0"],
        ),
        (
            "an offset beyond the end",
            after(whole, table, 24, &huge),
            &["token_embd.weight", "beyond the end"],
        ),
        ("an offset of -1", after(whole, table, 24, &[255; 8]), &["token_embd.weight", "beyond the end"]),
        (
            "a shared offset",
            after(whole, b"position_embd.weight", 24, &[0; 8]),
            &["position_embd.weight", "token_embd.weight", "share bytes"],
        ),
        (
            "a tensor twice",
            replaced(whole, b"blk.0.ffn_norm.bias", b"blk.0.attn_qkv.bias"),
            &["tensor \"blk.0.attn_qkv.bias\" occurs twice"],
        ),
        ("no UTF-8", replaced(whole, b"general.name", b"general.nam\xff"), &["a key is not UTF-8"]),
        ("cut in the header", whole[..500].to_vec(), &["the file"]),
        ("cut in the data", whole[..whole.len() - 100].to_vec(), &["output_norm.bias", "beyond the end"]),
    ]
}

#[test]
fn hostile_files_are_refused_with_what_is_wrong() -> Result {
    let whole = std::fs::read(data("gguf").join("tiny.gguf"))?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("hostile.gguf");
    for (what, bytes, parts) in hostile(&whole) {
        std::fs::write(&path, bytes)?;
        let error = open(&path).expect_err(what);
        assert!(matches!(error, LoadError::Damaged { .. }), "{what}: {error:?}");
        assert_says(what, &error.to_string(), &[&path.display().to_string()]);
        assert_says(what, &error.to_string(), parts);
    }
    Ok(())
}

/// Keys that name an alignment, as a writer could put them.
#[test]
fn an_alignment_is_a_power_of_2() -> Result {
    let whole = std::fs::read(data("gguf").join("tiny.gguf"))?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("aligned.gguf");
    for (alignment, works) in [(0u32, false), (3, false), (1 << 31, false), (32, true)] {
        // general.name and its value become general.alignment and a number.
        let name = b"general.name\x08\0\0\0\x04\0\0\0\0\0\0\0tiny";
        let at = whole.windows(name.len()).position(|part| part == name).expect("it is there");
        let mut key = 17u64.to_le_bytes().to_vec();
        key.extend(b"general.alignment\x04\0\0\0");
        key.extend(alignment.to_le_bytes());
        let mut bytes = [&whole[..at - 8], &key, &whole[at + name.len()..]].concat();
        // The header has become shorter, but the data must start where it did, modulo the alignment.
        let shift = whole.len() - bytes.len();
        let data_start = header_end(&whole);
        bytes.splice(data_start - shift..data_start - shift, vec![0; shift % 32]);
        std::fs::write(&path, &bytes)?;
        match open(&path) {
            Ok(_) => assert!(works, "an alignment of {alignment} was read"),
            Err(error) => {
                assert!(!works, "{error}");
                assert_says("alignment", &error.to_string(), &["general.alignment", "power of 2"]);
            }
        }
    }
    Ok(())
}

/// Where the header of the tiny file ends: after its last tensor's offset.
fn header_end(whole: &[u8]) -> usize {
    let name = b"output_norm.bias";
    whole.windows(name.len()).position(|part| part == name).expect("it is there") + name.len() + 4 + 8 + 4 + 8
}

/// A tensor of a type that is not read: the file opens, and the audit names the tensor.
#[test]
fn a_type_that_is_not_read_is_named_with_its_tensor() -> Result {
    let whole = std::fs::read(data("gguf").join("tiny.gguf"))?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("unknown.gguf");
    for (number, name) in [(10u8, "Q2_K"), (200, "type 200")] {
        std::fs::write(&path, after(&whole, b"blk.0.ffn_up.weight", 20, &[number, 0, 0, 0]))?;
        let checkpoint = open(&path)?;
        let error = checkpoint.load_model(DType::F32, &Device::Cpu).expect_err("refused").to_string();
        assert_says(name, &error, &[&format!("blk.0.ffn_up.weight {name}")]);
        assert_eq!(checkpoint.audit().mismatched.len(), 1);
    }
    Ok(())
}

#[test]
fn a_file_cut_or_changed_anywhere_is_an_error_or_a_success() -> Result {
    let whole = std::fs::read(data("gguf").join("tiny.gguf"))?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("changed.gguf");
    let use_it = |path: &Path| {
        if let Ok(checkpoint) = open(path) {
            let _ = checkpoint.load_model(DType::F32, &Device::Cpu);
            let _ = Source::Gguf(path.to_path_buf()).open().map(|files| Tokenizer::open(&files, 257));
        }
    };
    for len in (0..whole.len()).step_by(331) {
        std::fs::write(&path, &whole[..len])?;
        assert!(open(&path).is_err(), "{len} bytes");
    }
    for at in (0..header_end(&whole)).step_by(7) {
        let mut changed = whole.clone();
        changed[at] ^= 0x80 | u8::try_from(at % 113)?;
        std::fs::write(&path, &changed)?;
        use_it(&path);
    }
    Ok(())
}

/// GPT-2 small's own shape and vocabulary, quantized from random numbers: what a real file has, but for its size.
#[test]
fn the_built_in_tokenizer_is_written_as_lists() -> Result {
    let config = gpt2_model::Config {
        n_layer: 1,
        n_embd: 32,
        n_head: 2,
        n_positions: 8,
        ..gpt2_model::Config::gpt2()
    };
    let model = Gpt2LMHeadModel::load(init::seeded(3, DType::F32, &Device::Cpu), &config)?;
    let dir = tempfile::tempdir()?;
    gpt2_loader::save(dir.path(), &model, None, gpt2_loader::SaveOptions::default())?;
    let checkpoint = Checkpoint::open(&Source::directory(dir.path()).open()?)?;
    let path = dir.path().join("small.gguf");
    save_gguf(&path, &checkpoint, &Tokenizer::gpt2(), GgufType::Q8_0, &mut |_, _, _| ())?;
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
