//! Somebody who opens a page for the first time sees the head that it opens on, its words, its guide.

use crate::browser::{Browser, browse};
use crate::common::Result;
use crate::{Run, command, json, list, number};
use serde_json::{Value, json};

const PROMPT: &str = "O Romeo, Romeo! wherefore art thou Romeo?\nDeny thy father";

/// Runs the command, which writes a page; opens it and gives the test what the terminal printed.
fn page_of(args: &[&str], test: impl FnOnce(&Browser, &str) -> Result) -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("page.html");
    let run = Run::of(command(args).arg("--html").arg(&path))?.succeeded();
    browse(&path, |page| test(page, &run.stdout))
}

fn shown(page: &Browser) -> Result<String> {
    Ok(page.get("document.documentElement.dataset.shown")?.as_str().unwrap_or_default().to_owned())
}

/// Everything that the page says anywhere, also in tooltips.
const WORDS: &str = "document.body.innerText + [...document.querySelectorAll('body *')].map((e) => \
                     `${e.title ?? ''} ${e.getAttribute('aria-label') ?? ''} ${e.getAttribute('aria-valuetext') ?? ''}`).join(' ')";

#[test]
fn a_generated_text_has_its_last_token() -> Result {
    for n in ["1", "5"] {
        let args = ["generate", "O Romeo", "--greedy", "--json", "--max-new-tokens", n];
        page_of(&args, |page, printed| {
            let report: Value = serde_json::from_str(printed)?;
            let text = gpt2_view::visible_token(report["text"].as_str().ok_or("a text")?);
            let last = page.text("#text .unread")?;
            assert!(!last.is_empty() && text.ends_with(&last), "{last:?} ends {text:?}");
            let follows = page.text("#follows")?;
            assert!(follows.starts_with(&format!("then came {last} (")), "{follows}");
            if n == "5" {
                let step = page.text("#step-text")?;
                assert!(step.starts_with("4 of 5: "), "{step}");
                page.keys(",")?;
                assert_eq!(
                    page.get("getComputedStyle(document.querySelector('.unread')).visibility")?,
                    "hidden"
                );
                page.keys(".")?;
            }
            // No place of the page reads past the end of what it has: each token, in both views, at the first step and the
            // last.
            for key in ["m", "l"] {
                page.keys(key)?;
                for position in 0..list(&report["provenance"]["ids"]).len() {
                    page.get(&format!("document.getElementById('word-{position}')?.click()"))?;
                    let words = page.get(WORDS)?;
                    let words = words.as_str().ok_or("words")?;
                    assert!(!words.contains("undefined") && !words.contains("NaN"), "{position}: {words}");
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn the_page_opens_on_the_head_of_the_terminal_and_has_its_words() -> Result {
    for more in [&[][..], &["--ablate", "0.3"]] {
        page_of(&[&["attention", PROMPT], more].concat(), |page, printed| {
            let (_, rest) = printed.split_once("\nhead ").ok_or("a head")?;
            let (head, _) = rest.split_once(' ').ok_or("its name")?;
            assert_eq!(shown(page)?, head);
            assert_eq!(head == "0.3", more.is_empty(), "the head that most would feature is ablated");
            // Each row of the terminal's table: its head and its kind.
            let (_, table) = printed.split_once("first  focus\n").ok_or("a table")?;
            let rows = table.lines().skip(1).take(16).map(|line| line.split_whitespace().collect::<Vec<_>>());
            for row in rows {
                let name = row[0].trim_start_matches('*');
                let kind = *row.last().ok_or("a kind")?;
                let (layer, head) = name.split_once('.').ok_or("a head")?;
                let option = format!("#overview [aria-label^=\"Layer {layer}, head {head}:\"]");
                let silenced = row[0].starts_with('*');
                assert_eq!(silenced, name == "0.3" && !more.is_empty());
                let word = if silenced { format!("{kind}, ablated") } else { kind.to_owned() };
                // A kind that one number measures has that number with it.
                let label = page.text(&format!("{option} small"))?;
                let at =
                    ["previous", "first", "self"].iter().position(|one| *one == kind).filter(|_| !silenced);
                let share = at.map(|at| row[row.len() - [3, 2, 4][at]]);
                let expected =
                    share.map_or(word.clone(), |share| format!("{word} {}", share.trim_start_matches('0')));
                assert_eq!(label, expected, "{name}");
                page.head(name)?;
                let mark = page.get("document.getElementById('head-mark').hidden ? '' : document.getElementById('head-mark').textContent")?;
                assert_eq!(mark, if silenced { word.as_str() } else { "" });
                assert!(page.text("#explain")?.contains(&format!("({kind}).")), "{}", page.text("#explain")?);
                assert_eq!(page.text("#explain")?.starts_with("Ablated: wherever"), silenced);
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The weights of the demo model's heads.
fn heads(more: &[&str]) -> Result<Vec<(String, Vec<f64>)>> {
    let all = json(&[&["attention", PROMPT, "--json", "-l", "0-3"], more].concat())?;
    let mut heads = vec![];
    for layer in list(&all["layers"]) {
        for head in list(&layer["heads"]) {
            let weights =
                list(&head["weights"]).iter().flat_map(|row| list(row).iter().map(number)).collect();
            heads.push((format!("{}.{}", layer["layer"], head["head"]), weights));
        }
    }
    Ok(heads)
}

#[test]
fn a_comparison_opens_on_the_head_that_changed_most() -> Result {
    let changed = ["--ablate", "0.3"];
    let mut moved: Vec<(f64, String)> = heads(&[])?
        .into_iter()
        .zip(heads(&changed)?)
        .map(|((name, a), (_, b))| (a.iter().zip(&b).map(|(a, b)| (a - b).abs()).sum(), name))
        .collect();
    moved.sort_by(|a, b| b.0.total_cmp(&a.0));
    page_of(&[&["attention", PROMPT, "--compare"], &changed[..]].concat(), |page, _| {
        assert_eq!(shown(page)?, moved[0].1);
        assert_ne!(page.text("#outgoing .number")?, "", "something changed there");
        page.head("0.1")?;
        assert_eq!(page.text("#outgoing")?, "This head did not change.");
        Ok(())
    })?;
    // Nothing comes after the last layer's attention, so none changes: the most focused one, as without a comparison.
    page_of(&["attention", PROMPT, "--compare", "--ablate", "3.0"], |page, _| {
        assert_eq!(shown(page)?, "0.3");
        // What was switched off, on the tile and beside the title.
        let kind = json(&["attention", PROMPT, "--json"])?["layers"][3]["heads"][0]["kind"].clone();
        let word = format!("{}, ablated", kind.as_str().ok_or("a kind")?);
        assert_eq!(page.text("#overview [data-head=\"12\"] small")?, word);
        page.head("3.0")?;
        assert_eq!(page.text("#head-mark")?, word);
        Ok(())
    })
}

#[test]
fn small_maps_of_a_comparison_show_small_changes_and_the_words_speak_of_changes() -> Result {
    let changed = ["--scale", "0.0=0.9"];
    let mut largest = 0f64;
    for ((_, a), (_, b)) in heads(&[])?.into_iter().zip(heads(&changed)?) {
        largest = a.iter().zip(&b).fold(largest, |most, (a, b)| most.max((a - b).abs()));
    }
    assert!(0.001 < largest && largest < 0.3, "a small change: {largest}");
    page_of(&[&["attention", PROMPT, "--compare"], &changed[..]].concat(), |page, _| {
        let end: f64 = page.text("#small-high")?.trim_start_matches('+').parse()?;
        assert!((end / largest - 1.0).abs() < 0.01, "{end} and {largest}");
        // Some pixel of some small map has the color of the end of the scale, and on white that is dark.
        page.until("document.querySelectorAll('#overview [data-drawn]').length === 16")?;
        let darkest = "Math.min(...[...document.querySelectorAll('#overview canvas')].map((c) => { \
                       const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let least = 765; \
                       for (let i = 0; i < p.length; i += 4) if (p[i + 3] === 255) least = Math.min(least, p[i] + p[i + 1] + p[i + 2]); \
                       return least; }))";
        assert!(number(&page.get(darkest)?) < 250.0, "{:?}", page.get(darkest)?);
        assert!(
            page.text("#heads-word")?
                .contains("how a head changes: red where it attends more in the run scale 0.0=0.9")
        );
        assert!(page.text("#guide-text")?.starts_with("Each small map is how one head changes"));
        page.get("document.querySelector('#runs [value=first]').click()")?;
        page.until("document.getElementById('heads-word').textContent.endsWith('rows attend to columns.')")?;
        Ok(())
    })
}

#[test]
fn numbers_of_heads_say_what_they_measure_and_of_which_token() -> Result {
    let target = ["--target", " lord", "--against", ","];
    page_of(&[&["attention", PROMPT, "--with", "effect,scores"], &target[..]].concat(), |page, _| {
        let labels = page.texts("#summary dt")?;
        for label in ["effect on ·lord less ,", "direct to ·lord less ,"] {
            assert!(labels.contains(&label.to_owned()), "{label}: {labels:?}");
        }
        let title = |label: &str| {
            let find =
                "[...document.querySelectorAll('#summary div')].find((row) => row.firstChild.textContent ===";
            page.get(&format!("{find} {label:?}).title"))
        };
        for (label, says) in [
            ("effect on ·lord less ,", "adds to the difference of the logits, ·lord less ,"),
            ("direct to ·lord less ,", "past all later layers"),
            ("on previous", "in this text"),
            ("previous-token", "in repeated random tokens instead of this text"),
            ("if uniform", "the same weight"),
        ] {
            let title = title(label)?;
            assert!(title.as_str().is_some_and(|title| title.contains(says)), "{label}: {title}");
        }
        Ok(())
    })
}

fn is_open(page: &Browser) -> Result<bool> {
    Ok(page.get("!document.getElementById('guide').hidden")? == true)
}

#[test]
fn a_first_visit_has_a_guide_of_five_steps() -> Result {
    page_of(&["attention", PROMPT], |page, _| {
        assert!(is_open(page)?);
        let mut said = vec![];
        for step in 1..=5 {
            assert_eq!(page.text("#guide-step")?, format!("{step} of 5"));
            assert_eq!(page.get("document.querySelectorAll('.guided').length")?, 1);
            said.push(page.text("#guide-text")?);
            page.click("#guide-next")?;
        }
        said.dedup();
        assert_eq!(said.len(), 5);
        assert!(!is_open(page)?, "the last step closes it");
        assert_eq!(page.get("document.querySelectorAll('.guided').length")?, 0);
        page.get("location.reload()")?;
        page.until("performance.getEntriesByName('ready').length > 0")?;
        assert!(!is_open(page)?, "it was closed before");
        // Found again, and used without a mouse.
        page.keys("g")?;
        assert!(is_open(page)?);
        page.keys("\u{e007}")?; // Enter
        assert_eq!(page.text("#guide-step")?, "2 of 5");
        page.keys("\u{e00c}")?; // Escape
        assert!(!is_open(page)?);
        assert_eq!(page.get("document.activeElement.id")?, "guide-button");
        page.click("#guide-button")?;
        assert!(is_open(page)?);
        // Without a storage, nothing throws: the console stays empty.
        page.get("Object.defineProperty(window, 'localStorage', { get() { throw new Error('none') } })")?;
        page.click("#guide-close")?;
        assert!(!is_open(page)?);
        Ok(())
    })
}

#[test]
fn every_control_says_what_it_does() -> Result {
    let rich =
        ["attention", PROMPT, "--compare", "--ablate", "0.3", "--with", "effect,scores,rollout,lens,neurons"];
    for args in [&rich[..], &["generate", "O Romeo", "--max-new-tokens", "5"]] {
        page_of(args, |page, _| {
            let silent = "[...document.querySelectorAll('button, select, input, summary')] \
                          .filter((e) => !(e.title || e.closest('label')?.title)).map((e) => e.outerHTML)";
            assert_eq!(page.get(silent)?, json!([]));
            let maps = "[...document.querySelectorAll('#heads [role=option]')].filter((e) => !e.title || !e.getAttribute('aria-label')).length";
            assert_eq!(page.get(maps)?, 0);
            Ok(())
        })?;
    }
    Ok(())
}

/// The texts of visible elements that are cut off.
fn cut(page: &Browser, css: &str) -> Result<Value> {
    page.get(&format!(
        "[...document.querySelectorAll('{css}')].filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0).map((e) => e.textContent)"
    ))
}

#[test]
fn at_1400_pixels_the_toolbar_is_one_line_and_nothing_is_cut() -> Result {
    const WITH: [&str; 2] = ["--with", "effect,scores,rollout,lens,neurons"];
    for more in [&[][..], &["--compare", "--ablate", "0.3"], &["--mean-ablate", "0.3"]] {
        page_of(&[&["attention", PROMPT][..], &WITH, more].concat(), |page, _| {
            let size = json!({ "width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": false });
            page.devtools("Emulation.setDeviceMetricsOverride", &size)?;
            page.until("innerWidth === 1400 && innerHeight === 900")?;
            page.head("0.3")?; // also with its mark
            let middles = "[...document.getElementById('tools').children].map((e) => e.getBoundingClientRect()) \
                           .filter((r) => r.height > 0).map((r) => r.top + r.height / 2)";
            assert_eq!(
                page.get(&format!(
                    "(() => {{ const m = {middles}; return Math.max(...m) - Math.min(...m) < 6 }})()"
                ))?,
                true
            );
            for css in [
                "#summary dt",
                "#summary dd",
                "#heads small",
                "#heads [role=option] span",
                "#explain",
                "#tools select",
            ] {
                assert_eq!(cut(page, css)?, json!([]), "{css} {more:?}");
            }
            let map = number(&page.get("document.getElementById('map').clientHeight")?);
            assert!(map > 430.0, "{map}: the map takes the room that there is");
            // The maps of a comparison leave at most a fifth of the window empty.
            let lowest = "Math.max(...[...document.querySelectorAll('#view > *')].map((e) => e.getBoundingClientRect().bottom))";
            assert!(number(&page.get(lowest)?) > 720.0, "{}", page.get(lowest)?);
            let between = "document.getElementById('map-foot').getBoundingClientRect().top - document.getElementById('map').getBoundingClientRect().bottom";
            assert!(number(&page.get(between)?) < 20.0);
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn the_numbers_of_a_list_have_one_format() -> Result {
    page_of(&["attention", PROMPT], |page, _| {
        page.head("0.3")?;
        let odd = "[...document.querySelectorAll('#outgoing .number, #incoming .number')].map((e) => e.textContent) \
                   .filter((text) => !/^(< 0\\.001|\\d\\.\\d{3})$/.test(text))";
        assert_eq!(page.get(odd)?, json!([]));
        assert!(page.texts("#outgoing .number")?.contains(&"< 0.001".to_owned()), "there are tiny ones");
        let percents = "[...document.querySelectorAll('#next .number')].every((e) => /^(< 0\\.1|\\d+\\.\\d) %$/.test(e.textContent))";
        assert_eq!(page.get(percents)?, true);
        Ok(())
    })
}

#[test]
fn a_word_under_the_map_follows_what_it_shows() -> Result {
    page_of(&["attention", PROMPT, "--compare", "--ablate", "0.3", "--with", "rollout"], |page, _| {
        let says = |part: &str| {
            page.until(&format!("document.getElementById('explain').textContent.includes({part:?})"))
        };
        says("First plain, then ablate 0.3. A row shows what one token attends to")?;
        page.get("document.querySelector('#runs [value=difference]').click()")?;
        says("Red: more weight in ablate 0.3 than in plain.")?;
        page.get("document.querySelector('#runs [value=first]').click()")?;
        page.keys("sv")?;
        says("length of the value")?;
        says("Each row has its own colors.")?;
        page.keys("l")?;
        says("A line goes from a token")?;
        page.keys("m")?;
        page.click("#maps [role=option]")?;
        says("How much of each token reaches each position")
    })
}

#[test]
fn on_a_phone_a_chosen_head_comes_into_view() -> Result {
    page_of(&["attention", PROMPT], |page, _| {
        let phone = json!({ "width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true });
        page.devtools("Emulation.setDeviceMetricsOverride", &phone)?;
        page.until("innerWidth === 390")?;
        page.click("#guide-close")?;
        assert_eq!(page.get("document.documentElement.scrollWidth")?, 390, "nothing sticks out");
        let top = "document.getElementById('view').getBoundingClientRect().top";
        let heads = "document.getElementById('heads').getBoundingClientRect().top";
        assert!(number(&page.get(top)?) < number(&page.get(heads)?), "the map comes before the heads");
        page.click("#overview [data-head=\"5\"]")?;
        page.until(&format!("Math.abs({top}) < 3"))?;
        assert_eq!(shown(page)?, "1.1");
        // The guide is there as well, and its steps come into view.
        assert_eq!(page.get("document.getElementById('guide-button').clientHeight >= 26")?, true);
        page.get("document.getElementById('guide-button').click()")?;
        page.get("document.getElementById('guide-next').click()")?;
        page.get("document.getElementById('guide-next').click()")?;
        page.until("(() => { const r = document.getElementById('token').getBoundingClientRect(); return r.top > 0 && r.top < innerHeight })()")
    })
}
