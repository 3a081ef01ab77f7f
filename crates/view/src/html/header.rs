//! A page's header, and the types of its data: predictions, and numbers of heads.

use crate::provenance::Provenance;
use crate::silenced::Silenced;
use crate::text::visible_token;
use serde::Serialize;

/// The title, text and runs of a page: start with [`PageHeader::new`] and change the fields that differ.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PageHeader<'a> {
    /// The title at the top: the model's name.
    pub title: &'a str,
    /// The S tokens that queries can attend to, as they are in the text.
    pub tokens: &'a [String],
    /// T, the number of queries: they are the last tokens.
    pub queries: usize,
    /// The number of heads to write, in all layers together; each run has the same number.
    pub heads: usize,
    /// The tokens' ids: tokens with the same id are copies of each other, by which heads are told apart into kinds. Without
    /// ids, those with the same text are.
    pub ids: &'a [u32],
    /// K, to keep only the K largest weights of each row (see [`keep_largest`](crate::keep_largest)); the page then shows no number for the
    /// others.
    pub top: Option<usize>,
    /// The names of the two runs that the page compares, such as "clean" and "ablate 3.7"; none for a single run.
    pub runs: &'a [&'a str],
    /// The number of tokens in the prompt, if the model wrote the others one by one. The page then has a slider over the
    /// steps.
    pub prompt: Option<usize>,
    /// The token that came after the last query, if the text goes on: a generated text's last token, which the model never
    /// reads.
    pub next: Option<&'a str>,
    /// The heads whose output the last run does not use.
    pub silenced: Silenced,
    /// The page's origin: the caption goes below the title, the facts into `provenance` in the header's JSON.
    pub provenance: &'a Provenance,
}

impl<'a> PageHeader<'a> {
    /// A page of `heads` heads of one run with all their weights, where each token is a query.
    #[must_use]
    pub fn new(title: &'a str, tokens: &'a [String], heads: usize, provenance: &'a Provenance) -> Self {
        Self {
            title,
            tokens,
            queries: tokens.len(),
            heads,
            ids: &[],
            top: None,
            runs: &[],
            prompt: None,
            next: None,
            silenced: Silenced::default(),
            provenance,
        }
    }
}

/// The model's prediction after a query.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NextToken {
    /// The most probable tokens and their probabilities, most probable first.
    #[serde(serialize_with = "visible")]
    pub likely: Vec<(String, f32)>,
    /// The probability of the token that really follows; `None` if none does.
    pub actual: Option<f32>,
}

fn visible<S: serde::Serializer>(likely: &[(String, f32)], to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_seq(likely.iter().map(|(token, p)| (visible_token(token), p)))
}

/// A number of each head, by which the page sorts and colors its small maps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadNumbers {
    /// A word or two for menus: "effect", "induction".
    pub name: String,
    /// One sentence that says what the number means and its unit; may be empty.
    pub meaning: String,
    /// One per head, in the order in which the first run's heads are written. The page shows NaN as unknown.
    pub values: Vec<f32>,
    /// Whether 0 is the middle: the colors then go both ways from it.
    pub signed: bool,
}
