//! The options of an evaluation, and its run.

use super::data::{DataRow, DataRows, rows};
use super::examples::EvalExample;
use super::journal::{Journal, JournalHeader};
use super::measures::{Estimate, is_right};
use super::report::{EvalSettings, Measure, Report, Sample, TaskResult};
use super::requests::{RequestEncoder, Requests};
use super::scoring::scored;
use super::tasks::EvaluationTask;
use crate::observer::Observer;
use crate::open::Opened;
use crate::provenance::RunProvenance;
use crate::studies::study::{Outcome, Run, Study};
use crate::words::count;
use anyhow::bail;
use candle_fused::Isa;
use gpt2_model::analysis::Likelihood;
use gpt2_parallel::{Alone, Fact, Group};
use serde::{Deserialize, Serialize};
use std::hash::{DefaultHasher, Hasher};
use std::path::PathBuf;

/// The options of the study.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The tasks: a name of [`task_names`](super::task_names), whose data set is on the Hub; `NAME=FILE`, with the data set in a file; or
    /// the file of a task of one's own.
    pub tasks: Vec<String>,
    /// The number of examples of each task, the first ones; by default all.
    pub limit: Option<usize>,
    /// The tokens by which a window over a long text moves on; by default the whole context, as in the harness.
    pub stride: Option<usize>,
    /// The number of samples that are drawn for the standard error of a perplexity: two at least, or none if 0.
    pub bootstrap: usize,
    /// Whether the report has each example.
    pub samples: bool,
    /// A file that keeps finished work: a run that stopped goes on from it.
    pub journal: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { tasks: vec![], limit: None, stride: None, bootstrap: 100_000, samples: false, journal: None }
    }
}

/// A task with its examples.
struct LoadedTask {
    task: EvaluationTask,
    rows: DataRows,
    examples: Vec<EvalExample>,
}

impl Study for Options {
    const NAME: &'static str = "eval";
    type Report = Report;

    fn run(&self, run: &Run) -> anyhow::Result<Outcome<Report>> {
        Ok(Outcome::new(self.evaluate(run, &Alone)?))
    }
}

impl Options {
    /// The tasks that the options name.
    fn resolved(&self) -> anyhow::Result<Vec<EvaluationTask>> {
        let mut all: Vec<EvaluationTask> = vec![];
        for given in &self.tasks {
            for task in EvaluationTask::named(given)? {
                if all.iter().any(|other| other.name == task.name) {
                    bail!(
                        "{}: is given twice; name each task once, and give different files different names",
                        task.name
                    );
                }
                all.push(task);
            }
        }
        if let Some(task) =
            all.iter().find(|task| all.iter().any(|other| other.group == Some(task.name.as_str())))
        {
            bail!(
                "{0}: is the name of a task and of a group of others; rename the file of the task {0}",
                task.name
            );
        }
        if all.is_empty() {
            bail!("there is no task; name one, such as {}", super::task_names().join(", "));
        }
        Ok(all)
    }

    /// The files on this machine that an evaluation reads. Finds out before a model is fetched whether there are such tasks and files.
    ///
    /// # Errors
    /// When there is no such task or file.
    pub fn files(&self) -> anyhow::Result<Vec<PathBuf>> {
        let tasks = self.resolved()?;
        let data = tasks.iter().filter_map(|task| task.data.local()).map(PathBuf::from);
        let described = self.tasks.iter().map(PathBuf::from).filter(|path| path.is_file());
        Ok(data.chain(described).collect())
    }

    /// Evaluates with all ranks of a group; every rank has the report.
    ///
    /// # Errors
    /// When a task or its file does not exist, a row has not the fields of the task, a text to predict does not fit the model, a number
    /// is not finite, or the observer ends it.
    pub fn evaluate(&self, run: &Run, group: &dyn Group) -> anyhow::Result<Report> {
        let opened = run.opened;
        if self.bootstrap == 1 {
            let given = opened.spelling.given("bootstrap", 1);
            bail!("{given}: expected 2 samples at least, whose deviation is the error, or 0 for none");
        }
        let encoder = RequestEncoder::new(opened, self.stride)?;
        let tasks = self.resolved()?;
        let loaded =
            tasks.into_iter().map(|task| self.load(task, opened, run)).collect::<Result<Vec<_>, _>>()?;
        let mut requests = Requests::default();
        let mut places = vec![];
        for LoadedTask { rows, examples, .. } in &loaded {
            for (row, example) in rows.first.iter().zip(examples) {
                encoder.add(&mut requests, example, &row.place)?;
                if matches!(example, EvalExample::Text { .. }) {
                    check_whole(run, requests.of.last().map_or(0, ExactSizeIterator::len), &row.place)?;
                }
                places.push(&row.place);
            }
        }
        if requests.truncated > 0 {
            let window = opened.model.config().n_positions;
            run.observer.note(&format!(
                "cut at the beginning, to fit the model's {window} tokens: {}",
                count(requests.truncated, "context")
            ));
        }
        agree(group, opened, &requests)?;
        let provenance = RunProvenance::of_tokens(opened, opened.model.config().n_positions)?;
        let provenance = provenance.under(&run.interventions.described());
        let journal = self.journal(run, group, &requests, &provenance)?;
        let found = scored(run, group, &requests.list, journal, |example| places[example].clone())?;
        let mut results = vec![];
        let mut samples = vec![];
        let mut first = 0;
        for one in loaded {
            let of = &requests.of[first..first + one.examples.len()];
            first += one.examples.len();
            let answers: Vec<&[Likelihood]> = of.iter().map(|range| &found[range.clone()]).collect();
            if self.samples {
                samples.push((one.task.name.clone(), samples_of(&one, &answers)));
            }
            let predicted = of.iter().flat_map(|range| &requests.list[range.clone()]);
            let tokens = predicted.map(|request| request.predicted).sum();
            results.push(self.result(one, &answers, tokens, run.observer)?);
        }
        let settings = EvalSettings {
            limit: self.limit,
            bootstrap: self.bootstrap,
            window: opened.model.config().n_positions,
            stride: encoder.stride,
            truncated: requests.truncated,
        };
        let mut report = Report::new(provenance, results, &settings);
        report.samples.extend(samples);
        Ok(report)
    }

    /// The journal, if there is to be one.
    fn journal(
        &self,
        run: &Run,
        group: &dyn Group,
        requests: &Requests,
        provenance: &RunProvenance,
    ) -> anyhow::Result<Option<Journal>> {
        let Some(path) = &self.journal else { return Ok(None) };
        let spelling = run.opened.spelling;
        if group.size() > 1 {
            bail!(
                "{}: keeps the work of one process, and there are {}; leave it out, or run one",
                spelling.option("journal"),
                group.size()
            );
        }
        let mut interventions = DefaultHasher::new();
        run.interventions.hash(&mut interventions, run.observer)?;
        let header = JournalHeader {
            gpt2: env!("CARGO_PKG_VERSION").to_owned(),
            evaluation: provenance.model_line(),
            model: format!("{:016x}", run.opened.model.fingerprint()?),
            requests: requests.hash(),
            interventions: format!("{:016x}", interventions.finish()),
            isa: Isa::current().as_str().to_owned(),
        };
        Ok(Some(Journal::open(path, &header, spelling)?))
    }

    fn load(&self, task: EvaluationTask, opened: &Opened, run: &Run) -> anyhow::Result<LoadedTask> {
        let path = task.data.find(&opened.hub, run.observer)?;
        let rows = rows(&path, self.limit, opened.spelling, run.observer)?;
        let examples = task.examples(&rows.first)?;
        let is_empty = |example: &EvalExample| matches!(example, EvalExample::Text { bytes: 0, .. });
        if !examples.is_empty() && examples.iter().all(is_empty) {
            bail!("{}: its texts are all empty; expected some text to measure", task.name);
        }
        Ok(LoadedTask { task, rows, examples })
    }

    /// The measures of a task.
    fn result(
        &self,
        loaded: LoadedTask,
        answers: &[&[Likelihood]],
        tokens: usize,
        observer: &dyn Observer,
    ) -> anyhow::Result<TaskResult> {
        let LoadedTask { task, rows, examples } = loaded;
        let (kind, measures) = match examples.first() {
            Some(EvalExample::LastWord { .. }) | None => {
                ("loglikelihood", self.last_words(answers, observer)?)
            }
            Some(EvalExample::Choices { .. }) => {
                ("multiple_choice", choices(&examples, answers, task.has_norm))
            }
            Some(EvalExample::Text { .. }) => {
                ("loglikelihood_rolling", perplexities(&examples, answers, tokens))
            }
        };
        Ok(TaskResult {
            name: task.name,
            group: task.group,
            examples: examples.len(),
            all_examples: rows.all,
            measures,
            version: task.version,
            kind,
            data: task.data.described(),
        })
    }

    fn last_words(&self, answers: &[&[Likelihood]], observer: &dyn Observer) -> anyhow::Result<Vec<Measure>> {
        let each = || answers.iter().filter_map(|found| found.first());
        let log_probs: Vec<f64> = each().map(|found| found.log_prob).collect();
        let right: Vec<f64> = each().map(|found| f64::from(u8::from(found.is_greedy))).collect();
        let perplexity = Estimate::perplexity_of(&log_probs, self.bootstrap, observer)?;
        Ok(vec![Measure::new("perplexity", perplexity), Measure::new("acc", Estimate::mean_of(&right))])
    }
}

fn choices(examples: &[EvalExample], answers: &[&[Likelihood]], has_norm: bool) -> Vec<Measure> {
    let mut right = vec![];
    let mut right_by_length = vec![];
    for (example, found) in examples.iter().zip(answers) {
        let EvalExample::Choices { choices, answer, .. } = example else { continue };
        let lengths: Vec<usize> = choices.iter().map(|choice| choice.length).collect();
        let (plain, by_length) = is_right(found, &lengths, *answer);
        right.push(f64::from(u8::from(plain)));
        right_by_length.push(f64::from(u8::from(by_length)));
    }
    let mut measures = vec![Measure::new("acc", Estimate::mean_of(&right))];
    if has_norm {
        measures.push(Measure::new("acc_norm", Estimate::mean_of(&right_by_length)));
    }
    measures
}

fn perplexities(examples: &[EvalExample], answers: &[&[Likelihood]], tokens: usize) -> Vec<Measure> {
    let nats = -answers.iter().copied().flatten().map(|found| found.log_prob).sum::<f64>();
    let sum = |of: fn(&EvalExample) -> usize| examples.iter().map(of).sum::<usize>() as f64;
    let words = sum(|example| if let EvalExample::Text { words, .. } = example { *words } else { 0 });
    let bytes = sum(|example| if let EvalExample::Text { bytes, .. } = example { *bytes } else { 0 });
    let all = [
        ("word_perplexity", (nats / words).exp()),
        ("byte_perplexity", (nats / bytes).exp()),
        ("bits_per_byte", nats / bytes / std::f64::consts::LN_2),
        ("token_perplexity", (nats / tokens as f64).exp()),
    ];
    all.map(|(name, value)| Measure::new(name, Estimate::without_error(value))).into()
}

fn samples_of(loaded: &LoadedTask, answers: &[&[Likelihood]]) -> Vec<Sample> {
    let rows = loaded.rows.first.iter().map(|DataRow { place, .. }| place.clone());
    let each = rows.zip(&loaded.examples).zip(answers).enumerate();
    let sample =
        |(doc_id, ((place, example), found)): (usize, ((String, &EvalExample), &&[Likelihood]))| Sample {
            doc_id,
            place,
            resps: found.iter().map(|one| (one.log_prob, one.is_greedy)).collect(),
            target: if let EvalExample::Choices { answer, .. } = example { Some(*answer) } else { None },
        };
    each.map(sample).collect()
}

/// Refuses a text in several windows where an intervention needs it whole.
fn check_whole(run: &Run, windows: usize, place: &str) -> anyhow::Result<()> {
    if windows > 1 && run.interventions.options().need_whole_texts() {
        bail!(
            "{place}: is longer than the model's context, and an intervention names positions or takes a mean over each text; shorten it, or \
             leave the intervention out"
        );
    }
    Ok(())
}

/// Refuses ranks whose work would differ.
fn agree(group: &dyn Group, opened: &Opened, requests: &Requests) -> anyhow::Result<()> {
    group.agree(|| {
        let remedy = "start every rank with the same command, the same model and the same files";
        let fact = |what: &str, value| Fact { what: what.into(), value, remedy };
        Ok(vec![
            fact("the examples", requests.hash()),
            fact("the model", format!("{:?}", opened.model.fingerprint()?)),
        ])
    })
}
