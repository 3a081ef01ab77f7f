//! A Hub on the loopback interface that answers like the Hugging Face Hub, and can produce faults.
// A server that fails ends its test.
#![allow(clippy::unwrap_used)]

pub(crate) mod content;

use content::{Content, file};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, LOCATION, RANGE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

/// The model, its commit and its branch.
pub(crate) const MODEL: &str = "openai-community/gpt2";
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Files of at least this size are in large file storage.
const LARGE: usize = 100_000;

/// The requests that a fault affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// Requests for the commit of a revision.
    Api,
    /// HEAD of a file.
    Head(&'static str),
    /// GET of a file from the Hub.
    Get(&'static str),
    /// GET of a large file from its storage.
    Storage,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fault {
    /// This status, with these headers, instead of the answer.
    Status(u16, Vec<(&'static str, &'static str)>),
    /// A page with status 200 instead of the answer.
    Html,
    /// The same without a Content-Length.
    HtmlOfUnknownLength,
    /// A redirect to a page on another host.
    Elsewhere,
    /// The connection ends after this many percent of the body.
    Drop(usize),
    /// The connection is reset after this many percent of the body.
    Reset(usize),
    /// The header promises more bytes than arrive.
    LengthTooLarge,
    /// The header promises fewer bytes than the file has, and no more arrive.
    LengthTooSmall,
    /// Half the body, as if it were complete.
    ShortBody,
    /// No Content-Length.
    NoLength,
    /// One byte is wrong.
    Flip,
    /// The server falls silent after this many percent of the body.
    StallBody(usize),
    /// The server does not answer at all.
    StallHeaders,
    /// The body arrives in this many pieces, with a pause after each.
    Drip(usize, Duration),
    /// The server ignores the range.
    NoRanges,
    /// The server ignores the range, and the connection ends after this many percent.
    CutWithoutRanges(usize),
    /// The `ETag` is not a hash of the content.
    NoHash,
}

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) host: String,
    pub(crate) token: Option<String>,
    pub(crate) range: Option<String>,
}

/// A server that ends with the test.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

struct State {
    address: SocketAddr,
    files: Mutex<BTreeMap<String, Content>>,
    faults: Mutex<Vec<(At, Fault, Option<usize>)>>,
    seen: Mutex<Vec<Seen>>,
    sent: Mutex<u64>,
    /// The token that may read the model; `None` for a public model.
    gate: Mutex<Option<&'static str>>,
    /// Whether the answer about the commit lists the files.
    lists: Mutex<bool>,
}

impl Server {
    /// Serves `files` as the model's files.
    pub(crate) fn start(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        let (sender, receiver) = std::sync::mpsc::channel();
        let files = files.into_iter().map(|(name, bytes)| (name, Content::from(bytes))).collect();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let state = Arc::new(State {
                    address: listener.local_addr().unwrap(),
                    files: Mutex::new(files),
                    faults: Mutex::new(vec![]),
                    seen: Mutex::new(vec![]),
                    sent: Mutex::new(0),
                    gate: Mutex::new(None),
                    lists: Mutex::new(true),
                });
                sender.send(Arc::clone(&state)).unwrap();
                accept(listener, state).await;
            });
        });
        let state = receiver.recv().unwrap();
        Self { address: state.address, state }
    }

    /// The address to give to a client.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Makes the fault happen `times` times, or always.
    pub(crate) fn fault(&self, at: At, fault: Fault, times: impl Into<Option<usize>>) {
        self.state.faults.lock().unwrap().push((at, fault, times.into()));
    }

    /// Ends all faults.
    pub(crate) fn heal(&self) {
        self.state.faults.lock().unwrap().clear();
    }

    /// The requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// The bytes of bodies so far.
    pub(crate) fn sent(&self) -> u64 {
        *self.state.sent.lock().unwrap()
    }

    /// Serves the model only to clients with this token.
    pub(crate) fn gate(&self, token: &'static str) {
        *self.state.gate.lock().unwrap() = Some(token);
    }

    /// Lists no files with the commit, as some mirrors do.
    pub(crate) fn list_nothing(&self) {
        *self.state.lists.lock().unwrap() = false;
    }

    pub(crate) fn remove(&self, file: &str) {
        self.state.files.lock().unwrap().remove(file);
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        // If a connection is to be reset, closing it resets it at once.
        if state.faults.lock().unwrap().iter().any(|(_, fault, _)| matches!(fault, Fault::Reset(_))) {
            stream.set_zero_linger().unwrap();
        }
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let state = Arc::clone(&state);
                async move { Ok::<_, Infallible>(answer(&state, &request).await) }
            });
            // This is how a body that fails on purpose ends its connection.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

type Answer = Response<BoxBody<Bytes, std::io::Error>>;

/// The fault that replaces the answer, whatever the request.
async fn instead(state: &State, fault: &Fault) -> Option<Answer> {
    Some(match fault {
        Fault::Status(status, headers) => {
            let mut answer = refusal(*status, "", "");
            for (name, value) in headers {
                answer.headers_mut().insert(*name, value.parse().unwrap());
            }
            answer
        }
        Fault::Html => {
            let page = "<!DOCTYPE html><html><title>Log in to the hotel's network</title></html>";
            Response::builder().header(CONTENT_TYPE, "text/html").body(whole(page.into())).unwrap()
        }
        Fault::HtmlOfUnknownLength => {
            let page = Bytes::from_static(b"<html>Log in to the hotel's network</html>");
            Response::builder().body(content::of_unknown_length(page)).unwrap()
        }
        Fault::Elsewhere => {
            let page = format!("http://localhost:{}/login", state.address.port());
            let answer = Response::builder().status(StatusCode::FOUND).header(LOCATION, page);
            answer.body(whole(Bytes::new())).unwrap()
        }
        Fault::StallHeaders => {
            tokio::time::sleep(Duration::from_hours(1)).await;
            return None;
        }
        _ => return None,
    })
}

async fn answer(state: &State, request: &Request<Incoming>) -> Answer {
    let header = |name| {
        request.headers().get(name).map(|v: &hyper::header::HeaderValue| v.to_str().unwrap().to_string())
    };
    let path = request.uri().path().to_string();
    let token = header(AUTHORIZATION).map(|value| value.trim_start_matches("Bearer ").to_string());
    state.seen.lock().unwrap().push(Seen {
        path: path.clone(),
        host: header(hyper::header::HOST).unwrap_or_default(),
        token: token.clone(),
        range: header(RANGE),
    });
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let is_small =
        |name: &str| state.files.lock().unwrap().get(name).is_some_and(|content| content.bytes.len() < LARGE);
    let of_file = |name| match *request.method() {
        Method::HEAD => At::Head(known(name)),
        _ => At::Get(known(name)),
    };
    let at = match parts.as_slice() {
        ["api", "resolve-cache", .., file] => Some(of_file(file)),
        ["api", ..] | [] => Some(At::Api),
        ["storage", ..] => Some(At::Storage),
        // The answer is a redirect to the cache above.
        [_, _, "resolve", _, file] if is_small(file) => None,
        [.., file] => Some(of_file(file)),
    };
    let fault = at.and_then(|at| take(state, at));
    if let Some(fault) = &fault
        && let Some(answer) = instead(state, fault).await
    {
        return answer;
    }
    if let ["storage", sha256] = parts.as_slice() {
        let files = state.files.lock().unwrap();
        let content = files.values().find(|content| content.sha256 == *sha256);
        return match content {
            // Like the real Hub's: not a hash of the content.
            Some(content) => file(state, request, &content.bytes, "\"d41d8cd9\"", fault),
            None => refusal(403, "", "no such object"),
        };
    }
    if matches!(parts.as_slice(), ["api", "models", "gpt2", ..] | ["gpt2", ..]) {
        // A model that has moved: like the real Hub, redirect to a path without a host.
        let location = path.replacen("gpt2", MODEL, 1);
        let answer = Response::builder().status(StatusCode::TEMPORARY_REDIRECT).header(LOCATION, location);
        return answer.body(whole(Bytes::new())).unwrap();
    }
    let (model, rest) = match parts.as_slice() {
        ["api", "resolve-cache", "models", owner, name, rest @ ..]
        | ["api", "models", owner, name, rest @ ..]
        | [owner, name, rest @ ..] => (format!("{owner}/{name}"), rest),
        _ => return refusal(404, "", ""),
    };
    // The Hub describes a gated model to everyone, but gives its files only to some.
    let gate = state.gate.lock().unwrap().filter(|_| at != Some(At::Api));
    if model != MODEL {
        // The Hub does not tell strangers which models exist.
        let status = if token.is_some() { 404 } else { 401 };
        return refusal(status, "RepoNotFound", "Repository not found");
    }
    match (gate, token.as_deref()) {
        (Some(_), None) => return refusal(401, "GatedRepo", "Access to this model is restricted"),
        (Some(gate), Some(token)) if gate != token => {
            return refusal(403, "GatedRepo", "You are not in the authorized list");
        }
        _ => {}
    }
    match rest {
        ["revision", revision] => commit(state, revision),
        ["resolve", revision, _] if !is_known(revision) => refusal(404, "RevisionNotFound", "Invalid rev id"),
        ["resolve", _, name] if is_small(name) => {
            let location = format!("/api/resolve-cache/models/{MODEL}/{COMMIT}/{name}");
            let answer =
                Response::builder().status(StatusCode::TEMPORARY_REDIRECT).header(LOCATION, location);
            answer.body(whole(Bytes::new())).unwrap()
        }
        ["resolve", _, name] | [_, name] => {
            let files = state.files.lock().unwrap();
            let Some(content) = files.get(*name) else {
                return refusal(404, "EntryNotFound", "Entry not found");
            };
            if content.bytes.len() >= LARGE {
                return resolve(state, content);
            }
            let etag = if fault == Some(Fault::NoHash) { "5f3a-abc" } else { &content.git_sha1 };
            file(state, request, &content.bytes, &format!("\"{etag}\""), fault)
        }
        _ => refusal(404, "EntryNotFound", "Entry not found"),
    }
}

fn is_known(revision: &str) -> bool {
    revision == "main" || revision == COMMIT
}

fn commit(state: &State, revision: &str) -> Answer {
    if !is_known(revision) {
        return refusal(404, "RevisionNotFound", "Invalid rev id");
    }
    let files = state.files.lock().unwrap();
    let siblings: Vec<_> = files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
    let mut info = serde_json::json!({ "id": MODEL, "sha": COMMIT, "private": false, "gated": false });
    if *state.lists.lock().unwrap() {
        info["siblings"] = siblings.into();
    }
    Response::builder().header(CONTENT_TYPE, "application/json").body(whole(info.to_string().into())).unwrap()
}

/// The Hub's answer about a large file: its address and its hash.
fn resolve(state: &State, content: &Content) -> Answer {
    let sha256 = &content.sha256;
    // Another name for the same machine, which a client takes for another host.
    let location = format!("http://localhost:{}/storage/{sha256}", state.address.port());
    Response::builder()
        .status(StatusCode::FOUND)
        .header(LOCATION, location)
        .header("x-repo-commit", COMMIT)
        .header("x-linked-size", content.bytes.len())
        .header("x-linked-etag", format!("\"{sha256}\""))
        .body(whole(Bytes::new()))
        .unwrap()
}

fn refusal(status: u16, code: &str, message: &str) -> Answer {
    let mut answer = Response::builder().status(status);
    if !code.is_empty() {
        answer = answer.header("x-error-code", code).header("x-error-message", message);
    }
    answer.body(whole(Bytes::new())).unwrap()
}

fn whole(bytes: Bytes) -> BoxBody<Bytes, std::io::Error> {
    BoxBody::new(Full::new(bytes).map_err(|never| match never {}))
}

/// The fault for this request, if any; counts it down.
fn take(state: &State, at: At) -> Option<Fault> {
    let mut faults = state.faults.lock().unwrap();
    let (_, fault, left) =
        faults.iter_mut().find(|(place, _, left)| *place == at && left.is_none_or(|left| left > 0))?;
    if let Some(left) = left {
        *left -= 1;
    }
    Some(fault.clone())
}

fn known(file: &str) -> &'static str {
    [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "adapter_model.safetensors",
    ]
    .into_iter()
    .find(|name| *name == file)
    .unwrap_or("another")
}
