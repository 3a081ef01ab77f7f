//! `--export-point`: values of a run by the names of their hooks, against TransformerLens (tests/data/circuits).

use super::{DEMO, case, comma_separated, gpt2, json, list, metadata, stdout};
use crate::common::{Result, data, relative_error};
use crate::folder::{Folder, assert_says};
use candle_core::{DType, Device, Tensor};
use gpt2_model::hooks::Point;
use std::collections::HashMap;
use std::path::Path;

type Tensors = HashMap<String, Tensor>;

fn load(path: impl AsRef<Path>) -> Result<Tensors> {
    Ok(candle_core::safetensors::load(path, &Device::Cpu)?)
}

/// TransformerLens' values of a run by name, and the ids of the run.
fn reference() -> Result<(Tensors, String)> {
    let mut all = load(data("circuits/hooks.safetensors"))?;
    let ids = all.remove("ids/clean").ok_or("ids")?.flatten_all()?.to_dtype(DType::U32)?.to_vec1::<u32>()?;
    let mut values = HashMap::from([("logits".to_owned(), all["logits"].clone())]);
    for (key, value) in all {
        // A normalized stream is before γ and β, as in 4.x.
        let found = key.strip_prefix("4x/").or_else(|| key.strip_prefix("2x/"));
        let kept = found.filter(|name| !key.starts_with("2x/") || !name.ends_with("hook_normalized"));
        if let Some(name) = kept.filter(|name| name.parse::<Point>().is_ok()) {
            values.insert(name.to_owned(), value);
        }
    }
    Ok((values, comma_separated(&ids)))
}

/// The shape that a point announces, for the reference's run.
fn shape(point: Point) -> Vec<usize> {
    let sizes = [("B", 1), ("T", 12), ("S", 12), ("C", 24), ("H", 3), ("D", 8), ("V", 53), ("1", 1)];
    let others = [("key heads", 3), ("n_inner", 96)];
    let size =
        |letter| sizes.iter().chain(&others).find(|(of, _)| *of == letter).map_or(0, |(_, size)| *size);
    point.shape().trim_matches(['(', ')']).split(", ").map(size).collect()
}

#[test]
fn every_point_has_transformer_lens_value_in_every_command() -> Result {
    let (expected, ids) = reference()?;
    let points: Vec<Point> = expected.keys().map(|name| Ok(name.parse()?)).collect::<Result<_>>()?;
    assert!(Point::of_model(3).all(|point| points.contains(&point)), "a point without a reference");
    for (name, value) in &expected {
        assert_eq!(shape(name.parse()?), value.dims(), "{name}");
    }
    let names = expected.keys().map(String::as_str).collect::<Vec<_>>().join(",");
    let folder = Folder::empty()?;
    let model = case("circuits/model");
    for command in ["forward", "attention", "lens"] {
        let path = folder.at(&format!("{command}.safetensors"));
        let run = [command, "--model", &model, "--dtype", "f64", "--ids", &ids];
        gpt2(&[&run[..], &["--export", &path, "--export-point", &names]].concat())?.succeeded();
        let found = load(&path)?;
        for (name, expected) in &expected {
            let found = found.get(name).ok_or_else(|| format!("{command} wrote no {name}"))?;
            // The reference has -1e30 where a key is hidden, and every row of positions.
            let found = if name.ends_with("scores") { found.maximum(-1e30)? } else { found.clone() };
            let found = found.broadcast_as(expected.shape())?.contiguous()?.to_dtype(DType::F64)?;
            let error = relative_error(&found, expected)?;
            // What `forward` calls the logits is in f32.
            let tolerance = if command == "forward" && name == "logits" { 1e-6 } else { 1e-13 };
            assert!(error < tolerance, "{command}, {name}: {error:e}");
        }
    }
    Ok(())
}

#[test]
fn a_star_is_every_layer_and_values_are_those_after_interventions() -> Result {
    let folder = Folder::empty()?;
    let plain = folder.file("plain.safetensors");
    let ablated = folder.file("ablated.safetensors");
    let star = ["--export-point", "blocks.*.attn.hook_z", "--export-point", "blocks.0.attn.hook_z,logits"];
    for (path, flags) in [(&plain, &[][..]), (&ablated, &["--ablate", "1.2"])] {
        let path = path.display().to_string();
        let run = ["forward", "O Romeo, Romeo!", "--model", DEMO, "--export", &path];
        gpt2(&[&run[..], &star, flags].concat())?.succeeded();
    }
    let facts = &metadata(&ablated)?["provenance"];
    assert_says("provenance", facts, &["ablate 1.2"]);
    let plain = load(plain)?;
    let ablated = load(ablated)?;
    let mut names: Vec<_> = plain.keys().map(String::as_str).collect();
    names.sort_unstable();
    let z = |layer: usize| format!("blocks.{layer}.attn.hook_z");
    assert_eq!(names, [&z(0), &z(1), &z(2), &z(3), "hidden_states", "logits"]);
    let head = |all: &Tensors, head: usize| -> Result<Vec<f32>> {
        Ok(all[&z(1)].narrow(2, head, 1)?.flatten_all()?.to_vec1()?)
    };
    assert!(head(&ablated, 2)?.iter().all(|x| *x == 0.0) && head(&plain, 2)?.iter().any(|x| *x != 0.0));
    assert_eq!(head(&ablated, 1)?, head(&plain, 1)?, "another head of the layer");
    assert_eq!(plain[&z(1)].dims()[2..], [4, 32]);
    Ok(())
}

#[test]
fn a_name_that_is_none_is_refused_with_the_nearest_and_the_way_to_all() -> Result {
    let folder = Folder::empty()?;
    let path = folder.at("x.safetensors");
    let run = |command: &str, point: &str| {
        gpt2(&[command, "O Romeo", "--model", DEMO, "--export", &path, "--export-point", point])
    };
    for command in ["forward", "attention", "lens"] {
        let parts =
            ["blocks.1.attn.hook_patern", "nearest are blocks.1.attn.hook_pattern,", "inspect --points"];
        run(command, "blocks.1.attn.hook_patern")?.refused(2, &parts);
        run(command, "blocks.7.attn.hook_z")?.refused(1, &["blocks.7.attn.hook_z", "layers 0 to 3"]);
        gpt2(&[command, "O Romeo", "--export-point", "logits"])?.refused(2, &["--export <FILE>"]);
    }
    let npy = folder.at("x.npy");
    for command in ["forward", "lens"] {
        gpt2(&[command, "O Romeo", "--export", &npy])?.refused(1, &["--export", ".safetensors"]);
    }
    gpt2(&["attention", "O Romeo", "--export", &npy, "--export-point", "logits"])?
        .refused(1, &["--export-point", ".safetensors"]);
    assert!(folder.names()?.is_empty());
    Ok(())
}

#[test]
fn inspect_lists_every_point() -> Result {
    let report = json(&["inspect", "--points", "--json"])?;
    let text = stdout(&["inspect", "--points", DEMO])?;
    assert_eq!(report["layers"], 4);
    let names: Vec<_> = list(&report["points"]).iter().filter_map(|row| row["name"].as_str()).collect();
    let expected = Point::of_model(1).map(|point| point.to_string().replace("blocks.0.", "blocks.N."));
    assert_eq!(names, expected.collect::<Vec<_>>());
    assert_says(
        "the table",
        &text,
        &["blocks.N.attn.hook_z", "(B, T, H, D)", "blocks.N.attn.o.hook_in", "D = 32"],
    );
    Ok(())
}
