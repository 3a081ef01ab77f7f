//! The page of an attribution graph: one file that needs no network.
//!
//! The report stands in the page as data, and its script draws it: `graph_data.js` reads the report and the address, `graph_map.js`
//! draws the nodes and edges, `graph_side.js` shows what is known of the chosen node and the groups of nodes.

use super::frame::filled;
use serde::Serialize;

const FRAME: &str = include_str!("graph.html");
const STYLE: &str = concat!(include_str!("style.css"), include_str!("graph.css"));
const SCRIPT: &str = concat!(
    include_str!("common.js"),
    include_str!("graph_data.js"),
    include_str!("graph_map.js"),
    include_str!("graph_side.js")
);

/// The page of a report of `gpt2 graph`; the script reads the same names.
///
/// # Errors
/// When the report cannot be serialized.
pub fn graph_page(report: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    // In JSON, `<` stands in strings only, so that no text ends the element.
    let data = serde_json::to_string(report)?.replace('<', "\\u003c");
    let page = filled(FRAME, STYLE, SCRIPT);
    let (before, after) = page.split_once("{{data}}").unwrap_or((&page, ""));
    Ok([before, &data, after].concat().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::frame::hash;
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn data_stay_data_and_policies_name_what_stands_in_the_page() -> serde_json::Result<()> {
        let report = json!({ "graph": "</script><!--{{data}}{{script}}\u{2028}\"\\" });
        let page = String::from_utf8_lossy(&graph_page(&report)?).into_owned();
        for part in [STYLE, SCRIPT] {
            assert!(page.contains(part) && page.contains(&hash(part)));
            assert!(!part.contains("{{") && !part.contains("</"));
        }
        assert_eq!(page.matches("</script>").count(), 2);
        let (_, data) = page.split_once("type=\"application/json\">").expect("data");
        let (data, _) = data.split_once("</script>").expect("an end");
        assert_eq!(serde_json::from_str::<Value>(data)?, report);
        Ok(())
    }
}
