//! Runs over one prompt, or over many texts one after another.

use super::args::StudyArgs;
use crate::input::prompt::{PromptArgs, prompt};
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::output::{self, is_closed_pipe};
use crate::results::exports::ExportFile;
use crate::results::picture::DrawnPicture;
use anyhow::{Context, bail};
use candle_core::Tensor;
use gpt2_engine::interventions::{Applied, Prepared, Reads};
use gpt2_engine::studies::interpret::attention::ChosenHeads;
use gpt2_engine::studies::{Outcome, Study};
use gpt2_engine::texts::{Content, Prompt};
use gpt2_engine::texts::{FIELD, STDIN, TextLine, TextLines, is_json_lines, place};
use gpt2_engine::{Observer, Opened, ReadFiles, RunProvenance, Spelling};
use serde::Serialize;
use serde_json::{Map, Value};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A prompt, or many texts.
#[derive(Debug, clap::Args)]
// A group, because clap forgets a required argument that conflicts with a given one.
#[command(group = clap::ArgGroup::new("many").arg("texts"))]
pub(crate) struct PromptsArgs {
    #[command(flatten)]
    pub(crate) one: PromptArgs,
    /// Run on each line of a file, or of JSON lines (.jsonl, .ndjson), instead of a prompt; - is standard input, and blank
    /// lines are skipped
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "file", "ids"])]
    pub(crate) texts: Option<PathBuf>,
    /// The field of JSON lines that holds the text, or token ids [default: text]
    #[arg(long, value_name = "NAME", requires = "many", conflicts_with_all = ["prompt", "file", "ids"])]
    pub(crate) field: Option<String>,
}

impl PromptsArgs {
    /// Reads the prompt, if it is one text: see [`PromptArgs::read`].
    pub(crate) fn read(&self) -> anyhow::Result<Option<String>> {
        if self.texts.is_some() { Ok(None) } else { self.one.read() }
    }

    /// The file that the texts come from, if they come from one.
    pub(crate) fn inputs(&self) -> ReadFiles {
        let Some(path) = &self.texts else { return self.one.inputs() };
        let mut inputs = ReadFiles::default();
        if path != Path::new(STDIN) {
            inputs.file("the file of texts", path);
        } else if cfg!(unix) {
            inputs.file("the file of texts", "/dev/stdin");
        }
        inputs
    }

    /// The lines of the file of texts, and the bytes that it has, if it is a file.
    pub(crate) fn open(&self, path: &Path) -> anyhow::Result<(TextLines<'static>, Option<u64>)> {
        let is_json = self.field.is_some() || is_json_lines(path);
        let field = is_json.then(|| self.field.as_deref().unwrap_or(FIELD).to_owned());
        let size = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
        Ok((TextLines::open(path, field, Spelling::Flags, &TERMINAL)?, size))
    }
}

/// The arguments and files of a run over one prompt or over many texts.
pub(crate) struct Job<'a> {
    pub(crate) prompts: &'a PromptsArgs,
    pub(crate) study: &'a StudyArgs,
    pub(crate) opened: &'a Opened,
    /// The layers and heads that the results are about, if they are about particular ones.
    pub(crate) chosen: Option<ChosenHeads<'a>>,
    pub(crate) export: Option<&'a Path>,
    pub(crate) outputs: Outputs,
}

/// The result of a run over one text.
pub(crate) struct Ran<R> {
    pub(crate) report: R,
    /// For the export, by name.
    pub(crate) tensors: Vec<(String, Tensor)>,
    /// Only of a single text.
    pub(crate) picture: Option<DrawnPicture>,
}

impl<R> Ran<R> {
    pub(crate) fn new(report: R, tensors: Vec<(String, Tensor)>) -> Self {
        Self { report, tensors, picture: None }
    }
}

/// The result of one of many texts.
#[derive(Serialize)]
pub(crate) struct Numbered<'a, R> {
    pub(crate) line: u64,
    /// The other fields of a line of JSON.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(crate) input: &'a Map<String, Value>,
    #[serde(flatten)]
    pub(crate) report: &'a R,
}

impl Job<'_> {
    /// Runs a study on the prompt `text`, or on every text, after [`StudyArgs::check`]; draws and prints the reports, and writes the export. `of` makes the study
    /// of a text.
    pub(crate) fn study<S: Study>(
        self,
        text: Option<String>,
        of: impl Fn(Content) -> S,
        draw: impl Fn(&Outcome<S::Report>) -> anyhow::Result<Option<DrawnPicture>>,
        print: impl Fn(&S::Report) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let study = self.study;
        let wants_tensors = self.export.is_some();
        let each = |prompt: &Prompt, _: &Applied, interventions: &Prepared| {
            let run = study.run(interventions, wants_tensors);
            let outcome = of(Content::Ids(prompt.ids.clone())).run(&run)?;
            let picture = draw(&outcome)?;
            Ok(Ran { picture, ..Ran::new(outcome.report, outcome.tensors) })
        };
        self.run_each(text, each, print)
    }

    /// Runs `each` on the prompt `text`, or on every text; prints the results and writes the export.
    pub(crate) fn run<R: Serialize>(
        self,
        text: Option<String>,
        mut each: impl FnMut(&Prompt, &Applied) -> anyhow::Result<Ran<R>>,
        print: impl Fn(&R) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.run_each(text, |prompt, applied, _| each(prompt, applied), print)
    }

    fn run_each<R: Serialize>(
        self,
        text: Option<String>,
        each: impl FnMut(&Prompt, &Applied, &Prepared) -> anyhow::Result<Ran<R>>,
        print: impl Fn(&R) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match &self.prompts.texts {
            None => self.on_one(text, each, print),
            Some(path) => self.on_many(path, each, print),
        }
    }

    fn on_one<R: Serialize>(
        mut self,
        text: Option<String>,
        mut each: impl FnMut(&Prompt, &Applied, &Prepared) -> anyhow::Result<Ran<R>>,
        print: impl Fn(&R) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let prompt = self.prompts.one.encode(text, self.opened)?;
        let reads = Reads::Whole(&[&prompt.ids]);
        let options = self.study.interventions.options();
        options.check(reads, Spelling::Flags)?;
        let interventions = Prepared::new(options, self.opened, &TERMINAL)?;
        let changes = interventions.of(reads)?;
        let Ran { report, tensors, picture } = each(&prompt, &changes, &interventions)?;
        if let Some(picture) = picture {
            picture.stage(&mut self.outputs)?;
        }
        if let Some(path) = self.export {
            let made_by = RunProvenance::new(self.opened, &prompt.ids)?.under(&changes);
            let mut export = ExportFile::new(path)?;
            export.add(None, &prompt, &tensors)?;
            export.stage(&made_by, Some(&prompt), &[], &mut self.outputs)?;
        }
        self.outputs.commit_after(|| output::report(self.study.json, &report, print))
    }

    fn on_many<R: Serialize>(
        mut self,
        path: &Path,
        mut each: impl FnMut(&Prompt, &Applied, &Prepared) -> anyhow::Result<Ran<R>>,
        print: impl Fn(&R) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let interventions = Prepared::new(self.study.interventions.options(), self.opened, &TERMINAL)?;
        let mut export = self.export.map(ExportFile::new).transpose()?;
        let (mut lines, size) = self.prompts.open(path)?;
        let mut printed = Ok(());
        let mut made_by = None;
        let unwritten = |error: anyhow::Error| match self.export {
            Some(export) => error.context(format!("{} is not written", export.display())),
            None => error,
        };
        while let Some(line) = lines.next_text().map_err(unwritten)? {
            let place = || place(path, Some(line.number));
            let mut ran = || {
                let prompt = prompt(self.opened, &line.content, &place())?;
                let changes = interventions.of(Reads::Whole(&[&prompt.ids])).with_context(place)?;
                let ran = each(&prompt, &changes, &interventions).with_context(place)?;
                anyhow::Ok((prompt, ran))
            };
            let (prompt, Ran { report, tensors, .. }) = ran().map_err(unwritten)?;
            if let Some(export) = &mut export {
                export.add(Some(line.number), &prompt, &tensors)?;
            }
            if made_by.is_none() {
                made_by = Some(RunProvenance::of_tokens(self.opened, prompt.ids.len())?);
            }
            if printed.is_ok() {
                printed = TERMINAL.between(|| show(self.study.json, &line, &place(), &report, &print));
            }
            // A reader that has seen enough still gets the whole export.
            if let Err(error) = &printed
                && (export.is_none() || !is_closed_pipe(error))
            {
                TERMINAL.clear();
                return printed;
            }
            TERMINAL.step("bytes", lines.read, size)?;
        }
        TERMINAL.clear();
        let Some(mut made_by) = made_by else {
            bail!("{}: holds no text; write one a line", place(path, None))
        };
        made_by = made_by.under(&interventions.described());
        let mut more = vec![];
        if let Some(ChosenHeads { layers, heads }) = self.chosen {
            more = vec![("layers", serde_json::to_string(layers)?), ("heads", serde_json::to_string(heads)?)];
            made_by = made_by.of(layers, heads);
        }
        if let Some(export) = export {
            export.stage(&made_by, None, &more, &mut self.outputs)?;
        }
        self.outputs.commit_after(|| printed)
    }
}

/// Prints the result of one of many texts.
fn show<R: Serialize>(
    as_json: bool,
    line: &TextLine,
    place: &str,
    report: &R,
    print: impl Fn(&R) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut out = output::stdout();
    if as_json {
        serde_json::to_writer(&mut out, &Numbered { line: line.number, input: &line.input, report })?;
        writeln!(out)?;
    } else {
        writeln!(out, "== {} ==", gpt2_view::visible_text(place))?;
        print(report)?;
        writeln!(out)?;
    }
    Ok(out.flush()?)
}
