//! [`Http`]: requests and their [`Response`]s, and [`Failure`]: why one try failed, and whether another may succeed.
//! Redirects are left to the caller, who knows what each means.

use super::address::shown;
use super::{MAIN, ModelId};
use crate::error::hub_error::HubError;
use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};
use ureq::config::IpFamily;
use ureq::http::header::RETRY_AFTER;
use ureq::http::{HeaderMap, Request, StatusCode, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, BodyReader, Error, Timeout};

/// The longest that looking up a name may take, and that connecting may take: a network that drops packets shows sooner
/// than a slow answer.
const LONGEST_CONNECT: Duration = Duration::from_secs(10);
/// The most bytes that a description of a model may have.
const LONGEST_TEXT: usize = 64 << 20;
const USER_AGENT: &str = concat!("gpt2-candle/", env!("CARGO_PKG_VERSION"));

/// Sends requests; keeps connections for the next.
pub(super) struct Http {
    agent: Agent,
    /// For hosts whose IPv6 addresses lead nowhere: those take up all the time for connecting.
    ipv4: Agent,
}

/// An answer whose headers have arrived.
pub(super) struct Response {
    /// The address that it came from.
    pub(super) uri: Uri,
    pub(super) status: StatusCode,
    headers: HeaderMap,
    body: BodyReader<'static>,
}

impl Http {
    /// `timeout`: how long an answer may go without a byte.
    pub(super) fn new(timeout: Duration) -> Self {
        // The system's certificates: a company may have added its own.
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let connect = Some(timeout.min(LONGEST_CONNECT));
        let config = |family| {
            Agent::config_builder()
                .ip_family(family)
                .tls_config(tls.clone())
                .user_agent(USER_AGENT)
                .accept_encoding("identity")
                .http_status_as_error(false)
                .max_redirects(0)
                .max_redirects_will_error(false)
                .timeout_resolve(connect)
                .timeout_connect(connect)
                .timeout_recv_response(Some(timeout))
                .timeout_per_read(Some(timeout))
                .build()
        };
        Self { agent: config(IpFamily::Any).into(), ipv4: config(IpFamily::Ipv4Only).into() }
    }

    pub(super) fn send(&self, request: Request<()>) -> Result<Response, Error> {
        let uri = request.uri().clone();
        let response = match self.agent.run(request.clone()) {
            Err(Error::Timeout(Timeout::Connect)) => self.ipv4.run(request)?,
            response => response?,
        };
        let (parts, body) = response.into_parts();
        Ok(Response { uri, status: parts.status, headers: parts.headers, body: body.into_reader() })
    }
}

impl Response {
    /// A header's text; `None` if it is absent or not ASCII.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The address that the answer came from, without secrets.
    pub(super) fn shown(&self) -> String {
        shown(&self.uri)
    }

    /// The next bytes of the body; 0 at its end.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        self.body.read(buffer).map_err(Error::from)
    }

    /// The whole body, up to [`LONGEST_TEXT`].
    ///
    /// # Errors
    /// When it does not arrive within `timeout`: it is short, so one that trickles in is none.
    pub(super) fn text(&mut self, timeout: Duration) -> Result<Vec<u8>, Error> {
        let end = Instant::now() + timeout;
        let mut text = vec![];
        let mut buffer = vec![0; 1 << 16];
        while text.len() < LONGEST_TEXT {
            let read = self.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            if Instant::now() > end {
                return Err(Error::Timeout(Timeout::RecvBody));
            }
            text.extend_from_slice(&buffer[..read]);
        }
        Ok(text)
    }
}

/// The error of a try, and whether another may succeed.
pub(super) struct Failure {
    pub(super) error: Box<HubError>,
    /// The shortest wait before another try; `None` if another would not help.
    pub(super) retry: Option<Duration>,
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self { error: Box::new(error), retry: None }
    }
}

impl Failure {
    /// A failure that may pass.
    pub(super) fn passing(error: HubError) -> Self {
        Self { error: Box::new(error), retry: Some(Duration::ZERO) }
    }
}

/// The name in messages for a status without a name.
const UNKNOWN: &str = "<unknown status code>";

/// The subject of a request: a revision of the model, or one of its files.
#[derive(Clone, Copy)]
pub(super) struct RequestSubject<'a> {
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
    /// The time that a request may go without receiving a byte.
    pub(super) timeout: Duration,
}

impl RequestContext<'_> {
    /// The failure of a request that the server refused.
    pub(super) fn refused(&self, answer: &Response, about: RequestSubject<'_>) -> Failure {
        let wait = answer.header("ratelimit").and_then(used_up).or_else(|| {
            let seconds = answer.header(RETRY_AFTER.as_str())?;
            Some(Duration::from_secs(seconds.trim().parse().ok()?))
        });
        let status = answer.status;
        let url = answer.shown();
        let model = self.model.to_string();
        let has_token = self.has_token;
        let number = status.as_u16();
        let phrase = status.canonical_reason().unwrap_or(UNKNOWN);
        let message = answer.header("x-error-message").unwrap_or_default().to_string();
        let code = answer.header("x-error-code").unwrap_or_default();
        let error = match (number, code) {
            (_, "GatedRepo") => HubError::Gated { model, has_token, message },
            (_, "RevisionNotFound") => HubError::RevisionNotFound { model, revision: about.revision.into() },
            (401, _) if has_token => HubError::TokenRefused {
                endpoint: self.endpoint.clone(),
                reason: if message.is_empty() { status.to_string() } else { message },
            },
            (401, _) | (_, "RepoNotFound") => {
                HubError::ModelNotFound { model, endpoint: self.endpoint.clone(), has_token }
            }
            // A server other than the Hub may not say what is missing.
            (404, _) if !about.is_file && about.revision == MAIN => {
                HubError::ModelNotFound { model, endpoint: self.endpoint.clone(), has_token }
            }
            (404, _) if !about.is_file => {
                HubError::RevisionNotFound { model, revision: about.revision.into() }
            }
            (429, _) => {
                let wait_s = wait.map(|w| w.as_secs());
                let error = HubError::RateLimited { endpoint: self.endpoint.clone(), wait_s, has_token };
                return Failure { error: Box::new(error), retry: Some(wait.unwrap_or_default()) };
            }
            (408 | 500..=599, _) => {
                let error = HubError::Server { url, status: number, phrase, message };
                return Failure { error: Box::new(error), retry: Some(wait.unwrap_or_default()) };
            }
            // A 404 for a file without the Hub's error code may come from a proxy.
            (404, _) => {
                return Failure::passing(HubError::Refused { url, status: number, phrase, message });
            }
            _ => HubError::Refused { url, status: number, phrase, message },
        };
        error.into()
    }

    /// The failure of a request that got no answer.
    pub(super) fn unanswered(&self, error: &Error, uri: &Uri) -> Failure {
        match error {
            Error::Timeout(Timeout::Resolve | Timeout::Connect) => self.no_network(error),
            Error::Timeout(_) => self.timed_out(uri),
            Error::Http(_) | Error::BadUri(_) => {
                HubError::Unexpected { url: shown(uri), reason: error.to_string() }.into()
            }
            Error::Protocol(_) => cut(error, uri),
            // With https, this may be a firewall that cuts the handshake: the network then needs looking at.
            Error::Io(io) if is_cut(io) && uri.scheme_str() == Some("http") => cut(error, uri),
            _ => self.no_network(error),
        }
    }

    /// The failure of an answer that broke off.
    pub(super) fn broken(&self, error: &Error, uri: &Uri) -> Failure {
        match error {
            Error::Timeout(_) => self.timed_out(uri),
            _ => cut(error, uri),
        }
    }

    fn no_network(&self, error: &Error) -> Failure {
        let endpoint = self.endpoint.clone();
        Failure::passing(HubError::NoNetwork { endpoint, reason: error.to_string() })
    }

    /// No byte arrived within the timeout.
    fn timed_out(&self, uri: &Uri) -> Failure {
        Failure::passing(HubError::Timeout { url: shown(uri), seconds: self.timeout.as_secs() })
    }
}

fn cut(error: &Error, uri: &Uri) -> Failure {
    Failure::passing(HubError::Interrupted { url: shown(uri), reason: error.to_string() })
}

/// Whether a connection ended that had come about.
fn is_cut(error: &std::io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// The time until an exhausted limit resets, from the header `ratelimit: "name";r=0;t=55`: r requests are left for the
/// next t seconds.
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
        assert_eq!(used_up("\"api\";r=0;t=7, \"pages\";r=0;t=9"), Some(Duration::from_secs(9)));
        assert_eq!(used_up("\"api\";r=3;t=55"), None);
        assert_eq!(used_up("nonsense"), None);
    }
}
