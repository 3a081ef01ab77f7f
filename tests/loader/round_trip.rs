//! A checkpoint from `save` loads again, bit for bit, under the names that transformers uses.

use super::{logit_bits, parameter_bits, saved};
use crate::common::{Result, data};
use crate::folder::{Folder, assert_says, read};
use crate::models::load;
use crate::other_layer::other_layer;
use candle_core::{DType, Device};
use gpt2_loader::{Checkpoint, LoadError, SaveOptions, Source, Tokenizer, check_savable, save};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeSet;
use std::path::Path;

/// A library's user has one error type from the files to the logits.
#[test]
fn loading_and_a_pass_have_one_error_type() -> Result {
    fn last_logits(dir: &Path, text: &str) -> std::result::Result<Vec<f32>, LoadError> {
        let files = Source::directory(dir).open()?;
        let checkpoint = Checkpoint::open(&files)?;
        let model = checkpoint.load_model(DType::F32, &Device::Cpu)?;
        let ids: Vec<u32> = text.split(',').filter_map(|id| id.parse().ok()).collect();
        let logits = model.forward(&model.ids(&ids)?, ForwardArgs::default())?.logits;
        let last = logits.narrow(1, logits.dim(1)? - 1, 1)?;
        Ok(last.flatten_all()?.to_vec1()?)
    }
    let model = load("odd", DType::F32)?;
    let folder = saved(&model, SaveOptions::default())?;
    assert_eq!(last_logits(folder.path(), "1,2,3")?.len(), model.config().vocab_size);
    let error = last_logits(folder.path(), "").expect_err("no tokens");
    assert!(
        matches!(error, LoadError::Candle(_)) && error.to_string().contains("at least one token"),
        "{error}"
    );
    Ok(())
}

#[test]
fn a_saved_model_loads_again_bit_for_bit() -> Result {
    for (case, tied) in [("odd", true), ("untied", false), ("cross", true)] {
        let model = load(case, DType::F32)?;
        for (dtype, buffers) in [(None, false), (None, true), (Some(DType::F32), true)] {
            let folder = saved(&model, SaveOptions::default().with_dtype(dtype).with_buffers(buffers))?;
            assert_eq!(folder.names()?, ["config.json", "model.safetensors"]);
            let again = folder.load()?;
            assert_eq!(again.config(), model.config(), "{case}");
            assert_eq!((again.is_tied(), model.is_tied()), (tied, tied), "{case}");
            assert_eq!(parameter_bits(&again)?, parameter_bits(&model)?, "{case}");
            assert_eq!(logit_bits(&again)?, logit_bits(&model)?, "{case}");
        }
    }
    Ok(())
}

#[test]
fn gpt_bigcode_is_saved_as_transformers_saves_it() -> Result {
    for case in ["bigcode", "bigcode_heads"] {
        for dtype in [DType::F32, DType::F16] {
            let folder = saved(&load(case, dtype)?, SaveOptions::default().with_dtype(DType::F32))?;
            let (written, original) =
                (read(&folder.file("model.safetensors"))?, read(&data(case).join("model.safetensors"))?);
            assert!(written.keys().eq(original.keys()), "{case}");
            if dtype == DType::F32 {
                assert_eq!(written, original, "{case}");
            }
            let json = |path: &std::path::Path| -> Result<serde_json::Value> {
                Ok(serde_json::from_slice(&std::fs::read(path)?)?)
            };
            let config = json(&folder.file("config.json"))?;
            for (field, value) in json(&data(case).join("config.json"))?.as_object().ok_or("an object")? {
                let theirs =
                    ["dtype", "num_key_value_heads", "pad_token_id", "transformers_version", "use_cache"];
                assert!(config[field] == *value || theirs.contains(&field.as_str()), "{case}: {field}");
            }
        }
        let model = load(case, DType::F32)?;
        let folder = Folder::empty()?;
        let error = save(folder.path(), &model, None, SaveOptions::default().with_buffers(true));
        let error = format!("{:?}", error.expect_err("gpt_bigcode has no triangles"));
        assert!(error.contains("gpt_bigcode has no attn.bias") && folder.names()?.is_empty(), "{error}");
    }
    Ok(())
}

/// A model of a case, one of whose numbers is another.
fn with_number(name: &str, number: f32) -> Result<Gpt2LMHeadModel> {
    let mut tensors = read(&data("odd").join("model.safetensors"))?;
    let tensor = tensors.get_mut(&format!("transformer.{name}")).ok_or("a tensor")?;
    tensor.data[8..12].copy_from_slice(&number.to_le_bytes());
    Ok(Folder::with_tensors("odd", &tensors)?.load()?)
}

#[test]
fn a_number_that_the_file_cannot_hold_is_refused_with_its_tensor_and_what_to_do() -> Result {
    let name = "h.1.mlp.c_fc.weight";
    // 65520 is the first number that rounds to infinity in f16.
    for (number, dtype, parts) in [
        (f32::NAN, DType::F32, &["NaN", "finite"][..]),
        (f32::NEG_INFINITY, DType::F64, &["-inf", "finite"]),
        (65520.0, DType::F16, &["65520", "f16 holds numbers up to 65504", "save it in bf16 or f32"]),
        (-1e6, DType::F16, &["-1000000", "save it in bf16 or f32"]),
        (f32::MAX, DType::BF16, &["holds 3.403e38", "bf16 holds numbers up to 3.390e38", "save it in f32"]),
    ] {
        let model = with_number(name, number)?;
        let folder = Folder::empty()?;
        let options = SaveOptions::default().with_dtype(dtype);
        let refused = save(&folder.file("out"), &model, None, options).expect_err("not finite").to_string();
        assert_says(&format!("{number} in {dtype:?}"), &refused, &[&[name], parts].concat());
        assert!(folder.names()?.is_empty(), "a folder is left");
        assert_eq!(check_savable(&model, dtype).expect_err("not finite").to_string(), refused);
    }
    for (number, dtype) in [(65519.0, DType::F16), (1e6, DType::BF16), (f32::MAX, DType::F32)] {
        let model = with_number(name, number)?;
        let folder = Folder::empty()?;
        check_savable(&model, dtype)?;
        save(folder.path(), &model, None, SaveOptions::default().with_dtype(dtype))?;
    }
    Ok(())
}

#[test]
fn numbers_that_are_not_finite_are_counted_by_tensor() -> Result {
    let count = |name: &str, number: f32| -> Result<Option<Vec<(String, usize)>>> {
        let mut tensors = read(&data("odd").join("model.safetensors"))?;
        let tensor = tensors.get_mut(name).ok_or("a tensor")?;
        tensor.data[4..8].copy_from_slice(&number.to_le_bytes());
        tensor.data[12..16].copy_from_slice(&number.to_le_bytes());
        let folder = Folder::with_tensors("odd", &tensors)?;
        let mut calls = 0;
        let checkpoint = folder.open()?;
        let mut count = |_, _| {
            calls += 1;
            Ok(())
        };
        let found = checkpoint.numbers(&mut count)?.map(|numbers| numbers.not_finite);
        assert_eq!(calls, checkpoint.config().parameters()?.len());
        Ok(found)
    };
    let name = "transformer.h.1.ln_2.bias";
    for number in [f32::NAN, f32::INFINITY] {
        assert_eq!(count(name, number)?, Some(vec![(name.to_string(), 2)]), "{number}");
    }
    assert_eq!(count(name, f32::MAX)?, Some(vec![]));
    Ok(())
}

#[test]
fn a_saved_file_has_transformers_names_and_format() -> Result {
    for (case, tied) in [("odd", true), ("untied", false), ("cross", true)] {
        for buffers in [false, true] {
            let folder = saved(&load(case, DType::F32)?, SaveOptions::default().with_buffers(buffers))?;
            let path = folder.file("model.safetensors");
            // transformers wrote the case, so its names are the right ones.
            let mut expected: BTreeSet<String> =
                read(&data(case).join("model.safetensors"))?.into_keys().collect();
            assert_eq!(expected.contains("lm_head.weight"), !tied, "{case}");
            if buffers {
                expected.extend([0, 1].map(|i| format!("transformer.h.{i}.attn.bias")));
            }
            assert_eq!(read(&path)?.into_keys().collect::<BTreeSet<_>>(), expected, "{case}");

            let bytes = std::fs::read(&path)?;
            let (_, header) = SafeTensors::read_metadata(&bytes)?;
            let metadata = header.metadata().clone().unwrap_or_default();
            assert_eq!(metadata, [("format".to_string(), "pt".to_string())].into());
        }
    }
    Ok(())
}

#[test]
fn a_saved_buffer_is_the_lower_triangle_and_no_parameter() -> Result {
    let model = load("odd", DType::F32)?;
    let folder = saved(&model, SaveOptions::default().with_dtype(DType::F16).with_buffers(true))?;
    let tensors = read(&folder.file("model.safetensors"))?;
    let triangle: Vec<u8> = (0..77 * 77).map(|i| u8::from(i % 77 <= i / 77)).collect();
    for layer in 0..2 {
        let buffer = &tensors[&format!("transformer.h.{layer}.attn.bias")];
        assert_eq!((buffer.dtype, buffer.shape.as_slice()), (Dtype::U8, &[1, 1, 77, 77][..]));
        assert_eq!(buffer.data, triangle);
    }
    let audit = folder.audit()?;
    assert!(audit.is_clean(), "{audit}");
    assert_eq!((audit.buffers.len(), audit.parameter_count), (2, model.config().parameter_count()?));
    Ok(())
}

#[test]
fn a_model_saved_in_halves_is_off_by_their_rounding_only() -> Result {
    let model = load("untied", DType::F32)?;
    for dtype in [DType::F16, DType::BF16] {
        let folder = saved(&model, SaveOptions::default().with_dtype(dtype))?;
        let again = folder.load()?;
        for ((name, got), (_, exact)) in again.named_parameters().iter().zip(model.named_parameters()) {
            let rounded = exact.tensor()?.to_dtype(dtype)?.to_dtype(DType::F32)?;
            assert_eq!(
                super::bits(&got.tensor()?.to_dtype(DType::F32)?)?,
                super::bits(&rounded)?,
                "{name} in {dtype:?}"
            );
        }
        assert_ne!(parameter_bits(&again)?, parameter_bits(&model)?, "the halves were not used");
    }
    Ok(())
}

#[test]
fn a_model_in_halves_is_saved_in_halves_unless_told_otherwise() -> Result {
    let model = load("odd", DType::F16)?;
    for (dtype, expected) in [(None, Dtype::F16), (Some(DType::F32), Dtype::F32)] {
        let folder = saved(&model, SaveOptions::default().with_dtype(dtype))?;
        let tensors = read(&folder.file("model.safetensors"))?;
        assert!(tensors.values().all(|t| t.dtype == expected), "{expected:?}");
    }
    Ok(())
}

#[test]
fn saving_over_a_checkpoint_replaces_it_while_it_is_in_use() -> Result {
    let folder = Folder::of("odd")?;
    let open = folder.open()?; // its file is mapped
    let other = load("untied", DType::F32)?;
    let saved = save(folder.path(), &other, None, SaveOptions::default());
    if cfg!(windows) {
        // It refuses to replace a file that is mapped.
        let error = saved.expect_err("it is in use").to_string();
        assert_says("a file in use", &error, &["model.safetensors", "other programs"]);
    } else {
        saved?;
        assert_eq!(logit_bits(&folder.load()?)?, logit_bits(&other)?);
    }
    let before = open.load_model(DType::F32, &Device::Cpu)?;
    assert_eq!(logit_bits(&before)?, logit_bits(&load("odd", DType::F32)?)?);
    Ok(())
}

#[test]
fn the_tokenizer_is_saved_beside_the_weights() -> Result {
    let text = "To be, or not to be: that is the question.\nWhether 'tis nobler in the mind\n".repeat(8);
    let tokenizer = Tokenizer::train(&text, 300)?;
    let folder = Folder::empty()?;
    save(folder.path(), &load("odd", DType::F32)?, Some(&tokenizer), SaveOptions::default())?;
    assert_eq!(folder.names()?, ["config.json", "model.safetensors", "tokenizer.json"]);
    let again = Tokenizer::open(&Source::directory(folder.path()).open()?, 101)?;
    assert_eq!(again.encode(&text)?, tokenizer.encode(&text)?);
    assert_eq!(again.decode(&again.encode(&text)?), text);
    assert_eq!((again.vocab_size(), again.end_of_text()), (tokenizer.vocab_size(), tokenizer.end_of_text()));
    Ok(())
}

#[test]
fn a_refused_save_leaves_the_folder_as_it_was() -> Result {
    let folder = Folder::of("odd")?;
    let before = std::fs::read(folder.file("model.safetensors"))?;
    // GPT-2's built-in vocabulary has no file to save; `save` must notice before it writes anything.
    let other = load("untied", DType::F32)?;
    let err = save(folder.path(), &other, Some(&Tokenizer::gpt2()), SaveOptions::default())
        .expect_err("no tokenizer.json")
        .to_string();
    assert!(err.contains("GPT-2"), "{err}");
    assert!(std::fs::read(folder.file("model.safetensors"))? == before, "the weights were replaced");
    assert!(folder.load().is_ok(), "weights and config no longer belong together");
    Ok(())
}

#[test]
fn a_folder_that_is_not_there_is_made() -> Result {
    let model = load("odd", DType::F32)?;
    let folder = Folder::empty()?;
    let inside = folder.file("not/there/yet");
    save(&inside, &model, None, SaveOptions::default())?;
    let again = Checkpoint::open(&Source::directory(inside).open()?)?;
    assert_eq!(parameter_bits(&again.load_model(DType::F32, &Device::Cpu)?)?, parameter_bits(&model)?);
    Ok(())
}

#[test]
fn a_tensor_is_given_in_its_own_shape_alone() -> Result {
    let vb = Folder::of("odd")?.open()?.var_builder(DType::F32, &Device::Cpu)?;
    assert_eq!(vb.get((101, 48), "wte.weight")?.dims(), [101, 48]);
    let error = vb.get((48, 101), "wte.weight").expect_err("its transpose").to_string();
    assert_says("transpose", &error, &["wte.weight: expected shape [48, 101], found [101, 48]"]);
    let error = vb.get(48, "x.weight").expect_err("no such tensor").to_string();
    assert_says("absent", &error, &["x.weight: no such tensor in the checkpoint"]);
    Ok(())
}

#[test]
fn a_folder_that_cannot_be_made_is_named() -> Result {
    let folder = Folder::of("odd")?;
    let inside_a_file = folder.file("config.json").join("model");
    let err = save(&inside_a_file, &load("odd", DType::F32)?, None, SaveOptions::default())
        .expect_err("a file is no folder")
        .to_string();
    assert!(err.contains(&inside_a_file.display().to_string()), "{err}");
    Ok(())
}

#[test]
fn a_saved_config_is_one_that_transformers_recognizes() -> Result {
    let folder = saved(&load("inner", DType::F32)?, SaveOptions::default())?;
    let config: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.file("config.json"))?)?;
    assert_eq!(config["model_type"], "gpt2");
    assert_eq!(config["architectures"], serde_json::json!(["GPT2LMHeadModel"]));
    assert_eq!((&config["n_inner"], &config["layer_norm_epsilon"]), (&20.into(), &0.1.into()));
    assert_eq!(folder.open()?.config(), load("inner", DType::F32)?.config());
    Ok(())
}

/// Parameters that no reader of the file would know how to use.
#[test]
fn a_model_with_a_layer_of_another_kind_is_not_saved() -> Result {
    for (name, expected) in [
        (Some("lora_a"), "h.0.mlp.c_fc.lora_a is not a parameter of gpt2"),
        (None, "the model has no h.0.mlp.c_fc.weight"),
    ] {
        let mut model = load("odd", DType::F32)?;
        let mlp = &mut model.transformer.h[0].mlp;
        mlp.c_fc = other_layer(&mlp.c_fc, name);
        let folder = Folder::empty()?;
        let error = save(folder.path(), &model, None, SaveOptions::default()).expect_err("another layer");
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        let text = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
        assert!(text.contains(expected) && text.contains("dense"), "{text}");
        assert!(folder.names()?.is_empty(), "nothing is left behind");
    }
    Ok(())
}
