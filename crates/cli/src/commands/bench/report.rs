//! The report of a timed run.

use super::work::Work;
use crate::output;
use gpt2_engine::words::count;
use gpt2_model::Config;
use gpt2_view::visible_text;
use serde::Serialize;
use std::io::Write;

/// The sizes of the model that is timed.
#[derive(Serialize)]
pub(super) struct ModelSize {
    n_layer: usize,
    n_head: usize,
    n_embd: usize,
    vocab_size: usize,
}

impl From<&Config> for ModelSize {
    fn from(config: &Config) -> Self {
        let &Config { n_layer, n_head, n_embd, vocab_size, .. } = config;
        Self { n_layer, n_head, n_embd, vocab_size }
    }
}

impl std::fmt::Display for ModelSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { n_layer, n_head, n_embd, vocab_size } = self;
        let layers = count(*n_layer, "layer");
        let heads = count(*n_head, "head");
        write!(f, "{layers}, {heads}, width {n_embd}, vocabulary {vocab_size}")
    }
}

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) what: String,
    pub(super) model: String,
    pub(super) shape: ModelSize,
    #[serde(rename = "impl")]
    pub(super) implementation: &'static str,
    pub(super) batch: usize,
    pub(super) tokens: usize,
    pub(super) dtype: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) quantized: Option<String>,
    /// The dtype of cached keys and values, if it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kv: Option<&'static str>,
    pub(super) device: String,
    pub(super) threads: usize,
    /// The instruction set of the CPU kernels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) isa: Option<&'static str>,
    /// The source of the times: the device's own events, or a clock.
    pub(super) timer: &'static str,
    pub(super) runs: u32,
    /// On a GPU, the groups of runs that were measured; a time is the mean of a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) groups: Option<usize>,
    /// Whether products in f32 rounded their inputs to TF32.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) tf32: bool,
    pub(super) median_ms: f64,
    pub(super) min_ms: f64,
    /// The median of the alternate passes, which run without `--summaries` and `--weights-heads`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) plain_median_ms: Option<f64>,
    /// The median ratio of neighboring passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio_to_plain: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ms_per_token: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tokens_per_s: Option<f64>,
    /// On the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) work: Option<Work>,
}

pub(super) fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}: {}", visible_text(&report.model), report.shape)?;
    let Report { what, implementation, batch, tokens, dtype, device, threads, runs, .. } = report;
    let groups = report.groups.map(|groups| format!("{groups} groups of together ")).unwrap_or_default();
    let isa = report.isa.map(|isa| format!(", {isa}")).unwrap_or_default();
    let tf32 = if report.tf32 { " with products in tf32" } else { "" };
    let kv = report.kv.map(|kv| format!(", cache in {kv}")).unwrap_or_default();
    let weights =
        report.quantized.as_ref().map(|formats| format!(", weights in {formats}")).unwrap_or_default();
    writeln!(
        out,
        "{what}, {implementation}, batch {batch}, {tokens} tokens, {dtype}{tf32}, {device}, {threads} threads{isa}{weights}{kv}"
    )?;
    writeln!(
        out,
        "median {:.3} ms, fastest {:.3} ms, of {groups}{runs} runs",
        report.median_ms, report.min_ms
    )?;
    if let (Some(plain), Some(ratio)) = (report.plain_median_ms, report.ratio_to_plain) {
        writeln!(out, "without them: median {plain:.3} ms; ratio {ratio:.3}, the median of {runs} pairs")?;
    }
    if let (Some(ms), Some(speed)) = (report.ms_per_token, report.tokens_per_s) {
        writeln!(out, "{ms:.3} ms per token, {speed:.1} tokens/s")?;
    }
    if let Some(Work { giga_per_s, unit, peak, of_peak }) = &report.work {
        let percent = 100.0 * of_peak;
        writeln!(out, "{giga_per_s:.1} {unit}, {percent:.0} % of the {peak:.1} that the machine does")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_layer_is_no_plural() {
        let shape = ModelSize { n_layer: 1, n_head: 2, n_embd: 8, vocab_size: 300 };
        assert_eq!(shape.to_string(), "1 layer, 2 heads, width 8, vocabulary 300");
    }
}
