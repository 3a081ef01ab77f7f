//! The page of an attribution graph: one file that needs no network.
//!
//! The report stands in the page as data, and its script draws it: `graph_data.js` reads the report and the address, `graph_map.js`
//! draws the nodes and edges, `graph_side.js` shows what is known of the chosen node and the groups of nodes.

use super::frame::{filled, shared_name};
use crate::provenance::{all_without_folders, without_folders};
use crate::text::shell_word;
use serde::Serialize;
use serde_json::{Value, json};

const FRAME: &str = include_str!("graph.html");
const STYLE: &str = concat!(include_str!("style.css"), include_str!("graph.css"));
const SCRIPT: &str = concat!(
    include_str!("common.js"),
    include_str!("graph_data.js"),
    include_str!("graph_map.js"),
    include_str!("graph_side.js")
);

/// The page of a report of `gpt2 graph`; the script reads the same names. Folders are the author's, and stay out of it.
///
/// # Errors
/// When the report cannot be serialized.
pub fn graph_page(report: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    // By way of its text, which has the few digits of an f32.
    let mut report = serde_json::from_slice(&serde_json::to_vec(report)?)?;
    share(&mut report);
    // In JSON, `<` stands in strings only, so that no text ends the element.
    let data = serde_json::to_string(&report)?.replace('<', "\\u003c");
    let page = filled(FRAME, STYLE, SCRIPT);
    let (before, after) = page.split_once("{{data}}").unwrap_or((&page, ""));
    Ok([before, &data, after].concat().into_bytes())
}

/// Keeps of the provenance what the page shows, and of names their last parts, also in the command. Notes whether one was shortened.
fn share(report: &mut Value) {
    if let Some(made) = report.get_mut("provenance") {
        *made = json!({
            "gpt2": made["gpt2"],
            "model": shared_name(&made["model"]),
            "ids": made["ids"],
            "dtype": made["dtype"],
            "device": made["device"],
            "implementation": made["implementation"],
        });
    }
    let mut shortened = false;
    let dictionaries = report.get_mut("dictionaries").and_then(Value::as_array_mut);
    let mut names: Vec<&mut Value> =
        dictionaries.into_iter().flatten().filter_map(|one| one.get_mut("name")).collect();
    let before: Vec<String> = names.iter().map(|name| name.as_str().unwrap_or_default().to_owned()).collect();
    let short = all_without_folders(&before.iter().map(String::as_str).collect::<Vec<_>>());
    for ((name, before), short) in names.iter_mut().zip(before).zip(short) {
        shortened |= before != short;
        **name = short.into();
    }
    let model = report.get("model").and_then(Value::as_str).map(str::to_owned);
    if let Some(model) = model {
        let short = without_folders(&model);
        shortened |= model != short;
        if let Some(command) = report.get("command").and_then(Value::as_str) {
            let option = |name: &str| format!(" --model {}", shell_word(name));
            report["command"] = command.replace(&option(&model), &option(&short)).into();
        }
        report["model"] = short.into();
    }
    if shortened {
        report["has_short_names"] = true.into();
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::hash;
    use super::*;

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

    #[test]
    fn folders_of_the_author_stay_out_of_the_page() -> serde_json::Result<()> {
        let report = json!({
            "model": "/home/me/m",
            "command": "gpt2 forward --ids 1 --model /home/me/m --dtype f16",
            "provenance": { "gpt2": "0.1.0", "model": "/home/me/m", "folder": "/home/me/m", "ids": [1], "adapters": [{ "name": "/home/me/a" }] },
            "dictionaries": [{ "name": "/home/me/secret-9/t0", "features": 3 }, { "name": "owner/name" }],
        });
        let page = String::from_utf8_lossy(&graph_page(&report)?).into_owned();
        assert!(!page.contains("/home/me") && !page.contains("secret-9"));
        for kept in [
            "\"name\":\"t0\"",
            "\"name\":\"owner/name\"",
            "\"model\":\"m\"",
            "\"features\":3",
            "--ids 1 --model m --dtype f16",
            "\"has_short_names\":true",
        ] {
            assert!(page.contains(kept), "{kept}");
        }
        Ok(())
    }
}
