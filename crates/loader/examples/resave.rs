//! Loads a checkpoint and saves it again: `cargo run --example resave -- IN OUT [--buffers]`.

use anyhow::{Context, bail};
use candle_core::{DType, Device};
use gpt2_loader::{Checkpoint, SaveOptions, Source, save};
use std::path::Path;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (input, output, buffers) = match args.as_slice() {
        [input, output] => (input, output, false),
        [input, output, flag] if flag == "--buffers" => (input, output, true),
        _ => bail!("usage: resave IN OUT [--buffers]"),
    };
    let checkpoint = Checkpoint::open(&Source::directory(input).open()?)?;
    let model = checkpoint.load_model(DType::F32, &Device::Cpu)?;
    save(Path::new(output), &model, None, SaveOptions::default().with_buffers(buffers))
        .with_context(|| format!("saving to {output}"))
}
