//! A page inside a notebook's frame, which has no address, no storage and no rights of its own.

use crate::browser::browse;
use crate::common::Result;
use crate::pages::Everything;
use gpt2_view::page_fragment;

#[test]
fn a_page_works_in_a_frame_without_rights() -> Result {
    let all = Everything::new(12)?;
    let held = all.write(Vec::new(), &["clean", "patched"])?;
    // The outer page stands for a notebook: it hears from the inner one only what the frame's script may send.
    let outer = format!(
        "<!doctype html><meta charset=utf-8><title>a \"notebook\"</title><p style=\"height:700px\">above</p>{}<script>performance.mark('ready')</script>",
        page_fragment(&held, 640)
    );
    let file = tempfile::Builder::new().suffix(".html").tempfile()?;
    std::fs::write(file.path(), outer)?;
    browse(file.path(), |page| {
        assert_eq!(page.get("document.querySelector('iframe').clientHeight")?, 640);
        assert_eq!(
            page.get("document.querySelector('iframe').contentDocument")?,
            serde_json::Value::Null,
            "no rights"
        );
        assert_eq!(page.get("scrollY")?, 0, "a page that opens does not scroll the notebook to itself");
        page.frame("iframe")?;
        page.until("document.documentElement.dataset.shown === '0.0'")?;
        assert_eq!(page.texts("#runs label")?, ["clean", "patched", "both", "difference"]);
        // A choice would go into the address, which a frame does not have.
        page.click("#following-head")?;
        page.until("document.documentElement.dataset.shown === '0.1'")?;
        page.get("document.getElementById('theme').click()")?;
        std::thread::sleep(std::time::Duration::from_millis(600));
        assert_eq!(page.log()?, serde_json::json!([]));
        assert_eq!(page.get("document.body.scrollHeight >= 480")?, true);
        Ok(())
    })
}
