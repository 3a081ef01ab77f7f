//! The finished work of an evaluation, kept in a file, so that a run that stopped goes on where it was.

use crate::spelling::Spelling;
use anyhow::{Context, bail};
use gpt2_files::{atomic, open_regular, read_text_of};
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
    /// The version of this program: another may compute other last bits, or ask otherwise.
    #[serde(default)]
    pub(super) gpt2: String,
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
        let no_journal = || format!("{given}: expected the journal of an evaluation; choose another name");
        if path.exists() {
            open_regular(path).with_context(no_journal)?;
        }
        let options = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = options.with_context(|| given.clone())?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            bail!("{given}: another run writes this file; wait for it, or choose another name");
        }
        // Only now: until the lock is ours, another run may add to the file.
        let text = read_text_of(&file, LONGEST).with_context(no_journal)?;
        let mut done = BTreeMap::new();
        if text.is_empty() {
            let line = serde_json::to_string(header)? + "\n";
            file.write_all(line.as_bytes()).with_context(|| given.clone())?;
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
            ("version of gpt2 is", of.gpt2.clone()),
            ("run is", of.evaluation.clone()),
            ("weights are", of.model.clone()),
            ("examples are", of.requests.clone()),
            ("interventions are", of.interventions.clone()),
            ("processor's instructions are", of.isa.clone()),
        ]
    };
    let differs = facts(&before).into_iter().zip(facts(header)).find(|(before, now)| before.1 != now.1);
    if let Some(((what, before), (_, now))) = differs {
        let before = if before.is_empty() { "unknown" } else { before.as_str() };
        bail!(
            "{given}: belongs to another evaluation, whose {what} {before} and not {now} as here; choose another name, or delete the file"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> JournalHeader {
        let text = || "x".to_owned();
        JournalHeader {
            gpt2: text(),
            evaluation: text(),
            model: text(),
            requests: text(),
            interventions: text(),
            isa: text(),
        }
    }

    /// Each run goes on from all that the runs before it wrote, however close they follow each other.
    #[test]
    fn runs_that_follow_each_other_at_once_lose_no_line() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("journal");
        let before = 5000; // so that reading takes a while
        let mut first = Journal::open(&path, &header(), Spelling::Flags)?;
        for batch in 0..before {
            first.add(batch, &[Likelihood { log_prob: -1.0, is_greedy: false }])?;
        }
        drop(first);
        let turns = 50;
        let run = || -> anyhow::Result<()> {
            for _ in 0..turns {
                let mut journal = loop {
                    match Journal::open(&path, &header(), Spelling::Flags) {
                        Err(error) if error.to_string().contains("another run writes") => {}
                        opened => break opened?,
                    }
                };
                let next = journal.done.len();
                journal.add(next, &[Likelihood { log_prob: -1.0, is_greedy: false }])?;
            }
            Ok(())
        };
        let runs = 4;
        std::thread::scope(|scope| {
            let started: Vec<_> = (0..runs).map(|_| scope.spawn(run)).collect();
            started.into_iter().try_for_each(|run| run.join().expect("no run panics"))
        })?;
        let journal = Journal::open(&path, &header(), Spelling::Flags)?;
        assert_eq!(journal.done.len(), before + runs * turns);
        Ok(())
    }
}
