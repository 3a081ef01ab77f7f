//! The files that a run writes. Refuses them before the work starts if they would do harm, and moves them all to their
//! final names at the end.

use super::{is_closed_pipe, note};
use anyhow::{Context, bail};
use gpt2_engine::ReadFiles;
use gpt2_files::Identity;
use gpt2_files::atomic::{self, Staged};
use gpt2_files::unfinished::{NewFolders, together};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Outputs {
    list: Vec<Output>,
    overwrite: bool,
    staged: Vec<(PathBuf, Staged)>,
    /// The paths to name, once all is written, instead of each file.
    instead: Vec<PathBuf>,
    /// Files of an earlier run, to remove once all is written, but for those that are written anew.
    old: Vec<PathBuf>,
}

#[derive(Debug)]
struct Output {
    /// The option and its value.
    named: String,
    path: PathBuf,
}

impl Outputs {
    /// Starts without files; `overwrite` allows replacing existing files.
    pub(crate) fn new(overwrite: bool) -> Self {
        Self { list: vec![], overwrite, staged: vec![], instead: vec![], old: vec![] }
    }

    /// Adds the file that the option `flag` names.
    pub(crate) fn add(&mut self, flag: &str, path: &Path) {
        let named = format!("{flag} {}", path.display());
        self.list.push(Output { named, path: path.to_path_buf() });
    }

    /// Names `path`, once all is written, instead of each file.
    pub(crate) fn tell(&mut self, path: PathBuf) {
        self.instead.push(path);
    }

    /// Adds a file of an earlier run, which goes once all is written, unless it is written anew.
    pub(crate) fn replace(&mut self, flag: &str, path: PathBuf) {
        self.add(flag, &path);
        self.old.push(path);
    }

    /// Refuses an output that cannot be written, that the run reads, that two options name, that stdout goes to, or
    /// that exists. An empty file may be replaced: it holds nothing to lose.
    pub(crate) fn check(&self, inputs: &ReadFiles) -> anyhow::Result<()> {
        let mut before: Vec<(&str, PathBuf)> = vec![];
        for Output { named, path } in &self.list {
            let flag = named.split(' ').next().unwrap_or_default();
            if path == Path::new("-") {
                bail!(
                    "{flag} -: expected the name of a file; ./- is one, and standard output has the printed result"
                )
            }
            let target = atomic::check(path).with_context(|| flag.to_owned())?;
            inputs.spare(named, &target)?;
            if let Some((other, _)) = before.iter().find(|(_, other)| are_one(other, &target)) {
                bail!("{named}: is the same file as {other}; give each its own name")
            }
            // The printed result would be lost. Only Unix has a name for that file.
            let printed = Path::new("/dev/stdout");
            if cfg!(unix) && target.exists() && Identity::of(&target) == Identity::of(printed) {
                bail!("{named}: is the file that the result is printed to; choose another name")
            }
            if !self.overwrite && target.metadata().is_ok_and(|file| file.len() > 0) {
                bail!("{named}: already exists; choose another name, or replace it with --overwrite")
            }
            before.push((named, target));
        }
        Ok(())
    }

    /// Lets `write` fill the file at `path` under a temporary name.
    pub(crate) fn stage<E>(
        &mut self,
        path: &Path,
        write: impl FnOnce(&Path) -> Result<(), E>,
    ) -> anyhow::Result<()>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.staged.push((path.to_path_buf(), atomic::stage(path, write)?));
        Ok(())
    }

    /// Like [`stage`](Self::stage), for content in memory.
    pub(crate) fn stage_bytes(&mut self, path: &Path, content: &[u8]) -> anyhow::Result<()> {
        self.staged.push((path.to_path_buf(), atomic::stage_bytes(path, content)?));
        Ok(())
    }

    /// Prints with `print` and moves the files to their final names. If printing fails, it writes no file, unless a
    /// pipe's reader has just gone away: that reader has all it wanted.
    pub(crate) fn commit_after(self, print: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let printed = print().and_then(|()| super::flush());
        if let Err(error) = &printed
            && !is_closed_pipe(error)
        {
            return printed;
        }
        self.commit()?;
        printed
    }

    /// Moves the files to their final names. If one of them fails, removes the new ones before it. Without leave to overwrite, a
    /// file that another program has written meanwhile stays.
    pub(crate) fn commit(self) -> anyhow::Result<()> {
        let Self { overwrite, staged, instead, old, .. } = self;
        let mut written: Vec<(PathBuf, bool)> = vec![];
        let moved = together(|| {
            for (path, staged) in staged {
                let is_new = !path.exists();
                if overwrite { staged.commit() } else { staged.commit_new() }?;
                written.push((path, is_new));
            }
            Ok::<(), gpt2_files::Error>(())
        });
        if let Err(error) = moved {
            for (path, _) in written.iter().filter(|(_, is_new)| *is_new) {
                let _ = std::fs::remove_file(path);
            }
            return Err(error.into());
        }
        for path in old.iter().filter(|old| written.iter().all(|(path, _)| path != *old)) {
            std::fs::remove_file(path).with_context(|| path.display().to_string())?;
        }
        let told =
            if instead.is_empty() { written.into_iter().map(|(path, _)| path).collect() } else { instead };
        for path in told {
            note(&format!("wrote {}", path.display()));
        }
        Ok(())
    }
}

/// Whether two paths, of existing files or of files yet to be written, mean the same file.
fn are_one(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        (Identity::of(dir), path.file_name().map(std::ffi::OsStr::to_os_string))
    };
    place(a) == place(b) || (a.exists() && Identity::of(a) == Identity::of(b))
}

/// A folder that this run alone writes to, and those above it that it made. Dropping it removes those that are empty.
#[derive(Debug)]
pub(crate) struct NewFolder {
    _made: NewFolders,
    /// Holds the folder's lock.
    _folder: Option<File>,
}

impl NewFolder {
    pub(crate) fn make(dir: &Path) -> anyhow::Result<Self> {
        if dir.exists() && !dir.is_dir() {
            bail!("{}: is a file; name a folder, which may be new", dir.display());
        }
        let made = NewFolders::make(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        // Some systems and file systems have no locks of folders.
        let folder = File::open(dir).ok().filter(|_| cfg!(unix));
        if let Some(folder) = &folder
            && let Err(TryLockError::WouldBlock) = folder.try_lock()
        {
            bail!("{}: another run writes to this folder; wait for it, or choose another", dir.display());
        }
        Ok(Self { _made: made, _folder: folder })
    }
}
