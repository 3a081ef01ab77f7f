//! The content of a page. The workspace's tests/view and tests/cli/page test how a browser shows it.

use super::*;
use crate::provenance::Provenance;
use base64::{Engine, prelude::BASE64_STANDARD};
use candle_core::{DType, Device};
use serde_json::json;
use std::slice;

fn page(title: &str, tokens: &[&str], predictions: &[NextToken]) -> Result<String> {
    page_by(title, tokens, predictions, &Provenance::default())
}

fn page_by(
    title: &str,
    tokens: &[&str],
    predictions: &[NextToken],
    provenance: &Provenance,
) -> Result<String> {
    let tokens: Vec<String> = tokens.iter().map(ToString::to_string).collect();
    let next = predictions.last().and_then(|last| last.actual).map(|_| title);
    let header = PageHeader { next, ..PageHeader::new(title, &tokens, 2, provenance) };
    let weights = Tensor::zeros((1, tokens.len(), tokens.len()), DType::F32, &Device::Cpu)?;
    let mut page = PageWriter::new(Vec::new(), &header)?;
    for layer in [0, 3] {
        page.layer(layer, &[7], &weights)?;
    }
    String::from_utf8(page.finish(predictions)?).map_err(Error::wrap)
}

/// The first block of a kind.
fn data(page: &str, kind: &str) -> Value {
    let start = format!("<script type=\"application/json\" class=\"{kind}\">");
    let (_, rest) = page.split_once(&start).expect(kind);
    serde_json::from_str(rest.split_once("</script>").expect("an end").0).expect("JSON")
}

fn says<T>(result: Result<T>, part: &str) {
    let err = result.err().expect(part).to_string();
    assert!(err.contains(part), "{err}");
}

#[test]
fn the_frame_is_filled() -> Result<()> {
    let page = page("model", &["a", " b"], &[])?;
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(!page.contains("{{"), "a place that nothing fills");
    assert_eq!(page.matches(SCRIPT).count(), 1);
    assert!(page.contains(&format!("'sha256-{}'", hash(SCRIPT))) && page.contains(&hash(STYLE)));
    assert_eq!(data(&page, "header")["tokens"], json!(["a", "·b"]));
    assert_eq!(data(&page, "layer")["heads"][0]["head"], 7);
    assert_eq!(page.matches("class=\"weights\"").count(), 2);
    assert_eq!(data(&page, "predictions")["data"], json!([]));
    Ok(())
}

#[test]
fn a_page_says_what_made_it() -> Result<()> {
    let facts =
        json!({ "model": "gpt2", "ids": [1, 2], "ablate": ["0.1"], "seed": null, "emoji": "👍\u{feff}" });
    let made = Provenance { caption: "f32 on cpu; ablate 0.1".to_owned(), facts: facts.clone() };
    let page = page_by("model", &["a", " b"], &[], &made)?;
    let header = data(&page, "header");
    assert_eq!((&header["caption"], &header["provenance"]), (&json!("f32 on cpu; ablate 0.1"), &facts));
    assert!(page.contains("<p id=\"caption\" hidden>") && !page.contains('\u{feff}'));
    let unknown = data(&self::page("model", &["a", " b"], &[])?, "header");
    assert_eq!((&unknown["caption"], &unknown["provenance"]), (&json!(""), &Value::Null));
    assert_eq!(page_by("model", &["a", " b"], &[], &made)?, page, "the same bytes");
    Ok(())
}

#[test]
fn no_string_becomes_markup() -> Result<()> {
    let hostile = "</script><img src=x onerror=alert(1)><!--<script>\u{2028}\u{202e}\0";
    let next = |actual| NextToken { likely: vec![(hostile.to_owned(), 0.5)], actual };
    let clean = page("m", &["a", "b"], &[])?;
    let made = Provenance { caption: hostile.to_owned(), facts: json!({ hostile: [hostile] }) };
    let dirty = page_by(hostile, &[hostile, "b"], &[next(Some(0.25)), next(Some(0.25))], &made)?;
    let tags = |page: &str| (page.matches('<').count(), page.matches("<!--").count());
    assert_eq!(tags(&dirty), tags(&clean), "text opened an element");
    assert!(!dirty.contains(['\0', '\u{2028}', '\u{202e}']));
    let shown = "</script><img·src=x·onerror=alert(1)><!--<script>\\u{2028}\\u{202e}␀";
    let header = data(&dirty, "header");
    assert_eq!(header["tokens"][0], shown);
    assert_eq!(header["caption"], visible_text(hostile));
    assert_eq!(header["provenance"], made.facts, "a script reads the facts as they were given");
    let predictions = &data(&dirty, "predictions")["data"];
    assert_eq!(predictions[0]["likely"][0], json!([shown, 0.5]));
    assert_eq!(predictions[1]["actual"], 0.25);
    assert_eq!(header["next"], shown);
    Ok(())
}

#[test]
fn what_does_not_fit_together_is_refused() -> Result<()> {
    let tokens = ["a", "b", "c"].map(String::from);
    let provenance = &Provenance::default();
    let header = PageHeader { queries: 2, ..PageHeader::new("m", &tokens, 2, provenance) };
    let weights = Tensor::zeros((2, 2, 3), DType::F32, &Device::Cpu)?;
    let start = || PageWriter::new(Vec::new(), &header);
    for (header, part) in [
        (PageHeader { queries: 4, ..header.clone() }, "4 queries"),
        (PageHeader { queries: 0, ..header.clone() }, "no query"),
        (PageHeader { heads: 0, ..header.clone() }, "no head"),
        (PageHeader { ids: &[1, 2], ..header.clone() }, "2 ids for 3 tokens"),
    ] {
        says(PageWriter::new(Vec::new(), &header), part);
    }
    for (heads, weights, part) in
        [(&[0, 1, 2][..], &weights, "3 heads"), (&[0, 1], &weights.transpose(1, 2)?, "[2, 3, 2]")]
    {
        says(start()?.layer(5, heads, weights), part);
    }
    says(start()?.finish(&[]), "2 of the announced heads");
    let mut page = start()?;
    page.layer(0, &[0, 1], &weights)?;
    assert!(page.layer(1, &[0, 1], &weights).is_err(), "more than announced");
    let next = NextToken { likely: vec![], actual: None };
    says(page.finish(&[next]), "1 predictions for 2 queries");
    Ok(())
}

#[test]
fn what_a_comparison_and_its_extras_need_is_checked() -> Result<()> {
    let tokens = ["a", "b", "c"].map(String::from);
    let provenance = &Provenance::default();
    let header = PageHeader {
        queries: 2,
        runs: &["clean", "patched"],
        ..PageHeader::new("m", &tokens, 2, provenance)
    };
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    let weights = zeros(&[2, 2, 3])?;
    for (header, part) in [
        (PageHeader { runs: &["a", "b", "c"], ..header.clone() }, "3 runs"),
        (PageHeader { prompt: Some(0), ..header.clone() }, "prompt of 0"),
        (PageHeader { prompt: Some(4), ..header.clone() }, "prompt of 4"),
    ] {
        says(PageWriter::new(Vec::new(), &header), part);
    }
    let next = NextToken { likely: vec![], actual: None };
    let numbers = |n| HeadNumbers {
        name: "effect".to_owned(),
        meaning: String::new(),
        values: vec![f32::NAN; n],
        signed: true,
    };
    let guess = ("a".to_owned(), 0.5);
    let mut page = PageWriter::new(Vec::new(), &header)?;
    page.layer(0, &[0, 1], &weights)?;
    says(page.layer_of_run(2, 0, &[0, 1], &weights), "run 2");
    says(page.layer_of_run(1, 0, &[1, 1], &weights), "layer 0, head 1 was written before");
    says(page.predictions(0, slice::from_ref(&next)), "finish");
    says(page.predictions(1, slice::from_ref(&next)), "1 predictions for 2 queries");
    says(page.head_numbers(&numbers(3)), "3 values of \"effect\" for 2 heads");
    says(page.lens(1, 0, slice::from_ref(&guess)), "1 tokens for 2 queries");
    says(page.features(0, "", &[vec![]]), "features of 1 tokens for 3 keys");
    says(page.features(0, "", &[vec![], vec![], vec![(1, f32::NAN)]]), "feature 1 has activation NaN");
    says(page.map(0, "rollout", "", &zeros(&[3, 3])?), "[3, 3]");
    says(page.map(0, "rollout", "", &(zeros(&[2, 3])? - 1.0)?), "between 0 and 1");
    says(page.value_norms(0, 0, &[0, 1], &zeros(&[2, 2])?), "[2, 2]");
    says(page.value_norms(0, 0, &[0], &(zeros(&[1, 3])? - 1.0)?), "is not a norm");
    let q = zeros(&[2, 2, 4])?;
    let k = zeros(&[2, 3, 4])?;
    says(page.vectors(0, 0, &[0, 1], &k, &q, 1.0), "[2, 3, 4]");
    says(page.vectors(0, 0, &[0, 1], &q, &(&k / 0.0)?, 1.0), "not finite");
    Ok(())
}

/// The beginning of a page of two runs, with one head over two tokens.
fn two_runs() -> Result<PageWriter<Vec<u8>>> {
    let tokens = ["a", "b"].map(String::from);
    let provenance = Provenance::default();
    let header = PageHeader { runs: &["clean", "patched"], ..PageHeader::new("m", &tokens, 1, &provenance) };
    PageWriter::new(Vec::new(), &header)
}

#[test]
fn runs_with_other_heads_cannot_be_compared() -> Result<()> {
    let weights = Tensor::zeros((1, 2, 2), DType::F32, &Device::Cpu)?;
    for (second, fits) in [(3, true), (4, false)] {
        let mut page = two_runs()?;
        page.layer_of_run(1, second, &[0], &weights)?; // runs may come in any order
        page.layer(3, &[0], &weights)?;
        let page = page.finish(&[]);
        assert_eq!(page.is_ok(), fits);
        if !fits {
            says(page, "different heads");
        }
    }
    Ok(())
}

#[test]
fn maps_of_two_runs_belong_together() -> Result<()> {
    let weights = Tensor::zeros((1, 2, 2), DType::F32, &Device::Cpu)?;
    for (second, fits) in
        [(&["mean", "rollout"][..], true), (&["rollout"], false), (&["mean", "mean"], false)]
    {
        let mut page = two_runs()?;
        for run in [0, 1] {
            page.layer_of_run(run, 0, &[0], &weights)?;
        }
        let room = page.room;
        for (run, names) in [(0, &["rollout", "mean"][..]), (1, second)] {
            for name in names {
                page.map(run, name, "", &weights.get(0)?)?;
            }
        }
        assert!(page.room < room, "maps take room as heads do");
        let page = page.finish(&[]);
        assert_eq!(page.is_ok(), fits);
        if !fits {
            says(page, "different maps");
        }
    }
    Ok(())
}

#[test]
fn a_comparison_opens_on_the_head_that_changes_most_unless_it_is_silenced() -> Result<()> {
    let tokens = ["a", "b", "c", "d"].map(String::from);
    let provenance = &Provenance::default();
    let map = |last: [f32; 4]| [[1., 0., 0., 0.], [0.5, 0.5, 0., 0.], [0.1, 0.8, 0.1, 0.], last];
    let first = Tensor::new(&[map([0.1, 0.2, 0.3, 0.4]), map([0.3, 0.3, 0.2, 0.2])], &Device::Cpu)?;
    // The first head moves 0.1 of its last row, and the second 0.4.
    let second = Tensor::new(&[map([0.2, 0.2, 0.2, 0.4]), map([0.1, 0.1, 0.2, 0.6])], &Device::Cpu)?;
    for (silenced, changed, opens) in
        [(&[][..], &second, "5.8"), (&[8], &second, "5.7"), (&[7, 8], &first, ""), (&[7], &first, "5.8")]
    {
        let mut header = PageHeader { runs: &["a", "b"], ..PageHeader::new("m", &tokens, 2, provenance) };
        for &head in silenced {
            header.silenced.insert(5, head, "ablated");
        }
        for top in [None, Some(2)] {
            header.top = top;
            let mut page = PageWriter::new(Vec::new(), &header)?;
            page.layer_of_run(1, 5, &[7, 8], changed)?;
            page.layer(5, &[7, 8], &first)?;
            let page = String::from_utf8(page.finish(&[])?).map_err(Error::wrap)?;
            let opened = data(&page, "opens");
            assert_eq!(opened.as_str().unwrap_or_default(), opens, "{silenced:?} {top:?}");
            let changes = data(&page, "changes");
            let of = |name: &str| changes[name].as_f64().expect("a change");
            let moved =
                if std::ptr::eq(changed, &raw const second) { [0.1 / 4.0, 0.4 / 4.0] } else { [0.0; 2] };
            for (shown, moved) in [of("5.7"), of("5.8")].into_iter().zip(moved) {
                let least = if top.is_none() { moved - 1e-4 } else { 0.0 };
                assert!(shown <= moved + 1e-9 && shown >= least, "{top:?}: {shown}, {moved}");
            }
            // Only the run that does not use a head's output says so.
            assert_eq!(page.matches("\"silenced\":\"ablated\"").count(), silenced.len());
        }
    }
    Ok(())
}

#[test]
fn a_token_that_follows_has_a_name() -> Result<()> {
    let tokens = ["a", " b"].map(String::from);
    let provenance = &Provenance::default();
    let weights = Tensor::zeros((1, 2, 2), DType::F32, &Device::Cpu)?;
    for next in [None, Some(" c")] {
        let header = PageHeader { next, ..PageHeader::new("m", &tokens, 1, provenance) };
        let mut page = PageWriter::new(Vec::new(), &header)?;
        page.layer(0, &[0], &weights)?;
        let page = page.finish(&vec![NextToken { likely: vec![], actual: Some(0.5) }; 2]);
        match next {
            None => says(page, "does not name that token"),
            Some(_) => {
                assert_eq!(data(&String::from_utf8(page?).expect("text"), "header")["next"], "·c");
            }
        }
    }
    Ok(())
}

#[test]
fn extras_come_back_as_they_were_given() -> Result<()> {
    let tokens = ["a", " b"].map(String::from);
    let provenance = &Provenance::default();
    let mut page = PageWriter::new(Vec::new(), &PageHeader::new("m", &tokens, 1, provenance))?;
    let weights = Tensor::zeros((1, 2, 2), DType::F32, &Device::Cpu)?;
    page.layer(2, &[5], &weights)?;
    page.head_numbers(&HeadNumbers {
        name: "<b>".into(),
        meaning: "m".into(),
        values: vec![-0.5],
        signed: true,
    })?;
    page.lens(0, 2, &[(" x".to_owned(), 0.123_456_7), ("y".to_owned(), 1.0)])?;
    page.map(0, "rollout", "", &weights.get(0)?)?;
    page.features(0, "<d>", &[vec![(3, 0.5)], vec![]])?;
    page.circuit(&[("0.1".into(), "<x>".into())])?;
    page.value_norms(0, 2, &[5], &Tensor::new(&[[0.5f32, 3.25]], &Device::Cpu)?)?;
    let q = Tensor::new(&[[[1f32, -2.], [0., 0.5]]], &Device::Cpu)?;
    page.vectors(0, 2, &[5], &q, &q, 0.125)?;
    let page = String::from_utf8(page.finish(&[])?).map_err(Error::wrap)?;
    assert_eq!(data(&page, "header")["texts"], json!(["a", " b"]));
    assert_eq!(
        data(&page, "numbers"),
        json!({ "name": "<b>", "meaning": "m", "signed": true, "values": [-0.5] })
    );
    let likely = &data(&page, "lens")["likely"];
    assert!(likely[0][0] == "·x" && (likely[0][1].as_f64().expect("p") - 0.12346).abs() < 1e-6, "{likely}");
    assert_eq!(data(&page, "map")["name"], "rollout");
    assert_eq!(data(&page, "features"), json!({ "run": 0, "name": "<d>", "tokens": [[[3, 0.5]], []] }));
    assert_eq!(data(&page, "circuit"), json!([["0.1", "<x>"]]));
    let bytes = |text: &Value| BASE64_STANDARD.decode(text.as_str().expect("text")).expect("base64");
    let norms = bytes(&data(&page, "norms")[0]["norms"]);
    let norms: Vec<_> = norms.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert_eq!(norms, [0.5, 3.25]);
    let vectors = &data(&page, "vectors")[0];
    let unit = vectors["units"][0].as_f64().expect("a unit");
    let codes = bytes(&vectors["q"]);
    let back: Vec<_> =
        codes.chunks_exact(2).map(|b| unit * f64::from(i16::from_le_bytes([b[0], b[1]]))).collect();
    for (back, given) in back.iter().zip([1.0, -2.0, 0.0, 0.5]) {
        assert!((back - given).abs() < 1e-4, "{back}: {given}");
    }
    assert_eq!((vectors["width"].as_u64(), vectors["scale"].as_f64()), (Some(2), Some(0.125)));
    Ok(())
}

#[test]
fn no_page_ends_its_attribute() {
    let page = "<!doctype html>\n<p title=\"a\">&lt;b&gt; '\u{1f600}' </iframe></p>";
    let fragment = page_fragment(page.as_bytes(), 640);
    assert!(
        fragment.contains("height:640px") && fragment.contains("sandbox=\"allow-scripts allow-downloads\"")
    );
    let (_, rest) = fragment.split_once(" srcdoc=\"").expect("the page");
    let (held, end) = rest.split_once('"').expect("an end");
    assert_eq!(end, "></iframe>\n", "the first quote ends the attribute, and nothing follows");
    assert_eq!(held.replace("&quot;", "\"").replace("&amp;", "&"), page);
}

#[test]
fn bytes_that_are_not_text_are_replaced() {
    assert!(page_fragment(b"a\xff", 1).contains("srcdoc=\"a\u{fffd}\""));
}
