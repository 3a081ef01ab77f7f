//! Finds and opens an MPI library.
#![allow(unsafe_code)] // opening a library runs its own code

use crate::error::{Error, Result};
use crate::joining::{Launcher, OPEN_MPI};
use std::path::{Path, PathBuf};

#[cfg(unix)]
pub(super) use libloading::os::unix::Library;
#[cfg(windows)]
pub(super) use libloading::os::windows::Library;

/// The variable that names the library.
const VARIABLE: &str = "GPT2_MPI";
#[cfg(not(target_os = "macos"))]
const OPEN_MPI_NAMES: &[&str] = &["libmpi.so.40", "libmpi.so"];
#[cfg(target_os = "macos")]
const OPEN_MPI_NAMES: &[&str] = &["libmpi.40.dylib", "libmpi.dylib"];
/// In the order in which they are tried: the ABI that MPI 5 fixes, then MPICH's own.
#[cfg(not(target_os = "macos"))]
const MPICH_NAMES: &[&str] = &["libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.12", "libmpich.so.12"];
#[cfg(target_os = "macos")]
const MPICH_NAMES: &[&str] = &["libmpi_abi.1.dylib", "libmpi_abi.0.dylib", "libmpi.12.dylib"];

/// A library, and whether its constants are those of MPI 5's ABI.
pub(super) struct OpenedLibrary {
    pub(super) library: Library,
    pub(super) path: PathBuf,
    pub(super) is_standard: bool,
}

/// Opens the library that belongs to the launcher.
pub(super) fn open(launcher: Option<&Launcher>) -> Result<OpenedLibrary> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        let path = PathBuf::from(path);
        return try_open(&path).map_err(|reason| Error::NotALibrary { path, reason });
    }
    // The launcher's own library comes first: its processes cannot meet over another.
    let candidates = candidates(launcher, &prefixes());
    for path in &candidates {
        if let Ok(opened) = try_open(path) {
            return Ok(opened);
        }
    }
    let tried = candidates.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    Err(Error::NoLibrary { tried })
}

/// The paths and names to try, in this order.
fn candidates(launcher: Option<&Launcher>, prefixes: &[PathBuf]) -> Vec<PathBuf> {
    let names: Vec<&str> = match launcher {
        Some(launcher) if launcher.name == OPEN_MPI => OPEN_MPI_NAMES.to_vec(),
        Some(launcher) if launcher.name.starts_with("MPICH") => MPICH_NAMES.to_vec(),
        _ => [OPEN_MPI_NAMES, MPICH_NAMES].concat(),
    };
    let beside = prefixes.iter().flat_map(|prefix| ["lib", "lib64"].map(|folder| prefix.join(folder)));
    let beside =
        beside.flat_map(|folder| names.iter().map(move |name| folder.join(name)).collect::<Vec<_>>());
    let mut found: Vec<PathBuf> = beside.filter(|path| path.exists()).collect();
    found.dedup();
    // The loader of the system looks these up.
    found.extend(names.iter().map(PathBuf::from));
    found
}

/// The folders in which the launcher is installed: that of the process that started this one, and that of the mpiexec
/// that a shell would find.
fn prefixes() -> Vec<PathBuf> {
    let prefix = |program: PathBuf| Some(program.parent()?.parent()?.to_path_buf());
    let parent = std::fs::read_link(format!("/proc/{}/exe", parent_id())).ok();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path)
        .map(|folder| folder.join("mpiexec"))
        .find_map(|program| std::fs::canonicalize(program).ok());
    parent.into_iter().chain(on_path).filter_map(prefix).collect()
}

#[cfg(unix)]
fn parent_id() -> u32 {
    std::os::unix::process::parent_id()
}

#[cfg(not(unix))]
fn parent_id() -> u32 {
    0
}

fn try_open(path: &Path) -> std::result::Result<OpenedLibrary, String> {
    if cfg!(not(target_pointer_width = "64")) {
        return Err("MPI is supported on 64-bit machines only".into());
    }
    let library = open_global(path)?;
    // A link may have another name.
    let file = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let is_standard = [path, &file].iter().any(|path| path.to_string_lossy().contains("libmpi_abi."));
    Ok(OpenedLibrary { library, path: path.to_path_buf(), is_standard })
}

/// Open MPI opens parts of itself later on, which look for its functions among those of the whole program.
#[cfg(unix)]
fn open_global(path: &Path) -> std::result::Result<Library, String> {
    use libloading::os::unix::{RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: the library's initializers run, as they would had this program been linked to it.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(|e| e.to_string())
}

#[cfg(windows)]
fn open_global(_: &Path) -> std::result::Result<Library, String> {
    Err("MPI is not supported on Windows".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launchers_own_library_comes_before_that_of_the_system() {
        let here = std::env::temp_dir().join(format!("gpt2-parallel-{}", std::process::id()));
        let own = here.join("lib").join(OPEN_MPI_NAMES[0]);
        std::fs::create_dir_all(here.join("lib")).expect("a folder");
        std::fs::write(&own, "").expect("a file");
        let launcher = |name| Launcher { name, size: 2, rank: 0, local_size: None };
        let names = |launcher: Option<Launcher>| candidates(launcher.as_ref(), std::slice::from_ref(&here));
        let of_open_mpi = names(Some(launcher(OPEN_MPI)));
        assert_eq!(of_open_mpi[..2], [own, PathBuf::from(OPEN_MPI_NAMES[0])]);
        std::fs::remove_dir_all(&here).expect("the folder");
        assert_eq!(names(Some(launcher("MPICH's mpiexec"))).len(), MPICH_NAMES.len());
        assert_eq!(names(None).len(), OPEN_MPI_NAMES.len() + MPICH_NAMES.len());
    }
}
