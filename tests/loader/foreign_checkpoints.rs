//! Weights in the forms that other programs save them in: `tests/data/brought`, written by `scripts/make_brought_reference.py`.

use super::parameter_bits;
use crate::common::{Result, data};
use crate::folder::{Folder, Tensors, assert_says, read, serialized};
use candle_core::{DType, Device, Tensor};
use gpt2_loader::{Checkpoint, LoadError, Source, import};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel};
use serde_json::json;

const BIN: &str = "pytorch_model.bin";
const INDEX: &str = "pytorch_model.bin.index.json";

/// A file of the reference.
fn brought(name: &str) -> Result<Vec<u8>> {
    Ok(std::fs::read(data("brought").join(name))?)
}

/// A folder with the reference's config and nothing else.
fn with_config() -> Result<Folder> {
    let folder = Folder::empty()?;
    folder.write("config.json", brought("config.json")?)?;
    Ok(folder)
}

/// The folder of the reference's config and one of its files as `pytorch_model.bin`.
fn as_pickle(name: &str) -> Result<Folder> {
    let folder = with_config()?;
    folder.write(BIN, brought(name)?)?;
    Ok(folder)
}

fn plain() -> Result<Tensors> {
    read(&data("brought").join("plain.safetensors"))
}

/// The folder of these tensors under their own names.
fn of(tensors: &Tensors) -> Result<Folder> {
    let folder = with_config()?;
    folder.write("model.safetensors", serialized(tensors)?)?;
    Ok(folder)
}

/// Fails unless the model has the reference's own numbers, bit for bit.
#[track_caller]
fn assert_plain(what: &str, model: &Gpt2LMHeadModel) -> Result {
    let expected = of(&plain()?)?.load()?;
    assert!(parameter_bits(model)? == parameter_bits(&expected)?, "{what}: other numbers");
    assert_logits(what, model, "plain", 1e-5)
}

/// Fails unless the model gives the logits that PyTorch gave.
#[track_caller]
fn assert_logits(what: &str, model: &Gpt2LMHeadModel, expected: &str, most: f32) -> Result {
    let expected =
        candle_core::safetensors::load(data("brought").join("expected.safetensors"), &Device::Cpu)?
            .remove(expected)
            .ok_or("logits")?;
    let ids = Tensor::arange(0u32, u32::try_from(model.config().n_positions)?, &Device::Cpu)?.unsqueeze(0)?;
    let found = model.forward(&ids, ForwardArgs::default())?.logits;
    let difference = (found - &expected)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    let largest = expected.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    assert!(difference <= most * largest, "{what}: logits differ by {difference} of {largest}");
    Ok(())
}

/// The model of one file and its notes.
fn alone(name: &str) -> Result<(Gpt2LMHeadModel, String)> {
    let checkpoint = Checkpoint::open(&Source::File(data("brought").join(name)).open()?)?;
    Ok((checkpoint.load_model(DType::F32, &Device::Cpu)?, checkpoint.notes().join("\n")))
}

#[test]
fn pickles_of_every_layout_and_age() -> Result {
    for name in ["legacy.bin", "protocol3.bin", "protocol4.bin", "shared.bin"] {
        assert_plain(name, &as_pickle(name)?.load()?)?;
    }
    assert_logits("strided", &as_pickle("strided.bin")?.load()?, "strided", 1e-5)?;
    // Halves are multiplied as halves, summed in f32; PyTorch's were converted.
    let half = as_pickle("strided_half.bin")?;
    assert_logits("strided halves", &half.load()?, "strided_half", 1e-5)?;
    assert_eq!(half.open()?.notes(), ["names are read without their prefix `model.`"]);
    Ok(())
}

#[test]
fn a_legacy_file_cut_or_changed_anywhere_is_an_error_or_a_success() -> Result {
    let whole = brought("legacy.bin")?;
    let folder = as_pickle("legacy.bin")?;
    for len in (0..whole.len()).step_by(61).chain([whole.len() - 1]) {
        folder.write(BIN, &whole[..len])?;
        let error = folder.load().expect_err("a part");
        assert!(matches!(error, LoadError::Damaged { .. }), "{len} bytes: {error:?}");
    }
    for at in (0..whole.len()).step_by(13) {
        let mut changed = whole.clone();
        changed[at] ^= 0x81;
        folder.write(BIN, changed)?;
        let _ = folder.load();
    }
    Ok(())
}

#[test]
fn a_big_endian_or_foreign_pickle_is_named() -> Result {
    let whole = brought("legacy.bin")?;
    let key = b"little_endian";
    let at = whole.windows(key.len()).position(|part| part == key).ok_or("there")?;
    let value = at + whole[at..].iter().position(|byte| *byte == 0x88).ok_or("true")?;
    let mut big = whole.clone();
    big[value] = 0x89;
    let folder = as_pickle("legacy.bin")?;
    for (what, bytes, part) in [
        ("big-endian", big, "weights of a big-endian machine"),
        ("another program's", b"\x80\x04}.".to_vec(), "a pickle that torch.save did not write"),
    ] {
        folder.write(BIN, bytes)?;
        let error = folder.load().expect_err(what);
        assert!(matches!(error, LoadError::Unread { .. }), "{what}: {error:?}");
        assert_says(what, &error.to_string(), &[&folder.at(BIN), part]);
    }
    Ok(())
}

/// Pickles in shards, with the same checks as for safetensors.
#[test]
fn pickles_in_shards() -> Result {
    let folder = with_config()?;
    folder.write("a.bin", brought("shared.bin")?)?;
    folder.write("b.bin", brought("protocol3.bin")?)?;
    let names: Vec<String> = plain()?.into_keys().collect();
    let index = |last: &str| -> Result<String> {
        let shard = |name: &String| if name.ends_with("ln_f.bias") { last } else { "a.bin" };
        let map: serde_json::Map<_, _> =
            names.iter().map(|name| (name.clone(), shard(name).into())).collect();
        Ok(json!({"weight_map": map}).to_string())
    };
    folder.write(INDEX, index("a.bin")?)?;
    assert_plain("one shard", &folder.load()?)?;
    folder.write(INDEX, index("b.bin")?)?;
    let twice = folder.refusal("twice");
    assert_says("twice", &twice, &[&folder.at(INDEX), "is in two shards, a.bin and b.bin"]);
    folder.write(INDEX, index("c.bin")?)?;
    assert_says("no shard", &folder.refusal("no shard"), &[&folder.at("c.bin"), "is not there"]);
    Ok(())
}

#[test]
fn a_prefix_that_all_names_have_is_left_out_and_named() -> Result {
    let own = plain()?;
    let bare = |name: &str| name.replace("transformer.", "");
    for (prefix, wrapper) in [
        ("_orig_mod.", "_orig_mod."),
        ("module.", "module."),
        ("module._orig_mod.", "module._orig_mod."),
        ("model.", "model."),
        ("transformer.", "transformer."),
        ("pretrained_model.", "pretrained_model."),
        ("a.b.c.", "a.b.c."),
    ] {
        let named: Tensors = own.iter().map(|(name, t)| (format!("{prefix}{name}"), t.clone())).collect();
        let folder = of(&named)?;
        assert_plain(prefix, &folder.load()?)?;
        assert_eq!(folder.open()?.notes(), [format!("names are read without their prefix `{wrapper}`")]);
        if prefix == "transformer." {
            continue; // without the inner one, the outer is transformers' own
        }
        let named: Tensors =
            own.iter().map(|(name, t)| (format!("{prefix}{}", bare(name)), t.clone())).collect();
        assert_plain(prefix, &of(&named)?.load()?)?;
    }
    // A head beside the wrapped model, and a value head.
    let mut named: Tensors =
        own.iter().map(|(name, t)| (format!("gpt2.{}", bare(name)), t.clone())).collect();
    named.insert("lm_head.weight".into(), own["transformer.wte.weight"].clone());
    named.insert("v_head.summary.weight".into(), own["transformer.ln_f.bias"].clone());
    let folder = of(&named)?;
    assert_plain("a head beside", &folder.load()?)?;
    assert_says("notes", &folder.open()?.notes().join("\n"), &["`gpt2.`", "v_head.summary.weight"]);
    Ok(())
}

#[test]
fn several_models_in_one_file_are_not_chosen_from() -> Result {
    let both = plain()?
        .into_iter()
        .flat_map(|(name, t)| ["actor.", "ref."].map(|prefix| (format!("{prefix}{name}"), t.clone())));
    let message = of(&both.collect())?.refusal("two models");
    assert_says("two models", &message, &["several models", "`actor.`, `ref.`"]);
    Ok(())
}

/// Under keys of which none is known to be the model's, nothing is chosen; beside a known one, the others are named.
#[test]
fn several_models_under_keys_are_named() -> Result {
    let message = as_pickle("two.bin")?.refusal("two keys");
    assert_says("two keys", &message, &["several models", "`student`, `teacher`"]);
    let folder = as_pickle("averaged.bin")?;
    assert_plain("an average beside", &folder.load()?)?;
    assert_eq!(
        folder.open()?.notes(),
        ["the weights are those under the key `model`, not those under `ema`"]
    );
    Ok(())
}

/// Layers that PEFT has wrapped are not the model's own: what to save instead is told.
#[test]
fn an_adapters_layers_inside_a_model_are_named() -> Result {
    let mut tensors = plain()?;
    let name = "transformer.h.0.attn.c_attn";
    let own = tensors.remove(&format!("{name}.weight")).ok_or("no c_attn")?;
    tensors.insert(format!("{name}.base_layer.weight"), own.clone());
    tensors.insert(format!("{name}.lora_A.default.weight"), own);
    let message = of(&tensors)?.refusal("wrapped layers");
    assert_says("wrapped layers", &message, &["missing", "adapter's layer", "merge_and_unload()"]);
    Ok(())
}

/// Linear weights as `nn.Linear` has them, which only some of the shapes can tell.
#[test]
fn linear_weights_the_other_way_round_are_turned_if_all_are() -> Result {
    let mut tensors = plain()?;
    let turned = |tensor: &mut crate::folder::Raw| {
        let [rows, columns] = tensor.shape[..] else { return };
        let (numbers, _) = tensor.data.as_chunks::<4>();
        let order = (0..columns).flat_map(|c| (0..rows).map(move |r| r * columns + c));
        tensor.data = order.flat_map(|at| numbers[at]).collect();
        tensor.shape.reverse();
    };
    for (name, tensor) in &mut tensors {
        if name.contains(".c_") {
            turned(tensor);
        }
    }
    let folder = of(&tensors)?;
    assert_plain("turned", &folder.load()?)?;
    assert_says("notes", &folder.open()?.notes().join("\n"), &["(out, in)", "transposed"]);
    // One that lies as it should is a mistake, not a layout.
    turned(tensors.get_mut("transformer.h.1.mlp.c_fc.weight").ok_or("there")?);
    assert_says("mixed", &of(&tensors)?.refusal("mixed"), &["mis-shaped"]);
    Ok(())
}

#[test]
fn nano_gpts_checkpoint_is_read_with_its_own_sizes() -> Result {
    let (model, notes) = alone("ckpt.pt")?;
    assert_logits("nanoGPT", &model, "nano", 1e-5)?;
    assert_says(
        "notes",
        &notes,
        &["under the key `model`", "prefix `_orig_mod.`", "transposed", "without biases"],
    );
    // In a folder, the config's activation counts: that of nanoGPT is exact.
    let folder = as_pickle("ckpt.pt")?;
    folder.set_config("activation_function", "gelu".into())?;
    assert_logits("nanoGPT in a folder", &folder.load()?, "nano", 1e-5)
}

#[test]
fn llm_cs_checkpoint_is_read_without_its_padding() -> Result {
    let (model, _) = alone("llmc.bin")?;
    assert_plain("llm.c", &model)?;
    let whole = brought("llmc.bin")?;
    let folder = Folder::empty()?;
    for (what, at, word, part) in [
        ("version 1", 4, 1i32, "version 1; expected 3 (f32) or 5 (bf16)"),
        ("another version", 4, 9, "version 9"),
        ("no heads", 20, 0, "n_head is 0"),
        ("a negative size", 16, -1, "num_layers is -1"),
        ("too many layers", 16, 3, "its header asks for"),
        ("a padding below the vocabulary", 28, 3, "padded_vocab_size is 3"),
        ("no padding, as in early versions", 28, 0, "from before its vocabulary was padded"),
    ] {
        let mut changed = whole.clone();
        changed[at..at + 4].copy_from_slice(&word.to_le_bytes());
        folder.write("llmc.bin", changed)?;
        let path = folder.file("llmc.bin");
        let error = Source::File(path).open().and_then(|files| Checkpoint::open(&files)).expect_err(what);
        assert_says(what, &error.to_string(), &[&folder.at("llmc.bin"), part]);
        let is_sound = part.contains("version") || part.contains("before");
        assert_eq!(matches!(error, LoadError::Unread { .. }), is_sound, "{what}: {error:?}");
    }
    Ok(())
}

#[test]
fn a_gguf_file_in_parts_is_read_from_any_of_them() -> Result {
    let names = [1, 2, 3].map(|n| format!("parts-{n:05}-of-00003.gguf"));
    let folder = Folder::empty()?;
    for name in &names {
        folder.write(name, brought(name)?)?;
    }
    let open = |name: &str| Source::Gguf(folder.file(name)).open();
    for name in &names {
        let files = open(name)?;
        assert_eq!(files.paths()?.len(), 4, "the config's and three parts");
        assert_plain(name, &Checkpoint::open(&files)?.load_model(DType::F32, &Device::Cpu)?)?;
    }
    std::fs::rename(folder.file(&names[0]), folder.file("first.gguf"))?;
    for (name, part) in [
        (
            names[1].as_str(),
            "is part 2 of 3 of a model, and part 1, parts-00001-of-00003.gguf, is not beside it",
        ),
        (
            "first.gguf",
            "is part 1 of 3 of a model, and the others are found by names that end in -00001-of-00003.gguf",
        ),
    ] {
        let error = open(name).expect_err(name);
        assert!(matches!(error, LoadError::Unread { .. }), "{error:?}");
        assert_says(name, &error.to_string(), &[&folder.at(name), part, "llama-gguf-split --merge"]);
    }
    // Another part under this name.
    folder.write(&names[0], brought(&names[1])?)?;
    let error = open(&names[1]).expect_err("twice the second").to_string();
    assert_says("another part", &error, &[&folder.at(&names[0]), "are not those of part 1 of 3"]);
    let in_memory =
        gpt2_loader::Files::in_memory("dropped", [(names[1].clone(), brought(&names[1])?)].into());
    assert_says("in memory", &in_memory.expect_err("a part").to_string(), &["part 2 of 3", "on disk only"]);
    Ok(())
}

#[test]
fn import_writes_a_folder_that_loads_as_the_file_does() -> Result {
    for (name, logits) in [("ckpt.pt", "nano"), ("llmc.bin", "plain"), ("parts-00002-of-00003.gguf", "plain")]
    {
        let out = Folder::empty()?;
        let files = Source::File(data("brought").join(name)).open()?;
        let mut steps = 0;
        let mut count = |_, _| {
            steps += 1;
            Ok(())
        };
        let done = import(&files, out.path(), DType::F32, &mut count)?;
        assert!(steps > 0);
        assert_eq!(done.parameters, out.audit()?.parameter_count, "{name}");
        assert_eq!(out.names()?, ["config.json", "model.safetensors"], "{name}");
        assert!(out.open()?.notes().is_empty(), "{name}: {:?}", out.open()?.notes());
        assert_logits(name, &out.load()?, logits, 1e-5)?;
    }
    Ok(())
}

#[test]
fn a_file_alone_needs_its_sizes_and_a_kind() -> Result {
    let folder = Folder::empty()?;
    folder.write("model.bin", brought("shared.bin")?)?;
    folder.write("model.h5", b"\x89HDF\r\n\x1a\n")?;
    folder.write("noise", [7, 200, 9, 255, 1])?;
    for (name, parts) in [
        ("model.bin", ["expected a config.json beside it", "put the model's own there"]),
        ("model.h5", ["is an HDF5 file", "safetensors, PyTorch, GGUF or llm.c"]),
        ("noise", ["damaged or not a safetensors, PyTorch, GGUF or llm.c file", "fetch the file again"]),
    ] {
        let error = Source::File(folder.file(name)).open().expect_err(name).to_string();
        assert_says(name, &error, &[&[folder.at(name).as_str()][..], &parts].concat());
    }
    folder.write("config.json", brought("config.json")?)?;
    let files = Source::File(folder.file("model.bin")).open()?;
    assert_plain("beside a config", &Checkpoint::open(&files)?.load_model(DType::F32, &Device::Cpu)?)
}
