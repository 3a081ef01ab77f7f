//! A Hub on the loopback interface that answers like the Hugging Face Hub, and can produce faults.
// A server that fails ends its test.
#![allow(clippy::unwrap_used)]

pub(crate) mod content;

use content::{Content, file};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, LOCATION, RANGE};
use hyper::http;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::net::TcpListener;

/// The model, its commit and its branch.
pub(crate) const MODEL: &str = "openai-community/gpt2";
/// A data set with the same files.
const DATASET: &str = "Rowan/hellaswag";
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

/// A way in which an answer goes wrong.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fault {
    /// This status, with these headers, instead of the answer.
    Status(u16, Vec<(&'static str, &'static str)>),
    /// A page with status 200 instead of the answer.
    Html,
    /// A page with status 200 and without a Content-Length.
    HtmlOfUnknownLength,
    /// A redirect to a page on another host.
    Elsewhere,
    /// A redirect to the same address.
    Again,
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

/// A fault, where it happens, and how often it still will, if not always.
struct Planned {
    at: At,
    fault: Fault,
    left: Option<usize>,
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
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

/// The server's files, the requests so far, and the planned faults; a test may change them at any time.
pub(crate) struct State {
    address: SocketAddr,
    pub(crate) files: BTreeMap<String, Content>,
    faults: Vec<Planned>,
    /// The requests so far.
    pub(crate) seen: Vec<Seen>,
    /// The bytes of bodies so far.
    pub(crate) sent: u64,
    /// The token that may read the model; `None` for a public model.
    pub(crate) gate: Option<&'static str>,
    /// Whether the answer about the commit lists the files; some mirrors list none.
    pub(crate) lists: bool,
}

impl Server {
    /// Serves `files` as the model's files.
    pub(crate) fn start(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let files = files.into_iter().map(|(name, bytes)| (name, Content::from(bytes))).collect();
        let faults = vec![];
        let seen = vec![];
        let state = State { address, files, faults, seen, sent: 0, gate: None, lists: true };
        let server = Self { address, state: Arc::new(Mutex::new(state)) };
        let state = Arc::clone(&server.state);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(accept(listener, state));
        });
        server
    }

    /// The address to give to a client.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Makes the fault happen `times` times, or always.
    pub(crate) fn fault(&self, at: At, fault: Fault, times: impl Into<Option<usize>>) {
        self.state().faults.push(Planned { at, fault, left: times.into() });
    }

    /// Ends all faults.
    pub(crate) fn heal(&self) {
        self.state().faults.clear();
    }
}

async fn accept(listener: std::net::TcpListener, state: Arc<Mutex<State>>) {
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        // If a connection is to be reset, closing it resets it at once.
        if state.lock().unwrap().faults.iter().any(|planned| matches!(planned.fault, Fault::Reset(_))) {
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

async fn answer(state: &Mutex<State>, request: &Request<Incoming>) -> Answer {
    let mut path: Vec<&str> = request.uri().path().split('/').skip(1).collect();
    match path[..] {
        ["datasets", ..] => drop(path.remove(0)),
        ["api", "datasets", ..] => path[1] = "models",
        _ => {}
    }
    let (at, fault) = state.lock().unwrap().receive(request, &path);
    if fault == Some(Fault::StallHeaders) {
        tokio::time::sleep(Duration::from_hours(1)).await;
    }
    let mut state = state.lock().unwrap();
    let instead = fault.as_ref().and_then(|fault| state.instead(fault));
    instead.unwrap_or_else(|| state.answer(request, &path, at, fault))
}

impl State {
    /// Notes a request; its kind, and the fault that is to happen to it, which is counted down.
    fn receive(&mut self, request: &Request<Incoming>, path: &[&str]) -> (Option<At>, Option<Fault>) {
        self.seen.push(Seen {
            path: request.uri().path().to_string(),
            host: header(request, HOST).unwrap_or_default().to_string(),
            token: token(request).map(str::to_string),
            range: header(request, RANGE).map(str::to_string),
        });
        let of_file = |name| match *request.method() {
            Method::HEAD => At::Head(known(name)),
            _ => At::Get(known(name)),
        };
        let at = match path {
            ["api", "resolve-cache", .., file] => Some(of_file(file)),
            ["api", ..] | [] => Some(At::Api),
            ["storage", ..] => Some(At::Storage),
            // The answer is a redirect to the cache above.
            [_, _, "resolve", _, file @ ..] if self.is_small(&file.join("/")) => None,
            [.., file] => Some(of_file(file)),
        };
        let due = |planned: &&mut Planned| Some(planned.at) == at && planned.left != Some(0);
        let fault = self.faults.iter_mut().find(due).map(|planned| {
            planned.left = planned.left.map(|left| left - 1);
            planned.fault.clone()
        });
        (at, fault)
    }

    fn is_small(&self, file: &str) -> bool {
        self.files.get(file).is_some_and(|content| content.bytes.len() < LARGE)
    }

    /// The answer of a fault that replaces every other, whatever the request.
    fn instead(&self, fault: &Fault) -> Option<Answer> {
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
                let page = format!("http://localhost:{}/login", self.address.port());
                empty(Response::builder().status(StatusCode::FOUND).header(LOCATION, page))
            }
            _ => return None,
        })
    }

    fn answer(
        &mut self,
        request: &Request<Incoming>,
        path: &[&str],
        at: Option<At>,
        fault: Option<Fault>,
    ) -> Answer {
        if fault == Some(Fault::Again) {
            return redirect(request.uri().path());
        }
        if let ["storage", sha256] = path {
            let Some(content) = self.files.values().find(|content| content.sha256 == *sha256) else {
                return refusal(403, "", "no such object");
            };
            // Like the real Hub's: not a hash of the content.
            return file(&mut self.sent, request, &content.bytes, "\"d41d8cd9\"", fault);
        }
        if let ["api", "models", "gpt2", ..] | ["gpt2", ..] = path {
            // A model that has moved: like the real Hub, redirect to a path without a host.
            return redirect(&request.uri().path().replacen("gpt2", MODEL, 1));
        }
        let (model, rest) = match path {
            ["api", "resolve-cache", "models", owner, name, rest @ ..]
            | ["api", "models", owner, name, rest @ ..]
            | [owner, name, rest @ ..] => (format!("{owner}/{name}"), rest),
            _ => return refusal(404, "", ""),
        };
        let token = token(request);
        if ![MODEL, DATASET].contains(&model.as_str()) {
            // The Hub does not tell strangers which models exist.
            let status = if token.is_some() { 404 } else { 401 };
            return refusal(status, "RepoNotFound", "Repository not found");
        }
        // The Hub describes a gated model to everyone, but gives its files only to some.
        match (self.gate.filter(|_| at != Some(At::Api)), token) {
            (Some(_), None) => return refusal(401, "GatedRepo", "Access to this model is restricted"),
            (Some(gate), Some(token)) if gate != token => {
                return refusal(403, "GatedRepo", "You are not in the authorized list");
            }
            _ => {}
        }
        match rest {
            ["revision", revision] | ["resolve", revision, ..] if !is_known(revision) => {
                refusal(404, "RevisionNotFound", "Invalid rev id")
            }
            ["revision", _] => self.commit(),
            ["tree", revision] if is_known(revision) => self.tree(),
            ["resolve", _, name @ ..] if self.is_small(&name.join("/")) => {
                let name = name.join("/");
                redirect(&format!("/api/resolve-cache/models/{MODEL}/{COMMIT}/{name}"))
            }
            ["resolve", _, name @ ..] | [_, name @ ..] => {
                let Some(content) = self.files.get(&name.join("/")) else {
                    return refusal(404, "EntryNotFound", "Entry not found");
                };
                if content.bytes.len() >= LARGE {
                    return self.resolve(content);
                }
                let etag = if fault == Some(Fault::NoHash) { "5f3a-abc" } else { &content.git_sha1 };
                file(&mut self.sent, request, &content.bytes, &format!("\"{etag}\""), fault)
            }
            _ => refusal(404, "EntryNotFound", "Entry not found"),
        }
    }

    fn commit(&self) -> Answer {
        let siblings: Vec<_> = self.files.keys().map(|name| json!({ "rfilename": name })).collect();
        let mut info = json!({ "id": MODEL, "sha": COMMIT, "private": false, "gated": false });
        if self.lists {
            info["siblings"] = siblings.into();
        }
        let info = whole(info.to_string().into());
        Response::builder().header(CONTENT_TYPE, "application/json").body(info).unwrap()
    }

    /// The list of files that Python's `snapshot_download` asks for.
    fn tree(&self) -> Answer {
        let entries = self.files.iter().map(|(name, content)| {
            let size = content.bytes.len();
            let mut entry = json!({ "type": "file", "path": name, "size": size, "oid": content.git_sha1 });
            if size >= LARGE {
                entry["lfs"] = json!({ "oid": content.sha256, "size": size, "pointerSize": 134 });
            }
            entry
        });
        let entries = whole(entries.collect::<serde_json::Value>().to_string().into());
        Response::builder().header(CONTENT_TYPE, "application/json").body(entries).unwrap()
    }

    /// The Hub's answer about a large file: its address and its hash.
    fn resolve(&self, content: &Content) -> Answer {
        let sha256 = &content.sha256;
        // Another name for the same machine, which a client takes for another host.
        let location = format!("http://localhost:{}/storage/{sha256}", self.address.port());
        let answer = Response::builder().status(StatusCode::FOUND).header(LOCATION, location);
        let answer = answer.header("x-repo-commit", COMMIT).header("x-linked-size", content.bytes.len());
        empty(answer.header("x-linked-etag", format!("\"{sha256}\"")))
    }
}

fn header(request: &Request<Incoming>, name: HeaderName) -> Option<&str> {
    request.headers().get(name).map(|value| value.to_str().unwrap())
}

fn token(request: &Request<Incoming>) -> Option<&str> {
    header(request, AUTHORIZATION).map(|value| value.trim_start_matches("Bearer "))
}

fn is_known(revision: &str) -> bool {
    ["main", COMMIT, "refs%2Fconvert%2Fparquet"].contains(&revision)
}

fn refusal(status: u16, code: &str, message: &str) -> Answer {
    let mut answer = Response::builder().status(status);
    if !code.is_empty() {
        answer = answer.header("x-error-code", code).header("x-error-message", message);
    }
    empty(answer)
}

fn redirect(location: &str) -> Answer {
    empty(Response::builder().status(StatusCode::TEMPORARY_REDIRECT).header(LOCATION, location))
}

/// An answer without a body.
fn empty(answer: http::response::Builder) -> Answer {
    answer.body(whole(Bytes::new())).unwrap()
}

fn whole(bytes: Bytes) -> BoxBody<Bytes, std::io::Error> {
    BoxBody::new(Full::new(bytes).map_err(|never| match never {}))
}

fn known(file: &str) -> &'static str {
    let names = "config.json model.safetensors tokenizer.json model.safetensors.index.json pytorch_model.bin \
                 adapter_model.safetensors sae_weights.safetensors";
    names.split(' ').find(|name| *name == file).unwrap_or("another")
}
