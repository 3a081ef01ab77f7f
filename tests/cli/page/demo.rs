//! The demo model's page, used as a person would use it.

use crate::browser::{Browser, browse};
use crate::common::Result;
use crate::{Run, command};
use serde_json::{Value, json};

const PROMPT: &str = "O Romeo, Romeo! wherefore art thou Romeo?\nDeny thy father";

fn report(args: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&Run::of(command(args).output()?)?.succeeded().stdout)?)
}

fn demo(test: impl AsyncFnOnce(&Browser) -> Result) -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("page.html");
    let run = Run::of(command(&["attention", PROMPT]).arg("--html").arg(&path).output()?)?.succeeded();
    assert!(run.stderr.contains("page.html"), "{}", run.stderr);
    browse(&path, test)
}

async fn focus(page: &Browser) -> Result<Value> {
    page.get("document.activeElement.id || document.activeElement.getAttribute('aria-label')").await
}

async fn chosen(page: &Browser) -> Result<String> {
    page.text("#token-title").await
}

#[test]
fn numbers_of_the_page_are_those_of_the_other_outputs() -> Result {
    let attention = report(&["attention", "--json", "-l", "2", "-H", "1", PROMPT])?;
    let tokens = attention["tokens"].as_array().ok_or("tokens")?.len();
    let rows = &attention["layers"][0]["heads"][0]["weights"];
    let forward = report(&["forward", "--json", "-k", "5", PROMPT])?;
    demo(async |page| {
        page.head("2.1").await?;
        for i in [0, tokens / 2, tokens - 1] {
            page.mouse(page.cell(tokens, tokens, (i, i / 2)).await?, true).await?;
            let (query, key, weight, error) = page.value().await?;
            assert_eq!((query, key), (i, i / 2));
            let expected = rows[i][i / 2].as_f64().ok_or("a weight")?;
            assert!((weight - expected).abs() <= error && error < 1e-4, "{weight} ± {error}: {expected}");
            assert_eq!(chosen(page).await?, format!("Token {i}"), "a click chooses the query");
        }
        // The last position's predictions are those of `gpt2 forward`.
        let next = page.texts("#next .word").await?;
        let expected: Vec<_> = forward["next"].as_array().ok_or("next")?.iter().collect();
        assert_eq!(next.len(), 5);
        for (shown, expected) in next.iter().zip(expected) {
            assert_eq!(*shown, gpt2_view::visible_token(expected["token"].as_str().ok_or("a token")?));
        }
        // The token before it gave it this probability.
        page.keys("k").await?;
        let log_prob = forward["tokens"][tokens - 1]["log_prob"].as_f64().ok_or("a number")?;
        let follows = page.text("#follows").await?;
        let percent: f64 =
            follows.rsplit_once('(').and_then(|(_, p)| p.strip_suffix(" %)")).ok_or("%")?.parse()?;
        assert!((percent - 100.0 * log_prob.exp()).abs() < 0.06 * percent.max(0.5), "{follows}: {log_prob}");
        Ok(())
    })
}

#[test]
fn keys_search_sort_and_views() -> Result {
    demo(async |page| {
        let last = chosen(page).await?;
        // The search takes the keyboard input and marks its matches, and Enter goes from one to the next.
        page.keys("/").await?;
        assert_eq!(focus(page).await?, "search");
        page.keys("ROME").await?;
        assert_eq!(page.text("#found").await?, "3 found");
        page.keys("\u{e007}").await?;
        assert_eq!(
            (page.text("#found").await?, page.text("#token-word").await?),
            ("1 of 3".into(), "·Rome".into())
        );
        let first = chosen(page).await?;
        page.keys("\u{e007}\u{e007}\u{e007}").await?;
        assert_eq!(chosen(page).await?, first, "around");
        assert_eq!(page.get("document.querySelectorAll('#text .found').length").await?, 3);
        page.keys("\u{e00c}").await?; // Escape leaves the search
        page.keys("j").await?;
        assert_ne!(chosen(page).await?, first);

        // The heads: Tab stops once, arrows move within.
        assert_eq!(page.get("document.querySelectorAll('#overview [tabindex=\"0\"]').length").await?, 1);
        page.get("document.querySelector('#overview [tabindex=\"0\"]').focus()").await?;
        page.keys("\u{e014}\u{e015}").await?; // right, down
        assert!(
            focus(page).await?.as_str().is_some_and(|label| label.starts_with("Layer 1, head 1: entropy "))
        );
        page.keys("]").await?;
        page.until("document.documentElement.dataset.shown === '1.2'").await?;

        // Sorted by a number, the largest comes first.
        page.get("(() => { const s = document.getElementById('sort'); s.value = 'entropy'; s.dispatchEvent(new Event('change')) })()").await?;
        let shown = page.texts("#overview [role=option] span").await?;
        let numbers: Vec<f64> = shown.iter().filter_map(|s| s.split(' ').nth(1)?.parse().ok()).collect();
        assert!(numbers.len() == 16 && numbers.is_sorted_by(|a, b| a >= b), "{shown:?}");

        // The map with the keyboard: the cell left of the diagonal; the live region tells its value.
        page.get("document.getElementById('map').focus()").await?;
        page.keys("\u{e012}\u{e013}").await?; // left, up
        let (query, key, ..) = page.value().await?;
        assert!(key <= query && chosen(page).await? == format!("Token {query}"));
        assert_eq!(page.get("document.getElementById('readout').tagName").await?, "OUTPUT");
        // Zooming keeps the cell under the mouse in place, and moves others.
        let (here, there) = (page.cell(26, 26, (20, 3)).await?, page.cell(26, 26, (22, 9)).await?);
        page.mouse(there, false).await?;
        let other = page.text("#readout").await?;
        page.mouse(here, false).await?;
        let same = page.text("#readout").await?;
        page.keys("+++").await?;
        page.mouse(there, false).await?;
        assert_ne!(page.text("#readout").await?, other);
        page.mouse(here, false).await?;
        assert_eq!(page.text("#readout").await?, same);
        page.keys("0").await?;

        // Lines: a click on a token chooses it, and a second click clears the choice.
        page.keys("l").await?;
        assert_eq!(page.get("document.getElementById('map-panel').hidden").await?, true);
        let rect = page.get("document.getElementById('lines').getBoundingClientRect().toJSON()").await?;
        let at = (rect["x"].as_f64().ok_or("x")? + 60.0, rect["y"].as_f64().ok_or("y")? + 11.0);
        page.get("document.getElementById('scroller').scrollTo(0, 0)").await?;
        page.mouse(at, true).await?;
        assert_eq!(chosen(page).await?, "Token 0");
        page.mouse(at, true).await?;
        assert_eq!(chosen(page).await?, "No token chosen");

        // The address restores the choices.
        page.until("location.hash.includes('view=lines') && location.hash.includes('head=1.2')").await?;
        page.get("location.reload()").await?;
        page.until("document.documentElement.dataset.shown === '1.2'").await?;
        assert_eq!(page.get("document.getElementById('lines-panel').hidden").await?, false);
        assert_eq!(chosen(page).await?, last, "no token in the address: the last");
        Ok(())
    })
}

#[test]
fn the_first_token_can_be_hidden() -> Result {
    demo(async |page| {
        page.head("3.2").await?;
        page.click("#hide-first").await?;
        assert!(!page.texts("#outgoing .position").await?.contains(&"0".to_owned()));
        page.click("#word-0").await?;
        assert_eq!(page.text("#incoming").await?, "The first token is hidden.");
        page.keys("f").await?;
        assert_eq!(page.get("document.getElementById('hide-first').checked").await?, false);
        assert_eq!(page.text("#incoming .position").await?, "0");
        Ok(())
    })
}

#[test]
fn dark_light_and_a_phone() -> Result {
    demo(async |page| {
        const PAPER: &str = "getComputedStyle(document.documentElement).backgroundColor";
        let light = page.get(PAPER).await?;
        let dark = json!({ "features": [{ "name": "prefers-color-scheme", "value": "dark" }] });
        page.devtools("Emulation.setEmulatedMedia", &dark)?;
        let dark = page.get(PAPER).await?;
        assert_ne!(dark, light, "the page follows the system");
        page.click("#theme").await?;
        assert_eq!(page.get(PAPER).await?, light);
        page.keys("t").await?;
        assert_eq!(page.get(PAPER).await?, dark);

        let phone = json!({ "width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true });
        page.devtools("Emulation.setDeviceMetricsOverride", &phone)?;
        page.until("innerWidth === 390").await?;
        assert_eq!(page.get("document.documentElement.scrollWidth").await?, 390, "nothing sticks out");
        let small = page
            .get("[...document.querySelectorAll('button')].filter((b) => b.clientHeight > 0 && b.clientHeight < 26).length")
            .await?;
        assert_eq!(small, 0, "buttons too small for a finger");
        page.get("document.getElementById('word-3').click()").await?;
        assert_eq!(chosen(page).await?, "Token 3");
        Ok(())
    })
}
