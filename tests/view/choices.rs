//! The choices of a reader on a page with all kinds of data: numbers, means, other maps, norms, steps, search.

use crate::browser::Browser;
use crate::common::Result;
use crate::pages::{Everything, HEADS, WIDTH};
use crate::show;
use candle_core::Tensor;

const T: usize = 18;

fn open(test: impl FnOnce(&Browser, &Everything) -> Result) -> Result {
    let all = Everything::new(T)?;
    show(&all.write(Vec::new(), &[])?, |page| test(page, &all))
}

fn choose(page: &Browser, menu: &str, value: &str) -> Result {
    page.get(&format!(
        "(() => {{ const s = document.getElementById('{menu}'); s.value = '{value}'; s.dispatchEvent(new Event('change')) }})()"
    ))?;
    Ok(())
}

/// Hovers over a cell and compares the readout with `expected`.
fn assert_cell(page: &Browser, (i, j): (usize, usize), expected: f32) -> Result {
    page.mouse(page.cell(T, T, (i, j))?, false)?;
    let (query, key, shown, error) = page.value()?;
    assert_eq!((query, key), (i, j));
    let off = (shown - f64::from(expected)).abs();
    assert!(off <= error && error < 1e-3, "{shown} ± {error}: {expected}");
    Ok(())
}

fn at(weights: &Tensor, (i, j): (usize, usize)) -> Result<f32> {
    Ok(weights.get(i)?.get(j)?.to_scalar()?)
}

#[test]
fn heads_are_sorted_and_colored_by_a_callers_number() -> Result {
    open(|page, _| {
        assert_eq!(page.get("document.getElementById('runs').hidden")?, true, "there is one run");
        page.get("document.querySelector('[data-head=\"4\"]').focus()")?;
        choose(page, "sort", "n0")?;
        choose(page, "tint", "n0")?;
        assert_eq!(page.get("document.activeElement.dataset.head")?, "4", "it moved, with its focus");
        let shown = page.texts("#overview [role=option] span")?;
        assert_eq!((&*shown[0], &*shown[10], &*shown[11]), ("2.3 +0.88", "0.0 −0.50", "1.1 NaN"));
        assert_eq!((page.text("#tint-low")?, page.text("#tint-high")?), ("−0.88".into(), "+0.88".into()));
        let color = |head: usize| {
            page.get(&format!("document.querySelector('[data-head=\"{head}\"]').style.backgroundColor"))
        };
        assert_eq!(
            (color(11)?, color(5)?),
            ("rgb(103, 0, 31)".into(), "".into()),
            "the largest is red, NaN has none"
        );
        assert!(
            page.get("document.querySelector('[data-head=\"0\"]').title")?
                .as_str()
                .is_some_and(|t| t.contains("effect −0.50"))
        );
        Ok(())
    })
}

#[test]
fn several_heads_show_their_mean() -> Result {
    open(|page, all| {
        page.head("1.0")?;
        // With the keyboard: Ctrl and an arrow move to the next head, and the space bar adds it.
        page.get("document.querySelector('[data-head=\"4\"]').focus()")?;
        let ctrl = "new KeyboardEvent('keydown', { key: 'ArrowRight', ctrlKey: true, bubbles: true })";
        page.get(&format!("document.activeElement.dispatchEvent({ctrl})"))?;
        page.keys(" ")?;
        page.until("document.documentElement.dataset.shown === '1.0+1.1'")?;
        assert_eq!(page.text("#head-title")?, "Mean of 2: 1.0, 1.1");
        let two = all.runs[0][1].narrow(0, 0, 2)?.mean(0)?;
        for cell in [(4, 2), (17, 16)] {
            assert_cell(page, cell, at(&two, cell)?)?;
        }
        page.keys(" ")?;
        page.until("document.documentElement.dataset.shown === '1.0'")?;
        // With the mouse: a click with Ctrl, and a click on the layer's number.
        let click = "new MouseEvent('click', { ctrlKey: true, bubbles: true })";
        page.get(&format!("document.querySelector('[data-head=\"9\"]').dispatchEvent({click})"))?;
        page.until("document.documentElement.dataset.shown === '1.0+2.1'")?;
        assert_eq!(page.get("document.querySelectorAll('#overview [aria-selected=true]').length")?, 2);
        page.click("#overview [data-layer=\"2\"]")?;
        page.until("document.documentElement.dataset.shown.startsWith('2.0+2.1+2.2')")?;
        assert_eq!(page.text("#head-title")?, format!("Layer 2, mean of its {HEADS} heads"));
        assert_cell(page, (17, 3), at(&all.runs[0][2].mean(0)?, (17, 3))?)?;
        // The link brings them back.
        page.until("location.hash.includes('head=2.0+2.1+2.2+2.3')")?;
        page.get("location.reload()")?;
        page.until("document.documentElement.dataset.shown === '2.0+2.1+2.2+2.3'")
    })
}

#[test]
fn other_maps_can_be_chosen_like_heads() -> Result {
    open(|page, all| {
        assert_eq!(page.texts("#maps [role=option]")?, ["rollout"]);
        page.click("#maps [role=option]")?;
        page.until("document.documentElement.dataset.shown === 'm0'")?;
        assert_eq!(page.text("#head-title")?, "rollout");
        assert_cell(page, (11, 5), at(&all.rollout, (11, 5))?)?;
        page.keys("[")?;
        page.until("document.documentElement.dataset.shown === '2.3'")
    })
}

#[test]
fn weights_times_the_norms_of_values() -> Result {
    open(|page, all| {
        page.head("0.2")?;
        page.click("#weighted")?;
        page.until("document.getElementById('legend-end').textContent !== '1'")?;
        let (i, j) = (13, 6);
        let weight = at(&all.runs[0][0].get(2)?, (i, j))?;
        let norm = at(&all.norms, (2, j))?;
        assert_cell(page, (i, j), weight * norm)?;
        let detail = page.text("#readout .detail")?;
        assert!(detail.starts_with("weight ") && detail.ends_with(&format!(" × norm {norm:.2}")), "{detail}");
        Ok(())
    })
}

#[test]
fn the_neuron_view_adds_up_to_the_score() -> Result {
    open(|page, all| {
        page.head("1.3")?;
        page.click("#neurons summary")?;
        page.until("document.getElementById('products-sum').textContent === 'Choose a cell of the map.'")?;
        page.mouse(page.cell(T, T, (9, 4))?, true)?;
        let q = all.q.get(3)?.get(9)?.to_vec1::<f32>()?;
        let k = all.k.get(3)?.get(4)?.to_vec1::<f32>()?;
        let score: f32 = q.iter().zip(&k).map(|(q, k)| 0.5 * q * k).sum();
        let shown = page.text("#products-sum")?.replace('−', "-");
        let number = shown.trim_start_matches("score: ").split(',').next().ok_or("a sum")?;
        let (sum, error) = number.split_once(" ± ").ok_or("an error")?;
        let (sum, error): (f32, f32) = (sum.parse()?, error.parse()?);
        assert!((sum - score).abs() <= error && error < 0.005, "{shown}: {score}");
        assert!(shown.ends_with(&format!("{WIDTH} dimensions")), "{shown}");
        let largest =
            (0..WIDTH).max_by(|&a, &b| (q[a] * k[a]).abs().total_cmp(&(q[b] * k[b]).abs())).ok_or("one")?;
        assert!(page.text("#products-list")?.starts_with(&format!("strongest: {largest}: ")));
        Ok(())
    })
}

#[test]
fn the_search_finds_text_across_tokens() -> Result {
    open(|page, _| {
        page.keys("/SCORE AND se")?;
        assert_eq!(page.text("#found")?, "1 found");
        assert_eq!(page.texts("#text .found")?, ["·score", "·and", "·seven"]);
        page.keys("\u{e007}")?;
        assert_eq!((page.text("#found")?, page.text("#token-title")?), ("1 of 1".into(), "Token 1".into()));
        // A position; a space may be typed as it is shown.
        for (sought, found) in
            [("#4", "1 of 1"), ("·and·seven", "1 found"), ("and  seven", "not found"), ("#99", "not found")]
        {
            page.get(&format!(
                "(() => {{ const s = document.getElementById('search'); s.value = '{sought}'; s.dispatchEvent(new Event('input')) }})()"
            ))?;
            if sought == "#4" {
                page.keys("\u{e007}")?;
                assert_eq!(page.text("#token-title")?, "Token 4");
            }
            assert_eq!(page.text("#found")?, found, "{sought}");
        }
        // Only a query is marked beside its row. The strip of marks starts 4 pixels left of the map.
        page.keys("\u{e00c}")?;
        page.get("(() => { const s = document.getElementById('search'); s.value = '#9'; s.dispatchEvent(new Event('input')) })()")?;
        let (.., y) = page.cell(T, T, (9, 0))?;
        let strip = format!(
            "(() => {{ const m = document.getElementById('map'); const r = devicePixelRatio; \
             const c = new OffscreenCanvas(1, 1).getContext('2d', {{ willReadFrequently: true }}); \
             c.drawImage(m, 101 * r, ({y} - m.getBoundingClientRect().y) * r, 1, 1, 0, 0, 1, 1); \
             return c.getImageData(0, 0, 1, 1).data[3] }})()"
        );
        for (marked, shown) in [("both", 255), ("key", 0), ("query", 255)] {
            choose(page, "as", marked)?;
            page.until(&format!("{strip} === {shown}")).map_err(|e| format!("{marked}: {e}"))?;
        }
        Ok(())
    })
}

#[test]
fn steps_of_a_generated_text() -> Result {
    open(|page, all| {
        assert_eq!(page.get("document.getElementById('steps').hidden")?, false);
        page.head("0.0")?;
        page.keys(",,")?;
        assert_eq!(page.get("document.getElementById('step').value")?, (T - 2).to_string());
        assert_eq!(page.text("#token-title")?, format!("Token {}", T - 3), "the newest token's query");
        let hidden = "[...document.querySelectorAll('#text span')].filter((w) => getComputedStyle(w).visibility === 'hidden').length";
        assert_eq!(page.get(hidden)?, 2);
        // What the later tokens attend to is not there yet.
        page.mouse(page.cell(T, T, (T - 1, 2))?, false)?;
        assert!(page.text("#readout")?.starts_with("Point at a cell"));
        assert_cell(page, (T - 3, 2), at(&all.runs[0][0].get(0)?, (T - 3, 2))?)?;
        page.until("location.hash.includes(`step=16`)")?;
        // Nor does an address or a pointer reach them.
        page.get("(location.hash = '#step=14&token=17')")?;
        page.until("document.getElementById('token-title').textContent === 'Token 13'")?;
        page.keys("l")?;
        page.until("document.getElementById('lines').height > 0")?;
        page.get("(() => { const l = document.getElementById('lines'); const r = l.getBoundingClientRect(); \
                 l.dispatchEvent(new MouseEvent('click', { clientX: r.x + 20, clientY: r.y + 15.5 * 22 })) })()")?;
        assert_eq!(page.text("#token-title")?, "Token 13");
        page.keys("m")?;
        // It plays from the prompt to the end.
        page.get("(() => { const s = document.getElementById('step'); s.value = s.min; s.dispatchEvent(new Event('input')) })()")?;
        assert_eq!(page.text("#step-text")?, "the prompt");
        page.click("#play")?;
        page.until("document.getElementById('step').value === '18' && document.getElementById('play').textContent === '▶'")?;
        assert_eq!(page.get(hidden)?, 0);
        // Two hundred steps take no longer than a few frames each.
        let many = "(() => { const start = performance.now(); for (let n = 0; n < 200; n++) { const s = document.getElementById('step'); \
                    s.value = 12 + n % 7; s.dispatchEvent(new Event('input')) } return performance.now() - start })()";
        assert!(page.get(many)?.as_f64().is_some_and(|ms| ms < 4000.0));
        Ok(())
    })
}

#[test]
fn the_lens_is_listed_block_by_block() -> Result {
    open(|page, all| {
        page.click("#word-7")?;
        assert_eq!(page.texts("#lens .position")?, ["0", "1", "2"]);
        let words = [7, 8, 9].map(|i| gpt2_view::visible_token(&all.tokens[i]));
        assert_eq!(page.texts("#lens .word")?, words);
        assert_eq!(page.texts("#lens .number")?, ["20.0 %", "30.0 %", "40.0 %"]);
        Ok(())
    })
}

#[test]
fn features_color_the_text_and_are_listed_for_a_token() -> Result {
    open(|page, _| {
        page.click("#word-7")?;
        assert_eq!(page.texts("#features .word")?, ["feature 7", "feature 1"]);
        assert_eq!(page.texts("#features .number")?, ["3.00", "0.50"]);
        let strength =
            |i: usize| format!("document.getElementById('word-{i}').style.getPropertyValue('--strength')");
        page.click("#features li:first-child button")?;
        assert_eq!(page.get(&strength(4))?, "1");
        assert_eq!(page.get(&strength(5))?, "0.2");
        page.click("#features li:nth-child(2) button")?;
        // Feature 1 fires at tokens 1, 4, 7, and so on, all alike.
        assert_eq!((page.get(&strength(4))?, page.get(&strength(5))?), ("1".into(), "0".into()));
        // A second click gives the text its attention back.
        page.click("#features li:nth-child(2) button")?;
        assert_eq!(page.get("document.querySelectorAll('#features [aria-pressed=true]').length")?, 0);
        assert_eq!(page.get(&strength(12))?, "0");
        Ok(())
    })
}

#[test]
fn a_circuit_is_drawn_between_heads_and_listed_for_the_chosen_one() -> Result {
    open(|page, _| {
        assert_eq!(page.get("document.querySelectorAll('#overview line').length")?, 1);
        page.click("#head-1")?; // layer 0, head 1
        assert_eq!(page.texts("#edges .word")?, ["embed → v", "→ 1.0.k"]);
        assert_eq!(page.get("document.querySelectorAll('#overview line.chosen').length")?, 1);
        // An edge leads on to its head.
        page.click("#edges li:nth-child(2) button")?;
        page.until("document.getElementById('head-title').textContent === 'Layer 1, head 0'")?;
        assert_eq!(page.texts("#edges .word")?, ["0.1 → k", "→ 2.mlp", "→ logits"]);
        page.click("#head-2")?;
        assert_eq!(page.text("#edges")?, "The circuit does not have this head.");
        let outside =
            "[...document.querySelectorAll('#overview .outside')].map((one) => one.id).includes('head-2')";
        assert_eq!(page.get(outside)?, true);
        Ok(())
    })
}

/// The map gets the room of everything else, and the key and the button lead back.
#[test]
fn a_presentation_shows_the_map_alone() -> Result {
    open(|page, _| {
        let size = "document.getElementById('map').clientWidth * document.getElementById('map').clientHeight";
        let seen =
            "['heads', 'token', 'finder'].filter((id) => document.getElementById(id).clientWidth > 0).length";
        let before = page.get(size)?.as_f64().ok_or("a size")?;
        page.keys("p")?;
        page.until("location.hash.includes('present=yes')")?;
        assert_eq!(page.get(seen)?, 0);
        let after = page.get(size)?.as_f64().ok_or("a size")?;
        assert!(after > 1.2 * before, "{before} {after}");
        page.get("location.reload()")?;
        page.until("document.documentElement.classList.contains('presenting')")?;
        page.keys("\u{e00c}")?;
        assert_eq!(page.get(seen)?, 3);
        page.click("#present")?;
        assert_eq!(page.get(seen)?, 0);
        page.click("#present")?;
        assert_eq!(page.get(seen)?, 3);
        Ok(())
    })
}

#[test]
fn colors_theme_and_place_are_in_the_link() -> Result {
    open(|page, _| {
        assert_eq!(
            page.get("document.getElementById('scale').value")?,
            "weight",
            "absolute unless asked for"
        );
        page.head("0.0")?;
        page.keys("st")?;
        choose(page, "tint", "entropy")?;
        choose(page, "as", "key")?;
        page.get("document.getElementById('map').focus()")?;
        page.keys("\u{e012}+++")?;
        page.until(
            "['scale=row', 'theme=', 'tint=entropy', 'as=key', 'place='].every((part) => location.hash.includes(part))",
        )?;
        let dark = "getComputedStyle(document.documentElement).colorScheme";
        let hash = page.get("location.hash")?;
        let theme = page.get(dark)?;
        page.mouse(page.cell(T, T, (15, 12))?, false)?;
        let there = page.text("#readout")?;
        page.get("location.reload()")?;
        page.until("document.documentElement.dataset.shown === '0.0'")?;
        assert_eq!((page.get("location.hash")?, page.get(dark)?), (hash, theme));
        assert_eq!(page.get("document.getElementById('as').value")?, "key");
        page.until("document.getElementById('map').width > 300")?;
        page.mouse(page.cell(T, T, (15, 11))?, false)?;
        page.mouse(page.cell(T, T, (15, 12))?, false)?;
        assert_eq!(page.text("#readout")?, there, "the same part of the map");
        Ok(())
    })
}
