//! [`RequestContext`]: turns a refusal or a missing answer into an error, and says whether to ask again.

use super::MAIN;
use super::address::shown;
use super::failure::Failure;
use super::http::Answer;
use super::model_id::ModelId;
use crate::error::LoadError;
use std::io::ErrorKind;
use std::time::Duration;
use ureq::http::Uri;
use ureq::http::header::RETRY_AFTER;
use ureq::{Error, Timeout};

/// The name in messages for a status without a name.
const UNKNOWN: &str = "<unknown status code>";

/// What a request was about: a revision of the model, or one of its files.
#[derive(Clone, Copy)]
pub(super) struct About<'a> {
    pub(super) revision: &'a str,
    pub(super) is_file: bool,
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
    pub(super) fn refused(&self, answer: &Answer, about: About<'_>) -> Failure {
        let wait = answer.header("ratelimit").and_then(used_up).or_else(|| {
            let seconds = answer.header(RETRY_AFTER.as_str())?;
            Some(Duration::from_secs(seconds.trim().parse().ok()?))
        });
        let (status, url) = (answer.status, answer.shown());
        let model = self.model.to_string();
        let has_token = self.has_token;
        let (number, phrase) = (status.as_u16(), status.canonical_reason().unwrap_or(UNKNOWN));
        let message = answer.header("x-error-message").unwrap_or_default().to_string();
        let code = answer.header("x-error-code").unwrap_or_default();
        let error = match (number, code) {
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

    /// Why no answer arrived.
    pub(super) fn unanswered(&self, error: &Error, uri: &Uri) -> Failure {
        match error {
            Error::Timeout(Timeout::Resolve | Timeout::Connect) => self.no_network(error),
            Error::Timeout(_) => self.timed_out(uri),
            Error::Http(_) | Error::BadUri(_) => {
                LoadError::Unexpected { url: shown(uri), reason: error.to_string() }.into()
            }
            Error::Protocol(_) => cut(error, uri),
            // With https, this may be a firewall that cuts the handshake: the network then needs looking at.
            Error::Io(io) if is_cut(io) && uri.scheme_str() == Some("http") => cut(error, uri),
            _ => self.no_network(error),
        }
    }

    /// Why the rest of an answer did not arrive.
    pub(super) fn broken(&self, error: &Error, uri: &Uri) -> Failure {
        match error {
            Error::Timeout(_) => self.timed_out(uri),
            _ => cut(error, uri),
        }
    }

    fn no_network(&self, error: &Error) -> Failure {
        let endpoint = self.endpoint.clone();
        Failure::passing(LoadError::NoNetwork { endpoint, reason: error.to_string() })
    }

    /// No byte arrived within the timeout.
    fn timed_out(&self, uri: &Uri) -> Failure {
        Failure::passing(LoadError::Timeout { url: shown(uri), seconds: self.timeout.as_secs() })
    }
}

fn cut(error: &Error, uri: &Uri) -> Failure {
    Failure::passing(LoadError::Interrupted { url: shown(uri), reason: error.to_string() })
}

/// Whether a connection ended that had come about.
fn is_cut(error: &std::io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
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
