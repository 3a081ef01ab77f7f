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
    /// Begins a file, or goes on behind the lines of the steps up to `done`.
    pub(super) fn open(path: &Path, done: u64) -> anyhow::Result<Self> {
        let csv = match path.extension().and_then(|e| e.to_str()) {
            Some("csv") => true,
            Some("jsonl") => false,
            _ => bail!("--metrics {}: expected a name that ends in .csv or .jsonl", path.display()),
        };
        let failed = || format!("--metrics {}", path.display());
        let before = if done > 0 { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() };
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
