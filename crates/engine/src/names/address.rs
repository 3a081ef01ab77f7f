//! Addresses of the Hub as a browser and Python's `huggingface_hub` spell them.

use anyhow::{Context, bail};
use gpt2_loader::ModelId;
use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// A repository on the Hub, and what in it is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnHub {
    /// The repository.
    pub(crate) id: ModelId,
    /// The branch, tag or commit that the address names.
    pub(crate) revision: Option<String>,
    /// The file or folder that the address names, "" for the repository.
    pub(crate) path: String,
}

/// The hosts of the Hub.
const HOSTS: [&str; 3] = ["huggingface.co", "www.huggingface.co", "hf.co"];
/// The parts of a page's address after which a revision and a path follow.
const PAGES: [&str; 5] = ["tree", "blob", "resolve", "raw", "commit"];
const EXPECTED: &str = "expected https://huggingface.co/owner/name, also with /tree/REVISION or /blob/REVISION/FILE.gguf, or \
                        hf://owner/name@REVISION";

/// The place that an address names; `None` for a text that is no address.
///
/// # Errors
/// When it is the address of something else than a model repository of the Hub.
pub(crate) fn address(text: &str) -> anyhow::Result<Option<OnHub>> {
    let Some((scheme, rest)) = text.split_once("://") else { return Ok(None) };
    let found = match scheme.to_ascii_lowercase().as_str() {
        "hf" => of_python(rest),
        "http" | "https" => of_a_browser(rest),
        _ => bail!("{text}: is an address of a kind that is not known; {EXPECTED}"),
    };
    found.map(Some).with_context(|| text.to_owned())
}

/// `owner/name[@REVISION][/PATH]`
fn of_python(rest: &str) -> anyhow::Result<OnHub> {
    refuse_others(rest)?;
    let (before, after) = rest.split_once('@').unwrap_or((rest, ""));
    let mut parts = before.trim_end_matches('/').split('/');
    let owner = parts.next().unwrap_or_default();
    let name = parts.next();
    let named = name.map_or(owner.to_owned(), |name| format!("{owner}/{name}"));
    let id = ModelId::parse(&named).with_context(|| format!("names no repository; {EXPECTED}"))?;
    if before.len() < rest.len() {
        let (revision, path) = revision_and_path(after)?;
        return Ok(OnHub { id, revision: Some(revision), path });
    }
    Ok(OnHub { id, revision: None, path: parts.collect::<Vec<_>>().join("/") })
}

/// `HOST/owner/name[/PAGE/REVISION[/PATH]]`
fn of_a_browser(rest: &str) -> anyhow::Result<OnHub> {
    let rest = rest.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !HOSTS.contains(&host.to_ascii_lowercase().as_str()) {
        bail!(
            "is an address at {host}; {EXPECTED}; for a mirror, give owner/name with its address as the endpoint"
        );
    }
    refuse_others(path)?;
    let mut parts = path.split('/').peekable();
    let first = parts.next().unwrap_or_default();
    // The old addresses of GPT-2's own models have no owner.
    let is_alone = ModelId::parse(first).is_some() && parts.peek().is_none_or(|next| PAGES.contains(next));
    let named =
        if is_alone { first.to_owned() } else { format!("{first}/{}", parts.next().unwrap_or_default()) };
    let id = ModelId::parse(&named).with_context(|| format!("names no repository; {EXPECTED}"))?;
    match parts.next() {
        None => Ok(OnHub { id, revision: None, path: String::new() }),
        Some(page) if PAGES.contains(&page) => {
            let (revision, path) = revision_and_path(&parts.collect::<Vec<_>>().join("/"))?;
            Ok(OnHub { id, revision: Some(revision), path })
        }
        Some(page) => bail!("is the page {page} of {id}, and no model; {EXPECTED}"),
    }
}

/// Data sets and spaces are no models.
fn refuse_others(path: &str) -> anyhow::Result<()> {
    match path.split('/').next() {
        Some(kind @ ("datasets" | "spaces")) => bail!("is one of the Hub's {kind}, and no model; {EXPECTED}"),
        _ => Ok(()),
    }
}

/// `REVISION[/PATH]`, where a revision is one part of the path, or three for `refs/pr/1`.
fn revision_and_path(text: &str) -> anyhow::Result<(String, String)> {
    let parts: Vec<&str> = text.split('/').collect();
    let of_revision = if parts.first() == Some(&"refs") { 3.min(parts.len()) } else { 1 };
    let decoded = |parts: &[&str]| percent_decode_str(&parts.join("/")).decode_utf8().map(Cow::into_owned);
    let revision = decoded(&parts[..of_revision])?;
    if revision.is_empty() {
        bail!("names no revision; {EXPECTED}");
    }
    Ok((revision, decoded(&parts[of_revision..])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_a_repository_a_revision_and_a_path() {
        for (text, id, revision, path) in [
            ("https://huggingface.co/who/name", "who/name", "", ""),
            ("https://huggingface.co/who/name/", "who/name", "", ""),
            ("HTTPS://HuggingFace.co/who/name?library=x#files", "who/name", "", ""),
            ("http://hf.co/who/name/tree/main", "who/name", "main", ""),
            ("https://huggingface.co/who/name/tree/main/saes/8", "who/name", "main", "saes/8"),
            ("https://huggingface.co/who/name/tree/refs%2Fpr%2F1", "who/name", "refs/pr/1", ""),
            ("https://huggingface.co/who/name/tree/refs/pr/1", "who/name", "refs/pr/1", ""),
            ("https://huggingface.co/who/name/blob/v1/x%20y.gguf", "who/name", "v1", "x y.gguf"),
            (
                "https://huggingface.co/who/name/resolve/main/x.gguf?download=true",
                "who/name",
                "main",
                "x.gguf",
            ),
            ("https://huggingface.co/gpt2", "openai-community/gpt2", "", ""),
            ("https://huggingface.co/gpt2/tree/main", "openai-community/gpt2", "main", ""),
            ("https://huggingface.co/who/name/commit/0123abc", "who/name", "0123abc", ""),
            ("hf://who/name", "who/name", "", ""),
            ("hf://gpt2", "openai-community/gpt2", "", ""),
            ("hf://who/name@v1", "who/name", "v1", ""),
            ("hf://who/name@v1/x.gguf", "who/name", "v1", "x.gguf"),
            ("hf://who/name/x.gguf", "who/name", "", "x.gguf"),
        ] {
            let found = address(text).unwrap().unwrap();
            let got = (found.id.to_string(), found.revision.unwrap_or_default(), found.path);
            assert_eq!(got, (id.to_owned(), revision.to_owned(), path.to_owned()), "{text}");
        }
        for text in ["who/name", "/who/name", "C:/models", "demo", "huggingface.co/who/name"] {
            assert_eq!(address(text).unwrap(), None, "{text}");
        }
        for (text, says) in [
            ("https://example.com/who/name", "at example.com"),
            ("https://huggingface.co.evil.com/who/name", "at huggingface.co.evil.com"),
            ("https://huggingface.co", "names no repository"),
            ("https://huggingface.co/who", "names no repository"),
            ("https://huggingface.co/datasets/who/name", "datasets"),
            ("https://huggingface.co/who/name/discussions/1", "discussions"),
            ("https://huggingface.co/who/../name", "names no repository"),
            ("hf://spaces/who/name", "spaces"),
            ("hf://who/name@", "no revision"),
            ("ftp://who/name", "not known"),
        ] {
            let error = format!("{:#}", address(text).unwrap_err());
            assert!(error.contains(says) && error.starts_with(text), "{text}: {error}");
        }
    }
}
