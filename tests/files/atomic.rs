//! Files are written whole or not at all.

use crate::common::Result;
use crate::folder::Folder;
use gpt2_files::atomic::{stage_bytes, write, write_bytes};
use std::io::Error;

#[test]
fn a_new_file_is_whole_and_alone() -> Result {
    let folder = Folder::empty()?;
    let path = folder.file("x");
    for content in ["first", "the second is longer", "3"] {
        write_bytes(&path, content.as_bytes())?;
        assert_eq!(std::fs::read_to_string(&path)?, content);
        assert_eq!(folder.names()?, ["x"]);
    }
    Ok(())
}

#[test]
fn a_failing_writer_leaves_the_old_file_and_nothing_else() -> Result {
    let folder = Folder::empty()?;
    let path = folder.file("x");
    for old in [None, Some("old")] {
        if let Some(old) = old {
            folder.write("x", old)?;
        }
        let error = write(&path, |temporary| {
            assert_ne!(temporary, path);
            std::fs::write(temporary, "half")?;
            Err(Error::other("no room left"))
        })
        .expect_err("the writer failed")
        .to_string();
        assert!(error.contains(&path.display().to_string()) && error.contains("no room left"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).ok().as_deref(), old);
        assert_eq!(folder.names()?.len(), usize::from(old.is_some()), "a temporary file is left");
    }
    Ok(())
}

// On Windows, a file that is open stays until it is closed.
#[cfg(unix)]
#[test]
fn a_writer_that_removes_the_temporary_file_is_an_error() -> Result {
    let folder = Folder::empty()?;
    folder.write("x", "old")?;
    let result = write(&folder.file("x"), |temporary| std::fs::remove_file(temporary));
    assert!(result.is_err());
    assert_eq!((folder.names()?, std::fs::read(folder.file("x"))?), (vec!["x".into()], b"old".to_vec()));
    Ok(())
}

#[test]
fn a_missing_folder_is_named() -> Result {
    let folder = Folder::empty()?;
    let path = folder.file("nowhere").join("x");
    let error = write_bytes(&path, b"x").expect_err("nowhere").to_string();
    assert!(error.contains(&path.display().to_string()) && error.contains("no folder"), "{error}");
    Ok(())
}

#[test]
fn a_folder_is_refused() -> Result {
    let folder = Folder::empty()?;
    let path = folder.file("sub");
    std::fs::create_dir(&path)?;
    let error = write_bytes(&path, b"x").expect_err("a folder").to_string();
    assert!(error.contains("sub") && error.contains("name a file"), "{error}");
    assert_eq!(folder.names()?, ["sub"]);
    Ok(())
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    fn mode(path: &std::path::Path) -> Result<u32> {
        Ok(std::fs::metadata(path)?.permissions().mode() & 0o777)
    }

    #[test]
    fn a_new_file_has_the_permissions_of_any_new_file() -> Result {
        let folder = Folder::empty()?;
        folder.write("plain", "x")?;
        write_bytes(&folder.file("ours"), b"x")?;
        // A writer may replace the file with a new one with mode 0600, as the safetensors crate's does.
        write(&folder.file("replaced"), |temporary| {
            tempfile::NamedTempFile::new_in(folder.path())?.persist(temporary)?;
            Ok::<(), Error>(())
        })?;
        let plain = mode(&folder.file("plain"))?;
        assert_eq!((mode(&folder.file("ours"))?, mode(&folder.file("replaced"))?), (plain, plain));
        Ok(())
    }

    #[test]
    fn a_file_that_was_there_keeps_its_permissions() -> Result {
        let folder = Folder::empty()?;
        for bits in [0o640, 0o600, 0o664] {
            folder.write("x", "old")?;
            std::fs::set_permissions(folder.file("x"), std::fs::Permissions::from_mode(bits))?;
            write_bytes(&folder.file("x"), b"new")?;
            assert_eq!(mode(&folder.file("x"))?, bits);
        }
        Ok(())
    }

    #[test]
    fn a_device_is_refused_through_a_link_too() -> Result {
        let folder = Folder::empty()?;
        symlink("/dev/null", folder.file("link"))?;
        // Never name the device itself here: with a bug, the test would replace it for the whole machine.
        let error = write_bytes(&folder.file("link"), b"x").expect_err("a device").to_string();
        assert!(error.contains("link") && error.contains("a device"), "{error}");
        assert_eq!(std::fs::read_link(folder.file("link"))?.as_os_str(), "/dev/null");
        assert!(std::fs::metadata("/dev/null")?.file_type().is_char_device());
        Ok(())
    }

    #[test]
    fn a_link_is_followed() -> Result {
        let folder = Folder::empty()?;
        std::fs::create_dir(folder.file("sub"))?;
        folder.write("sub/target", "old")?;
        symlink("sub/target", folder.file("link"))?;
        write_bytes(&folder.file("link"), b"new")?;
        assert_eq!(std::fs::read(folder.file("sub/target"))?, b"new");
        assert!(folder.file("link").is_symlink());
        Ok(())
    }

    #[test]
    fn a_link_is_followed_to_a_file_that_is_not_there_yet() -> Result {
        let folder = Folder::empty()?;
        std::fs::create_dir(folder.file("sub"))?;
        symlink("sub/target", folder.file("link"))?;
        write_bytes(&folder.file("link"), b"new")?;
        assert_eq!(std::fs::read(folder.file("link"))?, b"new");
        assert!(folder.file("link").is_symlink(), "the link was replaced by a file");
        Ok(())
    }

    #[test]
    fn a_link_to_itself_fails_with_the_systems_reason_and_stays() -> Result {
        let folder = Folder::empty()?;
        symlink("b", folder.file("a"))?;
        symlink("a", folder.file("b"))?;
        let system = std::fs::metadata(folder.file("a")).expect_err("a loop").to_string();
        let error = write_bytes(&folder.file("a"), b"x").expect_err("a loop").to_string();
        assert!(error.contains(&system), "{error}");
        assert!(folder.file("a").is_symlink() && folder.file("b").is_symlink());
        assert_eq!(folder.names()?, ["a", "b"]);
        Ok(())
    }
}

/// Files that a killed process left are removed, but not those of a running one, nor files with similar names.
// On Windows, where a lock keeps its own process from writing, temporary files have none and stay.
#[cfg(unix)]
#[test]
fn abandoned_temporary_files_are_removed_by_the_next_write_into_the_folder() -> Result {
    let folder = Folder::empty()?;
    let names =
        [".gpt2-Ab0xYz.tmp", ".gpt2-living.tmp", ".gpt2-notes.tmp", ".gpt2-Ab0xYz", "gpt2-Ab0xYz.tmp"];
    for name in names {
        folder.write(name, "half")?;
    }
    let living = std::fs::File::open(folder.file(".gpt2-living.tmp"))?;
    living.lock()?;
    write(&folder.file("x"), |_| Err(Error::other("fails"))).expect_err("fails");
    let mut left = names[1..].to_vec();
    left.sort_unstable();
    assert_eq!(folder.names()?, left);
    drop(living);
    write_bytes(&folder.file("x"), b"x")?;
    assert!(!folder.file(".gpt2-living.tmp").exists());
    Ok(())
}

#[test]
fn a_staged_file_takes_its_place_when_it_is_committed_and_not_before() -> Result {
    let folder = Folder::empty()?;
    folder.write("x", "old")?;
    let staged = stage_bytes(&folder.file("x"), b"new")?;
    assert_eq!(std::fs::read(folder.file("x"))?, b"old");
    drop(staged);
    assert_eq!((folder.names()?, std::fs::read(folder.file("x"))?), (vec!["x".into()], b"old".to_vec()));
    stage_bytes(&folder.file("x"), b"new")?.commit()?;
    assert_eq!((folder.names()?, std::fs::read(folder.file("x"))?), (vec!["x".into()], b"new".to_vec()));
    Ok(())
}
