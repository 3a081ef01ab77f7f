//! [`Client`]: requests to the Hub, each tried again if that may help.

use super::commit::is_commit;
use super::digest::Digest;
use super::failure::Failure;
use super::model_id::ModelId;
use super::refusal::{About, RequestContext};
use super::shown::{chain, shown};
use super::{Event, Hub};
use crate::error::LoadError;
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use hf_hub::HFClient;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_LENGTH, ETAG, LOCATION, RANGE};
use reqwest::{Method, Response, StatusCode, Url, redirect};
use std::future::Future;
use std::time::Duration;
use tokio::runtime::Runtime;

/// How often a failed request is repeated.
const RETRIES: usize = 3;
/// The longest that a server may ask to wait before the next request.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// The longest that connecting may take: a network that drops packets shows sooner than a slow answer.
const LONGEST_CONNECT: Duration = Duration::from_secs(10);
const MOST_REDIRECTS: usize = 5;
/// Without a token, hf-hub reads one from the environment; a token that no header can hold is never sent.
pub(super) const NO_TOKEN: &str = "\n";
const USER_AGENT: &str = concat!("gpt2-candle/", env!("CARGO_PKG_VERSION"));

/// Talks to one Hub about one model.
pub(crate) struct Client<'a> {
    pub(crate) hub: &'a Hub,
    pub(crate) context: RequestContext<'a>,
    api: HFClient,
    /// Follows redirects; reqwest drops the token when one leads to another host.
    following: reqwest::Client,
    /// Follows no redirects: the headers that describe a large file come with the first answer.
    direct: reqwest::Client,
    runtime: Option<Runtime>,
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

impl<'a> Client<'a> {
    pub(crate) fn new(hub: &'a Hub, model: &'a ModelId) -> Result<Self, LoadError> {
        let url = Url::parse(&hub.endpoint);
        let endpoint = url.as_ref().map_or_else(|_| hub.endpoint.clone(), shown);
        let bad = |reason: String| LoadError::Endpoint { endpoint: endpoint.clone(), reason };
        let url = url.map_err(|e| bad(e.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.cannot_be_a_base() {
            return Err(bad("expected an address that begins with https:// or http://".into()));
        }
        if hub.token.as_ref().is_some_and(|token| !token.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(LoadError::TokenRefused {
                endpoint: endpoint.clone(),
                reason: "it holds characters that no token has".into(),
            });
        }
        let client = |policy| {
            reqwest::Client::builder()
                .user_agent(USER_AGENT)
                .connect_timeout(hub.timeout.min(LONGEST_CONNECT))
                .redirect(policy)
                .build()
                .map_err(|e| bad(chain(e)))
        };
        let following = client(redirect::Policy::limited(MOST_REDIRECTS))?;
        let api = HFClient::builder()
            .endpoint(&hub.endpoint)
            .token(hub.token.as_deref().unwrap_or(NO_TOKEN))
            .user_agent(USER_AGENT)
            .client(following.clone())
            .cache_dir(&hub.cache_dir)
            .retry_max_attempts(0)
            .build()
            .map_err(|e| bad(e.to_string()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = Some(runtime.map_err(|e| bad(e.to_string()))?);
        let direct = client(redirect::Policy::none())?;
        let context =
            RequestContext { endpoint, model, has_token: hub.token.is_some(), timeout: hub.timeout };
        Ok(Self { hub, context, api, following, direct, runtime })
    }

    /// Runs a future that must finish within the timeout.
    pub(crate) fn run<T>(&self, url: &Url, future: impl Future<Output = T>) -> Result<T, Failure> {
        let runtime = self.runtime.as_ref().ok_or_else(|| self.context.timed_out(url))?;
        runtime
            .block_on(async { tokio::time::timeout(self.hub.timeout, future).await })
            .map_err(|_| self.context.timed_out(url))
    }

    /// The commit of a revision.
    pub(crate) fn commit(&self, revision: &str) -> Result<Commit, LoadError> {
        let url = self
            .parse(format!("{}/api/models/{}/revision/{revision}", self.hub.endpoint, self.context.model))?;
        self.retry(|| {
            let repository = self.api.model(self.context.model.owner(), self.context.model.name());
            let info = repository.info().revision(revision);
            let info =
                self.run(&url, info.send())?.map_err(|e| self.context.api_failure(e, &url, revision))?;
            let sha = info.sha.filter(|sha| is_commit(sha)).ok_or_else(|| LoadError::Unexpected {
                url: shown(&url),
                reason: "it names no commit".into(),
            })?;
            Ok(Commit { sha, files: info.siblings.map(|s| s.into_iter().map(|f| f.rfilename).collect()) })
        })
    }

    /// The Hub's description of a commit's file; `None` if the commit has no such file.
    pub(crate) fn announced(&self, commit: &str, name: &str) -> Result<Option<Announced>, LoadError> {
        self.retry(|| {
            let Some(response) = self.head(commit, name)? else { return Ok(None) };
            let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok());
            let url = || shown(response.url());
            let Some(etag) = header("x-linked-etag").or(header(ETAG.as_str())) else {
                let reason = format!("it describes no file (status {})", response.status());
                return Err(Failure::passing(LoadError::Unexpected { url: url(), reason }));
            };
            let etag = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
            let no_hash = || LoadError::NoHash { url: url(), etag: etag.to_string() };
            let digest = Digest::parse(etag).ok_or_else(no_hash)?;
            // The length of a redirect is not the file's.
            let len = header(CONTENT_LENGTH.as_str()).filter(|_| response.status().is_success());
            let size = header("x-linked-size").or(len);
            Ok(Some(Announced { digest, size: size.and_then(|size| size.parse().ok()) }))
        })
    }

    /// Asks for a file's description. Follows redirects within the Hub only: a renamed model gives one, while that
    /// of a large file leads to its storage, which does not describe it.
    fn head(&self, commit: &str, name: &str) -> Result<Option<Response>, Failure> {
        let mut url = self.url(commit, name)?;
        for _ in 0..=MOST_REDIRECTS {
            let request = self.request(&self.direct, Method::HEAD, url.clone());
            let response = self.run(&url, request.send())?.map_err(|e| self.context.failure(e, &url))?;
            let location = response.headers().get(LOCATION).and_then(|l| l.to_str().ok());
            let redirected = response.status().is_redirection() && !is_linked(&response);
            match location.filter(|_| redirected).map(|l| url.join(l)) {
                Some(Ok(next)) if next.origin() == url.origin() => url = next,
                Some(_) => return Ok(Some(response)),
                None if response.status() == StatusCode::NOT_FOUND && entry_is_missing(&response) => {
                    return Ok(None);
                }
                None if response.status().is_success() || is_linked(&response) => return Ok(Some(response)),
                None => {
                    return Err(self.context.refused(response, About { revision: commit, is_file: true }));
                }
            }
        }
        let reason = format!("more than {MOST_REDIRECTS} redirects");
        Err(LoadError::Unexpected { url: shown(&url), reason }.into())
    }

    /// Asks for the bytes of a commit's file from `start` on, up to `end` if there is one.
    pub(crate) fn get(
        &self,
        commit: &str,
        name: &str,
        start: u64,
        end: Option<u64>,
    ) -> Result<Response, Failure> {
        let url = self.url(commit, name)?;
        let mut request = self.request(&self.following, Method::GET, url.clone());
        if start > 0 || end.is_some() {
            let last = end.map_or_else(String::new, |end| (end - 1).to_string());
            request = request.header(RANGE, format!("bytes={start}-{last}"));
        }
        let response = self.run(&url, request.send())?.map_err(|e| self.context.failure(e, &url))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let elsewhere = response.url().origin() != url.origin();
        let failure = self.context.refused(response, About { revision: commit, is_file: true });
        // An address of the storage expires; the Hub gives a new one.
        let retry = failure.retry.or(elsewhere.then_some(Duration::ZERO));
        Err(Failure { retry, ..failure })
    }

    /// The bytes of a commit's file from `start` to `end`, or to the end of the file.
    pub(crate) fn range(&self, commit: &str, name: &str, start: u64, end: u64) -> Result<Vec<u8>, LoadError> {
        self.retry(|| {
            let mut response = self.get(commit, name, start, Some(end))?;
            // A server that ignores the range sends the file from its start.
            let skip = if response.status() == StatusCode::PARTIAL_CONTENT { 0 } else { start };
            let wanted = usize::try_from(skip + end - start).unwrap_or(usize::MAX);
            let mut bytes = vec![];
            while bytes.len() < wanted {
                let Some(chunk) = self.chunk(&mut response)? else { break };
                bytes.extend_from_slice(chunk.as_ref());
            }
            bytes.truncate(wanted);
            bytes.drain(..bytes.len().min(usize::try_from(skip).unwrap_or(usize::MAX)));
            Ok(bytes)
        })
    }

    /// The next bytes of a response; `None` at its end.
    pub(crate) fn chunk(&self, response: &mut Response) -> Result<Option<impl AsRef<[u8]> + use<>>, Failure> {
        let url = response.url().clone();
        self.run(&url, response.chunk())?.map_err(|e| self.context.failure(e, &url))
    }

    fn url(&self, commit: &str, name: &str) -> Result<Url, LoadError> {
        self.parse(format!("{}/{}/resolve/{commit}/{name}", self.hub.endpoint, self.context.model))
    }

    fn parse(&self, url: String) -> Result<Url, LoadError> {
        let failed = |reason: String| LoadError::Endpoint { endpoint: self.context.endpoint.clone(), reason };
        Url::parse(&url).map_err(|e| failed(e.to_string()))
    }

    fn request(&self, client: &reqwest::Client, method: Method, url: Url) -> reqwest::RequestBuilder {
        let request = client.request(method, url).header(ACCEPT_ENCODING, "identity");
        match &self.hub.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Repeats `attempt` while it fails for a reason that may pass.
    fn retry<T>(&self, mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, LoadError> {
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
    pub(crate) fn wait(&self, failure: Failure, delays: &mut ExponentialBackoff) -> Result<(), LoadError> {
        let Failure { error, retry } = failure;
        let Some(delay) = retry.and_then(|asked| Some(delays.next()?.max(asked))) else { return Err(*error) };
        if delay > LONGEST_WAIT {
            return Err(*error);
        }
        self.hub.tell(&Event::Retrying { error: &error, wait: delay });
        std::thread::sleep(delay);
        Ok(())
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        // Does not wait for a name that is still being looked up.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
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
fn entry_is_missing(response: &Response) -> bool {
    response.headers().get("x-error-code").is_some_and(|code| code == "EntryNotFound")
}

/// Whether a response describes a large file.
fn is_linked(response: &Response) -> bool {
    response.headers().contains_key("x-linked-etag")
}
