//! `gpt2 train-features --writes`, and `gpt2 graph`: transcoders of the demo model, and the graph of a prompt.

use super::{Run, gpt2};
use crate::common::Result;
use crate::folder::{Folder, assert_says};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::path::Path;

const PROMPT: &str = "ROMEO:\nO, she doth";
const LAYERS: usize = 4;

/// The names of a layer's values that a transcoder reads and predicts.
fn points(layer: usize) -> [String; 2] {
    [format!("blocks.{layer}.mlp.hook_in"), format!("blocks.{layer}.hook_mlp_out")]
}

/// A transcoder of a layer, of 64 features, from a few hundred tokens.
fn train(folder: &Folder, source: &str, layer: usize, out: &str, more: &[&str]) -> Result<Run> {
    let [point, writes] = points(layer);
    let usual = [
        "train-features",
        source,
        "--point",
        &point,
        "--writes",
        &writes,
        "--out",
        &folder.at(out),
        "--features",
        "64",
        "-k",
        "6",
        "--batch",
        "32",
        "--lr",
        "0.005",
        "--silent-after",
        "400",
        "--json",
    ];
    gpt2(&[&usual[..], more].concat())
}

/// A folder with a text, and a transcoder of each layer.
fn world() -> Result<(Folder, Vec<String>)> {
    let folder = Folder::empty()?;
    let text = folder.at("text.txt");
    std::fs::write(&text, "ROMEO:\nO, she doth teach the torches to burn bright!\n\n".repeat(20))?;
    let one = |layer: usize| -> Result<String> {
        let name = format!("t{layer}");
        let more = ["--sparsity", "jumprelu", "--epochs", "12", "--window", "32"];
        train(&folder, &text, layer, &name, &more)?.succeeded();
        Ok(folder.at(&name))
    };
    let all = (0..LAYERS).map(one).collect::<Result<Vec<_>>>()?;
    Ok((folder, all))
}

fn graph(dictionaries: &[String], more: &[&str]) -> Result<Run> {
    gpt2(&[&["graph", PROMPT, "--dictionary", &dictionaries.join(",")], more].concat())
}

fn json(run: Run) -> Result<Value> {
    Ok(serde_json::from_str(&run.succeeded().stdout)?)
}

#[test]
fn transcoders_lead_from_a_prompt_to_the_next_token() -> Result {
    let (folder, dictionaries) = world()?;
    let out = folder.at("graph.json");
    let report = json(graph(&dictionaries, &["--json", "--out", &out])?)?;
    let file: Value = serde_json::from_slice(&std::fs::read(&out)?)?;
    assert_eq!(report["graph"], file);
    assert_eq!(file["metadata"]["slug"], "graph");
    check_file(&file)?;
    for score in ["replacement_score", "completeness_score"] {
        let score = report[score].as_f64().ok_or("a score")?;
        assert!(score > 0.0 && score < 1.0, "{score}");
    }
    // Without pruning, everything that the model has is there: features, errors, tokens, and the chosen logits.
    let whole = json(graph(&dictionaries, &["--json", "--node-threshold", "1", "--edge-threshold", "1"])?)?;
    assert_eq!(whole["nodes"], report["nodes"]);
    let all = whole["graph"]["nodes"].as_array().ok_or("nodes")?.len();
    let some = file["nodes"].as_array().ok_or("nodes")?.len();
    assert!(all > some && all <= whole["nodes"].as_u64().ok_or("a number")?.try_into()?, "{all} and {some}");
    let shown = graph(&dictionaries, &["-k", "3"])?.succeeded().stdout;
    assert_says("graph", &shown, &["replacement score", "completeness score", "Output \"", "activation"]);
    // The order of layers is not the order of names.
    let turned: Vec<String> = dictionaries.iter().rev().cloned().collect();
    assert_eq!(json(graph(&turned, &["--json"])?)?["graph"]["links"], report["graph"]["links"]);
    Ok(())
}

/// The names and meanings of circuit-tracer 0.5's `frontend/graph_models.py`.
fn check_file(file: &Value) -> Result {
    let keys = |value: &Value| -> Result<HashSet<String>> {
        Ok(value.as_object().ok_or("an object")?.keys().cloned().collect())
    };
    let named = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<HashSet<String>>();
    assert_eq!(keys(file)?, named(&["metadata", "qParams", "nodes", "links"]));
    let metadata =
        ["slug", "scan", "transcoder_list", "prompt_tokens", "prompt", "node_threshold", "schema_version"];
    assert_eq!(keys(&file["metadata"])?, named(&metadata));
    assert_eq!(file["metadata"]["prompt"], PROMPT);
    assert_eq!(
        keys(&file["qParams"])?,
        named(&["pinnedIds", "supernodes", "linkType", "clickedId", "sg_pos"])
    );
    let of_node = [
        "node_id",
        "feature",
        "layer",
        "ctx_idx",
        "feature_type",
        "token_prob",
        "is_target_logit",
        "run_idx",
        "reverse_ctx_idx",
        "jsNodeId",
        "clerp",
        "influence",
        "activation",
    ];
    let mut kinds: HashMap<&str, usize> = HashMap::new();
    let mut ids = HashSet::new();
    for node in file["nodes"].as_array().ok_or("nodes")? {
        assert_eq!(keys(node)?, named(&of_node));
        *kinds.entry(node["feature_type"].as_str().ok_or("a kind")?).or_default() += 1;
        assert!(ids.insert(node["node_id"].as_str().ok_or("an id")?), "{node} twice");
    }
    assert!(kinds["cross layer transcoder"] > 0 && kinds["logit"] > 0, "{kinds:?}");
    assert_eq!(kinds["embedding"], file["metadata"]["prompt_tokens"].as_array().ok_or("tokens")?.len());
    for link in file["links"].as_array().ok_or("links")? {
        assert_eq!(keys(link)?, named(&["source", "target", "weight"]));
        for end in ["source", "target"] {
            assert!(ids.contains(link[end].as_str().ok_or("an end")?), "{link}");
        }
        assert!(link["weight"].as_f64().is_some_and(|weight| weight != 0.0), "{link}");
    }
    Ok(())
}

/// The page holds the report without folders, and texts of features that stand in a file.
#[test]
fn a_page_holds_the_graph_with_explanations() -> Result {
    let (folder, dictionaries) = world()?;
    let plain = json(graph(&dictionaries, &["--json"])?)?;
    let one = &plain["features"][0];
    assert_eq!(one["promoted"]["likelier"].as_array().map(Vec::len), Some(5));
    assert!(one.get("explanations").is_none());
    let evil = "</script><img src=x onerror=alert(1)>";
    let explanation = serde_json::json!({
        "modelId": "m", "layer": format!("{}-mine", one["layer"]), "index": one["feature"].to_string(), "description": evil,
    });
    let explanations = folder.at("explanations.jsonl");
    std::fs::write(&explanations, format!("{explanation}\n"))?;
    let page = folder.at("graph.html");
    let more = ["--json", "--explanations", &explanations, "--page", &page];
    let report = json(graph(&dictionaries, &more)?)?;
    assert_eq!(report["features"][0]["explanations"], serde_json::json!([evil]));
    assert_eq!(report["features"][0]["promoted"], one["promoted"]);
    let name = format!("{}_{}_", one["layer"], one["feature"]);
    for node in report["graph"]["nodes"].as_array().ok_or("nodes")? {
        let is_it = node["node_id"].as_str().is_some_and(|id| id.starts_with(&name));
        assert_eq!(node["clerp"] == evil, is_it, "{node}");
    }
    let html = std::fs::read_to_string(&page)?;
    let (_, data) = html.split_once("type=\"application/json\">").ok_or("data")?;
    let (data, _) = data.split_once("</script>").ok_or("an end")?;
    let shown: Value = serde_json::from_str(data)?;
    for part in ["graph", "features", "nodes", "completeness_score", "command"] {
        assert_eq!(shown[part], report[part], "{part}");
    }
    assert_eq!(shown["dictionaries"][1]["name"], "t1");
    let parent = Path::new(&page).parent().ok_or("a folder")?.display().to_string();
    assert!(!html.contains(&parent), "{parent}");
    // The command is one that runs.
    let command = report["command"].as_str().ok_or("a command")?;
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let layer: usize = one["layer"].as_u64().ok_or("a layer")?.try_into()?;
    let change =
        ["--dictionary", &dictionaries[layer], "--ablate-feature", &one["feature"].to_string(), "--compare"];
    gpt2(&[&words[..], &change].concat())?.succeeded();
    let shown = graph(&dictionaries, &["-k", "500", "--explanations", &explanations])?.succeeded().stdout;
    assert_says("graph", &shown, &["explanation", evil]);
    // Files that are there, or that the run reads, stay.
    graph(&dictionaries, &["--page", &page])?.refused(1, &["--page", "already exists", "--overwrite"]);
    graph(&dictionaries, &["--page", &page, "--overwrite"])?.succeeded();
    graph(&dictionaries, &["--page", &page, "--out", &page, "--overwrite"])?
        .refused(1, &["is the same file"]);
    let more = ["--explanations", &explanations, "--page", &explanations, "--overwrite"];
    graph(&dictionaries, &more)?.refused(1, &["--page", "a file of explanations", "this run reads"]);
    std::fs::write(&explanations, "[{\"index\": 1, \"description\": \"x\"}]")?;
    graph(&dictionaries, &["--explanations", &explanations])?
        .refused(1, &["--explanations", "explanations.jsonl, entry 1", "a layer from 0 to 3", "add it"]);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_with_what_to_do() -> Result {
    let (folder, dictionaries) = world()?;
    let with = |dictionaries: &[&str], more: &[&str]| -> Result<Run> {
        graph(&dictionaries.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(), more)
    };
    let all: Vec<&str> = dictionaries.iter().map(String::as_str).collect();
    with(&all[..3], &[])?.refused(1, &["--dictionary", "layer 3 has 0 transcoders of 3", "each layer"]);
    with(&[all[0], all[1], all[2], all[2]], &[])?.refused(1, &["layer 2 has 2 transcoders"]);
    with(&[all[0], all[1], "demo", all[3]], &[])?
        .refused(1, &["--dictionary demo", "blocks.2.hook_resid_post", "expected a transcoder", "--writes"]);
    with(&all, &["--max-nodes", "20"])?
        .refused(1, &["--max-nodes 20", "nodes; take a shorter text", "raise"]);
    with(&all, &["--node-threshold", "2"])?.refused(1, &["--node-threshold 2", "from 0 to 1"]);
    // Of another width.
    let config = folder.at("t3/cfg.json");
    let other = folder.at("other");
    std::fs::create_dir(&other)?;
    std::fs::copy(&config, format!("{other}/cfg.json"))?;
    let more = ["--model", super::ODD];
    gpt2(&[&["graph", "--ids", "1,2", "--dictionary", all[0]], &more[..]].concat())?
        .refused(1, &["belongs to another model"]);
    with(&[all[0], all[1], all[2], &other], &[])?.refused(1, &["no sae_weights.safetensors here"]);
    Ok(())
}

#[test]
fn a_store_of_both_values_and_a_text_make_transcoders() -> Result {
    let folder = Folder::empty()?;
    let text = folder.at("text.txt");
    std::fs::write(&text, "ROMEO:\nO, she doth teach the torches to burn bright!\n\n".repeat(20))?;
    let store = folder.at("store");
    let [point, writes] = points(2);
    let both = format!("{point},{writes}");
    gpt2(&["record", &text, "--points", &both, "--out", &store])?.succeeded();
    let more = ["--sparsity", "jumprelu", "--epochs", "12"];
    for (source, out) in [(&store, "stored"), (&text, "live")] {
        let report = json(train(&folder, source, 2, out, &more)?)?;
        assert_eq!((&report["point"], &report["writes"]), (&point.as_str().into(), &writes.as_str().into()));
        let explained = report["explained_variance"].as_f64().ok_or("a number")?;
        assert!(explained > 0.4, "{out}: {explained}");
        let at = folder.at(out);
        let found = json(gpt2(&["features", PROMPT, "--dictionary", &at, "--json"])?)?;
        assert_eq!(found["dictionary"]["architecture"], "jumprelu_transcoder");
        assert_eq!(found["dictionary"]["hook_out"], writes);
        let of_text = found["quality"]["explained_variance"].as_f64().ok_or("a number")?;
        assert!(of_text > 0.3, "{out}: {of_text}");
    }
    train(&folder, &store, 2, "topk", &[])?
        .refused(1, &["--writes", "no TopK transcoder", "--sparsity jumprelu"]);
    // A transcoder predicts what comes later in the pass.
    for (point, writes) in [(&point, "blocks.1.hook_mlp_out"), (&writes, writes.as_str())] {
        let args =
            ["train-features", &text, "--point", point, "--writes", writes, "--out", &folder.at("back")];
        gpt2(&[&args[..], &more].concat())?
            .refused(1, &[&format!("--writes {writes}"), "does not come after", "predicts a later value"]);
    }
    train(&folder, &store, 1, "other", &more)?.refused(1, &["--writes blocks.1.hook_mlp_out", "record both"]);
    Ok(())
}
