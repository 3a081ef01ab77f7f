//! The audit: one error lists everything that does not fit, and buffers do not count.

use super::odd;
use crate::common::{Result, data};
use crate::folder::{Folder, Raw, assert_says, read, zeros};
use candle_core::{DType, Device};
use gpt2_loader::{Advice, Audit, LoadError, TensorInfo};
use safetensors::Dtype;

/// The names of tensors as saved.
fn names(tensors: &[TensorInfo]) -> Vec<&str> {
    tensors.iter().map(|t| t.name.as_str()).collect()
}

/// The names and shapes of what is missing.
fn missing(audit: &Audit) -> Vec<(&str, &[usize])> {
    audit.missing.iter().map(|p| (p.name.as_str(), p.shape.as_slice())).collect()
}

fn u8_triangle(n: usize) -> Raw {
    zeros(Dtype::U8, &[1, 1, n, n])
}

#[test]
fn one_error_lists_everything_that_does_not_fit() -> Result {
    let mut tensors = odd()?;
    tensors.remove("transformer.wpe.weight");
    tensors.remove("transformer.h.0.mlp.c_proj.bias");
    tensors.insert("transformer.h.1.crossattention.c_attn.weight".into(), zeros(Dtype::F32, &[48, 96]));
    if let Some(c_fc) = tensors.get_mut("transformer.h.1.mlp.c_fc.weight") {
        assert_eq!(c_fc.shape, [48, 192]);
        c_fc.shape.reverse();
    }
    tensors.insert("transformer.ln_f.weight".into(), zeros(Dtype::I64, &[48]));
    tensors.insert("transformer.h.0.attn.bias".into(), u8_triangle(77));
    let folder = Folder::with_tensors("odd", &tensors)?;

    let audit = folder.audit()?;
    assert_eq!(missing(&audit), [("wpe.weight", &[77, 48][..]), ("h.0.mlp.c_proj.bias", &[48])]);
    assert_eq!(names(&audit.unexpected), ["transformer.h.1.crossattention.c_attn.weight"]);
    let mismatched: Vec<_> = audit
        .mismatched
        .iter()
        .map(|m| (m.found.name.as_str(), m.found.shape.as_slice(), m.expected.as_slice()))
        .collect();
    assert_eq!(
        mismatched,
        [
            ("transformer.h.1.mlp.c_fc.weight", &[192, 48][..], &[48, 192][..]),
            ("transformer.ln_f.weight", &[48], &[48])
        ]
    );
    assert_eq!(audit.buffers.len(), 1);

    for error in [
        folder.load().expect_err("load_model"),
        folder.open()?.var_builder(DType::F32, &Device::Cpu).map(|_| ()).expect_err("var_builder"),
    ] {
        assert!(matches!(error, LoadError::Audit(_)), "{error:?}");
        let message = error.to_string();
        let path = folder.dir();
        let parts = [
            path.as_str(),
            "missing     wpe.weight [77, 48]",
            "missing     h.0.mlp.c_proj.bias [48]",
            "unexpected  transformer.h.1.crossattention.c_attn.weight F32 [48, 96] in model.safetensors",
            "mis-shaped  transformer.h.1.mlp.c_fc.weight F32 [192, 48] in model.safetensors",
            "[48, 192]",
            "mis-shaped  transformer.ln_f.weight I64 [48] in model.safetensors, expected a float",
            "check that config.json and the weights belong together",
        ];
        assert_says("audit", &message, &parts);
        assert!(!message.contains("attn.bias"), "the buffer is fine: {message}");
    }
    Ok(())
}

#[test]
fn the_bias_of_c_attn_is_never_taken_for_a_buffer() -> Result {
    let mut tensors = odd()?;
    let bias = tensors.remove("transformer.h.1.attn.c_attn.bias").ok_or("there")?;
    tensors.insert("transformer.h.1.attn.bias".into(), u8_triangle(77));
    let audit = Folder::with_tensors("odd", &tensors)?.audit()?;
    assert_eq!(audit.missing.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["h.1.attn.c_attn.bias"]);
    assert_eq!(audit.buffers.len(), 1);

    // A vector under the buffer's name is neither a buffer nor c_attn's bias.
    tensors.insert("transformer.h.1.attn.bias".into(), bias);
    let audit = Folder::with_tensors("odd", &tensors)?.audit()?;
    assert_eq!(audit.missing.len(), 1);
    assert_eq!(names(&audit.unexpected), ["transformer.h.1.attn.bias"]);
    assert!(audit.buffers.is_empty());
    Ok(())
}

#[test]
fn cross_attention_is_audited_with_its_old_buffers() -> Result {
    let clean = Folder::of("cross")?.audit()?;
    let mut tensors = read(&data("cross").join("model.safetensors"))?;
    for layer in 0..2 {
        let name = |buffer: &str| format!("transformer.h.{layer}.crossattention.{buffer}");
        tensors.insert(name("bias"), u8_triangle(16));
        tensors.insert(name("masked_bias"), zeros(Dtype::F32, &[]));
    }
    let audit = Folder::with_tensors("cross", &tensors)?.audit()?;
    assert!(audit.is_clean(), "{audit}");
    assert_eq!((audit.buffers.len(), audit.parameter_count), (4, clean.parameter_count));

    tensors.remove("transformer.h.1.ln_cross_attn.bias");
    tensors.remove("transformer.h.0.crossattention.q_attn.weight");
    let audit = Folder::with_tensors("cross", &tensors)?.audit()?;
    let expected = [("h.0.crossattention.q_attn.weight", &[12, 12][..]), ("h.1.ln_cross_attn.bias", &[12])];
    assert_eq!(missing(&audit), expected);
    Ok(())
}

#[test]
fn buffers_are_never_unexpected_and_never_counted() -> Result {
    let clean = Folder::of("odd")?.audit()?;
    for dtype in [Dtype::F32, Dtype::F16, Dtype::U8, Dtype::BOOL] {
        let mut tensors = odd()?;
        for layer in 0..2 {
            tensors.insert(format!("transformer.h.{layer}.attn.bias"), zeros(dtype, &[1, 1, 77, 77]));
            tensors.insert(format!("transformer.h.{layer}.attn.masked_bias"), zeros(Dtype::F32, &[]));
        }
        let audit = Folder::with_tensors("odd", &tensors)?.audit()?;
        assert!(audit.is_clean(), "{dtype:?}: {audit}");
        assert_eq!((audit.buffers.len(), audit.parameter_count), (4, clean.parameter_count));
    }
    Ok(())
}

#[test]
fn a_buffer_of_a_layer_that_is_not_there_is_unexpected() -> Result {
    let mut tensors = odd()?;
    tensors.insert("transformer.h.2.attn.bias".into(), u8_triangle(77));
    let audit = Folder::with_tensors("odd", &tensors)?.audit()?;
    assert_eq!(names(&audit.unexpected), ["transformer.h.2.attn.bias"]);
    Ok(())
}

/// The heads of other tasks, buffers, scalars and empty tensors are not used, as transformers does not use them.
#[test]
fn what_gpt2_has_not_is_noted_and_not_used() -> Result {
    let clean = Folder::of("odd")?;
    let mut tensors = odd()?;
    let extra = [
        ("score.weight", zeros(Dtype::F32, &[2, 48])),
        ("classifier.bias", zeros(Dtype::F32, &[2])),
        ("transformer.multiple_choice_head.summary.weight", zeros(Dtype::F32, &[1, 48])),
        ("v_head.summary.weight", zeros(Dtype::F32, &[1, 48])),
        ("transformer.position_ids", zeros(Dtype::I64, &[1, 77])),
        ("transformer.h.0.attn.scale", zeros(Dtype::F32, &[])),
        ("transformer.h.1.attn.nothing", zeros(Dtype::F32, &[0, 48])),
        ("temperature", zeros(Dtype::F64, &[])),
    ];
    for (name, tensor) in &extra {
        tensors.insert((*name).to_string(), tensor.clone());
    }
    let folder = Folder::with_tensors("odd", &tensors)?;
    let audit = folder.audit()?;
    assert!(audit.is_clean(), "{audit}");
    let mut expected: Vec<&str> = extra.iter().map(|(name, _)| *name).collect();
    let mut found = names(&audit.unused);
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(audit.parameter_count, clean.audit()?.parameter_count);
    assert_says("clean", &audit.to_string(), &["8 others are not used"]);
    let notes = folder.open()?.notes();
    let [note] = &notes[..] else { return Err(format!("{notes:?}").into()) };
    assert_says("note", note, &["no such tensors: 8, classifier.bias", ", .."]);
    assert_eq!(super::logit_bits(&folder.load()?)?, super::logit_bits(&clean.load()?)?);
    // A part of a block that computes something is another model's.
    tensors.insert("transformer.h.0.attn.q_ln.weight".into(), zeros(Dtype::F32, &[48]));
    let refused = Folder::with_tensors("odd", &tensors)?.refusal("another layer");
    assert_says("another layer", &refused, &["unexpected  transformer.h.0.attn.q_ln.weight"]);
    Ok(())
}

#[test]
fn long_lists_are_cut_and_files_of_other_names_have_one_line() -> Result {
    let folder = Folder::of("odd")?;
    folder.set_config("n_layer", 4.into())?;
    let message = folder.refusal("more layers");
    assert_says("more layers", &message, &["missing     h.2.ln_1.weight", "missing     .. and 16 more"]);
    assert_eq!(message.lines().count(), 11, "{message}");

    // An output projection is called so in most models.
    let llama = [
        "lm_head.weight",
        "model.embed_tokens.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.norm.weight",
    ];
    let tensors = llama.map(|name| (name.to_string(), zeros(Dtype::F32, &[48, 48]))).into_iter().collect();
    let message = Folder::with_tensors("odd", &tensors)?.refusal("a Llama");
    assert_says(
        "a Llama",
        &message,
        &["none of its 3 tensors has a name of GPT-2's", "all begin with `model.`", "`wpe.weight`"],
    );
    assert_eq!(message.lines().count(), 1, "{message}");
    Ok(())
}

#[test]
fn a_name_saved_twice_is_reported() -> Result {
    let mut tensors = odd()?;
    tensors.insert("ln_f.bias".into(), zeros(Dtype::F32, &[48]));
    let folder = Folder::with_tensors("odd", &tensors)?;
    let audit = folder.audit()?;
    assert!(!audit.is_clean());
    assert_eq!(audit.duplicates.len(), 1);
    assert_says(
        "twice",
        &folder.refusal("twice"),
        &["twice", "ln_f.bias", "model.safetensors", "`transformer.`"],
    );
    Ok(())
}

#[test]
fn another_models_config_is_refused() -> Result {
    let folder = Folder::of("odd")?;
    for (field, value, part) in [
        ("n_layer", 3, "missing     h.2.ln_1.weight"),
        ("n_layer", 1, "unexpected  transformer.h.1.ln_1.weight"),
        ("n_positions", 78, "expected a float dtype and [78, 48]"),
        ("vocab_size", 100, "expected a float dtype and [100, 48]"),
        ("n_embd", 96, "expected a float dtype and [96, 288]"),
        ("n_inner", 100, "expected a float dtype and [48, 100]"),
    ] {
        let folder = Folder::of("odd")?;
        folder.set_config(field, value.into())?;
        assert_says(field, &folder.refusal(field), &[part, "do not fit config.json"]);
    }
    assert!(folder.load().is_ok());
    Ok(())
}

/// Each flag that changes the scores is reported, and no other.
#[test]
fn findings_name_the_flags_that_change_the_scores() -> Result {
    let folder = Folder::of("odd")?;
    let scale = |folder: &Folder| -> Result<Option<String>> {
        let findings = folder.open()?.findings();
        Ok(findings.into_iter().find(|finding| finding.about == "scale").map(|finding| finding.found))
    };
    let flags = [
        ("scale_attn_weights", false, "scale_attn_weights is false"),
        ("scale_attn_by_inverse_layer_idx", true, "layer's number"),
        ("reorder_and_upcast_attn", true, "reorder_and_upcast_attn"),
    ];
    for (field, value, _) in flags {
        folder.set_config(field, (!value).into())?;
    }
    assert_eq!(scale(&folder)?, None);
    for (field, value, says) in flags {
        folder.set_config(field, value.into())?;
        let found = scale(&folder)?.ok_or(field)?;
        assert!(found.contains(says) && !found.contains("; "), "{field}: {found}");
        folder.set_config(field, (!value).into())?;
    }
    Ok(())
}

/// The text and the advice of the finding about something.
fn finding(folder: &Folder, about: &str) -> Result<(String, Advice)> {
    let findings = folder.open()?.findings();
    let found = findings.into_iter().find(|finding| finding.about == about).ok_or("a finding")?;
    Ok((found.found, found.advice))
}

#[test]
fn findings_say_which_tables_are_saved_and_what_that_means() -> Result {
    let wte = "transformer.wte.weight";
    let head = "lm_head.weight";
    for (tied, names, says, advice) in [
        (true, &[wte][..], "lm_head is wte (tie_word_embeddings)", Advice::Nothing),
        (true, &[wte, head], "tied, and both wte and lm_head are saved", Advice::UsedAsSaved),
        (true, &[head], "tied, and saved as lm_head only", Advice::FilledFromHead),
        (false, &[wte, head], "lm_head is a separate table", Advice::Nothing),
        (false, &[wte], "not tied, and there is no lm_head", Advice::TieInConfig),
    ] {
        let mut tensors = odd()?;
        let table = tensors.remove(wte).ok_or("a table")?;
        tensors.extend(names.iter().map(|name| ((*name).to_string(), table.clone())));
        let folder = Folder::with_tensors("odd", &tensors)?;
        folder.set_config("tie_word_embeddings", tied.into())?;
        assert_eq!(finding(&folder, "tying")?, (says.to_string(), advice));
    }
    Ok(())
}

#[test]
fn findings_count_the_names_with_a_prefix_and_the_dtypes() -> Result {
    let mut tensors = odd()?;
    let all = tensors.len();
    let with = |n: usize| format!("`transformer.` before {n} of {all} names");
    let folder = Folder::with_tensors("odd", &tensors)?;
    assert_eq!(finding(&folder, "prefix")?, (with(all), Advice::ReadWithoutPrefix));
    assert_eq!(finding(&folder, "dtypes")?.0, format!("{all} in F32"));
    assert_eq!(finding(&folder, "mask buffers")?, ("none saved".to_string(), Advice::Nothing));
    let bias = tensors.remove("transformer.ln_f.bias").ok_or("a bias")?;
    tensors.insert("ln_f.bias".into(), bias);
    assert_eq!(finding(&Folder::with_tensors("odd", &tensors)?, "prefix")?.0, with(all - 1));
    let bare = tensors.into_iter().map(|(name, tensor)| (name.replace("transformer.", ""), tensor)).collect();
    let none = "no `transformer.` before any name".to_string();
    assert_eq!(finding(&Folder::with_tensors("odd", &bare)?, "prefix")?, (none, Advice::Nothing));
    Ok(())
}

#[test]
fn a_clean_audit_says_so_and_damaged_numbers_are_no_misfit() -> Result {
    let mut audit = Folder::of("odd")?.audit()?;
    assert_says(
        "clean",
        &audit.to_string(),
        &["every tensor that config.json calls for is there, and no other"],
    );
    audit.not_finite.push(("transformer.ln_f.bias".into(), 2));
    assert!(!audit.is_clean());
    let damaged = audit.to_string();
    let parts = [
        "the weights are damaged",
        "not finite  transformer.ln_f.bias: 2 of its numbers",
        "fetch the weights",
    ];
    assert_says("damaged", &damaged, &parts);
    assert!(!damaged.contains("belong together"), "{damaged}");
    let folder = Folder::of("odd")?;
    folder.set_config("n_layer", 1.into())?;
    let misfit = folder.audit()?.to_string();
    assert_says("misfit", &misfit, &["the weights do not fit config.json", "belong together"]);
    assert!(!misfit.contains("not finite"), "{misfit}");
    Ok(())
}
