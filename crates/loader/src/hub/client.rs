//! [`Client`]: requests to the Hub, each tried again if that may help.

use super::address::{Endpoint, Origin, join, shown, without_user};
use super::cache::is_commit;
use super::digest::Digest;
use super::http::{Failure, Http, RequestContext, RequestSubject, Response};
use super::{Event, Hub, ModelId};
use crate::error::hub_error::HubError;
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use hf_hub::api::Siblings;
use serde::Deserialize;
use std::time::Duration;
use ureq::http::header::{AUTHORIZATION, CONTENT_LENGTH, ETAG, LOCATION, RANGE};
use ureq::http::{Method, Request, StatusCode, Uri};

/// The number of times that a failed request is repeated.
const RETRIES: usize = 3;
/// The longest that a server may ask to wait before the next request.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// Python's `huggingface_hub` has the same.
const MOST_REDIRECTS: usize = 20;
/// Bytes of an answer that are read at a time.
pub(super) const CHUNK: usize = 1 << 17;

/// Talks to one Hub about one model.
pub(crate) struct Client<'a> {
    pub(crate) hub: &'a Hub,
    pub(crate) context: RequestContext<'a>,
    endpoint: Endpoint,
    http: Http,
}

/// A commit and the names of its files, if the server lists them.
pub(crate) struct Commit {
    pub(crate) sha: String,
    pub(crate) files: Option<Vec<String>>,
}

/// The Hub's description of a file.
pub(crate) struct Announced {
    pub(crate) digest: Digest,
    pub(crate) size: Option<u64>,
}

impl Announced {
    /// The number of bytes still to come, if the Hub said the file's size.
    pub(crate) fn missing(&self, arrived: u64) -> Option<u64> {
        self.size.map(|size| size.saturating_sub(arrived))
    }
}

/// The Hub's description of a revision.
#[derive(Deserialize)]
struct Info {
    sha: Option<String>,
    siblings: Option<Vec<Siblings>>,
}

impl<'a> Client<'a> {
    pub(crate) fn new(hub: &'a Hub, model: &'a ModelId) -> Result<Self, HubError> {
        let endpoint = Endpoint::parse(&hub.endpoint)
            .map_err(|reason| HubError::Endpoint { endpoint: without_user(&hub.endpoint), reason })?;
        let shown = endpoint.shown().to_string();
        if hub.token.as_ref().is_some_and(|token| !token.bytes().all(|b| b.is_ascii_graphic())) {
            let reason = "it holds characters that no token has".into();
            return Err(HubError::TokenRefused { endpoint: shown, reason });
        }
        let context =
            RequestContext { endpoint: shown, model, has_token: hub.token.is_some(), timeout: hub.timeout };
        Ok(Self { hub, context, endpoint, http: Http::new(hub.timeout) })
    }

    /// The commit of a revision.
    pub(crate) fn commit(&self, revision: &str) -> Result<Commit, HubError> {
        let uri = self.valid(self.endpoint.revision(self.context.model, revision))?;
        self.retry(|| {
            let mut answer = self.follow(&Method::GET, uri.clone(), None, |_, _| true)?;
            if !answer.status.is_success() {
                return Err(self.context.refused(&answer, RequestSubject { revision, is_file: false }));
            }
            let text = answer.text(self.hub.timeout).map_err(|e| self.context.broken(&e, &answer.uri))?;
            let unexpected = |reason| HubError::Unexpected { url: answer.shown(), reason };
            // A login page may be gone at the next try.
            let info: Info = serde_json::from_slice(&text)
                .map_err(|e| Failure::passing(unexpected(format!("it is not the JSON of the Hub: {e}"))))?;
            let sha = info.sha.filter(|sha| is_commit(sha));
            let sha = sha.ok_or_else(|| unexpected("it names no commit".into()))?;
            Ok(Commit { sha, files: info.siblings.map(|s| s.into_iter().map(|f| f.rfilename).collect()) })
        })
    }

    /// The Hub's description of a commit's file; `None` if the commit has no such file.
    pub(crate) fn announced(&self, commit: &str, name: &str) -> Result<Option<Announced>, HubError> {
        self.retry(|| {
            let Some(answer) = self.head(commit, name)? else { return Ok(None) };
            let Some(etag) = answer.header("x-linked-etag").or(answer.header(ETAG.as_str())) else {
                let reason = format!("it describes no file (status {})", answer.status);
                return Err(Failure::passing(HubError::Unexpected { url: answer.shown(), reason }));
            };
            let etag = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
            let no_hash = || HubError::NoHash { url: answer.shown(), etag: etag.to_string() };
            let digest = Digest::parse(etag).ok_or_else(no_hash)?;
            // The length of a redirect is not the file's.
            let len = answer.header(CONTENT_LENGTH.as_str()).filter(|_| answer.status.is_success());
            let size = answer.header("x-linked-size").or(len);
            Ok(Some(Announced { digest, size: size.and_then(|size| size.parse().ok()) }))
        })
    }

    /// Asks for a file's description. Follows redirects within the Hub only, and to another of its addresses: a renamed model
    /// gives one, and a mirror, while that of a large file leads to its storage, which does not describe it.
    fn head(&self, commit: &str, name: &str) -> Result<Option<Response>, Failure> {
        let uri = self.valid(self.endpoint.file(self.context.model, commit, name))?;
        let answer = self.follow(&Method::HEAD, uri, None, |answer, next| {
            !is_linked(answer) && self.endpoint.is_of_the_hub(&answer.uri, next)
        })?;
        if answer.status == StatusCode::NOT_FOUND && entry_is_missing(&answer) {
            return Ok(None);
        }
        if answer.status.is_client_error() || answer.status.is_server_error() {
            return Err(self.context.refused(&answer, RequestSubject { revision: commit, is_file: true }));
        }
        Ok(Some(answer))
    }

    /// Asks for the bytes of a commit's file from `start` on, up to `end` if there is one.
    pub(crate) fn get(
        &self,
        commit: &str,
        name: &str,
        start: u64,
        end: Option<u64>,
    ) -> Result<Response, Failure> {
        let uri = self.valid(self.endpoint.file(self.context.model, commit, name))?;
        let last = end.map_or_else(String::new, |end| (end - 1).to_string());
        let range = (start > 0 || end.is_some()).then(|| format!("bytes={start}-{last}"));
        let answer = self.follow(&Method::GET, uri, range.as_deref(), |_, _| true)?;
        if answer.status.is_success() {
            return Ok(answer);
        }
        let failure = self.context.refused(&answer, RequestSubject { revision: commit, is_file: true });
        // An address of the storage expires; the Hub gives a new one.
        let elsewhere = !self.endpoint.is_origin_of(&answer.uri);
        let retry = failure.retry.or(elsewhere.then_some(Duration::ZERO));
        Err(Failure { retry, ..failure })
    }

    /// Sends a request, and again to the address of each redirect that `onward` wants to follow.
    fn follow(
        &self,
        method: &Method,
        mut uri: Uri,
        range: Option<&str>,
        onward: impl Fn(&Response, &Uri) -> bool,
    ) -> Result<Response, Failure> {
        let begun = uri.clone();
        for _ in 0..=MOST_REDIRECTS {
            let answer = self.send(method, uri, range)?;
            let location = answer.header(LOCATION.as_str()).filter(|_| answer.status.is_redirection());
            match location.and_then(|location| join(&answer.uri, location)) {
                Some(next) if Origin::of(&next).is_some() && onward(&answer, &next) => uri = next,
                _ => return Ok(answer),
            }
        }
        let reason = format!("more than {MOST_REDIRECTS} redirects");
        Err(HubError::Unexpected { url: shown(&begun), reason }.into())
    }

    fn send(&self, method: &Method, uri: Uri, range: Option<&str>) -> Result<Response, Failure> {
        let mut request = Request::builder().method(method).uri(uri.clone());
        if self.endpoint.is_origin_of(&uri) {
            let token = self.hub.token.as_ref().map(|token| format!("Bearer {token}"));
            if let Some(value) = token.as_ref().or(self.endpoint.authorization.as_ref()) {
                request = request.header(AUTHORIZATION, value);
            }
        }
        if let Some(range) = range {
            request = request.header(RANGE, range);
        }
        let request = request.body(()).map_err(|e| self.context.unanswered(&e.into(), &uri))?;
        self.http.send(request).map_err(|e| self.context.unanswered(&e, &uri))
    }

    /// The bytes of a commit's file from `start` to `end`, or to the end of the file.
    pub(crate) fn range(&self, commit: &str, name: &str, start: u64, end: u64) -> Result<Vec<u8>, HubError> {
        self.retry(|| {
            let mut answer = self.get(commit, name, start, Some(end))?;
            // A server that ignores the range sends the file from its start.
            let skip = if answer.status == StatusCode::PARTIAL_CONTENT { 0 } else { start };
            let wanted = usize::try_from(skip + end - start).unwrap_or(usize::MAX);
            let mut bytes = self.beginning(&mut answer, wanted)?;
            bytes.truncate(wanted);
            bytes.drain(..bytes.len().min(usize::try_from(skip).unwrap_or(usize::MAX)));
            Ok(bytes)
        })
    }

    /// The next bytes of an answer, put into `buffer`; none at its end.
    pub(crate) fn chunk<'b>(&self, answer: &mut Response, buffer: &'b mut [u8]) -> Result<&'b [u8], Failure> {
        let read = answer.read(buffer).map_err(|e| self.context.broken(&e, &answer.uri))?;
        Ok(&buffer[..read])
    }

    /// The first bytes of an answer: `limit` of them or a few more, or all.
    pub(crate) fn beginning(&self, answer: &mut Response, limit: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![];
        let mut buffer = vec![0; CHUNK];
        while bytes.len() < limit {
            match self.chunk(answer, &mut buffer)? {
                [] => break,
                chunk => bytes.extend_from_slice(chunk),
            }
        }
        Ok(bytes)
    }

    fn valid(&self, uri: Result<Uri, String>) -> Result<Uri, HubError> {
        uri.map_err(|reason| HubError::Endpoint { endpoint: self.context.endpoint.clone(), reason })
    }

    /// Repeats `attempt` while it fails for a reason that may pass.
    fn retry<T>(&self, mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, HubError> {
        let mut delays = delays();
        loop {
            let failure = match attempt() {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            self.wait(failure, &mut delays)?;
        }
    }

    /// Sleeps before the next try, or gives up with the failure's error.
    pub(crate) fn wait(&self, failure: Failure, delays: &mut ExponentialBackoff) -> Result<(), HubError> {
        let Failure { error, retry } = failure;
        let Some(delay) = retry.and_then(|asked| Some(delays.next()?.max(asked))) else { return Err(*error) };
        if delay > LONGEST_WAIT {
            return Err(*error);
        }
        self.hub.tell(&Event::Retrying { error: &error, wait: delay })?;
        std::thread::sleep(delay);
        Ok(())
    }
}

/// Half a second, then twice as long each time, each up to twice as long again at random.
pub(crate) fn delays() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(500))
        .with_jitter()
        .with_max_times(RETRIES)
        .build()
}

/// Whether the Hub says that the commit has no such file. A 404 without that code does not: a proxy may have sent
/// it.
fn entry_is_missing(answer: &Response) -> bool {
    answer.header("x-error-code") == Some("EntryNotFound")
}

/// Whether an answer describes a large file.
fn is_linked(answer: &Response) -> bool {
    answer.header("x-linked-etag").is_some()
}

#[cfg(test)]
mod tests {
    use super::{Announced, Digest};

    #[test]
    fn the_rest_of_a_download_is_what_is_missing() {
        let digest = Digest::parse(&"0".repeat(64)).unwrap();
        let file = Announced { digest, size: Some(100) };
        assert_eq!((file.missing(0), file.missing(30), file.missing(100)), (Some(100), Some(70), Some(0)));
        // More is there than the Hub said.
        assert_eq!(file.missing(130), Some(0));
        assert_eq!(Announced { size: None, ..file }.missing(30), None);
    }
}
