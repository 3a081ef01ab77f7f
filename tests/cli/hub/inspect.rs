//! `gpt2 inspect` of a model that is not on this machine.

use super::{At, Fault, MODEL, Result, Setup, repository};
use crate::folder::assert_says;
use serde_json::Value;

#[test]
fn a_model_of_the_hub_is_inspected_by_its_header_alone() -> Result<()> {
    let setup = Setup::new()?;
    let run = setup.run(&["inspect", "gpt2"])?.succeeded();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-shakespeare");
    let local = setup.run(&["inspect", folder])?.succeeded();
    let rest = |text: &str| text.lines().skip(1).map(|l| l.replace(folder, "")).collect::<Vec<_>>();
    let without_name =
        |lines: Vec<String>| lines.into_iter().filter(|l| !l.starts_with("audit:")).collect::<Vec<_>>();
    assert_eq!(without_name(rest(&run.stdout)), without_name(rest(&local.stdout)));
    assert_says("stdout", &run.stdout, &[MODEL, "every tensor that config.json calls for is there"]);
    assert!(setup.server.sent() < 20_000, "{} bytes", setup.server.sent());
    assert!(!setup.pointer("model.safetensors").exists());

    // It makes no requests for cached files.
    setup.works()?;
    let requests = setup.server.seen().len();
    setup.run(&["inspect", "--model", "gpt2"])?.succeeded();
    assert_eq!(setup.server.seen().len(), requests);
    Ok(())
}

#[test]
fn a_server_without_ranges_serves_too() -> Result<()> {
    let setup = Setup::with(At::Storage, Fault::NoRanges, None)?;
    setup.run(&["inspect", "gpt2"])?.succeeded();
    Ok(())
}

#[test]
fn shards_are_inspected_by_their_headers() -> Result<()> {
    let files = repository();
    let index = serde_json::json!({ "weight_map": names(&files[1].1)?
        .into_iter().map(|name| (name, "model-00001-of-00001.safetensors".into()))
        .collect::<serde_json::Map<_, Value>>() });
    let mut setup = Setup::new()?;
    setup.server = super::Server::start([
        files[0].clone(),
        ("model-00001-of-00001.safetensors".into(), files[1].1.clone()),
        ("model.safetensors.index.json".into(), index.to_string().into_bytes()),
        files[2].clone(),
    ]);
    for _ in 0..2 {
        let run = setup.run(&["inspect", "gpt2"])?.succeeded();
        assert_says("stdout", &run.stdout, &["every tensor that config.json calls for is there"]);
        assert!(!setup.pointer("model-00001-of-00001.safetensors").exists());
    }
    setup.works()?;
    setup.works_offline()
}

fn names(weights: &[u8]) -> Result<Vec<String>> {
    let (_, metadata) = safetensors::SafeTensors::read_metadata(weights)?;
    Ok(metadata.tensors().into_keys().collect())
}

#[test]
fn a_header_that_is_damaged_is_refused() -> Result<()> {
    let files = repository();
    let mut cut = files[1].1.clone();
    cut.truncate(1_500_000);
    let mut long = files[1].1.clone();
    long[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let page = format!("<html>{}</html>", " ".repeat(200_000)).into_bytes();
    for (weights, part) in [(cut, "describes 1919360 bytes"), (long, "header"), (page, "header")] {
        let mut setup = Setup::new()?;
        setup.server = super::Server::start([files[0].clone(), ("model.safetensors".into(), weights)]);
        setup.run(&["inspect", "gpt2"])?.refused(1, &["model.safetensors", "damaged", part]);
    }
    Ok(())
}

#[test]
fn pickled_weights_are_not_looked_into_from_afar() -> Result<()> {
    let files = repository();
    let mut setup = Setup::new()?;
    setup.server = super::Server::start([files[0].clone(), ("pytorch_model.bin".into(), vec![0; 300_000])]);
    setup.run(&["inspect", "gpt2"])?.refused(1, &["pytorch_model.bin", "gpt2 download"]);
    Ok(())
}
