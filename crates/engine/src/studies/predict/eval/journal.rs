//! The finished work of an evaluation, kept in a file, so that a run that stopped goes on where it was.

use crate::spelling::Spelling;
use anyhow::{Context, bail};
use gpt2_files::{atomic, read_text};
use gpt2_model::analysis::Likelihood;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The longest journal to read, in bytes: that of some millions of requests.
const LONGEST: u64 = 1 << 28;

/// The facts on which the answers depend, the file's first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JournalHeader {
    /// The model's name, dtype, device, interventions.
    pub(super) evaluation: String,
    /// Fingerprints.
    pub(super) model: String,
    pub(super) requests: String,
    pub(super) interventions: String,
    /// The processor's instructions, which change the last bits.
    pub(super) isa: String,
}

/// A batch by its number, and for each of its requests the bits of the log-probability, and whether it is the most probable answer.
#[derive(Serialize, Deserialize)]
struct BatchLine(usize, Vec<(u64, bool)>);

/// The file, and what an earlier run left in it.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    done: BTreeMap<usize, Vec<Likelihood>>,
}

impl Journal {
    /// Opens the file for a run with this header, or makes it.
    ///
    /// # Errors
    /// When it belongs to another run, is damaged, or cannot be written.
    pub(super) fn open(path: &Path, header: &JournalHeader, spelling: Spelling) -> anyhow::Result<Self> {
        let given = spelling.given("journal", path.display());
        atomic::check(path).with_context(|| spelling.option("journal"))?;
        let mut text = String::new();
        if path.exists() {
            text = read_text(path, LONGEST).with_context(|| {
                format!("{given}: expected the journal of an evaluation; choose another name")
            })?;
        }
        let options = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = options.with_context(|| given.clone())?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            bail!("{given}: another run writes this file; wait for it, or choose another name");
        }
        let mut done = BTreeMap::new();
        if text.is_empty() {
            writeln!(file, "{}", serde_json::to_string(header)?).with_context(|| given.clone())?;
        } else {
            // A run that was killed may have left a part of a line.
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            check(text[..whole].lines().next().unwrap_or_default(), header, &given)?;
            for (number, line) in text[..whole].lines().enumerate().skip(1) {
                let damaged =
                    || format!("{given}: line {} is damaged; delete the file to start anew", number + 1);
                let BatchLine(batch, answers) = serde_json::from_str(line).with_context(damaged)?;
                let answer = |(bits, is_greedy)| Likelihood { log_prob: f64::from_bits(bits), is_greedy };
                done.insert(batch, answers.into_iter().map(answer).collect());
            }
            file.set_len(whole as u64).with_context(|| given.clone())?;
        }
        file.seek(SeekFrom::End(0)).with_context(|| given.clone())?;
        Ok(Self { path: path.to_path_buf(), file, done })
    }

    /// The answers of an earlier run for a batch of this number of requests.
    pub(super) fn found(&self, batch: usize, requests: usize) -> Option<&Vec<Likelihood>> {
        self.done.get(&batch).filter(|found| found.len() == requests)
    }

    /// Adds the answers of this run for a batch.
    pub(super) fn add(&mut self, batch: usize, found: &[Likelihood]) -> anyhow::Result<()> {
        let answers = found.iter().map(|one| (one.log_prob.to_bits(), one.is_greedy)).collect();
        let line = serde_json::to_string(&BatchLine(batch, answers))? + "\n";
        self.file.write_all(line.as_bytes()).with_context(|| self.path.display().to_string())
    }
}

/// Refuses the first line of another run.
fn check(line: &str, header: &JournalHeader, given: &str) -> anyhow::Result<()> {
    let before: JournalHeader = serde_json::from_str(line)
        .with_context(|| format!("{given}: is not the journal of an evaluation; choose another name"))?;
    let facts = |of: &JournalHeader| {
        [
            ("the run", of.evaluation.clone()),
            ("the model's weights", of.model.clone()),
            ("the examples", of.requests.clone()),
            ("the interventions", of.interventions.clone()),
            ("the processor's instructions", of.isa.clone()),
        ]
    };
    let differs = facts(&before).into_iter().zip(facts(header)).find(|(before, now)| before.1 != now.1);
    if let Some(((what, before), (_, now))) = differs {
        bail!(
            "{given}: belongs to another evaluation: {what} was {before} and is {now}; choose another name"
        );
    }
    Ok(())
}
