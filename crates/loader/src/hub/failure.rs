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
            wait: header(RETRY_AFTER.as_str()).and_then(|s| s.trim().parse().ok()).map(Duration::from_secs),
            url: response.url().to_string(),
        };
        self.refusal(refusal, about)
    }

    pub(super) fn api_failure(&self, error: HFError, url: &str, revision: &str) -> Failure {
        let (context, wait) = match error {
            HFError::Http { context }
            | HFError::AuthRequired { context }
            | HFError::Forbidden { context }
            | HFError::Conflict { context }
            | HFError::RepoNotFound { context: Some(context), .. }
            | HFError::RevisionNotFound { context: Some(context), .. } => (context, None),
            HFError::RateLimited { context, retry_after } => (context, retry_after),
            HFError::Request { source, .. } => {
                return match Url::parse(url) {
                    Ok(url) => self.failure(&source, &url),
                    Err(_) => self.offline(&source),
                };
            }
            other => {
                let reason = other.to_string();
                return LoadError::Unexpected { url: url.into(), reason }.into();
            }
        };
        let refusal = Refusal {
            status: context.status,
            code: context.error_code,
            message: context.server_message,
            wait,
            url: context.url,
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
                endpoint: self.hub.endpoint.clone(),
                reason: if message.is_empty() { status.to_string() } else { message },
            },
            (401, _) | (_, "RepoNotFound") => {
                LoadError::ModelNotFound { model, endpoint: self.hub.endpoint.clone(), has_token }
            }
            // A server that is not the Hub itself may not say what it is that is not there.
            (404, _) if !about.is_file && about.revision == MAIN => {
                LoadError::ModelNotFound { model, endpoint: self.hub.endpoint.clone(), has_token }
            }
            (404, _) if !about.is_file => {
                LoadError::RevisionNotFound { model, revision: about.revision.into() }
            }
            (429, _) => {
                let wait_s = wait.map(|w| w.as_secs());
                let error = LoadError::RateLimited { endpoint: self.hub.endpoint.clone(), wait_s, has_token };
                return Failure { error: Box::new(error), retry: Some(wait.unwrap_or_default()) };
            }
            (408 | 500..=599, _) => {
                let error = LoadError::Server { url, status: status.to_string(), message };
                return Failure { error: Box::new(error), retry: Some(wait.unwrap_or_default()) };
            }
            _ => LoadError::Refused { url, status: status.to_string(), message },
        };
        error.into()
    }

    /// The error of a request without a whole answer.
    pub(super) fn failure(&self, error: &reqwest::Error, url: &Url) -> Failure {
        let url = || url.to_string();
        if error.is_timeout() {
            self.timed_out(&url())
        } else if error.is_connect() {
            self.offline(error)
        } else if is_not_json(error) {
            Failure::passing(LoadError::Unexpected { url: url(), reason: chain(error) })
        } else if error.is_redirect() || error.is_builder() {
            LoadError::Unexpected { url: url(), reason: chain(error) }.into()
        } else {
            Failure::passing(LoadError::Interrupted { url: url(), reason: chain(error) })
        }
    }

    fn offline(&self, error: &reqwest::Error) -> Failure {
        Failure::passing(LoadError::NoNetwork { endpoint: self.hub.endpoint.clone(), reason: chain(error) })
    }
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
pub(super) fn chain(error: &dyn Error) -> String {
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
