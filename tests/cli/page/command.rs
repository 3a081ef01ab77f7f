//! `--html` and `--open`, run as a person would run them, without a browser.

use crate::common::Result;
use crate::{Run, command};
use std::path::Path;

#[test]
fn a_page_of_chosen_heads_holds_those_alone() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("page.html");
    let args = ["attention", "O Romeo", "--layer", "1-2", "--head", "3", "--html"];
    let run = Run::of(command(&args).arg(&path).output()?)?.succeeded();
    assert!(run.stdout.contains("\n\nlayer 1, head 3: "), "the heat maps are printed as ever");
    let page = std::fs::read_to_string(&path)?;
    assert_eq!(page.matches("class=\"weights\"").count(), 2);
    assert!(page.contains("{\"layer\":1,\"heads\":[{\"head\":3,") && page.contains("{\"layer\":2,"));
    Ok(())
}

#[test]
fn a_page_that_cannot_be_written_is_an_error_before_the_results() -> Result {
    let path = Path::new("no").join("such").join("folder").join("page.html");
    for chosen in [&[][..], &["--layer", "1"]] {
        let args = [&["attention", "O Romeo"][..], chosen, &["--html"]].concat();
        Run::of(command(&args).arg(&path).output()?)?
            .refused(1, &["page.html", "no folder", "make it first"]);
    }
    Ok(())
}

#[test]
#[cfg(target_os = "linux")]
fn without_a_browser_the_page_is_named_and_stays() -> Result {
    let folder = tempfile::tempdir()?;
    let mut command = command(&["attention", "O Romeo", "--open"]);
    let run = Run::of(command.env("PATH", folder.path()).env("TMPDIR", folder.path()).output()?)?;
    run.refused(1, &["cannot open a browser", "open this file in one", "gpt2-attention-", ".html"]);
    let kept: Vec<_> = std::fs::read_dir(folder.path())?.collect::<std::io::Result<_>>()?;
    let [page] = &kept[..] else { panic!("{kept:?}") };
    assert!(std::fs::read_to_string(page.path())?.ends_with("</html>\n"), "a whole page");
    Ok(())
}
