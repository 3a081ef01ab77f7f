//! The reports of a run: the events that its callback hears, and a line for each of them in a file of metrics.

use crate::error::{BoxError, Result, TrainError};
use gpt2_files::{atomic, read_text};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum TrainingEvent {
    /// A step is done. If its [`validates`](StepReport::validates) is true, [`Validated`](Self::Validated) follows.
    Stepped(StepReport),
    /// The model was validated after that step.
    Validated(StepReport, Validation),
}

/// One step of the optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// Steps done, this one included.
    pub step: u64,
    /// Mean loss of the step's batches, in nats a token.
    pub loss: f32,
    /// Learning rate.
    pub lr: f64,
    /// Norm of all gradients together, before clipping.
    pub grad_norm: f64,
    /// Training tokens per second.
    pub tokens_per_s: f64,
    /// Whether a validation comes next.
    pub validates: bool,
}

/// A measurement on the data held back for validation.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Validation {
    /// Mean loss in nats a token.
    pub loss: f64,
    /// Whether this loss is lower than all before it.
    pub is_best: bool,
}

/// An estimate of the time and memory of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// The time of the steps that are left and of their validations.
    pub seconds: f64,
    /// The memory that this process needs.
    pub bytes: u64,
}

/// A line of metrics. It holds no times: the same run writes the same bytes.
#[derive(Serialize)]
struct MetricsLine {
    step: u64,
    loss: f32,
    val_loss: Option<f64>,
    lr: f64,
    grad_norm: f64,
}

/// The format of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricsFormat {
    /// Comma-separated numbers below a header.
    Csv,
    /// One JSON object per line.
    JsonLines,
}

impl MetricsFormat {
    /// The format given by a file name's extension: `.csv` or `.jsonl`.
    #[must_use]
    pub fn from_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "csv" => Some(Self::Csv),
            "jsonl" => Some(Self::JsonLines),
            _ => None,
        }
    }
}

/// The largest file that a resumed run reads.
const LONGEST: u64 = 1 << 30;
/// The first line of a table of metrics.
pub const METRICS_HEADER: &str = "step,loss,val_loss,lr,grad_norm";

/// Appends lines to a file, which the first line creates.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    /// The text before the first new line: the header, and the lines of the steps already done.
    kept: String,
    file: Option<File>,
    format: MetricsFormat,
}

impl Metrics {
    /// Starts a new file at `path` or, after `done` steps, continues the existing one after the lines of these steps.
    ///
    /// # Errors
    /// When the existing file of a resumed run cannot be read.
    pub fn open(path: &Path, format: MetricsFormat, done: u64) -> Result<Self> {
        let csv = format == MetricsFormat::Csv;
        let before = match read_text(path, LONGEST) {
            Ok(before) if done > 0 => before,
            Err(e) if done > 0 && e.kind() != std::io::ErrorKind::NotFound => {
                return Err(TrainError::Metrics { path: path.to_path_buf(), source: e.into() });
            }
            _ => String::new(),
        };
        let step = |line: &str| {
            if csv {
                return line.split(',').next()?.parse::<u64>().ok();
            }
            serde_json::from_str::<serde_json::Value>(line).ok()?["step"].as_u64()
        };
        let mut kept: String = if csv { format!("{METRICS_HEADER}\n") } else { String::new() };
        for line in before.lines().filter(|line| step(line).is_some_and(|step| step <= done)) {
            kept += line;
            kept += "\n";
        }
        Ok(Self { path: path.to_path_buf(), kept, file: None, format })
    }

    /// Appends a line for a step and the validation after it, if there was one.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add(&mut self, step: StepReport, validation: Option<Validation>) -> Result<()> {
        let StepReport { step, loss, lr, grad_norm, .. } = step;
        let val_loss = validation.map(|validation| validation.loss);
        let line = match self.format {
            MetricsFormat::Csv => {
                let val_loss = val_loss.map_or_else(String::new, |loss| loss.to_string());
                Ok(format!("{step},{loss},{val_loss},{lr},{grad_norm}"))
            }
            MetricsFormat::JsonLines => {
                serde_json::to_string(&MetricsLine { step, loss, val_loss, lr, grad_norm })
                    .map_err(BoxError::from)
            }
        };
        line.and_then(|line| Ok(writeln!(self.file()?, "{line}")?))
            .map_err(|source| TrainError::Metrics { path: self.path.clone(), source })
    }

    /// The open file; creates it first if necessary.
    fn file(&mut self) -> std::result::Result<&mut File, BoxError> {
        let file = if let Some(file) = self.file.take() {
            file
        } else {
            atomic::write_bytes(&self.path, self.kept.as_bytes())?;
            File::options().append(true).open(&self.path)?
        };
        Ok(self.file.insert(file))
    }
}
