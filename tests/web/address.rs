//! The state of the page in its address: a link opens what it was taken from, and nothing in an address becomes a part of the page.

use crate::browser::Browser;
use crate::common::Result;
use crate::page::{enter, odd_texts, open, settled};
use gpt2_web::{Live, PageRequest};
use serde_json::{Value, json};
use std::fmt::Write;

/// A text as a part of an address.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => out.push(char::from(byte)),
            _ => write!(out, "%{byte:02X}").unwrap_or_default(),
        }
    }
    out
}

fn address(parts: &[(&str, &str)]) -> String {
    let parts: Vec<String> = parts.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    parts.join("&")
}

/// The state that a reader sees.
const STATE: &str = "(() => {
    const at = (id) => document.getElementById(id);
    return {
        text: at('live-text').value,
        changes: [...at('live-changes').querySelectorAll('button')].map((one) => one.textContent.replace(' ✕', '')),
        settings: ['temperature', 'top-k', 'top-p', 'seed'].map((name) => at('live-' + name).value),
        compare: at('live-compare').checked,
        lesson: at('lesson').hidden ? null : +at('lesson-choice').value + 1,
        way: !at('way').hidden,
        head: document.documentElement.dataset.shown,
        token: at('token-title').textContent,
        presents: document.documentElement.classList.contains('presenting'),
    };
})()";

/// Goes to an address in the open page, and waits for what it shows.
fn go(page: &Browser, address: &str) -> Result {
    page.get("(window.arrived = false, addEventListener('hashchange', () => (window.arrived = true), { once: true }), 0)")?;
    page.get(&format!("(location.hash = {})", serde_json::to_string(address)?))?;
    page.until("window.arrived")?;
    settled(page)
}

/// The address that the page has written of its state.
fn written(page: &Browser, text: &str) -> Result<String> {
    let text = serde_json::to_string(text)?;
    page.until(&format!("new URLSearchParams(location.hash.slice(1)).get('text') === {text}"))?;
    // It is written 0.4 s after the last change.
    std::thread::sleep(std::time::Duration::from_millis(600));
    Ok(page.get("location.hash.slice(1)")?.as_str().unwrap_or_default().to_owned())
}

/// A state as an address asks for it, and as it should be seen.
fn wanted(n: usize, text: &str) -> Result<Option<(String, Value)>> {
    const CHANGES: [&[&str]; 5] = [
        &[],
        &["ablate 0.3"],
        &["scale 1.2=0.5", "block 1:0"],
        &["temperature 0.2=0.1768"],
        &["ablate 1.1", "ablate 3.0"],
    ];
    // A field for text makes one line end of every kind.
    let text = &*text.replace("\r\n", "\n").replace('\r', "\n");
    let look = PageRequest { text: text.to_owned(), ..PageRequest::default() };
    let Ok(shown) = Live::demo()?.look(&look) else { return Ok(None) };
    let tokens = shown.ids.len();
    let changes = if tokens < 2 { CHANGES[1] } else { CHANGES[n % 5] };
    let settings = [["1", "40", "1", "0"], ["0.5", "5", "0.9", "7"], ["0", "", "1", "12345"]][n % 3];
    let head = format!("{}.{}", n % 4, n / 4 % 4);
    let token = n % tokens;
    let lesson = (n % 4 == 1).then_some(1 + n % 10);
    let is_compared = n % 7 != 2;
    let presents = n % 6 == 5;
    let mut parts = vec![("text", text.to_owned()), ("head", head.clone()), ("token", token.to_string())];
    parts.extend(changes.iter().map(|change| ("change", (*change).to_owned())));
    let names = ["temperature", "top-k", "top-p", "seed"];
    parts.extend(names.into_iter().zip(settings).map(|(name, value)| (name, value.to_owned())));
    parts.extend(lesson.map(|lesson| ("lesson", lesson.to_string())));
    let flags = [("compare", "no", !is_compared), ("way", "open", n % 8 == 3), ("present", "yes", presents)];
    parts.extend(flags.iter().filter(|(_, _, is)| *is).map(|(name, value, _)| (*name, (*value).to_owned())));
    let parts: Vec<(&str, &str)> = parts.iter().map(|(name, value)| (*name, &**value)).collect();
    let state = json!({
        "text": text, "changes": changes, "settings": settings, "compare": is_compared, "lesson": lesson,
        "way": n % 8 == 3, "head": head, "token": format!("Token {token}"), "presents": presents,
    });
    Ok(Some((address(&parts), state)))
}

/// Texts of emoji, markup and every script, changes, settings, lessons: the page shows what the address says, and the address that
/// it then writes leads to the same state from another one.
#[test]
fn a_link_opens_the_state_that_it_was_taken_from() -> Result {
    let mut texts = odd_texts(40);
    texts.insert(0, "O Romeo & Juliet #1? 100 % + <b>".into());
    let mut states = vec![];
    for (n, text) in texts.iter().enumerate() {
        states.extend(wanted(n, text)?);
    }
    states.truncate(30);
    assert_eq!(states.len(), 30);
    open("My lord", |page| {
        for (n, (address, state)) in states.iter().enumerate() {
            go(page, address)?;
            let head = state["head"].as_str().unwrap_or_default();
            page.until(&format!("document.documentElement.dataset.shown === '{head}'"))?;
            assert_eq!(page.get(STATE)?, *state, "{n}: {address}");
            let link = written(page, state["text"].as_str().unwrap_or_default())?;
            go(page, "text=My%20lord&head=0.0&token=0")?;
            assert_eq!(page.get("document.getElementById('live-text').value")?, "My lord");
            if n % 10 == 0 {
                // In a new window.
                page.get(&format!(
                    "(window.isOld = true, history.replaceState(null, '', {}), location.reload())",
                    serde_json::to_string(&format!("#{link}"))?
                ))?;
                page.until("!window.isOld && performance.getEntriesByName('ready').length > 0")?;
            } else {
                go(page, &link)?;
            }
            settled(page)?;
            page.until(&format!("document.documentElement.dataset.shown === '{head}'"))?;
            assert_eq!(page.get(STATE)?, *state, "{n}: {link}");
        }
        Ok(())
    })
}

/// A link to another head of the same text, and one that comes while an answer is on its way.
#[test]
fn a_link_is_followed_whatever_is_shown_or_asked() -> Result {
    open("My lord", |page| {
        for head in ["2.1", "0.3"] {
            go(page, &format!("text=My%20lord&head={head}&token=0"))?;
            page.until(&format!("document.documentElement.dataset.shown === '{head}'"))?;
        }
        // The page has asked for the first one when the second one comes; the first may be refused.
        for first in [
            "text=O&head=1.1&token=0",
            "text=O&change=ablate%209.9&head=1.1",
            "text=O&change=ablate%209.9&way=open",
        ] {
            go(page, "text=My%20lord&head=0.0&token=0")?;
            page.get(&format!("(addEventListener('hashchange', () => {{ location.hash = 'text=To%20be,%20or%20not&head=3.2&token=4'; }}, {{ once: true }}), location.hash = '{first}', 0)"))?;
            page.until("document.getElementById('token-title').textContent.startsWith('Token 4')")?;
            page.until("document.documentElement.dataset.shown === '3.2'")?;
            settled(page)?;
            assert_eq!(page.get("document.documentElement.dataset.shown")?, "3.2", "{first}");
            assert_eq!(page.get("document.getElementById('live-text').value")?, "To be, or not", "{first}");
            assert!(!page.text("#live-status")?.starts_with("Not all"), "{first}");
        }
        Ok(())
    })
}

/// The way by itself opens beside the text that is there.
#[test]
fn a_link_to_the_way_opens_it() -> Result {
    open("My lord", |page| {
        go(page, "way=open")?;
        page.until("document.querySelectorAll('#way-stages > li').length > 5")?;
        assert_eq!(page.get("document.getElementById('way').hidden")?, false);
        assert_eq!(page.get("document.getElementById('live-text').value")?, "My lord");
        Ok(())
    })
}

/// A lesson by its number alone sets everything up.
#[test]
fn a_link_to_a_lesson_sets_it_up() -> Result {
    open("My lord", |page| {
        go(page, "lesson=8")?;
        page.until("document.getElementById('live').dataset.lesson === 'ready'")?;
        let state = page.get(STATE)?;
        assert_eq!(state["text"], "gold kite moth lamp gold kite moth");
        assert_eq!(
            (&state["changes"], &state["lesson"], &state["head"]),
            (&json!(["ablate 0.3"]), &json!(8), &json!("1.2"))
        );
        Ok(())
    })
}

/// What a model refuses is said, and the rest of the address is shown.
#[test]
fn what_an_address_asks_for_in_vain_is_left_out() -> Result {
    open("My lord", |page| {
        for (asked, text, says) in [
            ("text=O%20Romeo&change=ablate%209.9", "O Romeo", "9.9"),
            ("text=O%20Romeo&change=ablate%209.9&way=open", "O Romeo", "9.9"),
            ("text=O%20Romeo&change=block%2077:1", "O Romeo", "77"),
            ("text=", "My lord", "type a few words"),
            (&format!("text={}", "word%20".repeat(400)), "My lord", "256"),
        ] {
            go(page, asked)?;
            let state = page.get(STATE)?;
            assert_eq!((&state["text"], &state["changes"]), (&json!(text), &json!([])), "{asked}");
            let status = page.text("#live-status")?;
            assert!(
                status.starts_with("Not all that the address asks for") && status.contains(says),
                "{status}"
            );
        }
        Ok(())
    })
}

/// Addresses of names and values that nobody would write.
fn hostile(count: usize) -> Vec<String> {
    const NAMES: [&str; 20] = [
        "text",
        "text",
        "text",
        "change",
        "change",
        "head",
        "token",
        "lesson",
        "temperature",
        "top-k",
        "top-p",
        "seed",
        "compare",
        "way",
        "present",
        "place",
        "view",
        "guide",
        "__proto__",
        "sort",
    ];
    const VALUES: [&str; 16] = [
        "<img src=x onerror=alert(1)>",
        "javascript:alert(1)",
        "ablate 0.3",
        "ablate 0.3; rm",
        "ablate 99.99",
        "scale 0.0=NaN",
        "scale 0.0=1e999",
        "-1",
        "1e9",
        "NaN",
        "3",
        "constructor",
        "toString",
        "yes",
        "0.0 0.1 1.1 9.9",
        "1 1 0",
    ];
    let texts = odd_texts(count);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % n as u64).unwrap_or_default()
    };
    let mut one = |n: usize| {
        let parts: Vec<String> = (0..=below(6))
            .map(|_| {
                let value =
                    if below(3) == 0 { texts[n].clone() } else { VALUES[below(VALUES.len())].to_owned() };
                let value = if below(8) == 0 { value.repeat(1 + below(300)) } else { value };
                // Some are not encoded as they should be.
                let value = if below(5) == 0 {
                    format!("%{}%ZZ+", value.replace(['\n', '\r'], ""))
                } else {
                    encoded(&value)
                };
                format!("{}={value}", NAMES[below(NAMES.len())])
            })
            .collect();
        format!("n{n}&{}", parts.join("&"))
    };
    (0..count).map(&mut one).collect()
}

/// Each address is shown as text or ignored, whatever it says, and the page goes on.
fn survives(count: usize) -> Result {
    open("My lord", |page| {
        let scripts = page.get("document.querySelectorAll('script, img, iframe').length")?;
        for (n, address) in hostile(count).iter().enumerate() {
            go(page, address)?;
            let said = page.get("new URLSearchParams(location.hash.slice(1)).get('text')")?;
            let status = page.text("#live-status")?;
            let shown = page.get("document.getElementById('live-text').value")?;
            assert_eq!(
                page.get("document.getElementById('live').dataset.state")?,
                "shown",
                "{n} {address}: {status}"
            );
            if let Some(said) = said.as_str()
                && !status.starts_with("Not all")
            {
                let said: String = said.replace("\r\n", "\n").replace('\r', "\n");
                assert_eq!(shown, said, "{n} {address}: {status}");
            }
        }
        assert_eq!(page.get("document.querySelectorAll('script, img, iframe').length")?, scripts);
        assert_eq!(page.get("document.querySelectorAll('main, #live').length")?, 2);
        assert_eq!(page.get("Object.prototype.text === undefined")?, true);
        go(page, "text=O%20Romeo,%20Romeo&present=no")?;
        enter(page, "O Romeo, Romeo")?;
        assert_eq!(page.text("#about")?, "6 tokens, 16 heads");
        Ok(())
    })
}

#[test]
fn hostile_addresses_are_shown_as_text_or_ignored() -> Result {
    survives(60)
}

#[test]
#[ignore = "takes minutes: cargo test --release --workspace --test web -- --ignored"]
fn a_thousand_hostile_addresses_are_shown_as_text_or_ignored() -> Result {
    survives(1000)
}
