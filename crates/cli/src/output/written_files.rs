//! The files that a run writes. Refuses them before the work starts if they would do harm, and moves them all to their
//! final names at the end.

use super::{is_closed_pipe, note};
use anyhow::{Context, bail};
use gpt2_engine::ReadFiles;
use gpt2_files::Identity;
use gpt2_files::atomic::{self, Staged};
use gpt2_files::unfinished::together;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Outputs {
    list: Vec<Output>,
    overwrite: bool,
    staged: Vec<(PathBuf, Staged)>,
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
        Self { list: vec![], overwrite, staged: vec![] }
    }

    /// Adds the file that the option `flag` names.
    pub(crate) fn add(&mut self, flag: &str, path: &Path) {
        let named = format!("{flag} {}", path.display());
        self.list.push(Output { named, path: path.to_path_buf() });
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

    /// Prints with `print` and moves the files to their final names, as [`print_and_write`] does.
    pub(crate) fn commit_after(self, print: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
        print_and_write(print, || self.commit())
    }

    /// Moves the files to their final names. If one of them fails, removes the new ones before it. Without leave to overwrite, a
    /// file that another program has written meanwhile stays.
    pub(crate) fn commit(self) -> anyhow::Result<()> {
        let Self { overwrite, staged, .. } = self;
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
        for (path, _) in written {
            note(&format!("wrote {}", path.display()));
        }
        Ok(())
    }
}

/// Prints with `print`, then lets `write` give files their names. If printing fails, it writes no file, unless a pipe's reader has just
/// gone away: that reader has all it wanted.
pub(crate) fn print_and_write(
    print: impl FnOnce() -> anyhow::Result<()>,
    write: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let printed = print().and_then(|()| super::flush());
    if let Err(error) = &printed
        && !is_closed_pipe(error)
    {
        return printed;
    }
    write()?;
    printed
}

/// Whether two paths, of existing files or of files yet to be written, mean the same file.
fn are_one(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        (Identity::of(dir), path.file_name().map(std::ffi::OsStr::to_os_string))
    };
    place(a) == place(b) || (a.exists() && Identity::of(a) == Identity::of(b))
}
