//! Examples as tokens: each request is a text whose end is to be predicted.

use super::examples::EvalExample;
use super::wikitext::is_space;
use crate::open::Opened;
use anyhow::{Context, bail};
use gpt2_loader::Tokenizer;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

/// A text whose last tokens are predicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// The tokens: one more than the context at most.
    pub(super) ids: Vec<u32>,
    /// The number of tokens at the end that are predicted.
    pub(super) predicted: usize,
    /// The place of its example, as an index.
    pub(super) example: usize,
}

/// The requests of some examples, in their order.
#[derive(Debug, Default)]
pub(super) struct Requests {
    pub(super) list: Vec<Request>,
    /// The requests of each example.
    pub(super) of: Vec<Range<usize>>,
    /// The number of requests whose context lost its beginning.
    pub(super) truncated: usize,
}

impl Requests {
    /// A fingerprint of what is asked.
    pub(super) fn hash(&self) -> String {
        let mut hash = DefaultHasher::new();
        for request in &self.list {
            (&request.ids, request.predicted).hash(&mut hash);
        }
        format!("{:016x}", hash.finish())
    }
}

/// Makes requests for a model.
pub(super) struct RequestEncoder<'a> {
    tokenizer: &'a Tokenizer,
    /// The token that stands before a text without a context.
    prefix: u32,
    /// The model's context N.
    window: usize,
    /// The tokens by which a window over a long text moves on.
    pub(super) stride: usize,
    vocab_size: usize,
}

impl<'a> RequestEncoder<'a> {
    /// # Errors
    /// When the model has no tokenizer or no first token, or the stride does not fit.
    pub(super) fn new(opened: &'a Opened, stride: Option<usize>) -> anyhow::Result<Self> {
        let config = opened.model.config();
        let window = config.n_positions;
        let stride = stride.unwrap_or(window);
        if !(1..=window).contains(&stride) {
            let given = opened.spelling.given("stride", stride);
            bail!("{given}: expected 1 to the model's context of {window} tokens");
        }
        let tokenizer = opened.tokenizer()?;
        let last = || config.eos_token_id.as_ref().and_then(|ids| ids.as_slice().first().copied());
        let prefix = config.bos_token_id.or_else(last).filter(|&id| (id as usize) < config.vocab_size);
        let prefix = prefix.context(
            "the model's config names neither a bos_token_id nor an eos_token_id of its vocabulary, which an example without a \
             context begins with; add one to its config.json",
        )?;
        Ok(Self { tokenizer, prefix, window, stride, vocab_size: config.vocab_size })
    }

    /// Adds the requests of an example; errors call it `place`.
    pub(super) fn add(
        &self,
        requests: &mut Requests,
        example: &EvalExample,
        place: &str,
    ) -> anyhow::Result<()> {
        let number = requests.of.len();
        let start = requests.list.len();
        match example {
            EvalExample::LastWord { context, target } => {
                let request = self.pair(context, target, number, &mut requests.truncated);
                requests.list.push(request.with_context(|| place.to_owned())?);
            }
            EvalExample::Choices { context, choices, .. } => {
                for choice in choices {
                    let request = self.pair(context, &choice.text, number, &mut requests.truncated);
                    requests.list.push(request.with_context(|| place.to_owned())?);
                }
            }
            EvalExample::Text { text, .. } => {
                let ids = self.encode(text).with_context(|| place.to_owned())?;
                requests.list.extend(self.windows(&ids, number));
            }
        }
        requests.of.push(start..requests.list.len());
        Ok(())
    }

    fn encode(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        let ids = self.tokenizer.encode(text)?;
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.vocab_size) {
            bail!(
                "the tokenizer gives the id {id}, and the model's vocabulary has {} tokens; expected the model's own tokenizer",
                self.vocab_size
            );
        }
        Ok(ids)
    }

    /// A context and what follows it. Both are tokenized together, so that a word keeps its space; white space at the end of the
    /// context counts as the beginning of what follows.
    fn pair(
        &self,
        context: &str,
        continuation: &str,
        example: usize,
        truncated: &mut usize,
    ) -> anyhow::Result<Request> {
        let kept = context.trim_end_matches(is_space);
        let continuation = format!("{}{continuation}", &context[kept.len()..]);
        let (mut ids, end) = if kept.is_empty() {
            self.without_context(self.encode(&continuation)?)
        } else {
            let before = self.encode(kept)?;
            let whole = self.encode(&format!("{kept}{continuation}"))?;
            let end = whole.get(before.len()..).unwrap_or_default().to_vec();
            (before, end)
        };
        if end.is_empty() {
            bail!("{continuation:?} adds no token to its context; expected a text to predict");
        }
        if end.len() > self.window {
            bail!(
                "the text to predict has {} tokens, and the model reads {} at most; shorten it, or take a model with a longer context",
                end.len(),
                self.window
            );
        }
        let predicted = end.len();
        ids.extend(end);
        let most = self.window + 1; // the last one is not read
        if ids.len() > most {
            *truncated += 1;
            ids.drain(..ids.len() - most);
        }
        Ok(Request { ids, predicted, example })
    }

    /// A text behind the model's first token, unless it begins with that.
    fn without_context(&self, mut ids: Vec<u32>) -> (Vec<u32>, Vec<u32>) {
        if ids.first() == Some(&self.prefix) {
            let rest = ids.split_off(1);
            (ids, rest)
        } else {
            (vec![self.prefix], ids)
        }
    }

    /// A text in windows that predict each token once: the first as many as fit, each other one `stride` more, with as much context as
    /// fits.
    fn windows(&self, ids: &[u32], example: usize) -> Vec<Request> {
        let all: Vec<u32> = std::iter::once(self.prefix).chain(ids.iter().copied()).collect();
        let mut windows = vec![];
        let mut done = 0;
        while done < ids.len() {
            let most = if done == 0 { self.window } else { self.stride };
            let predicted = most.min(ids.len() - done);
            done += predicted;
            // One token of context at least; the last window of a text may have more.
            let start = (done + 1).saturating_sub(self.window + 1);
            windows.push(Request { ids: all[start..=done].to_vec(), predicted, example });
        }
        windows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_predict_each_token_once_with_the_most_context() {
        let tokenizer = Tokenizer::gpt2();
        for (window, stride, length) in
            [(4, 4, 11), (4, 1, 9), (4, 3, 8), (4, 4, 4), (4, 2, 3), (1, 1, 3), (4, 4, 0)]
        {
            let encoder =
                RequestEncoder { tokenizer: &tokenizer, prefix: 99, window, stride, vocab_size: 100 };
            let ids: Vec<u32> = (0..length).collect();
            let mut predicted = vec![];
            for Request { ids, predicted: count, .. } in encoder.windows(&ids, 0) {
                assert!(ids.len() <= window + 1 && count < ids.len(), "{window} {stride} {length}: {ids:?}");
                // All of the context, from the first token or as far as the window reaches.
                assert!(ids[0] == 99 || ids.len() == window + 1, "{window} {stride} {length}: {ids:?}");
                predicted.extend_from_slice(&ids[ids.len() - count..]);
            }
            assert_eq!(predicted, ids, "{window} {stride} {length}");
        }
    }
}
