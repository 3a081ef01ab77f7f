//! The Hub's address, and those of a model's parts below it.

use super::ModelId;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hf_hub::{Repo, RepoType};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use ureq::http::Uri;

/// The characters of a file's name that an address holds percent-encoded.
const RESERVED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?');

/// The hosts of the Hub.
const HUBS: [&str; 2] = ["huggingface.co", "hf.co"];

/// A Hub's address.
pub(super) struct Endpoint {
    /// The address without a user, a password or a slash at its end.
    base: String,
    origin: Origin,
    /// The header for a user and a password in the address, if there are any.
    pub(super) authorization: Option<String>,
}

/// The origin of an address; equal origins are the same server.
#[derive(PartialEq)]
pub(super) struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Endpoint {
    /// # Errors
    /// The reason why this is not the address of a Hub.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|e: ureq::http::uri::InvalidUri| e.to_string())?;
        let Some(origin) = Origin::of(&uri) else {
            return Err(
                "expected an address that begins with https:// or http://, and a port from 0 to 65535 if any"
                    .into(),
            );
        };
        let user = uri.authority().and_then(|authority| Some(authority.as_str().rsplit_once('@')?.0));
        let authorization = user.map(|user| {
            // A user without a password has an empty one (RFC 7617).
            let colon = if user.contains(':') { "" } else { ":" };
            let decoded: Vec<u8> = percent_decode_str(user).chain(colon.bytes()).collect();
            format!("Basic {}", STANDARD.encode(decoded))
        });
        Ok(Self { base: shown(&uri), origin, authorization })
    }

    /// The address as messages show it, without secrets.
    pub(super) fn shown(&self) -> &str {
        &self.base
    }

    /// Whether this server may see the token.
    pub(super) fn is_origin_of(&self, uri: &Uri) -> bool {
        Origin::of(uri).is_some_and(|origin| origin == self.origin)
    }

    /// Whether a redirect from `from` to `next` stays on the server, goes from HTTP to HTTPS on it, or leads to an address of the
    /// Hub: this one's, or one that everybody knows. Such an answer describes a file; the token goes to this one's alone.
    pub(super) fn is_of_the_hub(&self, from: &Uri, next: &Uri) -> bool {
        let Some(next) = Origin::of(next) else { return false };
        let is_known = next.scheme == "https" && next.port == 443 && HUBS.contains(&next.host.as_str());
        let is_near = Origin::of(from).is_some_and(|from| from == next || from.is_raised_to(&next));
        is_known || is_near || next == self.origin
    }

    /// The address that describes a revision of a model.
    pub(super) fn revision(&self, model: &ModelId, revision: &str) -> Result<Uri, String> {
        parse(format!("{}/api/{}", self.base, repo(model, revision).api_url()))
    }

    /// The address of a commit's file.
    pub(super) fn file(&self, model: &ModelId, commit: &str, name: &str) -> Result<Uri, String> {
        let repo = repo(model, commit);
        let name = utf8_percent_encode(name, RESERVED);
        parse(format!("{}/{}/resolve/{}/{name}", self.base, repo.url(), repo.url_revision()))
    }
}

impl Origin {
    /// Whether `next` is the same host, in HTTPS instead of HTTP, at the ports that these usually have.
    fn is_raised_to(&self, next: &Self) -> bool {
        let ports = (self.port, next.port);
        self.host == next.host && self.scheme == "http" && next.scheme == "https" && ports == (80, 443)
    }

    /// `None` if the address is not one of HTTP, or its port is not a port.
    pub(super) fn of(uri: &Uri) -> Option<Self> {
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let default = match scheme.as_str() {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        let host = uri.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
        let authority = uri.authority()?.as_str();
        let after_host =
            authority.rsplit_once('@').map_or(authority, |(_, host)| host).strip_prefix(uri.host()?)?;
        let port = if after_host.is_empty() { default } else { uri.port_u16()? };
        Some(Self { scheme, host, port })
    }
}

fn repo(model: &ModelId, revision: &str) -> Repo {
    let kind = if model.is_dataset() { RepoType::Dataset } else { RepoType::Model };
    Repo::with_revision(model.path(), kind, revision.to_string())
}

fn parse(address: String) -> Result<Uri, String> {
    address.parse().map_err(|e| format!("{address}: {e}"))
}

/// The address that a redirect leads to, in the forms of RFC 3986 that servers send.
pub(super) fn join(from: &Uri, location: &str) -> Option<Uri> {
    let location = location.split('#').next()?;
    if let Ok(uri) = location.parse::<Uri>()
        && Origin::of(&uri).is_some()
    {
        return Some(uri);
    }
    let scheme = from.scheme_str()?;
    let authority = from.authority()?;
    let path = from.path();
    let joined = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.starts_with('?') {
        format!("{scheme}://{authority}{path}{location}")
    } else {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    joined.parse().ok()
}

/// A text that should be an address, without what may be a password in it.
pub(super) fn without_user(text: &str) -> String {
    match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => text.to_string(),
    }
}

/// An address without its secrets: a password, or the signature of a storage's address.
pub(super) fn shown(uri: &Uri) -> String {
    let scheme = uri.scheme_str().map_or_else(String::new, |scheme| format!("{scheme}://"));
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}{host}{}", uri.path()).trim_end_matches('/').to_string()
}

#[cfg(test)]
mod tests {
    use super::{Endpoint, join, shown, without_user};
    use crate::hub::ModelId;

    fn uri(text: &str) -> ureq::http::Uri {
        text.parse().unwrap()
    }

    #[test]
    fn a_redirect_of_a_description_stays_on_the_hub() {
        for (endpoint, from, next, expected) in [
            ("https://hub.example", "https://hub.example/a", "https://hub.example/b", true),
            ("https://hub.example", "https://hub.example/a", "https://hub.example:8443/b", false),
            ("https://hub.example", "https://hub.example/a", "https://huggingface.co/b", true),
            ("https://hf.co", "https://hf.co/a", "https://huggingface.co/b", true),
            ("https://huggingface.co", "https://huggingface.co/a", "https://HF.co/b", true),
            ("https://hub.example", "https://hub.example/a", "http://huggingface.co/b", false),
            ("https://hub.example", "https://hub.example/a", "https://huggingface.co.evil.example/b", false),
            ("https://hub.example", "https://hub.example/a", "https://cdn.example/b", false),
            ("http://hub.example", "http://hub.example/a", "https://hub.example/b", true),
            ("https://hub.example", "https://hub.example/a", "http://hub.example/b", false),
            // Back from the known one to the mirror.
            ("https://hub.example", "https://hf.co/a", "https://hub.example/b", true),
        ] {
            let endpoint = Endpoint::parse(endpoint).unwrap();
            assert_eq!(endpoint.is_of_the_hub(&uri(from), &uri(next)), expected, "{from} to {next}");
            // What is followed need not be trusted with the token.
            assert!(
                !endpoint.is_origin_of(&uri("https://huggingface.co/b"))
                    || endpoint.shown().contains("huggingface")
            );
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let url = uri("https://me:secret@cdn.example/blob/1?Signature=abc");
        assert_eq!(shown(&url), "https://cdn.example/blob/1");
        assert_eq!(Endpoint::parse("https://me:secret@hub.example/").unwrap().shown(), "https://hub.example");
        assert_eq!(without_user("ftp://me:sec@ret@hub.example"), "ftp://hub.example");
        assert_eq!(without_user("nonsense"), "nonsense");
    }

    #[test]
    fn a_password_becomes_a_header() {
        let endpoint = Endpoint::parse("https://me:a%20b@hub.example").unwrap();
        assert_eq!(endpoint.authorization.as_deref(), Some("Basic bWU6YSBi")); // me:a b
        let endpoint = Endpoint::parse("https://me@hub.example").unwrap();
        assert_eq!(endpoint.authorization.as_deref(), Some("Basic bWU6")); // me:
        assert_eq!(Endpoint::parse("https://hub.example").unwrap().authorization, None);
    }

    #[test]
    fn what_is_no_address_of_a_server_is_refused() {
        for text in
            ["nonsense", "ftp://hub.example", "http://", "http://hub.example:80800", "http://hub.example:x"]
        {
            assert!(Endpoint::parse(text).is_err(), "{text}");
        }
        assert!(
            Endpoint::parse("http://[::1]:8080")
                .is_ok_and(|hub| hub.is_origin_of(&uri("http://[::1]:8080/x")))
        );
    }

    #[test]
    fn the_same_server_has_the_same_scheme_host_and_port() {
        let hub = Endpoint::parse("https://hub.example/mirror").unwrap();
        for same in ["https://hub.example/x", "https://HUB.example:443/"] {
            assert!(hub.is_origin_of(&uri(same)), "{same}");
        }
        for other in ["http://hub.example/", "https://hub.example:8443/", "https://cdn.hub.example/"] {
            assert!(!hub.is_origin_of(&uri(other)), "{other}");
        }
        let plain = Endpoint::parse("http://hub.example").unwrap();
        assert!(plain.is_origin_of(&uri("http://hub.example:80/")));
        assert!(!plain.is_origin_of(&uri("http://hub.example:443/")));
    }

    #[test]
    fn a_files_name_is_part_of_a_path() {
        let hub = Endpoint::parse("https://hub.example").unwrap();
        let model = ModelId::parse("a/b").unwrap();
        let file = hub.file(&model, "main", "onnx/my file?.bin").unwrap();
        assert_eq!(file.to_string(), "https://hub.example/a/b/resolve/main/onnx/my%20file%3F.bin");
        let dataset = ModelId::of_dataset("a/b").unwrap();
        let file = hub.file(&dataset, "main", "c/d.parquet").unwrap();
        assert_eq!(file.to_string(), "https://hub.example/datasets/a/b/resolve/main/c/d.parquet");
        let branch = hub.revision(&dataset, "refs/convert/parquet").unwrap();
        assert_eq!(
            branch.to_string(),
            "https://hub.example/api/datasets/a/b/revision/refs%2Fconvert%2Fparquet"
        );
        let branch = hub.revision(&model, "refs/pr/1").unwrap();
        assert_eq!(branch.to_string(), "https://hub.example/api/models/a/b/revision/refs%2Fpr%2F1");
    }

    #[test]
    fn a_redirect_leads_where_it_says() {
        let from = uri("https://hub.example/a/b/resolve/main/c?x=1");
        for (location, to) in [
            ("http://cdn.example/blob?s=1#top", "http://cdn.example/blob?s=1"),
            ("//cdn.example/blob", "https://cdn.example/blob"),
            ("/a/new/resolve/main/c", "https://hub.example/a/new/resolve/main/c"),
            ("d", "https://hub.example/a/b/resolve/main/d"),
            ("?x=2", "https://hub.example/a/b/resolve/main/c?x=2"),
        ] {
            assert_eq!(join(&from, location).unwrap().to_string(), to, "{location}");
        }
    }
}
