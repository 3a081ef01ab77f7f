//! [`Fetch`]: a file of a model, from the cache or from the Hub, verified.

use super::cache::{Repo, is_commit};
use super::client::{Announced, Client};
use super::digest::Digest;
use super::transfer::Transfer;
use super::{Event, Hub, ModelId, Pin};
use crate::error::LoadError;
use crate::error::hub_error::HubError;
use crate::files::CONFIG;
use std::cell::{Cell, OnceCell, RefCell};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A process that waits for another gives up after this many timeouts without progress: the other may itself have
/// to wait and try again.
const PATIENCE: u32 = 10;
/// It never gives up before this: the server may have asked the other process to wait.
const SHORTEST_PATIENCE: Duration = Duration::from_mins(5);

/// When to ask the Hub for a revision's commit.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum CommitLookup {
    First,
    WhereNeeded,
}

/// One model's files at one revision.
pub(super) struct Fetch<'a> {
    pub(super) hub: &'a Hub,
    pub(super) model: &'a ModelId,
    /// The file that is wanted first: an error names it where no commit is known.
    pub(super) wanted: &'a str,
    revision: &'a str,
    pub(super) ask: CommitLookup,
    pub(super) repo: Repo,
    client: OnceCell<Client<'a>>,
    /// The files of the commit, once the Hub was asked.
    listing: RefCell<Option<Vec<String>>>,
    /// Whether any file had to be fetched.
    fetched: Cell<bool>,
    /// Whether the Hub was asked for the files of the commit; it may not have listed them.
    asked: Cell<bool>,
    /// Whether the Hub gave no answer about a file that may be absent.
    pub(super) is_silent: Cell<bool>,
}

impl<'a> Fetch<'a> {
    pub(super) fn new(
        hub: &'a Hub,
        model: &'a ModelId,
        revision: &'a str,
        ask: CommitLookup,
    ) -> Result<Self, HubError> {
        // The revision becomes part of a path and of an address.
        let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        let is_printable = |c: char| c.is_ascii_graphic() && !"\\?#%:*\"<>|".contains(c);
        if !revision.split('/').all(is_plain) || !revision.chars().all(is_printable) {
            let model = model.to_string();
            return Err(HubError::RevisionNotFound { model, revision: revision.into() });
        }
        Ok(Self {
            hub,
            model,
            wanted: CONFIG,
            revision,
            ask,
            repo: Repo::new(&hub.cache_dir, model, revision),
            client: OnceCell::new(),
            listing: RefCell::new(None),
            fetched: Cell::new(false),
            asked: Cell::new(false),
            is_silent: Cell::new(false),
        })
    }

    /// Remembers the revision's commit, if the Hub was asked.
    pub(super) fn keep_commit(&self, commit: &str) -> Result<(), HubError> {
        if self.client.get().is_none() {
            return Ok(());
        }
        match self.repo.set_commit(self.revision, commit) {
            // A read-only cache that has all the files.
            Err(HubError::CacheNotWritable { .. }) if !self.fetched.get() => Ok(()),
            done => done,
        }
    }

    /// The name in messages for the model at a commit.
    pub(super) fn label(&self, commit: &str) -> String {
        format!("{}@{}", self.model, &commit[..12])
    }

    /// The revision's commit, from the cache if that is enough.
    pub(super) fn commit(&self) -> Result<String, HubError> {
        match self.repo.commit(self.revision) {
            Some(commit)
                if self.ask == CommitLookup::WhereNeeded || self.hub.offline || is_commit(self.revision) =>
            {
                Ok(commit)
            }
            _ => self.ask_for_commit(self.revision),
        }
    }

    fn ask_for_commit(&self, revision: &str) -> Result<String, HubError> {
        let commit = self.client(self.wanted)?.commit(revision)?;
        self.asked.set(true);
        *self.listing.borrow_mut() = commit.files;
        Ok(commit.sha)
    }

    /// The client, unless the Hub is set offline; the error then names `file`, which the Hub would have been asked for.
    pub(super) fn client(&self, file: &str) -> Result<&Client<'a>, HubError> {
        if self.hub.offline {
            return Err(self.not_cached(file));
        }
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let client = Client::new(self.hub, self.model)?;
        Ok(self.client.get_or_init(|| client))
    }

    pub(super) fn not_cached(&self, file: &str) -> HubError {
        HubError::NotCached {
            model: self.model.to_string(),
            revision: self.revision.into(),
            file: file.into(),
            cache: self.hub.cache_dir.clone(),
            offline: self.hub.offline,
        }
    }

    /// Whether the commit has the file, according to the cache or the Hub's list.
    pub(super) fn is_listed(&self, commit: &str, name: &str) -> Result<bool, HubError> {
        if self.repo.has_file(commit, name) {
            return Ok(true);
        }
        if self.ask == CommitLookup::WhereNeeded && self.repo.is_absent(commit, name) {
            return Ok(false);
        }
        let client = self.client(name)?;
        if !self.asked.replace(true) && self.listing.borrow().is_none() {
            self.ask_for_commit(commit)?;
        }
        let listed = self.listing.borrow().as_ref().map(|files| files.iter().any(|file| file == name));
        let listed = match listed {
            Some(listed) => listed,
            // If the server lists no files, its answer to the request for the file will tell.
            None => match client.announced(commit, name) {
                Err(HubError::Refused { status: 404, .. }) => return Ok(false),
                announced => announced?.is_some(),
            },
        };
        if !listed {
            self.repo.set_absent(commit, name);
        }
        Ok(listed)
    }

    /// The names of the commit's files, as far as the cache or the Hub's list has them, in order.
    pub(super) fn names(&self, commit: &str) -> Vec<String> {
        let cached = std::fs::read_dir(self.repo.snapshot(commit));
        let cached = cached.into_iter().flatten().flatten();
        let cached = cached.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = cached.chain(self.listing.borrow().iter().flatten().cloned()).collect();
        names.sort_unstable();
        names
    }

    pub(super) fn missing(&self, file: &str) -> HubError {
        let found = self.listing.borrow().clone().unwrap_or_default();
        HubError::FileNotFound { model: self.model.to_string(), file: file.into(), found: found.join(", ") }
    }

    /// The verified path of a file that the model needs.
    pub(super) fn required(&self, commit: &str, name: &str) -> Result<PathBuf, LoadError> {
        let path = self.repo.pointer(commit, name);
        if self.is_good(commit, name)? {
            return Ok(path);
        }
        let client = self.client(name).map_err(|offline| self.bad_or(commit, name, offline))?;
        let Some(announced) = client.announced(commit, name)? else {
            if !self.asked.get() {
                self.ask_for_commit(commit)?;
            }
            return Err(self.missing(name).into());
        };
        check_pin(&self.hub.pins, self.model, commit, name, &announced)?;
        self.fetch(client, commit, name, &announced)?;
        Ok(path)
    }

    /// Whether the cache has the file with the right content.
    pub(super) fn is_good(&self, commit: &str, name: &str) -> Result<bool, LoadError> {
        if !self.repo.has_file(commit, name) {
            return Ok(false);
        }
        let Some(digest) = self.repo.digest(commit, name) else { return Ok(false) };
        if !self.fits_pin(commit, name, &digest) {
            return Ok(false);
        }
        if self.repo.is_verified(commit, name, &digest) {
            return Ok(true);
        }
        let before = self.repo.stamp(commit, name, &digest);
        let good = self.hashes_to(&self.repo.pointer(commit, name), name, &digest)?;
        if good {
            self.repo.set_verified(commit, name, &digest, before);
        }
        Ok(good)
    }

    /// Whether a cached file with this hash matches the pin.
    pub(super) fn fits_pin(&self, commit: &str, name: &str, digest: &Digest) -> bool {
        let size = std::fs::metadata(self.repo.pointer(commit, name)).ok().map(|meta| meta.len());
        let announced = Announced { digest: digest.clone(), size };
        check_pin(&self.hub.pins, self.model, commit, name, &announced).is_ok()
    }

    /// Whether the file at `path` exists and has this content.
    pub(super) fn hashes_to(&self, path: &Path, name: &str, digest: &Digest) -> Result<bool, LoadError> {
        let Ok(meta) = std::fs::metadata(path) else { return Ok(false) };
        self.hub.tell(&Event::Verifying { file: name, size: meta.len() })?;
        let found = digest.of_file(path).map_err(LoadError::io(path))?;
        Ok(found == digest.as_str())
    }

    /// The error for a file that cannot be fetched: it is missing or has the wrong content.
    fn bad_or(&self, commit: &str, name: &str, not_cached: HubError) -> HubError {
        if !self.repo.has_file(commit, name) {
            return not_cached;
        }
        let path = self.repo.pointer(commit, name);
        match self.repo.digest(commit, name) {
            Some(digest) => {
                let model = self.model.to_string();
                HubError::BadCache { path, expected: digest.to_string(), model }
            }
            None => HubError::Unverified { path },
        }
    }

    /// Puts the file into the cache, unless another process does so first.
    fn fetch(
        &self,
        client: &Client<'_>,
        commit: &str,
        name: &str,
        announced: &Announced,
    ) -> Result<(), LoadError> {
        let digest = &announced.digest;
        let waiting = || self.hub.tell(&Event::Waiting { file: name });
        let patience = (self.hub.timeout * PATIENCE).max(SHORTEST_PATIENCE);
        let lock = self.repo.lock(digest, patience, waiting)?;
        if self.is_good(commit, name)? {
            return Ok(()); // another process has fetched it
        }
        let pointer = self.repo.pointer(commit, name);
        let is_file = pointer.symlink_metadata().is_ok_and(|meta| meta.is_file());
        // A cache may have been copied without its links: the file itself may be good.
        if !is_file || !self.hashes_to(&pointer, name, digest)? {
            let fresh = !self.hashes_to(&self.repo.blob(digest), name, digest)?;
            if fresh {
                self.repo.discard(commit, name, digest)?;
                self.fetched.set(true);
                Transfer { client, repo: &self.repo, commit, name, announced, lock: &lock }.run()?;
            }
            self.repo.link(commit, name, digest, self.hub.links, fresh)?;
        }
        self.repo.set_verified(commit, name, digest, self.repo.stamp(commit, name, digest));
        self.hub.tell(&Event::Fetched { file: name })?;
        Ok(())
    }
}

/// Refuses a commit's file that is pinned to different content.
fn check_pin(
    pins: &[Pin],
    model: &ModelId,
    commit: &str,
    name: &str,
    announced: &Announced,
) -> Result<(), HubError> {
    let model = model.to_string();
    let is_it = |pin: &&Pin| pin.id == model && pin.revision == commit && pin.file == name;
    let Some(pin) = pins.iter().find(is_it) else { return Ok(()) };
    let sha256 = pin.sha256.as_deref().unwrap_or(announced.digest.as_str());
    if sha256 == announced.digest.as_str() && announced.size.is_none_or(|size| size == pin.size) {
        return Ok(());
    }
    let size = announced.size.map_or_else(String::new, |size| format!(", {size} bytes"));
    Err(HubError::Pin {
        file: format!("{model}/{name}"),
        expected: format!("sha256 {sha256}, {} bytes", pin.size),
        found: format!("{}{size}", announced.digest),
    })
}
