//! Folders whose files appear all together, or not at all.

use crate::common::Result;
use crate::folder::{Folder, names_in};
use gpt2_files::folder::{OwnFolder, StagedFolder, commit};
use gpt2_files::unfinished::NewFolders;
use std::path::Path;

/// Stages an index and data beside it; content tells runs apart.
fn staged(folder: &Path, overwrite: bool, files: usize, content: &str) -> Result<StagedFolder> {
    let mut staged = StagedFolder::new(folder, overwrite)?;
    staged.add("index", content.as_bytes())?;
    for number in 0..files {
        staged.add(&format!("data/{number}"), content.as_bytes())?;
    }
    Ok(staged)
}

#[test]
fn all_files_appear_with_the_commit_and_old_ones_go() -> Result {
    let folder = Folder::empty()?;
    let out = folder.file("a/b/out");
    let first = staged(&out, false, 3, "first")?;
    assert_eq!(names_in(&out)?.len(), 1, "the temporary folder alone");
    commit(vec![first])?;
    assert_eq!(names_in(&out)?, ["data", "index"]);
    assert_eq!(names_in(&out.join("data"))?, ["0", "1", "2"]);
    std::fs::write(out.join("data/own"), "the user's")?;
    let mut second = staged(&out, true, 1, "second")?;
    for name in ["index", "data/0", "data/1", "data/2"] {
        second.take_away(name.as_ref())?;
    }
    assert_eq!(std::fs::read_to_string(out.join("index"))?, "first");
    commit(vec![second])?;
    assert_eq!(names_in(&out.join("data"))?, ["0", "own"]);
    for name in ["index", "data/0"] {
        assert_eq!(std::fs::read_to_string(out.join(name))?, "second");
    }
    assert_eq!(names_in(&out)?, ["data", "index"]);
    Ok(())
}

#[test]
fn what_is_not_committed_leaves_nothing() -> Result {
    let folder = Folder::empty()?;
    // Folders that share a new one above them.
    let one = staged(&folder.file("new/one/deep"), false, 2, "x")?;
    let two = staged(&folder.file("new/two"), false, 2, "x")?;
    drop(vec![one, two]);
    assert!(folder.names()?.is_empty());
    // One folder in the other, dropped from the outside in.
    let outer = NewFolders::make(&folder.file("new"))?;
    let inner = NewFolders::make(&folder.file("new/inner"))?;
    drop(outer);
    drop(inner);
    assert!(folder.names()?.is_empty());
    // What was there stays, empty or not.
    std::fs::create_dir(folder.file("there"))?;
    drop(staged(&folder.file("there"), false, 1, "x")?);
    assert!(names_in(&folder.file("there"))?.is_empty());
    Ok(())
}

#[test]
fn a_commit_that_fails_leaves_everything_as_it_was() -> Result {
    let folder = Folder::empty()?;
    let old = folder.file("old");
    let new = folder.file("new");
    commit(vec![staged(&old, false, 2, "first")?])?;
    let mut again = staged(&old, true, 1, "second")?;
    for name in ["index", "data/0", "data/1"] {
        again.take_away(name.as_ref())?;
    }
    let other = staged(&new, false, 1, "second")?;
    // Of two folders, the second fails: another program was there first.
    std::fs::write(new.join("index"), "another's")?;
    let error = commit(vec![again, other]).expect_err("a file is there").to_string();
    assert!(error.contains("index") && error.contains("meanwhile"), "{error}");
    assert_eq!(names_in(&old.join("data"))?, ["0", "1"]);
    for name in ["index", "data/0", "data/1"] {
        assert_eq!(std::fs::read_to_string(old.join(name))?, "first", "{name}");
    }
    assert_eq!((names_in(&old)?.len(), names_in(&new)?), (2, vec!["index".to_owned()]));
    assert_eq!(std::fs::read_to_string(new.join("index"))?, "another's");
    // A move of the second half fails: its folder is a file by now.
    let other = staged(&folder.file("third"), false, 1, "third")?;
    std::fs::write(folder.file("third/data"), "another's")?;
    assert!(commit(vec![other]).is_err());
    assert_eq!(names_in(&folder.file("third"))?, ["data"]);
    Ok(())
}

#[test]
fn what_cannot_be_written_is_refused_at_once() -> Result {
    let folder = Folder::empty()?;
    folder.write("file", "x")?;
    let refused = |name: &str| StagedFolder::new(&folder.file(name), false).expect_err(name).to_string();
    assert!(refused("file").contains("file: is a file; name a folder"));
    assert!(refused("file/below").contains("below"));
    std::fs::create_dir_all(folder.file("out/5.js"))?;
    let mut staged = StagedFolder::new(&folder.file("out"), true)?;
    let error = staged.take_away("5.js".as_ref()).expect_err("a folder").to_string();
    assert!(error.contains("5.js") && error.contains("is a folder"), "{error}");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(folder.file("file"), folder.file("out/7.js"))?;
        let error = staged.take_away("7.js".as_ref()).expect_err("a link").to_string();
        assert!(error.contains("7.js: is a link") && error.contains("remove it"), "{error}");
    }
    Ok(())
}

#[cfg(unix)]
#[test]
fn one_process_writes_a_folder_and_removes_what_a_dead_one_left() -> Result {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::empty()?;
    let out = folder.file("out");
    std::fs::create_dir_all(out.join(".gpt2-abc123.tmp"))?;
    // Killed in the middle of a commit: the old files are the user's only ones until new ones are whole.
    std::fs::create_dir_all(out.join(".gpt2-abc456.tmp/old/data"))?;
    let first = StagedFolder::new(&out, false)?;
    assert!(!out.join(".gpt2-abc123.tmp").exists());
    assert!(out.join(".gpt2-abc456.tmp/old/data").exists());
    let error = OwnFolder::make(&out).expect_err("locked").to_string();
    assert!(error.contains("another run writes to this folder"), "{error}");
    drop(first);
    // A file keeps its permissions; any other has those of a new one.
    commit(vec![staged(&out, false, 1, "first")?])?;
    assert_eq!(names_in(&out)?, ["data", "index"]);
    let mode = |name: &str| Ok::<_, std::io::Error>(out.join(name).metadata()?.permissions().mode());
    std::fs::write(out.join("plain"), "x")?;
    assert_eq!(mode("index")?, mode("plain")?);
    std::fs::set_permissions(out.join("index"), std::fs::Permissions::from_mode(0o640))?;
    commit(vec![staged(&out, true, 1, "second")?])?;
    assert_eq!((mode("index")? & 0o777, mode("data/0")?), (0o640, mode("plain")?));
    Ok(())
}
