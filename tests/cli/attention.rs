//! `gpt2 attention`: it shows the library's weights.

use super::{
    ODD, Run, assert_near, comma_separated, command, demo, demo_tokenizer, gpt2, json, list, metadata,
    some_ids, stdout, words,
};
use crate::common::{Result, assert_close};
use crate::folder::{Folder, assert_says};
use crate::models::load;
use candle_core::{DType, Device, Tensor};
use gpt2_loader::Checkpoint;
use gpt2_model::{ForwardArgs, ModelOutput};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The library's output for `odd`.
fn expected(ids: &[u32]) -> Result<ModelOutput> {
    let input = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
    let args =
        ForwardArgs { output_attentions: true, output_attention_outputs: true, ..ForwardArgs::default() };
    Ok(load("odd", DType::F32)?.transformer.forward(&input, args)?)
}

/// The numbers of a head, from its full rows: means over the queries that see at least two keys.
fn summary(rows: &[Vec<f32>]) -> [(&'static str, f64); 6] {
    let t = (rows.len() - 1) as f64;
    let mut entropy = 0.;
    let mut distance = 0.;
    let mut own = 0.;
    let mut previous = 0.;
    let mut first = 0.;
    for (i, row) in rows.iter().enumerate().skip(1) {
        for (j, w) in row.iter().map(|&w| f64::from(w)).enumerate().take(i + 1) {
            entropy -= if w > 0. { w * w.ln() } else { 0. };
            distance += w * (i - j) as f64;
            own += if i == j { w } else { 0. };
            previous += if i == j + 1 { w } else { 0. };
            first += if j == 0 { w } else { 0. };
        }
    }
    [
        ("entropy", entropy / t),
        ("mean_distance", distance / t),
        ("on_self", own / t),
        ("on_previous", previous / t),
        ("on_first", first / t),
        ("uniform", (1..rows.len()).map(|i| 1. / (i + 1) as f64).sum::<f64>() / t),
    ]
}

#[test]
fn json_of_chosen_heads_holds_the_librarys_weights() -> Result {
    let ids = some_ids();
    let args = ["attention", "--model", ODD, "--json", "--ids", &comma_separated(&ids)];
    let report = json(&[&args[..], &["--layer", "1", "--head", "0,2"]].concat())?;
    assert_eq!(report["tokens"], json!(ids.iter().map(u32::to_string).collect::<Vec<_>>()));
    let layers = list(&report["layers"]);
    assert_eq!((layers.len(), &layers[0]["layer"]), (1, &json!(1)));
    let heads = list(&layers[0]["heads"]);
    assert_eq!(heads.iter().map(|h| &h["head"]).collect::<Vec<_>>(), [0, 2]);
    let weights = expected(&ids)?.attentions[1].squeeze(0)?.to_vec3::<f32>()?;
    for (head, full) in heads.iter().zip([&weights[0], &weights[2]]) {
        let rows = list(&head["weights"]);
        assert_eq!(rows.len(), ids.len());
        for (i, row) in rows.iter().enumerate() {
            let row = list(row);
            assert_eq!(row.len(), i + 1, "query {i} sees the keys up to itself");
            let sum: f64 = row.iter().filter_map(Value::as_f64).sum();
            assert!((sum - 1.).abs() < 1e-5, "row {i} sums to {sum}");
            for (got, &weight) in row.iter().zip(&full[i]) {
                assert_near("weight", got, f64::from(weight), 1e-6);
            }
        }
        for (name, number) in summary(full) {
            assert_near(name, &head["summary"][name], number, 1e-4);
        }
    }
    Ok(())
}

#[test]
fn json_without_a_choice_holds_the_summaries_of_every_head() -> Result {
    let ids = some_ids();
    let report = json(&["attention", "--model", ODD, "--json", "--ids", &comma_separated(&ids)])?;
    let attentions = expected(&ids)?.attentions;
    for (l, weights) in attentions.iter().enumerate() {
        assert_eq!(report["layers"][l]["layer"], l);
        for (h, rows) in weights.squeeze(0)?.to_vec3::<f32>()?.iter().enumerate() {
            let head = &report["layers"][l]["heads"][h];
            assert_eq!((&head["head"], head.get("weights")), (&json!(h), None));
            for (name, number) in summary(rows) {
                assert_near(name, &head["summary"][name], number, 1e-4);
            }
        }
        assert_eq!(list(&report["layers"][l]["heads"]).len(), 3);
    }
    assert_eq!(list(&report["layers"]).len(), 2);
    Ok(())
}

#[test]
fn the_export_holds_weights_and_outputs_of_the_chosen_layers_and_heads() -> Result {
    let folder = Folder::empty()?;
    let ids = some_ids();
    let output = expected(&ids)?;
    let weights = Tensor::cat(&output.attentions, 0)?; // (2, 3, T, T)
    let outputs = Tensor::cat(&output.attention_outputs, 0)?; // (2, T, C)
    for (choice, layers, heads) in [
        (&[][..], &[0u32, 1][..], &[0u32, 1, 2][..]),
        (&["--layer", "1"], &[1], &[0, 1, 2]),
        (&["--head", "2,0"], &[0, 1], &[0, 2]),
        (&["-l0-1", "-H1", "-H2"], &[0, 1], &[1, 2]),
    ] {
        let path = folder.at("attention.safetensors");
        let args =
            ["attention", "--model", ODD, "--export", &path, "--overwrite", "--ids", &comma_separated(&ids)];
        let run = gpt2(&[&args[..], choice].concat())?.succeeded();
        assert_says("stderr", &run.stderr, &[&path]);
        assert!(!run.stdout.contains(&path), "a note among the results");

        let tensors = candle_core::safetensors::load(&path, &Device::Cpu)?;
        assert_eq!(tensors.len(), 2);
        let layer_index = Tensor::new(layers, &Device::Cpu)?;
        let chosen =
            weights.index_select(&layer_index, 0)?.index_select(&Tensor::new(heads, &Device::Cpu)?, 1)?;
        for (name, expected, dims) in [
            ("attentions", chosen, vec![layers.len(), heads.len(), 33, 33]),
            ("attention_outputs", outputs.index_select(&layer_index, 0)?, vec![layers.len(), 33, 48]),
        ] {
            assert_eq!((tensors[name].dims(), tensors[name].dtype()), (&dims[..], DType::F32));
            assert_close(name, &tensors[name], &expected, 1e-5);
        }
        let metadata = metadata(path.as_ref())?;
        assert_eq!(metadata["model"], "odd", "its folder is of this machine");
        assert_eq!(serde_json::from_str::<Vec<u32>>(&metadata["ids"])?, ids);
        assert_eq!(serde_json::from_str::<Vec<String>>(&metadata["tokens"])?.len(), 33);
        assert_eq!(serde_json::from_str::<Vec<u32>>(&metadata["layers"])?, layers);
        assert_eq!(serde_json::from_str::<Vec<u32>>(&metadata["heads"])?, heads);
    }
    Ok(())
}

#[test]
fn the_overview_has_a_row_for_every_head_of_the_demo_model() -> Result {
    let config = Checkpoint::open(&demo().open()?)?.config().clone();
    let text = "O Romeo, Romeo! wherefore art thou Romeo?";
    let run = gpt2(&["attention", text])?.succeeded();
    let tokens = demo_tokenizer()?.encode(text)?.len();
    let title = format!(
        "tiny-shakespeare (built in): {tokens} tokens, {} layers of {} heads",
        config.n_layer, config.n_head
    );
    assert_says(
        "overview",
        &run.stdout,
        &[&title, "entropy", "distance", "previous", "first", "--layer L --head H"],
    );
    for layer in 0..config.n_layer {
        for head in 0..config.n_head {
            let label = format!("{layer}.{head}");
            assert!(
                run.stdout.lines().any(|l| l.split_whitespace().next() == Some(&label)),
                "{}",
                run.stdout
            );
        }
    }
    Ok(())
}

/// A head's weights as the JSON output gives them.
fn weights_of(text: &str) -> Result<Vec<(String, Vec<Vec<f64>>)>> {
    let report = json(&["attention", "--json", "--layer", "0-3", text])?;
    let mut heads = vec![];
    for layer in list(&report["layers"]) {
        for head in list(&layer["heads"]) {
            let name = format!("{}.{}", layer["layer"], head["head"]);
            heads.push((name, serde_json::from_value(head["weights"].clone())?));
        }
    }
    Ok(heads)
}

/// The weight that a token gives to an earlier one.
#[derive(Debug)]
struct Link {
    weight: f64,
    query: usize,
    key: usize,
    head: String,
}

#[test]
fn a_first_look_shows_the_strongest_links_and_the_head_that_links_most() -> Result {
    let text = "First Citizen: speak. Second Citizen: speak";
    let mut links = vec![];
    let mut reach = vec![];
    for (name, rows) in weights_of(text)? {
        let mut sum = 0.0;
        let mut of_head = vec![];
        for (query, row) in rows.iter().enumerate().skip(2) {
            sum += row[1..query].iter().copied().fold(0.0, f64::max);
            of_head.extend((1..query).map(|key| Link { weight: row[key], query, key, head: name.clone() }));
        }
        // One of each head: the strongest, of equal ones the first.
        of_head.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        links.extend(of_head.into_iter().take(1));
        reach.push((sum / (rows.len() - 2) as f64, name));
    }
    links.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    reach.sort_by(|a, b| b.0.total_cmp(&a.0));

    let run = gpt2(&["attention", text])?.succeeded();
    let (most, name) = &reach[0];
    assert_says("first look", &run.stdout, &[text, "expects next: ", &format!("\nhead {name} (layer ")]);
    assert_says(
        "first look",
        &run.stdout,
        &[&format!("the most focused: {most:.2} on one earlier token"), "--open"],
    );
    let shown: Vec<&str> = run.stdout.lines().filter(|line| line.contains("  ->  ")).collect();
    assert_eq!(shown.len(), 5);
    for (line, link) in shown.iter().zip(&links) {
        let words = words(line);
        let arrow = words.iter().position(|word| *word == "->").ok_or("an arrow")?;
        let query = link.query.to_string();
        let key = link.key.to_string();
        assert_eq!((words[0], words[arrow + 1]), (&*query, &*key), "{line}: {links:?}");
        assert!(words.contains(&link.head.as_str()), "{line}: {link:?}");
    }
    Ok(())
}

#[test]
fn a_head_whose_output_is_replaced_is_marked_and_never_featured() -> Result {
    let text = "O Romeo, Romeo";
    let patch = |place: &'static str| vec!["--patch", place, "--from-prompt", text];
    let folder = crate::folder::Folder::empty()?;
    folder.write("means.txt", "My lord\n")?;
    let means = folder.at("means.txt");
    for (args, how, heads) in [
        (vec!["--ablate", "0.3"], "ablated", &["0.3"][..]),
        (vec!["--mean-ablate", "0.3"], "mean-ablated", &["0.3"]),
        (vec!["--mean-ablate", "0.3", "--mean-of", &means], "mean-ablated", &["0.3"]),
        (vec!["--scale", "0.3=0"], "scaled to 0", &["0.3"]),
        (patch("0.3"), "patched", &["0.3"]),
        (patch("0.attn"), "patched", &["0.0", "0.1", "0.2", "0.3"]),
        (patch("1"), "patched", &["0.0", "0.1", "0.2", "0.3"]),
        (patch("0.3@2"), "", &[]),
        (vec!["--scale", "0.3=0.5"], "", &[]),
        (vec!["--attention-temperature", "0.3=0.5"], "", &[]),
    ] {
        let run = gpt2(&[&["attention", text][..], &args].concat())?.succeeded();
        let featured = run.stdout.contains("\nhead 0.3 (layer 0");
        let linked = run.stdout.lines().any(|line| line.contains("  ->  ") && words(line).contains(&"0.3"));
        assert_eq!((featured, linked), (heads.is_empty(), heads.is_empty()), "{args:?}\n{}", run.stdout);
        let stars: BTreeSet<&str> = run
            .stdout
            .lines()
            .filter_map(|line| words(line).first()?.strip_prefix('*').filter(|s| !s.is_empty()))
            .collect();
        assert_eq!(stars, heads.iter().copied().collect(), "{args:?}\n{}", run.stdout);
        assert_eq!(
            run.stdout.contains(&format!("\n*          {how}: the run replaces its output")),
            !heads.is_empty()
        );
        // Scripts read it, with and without weights.
        for more in [&["--json"][..], &["--json", "-l", "0-3"]] {
            let report = json(&[&["attention", text][..], &args, more].concat())?;
            for layer in list(&report["layers"]) {
                for head in list(&layer["heads"]) {
                    let name = format!("{}.{}", layer["layer"], head["head"]);
                    let expected = if heads.contains(&&*name) { how.into() } else { Value::Null };
                    assert_eq!(head["silenced"], expected, "{args:?} {name}");
                }
            }
        }
    }
    let ablated = ["--ablate", "0.3"];
    let maps = gpt2(&[&["attention", text, "-l", "0", "-H", "2-3"], &ablated[..]].concat())?.succeeded();
    assert_says(
        "heat maps",
        &maps.stdout,
        &["layer 0, head 2: each row", "layer 0, head 3 (ablated): each row"],
    );
    for command in [&["attention", text, "--effect"][..], &["heads"]] {
        let printed = gpt2(&[command, &ablated].concat())?.succeeded().stdout;
        let marked: Vec<_> = printed.lines().filter(|line| line.ends_with("  ablated")).map(words).collect();
        assert!(marked.len() == 1 && marked[0][0] == "0.3", "{printed}");
        let heads = json(&[command, &ablated, &["--json"]].concat())?;
        let marked: Vec<_> =
            list(&heads["heads"]).iter().filter(|head| head["silenced"] == "ablated").collect();
        assert!(marked.len() == 1 && marked[0]["head"] == 3, "{marked:?}");
    }
    Ok(())
}

#[test]
fn columns_sets_the_width() -> Result {
    let text = "First Citizen: before we proceed any further, hear me speak. All: speak, speak.";
    for columns in [50, 80, 140] {
        let run = Run::of(command(&["attention", text]).env("COLUMNS", columns.to_string()))?;
        let run = run.succeeded();
        // The first line says how the result was made, whatever the width.
        let widest = run.stdout.lines().skip(1).map(gpt2_view::display_width).max().unwrap_or(0);
        assert!(widest <= columns, "{widest} > {columns}\n{}", run.stdout);
        assert_eq!(
            run.stdout.contains('█'),
            columns < 140,
            "shades take the place of numbers\n{}",
            run.stdout
        );
    }
    Ok(())
}

#[test]
fn a_heat_map_has_the_tokens_on_both_axes_and_the_weights() -> Result {
    let text = "O Romeo, Romeo!";
    let run = gpt2(&["attention", "--layer", "1", "--head", "2", text])?.succeeded();
    assert_says("heat map", &run.stdout, &["\n\nlayer 1, head 2: "]);
    assert_eq!(run.stdout.matches("\nlayer ").count(), 1);
    let tokens = demo_tokenizer()?.tokens(&demo_tokenizer()?.encode(text)?);
    let rows: Vec<&str> = run.stdout.lines().collect();
    for (i, token) in tokens.iter().enumerate() {
        let shown = token.replace(' ', "·");
        let row = rows
            .iter()
            .find(|l| l.trim_start().starts_with(&format!("{i} {shown}")))
            .ok_or(format!("no row {i} {shown}"))?;
        // The index and the token, then a weight for each visible key.
        assert_eq!(row.split_whitespace().count(), 2 + i + 1, "{row}");
    }
    assert!(!run.stdout.contains('\x1b'), "color in a pipe");
    Ok(())
}

#[test]
fn ranges_lists_and_repetition_choose_the_same() -> Result {
    let run = |choice: &[&str]| -> Result<String> {
        let args = ["attention", "--model", ODD, "--ids", "5,6,7,8"];
        stdout(&[&args[..], choice].concat())
    };
    let range = run(&["--layer", "0-1", "--head", "1-2"])?;
    assert_eq!(range.matches("layer ").count(), 4);
    assert_eq!(run(&["--layer", "0,1", "--head", "1,2"])?, range);
    assert_eq!(run(&["-l", "1", "-l", "0", "-H", "2", "-H", "1", "-H", "1-2"])?, range);
    assert_eq!(run(&["--head", "1-2"])?, range, "no layer means every layer");
    Ok(())
}

#[test]
fn color_comes_when_it_is_asked_for() -> Result {
    let args = ["attention", "--model", ODD, "--ids", "5,6,7,8"];
    for choice in [&[][..], &["--layer", "0"]] {
        let args = [&args[..], choice].concat();
        for (when, colored) in [("auto", false), ("never", false), ("always", true)] {
            let run = gpt2(&[&args[..], &["--color", when]].concat())?.succeeded();
            assert_eq!(run.stdout.contains("\x1b["), colored, "{when}: {}", run.stdout);
        }
    }
    Ok(())
}

#[test]
fn a_long_prompt_is_cut_to_what_a_reader_can_take() -> Result {
    let ids = comma_separated(&(0..77).collect::<Vec<_>>());
    let run = gpt2(&["attention", "--model", ODD, "--ids", &ids, "--layer", "0", "--head", "0"])?.succeeded();
    // The first line has the model's whole path.
    assert!(run.stdout.lines().skip(1).all(|l| l.chars().count() <= 120), "{}", run.stdout);
    assert!((10..=62).contains(&run.stdout.lines().count()), "{}", run.stdout.lines().count());
    Ok(())
}
