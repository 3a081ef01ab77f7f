//! Standard evaluations, by the definitions of EleutherAI's lm-evaluation-harness: LAMBADA, HellaSwag, WikiText, BLiMP, and sets that a
//! file describes.

mod data;
mod description;
mod examples;
mod journal;
mod measures;
mod options;
mod report;
mod requests;
mod scoring;
mod sources;
mod tasks;
mod wikitext;

pub use options::Options;
pub use report::{Measure, Report, Sample, TaskResult};
pub use scoring::token_likelihoods;
pub use tasks::task_names;
