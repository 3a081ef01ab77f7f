//! Access to the Hub from this machine: the caller's options come first, then the variables that Python's
//! `huggingface_hub` reads, in its order.

use crate::observer::Observer;
use anyhow::Context;
use gpt2_files::read_text;
use gpt2_loader::Hub;
use gpt2_loader::hub::{ENDPOINT, MAIN, Pin};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The largest token file to read; a token has some forty characters.
const LONGEST_TOKEN: u64 = 4096;

/// The caller's options for the Hub; the environment supplies the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HubOptions {
    /// A branch, tag or commit; `main` if there is none.
    pub revision: Option<String>,
    /// Make no request; `HF_HUB_OFFLINE` says so too.
    pub offline: bool,
    /// The folder for downloaded models, or that of `HF_HUB_CACHE`.
    pub cache_dir: Option<PathBuf>,
    /// The Hub's address, or that of `HF_ENDPOINT`.
    pub endpoint: Option<String>,
    /// The seconds without data after which a request fails; `HF_HUB_DOWNLOAD_TIMEOUT` or `HF_HUB_ETAG_TIMEOUT` says so too. 30 if
    /// there is no number.
    pub timeout: Option<u64>,
}

impl HubOptions {
    /// The Hub, as these options and the environment configure it.
    ///
    /// # Errors
    /// When there is no folder for downloaded models.
    pub fn hub(&self) -> anyhow::Result<Hub> {
        let endpoint = self.endpoint.clone().or_else(|| variable("HF_ENDPOINT"));
        let endpoint = endpoint.unwrap_or_else(|| ENDPOINT.into());
        let offline = variable("HF_HUB_OFFLINE").or_else(|| variable("TRANSFORMERS_OFFLINE"));
        let mut hub = Hub::new(self.cache_dir()?);
        hub.endpoint = endpoint.trim_end_matches('/').into();
        hub.token = token(&home()?);
        hub.offline = self.offline || offline.is_some_and(|value| is_true(&value));
        hub.timeout = Duration::from_secs(self.timeout.or_else(timeout_of_python).unwrap_or(30));
        hub.links = !variable("HF_HUB_DISABLE_SYMLINKS").is_some_and(|value| is_true(&value));
        hub.pins = pins()?;
        Ok(hub)
    }

    /// Like [`HubOptions::hub`]; `observer` hears of downloads.
    ///
    /// # Errors
    /// See [`HubOptions::hub`].
    pub fn connect(&self, observer: &dyn Observer) -> anyhow::Result<Hub> {
        let mut hub = self.hub()?;
        hub.progress = observer.downloads();
        Ok(hub)
    }

    /// The folder for downloaded models.
    ///
    /// # Errors
    /// When nothing names one and there is no home folder.
    pub fn cache_dir(&self) -> anyhow::Result<PathBuf> {
        if let Some(dir) = &self.cache_dir {
            return Ok(dir.clone());
        }
        match variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")) {
            Some(dir) => Ok(expand(&dir)),
            None => Ok(home()?.join("hub")),
        }
    }

    /// Whether a folder, which may be new, lies among the downloaded models, which Python shares.
    #[must_use]
    pub fn caches(&self, folder: &Path) -> bool {
        let Ok(cache) = self.cache_dir().and_then(|cache| Ok(cache.canonicalize()?)) else { return false };
        let canonical = |path: &Path| {
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            path.canonicalize().ok()
        };
        let Some(found) = folder.ancestors().find_map(canonical) else { return false };
        let first = found.strip_prefix(&cache).ok().and_then(|inside| inside.components().next());
        first.is_some_and(|first| is_of_the_cache(&first.as_os_str().to_string_lossy()))
    }

    /// The revision to take.
    #[must_use]
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN)
    }

    /// The file with the Hub's token, whether or not it is there; none without a home folder.
    #[must_use]
    pub fn token_file() -> Option<PathBuf> {
        home().ok().map(|home| token_path(&home))
    }
}

/// Whether a folder of the cache is the Hub's: there is one for each repository, one for locks, and a store that Python shares between
/// repositories.
#[must_use]
pub fn is_of_the_cache(name: &str) -> bool {
    ["models--", "datasets--", "spaces--"].iter().any(|kind| name.starts_with(kind))
        || [".locks", "blobs"].contains(&name)
}

/// The files whose content is known in advance.
///
/// # Errors
/// When the list in the program is damaged.
pub fn pins() -> anyhow::Result<Vec<Pin>> {
    serde_json::from_str(gpt2_demo::HUB_MODELS).context("models/hub.json")
}

/// Python has one limit for a file's description and one for the rest; this is the longer one.
fn timeout_of_python() -> Option<u64> {
    let seconds =
        ["HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"].map(|name| variable(name)?.trim().parse().ok());
    seconds.into_iter().flatten().filter(|seconds| (1..=86400).contains(seconds)).max()
}

fn token_path(home: &Path) -> PathBuf {
    variable("HF_TOKEN_PATH").map_or_else(|| home.join("token"), |path| expand(&path))
}

fn home() -> anyhow::Result<PathBuf> {
    variable("HF_HOME").map_or_else(default_home, |home| Ok(expand(&home)))
}

fn default_home() -> anyhow::Result<PathBuf> {
    let cache = match variable("XDG_CACHE_HOME") {
        Some(dir) => expand(&dir),
        None => std::env::home_dir()
            .filter(|home| !home.as_os_str().is_empty())
            .context("there is no home folder to keep models in; set HF_HOME, or give --cache-dir")?
            .join(".cache"),
    };
    Ok(cache.join("huggingface"))
}

fn token(home: &Path) -> Option<String> {
    if variable("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(|value| is_true(&value)) {
        return None;
    }
    let token = variable("HF_TOKEN")
        .or_else(|| variable("HUGGING_FACE_HUB_TOKEN"))
        .or_else(|| read_text(&token_path(home), LONGEST_TOKEN).ok())?;
    Some(token.trim().to_string()).filter(|token| !token.is_empty())
}

/// The value of a variable, if it is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

fn is_true(value: &str) -> bool {
    ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())
}

/// `~` and `$NAME`, as Python's expanduser and expandvars read them.
fn expand(path: &str) -> PathBuf {
    let home = || Some(std::env::home_dir()?.to_string_lossy().into_owned());
    PathBuf::from(shellexpand::full_with_context_no_errors(path, home, variable).into_owned())
}
