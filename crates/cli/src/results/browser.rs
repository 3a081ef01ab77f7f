//! Opens a page in the browser.

use crate::output::note;
use anyhow::{Context, anyhow};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// The time to wait for a launcher to fail. One that is still running by then is the browser's own process.
const LAUNCH: Duration = Duration::from_secs(3);

/// Opens the page in a browser: the file at `path`, or a temporary one that is kept.
pub(crate) fn open(path: Option<&Path>, page: &[u8]) -> anyhow::Result<()> {
    let path = if let Some(path) = path {
        path.to_path_buf()
    } else {
        let mut file = tempfile::Builder::new().prefix("gpt2-attention-").suffix(".html").tempfile()?;
        file.write_all(page)?;
        let path = file.keep().context("cannot keep the temporary file")?.1;
        note(&format!("wrote {}", path.display()));
        path
    };
    launch(&path).map_err(|_| NoBrowser(path).into())
}

/// The system has no program that opens pages, or that failed.
#[derive(Debug)]
pub(crate) struct NoBrowser(PathBuf);

impl std::fmt::Display for NoBrowser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot open a browser here; open this file in one yourself: {}", self.0.display())
    }
}

impl std::error::Error for NoBrowser {}

/// Opens `path` with the system's program for opening pages.
fn launch(path: &Path) -> anyhow::Result<()> {
    let path = std::path::absolute(path)?;
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        // Once the time is up, nobody receives this.
        let _ = send.send(open::that(path));
    });
    match receive.recv_timeout(LAUNCH) {
        Ok(result) => result.map_err(|e| anyhow!(e)),
        Err(mpsc::RecvTimeoutError::Timeout) => Ok(()),
        Err(e @ mpsc::RecvTimeoutError::Disconnected) => Err(anyhow!(e)),
    }
}
