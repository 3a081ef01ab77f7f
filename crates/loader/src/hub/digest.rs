//! [`Digest`]: the hash that the Hub announces for a file, and the file's own.

use gpt2_files::open_regular;
use sha1::Digest as _;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The hash that a file's content must have. It is the file's `ETag` on the Hub and its blob's name in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Digest {
    /// SHA-256 of the content, for files in large file storage.
    Sha256(String),
    /// Git's id of a blob, SHA-1 of `blob {length}\0` and the content, for all others.
    GitSha1(String),
}

impl Digest {
    /// Reads an `ETag`; `None` if it is not a hash of content.
    pub(crate) fn parse(etag: &str) -> Option<Self> {
        let hex = etag.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        match etag.len() {
            64 if hex => Some(Self::Sha256(etag.into())),
            40 if hex => Some(Self::GitSha1(etag.into())),
            _ => None,
        }
    }

    /// The hash in hexadecimal.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::GitSha1(hex) => hex,
        }
    }

    /// The hash of the file at `path`, of the same kind as this one.
    pub(crate) fn of_file(&self, path: &Path) -> io::Result<String> {
        let mut file = open_regular(path)?;
        let mut hasher = Hasher::new(self, file.metadata()?.len());
        hasher.read(&mut file, u64::MAX)?;
        Ok(hasher.finish())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(hex) => write!(f, "sha256 {hex}"),
            Self::GitSha1(hex) => write!(f, "git blob sha1 {hex}"),
        }
    }
}

/// A hash that is being computed.
pub(super) enum Hasher {
    Sha256(sha2::Sha256),
    Sha1(sha1::Sha1),
}

impl Hasher {
    pub(super) fn new(digest: &Digest, len: u64) -> Self {
        match digest {
            Digest::Sha256(_) => Self::Sha256(sha2::Sha256::new()),
            Digest::GitSha1(_) => Self::Sha1(sha1::Sha1::new_with_prefix(format!("blob {len}\0"))),
        }
    }

    /// Takes in up to `limit` bytes of `file`; returns how many there were.
    pub(super) fn read(&mut self, file: &mut File, limit: u64) -> io::Result<u64> {
        let mut buffer = vec![0; 1 << 18];
        let mut total = 0;
        while total < limit {
            let room = usize::try_from(limit - total).unwrap_or(usize::MAX).min(buffer.len());
            let n = match file.read(&mut buffer[..room]) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            match self {
                Self::Sha256(hasher) => hasher.update(&buffer[..n]),
                Self::Sha1(hasher) => hasher.update(&buffer[..n]),
            }
            total += n as u64;
        }
        Ok(total)
    }

    pub(super) fn finish(self) -> String {
        match self {
            Self::Sha256(hasher) => hex::encode(hasher.finalize()),
            Self::Sha1(hasher) => hex::encode(hasher.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Digest;
    use std::io::Write;

    // `printf 'hello\n' | git hash-object --stdin` and `printf 'hello\n' | sha256sum`
    const GIT: &str = "ce013625030ba8dba906f756967f9e9ca394464a";
    const SHA256: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

    #[test]
    fn a_file_hashes_as_git_and_sha256sum_say() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"hello\n").unwrap();
        for hex in [GIT, SHA256] {
            let digest = Digest::parse(hex).unwrap();
            assert_eq!(digest.of_file(file.path()).unwrap(), hex);
        }
        for etag in
            ["", "abc", &GIT.to_uppercase(), &"g".repeat(64), "../../../../../../etc/passwd-0000000000"]
        {
            assert_eq!(Digest::parse(etag), None, "{etag}");
        }
    }
}
