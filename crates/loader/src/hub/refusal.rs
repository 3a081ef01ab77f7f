//! [`RequestContext`]: turns a refusal or a missing answer into an error, and says whether to ask again.

use super::MAIN;
use super::failure::Failure;
use super::model_id::ModelId;
use super::shown::{chain, shown};
use crate::error::LoadError;
use hf_hub::HFError;
use reqwest::header::RETRY_AFTER;
use reqwest::{Response, StatusCode, Url};
use std::error::Error;
use std::time::Duration;

/// The name in messages for a status without a name.
const UNKNOWN: &str = "<unknown status code>";

/// What a request was about: a revision of the model, or one of its files.
#[derive(Clone, Copy)]
pub(super) struct About<'a> {
    pub(super) revision: &'a str,
    pub(super) is_file: bool,
}

/// An answer to something other than the request.
struct Refusal {
    status: StatusCode,
    code: Option<String>,
    message: Option<String>,
    wait: Option<Duration>,
    url: String,
}

/// The Hub and the model that a request is about, and how it is made, for use in errors.
pub(super) struct RequestContext<'a> {
    /// The Hub's address, as messages show it.
    pub(super) endpoint: String,
    pub(super) model: &'a ModelId,
    /// Whether requests send a token.
    pub(super) has_token: bool,
    /// How long a request may go without a byte.
    pub(super) timeout: Duration,
}

impl RequestContext<'_> {
    /// Why the Hub did not answer the request.
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

    /// Why a call of the Hub's API failed.
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

    /// Why the Hub answered in this way.
    fn refusal(&self, refusal: Refusal, about: About<'_>) -> Failure {
        let Refusal { status, code, message, wait, url } = refusal;
        let model = self.model.to_string();
        let has_token = self.has_token;
        let (number, phrase) = (status.as_u16(), status.canonical_reason().unwrap_or(UNKNOWN));
        let message = message.unwrap_or_default();
        let code = code.unwrap_or_default();
        let error = match (number, code.as_str()) {
            (_, "GatedRepo") => LoadError::Gated { model, has_token, message },
            (_, "RevisionNotFound") => LoadError::RevisionNotFound { model, revision: about.revision.into() },
            (401, _) if has_token => LoadError::TokenRefused {
                endpoint: self.endpoint.clone(),
                reason: if message.is_empty() { status.to_string() } else { message },
            },
            (401, _) | (_, "RepoNotFound") => {
                LoadError::ModelNotFound { model, endpoint: self.endpoint.clone(), has_token }
            }
            // A server other than the Hub may not say what is missing.
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
                let error = LoadError::Server { url, status: number, phrase, message };
                return Failure { error: Box::new(error), retry: Some(wait.unwrap_or_default()) };
            }
            // A 404 for a file without the Hub's error code may come from a proxy.
            (404, _) => {
                return Failure::passing(LoadError::Refused { url, status: number, phrase, message });
            }
            _ => LoadError::Refused { url, status: number, phrase, message },
        };
        error.into()
    }

    /// Why no complete answer arrived.
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

    /// No byte arrived within the timeout.
    pub(super) fn timed_out(&self, url: &Url) -> Failure {
        Failure::passing(LoadError::Timeout { url: shown(url), seconds: self.timeout.as_secs() })
    }
}

/// How long until an exhausted limit resets, from the header `ratelimit: "name";r=0;t=55`: r requests are
/// left for the next t seconds.
fn used_up(limits: &str) -> Option<Duration> {
    let number = |limit: &str, key: &str| -> Option<u64> {
        limit.split(';').find_map(|part| part.trim().strip_prefix(key))?.parse().ok()
    };
    let waits = limits.split(',').filter(|limit| number(limit, "r=") == Some(0));
    waits.filter_map(|limit| number(limit, "t=")).max().map(Duration::from_secs)
}

/// Whether an answer arrived in full but is not the JSON that it should be.
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

#[cfg(test)]
mod tests {
    use super::used_up;
    use std::time::Duration;

    #[test]
    fn a_limit_that_is_used_up_says_for_how_long() {
        assert_eq!(used_up("\"api\";r=0;t=55"), Some(Duration::from_secs(55)));
        assert_eq!(used_up("\"api\";r=3;t=55, \"pages\"; r=0; t=7"), Some(Duration::from_secs(7)));
        assert_eq!(used_up("\"api\";r=3;t=55"), None);
        assert_eq!(used_up("nonsense"), None);
    }
}
