//! Documents cut into windows that the model can read, and the batches that they make.

use std::ops::Range;

/// The most tokens of a batch, padding included.
const TOKENS: usize = 2048;
/// The most rows of a batch.
const ROWS: usize = 64;

/// A part of a document that the model reads at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentWindow {
    /// The document, by its place in the section.
    pub document: usize,
    /// The part, in tokens.
    pub tokens: Range<usize>,
    /// The number of tokens at its start that are context alone: an earlier window has predicted them.
    pub context: usize,
}

/// The windows of documents with these numbers of tokens.
#[must_use]
pub fn windows(lengths: &[usize], context: usize, stride: usize) -> Vec<DocumentWindow> {
    let mut windows = vec![];
    for (document, &length) in lengths.iter().enumerate().filter(|(_, length)| **length > 0) {
        let (mut start, mut done) = (0, 0);
        loop {
            let end = (start + context).min(length);
            windows.push(DocumentWindow { document, tokens: start..end, context: done - start });
            if end == length {
                break;
            }
            (start, done) = (start + stride, end);
        }
    }
    windows
}

/// The windows of each batch, shortest first. They depend on nothing but the windows, and on which numbers of tokens may
/// share a batch.
pub fn batches(windows: &[DocumentWindow], alike: impl Fn(usize, usize) -> bool) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..windows.len()).collect();
    order.sort_by_key(|&i| windows[i].tokens.len());
    let mut batches: Vec<Vec<usize>> = vec![];
    for i in order {
        let longest = windows[i].tokens.len();
        match batches.last_mut() {
            Some(batch)
                if batch.len() < ROWS
                    && (batch.len() + 1) * longest <= TOKENS
                    && alike(windows[batch[0]].tokens.len(), longest) =>
            {
                batch.push(i);
            }
            _ => batches.push(vec![i]),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_is_predicted_once_with_as_much_context_as_there_is() {
        for (context, stride) in [(8, 4), (8, 7), (8, 1), (8, 5), (2, 1)] {
            for length in 1..40 {
                let windows = windows(&[0, length], context, stride);
                let mut predicted = vec![];
                for DocumentWindow { document, tokens, context: before } in windows {
                    assert!(document == 1 && tokens.len() <= context && tokens.end <= length);
                    // Only the first token of a document has none before it.
                    assert_eq!(tokens.start == 0, before == 0, "{context} {stride} {length}");
                    assert!(before == 0 || before == context - stride, "{context} {stride} {length}");
                    predicted.extend(tokens.start + before..tokens.end);
                }
                assert_eq!(predicted, (0..length).collect::<Vec<_>>(), "{context} {stride} {length}");
            }
        }
    }

    #[test]
    fn every_window_is_in_one_batch_of_windows_of_its_length() {
        let lengths: Vec<usize> = (1..400).map(|i| i * 7919 % 1024 + 1).collect();
        let windows = windows(&lengths, 1024, 512);
        let batches = batches(&windows, |a, b| (a == 300) == (b == 300));
        let mut all: Vec<usize> = batches.concat();
        all.sort_unstable();
        assert_eq!(all, (0..399).collect::<Vec<_>>());
        for batch in batches {
            let lengths: Vec<usize> = batch.iter().map(|i| windows[*i].tokens.len()).collect();
            assert!(lengths.is_sorted() && lengths.len() <= ROWS);
            assert!(lengths.len() * lengths[lengths.len() - 1] <= TOKENS);
            assert!(lengths.iter().all(|t| (*t == 300) == (lengths[0] == 300)), "{lengths:?}");
        }
    }
}
