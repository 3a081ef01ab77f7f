//! `--points`: the names of the hook points, for `--export-point`.

use crate::output;
use gpt2_loader::Checkpoint;
use gpt2_model::hooks::Point;
use gpt2_view::{Align, Table};
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
struct Row {
    /// In TransformerLens 2.x; N is a layer.
    name: String,
    /// Its other spellings.
    others: Vec<String>,
    shape: &'static str,
}

#[derive(Serialize)]
struct Report {
    layers: usize,
    points: Vec<Row>,
}

pub(super) fn run(checkpoint: &Checkpoint, as_json: bool) -> anyhow::Result<()> {
    let config = checkpoint.config();
    let row = |point: Point| {
        let names = point.names().into_iter().map(|name| name.replacen("blocks.0.", "blocks.N.", 1));
        let mut names: Vec<String> = names.collect();
        let name = names.remove(0);
        Row { name, others: names, shape: point.shape() }
    };
    let report = Report { layers: config.n_layer, points: Point::of_model(1).map(row).collect() };
    output::report(as_json, &report, |report| {
        let mut out = output::stdout();
        let heads = config.heads();
        writeln!(
            out,
            "values of a run, by their names in TransformerLens, for --export-point\n\
             N is a layer, 0 to {}, or * for all\n\
             no token is put before the text, and weights are as in the file: TransformerLens agrees with\n\
             prepend_bos=False and from_pretrained_no_processing; ln*.hook_normalized comes before gamma and beta\n\
             B = 1, T the tokens, S = T, C = {}, H = {}, key heads = {}, D = {}, n_inner = {}, V = {}\n",
            config.n_layer - 1,
            config.n_embd,
            heads.heads,
            heads.key_heads,
            heads.dim,
            config.inner_dim(),
            config.vocab_size
        )?;
        let columns = [("point", Align::Left), ("shape", Align::Left), ("also called", Align::Left)];
        let mut table = Table::new(&columns);
        for Row { name, others, shape } in &report.points {
            table.row(vec![name.clone(), (*shape).to_owned(), others.join(" ")]);
        }
        Ok(write!(out, "{}", table.render())?)
    })
}
