//! The results of an evaluation, in the form of the harness' JSON.

use super::measures::Estimate;
use super::tasks::BLIMP_GROUP_VERSION;
use crate::provenance::RunProvenance;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The results of some tasks. Its JSON has the keys of lm-evaluation-harness' own results.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The facts that they depend on.
    pub provenance: RunProvenance,
    /// For each task and group, each measure as `NAME,none` and its standard error as `NAME_stderr,none`, which is `N/A` where it is not
    /// defined.
    results: BTreeMap<String, Map<String, Value>>,
    /// The groups alone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    groups: BTreeMap<String, Map<String, Value>>,
    /// The tasks of each group.
    group_subtasks: BTreeMap<String, Vec<String>>,
    /// The kind of request of each task, and the file of its examples.
    configs: BTreeMap<String, Value>,
    /// The version of each definition.
    versions: BTreeMap<String, Option<f64>>,
    /// The number of solved examples before each question: none.
    #[serde(rename = "n-shot")]
    shots: BTreeMap<String, usize>,
    /// Whether more of a measure is better.
    higher_is_better: BTreeMap<String, BTreeMap<&'static str, bool>>,
    /// The number of examples of each task, and of those that were run.
    #[serde(rename = "n-samples")]
    counts: BTreeMap<String, Value>,
    /// The settings.
    config: Value,
    /// Each example of each task, if asked for.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub samples: BTreeMap<String, Vec<Sample>>,
    /// The tasks in their order.
    #[serde(skip)]
    pub tasks: Vec<TaskResult>,
}

/// The result of a task or of a group.
#[derive(Debug, Clone)]
pub struct TaskResult {
    /// Its name.
    pub name: String,
    /// The group that it counts in.
    pub group: Option<&'static str>,
    /// The number of examples that were run.
    pub examples: usize,
    /// The number of examples that its file has.
    pub all_examples: usize,
    /// Its measures.
    pub measures: Vec<Measure>,
    pub(super) version: Option<f64>,
    pub(super) kind: &'static str,
    pub(super) data: String,
}

/// A measure of a task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measure {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// Its standard error, where it is defined.
    pub error: Option<f64>,
}

/// An example and the answers of the model.
#[derive(Debug, Clone, Serialize)]
pub struct Sample {
    /// The index of the example in its file, from 0.
    pub doc_id: usize,
    /// Its line or row.
    pub place: String,
    /// For each request, its log-probability, and whether the model would say it.
    pub resps: Vec<(f64, bool)>,
    /// The index of the right choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<usize>,
}

/// The settings that all tasks share.
pub(super) struct EvalSettings {
    pub(super) limit: Option<usize>,
    pub(super) bootstrap: usize,
    pub(super) window: usize,
    pub(super) stride: usize,
    /// The number of requests whose context lost its beginning.
    pub(super) truncated: usize,
}

impl Measure {
    pub(super) fn new(name: &'static str, Estimate { value, error }: Estimate) -> Self {
        Self { name, value, error }
    }

    /// Whether more of it is better.
    #[must_use]
    pub fn is_better_higher(&self) -> bool {
        self.name.starts_with("acc")
    }
}

impl Report {
    pub(super) fn new(provenance: RunProvenance, tasks: Vec<TaskResult>, settings: &EvalSettings) -> Self {
        let mut report = Self {
            config: json!({
                "model": "gpt2",
                "model_args": provenance.model,
                "limit": settings.limit,
                "bootstrap_iters": settings.bootstrap,
                "max_length": settings.window,
                "stride": settings.stride,
                "truncated_requests": settings.truncated,
            }),
            provenance,
            results: BTreeMap::new(),
            groups: BTreeMap::new(),
            group_subtasks: BTreeMap::new(),
            configs: BTreeMap::new(),
            versions: BTreeMap::new(),
            shots: BTreeMap::new(),
            higher_is_better: BTreeMap::new(),
            counts: BTreeMap::new(),
            samples: BTreeMap::new(),
            tasks: vec![],
        };
        for task in &tasks {
            report.add(task);
        }
        let groups = groups(&tasks);
        for group in &groups {
            report.add_group(group, &tasks);
        }
        report.tasks = tasks;
        report.tasks.extend(groups);
        report
    }

    fn add(&mut self, task: &TaskResult) {
        let name = || task.name.clone();
        self.results.insert(name(), task.numbers());
        self.group_subtasks.entry(task.group.map_or_else(name, str::to_owned)).or_default();
        self.configs
            .insert(name(), json!({"task": task.name, "output_type": task.kind, "dataset": task.data}));
        self.versions.insert(name(), task.version);
        self.shots.insert(name(), 0);
        let better = task.measures.iter().map(|measure| (measure.name, measure.is_better_higher()));
        self.higher_is_better.insert(name(), better.collect());
        self.counts.insert(name(), json!({"original": task.all_examples, "effective": task.examples}));
    }

    fn add_group(&mut self, group: &TaskResult, tasks: &[TaskResult]) {
        let members = tasks.iter().filter(|task| task.group == Some(group.name.as_str()));
        self.group_subtasks.insert(group.name.clone(), members.map(|task| task.name.clone()).collect());
        self.results.insert(group.name.clone(), group.numbers());
        self.groups.insert(group.name.clone(), group.numbers());
        self.versions.insert(group.name.clone(), group.version);
        let better = group.measures.iter().map(|measure| (measure.name, measure.is_better_higher()));
        self.higher_is_better.insert(group.name.clone(), better.collect());
    }
}

impl TaskResult {
    /// The numbers under the harness' keys; none of its filters is in use.
    fn numbers(&self) -> Map<String, Value> {
        let mut numbers = Map::new();
        numbers.insert("alias".into(), json!(self.name));
        for Measure { name, value, error } in &self.measures {
            numbers.insert(format!("{name},none"), json!(value));
            numbers.insert(format!("{name}_stderr,none"), error.map_or(json!("N/A"), |error| json!(error)));
        }
        numbers
    }

    /// The value of a measure.
    #[must_use]
    pub fn value(&self, measure: &str) -> Option<f64> {
        self.measures.iter().find(|one| one.name == measure).map(|one| one.value)
    }
}

/// The groups of some tasks, with the mean over their tasks, each of which counts once.
fn groups(tasks: &[TaskResult]) -> Vec<TaskResult> {
    let mut names: Vec<&'static str> = tasks.iter().filter_map(|task| task.group).collect();
    names.dedup();
    let group = |name: &&'static str| {
        let members: Vec<&TaskResult> = tasks.iter().filter(|task| task.group == Some(name)).collect();
        let accuracies = members.iter().flat_map(|task| &task.measures).filter(|one| one.name == "acc");
        let accuracies: Vec<_> =
            accuracies.map(|one| Estimate { value: one.value, error: one.error }).collect();
        TaskResult {
            name: (*name).to_owned(),
            group: None,
            examples: members.iter().map(|task| task.examples).sum(),
            all_examples: members.iter().map(|task| task.all_examples).sum(),
            measures: vec![Measure::new("acc", Estimate::mean_over(&accuracies))],
            version: Some(BLIMP_GROUP_VERSION),
            kind: "multiple_choice",
            data: String::new(),
        }
    };
    names.iter().map(group).collect()
}
