//! Repositories with something else than a model in one file: shards, pickles, a GGUF file, an adapter; and `gpt2 inspect`,
//! which reads headers alone.

use super::server::content::{git_sha1_of, sha256_of};
use super::{At, COMMIT, DEMO, Fault, MODEL, Result, Run, Setup, repository};
use crate::case;
use crate::common::data;
use crate::folder::assert_says;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

#[test]
fn a_model_of_the_hub_is_inspected_by_its_header_alone() -> Result {
    let setup = Setup::new()?;
    let run = setup.run(&["inspect", "gpt2"])?.succeeded();
    let local = setup.run(&["inspect", DEMO])?.succeeded();
    let without_name = |text: &str| -> Vec<String> {
        let said = |l: &&str| !l.starts_with("audit:") && !l.contains("finite");
        text.lines().skip(1).filter(said).map(|l| l.replace(DEMO, "")).collect()
    };
    assert_eq!(without_name(&run.stdout), without_name(&local.stdout));
    assert_says("stdout", &run.stdout, &[MODEL, "every tensor that config.json calls for is there"]);
    // Its numbers are not read.
    assert_says("stdout", &run.stdout, &["whether their numbers are finite is unknown"]);
    assert_says("local", &local.stdout, &["all numbers are finite"]);
    assert!(setup.server.state().sent < 20_000, "{} bytes", setup.server.state().sent);
    assert!(!setup.pointer("model.safetensors").exists());

    // It makes no requests for cached files.
    setup.works()?;
    let requests = setup.server.state().seen.len();
    let cached = setup.run(&["inspect", "--model", "gpt2"])?.succeeded();
    assert_says("cached", &cached.stdout, &["all numbers are finite"]);
    assert_eq!(setup.server.state().seen.len(), requests);
    Ok(())
}

#[test]
fn a_server_without_ranges_serves_too() -> Result {
    let setup = Setup::with(At::Storage, Fault::NoRanges, None)?;
    setup.run(&["inspect", "gpt2"])?.succeeded();
    Ok(())
}

#[test]
fn shards_are_inspected_by_their_headers() -> Result {
    let files = repository();
    let shard = "model-00001-of-00001.safetensors";
    let (_, header) = safetensors::SafeTensors::read_metadata(&files[1].1)?;
    let map: BTreeMap<String, &str> = header.tensors().into_keys().map(|name| (name, shard)).collect();
    let index = serde_json::json!({ "weight_map": map }).to_string().into_bytes();
    let setup = Setup::serving([
        files[0].clone(),
        (shard.into(), files[1].1.clone()),
        ("model.safetensors.index.json".into(), index),
        files[2].clone(),
    ])?;
    for _ in 0..2 {
        let run = setup.run(&["inspect", "gpt2"])?.succeeded();
        assert_says("stdout", &run.stdout, &["every tensor that config.json calls for is there"]);
        assert!(!setup.pointer(shard).exists());
    }
    setup.works()?;
    setup.works_offline()
}

#[test]
fn shards_that_are_not_all_cached_are_inspected_without_the_rest() -> Result {
    let files = repository();
    let (index, [first, second]) = in_two_shards(&files[1].1)?;
    let second_name = second.0.clone();
    let setup = Setup::serving([files[0].clone(), first, second, index, files[2].clone()])?;
    setup.forward()?.succeeded();
    let inspect = || -> Result<Run> { Ok(setup.run(&["inspect", "gpt2"])?.succeeded()) };
    assert_says("all cached", &inspect()?.stdout, &["all numbers are finite"]);
    std::fs::remove_file(setup.pointer(&second_name))?;
    assert_says("one cached", &inspect()?.stdout, &["whether their numbers are finite is unknown"]);
    assert!(!setup.pointer(&second_name).exists());
    Ok(())
}

/// A file's name and content.
type NamedFile = (String, Vec<u8>);

/// A safetensors file in two shards, after their index.
fn in_two_shards(whole: &[u8]) -> Result<(NamedFile, [NamedFile; 2])> {
    let mut tensors = safetensors::SafeTensors::deserialize(whole)?.tensors();
    let rest = tensors.split_off(tensors.len() / 2);
    let mut map = BTreeMap::new();
    let mut shard = |number: usize, tensors: Vec<(String, _)>| -> Result<NamedFile> {
        let file = format!("model-0000{number}-of-00002.safetensors");
        map.extend(tensors.iter().map(|(name, _)| (name.clone(), file.clone())));
        Ok((file, safetensors::serialize(tensors, None)?))
    };
    let shards = [shard(1, tensors)?, shard(2, rest)?];
    let index = serde_json::json!({ "weight_map": map }).to_string().into_bytes();
    Ok((("model.safetensors.index.json".into(), index), shards))
}

#[test]
fn a_header_that_is_damaged_is_refused() -> Result {
    let files = repository();
    let mut cut = files[1].1.clone();
    cut.truncate(1_500_000);
    let mut long = files[1].1.clone();
    long[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let page = format!("<html>{}</html>", " ".repeat(200_000)).into_bytes();
    for (weights, part) in [
        (cut, "damaged or not a safetensors file: its header describes 1919360 bytes"),
        (long, "damaged or not a safetensors file: its header"),
        (page, "is a web page; expected a safetensors file"),
        (vec![], "it is empty"),
    ] {
        let setup = Setup::serving([files[0].clone(), ("model.safetensors".into(), weights)])?;
        setup.run(&["inspect", "gpt2"])?.refused(1, &["model.safetensors", part]);
    }
    Ok(())
}

#[test]
fn a_header_longer_than_the_first_request_takes_a_second_one() -> Result {
    let files = repository();
    let whole = &files[1].1;
    let end = 8 + usize::try_from(u64::from_le_bytes(whole[..8].try_into()?))?;
    // JSON may end with spaces.
    let long_end = end + 20_000;
    let mut long = [&((long_end - 8) as u64).to_le_bytes(), &whole[8..end]].concat();
    long.resize(long_end, b' ');
    long.extend(&whole[end..]);
    for fault in [None, Some(Fault::NoRanges)] {
        let setup = Setup::serving([files[0].clone(), ("model.safetensors".into(), long.clone())])?;
        if let Some(fault) = fault {
            setup.server.fault(At::Storage, fault, None);
        }
        let run = setup.run(&["inspect", "gpt2"])?.succeeded();
        assert_says("stdout", &run.stdout, &["every tensor that config.json calls for is there"]);
        assert_says("stderr", &run.stderr, &[&format!("headers, {long_end} bytes")]);
        let ranges: Vec<_> = setup.fetches().into_iter().map(|seen| seen.range).collect();
        let second = format!("bytes=16384-{}", long_end - 1);
        assert_eq!(ranges, [Some("bytes=0-16383".to_string()), Some(second)]);
    }
    Ok(())
}

/// vocab.json and merges.txt with the content of tokenizer.json.
fn vocab_and_merges() -> Result<[(String, Vec<u8>); 2]> {
    let json: Value = serde_json::from_slice(&repository()[2].1)?;
    let mut merges = "#version: 0.2\n".to_string();
    for pair in json["model"]["merges"].as_array().ok_or("merges")? {
        let [a, b] = [0, 1].map(|i| pair[i].as_str().unwrap_or_default());
        writeln!(merges, "{a} {b}")?;
    }
    let vocab = json["model"]["vocab"].to_string();
    Ok([("vocab.json".into(), vocab.into_bytes()), ("merges.txt".into(), merges.into_bytes())])
}

#[test]
fn a_tokenizer_in_two_files_serves_too() -> Result {
    let [vocab, merges] = vocab_and_merges()?;
    let files = repository();
    let setup = Setup::serving([files[0].clone(), files[1].clone(), vocab, merges])?;
    setup.works()?;
    setup.works_offline()?;
    // Python does not always note which files are absent.
    std::fs::remove_dir_all(setup.repo().join(".no_exist"))?;
    setup.works_offline()
}

#[test]
fn half_a_tokenizer_is_none() -> Result {
    let [vocab, merges] = vocab_and_merges()?;
    let files = repository();
    for half in [vocab, merges] {
        let setup = Setup::serving([files[0].clone(), files[1].clone(), half])?;
        setup.run(&["forward", "--model", "gpt2", "--ids", "1,2"])?.succeeded();
        setup.run(&["forward", "--model", "gpt2", "O Romeo"])?.refused(1, &["no tokenizer here"]);
    }
    Ok(())
}

#[test]
fn a_tokenizer_that_is_not_there_is_looked_for_once() -> Result {
    let setup = Setup::serving(repository().into_iter().take(2))?;
    let ids = ["forward", "--model", "gpt2", "--ids", "1,2"];
    setup.run(&ids)?.succeeded();
    let before = setup.server.state().seen.len();
    setup.run(&ids)?.succeeded();
    assert_eq!(setup.server.state().seen.len(), before, "a request");
    Ok(())
}

#[test]
fn pickled_weights_are_not_looked_into_from_afar() -> Result {
    let config = repository().swap_remove(0);
    let setup = Setup::serving([config, ("pytorch_model.bin".into(), vec![0; 300_000])])?;
    setup.run(&["inspect", "gpt2"])?.refused(1, &["pytorch_model.bin", "gpt2 download"]);
    Ok(())
}

/// A Hub with the files of an adapter, and its weights.
fn adapter() -> Result<(Setup, Vec<u8>)> {
    let read = |name: &str| std::fs::read(data("lora/default").join(name));
    let weights = read("adapter_model.safetensors")?;
    let files = [
        ("adapter_config.json".into(), read("adapter_config.json")?),
        ("adapter_model.safetensors".into(), weights.clone()),
    ];
    Ok((Setup::serving(files)?, weights))
}

/// Runs the model that the adapter fits.
fn run_adapter(setup: &Setup, more: &[&str]) -> Result<Run> {
    let args = ["forward", "--model", &case("lora/base"), "--adapter", MODEL, "--ids", "1,2,3"];
    setup.run(&[&args[..], &["--json", "--timeout", "2"], more].concat())
}

#[test]
fn an_adapter_is_fetched_verified_and_then_cached() -> Result {
    let (setup, weights) = adapter()?;
    let run = run_adapter(&setup, &[])?.succeeded();
    let report: Value = serde_json::from_str(&run.stdout)?;
    let adapter = &report["provenance"]["adapters"][0];
    assert_eq!(adapter["commit"], COMMIT);
    assert_eq!(adapter["weights"]["adapter_model.safetensors"], git_sha1_of(&weights));
    let before = setup.server.state().seen.len();
    let offline = run_adapter(&setup, &["--offline"])?.succeeded();
    assert_eq!(setup.server.state().seen.len(), before, "a request");
    let again: Value = serde_json::from_str(&offline.stdout)?;
    assert_eq!(again["next"], report["next"]);
    Ok(())
}

#[test]
fn an_adapter_of_other_content_is_refused() -> Result {
    let (setup, _) = adapter()?;
    setup.server.fault(At::Get("adapter_model.safetensors"), Fault::Flip, None);
    run_adapter(&setup, &[])?.refused(1, &["adapter_model.safetensors", "expected git blob sha1"]);
    let (setup, _) = adapter()?;
    run_adapter(&setup, &["--offline"])?.refused(1, &["there is no folder openai-community/gpt2"]);
    Ok(())
}

#[test]
fn an_adapter_given_as_the_model_is_named_as_one() -> Result {
    let (setup, _) = adapter()?;
    let run = setup.run(&["forward", "--model", MODEL, "--ids", "1,2,3", "--timeout", "2"])?;
    run.refused(1, &["is a LoRA adapter, not a model", &format!("--adapter {MODEL}")]);
    Ok(())
}

/// A Hub with a dictionary of the demo model's features in a folder, and its weights.
fn dictionary() -> Result<(Setup, Vec<u8>)> {
    let read = |name: &str| std::fs::read(data("features/demo").join(name));
    let weights = read("sae_weights.safetensors")?;
    let files = [
        ("blocks.1/resid/cfg.json".into(), read("cfg.json")?),
        ("blocks.1/resid/sae_weights.safetensors".into(), weights.clone()),
    ];
    Ok((Setup::serving(files)?, weights))
}

fn run_features(setup: &Setup, folder: &str, more: &[&str]) -> Result<Run> {
    let source = format!("{MODEL}/{folder}");
    let args = ["features", "O Romeo", "--dictionary", &source, "--json", "--timeout", "2"];
    setup.run(&[&args[..], more].concat())
}

#[test]
fn a_dictionary_is_fetched_verified_and_then_cached() -> Result {
    let (setup, weights) = dictionary()?;
    let report: Value =
        serde_json::from_str(&run_features(&setup, "blocks.1/resid", &[])?.succeeded().stdout)?;
    assert_eq!(report["dictionary"]["commit"], COMMIT);
    let hash = report["dictionary"]["weights"].as_str().ok_or("no hash")?;
    assert!([git_sha1_of(&weights), sha256_of(&weights)].contains(&hash.to_string()), "{hash}");
    let before = setup.server.state().seen.len();
    let more = ["--offline", "--ablate-feature", "3"];
    let again = run_features(&setup, "blocks.1/resid", &more)?.succeeded();
    assert_eq!(setup.server.state().seen.len(), before, "a request");
    let name = format!("a feature of {MODEL}@{}/blocks.1/resid", &COMMIT[..12]);
    assert_says("provenance", &again.stdout, &[&name]);

    let (setup, _) = dictionary()?;
    setup.server.fault(At::Get("sae_weights.safetensors"), Fault::Flip, None);
    run_features(&setup, "blocks.1/resid", &[])?.refused(1, &["sae_weights.safetensors", "expected"]);
    let (setup, _) = dictionary()?;
    run_features(&setup, "blocks.2", &[])?.refused(1, &["blocks.2/cfg.json", "blocks.1/resid/cfg.json"]);
    run_features(&setup, "blocks.1/resid", &["--offline"])?.refused(1, &["there is no folder", "dictionary"]);
    Ok(())
}

/// A Hub with a GGUF file, and its bytes.
fn gguf() -> Result<(Setup, Vec<u8>)> {
    let mut bytes = std::fs::read(data("gguf").join("tiny.gguf"))?;
    bytes.resize(120_000, 0); // the size at which the Hub moves a file to its storage
    Ok((Setup::serving([("tiny.gguf".into(), bytes.clone())])?, bytes))
}

fn run_gguf(setup: &Setup, name: &str, more: &[&str]) -> Result<Run> {
    let model = format!("{MODEL}/{name}");
    setup.run(&[&["forward", "--model", &model, "--json", "--timeout", "2", "O Romeo"], more].concat())
}

#[test]
fn a_gguf_file_is_fetched_alone_verified_and_then_cached() -> Result {
    let (setup, bytes) = gguf()?;
    let run = run_gguf(&setup, "tiny.gguf", &[])?.succeeded();
    let report: Value = serde_json::from_str(&run.stdout)?;
    assert_eq!(report["provenance"]["commit"], COMMIT);
    assert_eq!(report["provenance"]["weights"]["tiny.gguf"], sha256_of(&bytes));
    let before = setup.server.state().seen.len();
    run_gguf(&setup, "tiny.gguf", &["--offline"])?.succeeded();
    assert_eq!(setup.server.state().seen.len(), before, "a request");
    Ok(())
}

/// A model in parts comes whole, whichever part is named, and then without the Hub; a part that is not there is named.
#[test]
fn a_gguf_file_in_parts_is_fetched_with_all_of_them() -> Result {
    let names = [1, 2, 3].map(|n| format!("parts-{n:05}-of-00003.gguf"));
    let part = |name: &String| std::fs::read(data("brought").join(name)).map(|bytes| (name.clone(), bytes));
    let run = |setup: &Setup, name: &str, more: &[&str]| {
        let model = format!("{MODEL}/{name}");
        setup.run(&[&["forward", "--model", &model, "--ids", "1,2,3", "--json"], more].concat())
    };
    let whole = data("brought").join(&names[0]).display().to_string();
    let alone = crate::json(&["forward", "--model", &whole, "--ids", "1,2,3", "--json"])?;
    for name in &names {
        let setup = Setup::serving(names.iter().map(part).collect::<std::io::Result<Vec<_>>>()?)?;
        for more in [&[][..], &["--offline"]] {
            let found: Value = serde_json::from_str(&run(&setup, name, more)?.succeeded().stdout)?;
            assert_eq!(found["next"], alone["next"], "{name}");
        }
        assert!(
            names.iter().all(|name| setup.pointer(name).exists()),
            "{name}: not all parts are in the cache"
        );
    }
    let setup = Setup::serving([part(&names[0])?, part(&names[2])?])?;
    run(&setup, &names[0], &[])?.refused(1, &[&names[1]]);
    Ok(())
}

#[test]
fn gguf_files_of_other_content_or_that_are_missing_are_refused() -> Result {
    let (setup, _) = gguf()?;
    setup.server.fault(At::Storage, Fault::Flip, None);
    run_gguf(&setup, "tiny.gguf", &[])?.refused(1, &["tiny.gguf"]);
    run_gguf(&setup, "none.gguf", &[])?.refused(1, &["none.gguf"]);
    setup.run(&["forward", "--model", "./none.gguf", "O Romeo"])?.refused(1, &["./none.gguf"]);
    Ok(())
}

/// Files of settings are fetched with the model, and then are there without the Hub.
#[test]
fn a_tokenizers_settings_and_the_end_tokens_come_from_the_hub() -> Result {
    let model = |name: &str| std::fs::read(data("odd").join(name)).map(|bytes| (name.to_owned(), bytes));
    let vocabulary = |name: &str, to: &str| {
        std::fs::read(data("tokenizers").join(name)).map(|bytes| (to.to_owned(), bytes))
    };
    let text = |name: &str, text: &str| (name.to_owned(), text.as_bytes().to_vec());
    let setup = Setup::serving([
        model("config.json")?,
        model("model.safetensors")?,
        vocabulary("vocab.json", "encoder.json")?,
        vocabulary("merges.txt", "vocab.bpe")?,
        text("added_tokens.json", "{\"<T0>\": 277}"),
        text("special_tokens_map.json", "{\"bos_token\": \"<T0>\"}"),
        text("tokenizer_config.json", "{\"add_prefix_space\": true}"),
        text("generation_config.json", "{\"eos_token_id\": [7, 50]}"),
    ])?;
    let generate = ["generate", "--model", "gpt2", "--greedy", "-q", "--ids", "43,97,31,71"];
    for offline in [&[][..], &[("HF_HUB_OFFLINE", "1")]] {
        assert_eq!(setup.run_with(offline, &generate)?.succeeded().stdout, "61\n");
    }
    // The ids are beyond this small model's, and named: those of "<T0>", and of " Hi" with the space in front.
    setup.run(&["forward", "--model", "gpt2", "<T0>"])?.refused(1, &["277"]);
    setup.run(&["forward", "--model", "gpt2", "Hi"])?.refused(1, &["271"]);
    let seen = setup.server.state().seen.len();
    setup.run(&generate)?.succeeded();
    assert_eq!(setup.server.state().seen.len(), seen, "cached files were asked for");
    let inspected = Setup::serving([
        model("config.json")?,
        model("model.safetensors")?,
        text("generation_config.json", "{\"eos_token_id\": [7, 50]}"),
    ])?;
    let shown = inspected.run(&["inspect", "gpt2"])?.succeeded().stdout;
    assert_says("inspect", &shown, &["generation_config.json: end tokens", "7, 50"]);
    Ok(())
}

/// A cache from before there were settings is asked about once, and works without the Hub.
#[test]
fn settings_that_a_cache_does_not_know_are_looked_for_once() -> Result {
    let setup = Setup::new()?;
    setup.works()?;
    std::fs::remove_dir_all(setup.repo().join(".no_exist"))?;
    setup.works_offline()?;
    setup.works()?;
    let seen = setup.server.state().seen.len();
    setup.works()?;
    assert_eq!(setup.server.state().seen.len(), seen);
    Ok(())
}

#[test]
fn another_kind_of_tokenizer_on_the_hub_is_refused_at_every_run() -> Result {
    let file = |name: &str| std::fs::read(data("odd").join(name)).map(|bytes| (name.to_owned(), bytes));
    let setup = Setup::serving([
        file("config.json")?,
        file("model.safetensors")?,
        ("spiece.model".to_owned(), b"x".to_vec()),
    ])?;
    for _ in 0..2 {
        setup.run(&["forward", "--model", "gpt2", "text"])?.refused(1, &["spiece.model", "SentencePiece"]);
        setup.run(&["forward", "--model", "gpt2", "--ids", "1,2"])?.succeeded();
    }
    Ok(())
}
