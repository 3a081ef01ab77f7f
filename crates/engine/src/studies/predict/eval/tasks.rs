//! The tasks that have a name, and what each option for a task means.

use super::data::DataRow;
use super::description;
use super::examples::{EvalExample, ExampleParts, blimp, hellaswag, lambada, plain_text, wikitext};
use super::sources::{DataFile, HubSplit};
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};

/// A set of examples to evaluate.
#[derive(Debug, Clone)]
pub(super) struct EvaluationTask {
    pub(super) name: String,
    /// The version of the harness' definition; none for a task of one's own.
    pub(super) version: Option<f64>,
    /// The group whose mean it counts in.
    pub(super) group: Option<&'static str>,
    pub(super) data: DataFile,
    reader: ExampleReader,
    /// Whether choices are also measured per character.
    pub(super) has_norm: bool,
}

/// Makes examples of rows.
#[derive(Debug, Clone)]
enum ExampleReader {
    Known(fn(&DataRow) -> anyhow::Result<EvalExample>),
    Described(ExampleParts),
    PlainText,
    /// By the fields of the first row.
    Own,
}

/// A task of the harness.
struct StandardTask {
    name: &'static str,
    version: f64,
    read: fn(&DataRow) -> anyhow::Result<EvalExample>,
    dataset: HubSplit,
    has_norm: bool,
}

const KNOWN: [StandardTask; 5] = [
    StandardTask {
        name: "lambada_openai",
        version: 1.0,
        read: lambada,
        dataset: HubSplit { id: "EleutherAI/lambada_openai", folder: "default/test" },
        has_norm: false,
    },
    StandardTask {
        name: "lambada_standard",
        version: 1.0,
        read: lambada,
        dataset: HubSplit { id: "cimec/lambada", folder: "plain_text/test" },
        has_norm: false,
    },
    StandardTask {
        name: "hellaswag",
        version: 1.0,
        read: hellaswag,
        dataset: HubSplit { id: "Rowan/hellaswag", folder: "default/validation" },
        has_norm: true,
    },
    StandardTask {
        name: "wikitext",
        version: 2.0,
        read: wikitext,
        dataset: HubSplit { id: "EleutherAI/wikitext_document_level", folder: "wikitext-2-raw-v1/test" },
        has_norm: false,
    },
    StandardTask {
        name: "wikitext103",
        version: 2.0,
        read: wikitext,
        dataset: HubSplit { id: "EleutherAI/wikitext_document_level", folder: "wikitext-103-raw-v1/test" },
        has_norm: false,
    },
];

const BLIMP: &str = "blimp";
const BLIMP_ID: &str = "nyu-mll/blimp";
/// The version of the harness' definition of each part of BLiMP, and of the whole.
const BLIMP_VERSION: f64 = 1.0;
pub(super) const BLIMP_GROUP_VERSION: f64 = 2.0;

/// BLiMP's sets of sentences (Warstadt et al. 2020, arXiv 1912.00582).
const BLIMP_SETS: &str = "adjunct_island anaphor_gender_agreement anaphor_number_agreement animate_subject_passive \
    animate_subject_trans causative complex_NP_island coordinate_structure_constraint_complex_left_branch \
    coordinate_structure_constraint_object_extraction determiner_noun_agreement_1 determiner_noun_agreement_2 \
    determiner_noun_agreement_irregular_1 determiner_noun_agreement_irregular_2 determiner_noun_agreement_with_adj_2 \
    determiner_noun_agreement_with_adj_irregular_1 determiner_noun_agreement_with_adj_irregular_2 \
    determiner_noun_agreement_with_adjective_1 distractor_agreement_relational_noun distractor_agreement_relative_clause \
    drop_argument ellipsis_n_bar_1 ellipsis_n_bar_2 existential_there_object_raising existential_there_quantifiers_1 \
    existential_there_quantifiers_2 existential_there_subject_raising expletive_it_object_raising inchoative intransitive \
    irregular_past_participle_adjectives irregular_past_participle_verbs irregular_plural_subject_verb_agreement_1 \
    irregular_plural_subject_verb_agreement_2 left_branch_island_echo_question left_branch_island_simple_question \
    matrix_question_npi_licensor_present npi_present_1 npi_present_2 only_npi_licensor_present only_npi_scope passive_1 \
    passive_2 principle_A_c_command principle_A_case_1 principle_A_case_2 principle_A_domain_1 principle_A_domain_2 \
    principle_A_domain_3 principle_A_reconstruction regular_plural_subject_verb_agreement_1 \
    regular_plural_subject_verb_agreement_2 sentential_negation_npi_licensor_present sentential_negation_npi_scope \
    sentential_subject_island superlative_quantifiers_1 superlative_quantifiers_2 tough_vs_raising_1 tough_vs_raising_2 \
    transitive wh_island wh_questions_object_gap wh_questions_subject_gap wh_questions_subject_gap_long_distance \
    wh_vs_that_no_gap wh_vs_that_no_gap_long_distance wh_vs_that_with_gap wh_vs_that_with_gap_long_distance";

/// The names of the tasks that need no file to describe them.
#[must_use]
pub fn task_names() -> Vec<&'static str> {
    KNOWN.iter().map(|known| known.name).chain([BLIMP]).collect()
}

impl EvaluationTask {
    /// The tasks that an option means: `NAME`, `NAME=FILE`, or the file of a task of one's own.
    ///
    /// # Errors
    /// When there is no such task or file.
    pub(super) fn named(given: &str) -> anyhow::Result<Vec<Self>> {
        let (name, file) = match given.split_once('=') {
            Some((name, file)) => (name, Some(file)),
            None => (given, None),
        };
        if let Some(known) = KNOWN.iter().find(|known| known.name == name) {
            let data = file.map_or(Ok(DataFile::Of(known.dataset.clone())), DataFile::named)?;
            return Ok(vec![Self {
                name: name.to_owned(),
                version: Some(known.version),
                group: None,
                data,
                reader: ExampleReader::Known(known.read),
                has_norm: known.has_norm,
            }]);
        }
        if name == BLIMP {
            return blimp_tasks(file);
        }
        let is_own_file = file.is_none() && Path::new(given).is_file();
        if let Some(set) = name.strip_prefix("blimp_").filter(|_| !is_own_file) {
            let set = BLIMP_SETS.split_whitespace().find(|known| *known == set);
            let set = set.with_context(|| unknown(name))?;
            let data = file.map_or(Ok(blimp_data(set)), DataFile::named)?;
            return Ok(vec![blimp_task(set, data, None)]);
        }
        let path = Path::new(given);
        if path.is_dir() {
            bail!(
                "{given}: is a folder; expected a file of examples, or {BLIMP}=FOLDER for the parts of BLiMP"
            );
        }
        if path.is_file() { Ok(vec![Self::of_file(path)?]) } else { bail!("{}", unknown(given)) }
    }

    /// A task of one's own.
    fn of_file(path: &Path) -> anyhow::Result<Self> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let of = |name, data, reader| Self { name, version: None, group: None, data, reader, has_norm: true };
        let ends = |ends: &[&str]| {
            path.extension().is_some_and(|end| ends.iter().any(|one| end.eq_ignore_ascii_case(one)))
        };
        if ends(&["jsonl", "ndjson", "parquet"]) {
            return Ok(of(name, DataFile::At(path.to_path_buf()), ExampleReader::Own));
        }
        if ends(&["json"]) {
            let described = description::read(path, &name)?;
            let reader = described.parts.map_or(ExampleReader::PlainText, ExampleReader::Described);
            return Ok(of(described.task, described.data, reader));
        }
        bail!(
            "{}: expected examples in a file whose name ends in .jsonl or .parquet, or their description in one that ends in .json",
            path.display()
        )
    }

    /// The examples of some rows.
    pub(super) fn examples(&self, rows: &[DataRow]) -> anyhow::Result<Vec<EvalExample>> {
        let reader = match (&self.reader, rows.first()) {
            (ExampleReader::Own, Some(first)) => own(first)?,
            (reader, _) => reader.clone(),
        };
        let example = |row: &DataRow| match &reader {
            ExampleReader::Known(read) => read(row),
            ExampleReader::Described(parts) => parts.example(row),
            ExampleReader::PlainText | ExampleReader::Own => plain_text(row),
        };
        rows.iter().map(example).collect()
    }
}

/// The reader for rows like this one.
fn own(first: &DataRow) -> anyhow::Result<ExampleReader> {
    let parts = |choices: Option<&str>| {
        ExampleReader::Described(ExampleParts {
            context: "{{context}}".into(),
            choices: choices.map(str::to_owned),
            answer: "answer".into(),
            delimiter: String::new(),
        })
    };
    let has = |names: &[&str]| names.iter().all(|name| first.has(name));
    if has(&["context", "choices", "answer"]) {
        Ok(parts(Some("choices")))
    } else if has(&["context", "answer"]) {
        Ok(parts(None))
    } else if has(&["text"]) {
        Ok(ExampleReader::PlainText)
    } else {
        bail!(
            "{}: expected the fields context, choices and answer, or context and answer, or text; where a data set has other names, describe \
             it in a .json file",
            first.place
        )
    }
}

/// The parts of BLiMP that a folder holds, or all on the Hub.
fn blimp_tasks(folder: Option<&str>) -> anyhow::Result<Vec<EvaluationTask>> {
    let sets = BLIMP_SETS.split_whitespace();
    let Some(folder) = folder else {
        return Ok(sets.map(|set| blimp_task(set, blimp_data(set), Some(BLIMP))).collect());
    };
    let path = Path::new(folder);
    if !path.is_dir() {
        bail!(
            "{BLIMP}={folder}: expected a folder with a file for each part of BLiMP, such as adjunct_island.jsonl"
        );
    }
    let at = |set: &str| -> Option<PathBuf> {
        let names = ["jsonl", "parquet"].map(|end| path.join(format!("{set}.{end}")));
        names.into_iter().find(|file| file.is_file())
    };
    let found = sets.filter_map(|set| Some(blimp_task(set, DataFile::At(at(set)?), Some(BLIMP))));
    let found: Vec<EvaluationTask> = found.collect();
    if found.is_empty() {
        bail!(
            "{BLIMP}={folder}: holds no part of BLiMP; expected files such as adjunct_island.jsonl or wh_island.parquet"
        );
    }
    Ok(found)
}

fn blimp_task(set: &str, data: DataFile, group: Option<&'static str>) -> EvaluationTask {
    EvaluationTask {
        name: format!("blimp_{set}"),
        version: Some(BLIMP_VERSION),
        group,
        data,
        reader: ExampleReader::Known(blimp),
        has_norm: false,
    }
}

fn blimp_data(set: &str) -> DataFile {
    DataFile::OfSet { id: BLIMP_ID, folder: format!("{set}/train") }
}

/// The error for a name that is neither a task nor a file.
fn unknown(given: &str) -> String {
    let sets = BLIMP_SETS.split_whitespace().map(|set| format!("blimp_{set}"));
    let all = task_names().into_iter().map(str::to_owned).chain(sets);
    let name = given.split('=').next().unwrap_or(given);
    let near = all.filter(|known| strsim::levenshtein(known, name) <= 3);
    let near = near.min_by_key(|known| strsim::levenshtein(known, name));
    let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    format!(
        "{given}: no such task or file{near}; tasks are {}, each also as TASK=FILE, and a file of examples in JSON lines is one, too",
        task_names().join(", ")
    )
}
