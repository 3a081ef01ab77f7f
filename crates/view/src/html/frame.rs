//! The page around its data: frame, style and script.

use base64::{Engine, prelude::BASE64_STANDARD};
use candle_core::Result;
use sha2::{Digest, Sha256};
use std::io::Write;

const FRAME: &str = include_str!("page.html");
pub(super) const STYLE: &str = include_str!("style.css");
/// The function `showPage`, which draws the blocks of data that it gets.
macro_rules! show {
    () => {
        concat!(
            "function showPage(blocks, signal, choices, addition = () => \"\") {\n",
            include_str!("js/data.js"),
            include_str!("js/weights.js"),
            include_str!("js/state.js"),
            include_str!("js/link.js"),
            include_str!("js/raster.js"),
            include_str!("js/numbers.js"),
            include_str!("js/overview.js"),
            include_str!("js/axes.js"),
            include_str!("js/map.js"),
            include_str!("js/lines.js"),
            include_str!("js/token.js"),
            include_str!("js/features.js"),
            include_str!("js/circuit.js"),
            include_str!("js/search.js"),
            include_str!("js/neurons.js"),
            include_str!("js/steps.js"),
            include_str!("js/save.js"),
            include_str!("js/words.js"),
            include_str!("js/guide.js"),
            include_str!("js/main.js"),
            "}\n",
        )
    };
}
pub(super) const SHOW: &str = show!();
pub(super) const SCRIPT: &str = concat!(show!(), include_str!("js/start.js"));

/// The frame up to its data: the policy, of which this is the part that differs; the style; and what stands above the page.
pub(super) fn write_frame(out: &mut impl Write, policy: &str, style: &str, bar: &str) -> Result<()> {
    let head = between("", "{{data}}").replace("{{policy}}", policy).replace("{{style}}", style);
    Ok(out.write_all(head.replace("{{bar}}", bar).as_bytes())?)
}

/// Writes the frame's part after the data, with the script.
pub(super) fn write_end(out: &mut impl Write, script: &str) -> Result<()> {
    out.write_all(between("{{data}}", "{{script}}").as_bytes())?;
    out.write_all(script.as_bytes())?;
    Ok(out.write_all(between("{{script}}", "").as_bytes())?)
}

/// The part of the frame between two placeholders; an empty one stands for its start or its end.
fn between(from: &str, to: &str) -> &'static str {
    let rest = FRAME.split_once(from).filter(|_| !from.is_empty()).map_or(FRAME, |(_, rest)| rest);
    rest.split_once(to).filter(|_| !to.is_empty()).map_or(rest, |(part, _)| part)
}

/// The hash by which a content security policy names a script or a style.
pub(super) fn hash(text: &str) -> String {
    BASE64_STANDARD.encode(Sha256::digest(text))
}
