//! Somebody who uses the command for the first time gets words that explain themselves, and remedies.

use super::{ODD, Run, assert_near, comma_separated, command, gpt2, json, list, number, stdout, words};
use crate::common::Result;
use crate::folder::{Folder, assert_says};
use serde_json::{Value, json};

const PROMPT: &str = "Gremio loves Bianca. Gremio loves";

/// The links that the terminal shows: query, key and head.
fn links(printed: &str) -> Vec<[String; 3]> {
    let lines = printed.lines().filter(|line| line.contains("  ->  "));
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    words.map(|w| [w[0], w[w.len() - 5], w[w.len() - 2]].map(str::to_owned)).collect()
}

#[test]
fn the_first_look_shows_one_link_of_a_head_and_json_has_what_it_shows() -> Result {
    let printed = stdout(&["attention", PROMPT])?;
    let shown = links(&printed);
    let mut heads: Vec<&String> = shown.iter().map(|[.., head]| head).collect();
    heads.sort();
    heads.dedup();
    assert_eq!((shown.len(), heads.len()), (5, 5), "{printed}");
    assert_says("legend", &printed, &["· is a space; tokens are words and pieces of words\n"]);
    assert_says("legend", &stdout(&["attention", PROMPT, "--head", "3.0"])?, &["\n\n· is a space"]);
    let of_a_letter = stdout(&["attention", "a", "--head", "3.0"])?;
    assert!(of_a_letter.ends_with("\n\ntokens are words and pieces of words\n"), "{of_a_letter}");
    for more in [&[][..], &["--head", "1.0"]] {
        let of_ids = stdout(&[&["attention", "--model", ODD, "--ids", "1,2,3"], more].concat())?;
        assert!(!of_ids.contains("tokens are words"), "{of_ids}");
    }

    let report = json(&["attention", PROMPT, "--json"])?;
    let of_json: Vec<[String; 3]> = list(&report["links"])
        .iter()
        .map(|l| [l["query"].to_string(), l["key"].to_string(), format!("{}.{}", l["layer"], l["head"])])
        .collect();
    assert_eq!(of_json, shown);
    let expected = json(&["forward", PROMPT, "--json", "-k", "5"])?;
    for (next, other) in list(&report["next"]).iter().zip(list(&expected["next"])) {
        assert_eq!((&next["id"], &next["token"]), (&other["id"], &other["token"]));
        assert_near("probability", &next["probability"], number(&other["probability"]), 1e-5);
    }
    for layer in list(&report["layers"]) {
        for head in list(&layer["heads"]) {
            let name = format!("{}.{}", layer["layer"], head["head"]);
            let row = printed.lines().rev().find(|line| line.split_whitespace().next() == Some(&name));
            let kind = row.and_then(|row| row.split_whitespace().last()).ok_or("a row")?;
            assert_eq!(head["kind"], kind, "{name}");
        }
    }
    let chosen = json(&["attention", PROMPT, "--json", "--head", "3.0"])?;
    assert_eq!(chosen["layers"][0]["heads"][0]["kind"], report["layers"][3]["heads"][0]["kind"]);
    assert_eq!(list(&chosen["links"]).len(), 1);
    Ok(())
}

#[test]
fn kinds_and_links_are_left_out_where_nobody_looked() -> Result {
    let folder = Folder::empty()?;
    folder.write("text.txt", "To be, or not to be, that is the question:\n".repeat(40))?;
    let text = folder.at("text.txt");
    let model = folder.at("model");
    let sizes = words("--vocab-size 300 --n-layer 1 --n-head 1 --n-embd 8 --n-positions 2049 --window 8");
    let short = words("--steps 1 --batch 1");
    gpt2(&[&["train", "--text", &text, "--out", &model][..], &sizes, &short].concat())?.succeeded();
    for (tokens, looks) in [(2048, true), (2049, false)] {
        let report =
            json(&["attention", "--json", "--model", &model, "--ids", &comma_separated(&vec![1; tokens])])?;
        assert_eq!((report.get("links").is_some(), tokens), (looks, tokens));
        let head = &report["layers"][0]["heads"][0];
        assert_eq!((head.get("kind").is_some(), tokens), (looks, tokens), "{head}");
    }
    Ok(())
}

#[test]
fn the_first_line_says_what_the_model_has_and_what_is_shown() -> Result {
    for (chosen, says) in [
        (&[][..], "17 tokens, 4 layers of 4 heads; f32"),
        (&["-l", "3"], "17 tokens, 4 layers of 4 heads (shown: layer 3); f32"),
        (&["-l", "0-2", "-H", "0"], "17 tokens, 4 layers of 4 heads (shown: layers 0-2, head 0); f32"),
        (&["-H", "0,1,3"], "17 tokens, 4 layers of 4 heads (shown: heads 0-1,3); f32"),
    ] {
        let printed = stdout(&[&["attention", PROMPT][..], chosen].concat())?;
        assert!(printed.lines().next().is_some_and(|line| line.contains(says)), "{says}: {printed}");
    }
    Ok(())
}

#[test]
fn one_token_attends_to_itself_and_narrow_terminals_get_whole_sentences() -> Result {
    let printed = stdout(&["attention", "a"])?;
    assert_says("kinds", &printed, &["\nitself     the token itself\n"]);
    assert!(!printed.contains("spread"), "{printed}");
    let narrow = Run::of(command(&["attention", PROMPT]).env("COLUMNS", "60"))?.succeeded().stdout;
    assert_says("a sentence", &narrow, &["focused: 0.99 on one\nearlier token\n"]);
    Ok(())
}

#[test]
fn a_head_is_chosen_by_the_name_that_it_has_everywhere() -> Result {
    let printed = |more: &[&str]| stdout(&[&["attention", PROMPT][..], more].concat());
    assert_eq!(printed(&["--head", "3.0"])?, printed(&["--layer", "3", "--head", "0"])?);
    assert_eq!(printed(&["-H", "3.0,3.2"])?, printed(&["-l", "3", "-H", "0,2"])?);
    for (more, says) in [
        (&["-H", "3.0,1.1"][..], "--head 1.1,3.0: each layer shows the same heads"),
        (&["-H", "3.0", "-l", "1"], "--head 3.0: this already names a layer: drop --layer"),
        (&["-H", "3.0,1"], "--head 3.0: this already names a layer: drop --layer"),
        (&["-H", "4.0"], "there is no layer 4"),
    ] {
        gpt2(&[&["attention", PROMPT][..], more].concat())?.refused(1, &[says]);
    }
    gpt2(&["attention", PROMPT, "-H", "3.x"])?.refused(2, &["expected H, H-H or LAYER.HEAD"]);
    Ok(())
}

#[test]
fn a_whole_layer_is_ablated_by_a_star_and_errors_name_the_option() -> Result {
    for (option, star, all) in [
        ("--ablate", "1.*", "1.0,1.1,1.2,1.3"),
        ("--mean-ablate", "0.2,1.*", "0.2,1.0,1.1,1.2,1.3"),
        ("--scale", "1.*=2", "1.0=2,1.1=2,1.2=2,1.3=2"),
    ] {
        let with = |value| stdout(&["forward", PROMPT, option, value]);
        assert_eq!(with(star)?, with(all)?, "{option}");
    }
    for (args, code, says) in [
        (words("--ablate 9.9"), 1, "--ablate 9.9: layer 9: the model has layers 0 to 3"),
        (words("--ablate 9.*"), 1, "--ablate 9.*: layer 9"),
        (words("--attention-temperature 0.7=2"), 1, "--attention-temperature 0.7=2: head 7"),
        (words("--block 2.9/3:1"), 1, "--block 2.9/3:1: head 9 of layer 2"),
        (words("--ablate 1"), 2, "several: 5.0,5.1; all heads of a layer: '5.*'"),
    ] {
        gpt2(&[&["forward", PROMPT][..], &args].concat())?.refused(code, &[says]);
    }
    gpt2(&["forward", "--ids", "1 2 3"])?.refused(2, &["expected token ids, separated by commas: 1,2,3"]);
    Ok(())
}

#[test]
fn forward_compares_two_runs() -> Result {
    let plain = json(&["forward", PROMPT, "--json"])?;
    let changed = json(&["forward", PROMPT, "--ablate", "1.0", "--json"])?;
    let both = json(&["forward", PROMPT, "--ablate", "1.0", "--compare", "--json"])?;
    for key in ["tokens", "perplexity", "next"] {
        assert_eq!((&both["plain"][key], &both[key]), (&plain[key], &changed[key]), "{key}");
    }
    let changes = list(&both["changes"]);
    for (run, of) in [(&plain, "plain"), (&changed, "changed")] {
        for next in list(&run["next"]) {
            let found = changes.iter().find(|one| one["id"] == next["id"]).ok_or("a change")?;
            assert_eq!((&found[of], &found["token"]), (&next["probability"], &next["token"]));
        }
    }
    let shown = stdout(&["forward", PROMPT, "--ablate", "1.0", "--compare"])?;
    let next = &changes[0];
    let before = number(&next["plain"]);
    let after = number(&next["changed"]);
    let row = format!("{before:.4}   {after:.4}  {:+.4}", after - before);
    let perplexity = |of: &Value| format!("{:.3}", number(&of["perplexity"]));
    let line = format!("perplexity {} plain, {} changed", perplexity(&plain), perplexity(&changed));
    assert_says("both", &shown, &[&row, &line]);

    gpt2(&["forward", PROMPT, "--compare"])?.refused(1, &["--compare", "add an intervention"]);
    let export = ["forward", PROMPT, "--compare", "--ablate", "1.0", "--export", "x.safetensors"];
    gpt2(&export)?.refused(1, &["--export", "changed run alone", "without --compare"]);
    Ok(())
}

#[test]
fn a_comparison_goes_to_a_page_and_json_alone() -> Result {
    let folder = Folder::empty()?;
    let page = folder.at("page.html");
    let with = |more: &[&str]| {
        gpt2(
            &[
                &["attention", PROMPT, "--ablate", "1.0", "--compare", "--overwrite", "--html", &page][..],
                more,
            ]
            .concat(),
        )
    };
    for (option, name) in [("--export", "w.json"), ("--picture", "w.png")] {
        with(&[option, &folder.at(name)])?.refused(1, &[option, "changed run alone", "without --compare"]);
    }
    for args in [&["--ablate", "1.0"][..], &["--ablate", "1.0", "--json"]] {
        let run = gpt2(&[&["attention", PROMPT, "--compare"][..], args].concat())?;
        run.refused(1, &["--html FILE", "gpt2 forward --compare"]);
    }
    for chosen in [&[][..], &["-l", "2"]] {
        let both: Value =
            serde_json::from_str(&with(&[&["--json"][..], chosen].concat())?.succeeded().stdout)?;
        let plain = json(&[&["attention", PROMPT, "--json"][..], chosen].concat())?;
        assert_eq!((&both["plain"]["next"], &both["plain"]["links"]), (&plain["next"], &plain["links"]));
        assert_ne!(both["next"], plain["next"]);
        for (a, b) in list(&both["plain"]["layers"]).iter().zip(list(&plain["layers"])) {
            for (a, b) in list(&a["heads"]).iter().zip(list(&b["heads"])) {
                assert_eq!((&a["kind"], a["weights"].is_null()), (&b["kind"], chosen.is_empty()));
                assert_eq!((&a["weights"], a.get("silenced")), (&b["weights"], None));
                assert_near("entropy", &a["summary"]["entropy"], number(&b["summary"]["entropy"]), 1e-4);
            }
        }
    }
    Ok(())
}

#[test]
fn a_target_that_lacks_its_space_gets_a_note() -> Result {
    let note = "\" B\" is ";
    let run = gpt2(&["attention", PROMPT, "--effect", "--target", "B"])?.succeeded();
    assert_says("note", &run.stderr, &[note, "times as probable here as \"B\"", "begins with its space"]);
    for target in [" B", ","] {
        let run = gpt2(&["attention", PROMPT, "--effect", "--target", target])?.succeeded();
        assert!(!run.stderr.contains("times as probable"), "{}", run.stderr);
    }
    Ok(())
}

#[test]
fn heads_names_all_that_stand_out_and_one_that_copies() -> Result {
    let report = json(&["heads", "--json"])?;
    let printed = Run::of(command(&["heads"]).env("COLUMNS", "1000"))?.succeeded().stdout;
    for (key, kind) in [("previous_token", "previous-token"), ("induction", "induction")] {
        let chance = number(&report["chance"][key]);
        let least = chance + 0.05 * (1.0 - chance);
        let score = |head: &Value| number(&head[key]["mean"]);
        let mut above: Vec<&Value> =
            list(&report["heads"]).iter().filter(|head| score(head) > least).collect();
        above.sort_by(|a, b| score(b).total_cmp(&score(a)));
        let names: Vec<String> =
            above.iter().map(|head| format!("{}.{}", head["layer"], head["head"])).collect();
        let listed = names.iter().take(12).cloned().collect::<Vec<_>>().join(", ");
        let more = names.len().saturating_sub(12);
        let expected = if more > 0 { format!("{listed} and {more} more") } else { listed };
        assert_says(kind, &printed, &[&format!("{kind} heads, above {least:.3}: {expected}\n")]);
    }
    assert_says(
        "heads",
        &printed,
        &[
            "heads that score more than 5 % of the way from chance to 1, best first:\n",
            "no duplicate-token head: none is above 0.0",
            "the best induction head that also copies: 3.0 (copying +0.4",
            "next, what it attends to: gpt2 attention TEXT --head 3.0\n",
        ],
    );
    Ok(())
}

#[test]
fn patch_records_both_prompts_prints_positions_and_notes_swapped_ones() -> Result {
    let args =
        ["patch", " fair king and fair", " fair lord and fair", "--answer", " king", "--against", " lord"];
    let report = json(&[&args[..], &["--json", "--by-position"]].concat())?;
    let of = |text| {
        Ok::<_, Box<dyn std::error::Error>>(json(&["forward", text, "--json"])?["provenance"]["ids"].clone())
    };
    assert_eq!(report["provenance"]["ids"], of(args[1])?);
    assert_eq!(report["provenance"]["corrupt_ids"], of(args[2])?);

    let printed = gpt2(&[&args[..], &["--by-position"]].concat())?.succeeded();
    let (_, table) =
        printed.stdout.split_once("at the positions that matter most to them:\n\n").ok_or("a table")?;
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let heads = &rows[0][2..];
    for row in &rows[1..] {
        let position: usize = row[0].parse()?;
        for (name, share) in heads.iter().zip(&row[3..]) {
            let (layer, head) = name.split_once('.').ok_or("a head")?;
            let (layer, head): (usize, usize) = (layer.parse()?, head.parse()?);
            assert_near(name, &report["heads_by_position"][layer][head][position], share.parse()?, 0.006);
        }
    }
    assert_eq!((rows.len(), heads.len()), (5, 10), "{table}");
    assert!(!gpt2(&args)?.succeeded().stdout.contains("matter most to them"));

    assert!(!printed.stderr.contains("swap the prompts"), "{}", printed.stderr);
    let swapped = [&args[..3], &["--answer", " lord", "--against", " king"]].concat();
    let run = gpt2(&swapped)?.succeeded();
    assert_says("note", &run.stderr, &["makes ·lord less likely than ·king", "swap the prompts"]);
    Ok(())
}

#[test]
fn parts_of_a_character_show_their_bytes() -> Result {
    let printed = stdout(&["attention", "日本"])?;
    assert_says("bytes", &printed, &["0 <E6>", "1 <97>", "E6  97  A5", "<A5>  ->"]);
    assert!(!printed.contains('\u{fffd}'), "{printed}");
    assert_says("forward", &stdout(&["forward", "日本"])?, &["<E6>", "<97>"]);
    assert_says("lens", &stdout(&["lens", "日"])?, &["what follows <A5>"]);
    assert!(!stdout(&["circuits", "2.1"])?.contains('\u{fffd}'));
    let report = json(&["attention", "日本", "--json"])?;
    assert_eq!(list(&report["tokens"])[0], json!("\u{fffd}"), "JSON keeps the tokens' text");
    let folder = Folder::empty()?;
    let picture = folder.at("head.svg");
    let page = folder.at("page.html");
    gpt2(&["attention", "日本", "-H", "0.3", "--picture", &picture, "--html", &page])?.succeeded();
    assert_says("picture", &std::fs::read_to_string(&picture)?, &[">0 &lt;E6&gt;</text>"]);
    assert_says("page", &std::fs::read_to_string(&page)?, &["\\u003cE6>"]);
    Ok(())
}

#[test]
fn a_picture_of_all_heads_has_the_text() -> Result {
    let folder = Folder::empty()?;
    let picture = folder.at("all.svg");
    gpt2(&["attention", PROMPT, "--picture", &picture])?.succeeded();
    assert_says(
        "picture",
        &std::fs::read_to_string(&picture)?,
        &[&format!(">{PROMPT}</text>"), "17 tokens: Gremio loves"],
    );
    Ok(())
}

#[test]
#[cfg(target_os = "linux")]
fn without_a_browser_plain_words_say_what_to_do() -> Result {
    let folder = Folder::empty()?;
    let launcher = folder.file("xdg-open");
    crate::install_script("exit 3", &launcher)?;
    let page = folder.at("page.html");
    let path = launcher.parent().ok_or("a folder")?;
    let run = Run::of(command(&["attention", "O", "--open", "--html", &page]).env("PATH", path))?;
    run.refused(1, &["open this file in one yourself: ", &page]);
    assert!(!run.stderr.contains("Exit") && !run.stderr.contains("gpt2 help"), "{}", run.stderr);
    Ok(())
}

#[test]
fn the_short_help_counts_all_that_it_leaves_out() -> Result {
    let of = |name: &str, option| stdout(&[name, option]);
    let options = |help: &str| {
        let (body, _) = help.split_once("\nExample").unwrap_or((help, ""));
        body.lines().filter(|line| line.starts_with("  -") || line.starts_with("      --")).count()
    };
    for name in ["attention", "forward", "heads", "generate", "train"] {
        let short = of(name, "-h")?;
        let long = of(name, "--help")?;
        let left_out = options(&long) - options(&short);
        assert_says(name, &short, &[&format!("\n{left_out} more options: gpt2 {name} --help")]);
    }
    Ok(())
}

#[test]
fn an_unknown_option_gets_a_tip_about_what_there_is() -> Result {
    let run = gpt2(&["attention", "x", "--word", "it"])?;
    run.refused(2, &["tip: every token has a row", "--layer 1 --head 2", "--open"]);
    gpt2(&["forward", "x", "--zzz"])?.refused(2, &["tip: all options: gpt2 forward --help"]);
    Ok(())
}
