//! One file's bytes, from the Hub into a blob of the cache: resumed, watched and verified.

use super::Event;
use super::cache::{Lock, Repo};
use super::client::{self, Announced, CHUNK, Client};
use super::digest::HashWhileWriting;
use super::http::{Failure, Response};
use crate::error::hub_error::HubError;
use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use ureq::http::StatusCode;
use ureq::http::header::{CONTENT_LENGTH, CONTENT_RANGE};

/// The number of times that a file with wrong content is fetched again.
const WRONG_CONTENTS: usize = 2;
/// A try that brought this many bytes made progress.
const HEADWAY: u64 = 1 << 20;
/// A shorter answer may be an error page instead of a file's start.
const STRAY: usize = 1 << 16;
/// The number of bytes of such an answer that an error shows.
const SHOWN: usize = 200;

/// A file on its way into the cache.
pub(crate) struct Transfer<'a> {
    pub(crate) client: &'a Client<'a>,
    pub(crate) repo: &'a Repo,
    pub(crate) commit: &'a str,
    pub(crate) name: &'a str,
    pub(crate) announced: &'a Announced,
    /// The blob's lock.
    pub(crate) lock: &'a Lock,
}

/// The part of a file that has arrived.
struct Partial {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Transfer<'_> {
    /// Fetches the missing bytes of the file and, once the whole is verified, renames it to its blob's name.
    ///
    /// The part that has arrived stays when a try fails or this process ends; the next try resumes there.
    pub(crate) fn run(&self) -> Result<(), HubError> {
        let mut delays = client::delays();
        let (mut wrong, mut furthest) = (0, 0);
        loop {
            let mut partial = self.open()?;
            furthest = furthest.max(partial.len);
            let failure = match self.attempt(&mut partial) {
                Ok(()) if !partial.path.exists() && !self.repo.blob(&self.announced.digest).exists() => {
                    // Where locks keep nobody away, another process may have gone on from it.
                    Failure::passing(HubError::cache(&partial.path)(ErrorKind::NotFound.into()))
                }
                Ok(()) => return self.keep(&partial),
                Err(failure) => failure,
            };
            if matches!(*failure.error, HubError::Checksum { .. }) {
                wrong += 1;
                if wrong > WRONG_CONTENTS {
                    return Err(*failure.error);
                }
            } else if partial.len >= furthest + HEADWAY {
                delays = client::delays();
            }
            self.client.wait(failure, &mut delays)?;
        }
    }

    fn open(&self) -> Result<Partial, HubError> {
        let path = self.lock.partial(self.repo, &self.announced.digest);
        let file = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let file = file.map_err(HubError::cache(&path))?;
        let meta = file.metadata().map_err(HubError::cache(&path))?;
        if !meta.is_file() {
            return Err(HubError::NotAFile { path });
        }
        let len = meta.len();
        let mut partial = Partial { path, file, len };
        if self.announced.size.is_some_and(|size| partial.len > size) {
            partial.cut(0)?;
        }
        Ok(partial)
    }

    fn keep(&self, partial: &Partial) -> Result<(), HubError> {
        let blob = self.repo.blob(&self.announced.digest);
        // It must be on disk before the rename: a power cut must not leave a hole in a file that looks verified.
        partial.file.sync_all().map_err(HubError::cache(&partial.path))?;
        match std::fs::rename(&partial.path, &blob) {
            // Another process has gone on from it, and was done first.
            Err(error) if error.kind() == ErrorKind::NotFound && blob.exists() => Ok(()),
            renamed => renamed.map_err(HubError::cache(&blob)),
        }
    }

    /// Requests the missing bytes once, and verifies the whole file.
    fn attempt(&self, partial: &mut Partial) -> Result<(), Failure> {
        if self.announced.size == Some(partial.len) && partial.len > 0 {
            return self.check(partial, None, &[]);
        }
        self.check_room(partial)?;
        let answer = match self.client.get(self.commit, self.name, partial.len, None) {
            // Nothing is left to send: the arrived part is the whole file, or a wrong one.
            Err(failure) if partial.len > 0 && is_beyond_the_end(&failure) => {
                return self.check(partial, None, &[]);
            }
            answer => answer?,
        };
        self.receive(answer, partial)
    }

    fn receive(&self, mut answer: Response, partial: &mut Partial) -> Result<(), Failure> {
        let start = if answer.status == StatusCode::PARTIAL_CONTENT { partial.len } else { 0 };
        let range = answer.header(CONTENT_RANGE.as_str());
        if start > 0 && !range.is_some_and(|r| r.starts_with(&format!("bytes {start}-"))) {
            let reason = format!("asked for bytes from {start} on, got {range:?}");
            return Err(HubError::Unexpected { url: answer.shown(), reason }.into());
        }
        let len: Option<u64> = answer.header(CONTENT_LENGTH.as_str()).and_then(|len| len.parse().ok());
        let total = self.announced.size.or(len.map(|len| start + len));
        if len.is_some() && len.map(|len| start + len) != total {
            // Most likely this is an error page, so keep the part that arrived before.
            let found = format!("{} bytes", len.unwrap_or_default());
            let shown = self.client.beginning(&mut answer, SHOWN).unwrap_or_default();
            return Err(self.wrong(found, &shown));
        }
        let mut first = vec![];
        if start < partial.len {
            // Without a length, only its early end shows that this is an error page.
            if len.is_none() {
                first = self.client.beginning(&mut answer, STRAY)?;
                if first.len() < STRAY {
                    return Err(self.wrong(format!("{} bytes", first.len()), &first));
                }
            }
            partial.cut(0)?;
        }
        partial.file.seek(SeekFrom::Start(start)).map_err(|e| self.write_error(partial, e))?;
        self.client.hub.tell(&Event::Fetching { file: self.name, size: total, have: start })?;

        let follower = total
            .map(|total| HashWhileWriting::start(&partial.path, &self.announced.digest, total))
            .transpose()
            .map_err(HubError::cache(&partial.path))?;
        if let Some(follower) = &follower {
            follower.written(start);
        }
        let mut shown = vec![];
        let mut buffer = vec![0; CHUNK];
        loop {
            let chunk = if first.is_empty() { self.client.chunk(&mut answer, &mut buffer)? } else { &first };
            if chunk.is_empty() {
                break;
            }
            if total.is_some_and(|total| partial.len + chunk.len() as u64 > total) {
                let found = format!("more than {} bytes", total.unwrap_or_default());
                partial.cut(0)?;
                return Err(self.wrong(found, &shown));
            }
            partial.file.write_all(chunk).map_err(|e| self.write_error(partial, e))?;
            partial.len += chunk.len() as u64;
            shown.extend(chunk.iter().take(SHOWN - shown.len()));
            if let Some(follower) = &follower {
                follower.written(partial.len);
            }
            self.client.hub.tell(&Event::Received { file: self.name, bytes: partial.len })?;
            first.clear();
        }
        if let Some(total) = total.filter(|&total| partial.len < total) {
            let found = format!("{} of {total} bytes", partial.len);
            if partial.len - start >= STRAY as u64 {
                return Err(Failure::passing(HubError::Interrupted {
                    url: answer.shown(),
                    reason: format!("it ended after {found}"),
                }));
            }
            // Otherwise an error page would stay as part of the file.
            partial.cut(start)?;
            return Err(self.wrong(found, &shown));
        }
        self.check(partial, follower, &shown)
    }

    /// Compares the arrived file with the announced hash, and removes it if it differs.
    fn check(
        &self,
        partial: &mut Partial,
        follower: Option<HashWhileWriting>,
        shown: &[u8],
    ) -> Result<(), Failure> {
        let found = match follower {
            Some(follower) => follower.finish(),
            None => self.announced.digest.of_file(&partial.path),
        };
        let found = found.map_err(HubError::cache(&partial.path))?;
        if found == self.announced.digest.as_str() {
            return Ok(());
        }
        let small = partial.len < STRAY as u64;
        partial.cut(0)?;
        Err(self.wrong(found, if small { shown } else { &[] }))
    }

    fn wrong(&self, found: String, start: &[u8]) -> Failure {
        Failure::passing(HubError::Checksum {
            file: format!("{}/{}", self.client.context.model, self.name),
            expected: self.announced.digest.to_string(),
            found,
            start: start_of(start),
        })
    }

    fn check_room(&self, partial: &Partial) -> Result<(), HubError> {
        let Some(needed) = self.announced.missing(partial.len) else { return Ok(()) };
        let dir = partial.path.parent().unwrap_or(Path::new("."));
        match fs4::available_space(dir) {
            Ok(free) if free < needed => {
                Err(HubError::DiskFull { path: dir.to_path_buf(), needed, free: Some(free) })
            }
            // If the system does not say, writing fails when the disk is full.
            _ => Ok(()),
        }
    }

    fn write_error(&self, partial: &Partial, error: std::io::Error) -> Failure {
        let needed = self.announced.missing(partial.len).unwrap_or_default();
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                HubError::DiskFull { path: partial.path.clone(), needed, free: None }.into()
            }
            _ => HubError::cache(&partial.path)(error).into(),
        }
    }
}

impl Partial {
    fn cut(&mut self, len: u64) -> Result<(), HubError> {
        self.file.set_len(len).map_err(HubError::cache(&self.path))?;
        self.len = len;
        Ok(())
    }
}

/// Whether the file ends before the requested bytes.
fn is_beyond_the_end(failure: &Failure) -> bool {
    matches!(&*failure.error, HubError::Refused { status, .. } if *status == StatusCode::RANGE_NOT_SATISFIABLE)
}

/// The beginning of an answer, if it is text.
fn start_of(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]);
    let is_text = !bytes.is_empty() && !text.contains(['\0', '\u{fffd}']);
    if is_text { format!("; it begins {:?}", text.trim()) } else { String::new() }
}
