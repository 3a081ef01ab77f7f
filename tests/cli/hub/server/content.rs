//! A file's content as it goes over the wire, including faults.

use super::{Answer, COMMIT, Fault, State, whole};
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
pub(super) struct Content {
    pub(super) bytes: Bytes,
    pub(super) sha256: String,
    pub(super) git_sha1: String,
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        Self { sha256: sha256_of(&bytes), git_sha1: git_sha1_of(&bytes), bytes: bytes.into() }
    }
}

/// A file's content, or the requested range of it, including faults.
pub(super) fn file(
    state: &State,
    request: &Request<Incoming>,
    content: &Bytes,
    etag: &str,
    fault: Option<Fault>,
) -> Answer {
    let header = |name| request.headers().get(name).map(|v: &hyper::header::HeaderValue| v.to_str().unwrap());
    let mut answer = Response::builder().header("x-repo-commit", COMMIT).header(ETAG, etag);
    if header(IF_NONE_MATCH) == Some(etag) {
        return answer.status(StatusCode::NOT_MODIFIED).body(whole(Bytes::new())).unwrap();
    }
    let range =
        header(RANGE).filter(|_| !matches!(fault, Some(Fault::NoRanges | Fault::CutWithoutRanges(_))));
    let (start, end) = match range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) {
        Some((start, last)) => {
            let end = last.parse::<usize>().map_or(content.len(), |last| (last + 1).min(content.len()));
            (start.parse::<usize>().unwrap(), end)
        }
        None => (0, content.len()),
    };
    if start >= end && range.is_some() {
        return answer.status(StatusCode::RANGE_NOT_SATISFIABLE).body(whole(Bytes::new())).unwrap();
    }
    if range.is_some() {
        answer = answer
            .status(StatusCode::PARTIAL_CONTENT)
            .header(CONTENT_RANGE, format!("bytes {start}-{}/{}", end - 1, content.len()));
    }
    answer = answer.header(ACCEPT_RANGES, "bytes");
    let mut bytes = content.slice(start..end);
    let len = bytes.len();
    let part = |percent: usize| len * percent / 100;
    let mut promised = Some(len);
    let mut steps = VecDeque::new();
    match fault {
        Some(Fault::Drop(at) | Fault::Reset(at) | Fault::CutWithoutRanges(at)) => {
            steps.extend([
                Step::Send(bytes.slice(..part(at))),
                Step::Pause(Duration::from_millis(50)),
                Step::Fail,
            ]);
        }
        Some(Fault::LengthTooLarge) => {
            promised = Some(len + 1000);
            steps.extend([Step::Send(bytes), Step::Pause(Duration::from_millis(50)), Step::Fail]);
        }
        Some(Fault::LengthTooSmall) => {
            promised = Some(len - 1000.min(len / 2));
            steps.push_back(Step::Send(bytes.slice(..promised.unwrap())));
        }
        Some(Fault::ShortBody) => {
            promised = None;
            steps.push_back(Step::Send(bytes.slice(..len / 2)));
        }
        Some(Fault::NoLength) => {
            promised = None;
            steps.push_back(Step::Send(bytes));
        }
        Some(Fault::Flip) => {
            let mut wrong = bytes.to_vec();
            wrong[len / 2] ^= 1;
            bytes = wrong.into();
            steps.push_back(Step::Send(bytes));
        }
        Some(Fault::StallBody(at)) => {
            steps.extend([Step::Send(bytes.slice(..part(at))), Step::Pause(Duration::from_hours(1))]);
        }
        Some(Fault::Drip(pieces, pause)) => {
            for piece in 0..pieces {
                let piece = bytes.slice(piece * len / pieces..(piece + 1) * len / pieces);
                steps.extend([Step::Send(piece), Step::Pause(pause)]);
            }
        }
        _ => steps.push_back(Step::Send(bytes)),
    }
    if let Some(promised) = promised {
        answer = answer.header(CONTENT_LENGTH, promised);
    }
    if request.method() == Method::HEAD {
        return answer.body(whole(Bytes::new())).unwrap();
    }
    *state.sent.lock().unwrap() += len as u64;
    answer.body(BoxBody::new(Script { steps, pause: None })).unwrap()
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
