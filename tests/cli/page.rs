//! The demo model's page: `--html` and `--open` run without a browser, and the page used as a person would use it.

use crate::browser::{Browser, browse};
use crate::common::Result;
use crate::folder::assert_says;
use crate::{Run, command, gpt2, list, number};
use serde_json::{Value, json};
use std::path::Path;

#[test]
fn a_page_of_chosen_heads_holds_those_alone() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("page.html");
    let args = ["attention", "O Romeo", "--layer", "1-2", "--head", "3", "--html"];
    let run = Run::of(command(&args).arg(&path))?.succeeded();
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
        Run::of(command(&args).arg(&path))?.refused(1, &["page.html", "no folder", "make it first"]);
    }
    Ok(())
}

#[test]
#[cfg(target_os = "linux")]
fn without_a_browser_the_page_is_named_and_stays() -> Result {
    let folder = tempfile::tempdir()?;
    let mut command = command(&["attention", "O Romeo", "--open"]);
    let run = Run::of(command.env("PATH", folder.path()).env("TMPDIR", folder.path()))?;
    run.refused(1, &["cannot open a browser", "open this file in one", "gpt2-attention-", ".html"]);
    let kept: Vec<_> = std::fs::read_dir(folder.path())?.collect::<std::io::Result<_>>()?;
    let [page] = &kept[..] else { panic!("{kept:?}") };
    assert!(std::fs::read_to_string(page.path())?.ends_with("</html>\n"), "a whole page");
    Ok(())
}

#[test]
fn a_fragment_for_a_notebook_is_one_frame_on_stdout() -> Result {
    let run =
        gpt2(&["attention", "O Romeo", "--fragment=600", "--with", "effect,scores,rollout,lens,neurons"])?
            .succeeded();
    let html = run.stdout.trim();
    assert!(html.starts_with("<iframe") && html.ends_with("</iframe>"), "{}", &html[..80]);
    assert_says("the frame", html, &["sandbox=", "height:600px", "srcdoc="]);
    assert!(!html[8..].contains("<iframe"));
    let (_, page) = html.split_once("srcdoc=\"").ok_or("a page")?;
    let (page, after) = page.split_once('"').ok_or("its end")?;
    assert!(page.len() > 50_000 && after.len() < 300, "no quotation mark ends the page early: {after}");
    gpt2(&["attention", "O Romeo", "--fragment", "--json"])?.refused(2, &["cannot be used with"]);
    gpt2(&["attention", "O Romeo", "--fragment=1"])?.refused(2, &["200"]);
    gpt2(&["attention", "O Romeo", "--compare", "--fragment"])?.refused(1, &["--compare", "intervention"]);
    gpt2(&["attention", "O Romeo", "--compare", "--fragment", "--ablate", "0.3"])?.succeeded();
    Ok(())
}

const PROMPT: &str = "O Romeo, Romeo! wherefore art thou Romeo?\nDeny thy father";

fn demo(test: impl FnOnce(&Browser) -> Result) -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("page.html");
    let run = Run::of(command(&["attention", PROMPT]).arg("--html").arg(&path))?.succeeded();
    assert!(run.stderr.contains("page.html"), "{}", run.stderr);
    browse(&path, test)
}

fn focus(page: &Browser) -> Result<Value> {
    page.get("document.activeElement.id || document.activeElement.getAttribute('aria-label')")
}

fn chosen(page: &Browser) -> Result<String> {
    page.text("#token-title")
}

#[test]
fn numbers_of_the_page_are_those_of_the_other_outputs() -> Result {
    let attention = crate::json(&["attention", "--json", "-l", "2", "-H", "1", PROMPT])?;
    let tokens = list(&attention["tokens"]).len();
    let rows = &attention["layers"][0]["heads"][0]["weights"];
    let forward = crate::json(&["forward", "--json", "-k", "5", PROMPT])?;
    demo(|page| {
        page.head("2.1")?;
        for i in [0, tokens / 2, tokens - 1] {
            page.mouse(page.cell(tokens, tokens, (i, i / 2))?, true)?;
            let (query, key, weight, error) = page.value()?;
            assert_eq!((query, key), (i, i / 2));
            let expected = number(&rows[i][i / 2]);
            assert!((weight - expected).abs() <= error && error < 1e-4, "{weight} ± {error}: {expected}");
            assert_eq!(chosen(page)?, format!("Token {i}"), "a click chooses the query");
        }
        // The last position's predictions are those of `gpt2 forward`.
        let next = page.texts("#next .word")?;
        let expected: Vec<_> = list(&forward["next"]).iter().collect();
        assert_eq!(next.len(), 5);
        for (shown, expected) in next.iter().zip(expected) {
            assert_eq!(*shown, gpt2_view::visible_token(expected["token"].as_str().ok_or("a token")?));
        }
        // The token before it gave it this probability.
        page.keys("k")?;
        let log_prob = number(&forward["tokens"][tokens - 1]["log_prob"]);
        let follows = page.text("#follows")?;
        let percent: f64 =
            follows.rsplit_once('(').and_then(|(_, p)| p.strip_suffix(" %)")).ok_or("%")?.parse()?;
        assert!((percent - 100.0 * log_prob.exp()).abs() < 0.06 * percent.max(0.5), "{follows}: {log_prob}");
        Ok(())
    })
}

#[test]
fn keys_search_sort_and_views() -> Result {
    demo(|page| {
        // The search takes the keyboard input and marks its matches, and Enter goes from one to the next.
        page.keys("/")?;
        assert_eq!(focus(page)?, "search");
        page.keys("ROME")?;
        assert_eq!(page.text("#found")?, "3 found");
        page.keys("\u{e007}")?;
        assert_eq!((page.text("#found")?, page.text("#token-word")?), ("1 of 3".into(), "·Rome".into()));
        let first = chosen(page)?;
        page.keys("\u{e007}\u{e007}\u{e007}")?;
        assert_eq!(chosen(page)?, first, "around");
        assert_eq!(page.get("document.querySelectorAll('#text .found').length")?, 3);
        page.keys("\u{e00c}")?; // Escape leaves the search
        page.keys("j")?;
        assert_ne!(chosen(page)?, first);

        // The heads: Tab stops once, arrows move within.
        assert_eq!(page.get("document.querySelectorAll('#overview [tabindex=\"0\"]').length")?, 1);
        page.head("0.0")?;
        page.get("document.querySelector('#overview [tabindex=\"0\"]').focus()")?;
        page.keys("\u{e014}\u{e015}")?; // right, down
        let label = page.get("document.activeElement.ariaLabel")?;
        assert!(label.as_str().is_some_and(|label| label.starts_with("Layer 1, head 1: ")), "{label}");
        page.keys("]")?;
        page.until("document.documentElement.dataset.shown === '1.2'")?;

        // Sorted by a number, the largest comes first.
        page.get("(() => { const s = document.getElementById('sort'); s.value = 'entropy'; s.dispatchEvent(new Event('change')) })()")?;
        let shown = page.texts("#overview [role=option] span")?;
        let numbers: Vec<f64> = shown.iter().filter_map(|s| s.split(' ').nth(1)?.parse().ok()).collect();
        assert!(numbers.len() == 16 && numbers.is_sorted_by(|a, b| a >= b), "{shown:?}");

        // The map with the keyboard: the cell left of the diagonal; the live region tells its value.
        page.get("document.getElementById('map').focus()")?;
        page.keys("\u{e012}\u{e013}")?; // left, up
        let (query, key, ..) = page.value()?;
        assert!(key <= query && chosen(page)? == format!("Token {query}"));
        assert_eq!(page.get("document.getElementById('readout').tagName")?, "OUTPUT");
        // Zooming keeps the cell under the mouse in place, and moves others.
        let here = page.cell(26, 26, (20, 3))?;
        let there = page.cell(26, 26, (22, 9))?;
        page.mouse(there, false)?;
        let other = page.text("#readout")?;
        page.mouse(here, false)?;
        let same = page.text("#readout")?;
        page.keys("+++")?;
        page.mouse(there, false)?;
        assert_ne!(page.text("#readout")?, other);
        page.mouse(here, false)?;
        assert_eq!(page.text("#readout")?, same);
        page.keys("0")?;

        // Lines: a click on a token chooses it, and a second click clears the choice.
        page.keys("l")?;
        assert_eq!(page.get("document.getElementById('map-panel').hidden")?, true);
        let rect = page.get("document.getElementById('lines').getBoundingClientRect().toJSON()")?;
        let at = (number(&rect["x"]) + 60.0, number(&rect["y"]) + 11.0);
        page.get("document.getElementById('scroller').scrollTo(0, 0)")?;
        page.mouse(at, true)?;
        assert_eq!(chosen(page)?, "Token 0");
        page.mouse(at, true)?;
        assert_eq!(chosen(page)?, "No token chosen");

        // The address restores the choices.
        page.until("location.hash.includes('view=lines') && location.hash.includes('head=1.2')")?;
        page.get("location.reload()")?;
        page.until("document.documentElement.dataset.shown === '1.2'")?;
        assert_eq!(page.get("document.getElementById('lines-panel').hidden")?, false);
        assert_eq!(chosen(page)?, "No token chosen");
        Ok(())
    })
}

#[test]
fn the_first_token_can_be_hidden() -> Result {
    demo(|page| {
        page.head("3.2")?;
        page.click("#hide-first")?;
        assert!(!page.texts("#outgoing .position")?.contains(&"0".to_owned()));
        page.click("#word-0")?;
        assert_eq!(page.text("#incoming")?, "The first token is hidden.");
        page.keys("f")?;
        assert_eq!(page.get("document.getElementById('hide-first').checked")?, false);
        assert_eq!(page.text("#incoming .position")?, "0");
        Ok(())
    })
}

#[test]
fn dark_light_and_a_phone() -> Result {
    demo(|page| {
        const PAPER: &str = "getComputedStyle(document.documentElement).backgroundColor";
        let light = page.get(PAPER)?;
        let dark = json!({ "features": [{ "name": "prefers-color-scheme", "value": "dark" }] });
        page.devtools("Emulation.setEmulatedMedia", &dark)?;
        let dark = page.get(PAPER)?;
        assert_ne!(dark, light, "the page follows the system");
        page.click("#theme")?;
        assert_eq!(page.get(PAPER)?, light);
        page.keys("t")?;
        assert_eq!(page.get(PAPER)?, dark);

        let phone = json!({ "width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true });
        page.devtools("Emulation.setDeviceMetricsOverride", &phone)?;
        page.until("innerWidth === 390")?;
        assert_eq!(page.get("document.documentElement.scrollWidth")?, 390, "nothing sticks out");
        let small = page
            .get("[...document.querySelectorAll('button')].filter((b) => b.clientHeight > 0 && b.clientHeight < 26).length")?;
        assert_eq!(small, 0, "buttons too small for a finger");
        page.get("document.getElementById('word-3').click()")?;
        assert_eq!(chosen(page)?, "Token 3");
        Ok(())
    })
}
