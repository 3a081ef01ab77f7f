//! Addresses and network errors as messages show them, without secrets.

use reqwest::Url;
use std::error::Error;

/// An address without its secrets: a password, or the signature of a storage's address.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // An address without a host has no user and no password.
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    url.set_query(None);
    url.as_str().trim_end_matches('/').to_string()
}

/// An error and its causes, which reqwest's own text leaves out.
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
    use super::shown;
    use reqwest::Url;

    #[test]
    fn secrets_are_not_shown() {
        let url = Url::parse("https://me:secret@cdn.example/blob/1?Signature=abc").unwrap();
        assert_eq!(shown(&url), "https://cdn.example/blob/1");
    }
}
