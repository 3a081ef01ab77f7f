//! A page inside another document, for notebooks.

/// A page as an element to put into another document: an `iframe` that holds the whole page and needs no file.
///
/// The frame is `height` CSS pixels high and as wide as its place. It is sandboxed: the page runs its own script and
/// offers files to save, but cannot touch the document around it. A Jupyter kernel shows it as `text/html`.
#[must_use]
pub fn page_fragment(page: &[u8], height: u32) -> String {
    let page = String::from_utf8_lossy(page);
    let mut text = String::with_capacity(page.len() + page.len() / 64 + 256);
    let height = height.to_string();
    for part in [
        "<iframe title=\"Attention\" sandbox=\"allow-scripts allow-downloads\" allow=\"clipboard-write\" ",
        "style=\"width:100%;height:",
        &height,
        "px;border:0\" srcdoc=\"",
    ] {
        text.push_str(part);
    }
    // Inside quotes, only these two characters mean anything.
    for c in page.chars() {
        match c {
            '&' => text.push_str("&amp;"),
            '"' => text.push_str("&quot;"),
            c => text.push(c),
        }
    }
    text.push_str("\"></iframe>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_page_ends_its_attribute() {
        let page = "<!doctype html>\n<p title=\"a\">&lt;b&gt; '\u{1f600}' </iframe></p>";
        let fragment = page_fragment(page.as_bytes(), 640);
        assert!(
            fragment.contains("height:640px")
                && fragment.contains("sandbox=\"allow-scripts allow-downloads\"")
        );
        let (_, rest) = fragment.split_once(" srcdoc=\"").expect("the page");
        let (held, end) = rest.split_once('"').expect("an end");
        assert_eq!(end, "></iframe>\n", "the first quote ends the attribute, and nothing follows");
        assert_eq!(held.replace("&quot;", "\"").replace("&amp;", "&"), page);
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        assert!(page_fragment(b"a\xff", 1).contains("srcdoc=\"a\u{fffd}\""));
    }
}
