//! Text that tries to act as markup, script or text direction: the page only shows it.

use crate::common::Result;
use crate::show;
use candle_core::{Device, Tensor};
use gpt2_view::{HeadNumbers, NextToken, PageHeader, PageWriter, Provenance, visible_text, visible_token};
use serde_json::json;

#[test]
fn no_text_becomes_anything_but_text() -> Result {
    let long = "x".repeat(10_000);
    let tokens = [
        "</script><img src=x onerror=alert(1)>",
        "<!--",
        "<script>document.title='owned'</script>",
        "]]>&lt;&#x3c;",
        "{{script}}{{data}}",
        "\u{2028}\u{2029}",
        "\u{202e}desrever\u{2066}",
        "\u{fffd}\u{fffd}",
        "\0\x08\x1b[2J\r\n",
        "👩‍👩‍👧‍👦🇩🇪",
        "שלום",
        "${alert(1)}`'\"\\",
        "",
        "__proto__",
        &long,
    ]
    .map(str::to_owned);
    let t = tokens.len();
    let rows: Vec<f32> =
        (0..t * t).map(|n| if n % t <= n / t { 1.0 / (n / t + 1) as f32 } else { 0. }).collect();
    let weights = Tensor::from_vec(rows, (1, t, t), &Device::Cpu)?;
    let provenance = &Provenance {
        caption: tokens.concat(),
        facts: json!({ "model": tokens[0], "prompt": tokens.concat(), &tokens[1]: tokens }),
    };
    let mut header = PageHeader::new(&tokens[2], &tokens, 1, provenance);
    header.next = Some(&tokens[0]);
    let mut page = PageWriter::new(Vec::new(), &header)?;
    page.layer(0, &[0], &weights)?;
    let likely = tokens.iter().map(|token| (token.clone(), 0.01)).collect::<Vec<_>>();
    let page = page.finish(&vec![NextToken { likely, actual: Some(0.5) }; t])?;

    show(&page, |page| {
        let shown: Vec<String> = tokens.iter().map(|token| visible_token(token)).collect();
        assert_eq!(page.texts("#text [role=option]")?, shown);
        assert_eq!(page.text("#title")?, tokens[2]);
        assert_eq!(page.text("#caption")?, visible_text(&provenance.caption));
        let facts = "JSON.parse(document.querySelector('script.header').textContent).provenance";
        assert_eq!(page.get(facts)?, provenance.facts);
        for position in 0..t {
            page.get(&format!("document.getElementById('word-{position}').click()"))?;
            assert_eq!(page.text("#token-word")?, shown[position]);
            assert_eq!(page.texts("#next .word")?, shown);
            let follows = shown.get(position + 1).unwrap_or(&shown[0]);
            assert_eq!(page.text("#follows")?, format!("then came {follows} (50.0 %)"));
        }
        page.click("#lines-tab")?;
        assert_eq!(page.get("document.querySelectorAll('img, svg, iframe').length")?, 0);
        assert_eq!(
            page.get("document.scripts.length")?,
            6,
            "header, layer, weights, predictions, opens, script"
        );
        // Even with a very long token, the page is no wider than the window.
        assert_eq!(page.get("document.documentElement.scrollWidth <= innerWidth")?, true);
        // The page runs only its own script, and nothing turns a string into markup.
        assert_eq!(page.log()?, json!([]));
        let markup = "document.body.innerHTML = '<b>x</b>'";
        let tried = format!("(() => {{ try {{ {markup} }} catch {{ return 'refused' }} }})()");
        assert_eq!(page.get(&tried)?, "refused");
        let log = page.log()?;
        assert!(log[0]["message"].as_str().is_some_and(|m| m.contains("TrustedHTML")), "{log}");
        Ok(())
    })
}

#[test]
fn weights_that_are_not_numbers_are_said_to_be_none() -> Result {
    let weights = Tensor::new(&[[[f32::NAN, 0.], [0.5, 0.5]]], &Device::Cpu)?;
    let tokens = ["a", " b"].map(String::from);
    let provenance = Provenance::default();
    let header = PageHeader::new("nan", &tokens, 1, &provenance);
    let mut page = PageWriter::new(Vec::new(), &header)?;
    page.layer(0, &[0], &weights)?;
    let page = page.finish(&[])?;
    show(&page, |page| {
        page.mouse(page.cell(2, 2, (0, 0))?, true)?;
        assert_eq!(page.text("#readout .value")?, "not a number");
        assert_eq!(page.texts("#outgoing .number")?, ["NaN"]);
        Ok(())
    })
}

#[test]
fn names_of_runs_numbers_and_maps_are_text() -> Result {
    let evil = "</script><img src=x onerror=alert(1)>\u{202e}";
    let shown = visible_text(evil);
    let tokens = ["a", " b"].map(String::from);
    let weights = Tensor::new(&[[[1f32, 0.], [0.5, 0.5]]], &Device::Cpu)?;
    let provenance = Provenance::default();
    let mut header = PageHeader::new("names", &tokens, 1, &provenance);
    let runs = [evil, evil];
    (header.runs, header.prompt) = (&runs, Some(1));
    let mut page = PageWriter::new(Vec::new(), &header)?;
    for run in [0, 1] {
        page.layer_of_run(run, 0, &[0], &weights)?;
        page.map(run, evil, evil, &weights.get(0)?)?;
        page.lens(run, 0, &[(evil.to_owned(), 0.5), (evil.to_owned(), 0.5)])?;
    }
    let name = evil.to_owned();
    let meaning = evil.to_owned();
    page.head_numbers(&HeadNumbers { name, meaning, values: vec![1.0], signed: false })?;
    let page = page.finish(&[])?;
    show(&page, |page| {
        assert_eq!(page.texts("#runs label")?[..2], [&*shown, &*shown]);
        assert_eq!(page.texts("#maps [role=option]")?, [&*shown]);
        assert_eq!(page.text("#tint option:last-child")?, shown);
        assert_eq!(page.texts("#lens .word")?, [visible_token(evil)]);
        page.click("#maps [role=option]")?;
        assert_eq!(page.text("#head-title")?, shown);
        assert_eq!(page.get("document.querySelectorAll('img, svg, iframe').length")?, 0);
        assert_eq!(page.get("document.documentElement.scrollWidth <= innerWidth")?, true);
        // Nor does an address that somebody made up break anything.
        page.get("(location.hash = '#head=9.9+m7&token=1e9&run=__proto__&tint=constructor&place=1+NaN+-1&step=99&sort=%')")?;
        page.until("document.documentElement.dataset.shown === 'm0'")
    })
}
