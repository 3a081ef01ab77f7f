//! Pages of features and of attribution graphs, by mouse and keyboard, with texts that try to be markup.

use crate::browser::{Browser, browse};
use crate::common::Result;
use crate::show;
use gpt2_view::{feature_pages, graph_page, visible_text, visible_token};
use serde_json::{Value, json};

const EVIL: &str =
    "</script><img src=x onerror=alert(1)>{{data}}\u{202e}\0\u{1b}\u{a0}\u{2003}\u{3164}\u{fe0f}";
const RTL: &str = " שלום";
const LEFT: &str = "\u{e012}";
const UP: &str = "\u{e013}";
const DOWN: &str = "\u{e015}";
const ENTER: &str = "\u{e007}";

/// A node as circuit-tracer writes it.
fn node(id: &str, layer: &str, position: usize, kind: &str, influence: Option<f64>) -> Value {
    let is_feature = kind == "cross layer transcoder";
    json!({
        "node_id": id, "feature": -1, "layer": layer, "ctx_idx": position, "feature_type": kind, "token_prob": 0.5,
        "is_target_logit": kind == "logit", "run_idx": 0, "reverse_ctx_idx": 0, "jsNodeId": id, "influence": influence,
        "clerp": if kind == "logit" { format!("Output \"{EVIL}\" (p=0.500)") } else { String::new() },
        "activation": is_feature.then_some(2.0),
    })
}

/// Two layers and three tokens.
fn report() -> Value {
    let feature = "cross layer transcoder";
    let link = |source: &str, target: &str, weight: f64| json!({ "source": source, "target": target, "weight": weight });
    let dictionary =
        |name: &str| json!({ "name": name, "architecture": "transcoder", "hook": "h", "features": 8 });
    json!({
        "provenance": { "gpt2": "0.1.0", "model": EVIL, "dtype": "f32", "device": "cpu", "implementation": "fused", "ids": [1, 2, 3] },
        "model": EVIL,
        "dictionaries": [dictionary("it's t0"), dictionary(EVIL)],
        "replacement_score": 0.5, "completeness_score": 0.75, "active_features": 2, "nodes": 20,
        "command": "gpt2 forward --ids 1,2,3",
        "graph": {
            "metadata": { "slug": "a", "scan": EVIL, "transcoder_list": [], "prompt_tokens": [EVIL, RTL, "\0\u{1b}\u{202e}"],
                "prompt": EVIL, "node_threshold": 0.8, "schema_version": 1 },
            "qParams": {},
            "nodes": [
                node("0_3_1", "0", 1, feature, Some(0.3)),
                node("1_4_2", "1", 2, feature, Some(0.5)),
                node("error_0_2", "0", 2, "mlp reconstruction error", Some(0.75)),
                node("E_1_0", "E", 0, "embedding", Some(0.7)),
                node("E_2_1", "E", 1, "embedding", Some(0.6)),
                node("E_3_2", "E", 2, "embedding", Some(0.65)),
                node("3_9_2", "3", 2, "logit", None),
            ],
            "links": [
                link("E_1_0", "0_3_1", 1.5), link("E_2_1", "0_3_1", 0.3), link("0_3_1", "1_4_2", -0.5),
                link("1_4_2", "3_9_2", 0.7), link("0_3_1", "3_9_2", 0.25), link("error_0_2", "3_9_2", -0.1),
            ],
        },
        "features": [
            { "layer": 0, "feature": 3, "explanations": [EVIL], "promoted": { "likelier": [[EVIL, 1.25]], "less_likely": [[RTL, -0.5]] } },
            { "layer": 1, "feature": 4 },
        ],
    })
}

/// Nothing became markup, and the page is no wider than the window.
fn is_only_text(page: &Browser) -> Result {
    assert_eq!(page.get("document.querySelectorAll('img, iframe, b').length")?, 0);
    assert_eq!(page.get("document.documentElement.scrollWidth <= innerWidth")?, true);
    let reordered = "/[\\u202e\\0\\x1b]/.test(document.body.innerText)";
    assert_eq!(page.get(reordered)?, false);
    Ok(())
}

#[test]
fn a_graph_shows_a_node_with_its_edges_and_how_to_check_one() -> Result {
    show(&graph_page(&report())?, |page| {
        assert_eq!(page.text("#side h2")?, "No node is chosen");
        assert_eq!(page.text("#prompt")?, visible_text(EVIL));
        page.click("#node-0")?;
        assert_eq!(page.text("#side h2")?, "Feature 0/3");
        let facts = page.text("#side .quiet")?;
        for part in ["layer 0", &visible_token(RTL), "at 1", "activation 2.000", "influence up to here 0.300"]
        {
            assert!(facts.contains(part), "{facts}: {part}");
        }
        assert_eq!(page.texts("#side .explanation")?, [visible_text(EVIL)]);
        assert_eq!(page.texts("#side .token")?, [visible_token(EVIL), visible_token(RTL)]);
        assert_eq!(page.texts("#side .weight")?, ["+1.500", "+0.300", "-0.500", "+0.250"]);
        let names = page.texts("#side .plain")?;
        assert!(names[2].starts_with("Feature 1/4") && names[3].starts_with("Output"), "{names:?}");
        // The sign is a color and a dash.
        assert_eq!(page.get("document.querySelectorAll('#edges .edge').length")?, 4);
        let dashes = "[...document.querySelectorAll('#edges .edge')].map((edge) => getComputedStyle(edge).strokeDasharray !== 'none')";
        assert_eq!(page.get(dashes)?, json!([false, false, true, false]));
        // An edge, and the command that measures it.
        page.get("document.querySelectorAll('#side .weight')[3].click()")?;
        let text = page.text("#side")?;
        assert!(text.contains("changes by -0.25"), "{text}");
        let command = "gpt2 forward --ids 1,2,3 --dictionary 'it'\\''s t0' --ablate-feature 3@1 --compare";
        assert_eq!(page.text("#side code")?, command);
        assert_eq!(page.get("document.querySelectorAll('#edges .edge.chosen').length")?, 1);
        page.get("document.querySelectorAll('#side .weight')[2].click()")?;
        assert!(page.text("#side")?.contains("No command measures a feature while"));
        page.get("document.querySelectorAll('#side .weight')[0].click()")?;
        assert!(page.text("#side")?.contains("No command takes out a token"));
        // A node of a list.
        page.get("document.querySelectorAll('#side .plain')[3].click()")?;
        assert!(page.text("#side h2")?.starts_with("Output"));
        page.until("location.hash.includes('clickedId=3_9_2')")?;
        is_only_text(page)?;
        assert_eq!(page.get("document.scripts.length")?, 2, "data, script");
        assert_eq!(page.log()?, json!([]));
        let markup = "document.body.innerHTML = '<b>x</b>'";
        let tried = format!("(() => {{ try {{ {markup} }} catch {{ return 'refused' }} }})()");
        assert_eq!(page.get(&tried)?, "refused");
        assert!(page.log()?[0]["message"].as_str().is_some_and(|text| text.contains("TrustedHTML")));
        Ok(())
    })
}

#[test]
fn a_graph_is_moved_through_pruned_and_grouped_by_the_keyboard() -> Result {
    show(&graph_page(&report())?, |page| {
        page.get("document.getElementById('map').focus()")?;
        page.keys(UP)?;
        assert!(page.text("#side h2")?.starts_with("Output"));
        page.keys(DOWN)?;
        assert_eq!(page.text("#side h2")?, "Feature 1/4");
        page.keys(" ")?;
        page.keys(DOWN)?;
        assert_eq!(page.text("#side h2")?, "Error of layer 0");
        page.keys(LEFT)?;
        assert_eq!(page.text("#side h2")?, "Feature 0/3");
        page.keys(" ")?;
        assert!(page.text("#groups form")?.starts_with("2 nodes to group"));
        assert_eq!(page.get("document.querySelectorAll('[aria-selected=true]').length")?, 2);
        page.get("document.getElementById('group-name').focus()")?;
        page.keys(&format!("<b>&{ENTER}"))?;
        // A group's edges are sums over its nodes, without those between them.
        assert_eq!(page.text("#side h2")?, "<b>&");
        assert_eq!(page.texts("#side .weight")?, ["+1.500", "+0.300", "+0.950"]);
        page.until("location.hash.includes('supernodes')")?;
        let kept = page.get("new URLSearchParams(location.hash.slice(1)).get('supernodes')")?;
        assert_eq!(kept, json!([["<b>&", "1_4_2", "0_3_1"]]).to_string());
        // The file has them as circuit-tracer does.
        page.get("(globalThis.saved = null, URL.createObjectURL = (blob) => (blob.text().then((text) => (globalThis.saved = JSON.parse(text))), '#'))")?;
        page.get("[...document.querySelectorAll('#groups button')].at(-1).click()")?;
        page.until("globalThis.saved !== null")?;
        assert_eq!(page.get("globalThis.saved.qParams.supernodes")?, json!([["<b>&", "1_4_2", "0_3_1"]]));
        assert_eq!(page.get("globalThis.saved.links.length")?, 6);
        // Tokens and logits stay when the slider takes nodes away.
        assert!(page.text("#shown-nodes")?.ends_with("7 of 7 nodes"));
        page.get("(document.getElementById('limit').value = 0.4, document.getElementById('limit').dispatchEvent(new Event('input')))")?;
        assert!(page.text("#shown-nodes")?.ends_with("5 of 7 nodes"));
        page.until("location.hash.includes('pruningThreshold=0.4')")?;
        is_only_text(page)
    })
}

#[test]
fn a_graph_takes_from_an_address_only_what_is_its_own() -> Result {
    let file = tempfile::Builder::new().suffix(".html").tempfile()?;
    std::fs::write(file.path(), graph_page(&report())?)?;
    browse(file.path(), |page| {
        let address = "clickedId=1_4_2&pinnedIds=0_3_1,__proto__,x&pruningThreshold=0.5&supernodes=%5B%5B%22a%22,%220_3_1%22,%22no%22%5D,5,%5B%22b%22%5D%5D";
        page.get(&format!("(location.hash = '#{address}')"))?;
        page.until("document.querySelector('#side h2').textContent === 'Feature 1/4'")?;
        assert!(page.text("#shown-nodes")?.ends_with("6 of 7 nodes"));
        assert!(page.text("#groups form")?.starts_with("1 node to group"));
        assert_eq!(page.texts("#groups li button")?, ["show 1 node", "remove"]);
        page.get("(location.hash = '#supernodes=%5B&pruningThreshold=x&clickedId=constructor')")?;
        page.until("document.querySelector('#side h2').textContent === 'No node is chosen'")?;
        assert_eq!(page.get("document.querySelectorAll('#groups li').length")?, 0);
        assert!(page.text("#shown-nodes")?.ends_with("7 of 7 nodes"));
        Ok(())
    })
}

#[test]
fn feature_pages_list_search_and_show_features() -> Result {
    let place = json!({ "activation": 2.5, "document": 0, "position": 3, "before": EVIL, "token": RTL, "after": EVIL });
    let feature = |n: usize| {
        json!({
            "feature": n, "share": 0.25, "mean": 1.5, "quantiles": [1.0, 2.0, 3.0], "histogram": [[0.5, 1.0, 7]],
            "explanations": match n { 1 => vec![EVIL], 3 => vec!["one", "another zebra"], _ => vec![] }, "related": [[0, 0.5]], "read_by": [[EVIL, [0.1, 0.2, 0.3]]],
            "promoted": { "likelier": [[EVIL, 1.0]], "less_likely": [[RTL, -1.0]] }, "strongest": [place.clone()],
        })
    };
    let features: Vec<Value> = (0..70).map(feature).collect();
    let about = json!({
        "dictionary": { "name": EVIL, "architecture": "topk", "hook": "h", "features": 70 }, "model": EVIL, "tokens": 1000, "l0": 4.0,
        "explained_variance": null,
    });
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("features"))?;
    for (name, content) in feature_pages(&about, &features)? {
        std::fs::write(folder.path().join(name), content)?;
    }
    browse(&folder.path().join("index.html"), |page| {
        assert!(page.text("main p")?.starts_with("70 features"));
        assert_eq!(
            page.texts(".explanation")?,
            [visible_text(EVIL), "one".to_owned(), "another zebra".to_owned()]
        );
        let search = |words: &str| {
            format!(
                "(document.getElementById('search').value = {words:?}, document.getElementById('search').dispatchEvent(new Event('input')))"
            )
        };
        page.get(&search("onerror"))?;
        assert_eq!(page.text("main p")?, "70 features");
        page.get(&search("zebra"))?;
        assert_eq!(page.texts("main .rows a")?, ["3"]);
        page.get(&search("69"))?;
        assert_eq!(page.texts("main .rows a")?, ["69"]);
        page.click("main .rows a")?;
        page.until("document.querySelector('h2')?.textContent === 'Feature 69'")?;
        is_only_text(page)?;
        page.get("(location.hash = '#1')")?;
        page.until("document.querySelector('h2')?.textContent === 'Feature 1'")?;
        assert_eq!(page.texts(".explanation")?, [visible_text(EVIL)]);
        assert!(page.texts(".token")?.contains(&visible_token(EVIL)));
        is_only_text(page)
    })
}
