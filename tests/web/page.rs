//! The live page in a browser: the model runs in it, and shows the numbers that it has elsewhere.

use crate::browser::{Browser, browse, browse_in_firefox};
use crate::common::Result;
use base64::{Engine, prelude::BASE64_STANDARD};
use gpt2_loader::Files;
use gpt2_page_module::{LOADER, PACKED};
use gpt2_view::page_fragment;
use gpt2_web::{INTERFACE, Live, LiveFile, PageRequest};
use miniz_oxide::inflate::decompress_to_vec_zlib;
use serde_json::Value;
use std::io::Write;
use std::path::Path;

/// The module for the browser, packed and in base64, and the script that loads it: those in the repository, or in the folder that the variable
/// `PAGE_MODULE` names, where `scripts/web.sh FOLDER` has built them.
pub(crate) fn built() -> Result<(String, String)> {
    let Some(folder) = std::env::var_os("PAGE_MODULE") else {
        return Ok((PACKED.to_owned(), LOADER.to_owned()));
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let loader = std::fs::read_to_string(folder.join("gpt2_web.js"))?;
    let script = std::fs::read_to_string(folder.join("gpt2_web.wasm.js"))?;
    Ok((script.split('"').nth(3).ok_or("the module's text")?.to_owned(), loader))
}

/// Opens the page on a text in Chromium, then in Firefox.
pub(crate) fn open(text: &str, test: impl Fn(&Browser) -> Result) -> Result {
    open_on(None, text, test)
}

/// Opens the page on a text, with `model` in it if there is one, in Chromium, then in Firefox.
pub(crate) fn open_on(model: Option<&Files>, text: &str, test: impl Fn(&Browser) -> Result) -> Result {
    let (module, loader) = built()?;
    let mut file = tempfile::Builder::new().suffix(".html").tempfile()?;
    let first = PageRequest { text: text.to_owned(), ..PageRequest::default() };
    LiveFile { module: &module, loader: &loader, model }.write(&first, &mut file)?;
    file.flush()?;
    let test = |page: &Browser| {
        page.get("document.getElementById('guide-close').click()")?;
        // A low window opens without the fields for drawing.
        page.get("document.getElementById('live-drawing').hidden && document.getElementById('live-settings').click()")?;
        test(page)
    };
    browse(file.path(), test)?;
    browse_in_firefox(file.path(), test)
}

/// Types a text as a whole and waits for its page.
pub(crate) fn enter(page: &Browser, text: &str) -> Result {
    put(page, "live-text", text, "input")?;
    settled(page)
}

/// Puts a value into a field, which hears of an event.
pub(crate) fn put(page: &Browser, id: &str, value: &str, event: &str) -> Result {
    let value = serde_json::to_string(value)?;
    page.get(&format!(
        "(() => {{ const field = document.getElementById('{id}'); field.value = {value}; field.dispatchEvent(new Event('{event}')) }})()"
    ))?;
    Ok(())
}

/// Waits until the page belongs to the last question.
pub(crate) fn settled(page: &Browser) -> Result {
    page.until("document.getElementById('live').dataset.state !== 'asked'")
}

/// The kind under each small map, without a number.
pub(crate) fn labels(page: &Browser) -> Result<Vec<String>> {
    let labels = page.texts("#overview small")?;
    Ok(labels.iter().map(|label| label.split(' ').next().unwrap_or_default().to_owned()).collect())
}

/// The number of tokens and the kind of each head that the page's parts should show.
fn expected(look: &PageRequest) -> Result<(usize, Vec<String>)> {
    expected_of(&Live::demo()?, look)
}

pub(crate) fn expected_of(live: &Live, look: &PageRequest) -> Result<(usize, Vec<String>)> {
    let shown = live.look(look)?;
    let layers = shown.page.lines().filter_map(|line| line.strip_prefix("layer\t"));
    let mut kinds = vec![];
    for layer in layers {
        let layer: Value = serde_json::from_str(layer)?;
        let heads = layer["heads"].as_array().ok_or("heads")?;
        kinds.extend(heads.iter().filter_map(|head| head["kind"].as_str()).map(str::to_owned));
    }
    Ok((shown.ids.len(), kinds))
}

pub(crate) fn look(text: &str) -> PageRequest {
    PageRequest { text: text.to_owned(), ..PageRequest::default() }
}

#[test]
fn the_page_follows_the_text() -> Result {
    open("O Romeo, Romeo", |page| {
        let follows = |text: &str| -> Result {
            let (tokens, kinds) = expected(&look(text))?;
            assert_eq!(page.text("#about")?, format!("{tokens} tokens, 16 heads"), "{text:?}");
            assert_eq!(labels(page)?, kinds, "{text:?}");
            Ok(())
        };
        follows("O Romeo, Romeo")?;
        for text in ["O Romeo, Romeo! wherefore art thou Romeo?", "To be, or not to be", "日本 👩‍👧 <b>x</b>"]
        {
            enter(page, text)?;
            follows(text)?;
        }
        // With real keys; the field keeps the focus.
        enter(page, "O")?;
        page.click("#live-text")?;
        page.keys(" Romeo, O")?;
        page.until("document.getElementById('about').textContent === '5 tokens, 16 heads'")?;
        assert_eq!(page.get("document.activeElement.id")?, "live-text");
        Ok(())
    })
}

#[test]
fn the_chosen_head_stays_and_is_switched_off_and_on() -> Result {
    open("O Romeo, Romeo! wherefore", |page| {
        page.head("0.3")?;
        assert_eq!(page.text("#live-ablate")?, "Switch off head 0.3");
        page.click("#live-ablate")?;
        settled(page)?;
        assert_eq!(page.texts("#runs span")?, ["plain", "ablate 0.3", "both", "difference"]);
        assert_eq!(page.get("document.documentElement.dataset.shown")?, "0.3", "the choice stays");
        assert_eq!(page.text("#live-ablate")?, "Switch on head 0.3");
        page.click("#live-compare")?;
        settled(page)?;
        assert_eq!(page.text("#caption")?, "f32 in this browser, fused attention; ablate 0.3");
        let changed = PageRequest { changes: vec!["ablate 0.3".into()], ..look("O Romeo, Romeo! wherefore") };
        let (_, kinds) = expected(&changed)?;
        let shown = labels(page)?;
        assert_eq!(shown.len(), kinds.len());
        assert!(shown.iter().zip(&kinds).all(|(shown, kind)| shown.starts_with(kind)), "{shown:?}");
        page.click("#live-changes button")?;
        settled(page)?;
        assert_eq!(page.text("#caption")?, "f32 in this browser, fused attention");
        // A link that is cut: the cell of token 3 and token 1.
        page.mouse(page.cell(9, 9, (3, 1))?, true)?;
        page.until("!document.getElementById('live-cut').hidden")?;
        page.click("#live-cut")?;
        settled(page)?;
        assert_eq!(page.texts("#live-changes button")?, ["block 3:1 ✕"]);
        assert_eq!(page.text("#live-cut")?, "Join 3 → 1", "the cell stays chosen");
        page.click("#live-cut")?;
        settled(page)?;
        assert_eq!(page.texts("#live-changes button")?, [""; 0]);
        Ok(())
    })
}

#[test]
fn fields_take_their_own_keys_and_refuse_what_is_no_value() -> Result {
    open("O Romeo, Romeo", |page| {
        page.head("0.3")?;
        page.get("document.getElementById('live-factor').select()")?;
        page.keys("0.75")?;
        assert_eq!(page.get("document.getElementById('live-factor').value")?, "0.75");
        page.click("#live-scale")?;
        settled(page)?;
        assert_eq!(page.texts("#live-changes button")?, ["scale 0.3=0.75 ✕"]);
        page.get("document.getElementById('live-top-k').select()")?;
        page.keys("0")?;
        let status = page.text("#live-status")?;
        assert!(status.starts_with("top-k: "), "{status}");
        // What somebody searches stays while the text changes.
        page.get("document.getElementById('live-top-k').value = ''")?;
        page.click("#search")?;
        page.keys("rome")?;
        enter(page, "O Romeo, Romeo, Romeo")?;
        assert_eq!(page.text("#found")?, "3 found");
        Ok(())
    })
}

#[test]
fn tokens_are_drawn_as_generate_draws_them() -> Result {
    open("ROMEO:", |page| {
        let live = Live::demo()?;
        let mut look = look("ROMEO:");
        let mut text = live.look(&look)?;
        look.prompt = Some(text.ids.len());
        for _ in 0..8 {
            page.click("#live-next")?;
            settled(page)?;
            look.ids = [text.ids, vec![text.next.ok_or("a token")?.id]].concat();
            text = live.look(&look)?;
            assert_eq!(page.get("document.getElementById('live-text').value")?, *text.text);
        }
        let next = text.next.ok_or("a token")?;
        assert_eq!(page.texts("#live-from .drawn span")?, [&*next.token]);
        // A run goes on until it is stopped.
        page.click("#live-run")?;
        page.until("document.getElementById('live-text').value.length > 60")?;
        page.click("#live-run")?;
        assert_eq!(page.text("#live-run")?, "Generate");
        page.click("#live-prompt")?;
        settled(page)?;
        assert_eq!(page.get("document.getElementById('live-text').value")?, "ROMEO:");
        assert_eq!(page.get("document.getElementById('live-prompt').hidden")?, true);
        Ok(())
    })
}

#[test]
fn what_the_model_cannot_read_is_said_and_the_page_stays() -> Result {
    open("O Romeo", |page| {
        for (text, says) in [("", "type a few words"), (&*"word ".repeat(400), "256")] {
            enter(page, text)?;
            let status = page.text("#live-status")?;
            assert!(status.contains(says), "{status}");
            assert_eq!(page.text("#about")?, "3 tokens, 16 heads");
        }
        for text in
            ["\u{0}\u{1b}[31m", "</textarea><script>alert(1)</script>", "\u{202e}x", "\u{fffe} ", "👩‍👩‍👧"]
        {
            enter(page, text)?;
            let (tokens, _) = expected(&look(text))?;
            let about = page.text("#about")?;
            assert_eq!(
                about,
                format!("{tokens} token{}, 16 heads", if tokens == 1 { "" } else { "s" }),
                "{text:?}"
            );
        }
        assert_eq!(page.get("document.querySelectorAll('main').length")?, 1);
        // After a text that was refused, there is nothing to continue.
        enter(page, "")?;
        page.click("#live-next")?;
        assert_eq!(page.get("document.getElementById('live-text').value")?, "");
        Ok(())
    })
}

/// Texts that nobody would type: of emoji, controls, markup, and letters of every script.
pub(crate) fn odd_texts(count: usize) -> Vec<String> {
    const PIECES: [&str; 24] = [
        "O Romeo",
        "<script>alert(1)</script>",
        "</textarea>",
        "&lt;",
        "\u{0}",
        "\u{1b}[31m",
        "\u{7f}",
        "\u{202e}",
        "\u{200d}",
        "👩‍👩‍👧",
        "🏳️‍🌈",
        "日本語",
        "العربية",
        "e\u{301}",
        "\u{fffe}",
        "\u{10ffff}",
        "\n",
        "\t",
        "\r\n",
        "  ",
        "'\"`${x}",
        "%s%n",
        "\\u0000",
        "<|endoftext|>",
    ];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % n as u64).unwrap_or_default()
    };
    let text = |_| {
        let pieces = 1 + below(9);
        let piece = |_| match below(3) {
            0 => {
                char::from_u32(u32::try_from(below(0x11_0000)).unwrap_or_default()).unwrap_or('x').to_string()
            }
            _ => PIECES[below(PIECES.len())].to_owned(),
        };
        (0..pieces).map(piece).collect()
    };
    (0..count).map(text).collect()
}

/// Each text is shown, or refused with a message; the page goes on, and nothing in a text becomes a part of it.
fn survives(count: usize) -> Result {
    open("O Romeo", |page| {
        let live = Live::demo()?;
        for (i, text) in odd_texts(count).iter().enumerate() {
            enter(page, text)?;
            // A field for text makes one line end of every kind.
            let typed = page.get("document.getElementById('live-text').value")?;
            let typed = typed.as_str().ok_or("a text")?;
            match live.look(&look(typed)) {
                Ok(shown) => {
                    let about = page.text("#about")?;
                    assert!(
                        about.starts_with(&format!("{} token", shown.ids.len())),
                        "{i} {text:?}: {about}"
                    );
                }
                Err(error) => assert_eq!(page.text("#live-status")?, error.to_string(), "{i} {text:?}"),
            }
        }
        assert_eq!(page.get("document.querySelectorAll('main, #live').length")?, 2);
        enter(page, "O Romeo, Romeo")?;
        assert_eq!(page.text("#about")?, "6 tokens, 16 heads");
        Ok(())
    })
}

#[test]
fn odd_texts_are_shown() -> Result {
    survives(40)
}

#[test]
#[ignore = "takes minutes: cargo test --release --workspace --test web -- --ignored"]
fn a_thousand_odd_texts_are_shown() -> Result {
    survives(1000)
}

/// Its module and its model are scripts beside it, so that each is in the repository once.
#[test]
fn the_page_of_the_repository_runs_from_disk() -> Result {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/live.html").canonicalize()?;
    let test = |page: &Browser| {
        for text in ["O Romeo, Romeo! wherefore art thou Romeo?", "To be, or not to be"] {
            enter(page, text)?;
            let (tokens, kinds) = expected(&look(text))?;
            assert_eq!(page.text("#about")?, format!("{tokens} tokens, 16 heads"));
            assert_eq!(labels(page)?, kinds);
        }
        Ok(())
    };
    browse(&file, test)?;
    browse_in_firefox(&file, test)
}

/// In the sandboxed frame of a notebook, the model runs as well.
#[test]
fn the_page_runs_in_a_frame_of_a_notebook() -> Result {
    let (module, loader) = built()?;
    let mut page = vec![];
    LiveFile { module: &module, loader: &loader, model: None }.write(&look("O Romeo, Romeo"), &mut page)?;
    let mut file = tempfile::Builder::new().suffix(".html").tempfile()?;
    write!(file, "<!doctype html><title>A notebook</title>{}", page_fragment(&page, 800))?;
    writeln!(file, "<script>performance.mark('ready')</script>")?;
    file.flush()?;
    let test = |page: &Browser| {
        page.frame("iframe")?;
        page.until("document.getElementById('live').dataset.state === 'shown'")?;
        assert_eq!(page.text("#about")?, "6 tokens, 16 heads");
        page.click("#live-next")?;
        settled(page)?;
        assert_eq!(page.text("#about")?, "7 tokens, 16 heads");
        Ok(())
    };
    browse(file.path(), test)?;
    browse_in_firefox(file.path(), test)
}

/// The text field keeps its text, whatever comes of questions that were asked before.
#[test]
fn what_is_typed_or_taken_back_stays() -> Result {
    open("ROMEO:", |page| {
        let text = || page.get("document.getElementById('live-text').value");
        put(page, "live-top-k", "0", "input")?;
        put(page, "live-text", "My lord", "input")?;
        page.click("#live-next")?;
        assert_eq!(text()?, "My lord");
        put(page, "live-top-k", "", "input")?;
        settled(page)?;
        assert_eq!(text()?, "My lord");
        // In one go, so that an answer is on its way when the tokens are taken back.
        page.get("document.getElementById('live-run').click()")?;
        page.until("document.getElementById('live-text').value.length > 20")?;
        page.get("document.getElementById('live-prompt').click()")?;
        put(page, "live-temperature", "0.5", "input")?;
        settled(page)?;
        assert_eq!(text()?, "My lord");
        Ok(())
    })
}

/// A module whose requests or answers have changed since would not understand the page, nor the page its answers.
#[test]
fn the_module_has_the_interface_of_its_sources() -> Result {
    let module =
        decompress_to_vec_zlib(&BASE64_STANDARD.decode(built()?.0)?).map_err(|error| error.to_string())?;
    let is_there = module.windows(INTERFACE.len()).any(|bytes| bytes == INTERFACE.as_bytes());
    assert!(is_there, "the module of crates/page-module is older than crates/web/src; run: scripts/web.sh");
    Ok(())
}
