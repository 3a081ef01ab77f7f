//! [`Http`]: requests and their answers. Redirects are left to the caller, who knows what each means.

use super::address::shown;
use std::io::Read;
use std::time::{Duration, Instant};
use ureq::config::IpFamily;
use ureq::http::{HeaderMap, Request, StatusCode, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, BodyReader, Timeout};

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
pub(super) struct Answer {
    /// Where it came from.
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

    pub(super) fn send(&self, request: Request<()>) -> Result<Answer, ureq::Error> {
        let uri = request.uri().clone();
        let response = match self.agent.run(request.clone()) {
            Err(ureq::Error::Timeout(Timeout::Connect)) => self.ipv4.run(request)?,
            response => response?,
        };
        let (parts, body) = response.into_parts();
        Ok(Answer { uri, status: parts.status, headers: parts.headers, body: body.into_reader() })
    }
}

impl Answer {
    /// A header's text; `None` if it is absent or not ASCII.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Where the answer came from, without secrets.
    pub(super) fn shown(&self) -> String {
        shown(&self.uri)
    }

    /// The next bytes of the body; 0 at its end.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ureq::Error> {
        self.body.read(buffer).map_err(ureq::Error::from)
    }

    /// The whole body, up to [`LONGEST_TEXT`].
    ///
    /// # Errors
    /// When it does not arrive within `timeout`: it is short, so one that trickles in is none.
    pub(super) fn text(&mut self, timeout: Duration) -> Result<Vec<u8>, ureq::Error> {
        let end = Instant::now() + timeout;
        let mut text = vec![];
        let mut buffer = vec![0; 1 << 16];
        while text.len() < LONGEST_TEXT {
            let read = self.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            if Instant::now() > end {
                return Err(ureq::Error::Timeout(Timeout::RecvBody));
            }
            text.extend_from_slice(&buffer[..read]);
        }
        Ok(text)
    }
}
