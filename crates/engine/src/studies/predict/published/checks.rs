//! The checks: each answer beside what this program finds.

use super::answers::{HeadScore, PrintedAnswer, Question, of_model};
use super::finding::{Evaluations, FoundAnswer, found, listed};
use super::watched::Watched;
use crate::provenance::RunProvenance;
use crate::spelling::Spelling;
use crate::studies::study::Run;
use anyhow::bail;
use gpt2_loader::LoadError;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The options of the checks.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The model, as the file of answers calls it.
    pub model: String,
    /// A file of answers instead of the program's own.
    pub answers: Option<PathBuf>,
    /// Whether to run standard evaluations, too: they need data sets of the Hub, and take up to hours.
    pub evaluations: bool,
}

/// All checks of a model.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The facts that they depend on.
    pub provenance: RunProvenance,
    /// The model, as the file of answers calls it.
    pub model: String,
    /// Whether every answer that was checked is right.
    pub passed: bool,
    /// The number of answers that were not checked.
    pub unchecked: usize,
    /// Each answer.
    pub answers: Vec<Checked>,
}

/// An answer beside what this program finds.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// The question in words.
    pub question: String,
    /// The printed answer.
    pub expected: String,
    /// The answer of this program, or the reason why it was not checked.
    pub found: String,
    /// Whether they agree.
    pub state: AnswerState,
    /// The place where the answer was printed.
    pub source: String,
    /// Whether it was not checked because nobody asked for that.
    #[serde(skip)]
    pub is_unasked: bool,
}

/// The state of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerState {
    /// It agrees.
    Right,
    /// It does not.
    Wrong,
    /// It was not checked.
    Unchecked,
}

impl Options {
    /// Whether there are answers about the model, before it is fetched.
    ///
    /// # Errors
    /// When the file of answers is damaged or has none.
    pub fn check(&self, observer: &dyn crate::observer::Observer) -> anyhow::Result<()> {
        let answers = of_model(&self.model, self.answers.as_deref(), observer)?;
        let is_evaluation = |answer: &PrintedAnswer| matches!(answer.question, Question::Evaluation { .. });
        if !self.evaluations && answers.iter().all(is_evaluation) {
            let option = Spelling::Flags.switch("evaluations");
            bail!("all answers about {} are evaluations, which take hours: give {option}", self.model);
        }
        Ok(())
    }

    /// Checks every answer. One that cannot be checked, since a data set is out of reach or damaged or does not fit the model, is
    /// reported with the reason.
    ///
    /// # Errors
    /// When the file of answers is damaged, or the observer ends it.
    pub fn run(&self, run: &Run) -> anyhow::Result<Report> {
        let answers = of_model(&self.model, self.answers.as_deref(), run.observer)?;
        let all = answers.len() as u64;
        let mut checked = vec![];
        let mut evaluations = BTreeMap::new();
        let watched = Watched::new(run.observer);
        let of_answer = Run { observer: &watched, ..*run };
        for (number, answer) in answers.iter().enumerate() {
            run.observer.step("answers", number as u64, Some(all))?;
            let result = self.found(&of_answer, &answer.question, &mut evaluations);
            checked.push(match result {
                Err(error) if watched.has_ended() => return Err(error),
                result => self.checked(answer, result),
            });
        }
        run.observer.step("answers", all, Some(all))?;
        let count = |state| checked.iter().filter(|one: &&Checked| one.state == state).count();
        Ok(Report {
            provenance: RunProvenance::of_tokens(run.opened, run.opened.model.config().n_positions)?,
            model: self.model.clone(),
            passed: count(AnswerState::Wrong) == 0 && count(AnswerState::Right) > 0,
            unchecked: count(AnswerState::Unchecked),
            answers: checked,
        })
    }

    /// Whether a question is left out because nobody asked for such.
    fn is_unasked(&self, question: &Question) -> bool {
        matches!(question, Question::Evaluation { .. }) && !self.evaluations
    }

    fn found(
        &self,
        run: &Run,
        question: &Question,
        evaluations: &mut Evaluations,
    ) -> anyhow::Result<FoundAnswer> {
        if self.is_unasked(question) {
            bail!("not asked for; {} runs it", run.opened.spelling.switch("evaluations"));
        }
        found(run, question, evaluations)
    }

    fn checked(&self, answer: &PrintedAnswer, result: anyhow::Result<FoundAnswer>) -> Checked {
        let (found, state) = match result {
            Ok(FoundAnswer { found, is_right: true }) => (found, AnswerState::Right),
            Ok(FoundAnswer { found, is_right: false }) => (found, AnswerState::Wrong),
            Err(why) => (format!("{why:#}"), AnswerState::Unchecked),
        };
        let question = &answer.question;
        Checked {
            question: question.asked(),
            expected: question.expected(),
            found,
            state,
            source: answer.source.clone(),
            is_unasked: self.is_unasked(question),
        }
    }
}

/// Whether an error says that the Hub cannot be reached.
#[must_use]
pub fn is_out_of_reach(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<LoadError>().is_some_and(LoadError::is_out_of_reach))
}

impl Question {
    fn asked(&self) -> String {
        match self {
            Self::Continuation { prompt, .. } => format!("greedy continuation of {prompt:?}"),
            Self::Losses { losses, rows, columns, learning_rate, .. } => format!(
                "losses of {} steps on one batch of {rows} rows of {columns}, AdamW {learning_rate:.0e}",
                losses.len()
            ),
            Self::Heads { score, among, .. } => {
                format!("heads among the first {among} by {}", score.name())
            }
            Self::NameMovers { against, among, .. } => {
                let what = if *against { "against" } else { "for" };
                format!("heads among the first {among} that speak {what} the right name (IOI)")
            }
            Self::Evaluation { task, measure, .. } => format!("{measure} of {task}"),
        }
    }

    fn expected(&self) -> String {
        match self {
            Self::Continuation { ids, .. } => format!("{ids:?}"),
            Self::Losses { losses, tolerance, .. } => format!("{} ± {tolerance}", listed(losses)),
            Self::Heads { heads, .. } | Self::NameMovers { heads, .. } => heads.join(", "),
            Self::Evaluation { value, tolerance, .. } => format!("{value} ± {tolerance}"),
        }
    }
}

impl HeadScore {
    fn name(self) -> &'static str {
        match self {
            Self::PreviousToken => "previous-token score",
            Self::DuplicateToken => "duplicate-token score",
            Self::Induction => "induction score",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interventions::{InterventionOptions, Prepared};
    use crate::observer::{Observer, Silent};
    use crate::open::{DeviceChoice, ModelOptions};
    use serde_json::{Value, json};
    use std::sync::Mutex;

    /// Counts the steps of evaluations, and fails once, at one of a number.
    #[derive(Default)]
    struct Counting {
        heard: Mutex<usize>,
        fails_at: Option<usize>,
    }

    impl Observer for Counting {
        fn step(&self, steps: &str, _: u64, _: Option<u64>) -> candle_core::Result<()> {
            let mut heard = self.heard.lock().expect("no thread fails");
            *heard += usize::from(steps == "requests");
            if steps == "requests" && self.fails_at == Some(*heard) {
                candle_core::bail!("enough")
            }
            Ok(())
        }
    }

    /// The report about measures of one small task, and the steps that its requests took.
    fn run(measures: &[&str], fails_at: Option<usize>) -> anyhow::Result<(Report, usize)> {
        let folder = tempfile::tempdir()?;
        let quiz = folder.path().join("quiz.jsonl");
        std::fs::write(&quiz, "{\"context\": \"O\", \"choices\": [\" Romeo\", \" x\"], \"answer\": 0}\n")?;
        let answer = |measure: &&str| -> Value {
            let question = json!({"task": quiz, "measure": measure, "value": 0.5, "tolerance": 1});
            json!({"source": "nobody", "question": {"evaluation": question}})
        };
        let answers = folder.path().join("answers.json");
        std::fs::write(
            &answers,
            json!({"demo": measures.iter().map(answer).collect::<Vec<_>>()}).to_string(),
        )?;
        let opened = ModelOptions::default().open(DeviceChoice::Cpu, false, &Silent)?;
        let observer = Counting { fails_at, ..Counting::default() };
        let interventions = Prepared::new(InterventionOptions::default(), &opened, &observer)?;
        let options = Options { model: "demo".to_owned(), answers: Some(answers), evaluations: true };
        let report = options.run(&Run::new(&interventions, &observer))?;
        let heard = *observer.heard.lock().expect("no thread fails");
        Ok((report, heard))
    }

    #[test]
    fn a_task_runs_once_for_all_its_measures() -> anyhow::Result<()> {
        let (one, steps) = run(&["acc"], None)?;
        assert!(steps > 0 && one.passed);
        let (all, steps_of_all) = run(&["acc", "acc_norm", "acc"], None)?;
        assert_eq!((all.answers.len(), all.unchecked, steps_of_all), (3, 0, steps));
        Ok(())
    }

    #[test]
    fn an_observer_that_ends_a_question_ends_the_whole() {
        let ended = run(&["acc", "acc_norm"], Some(1)).expect_err("it is ended");
        assert!(format!("{ended:#}").contains("enough"), "{ended:#}");
    }
}
