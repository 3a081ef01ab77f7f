//! The way of a token, and the lessons, in the page.

use crate::common::Result;
use crate::page::{look, open, put, settled};
use gpt2_web::{FollowedToken, Live, PageRequest};

/// The way of a token follows the chosen head and token, from the mouse and from the keyboard.
#[test]
fn the_way_of_a_token_follows_what_is_chosen() -> Result {
    const TEXT: &str = "O Romeo, Romeo! wherefore art thou Romeo?";
    open(TEXT, |page| {
        page.head("1.1")?;
        page.click("#live-way")?;
        page.until("document.querySelectorAll('#way-stages li').length >= 20")?;
        let list = "#way [data-stage=pattern] li .number";
        let shows = |layer: usize, head: usize, token: usize| -> Result {
            let along = Some(FollowedToken { layer, head, token: Some(token) });
            let stages = Live::demo()?.look(&PageRequest { along, ..look(TEXT) })?.way.ok_or("a way")?.stages;
            page.until(&format!(
                "document.getElementById('way-of').textContent.startsWith('Token {token} ') && document.getElementById('way-of').textContent.includes('head {layer}.{head}.')"
            ))?;
            let weights = &stages.iter().find(|stage| stage.name == "pattern").ok_or("weights")?.values;
            let share = |w: &f32| {
                if *w > 0.0 && *w < 0.0005 { "< 0.1 %".to_owned() } else { format!("{:.1} %", 100.0 * w) }
            };
            let mut shares: Vec<String> = weights.iter().map(share).collect();
            if weights.len() > 8 {
                let mut order: Vec<usize> = (0..weights.len()).collect();
                order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
                shares = order.iter().take(8).map(|&n| shares[n].clone()).collect();
                assert_eq!(
                    page.text("#way [data-stage=pattern] li:last-child")?,
                    format!("and {} more", weights.len() - 8)
                );
            }
            assert_eq!(page.texts(list)?, shares);
            Ok(())
        };
        page.click("#way [data-stage=pattern] summary")?;
        shows(1, 1, 13)?;
        page.head("0.3")?;
        shows(0, 3, 13)?;
        put(page, "way-token", "5", "change")?;
        shows(0, 3, 5)?;
        // The arrows go from stage to stage, and Enter opens one.
        page.get("document.querySelector('#way [data-stage=wte] summary').focus()")?;
        page.keys("\u{e015}\u{e015}\u{e007}")?;
        page.until("document.querySelector('#way [data-stage=resid_pre]').open")?;
        page.until("document.querySelector('#way [data-stage=resid_pre] .facts').textContent !== ''")?;
        let facts = page.text("#way [data-stage=resid_pre] .facts")?;
        assert!(facts.starts_with("128 numbers, length (norm) "), "{facts}");
        assert_eq!(page.text("#way [data-stage=scores] code")?, "q · kⱼ / √32,  −∞ for j > i");
        let columns = page.text("#way [data-stage=k] p")?;
        assert!(columns.contains("columns 224 to 255 of c_attn"), "{columns}");
        page.click("#way-close")?;
        assert_eq!(page.get("document.activeElement.id")?, "live-way");
        Ok(())
    })
}

/// The drawing goes from moment to moment, from the keyboard as well, and its parts open the stages.
#[test]
fn the_drawing_of_the_way_moves_and_opens_its_stages() -> Result {
    open("O Romeo, Romeo! wherefore art thou", |page| {
        page.head("1.1")?;
        page.click("#live-way")?;
        page.until("document.querySelectorAll('#way-stages details').length >= 20")?;
        settled(page)?;
        // How much of the canvas is painted.
        let painted = "(() => { const c = document.getElementById('way-drawing'); \
                       const copy = new OffscreenCanvas(c.width, c.height).getContext('2d', { willReadFrequently: true }); \
                       copy.drawImage(c, 0, 0); const d = copy.getImageData(0, 0, c.width, c.height).data; \
                       let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n })()";
        let whole = page.get(painted)?.as_f64().ok_or("a number")?;
        let mut before = 0.0;
        for (moment, says) in
            [(0, "wte, wpe: "), (4, "pattern: "), (7, "resid_mid: "), (12, "probabilities: ")]
        {
            put(page, "way-moment", &moment.to_string(), "input")?;
            assert!(page.text("#way-moment-text")?.starts_with(says), "{moment}");
            let now = page.get(painted)?.as_f64().ok_or("a number")?;
            assert!(now > before, "{moment}: {before} {now}");
            before = now;
        }
        assert!((before - whole).abs() < 1.0, "{before} {whole}");
        page.get("document.getElementById('way-moment').focus()")?;
        page.keys("\u{e012}")?;
        assert!(page.text("#way-moment-text")?.starts_with("ln_f, logits: "));
        // It moves by itself, and stands still when it is told to.
        page.click("#way-play")?;
        page.until("document.getElementById('way-moment').value === '12'")?;
        page.until("document.getElementById('way-play').textContent === '▶'")?;
        // A click on the fan of weights opens their stage.
        page.get("(() => { const c = document.getElementById('way-drawing'); const r = c.getBoundingClientRect(); \
                 const scale = Math.min(r.width / 440, r.height / 196); const left = (r.width - 440 * scale) / 2; \
                 c.dispatchEvent(new MouseEvent('click', { clientX: r.x + left + 190 * scale, clientY: r.y + 50 * scale })) })()")?;
        assert_eq!(page.get("document.querySelector('#way [data-stage=pattern]').open")?, true);
        Ok(())
    })
}

/// Each lesson sets up what it talks about, and sees what the reader changes.
#[test]
fn the_lessons_follow_the_reader() -> Result {
    open("O Romeo", |page| {
        page.click("#live-lessons")?;
        let steps: [(&str, &dyn Fn() -> Result); 10] = [
            ("O Romeo, wherefore art thou Romeo?", &|| {
                put(page, "live-text", "O Romeo, wherefore art thou Romeo? xylophone", "input")
            }),
            ("O Romeo, Romeo! wherefore art thou Romeo?", &|| page.click("#text span:nth-child(3)")),
            ("To be, or not to be", &|| put(page, "live-text", "To be, or not to be that", "input")),
            ("To be, or not to be", &|| page.click("#live-changes button")),
            ("O Romeo, Romeo! wherefore art thou Romeo?", &|| put(page, "sort", "kind", "change")),
            ("O Romeo, Romeo! wherefore art thou Romeo?", &|| page.click("#live-ablate")),
            ("gold kite moth lamp gold kite moth", &|| {
                put(page, "live-text", "gold kite moth king gold kite moth", "input")
            }),
            ("gold kite moth lamp gold kite moth", &|| {
                page.click("#live-changes button")?;
                settled(page)?;
                assert_eq!(page.get("document.getElementById('lesson-done').hidden")?, true, "half done");
                page.head("3.2")?;
                page.click("#live-ablate")
            }),
            ("O Romeo, Romeo! wherefore art thou", &|| {
                page.click("#way [data-stage=mlp_out] summary")?;
                page.click("#way [data-stage=resid_post] summary")
            }),
            ("ROMEO:", &|| put(page, "live-temperature", "0", "input")),
        ];
        for (n, (text, step)) in steps.into_iter().enumerate() {
            page.until(&format!("document.getElementById('lesson-choice').value === '{n}'"))?;
            page.until("document.getElementById('live').dataset.lesson === 'ready'")?;
            assert_eq!(page.get("document.getElementById('live-text').value")?, text);
            assert_eq!(page.get("document.getElementById('lesson-done').hidden")?, true, "lesson {n}");
            step()?;
            page.until("!document.getElementById('lesson-done').hidden")
                .map_err(|error| format!("{n}: {error}"))?;
            page.click("#lesson-next")?;
        }
        assert_eq!(page.get("document.getElementById('lesson').hidden")?, true, "the end");
        page.click("#live-lessons")?;
        put(page, "lesson-language", "de", "change")?;
        let task = page.text("#lesson-task")?;
        assert!(task.starts_with("Hänge oben"), "{task}");
        Ok(())
    })
}
