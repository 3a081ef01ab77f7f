//! `gpt2 record`: values at hook points in shards.

use super::{GPT2, Run, gpt2, launched};
use crate::common::Result;
use crate::folder::{Folder, assert_says};
use crate::mpirun::mpirun;
use candle_core::{D, DType, Device, Tensor};
use gpt2_files::Store;
use std::path::Path;

const TEXT: &str =
    "ROMEO:\nO, she doth teach the torches to burn bright!\n\nIt seems she hangs upon the cheek of night\n";
const POINTS: &str = "blocks.1.attn.hook_z,blocks.2.hook_resid_post";

fn corpus(folder: &Folder) -> Result<String> {
    let path = folder.at("lines.txt");
    std::fs::write(&path, TEXT.repeat(4))?;
    Ok(path)
}

fn args<'a>(corpus: &'a str, out: &'a str) -> Vec<&'a str> {
    let sizes = ["--window", "60", "--shard-tokens", "60"];
    [&["record", corpus, "--by", "line", "--points", POINTS, "--out", out][..], &sizes].concat()
}

fn record(corpus: &str, out: &str, more: &[&str]) -> Result<Run> {
    gpt2(&[&args(corpus, out)[..], more].concat())
}

/// The bytes of each file.
fn files(folder: &str) -> Result<Vec<(String, Vec<u8>)>> {
    let mut all = vec![];
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        all.push((entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?));
    }
    all.sort();
    Ok(all)
}

#[test]
fn a_store_has_the_values_of_each_token_of_each_document() -> Result {
    let folder = Folder::empty()?;
    let corpus = corpus(&folder)?;
    let out = folder.at("store");
    let run = record(&corpus, &out, &["--json"])?.succeeded();
    let total: serde_json::Value = serde_json::from_str(&run.stdout)?;
    let store = Store::open(Path::new(&out))?;
    assert_eq!((&total["tokens"], &total["documents"]), (&store.tokens().into(), &12.into()));
    assert!(store.len() > 2 && total["shards"] == store.len());
    let mut document = vec![];
    for number in 0..store.len() {
        let shard = store.shard(number)?;
        assert!(shard.ids.dims1()? <= 60);
        let rows = shard.documents.to_vec1::<u32>()?.into_iter().zip(shard.positions.to_vec1::<u32>()?);
        for (row, (of, position)) in rows.enumerate() {
            if of == 1 {
                assert_eq!(position as usize, document.len());
                document.push((
                    shard.ids.get(row)?.to_scalar::<u32>()?,
                    shard.values[0].get(row)?,
                    shard.values[1].get(row)?,
                ));
            }
        }
    }
    // The second line, beside what `attention` exports of it as a prompt.
    let export = folder.at("one.safetensors");
    let line = TEXT.lines().nth(1).expect("a line");
    gpt2(&["attention", line, "--export", &export, "--export-point", POINTS])?.succeeded();
    let expected = candle_core::safetensors::load(&export, &Device::Cpu)?;
    let points: Vec<&str> = POINTS.split(',').collect();
    for (i, point) in points.into_iter().enumerate() {
        let found: Vec<Tensor> =
            document.iter().map(|row| if i == 0 { row.1.clone() } else { row.2.clone() }).collect();
        let found = Tensor::stack(&found, 0)?;
        let expected = expected[point].squeeze(0)?;
        assert_eq!(found.dims(), expected.dims(), "{point}");
        let error = (found - expected)?.abs()?.flatten_all()?.max(D::Minus1)?.to_scalar::<f32>()?;
        assert!(error < 2e-5, "{point}: {error}");
    }
    // Halves are what rounding makes of them.
    let half = folder.at("half");
    record(&corpus, &half, &["--store", "f16"])?.succeeded();
    let whole = store.shard(2)?;
    let half = Store::open(Path::new(&half))?.shard(2)?;
    let rounded = whole.values[1].to_dtype(DType::F16)?;
    assert_eq!(half.values[1].dtype(), DType::F16);
    let f32s = |x: &Tensor| x.to_dtype(DType::F32)?.to_vec2::<f32>();
    assert_eq!(f32s(&rounded)?, f32s(&half.values[1])?);
    Ok(())
}

#[test]
fn a_run_goes_on_where_it_stopped_and_refuses_what_does_not_fit() -> Result {
    let folder = Folder::empty()?;
    let corpus = corpus(&folder)?;
    let whole = folder.at("whole");
    let part = folder.at("part");
    let run = record(&corpus, &whole, &[])?.succeeded();
    assert_says("stdout", &run.stdout, &["12 documents", "shards", "hook_z"]);
    record(&corpus, &part, &[])?.succeeded();
    let expected = files(&whole)?;
    // As a run that was killed leaves it: shards are missing, one is damaged.
    std::fs::remove_file(Path::new(&part).join("00001.safetensors"))?;
    let damaged = Path::new(&part).join("00002.safetensors");
    std::fs::write(&damaged, &std::fs::read(&damaged)?[..1000])?;
    record(&corpus, &part, &[])?.refused(1, &["holds values already", "--resume"]);
    record(&corpus, &part, &["--resume"])?.succeeded();
    assert!(files(&part)? == expected, "other bytes");
    record(&corpus, &part, &["--resume", "--store", "f16"])?
        .refused(1, &["made otherwise: store is \"f32\" there, \"f16\" here", "another folder"]);
    std::fs::write(&corpus, TEXT.replace("night", "day"))?;
    record(&corpus, &part, &["--resume"])?.refused(1, &["shard", "other texts", "another folder"]);
    // A corpus that ends before the last shard.
    std::fs::write(&corpus, TEXT.repeat(3))?;
    record(&corpus, &whole, &["--resume"])?.refused(1, &["shard", "another folder"]);
    std::fs::write(folder.at("file"), "x")?;
    record(&corpus, &folder.at("file"), &[])?.refused(1, &["is a file", "name a folder"]);
    record(&corpus, &folder.at(""), &[])?.refused(1, &["holds other files"]);
    let refused = |more: &[&str], status: i32, says: &[&str]| -> Result {
        let out = folder.at("never");
        gpt2(&[&["record", &corpus, "--out", &out][..], more].concat())?.refused(status, says);
        assert!(!Path::new(&out).exists(), "{more:?}");
        Ok(())
    };
    refused(&["--points", "blocks.9.hook_resid_post"], 1, &["layers 0 to 3"])?;
    refused(&["--points", "blocks.1.attn.hook_pattern"], 1, &["for each pair of tokens"])?;
    refused(&["--points", "blocks.1.hook_zz"], 2, &["nearest"])?;
    refused(&["--points", "ln_final.hook_out", "--window", "9999"], 1, &["n_positions = 256"])?;
    refused(&["--points", "ln_final.hook_out", "--ablate", "9.0"], 1, &["layer 9"])?;
    refused(&["--points", "ln_final.hook_out", "--block", "1:0"], 1, &["do not fit windows"])?;
    refused(
        &["--points", "ln_final.hook_out", "--shard-tokens", "10"],
        1,
        &["a window of 256 tokens does not fit"],
    )?;
    refused(&[], 2, &["--points"])?;
    record(&corpus, "-", &[])?.refused(1, &["--out -", "./-"]);
    Ok(())
}

/// Windows follow one another, each without what came before; what is added before them is in no shard.
#[test]
fn long_documents_are_read_in_windows() -> Result {
    let folder = Folder::empty()?;
    let path = folder.at("long.txt");
    let out = folder.at("store");
    std::fs::write(&path, TEXT)?;
    let args = [
        "record",
        &path,
        "--points",
        "hook_embed,ln_final.hook_normalized",
        "--window",
        "16",
        "--bos",
        "--out",
        &out,
    ];
    gpt2(&args)?.succeeded();
    let shard = Store::open(Path::new(&out))?.shard(0)?;
    let positions = shard.positions.to_vec1::<u32>()?;
    assert_eq!(positions, (0..u32::try_from(positions.len())?).collect::<Vec<_>>());
    let ids: Vec<String> = shard.ids.to_vec1::<u32>()?.iter().map(ToString::to_string).collect();
    assert!(ids.len() > 30);
    // The second window by itself: 15 tokens behind the first token of the model.
    let export = folder.at("window.safetensors");
    let window = format!("0,{}", ids[15..30].join(","));
    let point = "ln_final.hook_normalized";
    gpt2(&["attention", "--ids", &window, "--export", &export, "--export-point", point])?.succeeded();
    let expected =
        candle_core::safetensors::load(&export, &Device::Cpu)?[point].squeeze(0)?.narrow(0, 1, 15)?;
    let found = shard.values[1].narrow(0, 15, 15)?;
    let error = (found - expected)?.abs()?.flatten_all()?.max(D::Minus1)?.to_scalar::<f32>()?;
    assert!(error < 2e-5, "{error}");
    Ok(())
}

#[test]
fn what_is_not_finite_is_not_stored() -> Result {
    let folder = Folder::empty()?;
    let corpus = corpus(&folder)?;
    let out = folder.at("store");
    let more = ["--scale", "1.*=1000000", "--store", "f16"];
    record(&corpus, &out, &more)?.refused(1, &["shard 0", "blocks.1.attn.hook_z", "--store f32"]);
    assert!(Store::open(Path::new(&out)).is_err());
    // A run that has left no shard is in nobody's way.
    record(&corpus, &out, &more[..2])?.succeeded();
    Store::open(Path::new(&out))?;
    Ok(())
}

/// Any number of processes writes the same bytes.
#[test]
fn ranks_share_the_shards() -> Result {
    let folder = Folder::empty()?;
    let corpus = corpus(&folder)?;
    let alone = folder.at("alone");
    record(&corpus, &alone, &[])?.succeeded();
    let expected = files(&alone)?;
    for n in [2, 3] {
        let out = folder.at(&format!("by {n}"));
        let Some(launcher) = mpirun(n, GPT2) else { return Ok(()) };
        let run = Run::of(launched(launcher, &args(&corpus, &out)))?.succeeded();
        assert_says("stdout", &run.stdout, &["12 documents"]);
        assert!(files(&out)? == expected, "{n} ranks: other bytes");
    }
    Ok(())
}
