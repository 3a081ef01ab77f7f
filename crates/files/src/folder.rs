//! Folders that a process has to itself, and folders whose files get their names together, or not at all.
//!
//! A process that is killed while it moves them leaves the old files in the folder `old` of a temporary folder, by their names. Where
//! folders can be locked, they stay there until a later run has put whole new files in their place.

use crate::Error;
use crate::Identity;
use crate::atomic::{self, PREFIX, SUFFIX, is_temporary, of_folder};
use crate::unfinished::{self, Listed, NewFolders, together};
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder that this process alone writes to, and those above it that it made. Dropping it removes those that are empty.
#[derive(Debug)]
pub struct OwnFolder {
    _made: NewFolders,
    /// Holds the folder's lock; none where the system or the file system has no locks of folders.
    lock: Option<File>,
}

impl OwnFolder {
    /// Makes the folder if it is missing, and locks it.
    ///
    /// # Errors
    /// When it is a file, cannot be made, or another process writes to it.
    pub fn make(folder: &Path) -> Result<Self, Error> {
        let refused = |reason: &str| Error::at(folder)(io::Error::other(reason));
        if folder.exists() && !folder.is_dir() {
            return Err(refused("is a file; name a folder, which may be new"));
        }
        for _ in 0..100 {
            let there = folder.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new(".")).to_path_buf();
            let made = NewFolders::make(folder).map_err(|e| Error::at(folder)(of_folder(&there, e)))?;
            let mut lock = File::open(folder).ok().filter(|_| cfg!(unix));
            match lock.as_ref().map(File::try_lock) {
                Some(Err(TryLockError::WouldBlock)) => {
                    return Err(refused("another run writes to this folder; wait for it, or choose another"));
                }
                Some(Err(TryLockError::Error(_))) => lock = None,
                Some(Ok(())) | None => {}
            }
            // Before we locked it, another run that had made it may have removed it, and a third one made it anew.
            if folder.is_dir()
                && lock.as_ref().is_none_or(|lock| Identity::of_file(lock) == Identity::of(folder))
            {
                return Ok(Self { _made: made, lock });
            }
        }
        Err(refused("is removed again and again by another process"))
    }
}

/// The folder of a temporary folder that holds old files by their names, once new ones take their place.
const OLD: &str = "old";

/// Files that will appear in a folder, complete under temporary names. Dropping it without [`commit`] removes them, and the folder
/// if it is new.
///
/// However many files there are, it keeps no more than one of them open.
#[derive(Debug)]
pub struct StagedFolder {
    folder: PathBuf,
    overwrite: bool,
    /// The names of the files, in the order in which they were added.
    files: Vec<PathBuf>,
    /// The names of files of an earlier run.
    old: Vec<PathBuf>,
    /// Holds the new files until they get their names, and the old ones after that.
    temporary: TempDir,
    _listed: Listed,
    own: OwnFolder,
}

impl StagedFolder {
    /// Makes the folder if it is missing. Without leave to overwrite, no file there is replaced.
    ///
    /// # Errors
    /// When it is a file, cannot be made or written to, or another process writes to it.
    pub fn new(folder: &Path, overwrite: bool) -> Result<Self, Error> {
        let own = OwnFolder::make(folder)?;
        if own.lock.is_some() {
            remove_abandoned(folder, |left| !left.join(OLD).exists());
        }
        let make = || tempfile::Builder::new().prefix(PREFIX).suffix(SUFFIX).tempdir_in(folder);
        let (temporary, listed) =
            Listed::new(folder, make).map_err(|e| Error::at(folder)(of_folder(folder, e)))?;
        Ok(Self {
            folder: folder.to_path_buf(),
            overwrite,
            files: vec![],
            old: vec![],
            temporary,
            _listed: listed,
            own,
        })
    }

    /// Writes a file under a temporary name. The one that leads to the others is added first: it gets its own name last.
    ///
    /// # Errors
    /// When the system refuses, as where the disk is full.
    pub fn add(&mut self, name: &str, content: &[u8]) -> Result<(), Error> {
        let write = || {
            let mut file = unfinished::create(&self.new_at(self.files.len()))?;
            file.write_all(content)?;
            // The data must be on disk before the file replaces an old one.
            file.sync_all()
        };
        write().map_err(Error::at(&self.folder.join(name)))?;
        self.files.push(name.into());
        Ok(())
    }

    /// Takes away the file of an earlier run, if there is one, with the commit.
    ///
    /// # Errors
    /// When it is no file or a link, is read-only, or its folder cannot be written to.
    pub fn take_away(&mut self, name: &Path) -> Result<(), Error> {
        let path = self.folder.join(name);
        if path.is_symlink() {
            let reason =
                "is a link, which would be replaced instead of its file; remove it, or choose another folder";
            return Err(Error::at(&path)(io::Error::other(reason)));
        }
        atomic::check(&path)?;
        self.old.push(name.to_path_buf());
        Ok(())
    }

    fn new_at(&self, number: usize) -> PathBuf {
        self.temporary.path().join(number.to_string())
    }

    fn move_all(&self, moves: &mut Moves) -> Result<(), Error> {
        // What leads to the others goes first and comes last: in between, nothing looks whole.
        for (number, name) in self.files.iter().chain(&self.old).enumerate() {
            let path = self.folder.join(name);
            let Ok(there) = path.symlink_metadata() else { continue };
            if !self.overwrite || there.is_dir() {
                let reason = "another program has written it meanwhile; choose another folder";
                return Err(Error::at(&path)(io::Error::new(ErrorKind::AlreadyExists, reason)));
            }
            if number < self.files.len()
                && let Ok(old) = path.metadata()
            {
                std::fs::set_permissions(self.new_at(number), old.permissions()).map_err(Error::at(&path))?;
            }
            let old = self.temporary.path().join(OLD).join(name);
            moves.take(&path, &old).map_err(Error::at(&path))?;
        }
        for (number, name) in self.files.iter().enumerate().rev() {
            let path = self.folder.join(name);
            moves.place(&self.new_at(number), &path).map_err(Error::at(&path))?;
        }
        Ok(())
    }
}

/// Moves the files of all these folders to their names, and takes the old ones away; or, if that fails, none of them.
/// [`unfinished::end`] comes before it or after it.
///
/// # Errors
/// When the system refuses, or another program has written one of the files meanwhile.
pub fn commit(mut folders: Vec<StagedFolder>) -> Result<(), Error> {
    together(move || {
        let mut moves = Moves::default();
        let moved = folders.iter().try_for_each(|folder| folder.move_all(&mut moves));
        let moved = moved.map_err(|error| match moves.undo() {
            0 => error,
            left => kept(&mut folders, left, &error),
        });
        drop(moves);
        for folder in folders.iter().filter(|folder| moved.is_ok() && folder.own.lock.is_some()) {
            remove_abandoned(&folder.folder, |_| true);
        }
        // What was taken away goes with the temporary folder.
        drop(folders);
        moved
    })
}

/// Keeps the old files that did not get back, and says where they are.
fn kept(folders: &mut [StagedFolder], left: usize, error: &Error) -> Error {
    let mut places = vec![];
    for folder in folders {
        for number in 0..folder.files.len() {
            let _ = std::fs::remove_file(folder.new_at(number));
        }
        let old = folder.temporary.path().join(OLD);
        if old.exists() {
            folder.temporary.disable_cleanup(true);
            places.push(old.display().to_string());
        }
    }
    Error::at(&error.path)(io::Error::other(format!(
        "{}; {left} of the old files could not be moved back: move them from {} before the next run",
        error.source,
        places.join(" and ")
    )))
}

/// The moves of a commit so far, each from where to where, and the folders that were made for them.
#[derive(Debug, Default)]
struct Moves {
    /// Old files, out of the way.
    taken: Vec<(PathBuf, PathBuf)>,
    /// New files, to their names.
    placed: Vec<(PathBuf, PathBuf)>,
    made: Vec<NewFolders>,
}

impl Moves {
    fn take(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::create_dir_all(to.parent().unwrap_or(to))?;
        std::fs::rename(from, to)?;
        self.taken.push((from.to_path_buf(), to.to_path_buf()));
        Ok(())
    }

    /// Renames into a folder, which is made if it is missing.
    fn place(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        if let Some(folder) = to.parent().filter(|folder| !folder.exists()) {
            self.made.push(NewFolders::make(folder)?);
        }
        std::fs::rename(from, to)?;
        self.placed.push((from.to_path_buf(), to.to_path_buf()));
        Ok(())
    }

    /// Moves everything back. Returns the number of old files that stay where they were taken to.
    fn undo(&mut self) -> usize {
        for (from, to) in self.placed.drain(..).rev() {
            let _ = std::fs::rename(to, from);
        }
        let back = |(from, to): (PathBuf, PathBuf)| {
            // Another program may have removed the folder while it was empty.
            from.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::rename(to, from)
        };
        self.taken.drain(..).rev().map(back).filter(io::Result::is_err).count()
    }
}

/// Removes temporary folders in a folder whose lock this process holds: the processes that made them have died.
fn remove_abandoned(folder: &Path, which: impl Fn(&Path) -> bool) {
    let Ok(entries) = folder.read_dir() else { return };
    for entry in entries.flatten() {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && entry.file_name().to_str().is_some_and(is_temporary) && which(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_moved_back_is_counted_and_stays() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("data"))?;
        std::fs::write(at("data/a"), "a")?;
        std::fs::write(at("b"), "b")?;
        let mut moves = Moves::default();
        moves.take(&at("data/a"), &at("old/data/a"))?;
        moves.take(&at("b"), &at("old/b"))?;
        // The emptied folder is removed, and made again; a folder takes the place of the other file.
        std::fs::remove_dir(at("data"))?;
        std::fs::create_dir_all(at("b/full"))?;
        assert_eq!(moves.undo(), 1);
        assert_eq!(std::fs::read_to_string(at("data/a"))?, "a");
        assert_eq!(std::fs::read_to_string(at("old/b"))?, "b");
        Ok(())
    }

    #[test]
    fn old_files_that_cannot_be_moved_back_outlive_the_run() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let mut staged = StagedFolder::new(folder.path(), true)?;
        staged.add("index", b"new")?;
        let other = StagedFolder::new(&folder.path().join("other"), true)?;
        std::fs::write(folder.path().join("index"), "old")?;
        let mut moves = Moves::default();
        moves.take(&folder.path().join("index"), &staged.temporary.path().join(OLD).join("index"))?;
        let old = staged.temporary.path().join(OLD);
        let mut folders = vec![staged, other];
        let failed = Error::at(&folder.path().join("index"))(io::Error::other("no space"));
        let said = kept(&mut folders, 1, &failed).to_string();
        assert!(
            said.contains("no space; 1 of the old files") && said.contains(&old.display().to_string()),
            "{said}"
        );
        assert!(!said.contains(" and "), "{said}");
        drop(folders);
        assert_eq!(std::fs::read_to_string(old.join("index"))?, "old");
        assert_eq!(old.parent().ok_or("a folder")?.read_dir()?.count(), 1);
        assert!(!folder.path().join("other").exists());
        Ok(())
    }
}
