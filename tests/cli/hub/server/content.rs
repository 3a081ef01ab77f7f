//! A file's content as it goes over the wire, including faults.

use super::{Answer, COMMIT, Fault, empty, header};
use http_body_util::combinators::BoxBody;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_NONE_MATCH, RANGE};
use hyper::{Method, Request, Response, StatusCode};
use sha2::Digest as _;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Sleep;

/// A file's content and its hashes.
#[derive(Clone)]
pub(crate) struct Content {
    pub(crate) bytes: Bytes,
    pub(crate) sha256: String,
    pub(crate) git_sha1: String,
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        Self { sha256: sha256_of(&bytes), git_sha1: git_sha1_of(&bytes), bytes: bytes.into() }
    }
}

/// A file's content, or the requested range of it, including faults; adds its bytes to `sent`.
pub(super) fn file(
    sent: &mut u64,
    request: &Request<Incoming>,
    content: &Bytes,
    etag: &str,
    fault: Option<Fault>,
) -> Answer {
    let mut answer = Response::builder().header("x-repo-commit", COMMIT).header(ETAG, etag);
    if header(request, IF_NONE_MATCH) == Some(etag) {
        return empty(answer.status(StatusCode::NOT_MODIFIED));
    }
    let range = header(request, RANGE)
        .filter(|_| !matches!(fault, Some(Fault::NoRanges | Fault::CutWithoutRanges(_))));
    let (start, end) = match range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) {
        Some((start, last)) => {
            let end = last.parse::<usize>().map_or(content.len(), |last| (last + 1).min(content.len()));
            (start.parse::<usize>().unwrap(), end)
        }
        None => (0, content.len()),
    };
    if start >= end && range.is_some() {
        return empty(answer.status(StatusCode::RANGE_NOT_SATISFIABLE));
    }
    if range.is_some() {
        answer = answer
            .status(StatusCode::PARTIAL_CONTENT)
            .header(CONTENT_RANGE, format!("bytes {start}-{}/{}", end - 1, content.len()));
    }
    answer = answer.header(ACCEPT_RANGES, "bytes");
    let bytes = content.slice(start..end);
    let len = bytes.len();
    let part = |percent: usize| Step::Send(bytes.slice(..len * percent / 100));
    let pause = Step::Pause(Duration::from_millis(50));
    let mut promised = Some(len);
    let steps = match fault {
        Some(Fault::Drop(at) | Fault::Reset(at) | Fault::CutWithoutRanges(at)) => {
            vec![part(at), pause, Step::Fail]
        }
        Some(Fault::LengthTooLarge) => {
            promised = Some(len + 1000);
            vec![part(100), pause, Step::Fail]
        }
        Some(Fault::LengthTooSmall) => {
            let less = len - 1000.min(len / 2);
            promised = Some(less);
            vec![Step::Send(bytes.slice(..less))]
        }
        Some(Fault::ShortBody) => {
            promised = None;
            vec![part(50)]
        }
        Some(Fault::NoLength) => {
            promised = None;
            vec![part(100)]
        }
        Some(Fault::Flip) => {
            let mut wrong = bytes.to_vec();
            wrong[len / 2] ^= 1;
            vec![Step::Send(wrong.into())]
        }
        Some(Fault::StallBody(at)) => vec![part(at), Step::Pause(Duration::from_hours(1))],
        Some(Fault::Drip(pieces, pause)) => {
            let piece = |i: usize| Step::Send(bytes.slice(i * len / pieces..(i + 1) * len / pieces));
            (0..pieces).flat_map(|i| [piece(i), Step::Pause(pause)]).collect()
        }
        _ => vec![part(100)],
    };
    if let Some(promised) = promised {
        answer = answer.header(CONTENT_LENGTH, promised);
    }
    if request.method() == Method::HEAD {
        return empty(answer);
    }
    *sent += len as u64;
    answer.body(BoxBody::new(Script { steps: steps.into(), pause: None })).unwrap()
}

/// A body that does not announce its length.
pub(super) fn of_unknown_length(bytes: Bytes) -> BoxBody<Bytes, std::io::Error> {
    BoxBody::new(Script { steps: VecDeque::from([Step::Send(bytes)]), pause: None })
}

/// The steps that a body takes, in order.
struct Script {
    steps: VecDeque<Step>,
    pause: Option<Pin<Box<Sleep>>>,
}

enum Step {
    Send(Bytes),
    Pause(Duration),
    Fail,
}

impl Body for Script {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        loop {
            if let Some(pause) = &mut self.pause {
                if pause.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                self.pause = None;
            }
            match self.steps.pop_front() {
                Some(Step::Send(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Some(Step::Pause(pause)) => self.pause = Some(Box::pin(tokio::time::sleep(pause))),
                Some(Step::Fail) => return Poll::Ready(Some(Err(std::io::Error::other("as told")))),
                None => return Poll::Ready(None),
            }
        }
    }
}

pub(crate) fn sha256_of(bytes: &[u8]) -> String {
    hex::encode(sha2::Sha256::digest(bytes))
}

pub(crate) fn git_sha1_of(bytes: &[u8]) -> String {
    let hash = sha1::Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes);
    hex::encode(hash.finalize())
}
