//! The options of a run over a corpus, and the files that it reads and writes.

use super::lines::{has_rows, holds_scores, part_of};
use crate::observer::Observer;
use crate::spelling::Spelling;
use crate::studies::study::Run;
use crate::texts::{By, Corpus, DocumentOptions, DocumentUnit};
use anyhow::{Context, bail};
use gpt2_files::{atomic, is_same_file};
use gpt2_parallel::Group;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The options of a run over a corpus.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// A text, JSON lines, a folder of texts, or `-` for standard input.
    pub corpus: PathBuf,
    /// The unit that counts as a document; by default JSON lines in a .jsonl file, else a whole file.
    pub by: Option<DocumentUnit>,
    /// The field of JSON lines that holds the text; by default `text`.
    pub field: Option<String>,
    /// The file to write a line to for each document.
    pub jsonl: Option<PathBuf>,
    /// Whether a line has the summary of every head's attention.
    pub summaries: bool,
    /// Whether the model's first token comes before each document, so that its first token is predicted, too.
    pub bos: bool,
    /// The tokens of a window; by default the model's context.
    pub window: Option<usize>,
    /// The step of a window in a document that is longer; by default half of a window.
    pub stride: Option<usize>,
    /// Whether to go on where an earlier run stopped.
    pub resume: bool,
    /// Whether to replace an existing file of scores, or start an unfinished one anew.
    pub overwrite: bool,
}

/// Documents that are found, but not read.
pub struct Documents<'a> {
    pub(super) by: By,
    /// Their source; none on other ranks than 0.
    pub corpus: Option<Corpus<'a>>,
}

impl Options {
    /// Finds the documents, and refuses a file of scores that may not be written.
    ///
    /// # Errors
    /// When there is no text, or the file of scores exists.
    pub fn find<'a>(
        &self,
        group: &dyn Group,
        spelling: Spelling,
        observer: &'a dyn Observer,
    ) -> anyhow::Result<Documents<'a>> {
        self.check(spelling)?;
        let units = DocumentOptions { by: self.by, field: self.field.clone() };
        let by = By::new(&units, &self.corpus, spelling)?;
        // Rank 0 alone reads the corpus and writes; the others get the texts from it.
        let leads = group.rank() == 0;
        let open = || Corpus::open(&self.corpus, by.clone(), spelling, observer);
        let corpus = leads.then(open).transpose()?;
        if let Some(out) = self.jsonl.as_ref().filter(|_| leads) {
            self.check_out(out, spelling)?;
        }
        Ok(Documents { by, corpus })
    }

    /// The files that it writes: that of the scores, and the one that it grows in.
    #[must_use]
    pub fn outputs(&self) -> Vec<PathBuf> {
        self.jsonl.iter().flat_map(|out| [out.clone(), part_of(out)]).collect()
    }

    fn check(&self, spelling: Spelling) -> anyhow::Result<()> {
        let of_file = [("summaries", self.summaries), ("resume", self.resume), ("overwrite", self.overwrite)];
        if let Some((option, _)) = of_file.iter().find(|(_, given)| *given && self.jsonl.is_none()) {
            let jsonl = spelling.option("jsonl");
            bail!("{}: is about the file of {jsonl}; give that too", spelling.switch(option));
        }
        if self.resume && self.overwrite {
            let options = [spelling.switch("resume"), spelling.switch("overwrite")];
            bail!("{}: goes on with what {} would replace; give one of them", options[0], options[1]);
        }
        Ok(())
    }

    fn check_out(&self, out: &Path, spelling: Spelling) -> anyhow::Result<()> {
        let option = spelling.option("jsonl");
        let given = spelling.given("jsonl", out.display());
        let overwrite = spelling.switch("overwrite");
        let resume = spelling.switch("resume");
        if out != Path::new("-") {
            atomic::check(out).context(option)?;
        }
        let part = part_of(out);
        let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = folder.canonicalize().ok();
        if self.corpus.is_dir()
            && folder.is_some_and(|f| self.corpus.canonicalize().is_ok_and(|c| f.starts_with(c)))
        {
            bail!("{given}: lies in the folder of the corpus; choose another");
        }
        // Resuming a finished run prints its totals. One that was started with --overwrite resumes without it, if the
        // file that it replaces holds scores.
        let goes_on = || anyhow::Ok(self.resume && holds_scores(out)?);
        if out.exists() && !self.overwrite && !goes_on()? {
            let remedy = if self.resume {
                " and is not a file of scores; move it away, then resume".to_owned()
            } else {
                format!("; choose another name, or give {overwrite}")
            };
            bail!("{given}: exists already{remedy}");
        }
        if !self.overwrite && !self.resume && has_rows(&part)? {
            bail!(
                "{given}: an earlier run left {}; continue it with {resume}, or start anew with {overwrite}",
                part.display()
            );
        }
        Ok(())
    }

    /// Refuses a file of scores that the run reads: of the corpus, the model, its adapters or the interventions; and one in the Hub's
    /// cache.
    pub(super) fn spare_inputs(&self, run: &Run, documents: &Documents) -> anyhow::Result<()> {
        let opened = run.opened;
        let given = |out: &Path| opened.spelling.given("jsonl", out.display());
        let mut inputs =
            opened.files.as_ref().map(gpt2_loader::Files::paths).transpose()?.unwrap_or_default();
        inputs.extend(documents.corpus.iter().flat_map(|corpus| corpus.files.iter().cloned()));
        inputs.extend(opened.adapters.iter().flat_map(|adapter| adapter.files.iter().cloned()));
        inputs.extend(run.interventions.options().files().into_iter().map(|(_, path)| path));
        for out in self.outputs() {
            if let Some(input) = inputs.iter().find(|input| is_same_file(input, &out)) {
                bail!("{}: is {}, which this reads; choose another name", given(&out), input.display());
            }
            if out.parent().is_some_and(|folder| opened.hub.caches(folder)) {
                bail!("{}: lies in the cache of the Hub's models; choose another name", given(&out));
            }
        }
        Ok(())
    }
}
