//! `--metrics`: a line for each step and each validation, as CSV or JSON lines.

use anyhow::{Context, bail};
use gpt2_view::FileKind;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

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

/// The largest table that --resume reads.
const LONGEST: u64 = 1 << 30;
const HEADER: &str = "step,loss,val_loss,lr,grad_norm,tokens_per_s";

/// The file that lines are added to, made with the first.
pub(super) struct Metrics {
    path: PathBuf,
    /// What the file holds before that line: its head, and the lines of the steps that are done.
    kept: String,
    file: Option<File>,
    csv: bool,
}

/// The kind of table that a name stands for.
pub(super) fn kind(path: &Path) -> anyhow::Result<FileKind> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("csv") => Ok(FileKind::MetricsCsv),
        Some("jsonl") => Ok(FileKind::MetricsJsonLines),
        _ => bail!("--metrics {}: expected a name that ends in .csv or .jsonl", path.display()),
    }
}

impl Metrics {
    /// Begins a file, or goes on behind the lines of the steps up to `done`.
    pub(super) fn open(path: &Path, done: u64) -> anyhow::Result<Self> {
        let csv = path.extension().is_some_and(|e| e == "csv");
        let before = match gpt2_files::read_text(path, LONGEST) {
            Ok(before) if done > 0 => before,
            Err(e) if done > 0 && e.kind() != std::io::ErrorKind::NotFound => {
                return Err(e).with_context(|| format!("--metrics {}", path.display()));
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
        Ok(Self { path: path.to_path_buf(), kept, file: None, csv })
    }

    /// The file, which is made where it is not open yet.
    fn file(&mut self) -> anyhow::Result<&mut File> {
        let file = if let Some(file) = self.file.take() {
            file
        } else {
            gpt2_files::atomic::write_bytes(&self.path, self.kept.as_bytes())?;
            File::options().append(true).open(&self.path)?
        };
        Ok(self.file.insert(file))
    }

    pub(super) fn add(&mut self, row: Row) -> anyhow::Result<()> {
        let line = if self.csv {
            let Row { step, loss, val_loss, lr, grad_norm, tokens_per_s } = row;
            let val_loss = val_loss.map_or_else(String::new, |loss| loss.to_string());
            format!("{step},{loss},{val_loss},{lr},{grad_norm},{tokens_per_s:.0}")
        } else {
            serde_json::to_string(&row)?
        };
        let failed = format!("--metrics {}", self.path.display());
        self.file().and_then(|file| Ok(writeln!(file, "{line}")?)).context(failed)
    }
}
