//! docs/notebooks.md: its Python runs, with the binary on the `PATH` and a stand-in for `IPython.display`.

use crate::common::Result;
use crate::folder::{Folder, assert_says};
use std::io::Write;
use std::path::Path;
use std::process::Command;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/notebooks.md");

/// Without Python, this fails under CI, and elsewhere says that it was skipped.
#[test]
fn the_snippets_of_the_page_run() -> Result {
    let found = Command::new("python3").arg("--version").output();
    if found.is_err() || cfg!(windows) {
        assert!(std::env::var_os("CI").is_none(), "install python3");
        // Bypass the capture of output: a test that did not run must not look like one that did.
        writeln!(std::io::stderr(), "SKIPPED the snippets of docs/notebooks.md: there is no python3")?;
        return Ok(());
    }
    let page = std::fs::read_to_string(PAGE)?;
    let snippets: Vec<&str> =
        page.split("```python\n").skip(1).filter_map(|part| part.split("```").next()).collect();
    assert_eq!(snippets.len(), 2);
    let folder = Folder::empty()?;
    std::fs::create_dir(folder.file("IPython"))?;
    folder.write("IPython/__init__.py", "")?;
    folder.write("IPython/display.py", "HTML = str\n")?;
    // A notebook shows the value of a cell's last line.
    let shown = |snippet: &str| {
        let (before, last) = snippet.trim_end().rsplit_once('\n').unwrap_or(("", snippet));
        format!("{before}\nprint({last})\n")
    };
    let refused =
        "\ntry:\n    attention(\"x\", \"--layer\", \"9\")\nexcept RuntimeError as error:\n    print(error)\n";
    let script = format!("{}{refused}{}", shown(snippets[0]), shown(snippets[1]));
    folder.write("cells.py", script)?;
    let binaries = Path::new(env!("CARGO_BIN_EXE_gpt2")).parent().ok_or("a folder")?.to_path_buf();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([binaries].into_iter().chain(std::env::split_paths(&path)))?;
    let run = Command::new("python3")
        .arg(folder.file("cells.py"))
        .env("PATH", path)
        .env("PYTHONPATH", folder.path())
        .output()?;
    let (stdout, stderr) = (String::from_utf8(run.stdout)?, String::from_utf8(run.stderr)?);
    assert!(run.status.success(), "{stderr}");
    assert!(stdout.starts_with("<iframe"), "{}", &stdout[..stdout.len().min(200)]);
    assert_says("the error", &stdout, &["there is no layer 9", "'layer': 1, 'head': 0"]);
    Ok(())
}
