//! [`Failure`]: what an answer that is none means, and whether to ask again.

use super::MAIN;
use super::client::Client;
use crate::LoadError;
use hf_hub::HFError;
use reqwest::header::RETRY_AFTER;
use reqwest::{Response, StatusCode, Url};
use std::error::Error;
use std::time::Duration;

/// Why one try failed, and whether another may do better.
pub(super) struct Failure {
    pub(super) error: Box<LoadError>,
    /// How long to wait at least before another try; `None` where none would help.
    pub(super) retry: Option<Duration>,
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        Self { error: Box::new(error), retry: None }
    }
}

impl Failure {
    /// A failure that may pass.
    pub(super) fn passing(error: LoadError) -> Self {
        Self { error: Box::new(error), retry: Some(Duration::ZERO) }
    }
}

/// What a request was about: a revision of the model, or one of its files.
#[derive(Clone, Copy)]
pub(super) struct About<'a> {
    pub(super) revision: &'a str,
    pub(super) is_file: bool,
}

struct Refusal {
    status: StatusCode,
    code: Option<String>,
    message: Option<String>,
    wait: Option<Duration>,
    url: String,
}

impl Client<'_> {
    pub(super) fn refused(&self, response: Response, about: About<'_>) -> Failure {
        let header = |name: &str| response.headers().get(name)?.to_str().ok().map(str::to_string);
        let refusal = Refusal {
            status: response.status(),
            code: header("x-error-code"),
            message: header("x-error-message"),
            wait: header("ratelimit").and_then(|limits| used_up(&limits)).or_else(|| {
                header(RETRY_AFTER.as_str()).and_then(|s| s.trim().parse().ok()).map(Duration::from_secs)
            }),
            url: shown(response.url()),
        };
        self.refusal(refusal, about)
    }

    pub(super) fn api_failure(&self, error: HFError, url: &Url, revision: &str) -> Failure {
        let (context, wait) = match error {
            HFError::Http { context }
            | HFError::AuthRequired { context }
            | HFError::Forbidden { context }
            | HFError::Conflict { context }
            | HFError::RepoNotFound { context: Some(context), .. }
            | HFError::RevisionNotFound { context: Some(context), .. } => (context, None),
            HFError::RateLimited { context, retry_after } => (context, retry_after),
            HFError::Request { source, .. } => return self.failure(source, url),
            other => {
                let reason = other.to_string();
                return LoadError::Unexpected { url: shown(url), reason }.into();
            }
        };
        let refusal = Refusal {
            status: context.status,
            code: context.error_code,
            message: context.server_message,
            wait,
            url: shown(url),
        };
        self.refusal(refusal, About { revision, is_file: false })
    }

    /// The error of an answer that is none of what was asked for.
    fn refusal(&self, refusal: Refusal, about: About<'_>) -> Failure {
        let Refusal { status, code, message, wait, url } = refusal;
        let model = self.model.to_string();
        let has_token = self.hub.token.is_some();
        let message = message.unwrap_or_default();
        let code = code.unwrap_or_default();
        let error = match (status.as_u16(), code.as_str()) {
            (_, "GatedRepo") => LoadError::Gated { model, has_token, message },
            (_, "RevisionNotFound") => LoadError::RevisionNotFound { model, revision: about.revision.into() },
            (401, _) if has_token => LoadError::TokenRefused {
                endpoint: self.endpoint.clone(),
                reason: if message.is_empty() { status.to_string() } else { message },
            },
            (401, _) | (_, "RepoNotFound") => {
                LoadError::ModelNotFound { model, endpoint: self.endpoint.clone(), has_token }
            }
            // A server that is not the Hub itself may not say what it is that is not there.
            (404, _) if !about.is_file && about.revision == MAIN => {
                LoadError::ModelNotFound { model, endpoint: self.endpoint.clone(), has_token }
            }
            (404, _) if !about.is_file => {
                LoadError::RevisionNotFound { model, revision: about.revision.into() }
            }
            (429, _) => {
                let wait_s = wait.map(|w| w.as_secs());
                let error = LoadError::RateLimited { endpoint: self.endpoint.clone(), wait_s, has_token };
                return Failure { error: Box::new(error), retry: Some(wait.unwrap_or_default()) };
            }
            (408 | 500..=599, _) => {
                let error = LoadError::Server { url, status: status.to_string(), message };
                return Failure { error: Box::new(error), retry: Some(wait.unwrap_or_default()) };
            }
            // A bare 404 for a file may be a proxy's.
            (404, _) => {
                return Failure::passing(LoadError::Refused { url, status: status.to_string(), message });
            }
            _ => LoadError::Refused { url, status: status.to_string(), message },
        };
        error.into()
    }

    /// The error of a request without a whole answer.
    pub(super) fn failure(&self, error: reqwest::Error, url: &Url) -> Failure {
        let unexpected = |reason| LoadError::Unexpected { url: shown(url), reason };
        if error.is_connect() {
            let endpoint = self.endpoint.clone();
            Failure::passing(LoadError::NoNetwork { endpoint, reason: chain(error) })
        } else if error.is_timeout() {
            self.timed_out(url)
        } else if is_not_json(&error) {
            Failure::passing(unexpected(chain(error)))
        } else if error.is_redirect() || error.is_builder() {
            unexpected(chain(error)).into()
        } else {
            Failure::passing(LoadError::Interrupted { url: shown(url), reason: chain(error) })
        }
    }
}

/// An address without what is secret in it: a password, or the signature of a storage's address.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // An address without a host has neither.
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    url.set_query(None);
    url.as_str().trim_end_matches('/').to_string()
}

/// How long until a limit that is used up is renewed, from the header `ratelimit: "name";r=0;t=55`: r
/// requests are left for t seconds.
fn used_up(limits: &str) -> Option<Duration> {
    let number = |limit: &str, key: &str| -> Option<u64> {
        limit.split(';').find_map(|part| part.trim().strip_prefix(key))?.parse().ok()
    };
    let waits = limits.split(',').filter(|limit| number(limit, "r=") == Some(0));
    waits.filter_map(|limit| number(limit, "t=")).max().map(Duration::from_secs)
}

/// Whether an answer came whole and is not the JSON that it should be.
fn is_not_json(error: &reqwest::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.is::<serde_json::Error>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// An error and its causes; reqwest's own text leaves them out.
pub(super) fn chain(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{shown, used_up};
    use reqwest::Url;
    use std::time::Duration;

    #[test]
    fn secrets_are_not_shown() {
        let url = Url::parse("https://me:secret@cdn.example/blob/1?Signature=abc").unwrap();
        assert_eq!(shown(&url), "https://cdn.example/blob/1");
    }

    #[test]
    fn a_limit_that_is_used_up_says_for_how_long() {
        assert_eq!(used_up("\"api\";r=0;t=55"), Some(Duration::from_secs(55)));
        assert_eq!(used_up("\"api\";r=3;t=55, \"pages\"; r=0; t=7"), Some(Duration::from_secs(7)));
        assert_eq!(used_up("\"api\";r=3;t=55"), None);
        assert_eq!(used_up("nonsense"), None);
    }
}
