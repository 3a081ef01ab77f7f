//! `--points`: the names of the hook points, for `--export-point`.

use crate::output;
use gpt2_engine::studies::checkpoints::inspect::{PointRow, PointsReport};
use gpt2_view::{Align, Table};
use std::io::Write;

pub(super) fn show(report: &PointsReport, as_json: bool) -> anyhow::Result<()> {
    output::report(as_json, report, |report| {
        let mut out = output::stdout();
        let PointsReport { config, .. } = report;
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
        for PointRow { name, others, shape } in &report.points {
            table.row(vec![name.clone(), (*shape).to_owned(), others.join(" ")]);
        }
        Ok(write!(out, "{}", table.render())?)
    })
}
