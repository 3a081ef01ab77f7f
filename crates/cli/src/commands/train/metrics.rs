//! `--metrics`: a line for each step and each validation, as CSV or JSON lines.

use anyhow::{Context, bail};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// One line.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Row {
    /// Steps done.
    pub(super) step: u64,
    /// Mean loss of the step's batches, in nats a token.
    pub(super) loss: f32,
    /// Loss on the part that is held back, where it was just measured.
    pub(super) val_loss: Option<f64>,
    /// Learning rate.
    pub(super) lr: f64,
    /// Norm of all gradients together, before clipping.
    pub(super) grad_norm: f64,
    /// Tokens learnt from in a second.
    pub(super) tokens_per_s: f64,
}

const HEADER: &str = "step,loss,val_loss,lr,grad_norm,tokens_per_s";

/// The file that lines are added to.
pub(super) struct Metrics {
    file: File,
    csv: bool,
}

impl Metrics {
    /// Refuses a name that is not one of a table, and a file that is there and may not be replaced.
    pub(super) fn check(path: &Path, may_replace: bool) -> anyhow::Result<()> {
        if !matches!(path.extension().and_then(|e| e.to_str()), Some("csv" | "jsonl")) {
            bail!("--metrics {}: expected a name that ends in .csv or .jsonl", path.display());
        }
        if path.exists() && !may_replace {
            bail!("--metrics {}: is there already; choose another name, or --overwrite", path.display());
        }
        Ok(())
    }

    /// Begins a file, or goes on behind the lines of the steps up to `done`.
    pub(super) fn open(path: &Path, done: u64) -> anyhow::Result<Self> {
        let csv = path.extension().is_some_and(|e| e == "csv");
        let failed = || format!("--metrics {}", path.display());
        let before = match std::fs::read_to_string(path) {
            Ok(before) if done > 0 => before,
            Err(e) if done > 0 && e.kind() != std::io::ErrorKind::NotFound => {
                return Err(e).with_context(failed);
            }
            _ => String::new(),
        };
        let step = |line: &str| {
            if csv {
                return line.split(',').next()?.parse::<u64>().ok();
            }
            serde_json::from_str::<serde_json::Value>(line).ok()?["step"].as_u64()
        };
        let mut kept: String = if csv { format!("{HEADER}\n") } else { String::new() };
        for line in before.lines().filter(|line| step(line).is_some_and(|step| step <= done)) {
            kept += line;
            kept += "\n";
        }
        gpt2_loader::atomic::write_bytes(path, kept.as_bytes()).with_context(failed)?;
        Ok(Self { file: File::options().append(true).open(path).with_context(failed)?, csv })
    }

    pub(super) fn add(&mut self, row: Row) -> anyhow::Result<()> {
        if self.csv {
            let Row { step, loss, val_loss, lr, grad_norm, tokens_per_s } = row;
            let val_loss = val_loss.map_or_else(String::new, |loss| loss.to_string());
            writeln!(self.file, "{step},{loss},{val_loss},{lr},{grad_norm},{tokens_per_s:.0}")?;
        } else {
            writeln!(self.file, "{}", serde_json::to_string(&row)?)?;
        }
        Ok(())
    }
}
